"""The experiments of Castin, Ablin & Peyré (2024) on their own models: ``make paper``."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pooch
import seaborn as sns
import torch
from scipy.stats import gmean

from lab import colours, models
from lab.measure_layer import measure_layer
from lab.models.sources import SOURCES
from lab.models.texts import load_text
from lab.numbers import decimal
from lab.statistics import fit_exponent
from lab.sweep import Cell, collect, sweep
from lipcore._checks import require
from lipcore.adversarial import eigenvector_inputs, reduced_scores, shared_key_inputs

#: The lengths of the paper, by text, and those of the worst-case inputs.
LENGTHS = {"alice": range(2, 99, 2), "ag_news": range(2, 503, 10)}
CROWDS = range(2, 98, 5)
#: What is drawn, by columns of the table.
QUANTITIES = {"sigma": "local constant", "released": "released quantity"}


class Panel(NamedTuple):
    """A layer of a model on a text, or one of its heads on worst-case inputs of a radius."""

    figure: str
    model: str
    layer: int
    exponent: float | None = None  # published: prefactor · n^exponent, or only the power
    prefactor: float | None = None
    text: str = "alice"
    decoder: bool = False
    head: int | None = None
    radius: float = 0.0

    @property
    def title(self) -> str:
        """What is measured, in a few words."""
        kind = " as decoder" if self.decoder else ""
        on = self.text if self.head is None else f"head {self.head}, R = {self.radius:g}"
        return f"{self.model}{kind}, layer {self.layer}, {on}"


BERT = "bert-base-uncased"
PANELS = (
    Panel("encoder", BERT, 0, 0.24, 14.3),
    Panel("encoder", BERT, 6),
    Panel("encoder", BERT, 0, text="ag_news"),
    Panel("encoder", BERT, 6, text="ag_news"),
    Panel("masked", BERT, 6, 0.25, 6.44, decoder=True),
    Panel("masked", "gpt2", 0, 0.26),
    Panel("masked", "gpt2", 6, 0.51),
    Panel("masked", "gpt2-random", 6, 0.25, 0.445),
    Panel("adversarial", BERT, 0, 0.5, 4.39, head=0, radius=15.5),
    Panel("adversarial", BERT, 6, 0.5, 5.73, head=7, radius=21.5, decoder=True),
    Panel("adversarial", "gpt2-random", 6, 0.5, 0.92, head=0, radius=100.0),
    Panel("adversarial", "gpt2", 0, 0.5, 46.9, head=0, radius=10.0),
)


def redo(folder: Path, *, instead: Mapping[str, str], every: int = 1) -> pd.DataFrame:
    """Measure all panels, and return exponents and the values at the greatest length, a row each."""
    names = _names(instead)
    cells = {panel: _cells(panel, names, every) for panel in PANELS if panel.head is None}
    sweep(itertools.chain(*cells.values()), folder)
    found = {panel: collect(some, folder) for panel, some in cells.items()}
    heads = [panel for panel in PANELS if panel not in cells]
    found |= {panel: _worst(panel, names[panel.model], every) for panel in heads}
    for name, panels in itertools.groupby(PANELS, key=lambda panel: panel.figure):
        grid = _draw({panel: found[panel] for panel in panels})
        for kind in ("svg", "png"):
            grid.figure.savefig(folder / f"{name}.{kind}", facecolor=colours.colour("ground"))
    result = pd.DataFrame([_row(panel, rows) for panel, rows in found.items()])
    result.to_csv(folder / "table.csv", index=False)
    return result


def _names(instead: Mapping[str, str]) -> dict[str, str]:
    """Return what stands for each model and text, all of which are there, or refuse."""
    used = dict.fromkeys(panel.model for panel in PANELS)
    texts = dict.fromkeys(panel.text for panel in PANELS)
    require({*instead} <= {*used, *texts}, "instead", "names of the paper", sorted(instead))
    found = {name: instead.get(name, name) for name in (*used, *texts)}
    for name in map(found.get, used):
        if name in SOURCES and SOURCES[name].files:
            models.fetch(name)
    for text in texts:
        load_text(found[text])
    return found


def _cells(panel: Panel, names: Mapping[str, str], every: int) -> list[Cell]:
    shown = {"text": names[panel.text], "decoder": panel.decoder, "tol": 1e-3}
    lengths = _some(LENGTHS[panel.text], every)
    return [Cell(names[panel.model], panel.layer, n, **shown) for n in lengths]


def _some(lengths: Sequence[int], every: int) -> list[int]:
    return sorted({*lengths[::every], lengths[-1]})


def _worst(panel: Panel, name: str, every: int) -> pd.DataFrame:
    """Return the rows of a head on a crowd and on eigenvector inputs, at every length."""
    model = models.load(name, decoder=panel.decoder)
    attention = model.attention(panel.layer, head=panel.head, output_projection=False)
    attention = attention.to(torch.float64)
    A, basis = reduced_scores(attention)
    found = []
    for n in _some(CROWDS, every):
        crowd = shared_key_inputs(attention, n, panel.radius).X
        pair = eigenvector_inputs(A, n, panel.radius) @ basis.mT
        rows = measure_layer(attention, torch.stack([crowd, pair]), tol=1e-3, bounds=())
        found.append(pd.DataFrame(rows).assign(n=n))
    return pd.concat(found, ignore_index=True)


def _row(panel: Panel, rows: pd.DataFrame) -> dict:
    n = rows["n"].max()
    row = {"what": panel.title, "n": n, "published exponent": panel.exponent}
    row["published there"] = panel.prefactor and panel.prefactor * n**panel.exponent
    for column, name in QUANTITIES.items():
        groups = rows.groupby("n")[column]
        fit = fit_exponent([*groups.groups], [values.to_numpy(float) for _, values in groups])
        row |= {f"exponent of the {name}": str(fit), f"{name} there": gmean(groups.get_group(n))}
    return row


def _draw(found: Mapping[Panel, pd.DataFrame]):
    """Draw both quantities over the length, and the published curve, with a panel for each."""
    parts = []
    for panel, rows in found.items():
        rows = rows.rename(columns=QUANTITIES)
        curves = [*QUANTITIES.values()]
        if panel.exponent is not None:
            first = rows[rows["n"] == rows["n"].min()]
            power = rows["n"] ** panel.exponent
            start = gmean(first["released quantity"]) / power.min()  # where only it is published
            rows["published"] = (panel.prefactor or start) * power
            curves.append("published")
        parts.append(rows.melt(["n"], curves, var_name="curve").assign(what=panel.title))
    panels = {"col": "what", "col_wrap": 2, "height": 3.5, "aspect": 1.3}
    style = {
        "estimator": gmean,
        "errorbar": ("pi", 80),
        "palette": list(map(colours.nth, range(3))),
    }
    axes = {"x": "n", "y": "value", "hue": "curve", "facet_kws": {"sharey": False}}
    table = pd.concat(parts, ignore_index=True)
    grid = sns.relplot(table, kind="line", **axes, **panels, **style)
    grid.set(xscale="log", yscale="log", xlabel="length n", ylabel="")
    return grid.set_titles("{col_name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 with one line if something is not available."""
    parser = argparse.ArgumentParser(prog="python -m lab.paper", description=__doc__)
    parser.add_argument("folder", type=Path, help="where figures, table and measurements go")
    help_instead = "another model or text in place of the paper's, as gpt2=FOLDER or alice=FILE"
    parser.add_argument("--instead", nargs="+", default=[], metavar="NAME=X", help=help_instead)
    parser.add_argument("--every", type=int, default=1, help="only every so many lengths")
    options = parser.parse_args(arguments)
    pooch.get_logger().setLevel("WARNING")  # else a refusal has more than one line
    try:
        instead = dict(pair.split("=", 1) for pair in options.instead)
        table = redo(options.folder, instead=instead, every=options.every)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        print(f"paper: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(table.to_string(index=False, na_rep="", float_format=lambda x: decimal(x, 3)))
    print(f"figures and table: {options.folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
