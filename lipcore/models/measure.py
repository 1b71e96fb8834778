"""Measure the attention, the blocks or the whole of a running model."""

from __future__ import annotations

import importlib
import itertools
import json
import platform
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from tqdm import tqdm

import lipcore
from lipcore._checks import check_count, check_number, require
from lipcore.lipschitz import LocalLipschitz, check_norm, local_lipschitz
from lipcore.models.capture import Call, Captured, captured, copied, copy_of, module_of, record
from lipcore.models.modules import read
from lipcore.models.structure import attention_modules, blocks, remarks
from lipcore.models.whole import whole
from lipcore.spectral import INTERRUPTED

if TYPE_CHECKING:
    import pandas as pd

#: What :func:`measure` measures.
SCOPES = ("attention", "block", "model")
#: Its columns; a narrow terminal shows the first ones and the last ones.
COLUMNS = ["layer", "sequence", "kind", "shape", "varied", "fixed", "note"]
COLUMNS += ["converged", "probability", "lower", "upper", "sigma"]
_REFUSALS = (ValueError, TypeError, NotImplementedError, RuntimeError, AttributeError, LookupError)


def measure(
    model: nn.Module,
    *args: object,
    scope: str = "attention",
    layers: int | str | Iterable[int | str] | None = None,
    wrt: str | None = None,
    by: str = "sequence",
    padding: str = "measure",
    dtype: torch.dtype | None = None,
    norm: str = "frobenius",
    tokens: int | slice | None = None,
    tol: float = 1e-4,
    generator: torch.Generator | None = None,
    check: bool = True,
    progress: bool | None = None,
    **inputs: object,
) -> pd.DataFrame:
    r"""Run a model, and return σ of its attention modules, of its blocks, or of the whole.

    For each of them, σ is the largest singular value of the Jacobian of what
    :func:`~lipcore.models.capture.capture` returns: the module as a map of the tokens that enter it
    in the running model, at these tokens, with masks, padding and positions as they are there.

    Parameters
    ----------
    model : torch.nn.Module, or an object whose ``model`` is one
        In evaluation mode, with weights in float32 or float64, or with a ``dtype``.
    *args, **inputs
        The inputs of the model, such as ``input_ids`` and ``attention_mask``.
    scope : {"attention", "block", "model"}
        With ``"attention"``, every attention module, found by structure
        (:func:`lipcore.models.structure.attention_modules`); ``note`` says what it has besides
        attention, or lacks. With ``"block"``, attention and MLP with residual connections and
        normalisations. With ``"model"``, the map from the tokens that enter the first block to the
        model's output. If there are several outputs, ``note`` says of which one σ is.
    layers : int, str, or several of them, optional
        Numbers, from 0, or names of modules; all of them if left out.
    wrt : str, optional
        The input of the module that varies: its name, such as ``"query"`` or
        ``"key_value_states"``. If left out, the first one, with those that are the same tensor.
        With ``"all"``, every input as large as the first gets the same push, which is right where
        they are the same tokens up to something added, as ``x + positions`` and ``x`` are.
    by : {"sequence", "head"}
        With ``"head"``, a row for each head of the attention, with σ of the map that this head
        alone makes, through the output projection; there is one more column, ``head``.
    padding : {"measure", "ignore"}
        Padding belongs to X and to the output as any token does. With ``"ignore"``, σ is that from
        real tokens to real tokens, told by the masks among the inputs that have a name: real is
        what is not 0 in an attention_mask, and what is 0 or False in a key_padding_mask. Layers of
        PyTorch run without their fast path, which puts zeros where padding is.
    dtype : torch.dtype, optional
        The precision of a copy of the model that is measured instead, such as torch.float32 for
        weights in bfloat16.
    norm, tokens
        Which outputs count, as for :func:`lipcore.local_lipschitz`. With ``tokens=-1`` the last one
        alone counts, and with ``norm="token"`` the one that moves most.
    tol : float
        Relative tolerance of σ (:func:`lipcore.spectral_norm`).
    generator : torch.Generator, optional
        Source of the random start of Lanczos; a fixed seed if left out.
    check : bool
        Whether derivatives by autodiff are compared with finite differences before they are used.
        If not, the note of what is measured by autodiff says so.
    progress : bool, optional
        Whether to show a progress bar. If left out, it is shown on a terminal, once it takes long.

    Returns
    -------
    pandas.DataFrame
        One row for each module and sequence, in the order of running, with the columns ``layer``,
        ``sequence``, ``kind`` (the class), ``shape`` (n, d), ``varied`` and ``fixed`` (the inputs
        that are X, and those that are held), ``note``, ``converged``, ``probability``, ``lower``,
        ``upper`` and ``sigma``. What cannot be measured has a row without numbers, whose note says
        why, and there is a warning; if a batch is refused, each of its sequences is tried with the
        others held fixed. ``attrs`` has a ``title``,
        whether the table is ``complete`` (after Ctrl-C it has the rows so far), and what made it:
        versions, dtype, device, seed and shapes. :func:`save` keeps them with the table.

    Raises
    ------
    ValueError, TypeError
        If the scope, a layer or the norm is unknown, or the model has no attention or is training.

    Examples
    --------
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 2).eval()
    >>> measure(model, torch.zeros(1, 3, 8))[["layer", "shape", "converged"]]
                    layer   shape  converged
    0  layers.0.self_attn  (3, 8)       True
    1  layers.1.self_attn  (3, 8)       True
    """
    pd = import_optional("pandas")  # here, since the rest of the package needs no pandas
    require(scope in SCOPES, "scope", f"one of {', '.join(SCOPES)}", repr(scope))
    tol = check_number("tol", tol, minimum=0, strict=True, maximum=1)
    options = {"norm": check_norm(norm), "tokens": tokens, "tol": tol, "check": check}
    options["generator"] = generator
    model = module_of(model)
    is_free = wrt is None or scope != "model"
    require(is_free, "wrt", "nothing with scope 'model', where what enters varies", repr(wrt))
    is_whole = by == "sequence" or (scope, padding) == ("attention", "measure")
    require(by in ("sequence", "head"), "by", "'sequence' or 'head'", repr(by))
    require(is_whole, "by", "'sequence' where blocks, models or real tokens are measured", repr(by))
    require(padding in ("measure", "ignore"), "padding", "'measure' or 'ignore'", repr(padding))
    real = _real_tokens(inputs, padding)
    has_mask = padding == "measure" or real
    require(has_mask, "padding", "'measure' without an attention_mask=", repr(padding))
    if dtype is not None:
        is_known = dtype in (torch.float32, torch.float64)
        require(is_known, "dtype", "torch.float32 or torch.float64", dtype)
        model = copy_of(model).to(dtype)
        args, inputs = copied((args, inputs), dtype)
    how = _How(scope, wrt, by == "head", real, padding == "ignore", options)
    calls = _calls(model, scope, layers, args, inputs)
    rows: list[dict] = []
    complete = False
    hidden = None if progress is None else not progress
    with tqdm(calls, desc=scope, delay=2, leave=False, disable=hidden) as bar:
        try:
            for name, call in bar:
                rows += _rows(name, call, how)
            complete = True
        except KeyboardInterrupt:
            done = len({row["layer"] for row in rows})
            what = f"interrupted: the table has {done} of {len(calls)} modules"
            warnings.warn(what, stacklevel=2)
    numbers = dict.fromkeys(COLUMNS[-4:], float)
    columns = [*COLUMNS[:2], "head", *COLUMNS[2:]] if how.by_head else COLUMNS
    table = pd.DataFrame(rows, columns=columns).astype(numbers)
    title = f"{scope} of {type(model).__name__}, σ to {tol:g} relative"
    made = _made(model, args, inputs) | {"seed": generator and generator.initial_seed()}
    table.attrs = {"title": title, "complete": complete} | made
    if missing := [row for row in rows if row["sigma"] is None]:
        what = f"{len(missing)} of {len(rows)} rows have no σ, as their notes say: "
        warnings.warn(f"{what}{missing[0]['layer']} {missing[0]['note']}", stacklevel=2)
    return table


def import_optional(package: str) -> ModuleType:
    """Return a package that only measuring models needs, or say how to have it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        cure = "pip install 'lipcore[models]'"
        raise ImportError(f"measure needs the package {package}: {cure}") from error


def _calls(model, scope: str, layers, args: tuple, inputs: dict) -> list[tuple[str, Call]]:
    """Run the model, and return what is to be measured, in the order of running."""
    modules = attention_modules(model) if scope == "attention" else blocks(model)
    require(modules, "model", f"one with {scope} modules", "none: name one in lipcore.capture")
    if scope == "model":
        require(layers is None, "layers", "nothing with scope 'model'", repr(layers))
        return [(type(model).__name__, whole(model, modules, *args, **inputs))]
    calls = record(model, _chosen(modules, layers), *args, **inputs)
    require(calls, "layers", "modules that run on these inputs", "none that do")
    times = Counter(call.name for call in calls)
    turns = defaultdict(itertools.count)  # a module that runs several times is numbered by runs
    return [
        (call.name if times[call.name] == 1 else f"{call.name}#{next(turns[call.name])}", call)
        for call in calls
    ]


def _chosen(modules: list[str], layers) -> list[str]:
    """Return the names of the modules that are asked for by number or name."""
    if layers is None:
        return modules
    wanted = [layers] if isinstance(layers, int | str) else list(layers)
    chosen = []
    for layer in wanted:
        if not isinstance(layer, str):
            place = check_count("layers", layer, minimum=0)
            require(place < len(modules), "layers", f"0 to {len(modules) - 1}", place)
            layer = modules[place]
        require(layer in modules, "layers", f"names such as {modules[0]!r}", repr(layer))
        chosen.append(layer)
    return list(dict.fromkeys(chosen))


@dataclass(frozen=True)
class _How:
    """What is measured of each module, and how; ``real`` has masks of tokens, by their names."""

    scope: str
    wrt: str | None
    by_head: bool
    real: dict[str, Tensor]
    ignores_padding: bool
    options: dict


def _real_tokens(inputs: dict, padding: str) -> dict[str, Tensor]:
    """Return which tokens are no padding, by the masks (sequences, n) among the inputs."""
    masks = {name: x for name, x in inputs.items() if isinstance(x, Tensor) and x.ndim == 2}
    real = {name: x == 0 for name, x in masks.items() if name.endswith("key_padding_mask")}
    for name, x in masks.items():
        if name.endswith("attention_mask"):
            is_plain = bool(((x == 0) | (x == 1)).all())  # others are added to scores, or are many
            got = f"others, such as {x.min().item():g}"
            require(is_plain or padding != "ignore", name, "1 for tokens and 0 for padding", got)
            real |= {name: x == 1} if is_plain else {}
    return real


def _real_in(fn: Captured, real: dict[str, Tensor]) -> Tensor | None:
    """Return which tokens of a map are no padding, or None if no mask is of them."""
    fitting = [name for name, x in real.items() if x.shape == fn.X.shape[:-1]]
    # an encoder and a decoder that read as many tokens have a mask each
    fitting.sort(key=lambda name: name.startswith("decoder") != ("decoder" in fn.name))
    return real[fitting[0]].to(fn.X.device) if fitting else None


def _rows(name: str, call: Call, how: _How) -> list[dict]:
    """Return the rows of one module, one for each sequence, or one that says why there is none."""
    row = dict.fromkeys(COLUMNS) | {"layer": name, "sequence": 0, "kind": call.kind}
    is_attention = how.scope == "attention"
    layer = None
    try:
        fn = captured(call, how.wrt)
        got = f"{fn.X.dtype}: pass dtype=torch.float32, which measures a copy"
        is_known = fn.X.dtype in (torch.float32, torch.float64)
        require(is_known, "model", "torch.float32 or torch.float64", got, TypeError)
        real = _real_in(fn, how.real)
        tokens = tuple(fn.X.shape[:-1])
        has_mask = real is not None or not how.ignores_padding
        require(has_mask, "padding", f"a mask of shape {tokens}", "none for these tokens")
        if is_attention:
            with suppress(() if how.by_head else _REFUSALS):  # of an Attention J is faster
                layer = read(fn)
    except _REFUSALS as error:
        return [row | _refused(error)]
    notes = [remarks(call.module) if is_attention else "", fn.remark]
    varied, fixed = fn.said()
    row |= {"shape": tuple(fn.X.shape[-2:]), "varied": varied, "fixed": fixed}
    row |= {"note": "; ".join(filter(None, notes))}
    if how.ignores_padding:
        row["note"] = "; ".join(filter(None, [row["note"], "padding left out as the mask says"]))
        parts = [fn.of_member(i, x.nonzero()[:, 0]) for i, x in enumerate(real)]
        found = [_of_part(part, row, how) for part in parts]
    elif how.by_head:
        heads = [_numbers(layer.head(h), fn.X, row, how, real) for h in range(layer.heads)]
        return [
            row | {"sequence": i, "head": h} | one
            for h, found in enumerate(heads)
            for i, one in enumerate(found)
        ]
    else:
        found = _of_batch(layer or fn, fn, row, how, real)
    return [row | {"sequence": i} | one for i, one in enumerate(found)]


def _of_batch(f: Callable, fn: Captured, row: dict, how: _How, real) -> list[dict]:
    """Return the numbers of each sequence; if the batch is refused, with the others held fixed."""
    try:
        return _numbers(f, fn.X, row, how, real)
    except _REFUSALS as error:
        members = len(fn.X) if fn.X.ndim > 2 else 1
        several = members > 1
        parts = [fn.of_member(i) for i in range(members)] if several else []
        return [_of_part(part, row, how) for part in parts] or [_refused(error, row["note"])]


def _of_part(part: Captured, row: dict, how: _How) -> dict:
    """Return the numbers of one sequence of a batch, with all else held fixed."""
    shape = {"shape": tuple(part.X.shape[-2:])}
    try:
        return shape | _numbers(part, part.X, row, how, None)[0]
    except _REFUSALS as error:
        return shape | _refused(error, row["note"])


def _refused(error: Exception, note: str = "") -> dict:
    notes = [f"not measured: {' '.join(str(error).split())}", note]
    return {"converged": False, "note": "; ".join(filter(None, notes))}


def _numbers(f: Callable, X: Tensor, row: dict, how: _How, real: Tensor | None) -> list[dict]:
    """Return the numbers of each sequence."""
    found = local_lipschitz(f, X, **how.options)
    if INTERRUPTED in found.remark:
        raise KeyboardInterrupt
    names = {"sigma": "value", "lower": "lower", "upper": "upper", "converged": "converged"}
    numbers = []
    for i, r in enumerate(found if found.value.ndim else [found]):
        one = {column: getattr(r, name).item() for column, name in names.items()}
        mask = None if real is None or X.ndim < 3 else real[i]
        padding = _carried(r, X[i] if X.ndim > 2 else X, mask)
        said = "; ".join(filter(None, [row["note"], padding, r.remark]))
        numbers.append(one | {"probability": r.probability, "note": said})
    return numbers


def _carried(r: LocalLipschitz, X: Tensor, real: Tensor | None) -> str:
    """Return in words if the worst push, or its answer, is one of padding, or of zero tokens."""
    is_real = X.any(-1) if real is None else real
    who, cure = "tokens of zeros have", ""
    if real is not None:
        who, cure = "padding has", ": padding='ignore' leaves it out"
    for what, vectors in (("worst push", r.right), ("answer to the worst push", r.left)):
        shares = vectors.square().sum(-1)
        share = shares[~is_real].sum().item() if shares.shape == is_real.shape else 0
        if share > 0.5:
            return f"{who} {share:.0%} of the {what}{cure}"
    return ""


def save(table: pd.DataFrame, path: str | Path) -> None:
    """Write a table of :func:`measure` to a .json or a .csv file, with all that made it.

    The first line of a .csv file is a comment, after which pandas.read_csv(path, skiprows=1) reads.
    """
    path = Path(path)
    require(path.suffix in (".json", ".csv"), "path", "a .json or .csv file", path.name)
    text = as_json(table)
    if path.suffix == ".csv":
        text = f"# {json.dumps(table.attrs, ensure_ascii=False)}\n{table.to_csv(index=False)}"
    path.write_text(text, encoding="utf-8")


def as_json(table: pd.DataFrame, **more: object) -> str:
    """Return a table as JSON, with all that made it; infinity is null."""
    rows = json.loads(table.to_json(orient="records", double_precision=15))
    return json.dumps(table.attrs | more | {"rows": rows}, indent=2, ensure_ascii=False)


def _made(model: nn.Module, args: tuple, inputs: dict) -> dict:
    """Return what a table was made with."""
    tensors = {f"args[{i}]": x for i, x in enumerate(args)} | inputs
    shapes = {k: [*x.shape] for k, x in tensors.items() if isinstance(x, Tensor)}
    first = next(model.parameters(), torch.empty(0))
    kind = {"dtype": str(first.dtype).removeprefix("torch."), "device": str(first.device)}
    return {"versions": versions(), "inputs": shapes} | kind


def versions() -> dict[str, str]:
    """Return the versions of all that the numbers depend on, to be stored with them."""
    found = {"lipcore": lipcore.__version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "numpy", "scipy"):
        with suppress(metadata.PackageNotFoundError):  # own modules are measured without some
            found[name] = metadata.version(name)
    return found
