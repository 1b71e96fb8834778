"""One style for every figure: reproducible SVG with a transparent ground.

Colours, dashes and markers come from :mod:`lab.colours`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

try:
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from matplotlib import ticker
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
except ImportError as error:  # the package itself does without
    raise ImportError("lab.plotting needs matplotlib: pip install 'lipcore[book]'") from error

from lab import colours

#: The share of the values that a band leaves out on either side.
SPREAD = 0.1

#: Filled dots with a rim.
_MARKER = {"mec": colours.colour("ground"), "mew": 0.8, "ms": 7}

for _name in colours.MAPS:  # under their names, for ``cmap=``
    _steps = [light for light, _ in colours.scale(_name)]
    mpl.colormaps.register(ListedColormap(_steps, _name), force=True)

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
    "text.color": colours.colour("ink"),
    "axes.facecolor": "none",
    "axes.edgecolor": colours.colour("axis"),
    "axes.labelcolor": colours.colour("ink"),
    "xtick.color": colours.colour("ink"),
    "ytick.color": colours.colour("ink"),
    "patch.edgecolor": colours.colour("ink"),
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
    "image.cmap": "large",
    "image.interpolation": "nearest",
}


def use_style() -> None:
    """Set matplotlib's defaults for the rest of the session.

    In a notebook, figures become reproducible SVG.

    Examples
    --------
    >>> with mpl.rc_context():  # a notebook has no need to undo it
    ...     use_style()
    ...     mpl.rcParams["svg.hashsalt"]
    'lipcore'
    """
    mpl.rcParams.update(_RC)
    try:
        from IPython import get_ipython
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return
    if get_ipython() is not None:
        set_matplotlib_formats("svg", metadata={"Date": None})


def figure(
    rows: int = 1, columns: int = 1, *, width: float = 7.2, height: float | None = None, **options
):
    """Make a figure in the style, and its axes.

    Parameters
    ----------
    rows, columns : int
        The numbers of panels.
    width, height : float
        Inches; a width of 7.2 fills the text column. The height follows the panels if left out.
    **options
        Options of :func:`matplotlib.pyplot.subplots`.

    Returns
    -------
    Figure, Axes or array of Axes

    Examples
    --------
    >>> fig, (left, right) = figure(columns=2)
    >>> [float(size) for size in fig.get_size_inches()]
    [7.2, 3.6]
    >>> plt.close(fig)
    """
    if height is None:
        height = (4.3 if columns == 1 else 3.6 if columns == 2 else 2.7) * rows
    with mpl.rc_context(_RC):
        return plt.subplots(rows, columns, figsize=(width, height), **options)


def thumbnail(xlabel: str, ylabel: str, *, spines: bool = True) -> tuple[Figure, Axes]:
    """Make a panel for a card: small, with large words and without ticks.

    Parameters
    ----------
    xlabel, ylabel : str
        A few words.
    spines : bool
        Whether the two axes are drawn as lines.

    Returns
    -------
    Figure, Axes

    Examples
    --------
    >>> fig, ax = thumbnail("length", "constant")
    >>> len(ax.get_xticks())
    0
    >>> plt.close(fig)
    """
    fig, ax = figure(width=3.1, height=1.9)
    ax.set(xticks=[], yticks=[], xlabel=xlabel, ylabel=ylabel)
    ax.grid(False)
    ax.margins(x=0.04, y=0.12)
    ax.spines[["left", "bottom"]].set_visible(spines)
    return fig, ax


def values_by_length(
    ax: Axes, n: Sequence[float], values: Sequence, *, label: str, colour: str = "truth"
) -> None:
    """Draw values over the length on logarithmic axes, and their geometric mean at each length.

    Parameters
    ----------
    ax : Axes
    n : sequence of float, length m
    values : array or tensor of shape (m,) or (m, repeats), or m sequences of any sizes
        Positive.
    label : str
        Legend entry.
    colour : str
        A role of :mod:`lab.colours`, or one of its colours.
    """
    colour = _value(colour)
    lengths, samples = _samples(n, values)
    if max(map(len, samples)) > 1:
        x = np.repeat(lengths, [len(sample) for sample in samples])
        ax.plot(x, np.concatenate(samples), "o", ms=3.5, color=colour, alpha=0.2, mew=0, zorder=2)
    means = [np.exp(np.log(sample).mean()) for sample in samples]
    ax.plot(lengths, means, "o", color=colour, label=label, zorder=4, **_MARKER)
    ax.set(xscale="log", yscale="log")
    length_ticks(ax, lengths)
    plain_ticks(ax)


def bound_versus_truth(
    ax: Axes,
    x: Sequence[float],
    truth: Sequence,
    bounds: Mapping[str, Sequence],
    *,
    truth_label: str = colours.label("truth"),
    xscale: str = "log",
    labels: Mapping[str, str] | None = None,
    legend: bool = True,
) -> None:
    """Draw a measured quantity and its bounds, on a logarithmic vertical axis.

    Parameters
    ----------
    ax : Axes
    x : sequence of float, length m
    truth : array or tensor of shape (m,) or (m, repeats), or m sequences of any sizes
        Drawn as the median, with a band over the middle 80 %.
    bounds : mapping of str to values as ``truth``
        Keys are roles of :data:`~lab.colours.ROLES` (``"general"``, ``"unified"``, …) or
        free legend entries. Infinite values are left out.
    truth_label : str
    xscale : {"log", "linear"}
    labels : mapping of str to str, optional
        Legend entries to use in place of the roles' own.
    legend : bool
        Whether to put a legend above the panel; with several panels, use :func:`shared_legend`.

    Examples
    --------
    >>> fig, ax = figure()
    >>> bounds = {"general": [3.0, 6.0], "twice the truth": [2.0, 4.0]}
    >>> bound_versus_truth(ax, [4, 16], [1.0, 2.0], bounds)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['general bound', 'twice the truth', 'local constant']
    >>> plt.close(fig)
    """
    free = itertools.count(3)
    for role, values in bounds.items():
        known = role in colours.ROLES
        style = colours.line(role) if known else {"color": colours.nth(next(free))}
        name = (labels or {}).get(role, colours.label(role) if known else role)
        _median_line(ax, x, values, label=name, **style)
    _median_line(ax, x, truth, label=truth_label, **colours.line("truth"), **_MARKER)
    ax.set(xscale=xscale, yscale="log")
    if xscale == "log":
        length_ticks(ax, x)
    plain_ticks(ax)
    if legend:
        legend_above(ax)


def attention_heatmap(
    ax: Axes,
    P,
    *,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    colourbar: bool = True,
    largest: float | None = None,
):
    """Draw attention weights: rows are queries, columns are keys, and large weights stand out.

    Parameters
    ----------
    ax : Axes
    P : array or tensor, shape (n, m)
    labels : sequence of str, optional
        Tokens, written along both axes (readable up to about 24).
    title : str, optional
    colourbar : bool
    largest : float, optional
        The weight at the end of the scale, for comparing panels; the largest of P if left out.

    Returns
    -------
    AxesImage
    """
    P = _array(P)
    rows, columns = P.shape
    edges = (0.5, columns + 0.5, rows + 0.5, 0.5)  # tokens count from one, as in the theory
    largest = P.max() if largest is None else largest
    image = ax.imshow(P, cmap="large", vmin=0, vmax=largest, extent=edges)
    ax.grid(False)
    ax.spines[:].set_visible(True)
    ax.set(xlabel="key $j$", ylabel="query $i$", title=title or "")
    for axis, size in ((ax.xaxis, columns), (ax.yaxis, rows)):
        axis.set_ticks(_token_ticks(size) if labels is None else range(1, size + 1))
    if labels is not None:
        ax.set_xticklabels(labels[:columns], rotation=90)
        ax.set_yticklabels(labels[:rows])
    if colourbar:
        ax.figure.colorbar(image, ax=ax, label="weight $P_{ij}$", fraction=0.046, pad=0.03)
    return image


def _token_ticks(size: int) -> list[int]:
    """Return the first token and others at steps of a power of two, for about eight ticks."""
    step = max(1, 2 ** math.ceil(math.log2(size / 8)))
    return [1, *range(max(step, 2), size + 1, step)]


def plane_tokens(
    ax: Axes,
    X,
    perturbation=None,
    *,
    radius: float | None = None,
    labels: Sequence[str] | None = None,
    colour: str = "tokens",
    label: str | None = None,
    scale: float | None = None,
) -> None:
    """Draw tokens of the plane, their perturbation as arrows, and the ball that holds them.

    Parameters
    ----------
    ax : Axes
    X : array or tensor, shape (n, 2)
    perturbation : array or tensor, shape (n, 2), optional
    radius : float, optional
        Radius of the ball to draw.
    labels : sequence of str, optional
        A name beside each token.
    colour : str
        A role of :mod:`lab.colours`, or one of its colours.
    label : str, optional
        Legend entry.
    scale : float, optional
        Factor of the arrows; without it, the longest is a quarter of the picture.
    """
    X = _array(X)
    H = np.zeros_like(X) if perturbation is None else _array(perturbation)
    colour = _value(colour)
    extent = max(np.abs(X).max(), radius or 0) or 1.0
    if radius is not None:
        grey = colours.line("reference")
        ax.add_patch(
            plt.Circle((0, 0), radius, fill=False, ec=grey["color"], ls=grey["ls"], lw=1.2)
        )
    if perturbation is not None:
        longest = np.linalg.norm(H, axis=1).max() or 1.0
        H = H * (0.5 * extent / longest if scale is None else scale)
        same_units = {"angles": "xy", "scale_units": "xy", "scale": 1}
        nudge = {"color": colours.colour("nudge"), "alpha": 0.8, "width": 0.008, "zorder": 3}
        ax.quiver(*X.T, *H.T, **same_units, **nudge)
        extent = max(extent, np.abs(X + H).max())
    ax.scatter(
        *X.T, s=55, color=colour, edgecolor=_MARKER["mec"], linewidth=0.8, zorder=4, label=label
    )
    away = np.where(H.any(axis=1, keepdims=True), -np.sign(H), 1.0)  # keep clear of the arrows
    centred = {"textcoords": "offset points", "ha": "center", "va": "center", "zorder": 5}
    for name, point, direction in zip(labels or [], X, away, strict=False):
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
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.01),
        borderaxespad=0,
        ncols=columns or (2 if wide else 1),
        columnspacing=1.5,
        handlelength=2.4,
    )


def shared_legend(fig: Figure, *, columns: int = 3) -> None:
    """Put one legend above all panels of a figure, with each entry once."""
    entries = {}
    for ax in fig.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    fig.legend(
        entries.values(), entries.keys(), loc="outside upper left", ncols=columns, columnspacing=1.5
    )


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
    most_to_steps = {
        6: (1, 1.5, 2, 3, 4, 5, 6, 8),
        200: (1, 2, 5),
        600: (1, 3),
        math.inf: (1,),
    }
    steps = next(steps for most, steps in most_to_steps.items() if high < most * low)
    ax.yaxis.set_major_locator(ticker.LogLocator(subs=steps, numticks=20))
    ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(ticker.NullFormatter())


def _value(colour: str) -> str:
    """Return the colour of a role, or a colour unchanged."""
    return colours.colour(colour) if colour in colours.ROLES else colour


def _array(values) -> np.ndarray:
    """Make a NumPy array from an array, nested lists, or a tensor, which may require gradients."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=float)


def _samples(n: Sequence[float], values: Sequence) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return lengths and the values at each, as flat arrays."""
    lengths = _array(n)
    samples = [_array(sample).reshape(-1) for sample in values]
    if len(samples) != len(lengths):
        raise ValueError(
            f"values: expected one entry for each of {len(lengths)} lengths, got {len(samples)}"
        )
    return lengths, samples


def _median_line(ax: Axes, x: Sequence[float], values: Sequence, **options) -> None:
    """Draw the median of the finite values at each x, with a band where they differ."""
    x, samples = _samples(x, values)
    with np.errstate(invalid="ignore"):  # between two infinities
        quantiles = [np.quantile(sample, [SPREAD, 0.5, 1 - SPREAD]) for sample in samples]
    low, middle, high = np.transpose(quantiles)
    ax.plot(x, middle, **options)
    if (high > low).any():
        band = {"color": options["color"], "alpha": 0.15, "lw": 0}
        ax.fill_between(x, low, high, where=np.isfinite(high), **band)
