"""The command ``python -m lab.sweep``.

What needs PyTorch is imported where it is used, so that the help comes at once.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from lab import models
from lab.commands import Parser, run

_DESCRIPTION = (
    "Measure every layer at every length, or what a plan asks for. Each cell is saved when it is "
    "finished, and the same command takes up where it was stopped. The table is "
    "FOLDER/table.parquet."
)
#: Arguments of lab.sweep.grid, which a plan can set too, and the options that set them.
_GRID = {
    "models": "--model",
    "lengths": "--n",
    "layers": "--layer",
    "heads": "--head",
    "texts": "--text",
    "controls": "--control",
    "count": "--count",
    "tol": "--tol",
    "dtype": "--dtype",
    "bounds": "--bounds",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = Parser(
        prog="python -m lab.sweep", description=_DESCRIPTION, argument_default=argparse.SUPPRESS
    )
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--n", dest="lengths", nargs="+", type=int, help="numbers of tokens")
    what.add_argument(
        "--plan", metavar="FILE", help="a TOML file of [[grid]]s, in place of --n to --bounds"
    )
    add("--model", dest="models", nargs="+", help="models, by name or folder (default: minilm)")
    add("--layer", dest="layers", nargs="+", type=int, help="layers, from 0 (default: all)")
    add("--head", dest="heads", nargs="+", type=number_or_all, help="heads, from 0, or 'all'")
    add("--text", dest="texts", nargs="+", help="pydoc (default), licences, code, bible, or a file")
    add("--control", dest="controls", nargs="+", help="shuffled, uniform, repeated, permuted")
    add("--count", type=int, help="sequences in a cell (default: 10)")
    add("--tol", type=float, help="relative tolerance of σ (default: 1e-4)")
    add("--dtype", choices=("float32", "float64"), help="default: float32")
    add("--bounds", nargs="+", help="upper bounds to work out too: local, best, general")
    add("--folder", required=True, help="where the tables go; made if missing")
    add("--export", metavar="FILE", default=None, help="write a small copy, with how it was made")
    add("--workers", type=int, default=1, help="processes (default: 1)")
    add("--quiet", action="store_true", default=False, help="no progress bar")
    parser.set_defaults(run=_sweep)
    return run(parser, argv)


def number_or_all(text: str) -> int | str:
    """Read one word after ``--head``."""
    return text if text == "all" else int(text)


def _sweep(arguments: argparse.Namespace) -> str:
    """Run the cells, and return where the table is."""
    from lab.sweep import sweep
    from lipcore._checks import check_count

    workers = check_count("workers", arguments.workers)
    if arguments.export and not Path(arguments.export).parent.is_dir():
        raise ValueError(f"--export: expected a file in an existing folder, got {arguments.export}")
    cells = _cells(arguments)
    _check(cells)
    try:
        with _executor(workers) as executor:
            table = sweep(cells, arguments.folder, executor=executor, progress=not arguments.quiet)
    except RuntimeError as error:  # cells that failed, as on a short text; the others are saved
        raise ValueError(str(error)) from error
    if arguments.export:
        _export(table, arguments)
    path = Path(arguments.folder) / "table.parquet"
    minutes = table.attrs["seconds"] / 60
    return f"{path}: {len(table)} rows from {len(cells)} cells, {minutes:.1f} minutes of one core"


def _executor(workers: int):
    if workers == 1:
        return contextlib.nullcontext()
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def _cells(arguments: argparse.Namespace) -> list:
    """Return the cells that the options span, or those of the plan."""
    from lab.sweep import grid, read_plan

    given = {name: getattr(arguments, name) for name in _GRID if hasattr(arguments, name)}
    if hasattr(arguments, "plan"):
        if given:
            option = _GRID[next(iter(given))]
            raise ValueError(f"{option}: expected in the plan, not beside --plan")
        return read_plan(arguments.plan)
    if given.get("heads") == ["all"]:
        given["heads"] = "all"
    return grid(**{"models": ["minilm"]} | given)


def _check(cells: list) -> None:
    """Refuse a text, layer, head or length that is not available, before anything runs."""
    from lab.models.texts import load_text

    for text in dict.fromkeys(cell.text for cell in cells):
        load_text(text)
    for name in dict.fromkeys(cell.model for cell in cells):
        own = [cell for cell in cells if cell.model == name]
        model = models.load(name)
        for layer, head in {(cell.layer, cell.head) for cell in own}:
            model.attention(layer, head=head)
        for n in {cell.n for cell in own}:
            model.check_length(n)


def _export(table, arguments: argparse.Namespace) -> None:
    """Write the small copy, with a note of how it was made."""
    from lab.models.texts import load_text
    from lab.sweep import export
    from lipcore.models.measure import versions

    if hasattr(arguments, "plan"):
        what = f"--plan {arguments.plan}"
    else:
        what = f"--n {' '.join(map(str, arguments.lengths))}"
    hashes = {row["name"]: row["sha256"] for row in models.available()}
    export(
        table,
        arguments.export,
        command=f"python -m lab.sweep {what} --folder {arguments.folder} --export {arguments.export}",
        versions=versions(),
        weights={name: hashes[name] for name in table["model"].unique() if name in hashes},
        texts={
            name: hashlib.sha256(load_text(name).encode()).hexdigest()
            for name in table["text"].unique()
        },
    )
