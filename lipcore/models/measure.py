"""Measure the attention, the blocks or the whole of a running model."""

from __future__ import annotations

import importlib
import itertools
import platform
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from tqdm import tqdm

import lipcore
from lipcore._checks import check_count, check_number, require
from lipcore.lipschitz import check_norm, local_lipschitz
from lipcore.models.capture import Call, Captured, captured, module_of, record
from lipcore.models.modules import read
from lipcore.models.structure import attention_modules, blocks, remarks
from lipcore.models.whole import whole

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
    *args,
    scope: str = "attention",
    layers: int | str | Iterable[int | str] | None = None,
    wrt: str | None = None,
    norm: str = "frobenius",
    tokens: int | slice | None = None,
    tol: float = 1e-4,
    generator: torch.Generator | None = None,
    check: bool = True,
    progress: bool | None = None,
    **inputs,
) -> pd.DataFrame:
    r"""Run a model, and return σ of its attention modules, of its blocks, or of the whole.

    For each of them, σ is the largest singular value of the Jacobian of what
    :func:`~lipcore.models.capture.capture` returns: the module as a map of the tokens that enter it
    in the running model, at these tokens, with masks, padding and positions as they are there.

    Parameters
    ----------
    model : torch.nn.Module, or an object whose ``model`` is one
        In evaluation mode, with weights in float32 or float64.
    *args, **inputs
        The inputs of the model, such as ``input_ids`` and ``attention_mask``.
    scope : {"attention", "block", "model"}
        With ``"attention"``, every attention module, found by structure
        (:func:`lipcore.models.structure.attention_modules`); ``note`` says what it has besides
        attention, or lacks. With ``"block"``, attention and MLP with residual connections and
        normalisations. With ``"model"``, the map from the tokens that enter the first block to the
        model's output.
    layers : int, str, or several of them, optional
        Numbers, from 0, or names of modules; all of them if left out.
    wrt : str, optional
        The input of the module that varies: its name, such as ``"query"`` or
        ``"key_value_states"``. If left out, the first one, with those that are the same tensor.
        With ``"all"``, every input as large as the first gets the same push, which is right where
        they are the same tokens up to something added, as ``x + positions`` and ``x`` are.
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
        and whether the table is ``complete``: after Ctrl-C it has the rows so far.
        Padding belongs to X and to the output as any token does, so that it counts.

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
    calls = _calls(model, scope, layers, args, inputs)
    rows: list[dict] = []
    complete = False
    hidden = None if progress is None else not progress
    with tqdm(calls, desc=scope, delay=2, leave=False, disable=hidden) as bar:
        try:
            for name, call in bar:
                rows += _rows(name, call, scope, wrt, options)
            complete = True
        except KeyboardInterrupt:
            done = len({row["layer"] for row in rows})
            what = f"interrupted: the table has {done} of {len(calls)} modules"
            warnings.warn(what, stacklevel=2)
    numbers = dict.fromkeys(COLUMNS[-4:], float)
    table = pd.DataFrame(rows, columns=COLUMNS).astype(numbers)
    title = f"{scope} of {type(model).__name__}, σ to {tol:g} relative"
    table.attrs = {"title": title, "complete": complete}
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


def _rows(name: str, call: Call, scope: str, wrt: str | None, options: dict) -> list[dict]:
    """Return the rows of one module, one for each sequence, or one that says why there is none."""
    row = dict.fromkeys(COLUMNS) | {"layer": name, "sequence": 0, "kind": call.kind}
    try:
        fn = captured(call, wrt)
    except _REFUSALS as error:
        return [row | _refused(error)]
    note = "; ".join(
        filter(None, [remarks(call.module) if scope == "attention" else "", fn.remark])
    )
    varied, fixed = fn.said()
    row |= {"shape": tuple(fn.X.shape[-2:]), "varied": varied, "fixed": fixed, "note": note}
    layer = None
    if scope == "attention":
        with suppress(*_REFUSALS):  # of an Attention the Jacobian is faster
            layer = read(fn)
    try:
        found = _numbers(layer or fn, fn.X, note, options)
    except _REFUSALS as error:
        found = [_refused(error)]
        members = len(fn.X) if fn.X.ndim > 2 else 1
        if members > 1:
            found = [_of_member(fn, i, note, options) for i in range(members)]
    return [row | {"sequence": i} | one for i, one in enumerate(found)]


def _of_member(fn: Captured, member: int, note: str, options: dict) -> dict:
    """Return the numbers of one sequence of a batch, with the others held fixed."""
    try:
        part = fn.of_member(member)
        return _numbers(part, part.X, note, options)[0]
    except _REFUSALS as error:
        return _refused(error)


def _refused(error: Exception) -> dict:
    return {"converged": False, "note": f"not measured: {' '.join(str(error).split())}"}


def _numbers(f: Callable, X: Tensor, note: str, options: dict) -> list[dict]:
    """Return the numbers of each sequence."""
    found = local_lipschitz(f, X, **options)
    names = {"sigma": "value", "lower": "lower", "upper": "upper", "converged": "converged"}
    numbers = []
    for r in found if found.value.ndim else [found]:
        one = {column: getattr(r, name).item() for column, name in names.items()}
        said = "; ".join(filter(None, [note, r.remark]))
        numbers.append(one | {"probability": r.probability, "note": said})
    return numbers


def versions() -> dict[str, str]:
    """Return the versions of all that the numbers depend on, to be stored with them."""
    found = {name: metadata.version(name) for name in ("torch", "transformers", "numpy", "scipy")}
    return {"lipcore": lipcore.__version__, "python": platform.python_version()} | found
