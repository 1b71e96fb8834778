r"""The experiments of Castin, Ablin & Peyré (2024) on their own models: ``make paper``.

Local constants of BERT and GPT-2 on the paper's texts and lengths, masked and not, and of single
heads on worst-case inputs at the paper's radii. Beside each constant stands the number that the
released scripts compute, :math:`\|D_Xf^\top f(X)\|^{1/2}`, and the curve that was published.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from lab import colours, models
from lab.measure_layer import measure_layer
from lab.models.sources import SOURCES
from lab.models.texts import load_text
from lab.numbers import decimal
from lab.plotting import figure, reference_slope, shared_legend, values_by_length
from lab.statistics import fit_exponent
from lab.sweep import Cell, sweep
from lipcore._checks import check_count
from lipcore.adversarial import eigenvector_inputs, reduced_scores, shared_key_inputs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: The lengths of the paper, by text.
LENGTHS = {"alice": range(2, 99, 2), "ag_news": range(2, 503, 10)}
#: The lengths of the worst-case inputs.
CROWDS = range(2, 98, 5)


@dataclass(frozen=True)
class Panel:
    """One layer of a model on one text; the published curve is ``prefactor · n^exponent``.

    Where only the power was published there is no prefactor.
    """

    figure: str
    model: str
    layer: int
    text: str = "alice"
    decoder: bool = False
    exponent: float | None = None
    prefactor: float | None = None

    @property
    def title(self) -> str:
        """What is measured, in a few words."""
        kind = " as decoder" if self.decoder else ""
        return f"{self.model}{kind}, layer {self.layer}, {self.text}"


@dataclass(frozen=True)
class Head:
    """One head without output projection, on worst-case inputs; published: coefficient · √n."""

    model: str
    layer: int
    head: int
    radius: float
    coefficient: float
    decoder: bool = False

    @property
    def title(self) -> str:
        """What is measured, in a few words."""
        kind = " as decoder" if self.decoder else ""
        return f"{self.model}{kind}, layer {self.layer}, head {self.head}, R = {self.radius:g}"


PANELS = (
    Panel("encoder", "bert-base-uncased", 0, exponent=0.24, prefactor=14.3),
    Panel("encoder", "bert-base-uncased", 6),
    Panel("encoder", "bert-base-uncased", 0, "ag_news"),
    Panel("encoder", "bert-base-uncased", 6, "ag_news"),
    Panel("masked", "bert-base-uncased", 6, decoder=True, exponent=0.25, prefactor=6.44),
    Panel("masked", "gpt2", 0, exponent=0.26),
    Panel("masked", "gpt2", 6, exponent=0.51),
    Panel("masked", "gpt2-random", 6, exponent=0.25, prefactor=0.445),
)
HEADS = (
    Head("bert-base-uncased", 0, 0, 15.5, 4.39),
    Head("bert-base-uncased", 6, 7, 21.5, 5.73, decoder=True),
    Head("gpt2-random", 6, 0, 100.0, 0.92),
    Head("gpt2", 0, 0, 10.0, 46.9),
)


def redo(
    folder: Path,
    *,
    instead: Mapping[str, str] | None = None,
    every: int = 1,
    progress: bool = True,
) -> pd.DataFrame:
    """Measure all panels and heads, draw the figures, and return the table.

    Parameters
    ----------
    folder : path
        It receives ``encoder``, ``masked`` and ``adversarial`` as SVG and PNG, and ``table.csv``.
        Measurements are kept in it, so that a second call continues where one stopped.
    instead : mapping, optional
        Models or texts in place of those of the paper: names or folders, names or files.
    every : int
        With k, only every k-th of the paper's lengths, and the greatest, are measured.
    progress : bool

    Returns
    -------
    pandas.DataFrame
        One row for each panel or head: the published curve, the exponents that were found, and the
        geometric mean of each quantity at the greatest length.

    Raises
    ------
    ConnectionError
        If weights or a text are not available; it is raised before anything is measured.
    ValueError, ImportError
        If a replacement cannot be used, or a text needs a package.
    RuntimeError
        If some cells failed.
    """
    import pandas as pd

    instead = dict(instead or {})
    _check(instead)
    cells = {panel: _cells(panel, instead, every) for panel in PANELS}
    table = sweep([c for some in cells.values() for c in some], folder, progress=progress)
    drawn = {panel: _chosen(table, some) for panel, some in cells.items()}
    found = {head: _worst(head, instead, every) for head in HEADS}
    for name in dict.fromkeys(panel.figure for panel in PANELS):
        _save(folder / name, _growth({p: v for p, v in drawn.items() if p.figure == name}))
    _save(folder / "adversarial", _crowds(found))
    rows = [_row(p, v, p.exponent, p.prefactor) for p, v in drawn.items()]
    rows += [_row(head, values, 0.5, head.coefficient) for head, values in found.items()]
    result = pd.DataFrame(rows)
    result.to_csv(folder / "table.csv", index=False)
    return result


def _check(instead: dict[str, str]) -> None:
    """Get every model and text, or refuse before anything runs."""
    wanted = [*(panel.model for panel in PANELS), *(head.model for head in HEADS)]
    texts = [panel.text for panel in PANELS]
    if unknown := set(instead) - {*wanted, *texts}:
        raise ValueError(f"instead: expected models and texts of the paper, got {sorted(unknown)}")
    for name in dict.fromkeys(instead.get(model, model) for model in wanted):
        if name in SOURCES and SOURCES[name].files:
            models.fetch(name)
    for text in dict.fromkeys(instead.get(text, text) for text in texts):
        load_text(text)


def _cells(panel: Panel, instead: dict[str, str], every: int) -> list[Cell]:
    model = instead.get(panel.model, panel.model)
    text = instead.get(panel.text, panel.text)
    return [
        Cell(model, panel.layer, n, text=text, decoder=panel.decoder, tol=1e-3)
        for n in _some(LENGTHS[panel.text], every)
    ]


def _some(lengths: Sequence[int], every: int) -> list[int]:
    """Return every so many lengths, and the last."""
    return sorted({*lengths[:: check_count("every", every)], lengths[-1]})


#: Lengths, and at each the values of the constant and of the released quantity.
_Values = tuple[list[int], list[np.ndarray], list[np.ndarray]]


def _chosen(table: pd.DataFrame, cells: Sequence[Cell]) -> _Values:
    """Return the values of some cells."""
    own = ["model", "layer", "text", "decoder"]
    rows = table[(table[own] == [getattr(cells[0], name) for name in own]).all(axis=1)]
    lengths = [cell.n for cell in cells]
    parts = [rows[rows.n == n] for n in lengths]
    return lengths, *([part[name].to_numpy(float) for part in parts] for name in _QUANTITIES)


_QUANTITIES = ("sigma", "released")


def _worst(head: Head, instead: dict[str, str], every: int) -> _Values:
    """Return constant and released quantity of a head on a crowd and on eigenvector inputs."""
    name = instead.get(head.model, head.model)
    model = models.load(name, decoder=head.decoder)
    attention = model.attention(head.layer, head=head.head, output_projection=False)
    attention = attention.to(torch.float64)
    A, basis = reduced_scores(attention)
    lengths = _some(CROWDS, every)
    found = []
    for n in lengths:
        crowd = shared_key_inputs(attention, n, head.radius).X
        pair = eigenvector_inputs(A, n, head.radius) @ basis.mT
        found.append(measure_layer(attention, torch.stack([crowd, pair]), tol=1e-3, bounds=()))
    return lengths, *(
        [np.array([row[name] for row in rows]) for rows in found] for name in _QUANTITIES
    )


def _row(what: Panel | Head, values: _Values, exponent, prefactor) -> dict:
    lengths, *quantities = values
    fits = [fit_exponent(lengths, some) for some in quantities]
    curve = None if prefactor is None else prefactor * lengths[-1] ** exponent
    return {
        "what": what.title,
        "published exponent": exponent,
        "exponent of the constant": str(fits[0]),
        "exponent of the released quantity": str(fits[1]),
        "n": lengths[-1],
        "published there": curve,
        "constant there": float(np.exp(np.log(quantities[0][-1]).mean())),
        "released quantity there": float(np.exp(np.log(quantities[1][-1]).mean())),
    }


def _growth(drawn: dict[Panel, _Values]) -> Figure:
    """Draw both quantities over the length, with a panel for each."""
    curves = {panel: (panel.exponent, panel.prefactor) for panel in drawn}
    return _draw({panel.title: values for panel, values in drawn.items()}, [*curves.values()])


def _crowds(found: dict[Head, _Values]) -> Figure:
    """Draw the same for heads on worst-case inputs."""
    curves = [(0.5, head.coefficient) for head in found]
    return _draw({head.title: values for head, values in found.items()}, curves)


def _draw(values: dict[str, _Values], curves: Sequence[tuple]) -> Figure:
    fig, axes = figure(2, 2, width=9, height=7)
    for ax, (title, (lengths, sigma, released)), (exponent, prefactor) in zip(
        axes.flat, values.items(), curves, strict=True
    ):
        values_by_length(ax, lengths, sigma, label="local constant")
        colour = colours.nth(1)
        values_by_length(ax, lengths, released, label="released quantity", colour=colour)
        if exponent is not None:
            start = float(np.exp(np.log(released[0]).mean()))
            if prefactor is not None:
                start = prefactor * lengths[0] ** exponent
            reference_slope(ax, lengths, exponent, start=start, label="published")
        ax.set(title=title, xlabel="length n")
        few = [lengths[i] for i in np.linspace(0, len(lengths) - 1, 5).astype(int)]
        ax.set_xticks(few, [str(n) for n in few], minor=False)
        ax.set_xticks([], minor=True)
    shared_legend(fig)
    return fig


def _save(path: Path, fig: Figure) -> None:
    import matplotlib.pyplot as plt

    for kind in ("svg", "png"):
        fig.savefig(path.with_suffix(f".{kind}"), facecolor=colours.colour("ground"))
    plt.close(fig)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 with one line if something is not available."""
    import pooch

    parser = argparse.ArgumentParser(
        prog="python -m lab.paper", description="Redo the paper's figures on its models."
    )
    parser.add_argument("folder", type=Path, help="where figures, table and measurements go")
    parser.add_argument(
        "--instead",
        nargs="+",
        default=[],
        metavar="NAME=OTHER",
        help="another model or text in place of one of the paper, as gpt2=FOLDER or alice=FILE",
    )
    parser.add_argument("--every", type=int, default=1, help="only every so many lengths")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    options = parser.parse_args(arguments)
    pooch.get_logger().setLevel("WARNING")  # else a refusal has more than one line
    try:
        instead = dict(pair.split("=", 1) for pair in options.instead)
        table = redo(
            options.folder, instead=instead, every=options.every, progress=not options.quiet
        )
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        print(f"paper: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(table.to_string(index=False, na_rep="", float_format=lambda x: decimal(x, 3)))
    print(f"figures and table: {options.folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
