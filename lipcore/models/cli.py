"""The command line: ``lipcore measure``, ``lipcore models`` and ``lipcore fetch``.

What needs PyTorch is imported where it is used, so that the help comes at once.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from statistics import median

import lipcore
from lipcore import models
from lipcore.models.sources import SOURCES
from lipcore.models.table import aligned, finite

#: Exit code for input that cannot be used.
BAD_INPUT = 2
#: Exit code after Ctrl-C.
INTERRUPTED = 130

_EPILOGUE = """\
examples:
  lipcore measure --model minilm --layer 3 --n 64
  lipcore measure --model minilm --layer 0 --head 5 --n 128 --text book.txt --json
  lipcore sweep --model minilm --n 8 32 128 --folder sweep --workers 2
  lipcore models
  lipcore fetch minilm

Weights are kept in the folder named by LIPCORE_CACHE, else in ~/.cache/lipcore."""

_MEASURE = """\
Local Lipschitz constants σ of one attention layer (without residual connection and normalisation)
at the token sequences that a text gives: for each sequence the largest singular value of the
layer's Jacobian, a bracket of it, and upper bounds with their ratio to it."""

_CERTIFICATE = "what the upper end of the bracket is (default: probable)"

_MEASURE_NOTES = """\
σ is a lower bound, reached by Lanczos to the relative tolerance. The bracket's upper end is the
local bound, which always holds (--certificate always), or one that holds with the printed
probability over the random start, at these very tokens (--certificate probable), which is much
closer.

bounds (of the whole layer: heads add up in squares, or through the output projection, whichever
is less):
  local     worked out at the sequence from its attention weights
  best      the least that the book proves for every sequence of n tokens in the ball of the
            longest token here
  general   the same, as published (Castin, Ablin & Peyré 2024)"""


class _Parser(argparse.ArgumentParser):
    """Errors in one line, without the usage."""

    def error(self, message: str):
        raise ValueError(message)


def main(argv: Sequence[str] | None = None, *, further: Iterable[Callable] = ()) -> int:
    """Run the command line and return its exit code: 0, 2 for bad input, 130 if interrupted.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; those of the process if left out.
    further : iterable of callables
        Each adds a command to what ``ArgumentParser.add_subparsers`` returned.

    Examples
    --------
    >>> main(["fetch", "bert-random"])
    2
    """
    try:
        arguments = _parser(further).parse_args(argv)
        _print(arguments.run(arguments), sys.stdout)
    except BrokenPipeError:
        # The program that read the output, such as head, has ended. The interpreter flushes the
        # stream once more when it exits, hence the redirection.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, TypeError, IndexError, OSError, ImportError) as error:
        _print(f"lipcore: error: {' '.join(str(error).split())}", sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        _print("lipcore: interrupted", sys.stderr)
        return INTERRUPTED
    return 0


def _print(text: str, stream) -> None:
    """Print, with question marks for what the terminal's encoding lacks (σ, ₂)."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, errors="replace").decode(encoding), file=stream, flush=True)


def _parser(further: Iterable[Callable]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="lipcore",
        description=lipcore.__doc__,
        epilog=_EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lipcore {lipcore.__version__}")
    commands = parser.add_subparsers(required=True, dest="command")
    for add_command in (_add_measure, *further, _add_models, _add_fetch):
        add_command(commands)
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
    add("--model", default="minilm", help="model, by name or folder (default: minilm)")
    add("--layer", type=int, required=True, help="layer, from 0")
    add("--n", type=int, default=64, help="tokens in a sequence (default: 64)")
    add("--head", type=int, help="one head, from 0, with its part of the output projection")
    add("--text", default="pydoc", help="pydoc (default), licences, alice, ag_news, or a file")
    add("--count", type=int, default=10, help="number of sequences (default: 10)")
    add("--start", type=int, default=0, help="token of the text to start at (default: 0)")
    add("--tol", type=float, default=1e-4, help="relative tolerance of σ (default: 1e-4)")
    add("--seed", type=int, default=0, help="for Lanczos's start and random weights (default: 0)")
    add("--dtype", choices=("float32", "float64"), default="float32", help="default: float32")
    add("--certificate", choices=("probable", "always"), default="probable", help=_CERTIFICATE)
    add("--json", action="store_true", help="print JSON")
    measure.set_defaults(run=_measure)


def _measure(arguments: argparse.Namespace) -> str:
    """Measure, and return the table or the JSON to print."""
    import torch

    from lipcore.models.measure import BOUNDS, measure_layer

    if not 0 <= arguments.seed < 2**63:
        raise ValueError(f"seed: expected a whole number from 0 to 2^63 - 1, got {arguments.seed}")
    model, attention, X = _read(arguments)
    rows = measure_layer(
        attention,
        X,
        tol=arguments.tol,
        generator=torch.Generator().manual_seed(arguments.seed),
        certificate=arguments.certificate,
    )
    for row in rows:
        row["ratios"] = {name: _ratio(row[name], row["sigma"]) for name in BOUNDS}
    report = _describe(arguments, model, attention)
    report["certificate"] = {
        "kind": arguments.certificate,
        "probability": rows[0]["probability"],
    }
    report |= {"results": rows, "median": _medians(rows, BOUNDS)}
    if arguments.json:
        return json.dumps(finite(report), indent=2, allow_nan=False)
    return _table(report)


def _read(arguments: argparse.Namespace):
    """Return the model, the attention to measure, and the tokens that enter it: (count, n, d)."""
    import torch

    from lipcore.models import texts

    text = texts.load_text(arguments.text)
    seed = {"seed": arguments.seed} if _is_random(arguments.model) else {}
    model = models.load(arguments.model, dtype=getattr(torch, arguments.dtype), **seed)
    attention = model.attention(arguments.layer, head=arguments.head)
    ids = texts.sequences(model, text, n=arguments.n, count=arguments.count, start=arguments.start)
    return model, attention, model.hidden_states(arguments.layer, ids)


def _is_random(name: str) -> bool:
    return name in SOURCES and not SOURCES[name].files


def _ratio(bound: float, sigma: float) -> float:
    return bound / sigma if sigma > 0 else math.inf


def _medians(rows: list[dict], bounds: Sequence[str]) -> dict:
    names = ("sigma", "lower", "upper", "iterations", *bounds)
    middle = {name: median(row[name] for row in rows) for name in names}
    middle["ratios"] = {name: median(row["ratios"][name] for row in rows) for name in bounds}
    return middle


def _describe(arguments: argparse.Namespace, model, attention) -> dict:
    """All that it takes to repeat the measurement."""
    from lipcore.models.measure import versions

    asked = ("layer", "head", "text", "n", "count", "start", "tol", "dtype")
    return {
        "versions": versions(),
        "model": {
            "name": model.name,
            "sha256": model.sha256,
            "architecture": model.architecture,
            "d": model.d,
            "causal": attention.causal,
        },
        "heads": attention.heads,
        "seeds": {
            "start_vector": arguments.seed,
            "weights": arguments.seed if _is_random(arguments.model) else None,
        },
    } | {name: getattr(arguments, name) for name in asked}


def _table(report: dict) -> str:
    """Write the report as text."""
    heads = f"{report['heads']} heads"
    if report["head"] is not None:
        heads = f"head {report['head']} alone"
    probability = report["certificate"]["probability"]
    holds = "always"
    if probability < 1:
        holds = f"with probability {probability:g} over the random start"
    lines = [
        f"{report['model']['name']} ({report['model']['architecture']}), "
        f"layer {report['layer']}, {heads}; n = {report['n']}, {report['count']} sequences of "
        f"{report['text']} from token {report['start']}; {report['dtype']}",
        f"σ: local Lipschitz constant, to {report['tol']:g} relative; "
        f"the bracket [lower, upper] holds {holds}",
    ]
    if stopped := sum(not row["converged"] for row in report["results"]):
        lines.append(f"{stopped} sequences did not reach the tolerance")
    titles = ["sequence", "σ", "lower", "upper", "iterations"]
    titles += [title for name in report["median"]["ratios"] for title in (name, f"{name}/σ")]
    rows = [_cells(str(row["sequence"]), row) for row in report["results"]]
    rows.append(_cells("median", report["median"]))
    return "\n".join([*lines, "", *aligned([titles, *rows], str.rjust)])


def _cells(name: str, row: dict) -> list[str]:
    cells = [name, *(f"{row[key]:.6g}" for key in ("sigma", "lower", "upper"))]
    cells.append(f"{row['iterations']:g}")
    for bound, ratio in row["ratios"].items():
        cells += [f"{row[bound]:.4g}", f"{ratio:.3g}"]
    return cells


def _add_models(commands) -> None:
    parser = commands.add_parser("models", help="list the models that can be loaded, from where")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_models)


def _models(arguments: argparse.Namespace) -> str:
    rows = models.available()
    if arguments.json:
        return json.dumps(rows, indent=2)
    titles = ("name", "layers", "d", "heads", "cached", "source", "what")
    shown = {True: "yes", False: "no", None: "-"}
    for row in rows:
        row["cached"] = shown[row["cached"]]
    cells = [[str(row[title]) for title in titles] for row in rows]
    return "\n".join(aligned([list(titles), *cells], str.ljust))


def _add_fetch(commands) -> None:
    parser = commands.add_parser("fetch", help="download weights into the cache, verified")
    parser.add_argument("names", nargs="+", metavar="NAME", help="a model of 'lipcore models'")
    parser.set_defaults(run=_fetch)


def _fetch(arguments: argparse.Namespace) -> str:
    return "\n".join(f"{name}: {models.fetch(name)}" for name in dict.fromkeys(arguments.names))
