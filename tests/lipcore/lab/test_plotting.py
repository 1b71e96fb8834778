"""Figures: the numbers they draw, that they are legible, and that the same code gives the same bytes."""

import io

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from lab import plotting

LENGTHS = [4, 16, 64]
VALUES = [[2.0], [4.0], [8.0]] * np.exp(0.1 * np.random.default_rng(0).normal(size=(3, 6)))


@pytest.fixture
def ax():
    yield plotting.figure()[1]
    plt.close("all")


def svg():
    """A figure as a notebook writes it."""
    fig, (left, right) = plotting.figure(columns=2)
    plotting.values_by_length(left, LENGTHS, VALUES, label="demo")
    plotting.spread_line(right, LENGTHS, 2 * VALUES, label="general")
    texts = [text for text in fig.findobj(mpl.text.Text) if text.get_text().strip()]
    assert texts and min(text.get_fontsize() for text in texts) >= 10  # a point is a pixel or more
    file = io.BytesIO()
    with mpl.rc_context():
        plotting.use_style()
        fig.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def test_figures_are_reproducible_and_legible(ax):
    """The same code gives the same bytes, with letters as outlines; the style stays in the figure."""
    before = mpl.rcParams["font.size"]
    text = svg()
    assert text == svg()
    assert b"<text" not in text and b'style="fill: none"' in text and len(text) < 100_000
    assert mpl.rcParams["font.size"] == before and mpl.rcParams["svg.hashsalt"] != "lipcore"


def test_values_by_length(ax):
    plotting.values_by_length(ax, LENGTHS, torch.tensor(VALUES), label="demo")
    single, means = ax.get_lines()
    np.testing.assert_allclose(single.get_xdata(), np.repeat(LENGTHS, 6))
    np.testing.assert_allclose(single.get_ydata(), VALUES.reshape(-1))
    np.testing.assert_allclose(means.get_ydata(), np.exp(np.log(VALUES).mean(axis=1)))
    with pytest.raises(ValueError, match=r"^values: "):
        plotting.values_by_length(ax, LENGTHS, [1.0, 2.0], label="demo")


def test_spread_line(ax):
    plotting.spread_line(ax, LENGTHS, [9.0, 18.0, np.inf], label="bound")
    plotting.spread_line(ax, LENGTHS, VALUES, label="truth")
    bound, truth = ax.get_lines()
    assert list(bound.get_ydata()) == [9.0, 18.0]  # an infinite bound leaves the picture
    np.testing.assert_allclose(truth.get_ydata(), np.median(VALUES, axis=1))
    band = ax.collections[-1].get_paths()[0].vertices  # over the middle 80 %
    at_first = band[band[:, 0] == LENGTHS[0], 1]
    edges = np.quantile(VALUES[0], [0.1, 0.9])
    np.testing.assert_allclose([at_first.min(), at_first.max()], edges)


def test_attention_heatmap(ax):
    P = torch.softmax(torch.arange(64 * 3.0).reshape(3, 64), dim=-1).requires_grad_()
    plotting.attention_heatmap(ax, P)
    np.testing.assert_allclose(ax.images[0].get_array(), P.detach().numpy())
    assert ax.get_ylim() == (3.5, 0.5)  # the first query on top
    ticks = ax.get_xticks()
    assert ticks[0] == 1 and ticks[-1] == 64 and len(ticks) <= 10


def test_plane_tokens(ax):
    X, H = torch.tensor([[1.0, 0.0], [0.0, -2.0]]), torch.tensor([[0.0, 10.0], [0.0, 0.0]])
    plotting.plane_tokens(ax, X, H, scale=0.1)
    arrows, points = ax.collections
    np.testing.assert_allclose(points.get_offsets(), X)
    np.testing.assert_allclose([arrows.U, arrows.V], [[0, 0], [1.0, 0]])
    low, high = ax.get_xlim()
    assert -low == high > 2 and ax.get_aspect() == 1.0


@pytest.mark.parametrize(("low", "high"), [(1.0, 3.0), (0.5, 90.0), (1.0, 1e3), (1.0, 1e9)])
def test_ticks_are_readable(ax, low, high):
    """Three to ten labelled ticks within the range, in plain numbers where the range is short."""
    plotting.values_by_length(ax, LENGTHS, [low, (low * high) ** 0.5, high], label="demo")
    bottom, top = ax.get_ylim()
    pairs = zip(ax.get_yticklabels(), ax.get_yticks(), strict=True)
    labels = [label.get_text() for label, y in pairs if bottom <= y <= top]
    assert 3 <= len(labels) <= 10 and all(labels)
    assert ("$" in labels[0]) == (high > 1e4)
    plotting.reference_slope(ax, LENGTHS, 0.5, start=3.0)
    np.testing.assert_allclose(ax.get_lines()[-1].get_ydata(), [3.0, 6.0, 12.0])
    plotting.length_ticks(ax, np.geomspace(1, 1e9, 40))
    assert 3 <= len(ax.get_xticks()) <= 12
