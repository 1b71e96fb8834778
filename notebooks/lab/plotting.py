"""One style for every figure: reproducible SVG with a transparent ground.

Colours, dashes and markers come from :mod:`lab.colours`.
"""

import math
from collections.abc import Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from IPython import get_ipython
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib_inline.backend_inline import set_matplotlib_formats

from lab import colours

#: Filled dots with a rim.
_MARKER = {"mec": colours.colour("ground"), "mew": 0.8, "ms": 7}
#: The book's colour maps. After :func:`use_style` matplotlib knows them by name.
_MAPS = {
    name: ListedColormap([light for light, _ in colours.scale(name)], name) for name in colours.MAPS
}
_INKED = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "patch.edgecolor")
_RC = {
    "figure.figsize": (7.2, 4.3),
    "figure.dpi": 96,
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
    "savefig.facecolor": "none",
    "savefig.bbox": "tight",
    "savefig.dpi": 150,
    "svg.fonttype": "path",  # letters as outlines: the same with or without the font
    "svg.hashsalt": "lipcore",  # otherwise every run names its elements anew
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11.5,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "legend.fontsize": 10.5,
    **dict.fromkeys(_INKED, colours.colour("ink")),
    "axes.facecolor": "none",
    "axes.edgecolor": colours.colour("axis"),
    "hatch.color": colours.colour("ground"),
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": mpl.cycler(color=[colours.colour(name) for name in colours.SERIES]),
    "grid.color": colours.colour("grid"),
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.0,
    "lines.markersize": 5.5,
    "legend.frameon": True,
    "legend.framealpha": 0.9,
    "legend.edgecolor": "none",
    "legend.facecolor": colours.colour("ground"),
    "image.interpolation": "nearest",
}


def use_style() -> None:
    """Set matplotlib's defaults for the session; in a notebook, figures become SVG."""
    mpl.rcParams.update(_RC)
    for name, colour_map in _MAPS.items():
        if name not in mpl.colormaps:
            mpl.colormaps.register(colour_map)
    if get_ipython() is not None:
        set_matplotlib_formats("svg", metadata={"Date": None})


def figure(
    rows: int = 1, columns: int = 1, *, width: float = 7.2, height: float | None = None, **options
):
    """Make a figure in the style, and its axes; a width of 7.2 inches fills the text column."""
    if height is None:
        height = (4.3 if columns == 1 else 3.6 if columns == 2 else 2.7) * rows
    with mpl.rc_context(_RC):
        return plt.subplots(rows, columns, figsize=(width, height), **options)


def thumbnail(xlabel: str, ylabel: str, *, spines: bool = True) -> tuple[Figure, Axes]:
    """Make a panel for a card: small, with large words and without ticks."""
    fig, ax = figure(width=3.1, height=1.9)
    ax.set(xticks=[], yticks=[], xlabel=xlabel, ylabel=ylabel)
    ax.grid(False)
    ax.margins(x=0.04, y=0.12)
    ax.spines[["left", "bottom"]].set_visible(spines)
    return fig, ax


def spread_line(ax: Axes, x: Sequence[float], values: Sequence, *, share: int = 80, **style):
    """Draw the median of several values at each x, with a band over the middle ``share`` per cent.

    ``values`` has shape (m,) or (m, repeats) for m places, or is m sequences of any sizes; infinite
    ones are left out. The style is that of matplotlib's ``plot``.
    """
    x, y = _pairs(x, values)
    spread = {"errorbar": ("pi", share), "err_kws": {"alpha": 0.15, "lw": 0}}
    sns.lineplot(ax=ax, x=x, y=y, estimator="median", **spread, **style)


def values_by_length(
    ax: Axes, n: Sequence[float], values: Sequence, *, label: str, colour: str | None = None
) -> None:
    """Draw values as for :func:`spread_line` on logarithmic axes, and their geometric means."""
    colour = colour or colours.colour("truth")
    lengths, values = _pairs(n, values)
    if len(values) > len(n):
        ax.plot(lengths, values, "o", ms=3.5, color=colour, alpha=0.2, mew=0, zorder=2)
    means = np.exp(pd.Series(np.log(values)).groupby(lengths).mean())
    ax.plot(means, "o", color=colour, label=label, zorder=4, **_MARKER)
    ax.set(xscale="log", yscale="log")
    length_ticks(ax, lengths)
    plain_ticks(ax)


def attention_heatmap(
    ax: Axes, P, *, labels=None, title: str = "", colourbar: bool = True, largest=None
) -> None:
    """Draw attention weights: rows are queries, columns are keys, and large weights stand out.

    ``labels`` are the tokens, along both axes (readable up to about 24), and ``largest`` is the
    weight at the end of the scale, for comparing panels.
    """
    P = _array(P)
    rows, columns = P.shape
    edges = (0.5, columns + 0.5, rows + 0.5, 0.5)  # tokens count from one, as in the theory
    image = ax.imshow(P, cmap=_MAPS["large"], vmin=0, vmax=largest, extent=edges)
    ax.grid(False)
    ax.spines[:].set_visible(True)
    ax.set(xlabel="key $j$", ylabel="query $i$", title=title)
    for axis, size in ((ax.xaxis, columns), (ax.yaxis, rows)):
        step = max(1, 2 ** math.ceil(math.log2(size / 8)))  # for about eight ticks
        axis.set_ticks([1, *range(max(step, 2), size + 1, step)])
    if labels is not None:
        ax.set_xticks(range(1, columns + 1), labels[:columns], rotation=90)
        ax.set_yticks(range(1, rows + 1), labels[:rows])
    if colourbar:
        ax.figure.colorbar(image, ax=ax, label="weight $P_{ij}$", fraction=0.046, pad=0.03)


def plane_tokens(
    ax: Axes,
    X,
    perturbation=None,
    *,
    radius=None,
    labels=(),
    colour="tokens",
    label=None,
    scale=1.0,
) -> None:
    """Draw tokens (n, 2) of the plane, their perturbation as arrows, and the ball of a radius.

    ``labels`` stand beside the tokens, ``colour`` is a role, ``label`` is the legend entry, and
    ``scale`` multiplies the arrows.
    """
    X = _array(X)
    H = np.zeros_like(X) if perturbation is None else scale * _array(perturbation)
    extent = max(np.abs(X).max(), np.abs(X + H).max(), radius or 0) or 1.0
    if radius is not None:
        grey = colours.line("reference")
        rim = {"ec": grey["color"], "ls": grey["ls"], "lw": 1.2}
        ax.add_patch(plt.Circle((0, 0), radius, fill=False, **rim))
    if perturbation is not None:
        same_units = {"angles": "xy", "scale_units": "xy", "scale": 1}
        nudge = {"color": colours.colour("nudge"), "alpha": 0.8, "width": 0.008, "zorder": 3}
        ax.quiver(*X.T, *H.T, **same_units, **nudge)
    dots = {"s": 55, "edgecolor": _MARKER["mec"], "linewidth": 0.8, "zorder": 4}
    ax.scatter(*X.T, color=colours.colour(colour), label=label, **dots)
    away = np.where(H.any(axis=1, keepdims=True), -np.sign(H), 1.0)  # keep clear of the arrows
    centred = {"textcoords": "offset points", "ha": "center", "va": "center", "zorder": 5}
    for name, point, direction in zip(labels, X, away, strict=False):
        ax.annotate(name, point, xytext=9 * direction, **centred)
    # a second call on the same axes keeps what the first has shown
    shown = 0 if ax.get_autoscale_on() else max(map(abs, (*ax.get_xlim(), *ax.get_ylim())))
    limit = max(1.12 * extent, shown)
    ax.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal")


def reference_slope(
    ax: Axes, n: Sequence[float], exponent: float, *, start: float, label: str | None = None
) -> None:
    """Draw, dashed and grey, the power law that passes through ``start`` at the first length."""
    lengths = np.asarray(n, dtype=float)
    values = start * (lengths / lengths[0]) ** exponent
    label = f"$n^{{\\,{exponent:g}}}$" if label is None else label
    ax.plot(lengths, values, label=label, zorder=1, lw=1.4, **colours.line("reference"))


def legend_above(ax: Axes, *, columns: int | None = None) -> None:
    """Put the legend above the axes, where it hides nothing, in two columns on wide panels."""
    wide = ax.get_position().width * ax.figure.get_figwidth() > 4.5
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1.01), "borderaxespad": 0}
    ax.legend(ncols=columns or (2 if wide else 1), columnspacing=1.5, handlelength=2.4, **place)


def shared_legend(fig: Figure, *, columns: int = 3) -> None:
    """Put one legend above all panels of a figure, with each entry once."""
    entries = {}
    for ax in fig.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    place = {"loc": "outside upper left", "ncols": columns, "columnspacing": 1.5}
    fig.legend(entries.values(), entries.keys(), **place)


def length_ticks(ax: Axes, n: Sequence[float]) -> None:
    """Label a logarithmic horizontal axis with the lengths, or with decades if they are many."""
    lengths = np.unique(_array(n))
    if len(lengths) > 10 or lengths[-1] > 1e5:
        ax.xaxis.set_major_locator(ticker.LogLocator(numticks=7))
        return
    ax.set_xticks(lengths, [f"{length:g}" for length in lengths])
    ax.set_xticks([], minor=True)


def plain_ticks(ax: Axes) -> None:
    """Label a logarithmic vertical axis 0.5, 1, 2, 5, … for few decades, else by powers of ten."""
    low, high = ax.get_ylim()
    if not (low >= 1e-3 and high <= 2e4 and high <= 2e3 * low):
        return
    steps_up_to = {6: (1, 1.5, 2, 3, 4, 5, 6, 8), 200: (1, 2, 5), 600: (1, 3), math.inf: (1,)}
    steps = next(steps for most, steps in steps_up_to.items() if high < most * low)
    ax.yaxis.set_major_locator(ticker.LogLocator(subs=steps, numticks=20))
    ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(ticker.NullFormatter())


def _array(values) -> np.ndarray:
    """Make a NumPy array from an array, nested lists, or a tensor, which may require gradients."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=float)


def _pairs(x: Sequence[float], values: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Return the value of x beside each of the values there."""
    samples = [_array(sample).reshape(-1) for sample in values]
    if len(samples) != len(x):
        raise ValueError(f"values: expected {len(x)} entries, got {len(samples)}")
    return np.repeat(_array(x), [len(sample) for sample in samples]), np.concatenate(samples)
