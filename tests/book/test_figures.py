"""The dark version of a figure: every colour replaced, in embedded pictures too; others refused."""

import base64
import io
import re
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from lab import colours, plotting

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "book" / "_ext"))
from book_build.figures import UnknownColourError, dark_version


def svg(draw) -> str:
    """Draw a figure as a notebook writes it."""
    file = io.StringIO()
    with mpl.rc_context():
        plotting.use_style()
        fig, ax = plotting.figure()
        draw(ax)
        fig.savefig(file, format="svg", metadata={"Date": None})
        plt.close(fig)
    return file.getvalue()


def paints(text: str) -> set[str]:
    return set(re.findall(r"(?:fill|stroke): (#\w+)", text))


def everything(ax):
    """One of each kind of drawing that the chapters have."""
    for i in range(7):
        ax.plot([1, 2], [i, i + 1], color=colours.nth(i), alpha=0.3, label=f"$x_{i}$")
    ax.fill_between([1, 2], 0, 1, color=colours.colour("nudge"), alpha=0.15, lw=0)
    ax.bar([1, 2], [3, 4], hatch="//", color=colours.colour("mixing"), edgecolor=colours.GROUND[0])
    ax.scatter([1, 2, 3], [1, 2, 3], c=[0.1, 0.5, 0.9], cmap="signed")
    ax.annotate("word", (1, 1), color=colours.colour("reference"))
    ax.legend()


def test_every_colour_gets_its_dark_value():
    light = svg(everything)
    dark = dark_version(light)
    known = colours.dark_values()
    assert paints(dark) == {known[value] for value in paints(light)}
    assert re.sub("#[0-9a-f]{6}", "", dark) == re.sub("#[0-9a-f]{6}", "", light)  # nothing else


@pytest.mark.parametrize(
    ("draw", "value"),
    [
        (lambda ax: ax.plot([1, 2], color="red"), "#ff0000"),
        (lambda ax: ax.fill([0, 1, 1], [0, 0, 1], fc="black", ec="none"), "#000000"),
        (lambda ax: ax.text(0, 0, "word", color="black"), "#000000"),
        (lambda ax: ax.scatter([1, 2], [1, 2], c="#abcdef"), "#abcdef"),
        (lambda ax: ax.quiver([1], [1], [1], [1]), "#000000"),
        (lambda ax: ax.imshow(np.eye(3), cmap="viridis"), "in a picture"),
    ],
)
def test_another_colour_is_refused(draw, value):
    with pytest.raises(UnknownColourError, match=value):
        dark_version(svg(draw))


def picture(text: str) -> np.ndarray:
    (found,) = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)", text)
    return np.array(Image.open(io.BytesIO(base64.b64decode(found))))


@pytest.mark.parametrize("name", colours.MAPS)
def test_a_heat_map_is_turned_too(name):
    text = svg(lambda ax: ax.imshow(np.linspace(0, 1, 24).reshape(4, 6), cmap=name, alpha=0.8))
    light, dark = picture(text), picture(dark_version(text))
    np.testing.assert_array_equal(light[..., 3], dark[..., 3])
    shown = np.unique(dark[light[..., 3] == light[..., 3].max()].view(np.uint32))
    shown = shown.view(np.uint8).reshape(-1, 4)[:, :3].astype(int)
    steps = np.array([list(bytes.fromhex(value[1:])) for _, value in colours.scale(name)])
    off = np.abs(shown[:, None] - steps).max(-1).min(-1)
    assert off.max() <= 8  # two maps may share a light value, but for a shade
    assert len(shown) == 24
