"""The command line: ``python -m lab measure``, ``python -m lab models`` and ``python -m lab fetch``.

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
from lab import models
from lab.models.sources import SOURCES
from lipcore.models.table import aligned, finite

#: Exit code for input that cannot be used.
BAD_INPUT = 2
#: Exit code after Ctrl-C.
INTERRUPTED = 130

_EPILOGUE = """\
examples:
  python -m lab measure --model minilm --layer 3 --n 64
  python -m lab measure --model minilm --layer 0 --head 5 --n 128 --text book.txt --json
  python -m lab measure --model my-qwen --layers all --text book.txt
  python -m lab measure --model my-vit --layers 0,5 --image cat.png
  python -m lab sweep --model minilm --n 8 32 128 --folder sweep --workers 2
  python -m lab models
  python -m lab fetch minilm

Weights are kept in the folder named by LIPCORE_CACHE, else in ~/.cache/lipcore."""

_MEASURE = """\
Local Lipschitz constants σ of attention: the largest singular value of its Jacobian, and a bracket.

With --layer, one layer of a BERT, GPT-2 or Llama-type model (without residual connection and
normalisation) at each token sequence that a text gives, with upper bounds and their ratio to σ.
Without it, every attention module (or block, or the whole) of any model of transformers, at the
tokens that enter it in the running model."""

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
    """A parser that reports errors in one line, without the usage."""

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
        _print(f"lab: error: {' '.join(str(error).split())}", sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        _print("lab: interrupted", sys.stderr)
        return INTERRUPTED
    return 0


def _print(text: str, stream) -> None:
    """Print a text, with question marks for what the terminal's encoding lacks (σ, ₂)."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, errors="replace").decode(encoding), file=stream, flush=True)


def _parser(further: Iterable[Callable]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m lab",
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
        help="measure attention layers",
        description=_MEASURE,
        epilog=_MEASURE_NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = measure.add_argument
    add("--model", default="minilm", help="model, by name or folder (default: minilm)")
    which = measure.add_mutually_exclusive_group()
    which.add_argument("--layer", type=int, help="one layer, from 0, with bounds")
    which.add_argument("--layers", help="'all' (default), or numbers or names: 0,3,5")
    add("--scope", choices=("attention", "block", "model"), help="default: attention")
    add("--ids", help="JSON file of token ids, or of the model's inputs by name")
    add("--image", help="image file")
    add("--n", type=int, default=64, help="tokens in a sequence (default: 64)")
    add("--head", type=int, help="one head, from 0, with its part of the output projection")
    add("--text", help="pydoc (default), licences, code, bible, alice, ag_news, or a file")
    add("--count", type=int, help="number of sequences (default: 10; 1 without --layer)")
    add("--start", type=int, default=0, help="token of the text to start at (default: 0)")
    add("--tol", type=float, default=1e-4, help="relative tolerance of σ (default: 1e-4)")
    add("--seed", type=int, default=0, help="for Lanczos's start and random weights (default: 0)")
    add("--dtype", choices=("float32", "float64"), default="float32", help="default: float32")
    add("--certificate", choices=("probable", "always"), help=_CERTIFICATE)
    add("--json", action="store_true", help="print JSON")
    measure.set_defaults(run=_measure)


def _measure(arguments: argparse.Namespace) -> str:
    """Measure, and return the table or the JSON to print."""
    if not 0 <= arguments.seed < 2**63:
        raise ValueError(f"seed: expected a whole number from 0 to 2^63 - 1, got {arguments.seed}")
    whole = arguments.layer is None
    wrong = ("head", "certificate") if whole else ("scope", "ids", "image")
    for name in wrong:
        if getattr(arguments, name) is not None:
            where = "beside" if whole else "without"
            raise ValueError(
                f"{name}: expected only {where} --layer, got {getattr(arguments, name)}"
            )
    return _measure_model(arguments) if whole else _measure_layer(arguments)


def _measure_model(arguments: argparse.Namespace) -> str:
    """Return one row for each module of a model and each sequence."""
    import torch

    from lipcore.models.measure import measure, versions

    model = _load(arguments)
    inputs = _inputs(arguments, model)
    table = measure(
        model,
        scope=arguments.scope or "attention",
        layers=_layers(arguments.layers),
        tol=arguments.tol,
        generator=torch.Generator().manual_seed(arguments.seed),
        **inputs,
    )
    text = str(table)
    if arguments.json:
        about = {"name": model.name, "architecture": model.architecture, "sha256": model.sha256}
        shapes = {name: list(tensor.shape) for name, tensor in inputs.items()}
        report = {"versions": versions(), "model": about, "inputs": shapes}
        report |= json.loads(table.to_json())
        text = json.dumps(report, indent=2, allow_nan=False)
    if not table.complete:
        _print(text, sys.stdout)
        raise KeyboardInterrupt
    return text


def _layers(text: str | None) -> list[int | str] | None:
    """Return numbers and names of layers, separated by commas in ``text``; None for all of them."""
    if text is None or text == "all":
        return None
    return [int(part) if part.isdecimal() else part for part in text.split(",")]


def _inputs(arguments: argparse.Namespace, model) -> dict:
    """Return the inputs on which the model is run."""
    from lab.models import inputs, texts

    given = [name for name in ("ids", "image", "text") if getattr(arguments, name) is not None]
    if len(given) > 1:
        raise ValueError(f"{', '.join(given)}: expected one of them")
    if arguments.ids is not None:
        return inputs.from_ids(model, arguments.ids)
    if arguments.image is not None:
        return inputs.from_image(model, arguments.image)
    text = texts.load_text(arguments.text or "pydoc")
    sizes = {"n": arguments.n, "count": arguments.count or 1, "start": arguments.start}
    return inputs.with_decoder(model, {inputs.IDS: texts.sequences(model, text, **sizes)})


def _measure_layer(arguments: argparse.Namespace) -> str:
    """Return one row for each sequence, with upper bounds."""
    import torch

    from lab.measure_layer import BOUNDS, measure_layer

    arguments.text = arguments.text or "pydoc"
    arguments.count = 10 if arguments.count is None else arguments.count
    arguments.certificate = arguments.certificate or "probable"
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
    from lab.models import LanguageModel, texts

    text = texts.load_text(arguments.text)
    model = _load(arguments)
    if not isinstance(model, LanguageModel):
        kinds = "a model of BERT, GPT-2 or Llama type"
        raise ValueError(
            f"layer: expected {kinds} beside it, got {model.architecture}: use --layers"
        )
    attention = model.attention(arguments.layer, head=arguments.head)
    ids = texts.sequences(model, text, n=arguments.n, count=arguments.count, start=arguments.start)
    return model, attention, model.hidden_states(arguments.layer, ids)


def _load(arguments: argparse.Namespace):
    import torch

    seed = {"seed": arguments.seed} if _is_random(arguments.model) else {}
    return models.load(arguments.model, dtype=getattr(torch, arguments.dtype), **seed)


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
    """Return all that is needed to repeat the measurement."""
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
    """Return the report as text."""
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
    parser = commands.add_parser("fetch", help="download weights or data into the cache, verified")
    what = "a model of 'python -m lab models', a text, photos or speech"
    parser.add_argument("names", nargs="+", metavar="NAME", help=what)
    parser.set_defaults(run=_fetch)


def _fetch(arguments: argparse.Namespace) -> str:
    return "\n".join(f"{name}: {models.fetch(name)}" for name in dict.fromkeys(arguments.names))
