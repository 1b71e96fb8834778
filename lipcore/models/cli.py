"""The command line: ``lipcore measure``, ``lipcore sweep``, ``lipcore models``, ``lipcore fetch``.

Everything heavy is imported where it is used, so that the help comes at once.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import sys
from collections.abc import Sequence

import lipcore

#: Exit code for input that cannot be used.
BAD_INPUT = 2
#: Columns of bounds, from the sharpest to the loosest.
BOUNDS = ("local", "best", "general")

_EPILOGUE = """\
examples:
  lipcore measure --model minilm --layer 3 --n 64
  lipcore measure --model minilm --layer 0 --head 5 --n 128 --text book.txt --json
  lipcore sweep --model minilm --n 8 32 128 --folder sweep --workers 2
  lipcore models
  lipcore fetch minilm

Weights are kept in the folder named by LIPCORE_CACHE, else in ~/.cache/lipcore."""

_MEASURE = """\
Local Lipschitz constants σ of one attention layer (without residual connection and normalisation) at the
token sequences that a text gives: for each sequence the largest singular value of the layer's Jacobian, a
bracket of it, and upper bounds with their ratio to it."""

_MEASURE_NOTES = """\
σ is a lower bound, reached by Lanczos to the relative tolerance. The bracket's upper end is the local
bound, which always holds (--certificate always), or one that holds with the printed probability over the
random start, at these very tokens (--certificate probable), which is much closer.

bounds (of the whole layer: heads add up in squares, or through the output projection, whichever is less):
  local     worked out at the sequence from its attention weights
  best      the least that is proved for every sequence of n tokens in the ball of the longest token here
  general   the same, as published (Castin, Ablin & Peyré 2024)"""


class _Parser(argparse.ArgumentParser):
    """Errors in one line, without the usage."""

    def error(self, message: str):
        raise _BadInput(message)


class _BadInput(Exception):
    pass


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for bad input, 130 if interrupted.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; those of the process if left out.

    Examples
    --------
    >>> main(["fetch", "bert-random"])
    2
    """
    try:
        arguments = _parser().parse_args(argv)
        _print(arguments.run(arguments), sys.stdout)
        return 0
    except (
        _BadInput,
        ValueError,
        TypeError,
        IndexError,
        OSError,
        ImportError,
        NotImplementedError,
    ) as error:
        if isinstance(error, BrokenPipeError):  # the reader (say, head) has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        _print(f"lipcore: error: {' '.join(str(error).split())}", sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        _print("lipcore: interrupted", sys.stderr)
        return 130


def _print(text: str, stream) -> None:
    """Print, with question marks for what the terminal's encoding lacks (σ, ₂)."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, errors="replace").decode(encoding), file=stream, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="lipcore",
        description=lipcore.__doc__,
        epilog=_EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lipcore {lipcore.__version__}")
    commands = parser.add_subparsers(required=True, metavar="{measure,sweep,models,fetch}")
    _add_measure(commands)
    _add_sweep(commands)
    models = commands.add_parser(
        "models", help="list the models that can be loaded, and from where"
    )
    models.add_argument("--json", action="store_true", help="print JSON")
    models.set_defaults(run=_models)
    fetch = commands.add_parser("fetch", help="download weights into the cache, verified")
    fetch.add_argument("names", nargs="+", metavar="NAME", help="a model of 'lipcore models'")
    fetch.set_defaults(run=_fetch)
    return parser


def _add_measure(commands) -> None:
    measure = commands.add_parser(
        "measure",
        help="measure one attention layer",
        description=_MEASURE,
        epilog=_MEASURE_NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = measure.add_argument
    add(
        "--model",
        default="minilm",
        help="a name of 'lipcore models', or a folder with a checkpoint (default: minilm)",
    )
    add("--layer", type=int, required=True, help="layer, from 0")
    add("--n", type=int, default=64, help="tokens in a sequence (default: 64)")
    add(
        "--head",
        type=int,
        help="one head of the layer, with its part of the output projection; from 0",
    )
    add("--text", default="pydoc", help="pydoc (default), alice, ag_news, or a text file in UTF-8")
    add("--count", type=int, default=10, help="number of sequences (default: 10)")
    add("--start", type=int, default=0, help="token of the text to start at (default: 0)")
    add("--tol", type=float, default=1e-4, help="relative tolerance of σ (default: 1e-4)")
    add(
        "--seed",
        type=int,
        default=0,
        help="seed of Lanczos's start, and of random weights (default: 0)",
    )
    add(
        "--dtype",
        choices=("float32", "float64"),
        default="float32",
        help="precision (default: float32)",
    )
    add(
        "--certificate",
        choices=("always", "probable"),
        default="probable",
        help="what the upper end of the bracket is (default: probable)",
    )
    add("--json", action="store_true", help="print JSON")
    measure.set_defaults(run=_measure)


# --- measure ------------------------------------------------------------------------------------------------


def _measure(arguments: argparse.Namespace) -> str:
    """Measure, and return the table or the JSON to print."""
    import torch

    from lipcore.bounds import local_upper
    from lipcore.spectral import local_lipschitz

    generator = torch.Generator().manual_seed(_check_seed(arguments.seed))
    model, attention, X = _prepare(arguments)
    local = local_upper(attention, X)
    found = local_lipschitz(
        attention,
        X,
        tol=arguments.tol,
        generator=generator,
        upper_bound=local if arguments.certificate == "always" else None,
    )
    rows = [_row(attention, X, found, local, i) for i in range(len(X))]
    report = _describe(arguments, model, attention, found) | {
        "results": rows,
        "median": _medians(rows),
    }
    return (
        json.dumps(_jsonable(report), indent=2, allow_nan=False)
        if arguments.json
        else _table(report)
    )


def _check_seed(seed: int) -> int:
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: expected a whole number from 0 to 2^63 - 1, got {seed}")
    return seed


def _prepare(arguments: argparse.Namespace):
    """Return the model, the attention to measure, and the tokens that enter it: (count, n, d)."""
    import torch

    from lipcore import models
    from lipcore._checks import check_count, check_number
    from lipcore.models import texts

    check_number(
        "tol", arguments.tol, minimum=0, strict=True, maximum=1
    )  # before the weights are loaded
    for name, least in (("n", 1), ("count", 1), ("start", 0), ("layer", 0)):
        check_count(name, getattr(arguments, name), minimum=least)
    text = texts.load_text(arguments.text)
    seed = {"seed": arguments.seed} if _is_random(arguments.model) else {}
    model = models.load(arguments.model, dtype=getattr(torch, arguments.dtype), **seed)
    attention = model.attention(arguments.layer)
    if arguments.head is not None:
        if not 0 <= arguments.head < attention.heads:
            raise ValueError(
                f"head: expected 0 to {attention.heads - 1} for {model.name}, got {arguments.head}"
            )
        attention = attention.head(arguments.head)
    ids = texts.sequences(model, text, n=arguments.n, count=arguments.count, start=arguments.start)
    return model, attention, model.hidden_states(arguments.layer, ids)


def _is_random(name: str) -> bool:
    from lipcore import models

    return any(row["name"] == name and row["cached"] is None for row in models.available())


def _row(attention, X, found, local, i: int) -> dict:
    """Gather what one sequence gave."""
    from lipcore.bounds import best_upper, layer_upper

    n, radius, sigma = X.shape[-2], X[i].double().norm(dim=-1).max().item(), found.value[i].item()
    logs = {
        "best": best_upper(attention=attention, n=n, radius=radius, log=True),
        "general": layer_upper(attention, n=n, radius=radius, log=True),
    }
    logs = {"local": math.log(local[i].item()) if local[i] > 0 else -math.inf} | logs
    bounds = {form: _exp(value) for form, value in logs.items()}
    return {
        "sequence": i,
        "sigma": sigma,
        "lower": found.lower[i].item(),
        "upper": found.upper[i].item(),
        "residual": found.residual[i].item(),
        "iterations": int(found.iterations[i]),
        "converged": bool(found.converged[i]),
        "radius": radius,
        "bounds": bounds,
        "log_bounds": logs,
        "ratios": {
            form: value / sigma if sigma > 0 else math.inf for form, value in bounds.items()
        },
    }


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf


def _medians(rows: list[dict]) -> dict:
    from statistics import median

    middle = {
        key: median(row[key] for row in rows) for key in ("sigma", "lower", "upper", "iterations")
    }
    return middle | {
        key: {form: median(row[key][form] for row in rows) for form in BOUNDS}
        for key in ("bounds", "ratios")
    }


def _describe(arguments: argparse.Namespace, model, attention, found) -> dict:
    """All that it takes to repeat the measurement."""
    import platform
    from importlib.metadata import version

    return {
        "versions": {"lipcore": lipcore.__version__, "python": platform.python_version()}
        | {name: version(name) for name in ("torch", "numpy", "scipy", "transformers")},
        "model": {
            "name": model.name,
            "sha256": model.sha256,
            "architecture": model.architecture,
            "d": model.d,
            "causal": attention.causal,
        },
        "layer": arguments.layer,
        "head": arguments.head,
        "heads": attention.heads,
        "text": arguments.text,
        "n": arguments.n,
        "count": arguments.count,
        "start": arguments.start,
        "tol": arguments.tol,
        "dtype": arguments.dtype,
        "seeds": {
            "start_vector": arguments.seed,
            "weights": arguments.seed if _is_random(arguments.model) else None,
        },
        "certificate": {"kind": arguments.certificate, "probability": found.probability},
    }


def _jsonable(value):
    """Put null where a number is infinite: JSON has none (``log_bounds`` keep what it was)."""
    if isinstance(value, dict):
        return {key: _jsonable(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_jsonable(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(report: dict) -> str:
    """Write the report as text."""
    layer = f"layer {report['layer']}, " + (
        f"{report['heads']} heads" if report["head"] is None else f"head {report['head']} alone"
    )
    probability = report["certificate"]["probability"]
    certainty = (
        "always" if probability == 1 else f"with probability {probability:g} over the random start"
    )
    titles = ["sequence", "σ", "lower", "upper", "iterations"]
    titles += [title for form in BOUNDS for title in (form, f"{form}/σ")]
    rows = [_cells(str(row["sequence"]), row) for row in report["results"]]
    rows.append(_cells("median", report["median"]))
    stopped = sum(not row["converged"] for row in report["results"])
    return "\n".join(
        [
            f"{report['model']['name']} ({report['model']['architecture']}), {layer}; n = {report['n']}, "
            f"{report['count']} sequences of {report['text']} from token {report['start']}; "
            f"{report['dtype']}",
            f"σ: local Lipschitz constant, to {report['tol']:g} relative; the bracket [lower, upper] holds {certainty}",
            *([f"{stopped} sequences did not reach the tolerance"] if stopped else []),
            "",
            *_aligned([titles, *rows]),
        ]
    )


def _cells(name: str, row: dict) -> list[str]:
    cells = [
        name,
        f"{row['sigma']:.6g}",
        f"{row['lower']:.6g}",
        f"{row['upper']:.6g}",
        f"{row['iterations']:g}",
    ]
    for form in BOUNDS:
        cells += [f"{row['bounds'][form]:.4g}", f"{row['ratios'][form]:.3g}"]
    return cells


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


# --- models and fetch ---------------------------------------------------------------------------------------


def _models(arguments: argparse.Namespace) -> str:
    from lipcore import models

    rows = models.available()
    if arguments.json:
        return json.dumps(rows, indent=2)
    cached = {True: "yes", False: "no", None: "-"}
    titles = ["name", "layers", "d", "heads", "cached", "from", "what"]
    cells = [titles] + [
        [
            row["name"],
            str(row["layers"]),
            str(row["d"]),
            str(row["heads"]),
            cached[row["cached"]],
            row["source"],
            row["what"],
        ]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


# --- sweep ------------------------------------------------------------------------------------------------------------


def _add_sweep(commands) -> None:
    sweep = commands.add_parser(
        "sweep",
        help="measure many layers and lengths, resumably",
        description="Measure every layer at every length, or what a plan asks for. Each cell is saved when it is "
        "finished, and the same command takes up where it was stopped. The table is FOLDER/table.parquet.",
    )
    add = sweep.add_argument
    what = sweep.add_mutually_exclusive_group(required=True)
    what.add_argument("--n", nargs="+", type=int, help="numbers of tokens")
    what.add_argument(
        "--plan", metavar="FILE", help="a TOML file of [[grid]]s, in place of --model to --local"
    )
    add(
        "--model",
        nargs="+",
        default=["minilm"],
        help="names of 'lipcore models', or folders (default: minilm)",
    )
    add("--layer", nargs="+", type=int, help="layers, from 0 (default: all)")
    add("--head", nargs="+", type=_head, help="heads, from 0, or 'all' (default: the whole layer)")
    add("--text", nargs="+", default=["pydoc"], help="texts, as for 'measure' (default: pydoc)")
    add("--count", type=int, default=10, help="sequences in a cell (default: 10)")
    add("--tol", type=float, default=1e-4, help="relative tolerance of σ (default: 1e-4)")
    add(
        "--dtype",
        choices=("float32", "float64"),
        default="float32",
        help="precision (default: float32)",
    )
    add("--local", action="store_true", help="work out the local bound too")
    add("--folder", required=True, help="where the tables go; made if missing")
    add(
        "--export",
        metavar="FILE",
        help="write a small copy of the table too, with versions and the time it took",
    )
    add("--workers", type=int, default=1, help="processes (default: 1)")
    add("--quiet", action="store_true", help="no progress bar")
    sweep.set_defaults(run=functools.partial(_sweep, sweep))


def _head(text: str) -> int | str:
    return text if text == "all" else int(text)


def _sweep(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> str:
    """Run the cells, and return where the table is."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    from lipcore._checks import check_count
    from lipcore.lab.sweep import sweep

    workers = check_count("workers", arguments.workers)
    if arguments.export and not os.path.isdir(os.path.dirname(arguments.export) or "."):
        raise _BadInput(
            f"--export: expected a file in a folder that exists, got {arguments.export}"
        )
    cells, progress = _sweep_cells(parser, arguments), not arguments.quiet
    try:
        if workers == 1:
            table = sweep(cells, arguments.folder, progress=progress)
        else:
            with ProcessPoolExecutor(
                workers, mp_context=multiprocessing.get_context("spawn")
            ) as executor:
                table = sweep(cells, arguments.folder, executor=executor, progress=progress)
    except (
        RuntimeError
    ) as error:  # cells that failed, say on a text too short; the others are saved
        raise _BadInput(str(error)) from error
    path, minutes = os.path.join(arguments.folder, "table.parquet"), table.attrs["seconds"] / 60
    if arguments.export:
        _export(table, arguments)
    return f"{path}: {len(table)} rows from {len(cells)} cells, {minutes:.1f} minutes of one core"


def _export(table, arguments: argparse.Namespace) -> None:
    """Write the small copy, which knows how it was made."""
    import hashlib
    import platform
    from importlib.metadata import version

    from lipcore import models
    from lipcore.lab.sweep import export
    from lipcore.models.texts import load_text

    source = (
        f"--plan {arguments.plan}" if arguments.plan else "--n " + " ".join(map(str, arguments.n))
    )
    weights = {
        row["name"]: row["sha256"]
        for row in models.available()
        if row["name"] in set(table["model"])
    }
    versions = {name: version(name) for name in ("torch", "transformers", "numpy", "pandas")}
    export(
        table,
        arguments.export,
        command=f"lipcore sweep {source} --folder {arguments.folder} --export {arguments.export}",
        versions={"lipcore": lipcore.__version__, "python": platform.python_version()} | versions,
        weights=weights,
        texts={
            name: hashlib.sha256(load_text(name).encode()).hexdigest()
            for name in table["text"].unique()
        },
    )


def _sweep_cells(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> list:
    """The cells that the arguments span; what no model has is refused before anything runs."""
    from lipcore.lab.sweep import read_plan

    if arguments.plan:
        for name in ("model", "layer", "head", "text", "count", "tol", "dtype", "local"):
            if getattr(arguments, name) != parser.get_default(name):
                raise _BadInput(f"--{name}: expected in the plan, not beside --plan")
        cells = read_plan(arguments.plan)
    else:
        cells = _spanned(arguments)
    _check_cells(cells)
    return cells


def _spanned(arguments: argparse.Namespace) -> list:
    """Every combination of the options."""
    from lipcore import models
    from lipcore.lab.sweep import grid

    cells = []
    for name in arguments.model:
        model = models.load(name)
        cells += grid(
            models=[name],
            layers=range(model.n_layers) if arguments.layer is None else arguments.layer,
            lengths=arguments.n,
            heads=range(model.heads) if arguments.head == ["all"] else arguments.head or [None],
            texts=arguments.text,
            count=arguments.count,
            tol=arguments.tol,
            dtype=arguments.dtype,
            local=arguments.local,
        )
    return cells


def _check_cells(cells: list) -> None:
    """Refuse a text, layer, head or length that cannot be had."""
    from lipcore import models
    from lipcore.models.texts import load_text

    for text in dict.fromkeys(cell.text for cell in cells):
        load_text(text)
    for name in dict.fromkeys(cell.model for cell in cells):
        model, own = models.load(name), [cell for cell in cells if cell.model == name]
        for layer in {cell.layer for cell in own}:
            attention = model.attention(layer)
            for head in {cell.head for cell in own if cell.layer == layer} - {None}:
                attention.head(head)
        for n in {cell.n for cell in own}:
            model.check_length(n)


# --- fetch ------------------------------------------------------------------------------------------------------------


def _fetch(arguments: argparse.Namespace) -> str:
    from lipcore import models

    return "\n".join(f"{name}: {models.fetch(name)}" for name in dict.fromkeys(arguments.names))
