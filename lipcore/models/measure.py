"""Measure the attention, the blocks or the whole of a running model, or one layer with bounds."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Iterable
from importlib import metadata

import torch
from torch import Tensor, nn
from tqdm import tqdm

import lipcore
from lipcore._checks import check_count, check_tokens
from lipcore.attention import Attention
from lipcore.bounds import best_upper, layer_upper, local_upper
from lipcore.models.capture import Call, Captured, captured, module_of, record, whole
from lipcore.models.modules import read
from lipcore.models.structure import attention_modules, blocks, remarks
from lipcore.models.table import Table
from lipcore.outputs import check_norm
from lipcore.spectral import local_lipschitz

#: Columns of upper bounds, from the sharpest to the loosest.
BOUNDS = ("local", "best", "general")
#: How the upper end of the bracket holds, see :func:`measure_layer`.
CERTIFICATES = ("probable", "always")

_LARGEST_EXPONENT = math.log(torch.finfo(torch.float64).max)


#: What :func:`measure` measures.
SCOPES = ("attention", "block", "model")


def measure(
    model: nn.Module,
    *args,
    scope: str = "attention",
    layers: int | str | Iterable[int | str] | None = None,
    norm: str = "frobenius",
    tokens: int | slice | None = None,
    tol: float = 1e-4,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
    **inputs,
) -> Table:
    r"""Run a model, and return σ of its attention modules, of its blocks, or of the whole.

    For each of them, σ is the largest singular value of the Jacobian of what
    :func:`~lipcore.models.capture.capture` returns: the module as a map of the tokens that enter it
    in the running model, at these tokens, with masks, padding and positions as they are there.

    Parameters
    ----------
    model : torch.nn.Module, or one from :func:`lipcore.models.load`
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
    norm, tokens
        Which outputs count, as for :func:`lipcore.local_lipschitz`. With ``tokens=-1`` the last one
        alone counts, and with ``norm="token"`` the one that moves most.
    tol : float
        Relative tolerance of σ (:func:`lipcore.spectral_norm`).
    generator : torch.Generator, optional
        Source of the random start of Lanczos; a fixed seed if left out.
    progress : bool, optional
        Whether to show a progress bar. If left out, it is shown on a terminal, once it takes long.

    Returns
    -------
    Table
        One row for each module and sequence, in the order of running, with the columns ``layer``,
        ``kind`` (the class), ``sequence``, ``shape`` (n, d), ``sigma``, ``lower``, ``upper``,
        ``probability``, ``converged`` and ``note``. A module that cannot be measured has a row
        whose note says why. After Ctrl-C the table has the rows so far, and ``complete`` is False.
        Padding belongs to X and to the output as any token does, so that it counts.

    Raises
    ------
    ValueError, TypeError
        If the scope, a layer or the norm is unknown, or the model has no attention or is training.

    Examples
    --------
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 2).eval()
    >>> table = measure(model, torch.zeros(1, 3, 8))
    >>> table["layer"], table["kind"][0], table["shape"][0], table["converged"]
    (['layers.0.self_attn', 'layers.1.self_attn'], 'MultiheadAttention', (3, 8), [True, True])
    """
    if scope not in SCOPES:
        raise ValueError(f"scope: expected one of {', '.join(SCOPES)}, got {scope!r}")
    options = {"norm": check_norm(norm), "tokens": tokens, "tol": tol, "generator": generator}
    model = module_of(model)
    calls = _calls(model, scope, layers, args, inputs)
    table = Table(f"{scope} of {type(model).__name__}, σ to {tol:g} relative", complete=False)
    hidden = None if progress is None else not progress
    with tqdm(calls, desc=scope, delay=2, leave=False, disable=hidden) as bar:
        try:
            for name, call in bar:
                table.rows += _rows(name, call, scope, options)
        except KeyboardInterrupt:
            return table
    table.complete = True
    return table


def _calls(model, scope: str, layers, args: tuple, inputs: dict) -> list[tuple[str, Call]]:
    """Run the model, and return what is to be measured, in the order of running."""
    modules = attention_modules(model) if scope == "attention" else blocks(model)
    if not modules:
        cure = "name the submodule: lipcore.capture(model, name, ...)"
        raise ValueError(f"model: expected one with {scope} modules, found none; {cure}")
    if scope == "model":
        if layers is not None:
            raise ValueError(f"layers: expected nothing with scope 'model', got {layers!r}")
        return [(type(model).__name__, whole(model, modules, *args, **inputs))]
    calls = record(model, _chosen(modules, layers), *args, **inputs)
    times = Counter(call.name for call in calls)
    turns: Counter = Counter()
    named = []
    for call in calls:
        several = times[call.name] > 1
        named.append((f"{call.name}#{turns[call.name]}" if several else call.name, call))
        turns[call.name] += 1
    if not named:
        raise ValueError("layers: expected modules that run on these inputs, none of them does")
    return named


def _chosen(modules: list[str], layers) -> list[str]:
    """Return the names of the modules that are asked for by number or name."""
    if layers is None:
        return modules
    wanted = [layers] if isinstance(layers, int | str) else list(layers)
    chosen = []
    for layer in wanted:
        is_name = isinstance(layer, str)
        if is_name and layer not in modules:
            expected = f"names such as {modules[0]!r}"
            raise ValueError(f"layers: expected {expected}, got {layer!r}")
        if not is_name and not 0 <= check_count("layers", layer, minimum=0) < len(modules):
            raise ValueError(f"layers: expected 0 to {len(modules) - 1}, got {layer}")
        chosen.append(layer if is_name else modules[layer])
    return list(dict.fromkeys(chosen))


def _rows(name: str, call: Call, scope: str, options: dict) -> list[dict]:
    """Return the rows of one module, one for each sequence, or one that says why there is none."""
    row = {"layer": name, "kind": call.kind, "sequence": 0, "shape": None, "sigma": None}
    row |= {"lower": None, "upper": None, "probability": None, "converged": False}
    notes = [call.remark, remarks(call.module) if scope == "attention" else ""]
    try:
        fn = captured(call)
        notes.append(fn.remark)
        row["shape"] = tuple(fn.X.shape[-2:])
        found = local_lipschitz(_quicker(fn) if scope == "attention" else fn, fn.X, **options)
    except (ValueError, TypeError, NotImplementedError) as error:
        return [row | {"note": f"not measured: {' '.join(str(error).split())}"}]
    numbers = (found.value, found.lower, found.upper, found.converged)
    columns = [number.reshape(-1).tolist() for number in numbers]
    row |= {"probability": found.probability, "note": "; ".join(filter(None, notes))}
    return [
        row | {"sequence": i, "sigma": s, "lower": low, "upper": up, "converged": done}
        for i, (s, low, up, done) in enumerate(zip(*columns, strict=True))
    ]


def _quicker(fn: Captured) -> Attention | Captured:
    """Return the Attention that a module is, whose Jacobian is faster, or the module itself."""
    try:
        return read(fn)
    except ValueError:
        return fn


def measure_layer(
    attention: Attention,
    X: Tensor,
    *,
    tol: float = 1e-4,
    generator: torch.Generator | None = None,
    bounds: Iterable[str] = BOUNDS,
    certificate: str = "probable",
) -> list[dict]:
    r"""Return σ of a layer at each sequence, with upper bounds.

    The command line prints these rows, and the sweep behind the book stores them.

    Parameters
    ----------
    attention : Attention
        The whole layer, or one head of it.
    X : Tensor, shape (count, n, d)
        The tokens that enter it, for each sequence.
    tol : float
        Relative tolerance of σ.
    generator : torch.Generator, optional
        Source of the random start of Lanczos; a fixed seed if left out.
    bounds : iterable of str
        Which of :data:`BOUNDS` to compute; ``local`` takes longer than σ itself.
    certificate : {"probable", "always"}
        Whether the upper end of the bracket holds with the row's ``probability`` over the random
        start, or always; if always, it is the local bound, which is much further away.

    Returns
    -------
    list of dict
        One row for each sequence, with the columns

        * ``sequence``: its number, from 0;
        * ``sigma``, ``lower``, ``upper``, ``probability``, ``residual``, ``iterations``,
          ``converged``: see :class:`~lipcore.results.SpectralNorm`;
        * ``released``: :math:`\|D_Xf^\top f(X)\|^{1/2}`, what the paper's released scripts compute
          in place of σ;
        * ``radius_rms``, ``radius_max``: root mean square and maximum of the norms of the tokens;
        * ``local``: :func:`~lipcore.bounds.local_upper` at the sequence itself;
        * ``best``: :func:`~lipcore.bounds.best_upper`, the least that the book proves for every
          sequence of n tokens in the ball of radius ``radius_max``;
        * ``general``: the bound that Castin, Ablin & Peyré 2024 publish for these sequences
          (:prf:ref:`thm-upper-general`), by :func:`~lipcore.bounds.layer_upper`;
        * ``log_best``, ``log_general``: their logarithms, since they may be beyond float64's range.

        Bounds that were not asked for are NaN.

    Raises
    ------
    ValueError, TypeError
        If X does not fit the layer, or a bound or certificate is unknown.

    Examples
    --------
    >>> import torch
    >>> layer = Attention.from_matrices(torch.eye(2), torch.eye(2))
    >>> (row,) = measure_layer(layer, torch.ones(1, 3, 2))  # equal tokens are averaged: σ = 1
    >>> round(row["sigma"], 4), row["best"] < row["general"]
    (1.0, True)
    """
    bounds = check_bounds(bounds)
    if certificate not in CERTIFICATES:
        raise ValueError(
            f"certificate: expected one of {', '.join(CERTIFICATES)}, got {certificate!r}"
        )
    if check_tokens(X, attention.d).ndim != 3:
        raise ValueError(f"X: expected shape (count, n, d), got {tuple(X.shape)}")
    always = certificate == "always"
    local = local_upper(attention, X) if always or "local" in bounds else None
    found = local_lipschitz(
        attention, X, tol=tol, generator=generator, upper_bound=local if always else None
    )
    norms = X.double().norm(dim=-1)
    columns = {
        "sigma": found.value,
        "lower": found.lower,
        "upper": found.upper,
        "residual": found.residual,
        "iterations": found.iterations,
        "converged": found.converged,
        "released": attention.jacobian(X).rmatvec(attention(X)).flatten(1).norm(dim=-1).sqrt(),
        "radius_rms": norms.square().mean(-1).sqrt(),
        "radius_max": norms.amax(-1),
        "local": local if "local" in bounds else torch.full_like(found.value, math.nan),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [
        {"sequence": i, "probability": found.probability}
        | (row := dict(zip(columns, values, strict=True)))
        | _ball_bounds(attention, X.shape[-2], row["radius_max"], bounds)
        for i, values in enumerate(rows)
    ]


def check_bounds(bounds: Iterable[str]) -> tuple[str, ...]:
    """Return the names of bounds as a tuple, or raise ValueError if one is unknown."""
    names = (bounds,) if isinstance(bounds, str) else tuple(bounds)
    for name in names:
        if name not in BOUNDS:
            raise ValueError(f"bounds: expected some of {', '.join(BOUNDS)}, got {name!r}")
    return names


def _ball_bounds(attention: Attention, n: int, radius: float, bounds: tuple[str, ...]) -> dict:
    """Return bounds of the layer for all sequences of n tokens in a ball, and their logarithms."""
    logarithms = {"best": math.nan, "general": math.nan}
    if "best" in bounds:
        logarithms["best"] = best_upper(attention=attention, n=n, radius=radius, log=True)
    if "general" in bounds:
        logarithms["general"] = layer_upper(attention, n=n, radius=radius, log=True)
    values = {name: _exponential(value) for name, value in logarithms.items()}
    return values | {f"log_{name}": value for name, value in logarithms.items()}


def _exponential(value: float) -> float:
    return math.inf if value > _LARGEST_EXPONENT else math.exp(value)


def versions() -> dict[str, str]:
    """Return the versions of all that the numbers depend on, to be stored with them.

    Examples
    --------
    >>> sorted(versions())
    ['lipcore', 'numpy', 'python', 'scipy', 'torch', 'transformers']
    """
    found = {name: metadata.version(name) for name in ("torch", "transformers", "numpy", "scipy")}
    return {"lipcore": lipcore.__version__, "python": platform.python_version()} | found
