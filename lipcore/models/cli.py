"""Local Lipschitz constants σ of a model's attention modules, of its blocks, or of the whole.

Each is the largest singular value of the Jacobian, at the tokens that enter when the model reads a
text. σ lies between lower, which always holds, and upper, which holds with the printed probability
over the random start of the iteration. Other inputs, such as images, are measured in Python, by
lipcore.measure(model, pixel_values=...).

Some ways to call it:

  lipcore measure sentence-transformers/all-MiniLM-L6-v2
  lipcore measure my-folder --text book.txt --n 256 --layers 0,3,5 --json
  lipcore measure my-folder --scope block
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap

import torch

import lipcore
from lipcore._checks import require
from lipcore.models.measure import as_json, import_optional, measure

#: What the model reads if no text is given.
TEXT = """How far can the output of one layer of attention move when its input tokens move a little?
The answer is the largest singular value of the Jacobian of the layer, and it depends on the tokens.
At this text it is measured, with a bracket: the lower end is attained by some direction, and the
upper end holds with a probability that is stated beside it."""
_ORDER = ["layer", "sequence", "sigma", "lower", "upper", "probability"]
_ORDER += ["converged", "shape", "kind", "varied", "fixed", "note"]


class _Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line, without the usage."""

    def error(self, message: str):
        raise ValueError(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its status.

    It is 0, 1 if no σ was found, 2 for what cannot be used, or 130 after Ctrl-C.
    """
    try:
        arguments = _parser().parse_args(argv)
        table, report = _measured(arguments)
        _print(report if arguments.json else as_text(table), sys.stdout)
        if not table.attrs["complete"]:
            return 130
        return 0 if table["sigma"].notna().any() else 1
    except BrokenPipeError:
        # What read the output, such as head, has ended; the interpreter flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:  # of libraries of many kinds
        _print(f"lipcore: error: {' '.join(str(error).split())}", sys.stderr)
        return 2
    except KeyboardInterrupt:
        _print("lipcore: interrupted", sys.stderr)
        return 130
    return 0


def _print(text: str, stream) -> None:
    """Print a text, with question marks for what the terminal's encoding lacks, such as σ."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, errors="replace").decode(encoding), file=stream, flush=True)


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = _Parser(prog="lipcore", description=lipcore.__doc__)
    parser.add_argument("--version", action="version", version=f"lipcore {lipcore.__version__}")
    commands = parser.add_subparsers(required=True, dest="command")
    texts = {"help": "measure the attention layers of a model", "description": __doc__}
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("measure", **texts, formatter_class=raw)
    add = command.add_argument
    add("model", metavar="MODEL", help="a folder, or a name of the Hugging Face hub")
    add("--text", metavar="FILE", help="what the model reads (default: four lines of English)")
    add("--n", type=int, help="how many tokens of it (default: 64, or all the model can read)")
    add("--scope", choices=("attention", "block", "model"), default="attention")
    add("--layers", help="'all' (default), or numbers or names: 0,3,5")
    add("--tol", type=float, default=1e-4, help="relative tolerance of σ (default: 1e-4)")
    add("--dtype", choices=("float32", "float64"), default="float32", help="default: float32")
    add("--tokenizer", help="a folder or name, where MODEL has none")
    add("--unchecked", action="store_true", help="do not compare autodiff with differences")
    add("--json", action="store_true", help="print JSON")
    return parser


def _measured(arguments: argparse.Namespace) -> tuple:
    """Return the table, and a JSON report with what is needed to make it again."""
    layers = None
    if arguments.layers not in (None, "all"):
        names = map(str.strip, arguments.layers.split(","))
        layers = [int(x) if x.isdecimal() else x for x in names]
        expected = "numbers or names between commas"
        require(all(x != "" for x in layers), "layers", expected, repr(arguments.layers))
    text = Path(arguments.text).read_text(encoding="utf-8") if arguments.text else TEXT
    model, inputs = _load(arguments, text)
    options = {name: getattr(arguments, name) for name in ("scope", "tol")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = measure(model, layers=layers, check=not arguments.unchecked, **options, **inputs)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        _print(f"lipcore: warning: {message}", sys.stderr)
    return table, as_json(table, arguments=vars(arguments))


def _load(arguments: argparse.Namespace, text: str) -> tuple:
    """Return the model, and its inputs for a text."""
    transformers = import_optional("transformers")
    if sys.stderr.isatty():
        _print(f"loading {arguments.model}", sys.stderr)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with _expected(f"model: expected a folder or a name of the hub, got {arguments.model}"):
        options = {"dtype": getattr(torch, arguments.dtype), "output_loading_info": True}
        model, report = transformers.AutoModel.from_pretrained(arguments.model, **options)
        # the library draws what is missing at random; poolers come behind all that is measured
        missing = sorted(name for name in report["missing_keys"] if "pooler" not in name)
        require(not missing, "weights", "all of the model's", f"none of {', '.join(missing)}")
    config = model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None) or sys.maxsize
    n = min(64, most) if arguments.n is None else arguments.n
    require(1 <= n <= most, "n", f"1 to {most} tokens for this model", n)
    source = arguments.tokenizer or arguments.model
    cure = "name another by --tokenizer, or measure in Python by lipcore.measure(model, ...)"
    with _expected(f"tokenizer: expected one in {source}: {cure}"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        is_empty = len(tokenizer) <= len(tokenizer.all_special_tokens)  # made by the library
        require(not is_empty, "tokenizer", "one with words", "none")
        ids = tokenizer(text, truncation=True, max_length=n, return_tensors="pt")["input_ids"]
    require(ids.numel(), "text", "one with tokens in it", "none")
    reads = model.main_input_name == "input_ids"
    cure = f"{type(model).__name__}: measure it in Python, by lipcore.measure(model, ...)"
    require(reads, "model", "one that reads texts", cure)
    size = getattr(config, "vocab_size", None) or sys.maxsize
    require(ids.max() < size, "tokenizer", f"ids below {size}", int(ids.max()))
    inputs = {"input_ids": ids.long()}
    if model.config.is_encoder_decoder:  # the decoder reads the same text
        inputs["decoder_input_ids"] = inputs["input_ids"]
    return model.eval(), inputs


@contextlib.contextmanager
def _expected(message: str) -> Iterator[None]:
    """Say first, of an error in the library, what was expected."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{message} ({' '.join(str(error).split())[:300]})") from error


def as_text(table) -> str:
    """Return a table with its title, where what all rows have in common is said once."""
    alike = [name for name in _ORDER if table[name].nunique(dropna=False) == 1]
    alike = [name for name in alike if name not in ("layer", "sigma", "lower", "upper")]
    said = {name: str(table[name][0]) for name in alike}
    said = [f"{name}: {x}" for name, x in said.items() if x not in ("", "0", "nan", "None")]
    title = "; ".join([table.attrs["title"], *said])
    lines = wrap(title, 100, break_long_words=False, break_on_hyphens=False)
    shown = table[[name for name in _ORDER if name not in alike]].copy()
    for name in shown.columns.intersection(["layer", "kind", "varied", "fixed", "note"]):
        shown[name] = shown[name].str.ljust(shown[name].str.len().max())
    if len(shown):
        form = {"index": False, "na_rep": "-", "float_format": "{:.6g}".format}
        lines.append(shown.to_string(**form, justify="left"))
    return "\n".join(lines)
