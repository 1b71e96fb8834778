"""Checks of arguments; every message names the argument, what was expected, and what came."""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor

from lipcore._heads import within_window


def require(ok: object, name: str, expected: str, got: object, error: type = ValueError) -> None:
    """Raise an error that says what was expected and what came, unless ``ok`` is true."""
    if not ok:
        raise error(f"{name}: expected {expected}, got {got}")


def check_real_tensor(name: str, value: object, *, ndim=None, min_ndim=0) -> Tensor:
    """Return ``value`` if it is a finite float32 or float64 tensor of that rank, else raise."""
    require(isinstance(value, Tensor), name, "a torch.Tensor", type(value).__name__, TypeError)
    is_dense = value.layout == torch.strided and not (value.is_nested or value.is_meta)
    got = "a nested one: pad it" if value.is_nested else f"{value.layout} on {value.device}"
    require(is_dense, name, "a dense tensor with entries", got, TypeError)
    cure = "convert it first: .double() for claims, .float() for speed"
    got = f"{str(value.dtype).removeprefix('torch.')} ({cure})"
    is_real = value.dtype in (torch.float32, torch.float64)
    require(is_real, name, "float32 or float64", got, TypeError)
    got = f"shape {tuple(value.shape)}"
    require(ndim in (None, value.ndim), name, f"{ndim} dimensions", got)
    require(value.ndim >= min_ndim, name, f"at least {min_ndim} dimensions", got)
    extremes = value.detach().aminmax() if value.numel() else ()
    require(all(map(math.isfinite, extremes)), name, "finite entries", "NaN or infinity")
    return value


def check_square(name: str, value: object) -> Tensor:
    """Return ``value`` if it is a finite square matrix, else raise."""
    rows, columns = check_real_tensor(name, value, ndim=2).shape
    require(rows == columns > 0, name, "a square matrix with rows", f"shape ({rows}, {columns})")
    return value


def check_tokens(X: object, d: int | None = None, name: str = "X", layer=None) -> Tensor:
    """Return ``X`` if it is a finite (…, n, d) tensor with n ≥ 1, of a layer's kind, else raise."""
    shape = tuple(check_real_tensor(name, X, min_ndim=2).shape)
    require(shape[-2] > 0, name, "at least one token", f"shape {shape}")
    require(d in (None, shape[-1]), name, f"tokens of dimension {d}", f"shape {shape}")
    require(X.numel(), name, "a non-empty tensor", f"shape {shape}")
    if layer is not None:
        check_same_kind(name, X, layer.query, "the attention's weights")
    return X


def check_same_kind(name: str, value: Tensor, reference: Tensor, reference_name: str) -> None:
    """Refuse tensors of different dtype or device: silent promotion hides a loss of accuracy."""
    one, other = (f"{x.dtype} on {x.device}" for x in (value, reference))
    if one != other:
        raise TypeError(f"{name} is {one} but {reference_name} is {other}: convert one of them")


def check_scores(queries: Tensor, keys: Tensor) -> None:
    """Refuse scores that may overflow (Cauchy–Schwarz): their softmax would be NaN."""
    largest = queries.detach().norm(dim=-1).amax() * keys.detach().norm(dim=-1).amax()
    expected = f"tokens whose scores are finite in {queries.dtype}"
    require(torch.isfinite(largest), "X", expected, "scores that overflow")


def check_number(name, value, *, minimum=-math.inf, maximum=math.inf, strict=False) -> float:
    """Return ``value`` as a float if it is a finite real number in the stated range, else raise."""
    if isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    require(is_real, name, "a real number", type(value).__name__, TypeError)
    number = float(value)
    require(math.isfinite(number), name, "a finite number", number)
    above = f"{'more than' if strict else 'at least'} {minimum:g}"
    below = f" and at most {maximum:.12g}" if math.isfinite(maximum) else ""
    is_inside = (number > minimum if strict else number >= minimum) and number <= maximum
    require(is_inside, name, f"a number {above}{below}", f"{number:g}")
    return number


def check_count(name: str, value: object, *, minimum: int = 1) -> int:
    """Return ``value`` as an int if it is a whole number at least ``minimum``, else raise."""
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    is_whole = is_integer or (isinstance(value, float) and value.is_integer())
    require(is_whole, name, "a whole number", repr(value), TypeError)
    require(value >= minimum, name, f"at least {minimum}", int(value))
    return int(value)


def check_head(A: object, V: object) -> tuple[Tensor, Tensor]:
    """Return A and V if they are a head's matrices, (d, d) and (p, d) of one kind, else raise."""
    d = len(check_square("A", A))
    check_same_kind("V", check_real_tensor("V", V, ndim=2), A, "A")
    require(V.shape[1] == d, "V", f"{d} columns as A has", f"shape {tuple(V.shape)}")
    return A, V


def check_layer(layer) -> None:
    """Refuse an Attention whose weights, biases, gates, tables or numbers do not fit together."""
    weights = [check_real_tensor(x, getattr(layer, x), ndim=3) for x in ("query", "key", "value")]
    (heads, k, d), (key_heads, _, memory_d), (_, p, _) = shapes = [tuple(x.shape) for x in weights]
    is_full = all(x.numel() for x in weights)
    require(is_full, "query, key, value", "non-empty tensors", f"shapes {shapes}")
    require(heads % key_heads == 0, "key", f"a number of heads that divides {heads}", key_heads)
    require(layer.rotary is None or k % 2 == 0, "rotary", "an even head dimension k", f"k={k}")
    has_output = layer.output is not None
    is_beside = has_output or layer.output_bias is None
    require(is_beside, "output_bias", "an output beside it", "output=None")
    q = len(check_real_tensor("output", layer.output, ndim=2)) if has_output else None
    # a gate is one number for each head, or one for each of its p outputs
    gate = layer.gate_bias if layer.gate is None else layer.gate
    gates = 1 if getattr(gate, "shape", ())[1:2] == (1,) else p
    expected = {"key": (key_heads, k, memory_d), "value": (key_heads, p, memory_d)}
    expected |= {"output": (q, heads * p), "output_bias": (q,), "query_bias": (heads, k)}
    expected |= {"key_bias": (key_heads, k), "value_bias": (key_heads, p), "rotary": (k // 2,)}
    expected |= {"gate": (heads, gates, d), "gate_bias": (heads, gates)}
    for name, shape in expected.items():
        tensor = getattr(layer, name)
        if tensor is not None:
            check_same_kind(name, check_real_tensor(name, tensor), layer.query, "query")
            require(tensor.shape == shape, name, f"shape {shape}", tuple(tensor.shape))
    if layer.softcap is not None:
        check_number("softcap", layer.softcap, minimum=0, strict=True)
    if layer.window is not None:
        check_count("window", layer.window)
    for name in ("query_norm", "key_norm"):
        norm = getattr(layer, name)
        is_map = norm is None or callable(norm)
        require(is_map, name, "a callable", type(norm).__name__, TypeError)
    _check_tables(layer)


def _check_tables(layer) -> None:
    """Refuse masks, biases, masses and sinks that do not fit, or that leave a row without a key."""
    if layer.sinks is not None:
        shape = tuple(_check_entries("sinks", layer).shape)
        expected = f"a number for each of {layer.heads} heads"
        require(shape == (layer.heads,), "sinks", expected, f"shape {shape}")
    sizes = {name: _size_of_table(name, layer) for name in ("mask", "bias", "log_weights")}
    for place in (0, 1):
        several = {name: size[place] for name, size in sizes.items() if size[place] > 1}
        fit = len({*several.values()}) <= 1
        require(fit, ", ".join(several), "one number of tokens", [*several.values()])
    rows, columns = (max(size) for size in zip(*sizes.values(), strict=True))
    if layer.causal or layer.window is not None:  # queries and keys are of one sequence
        fit = min(rows, columns) == 1 or rows == columns
        expected = "square tables beside causal=True or a window"
        require(fit, "mask, bias", expected, f"({rows}, {columns})")
        rows = max(rows, columns)
    if any(getattr(layer, name) is not None for name in sizes):
        _check_rows(layer, rows, columns)


def _check_entries(name: str, layer) -> Tensor:
    """Return a table of the layer if it is of its kind and without +∞, which no softmax stands."""
    table = getattr(layer, name)
    require(isinstance(table, Tensor), name, "a torch.Tensor", type(table).__name__, TypeError)
    if name == "mask":
        require(table.dtype == torch.bool, name, "a boolean tensor", table.dtype)
    else:
        check_same_kind(name, table, layer.query, "query")
        require((table < math.inf).all(), name, "numbers below +infinity", "some that are not")
    return table


def _size_of_table(name: str, layer) -> tuple[int, int]:
    """Return for how many queries and keys a table is; 1 stands for any number."""
    if getattr(layer, name) is None:
        return 1, 1
    shape = tuple(_check_entries(name, layer).shape)
    if name == "log_weights":
        require(len(shape) == 1, name, "a vector", f"shape {shape}")
        return 1, *shape
    fits = len(shape) >= 2 and (len(shape) == 2 or shape[-3] in (1, layer.heads))
    require(fits, name, f"a shape broadcastable to (…, {layer.heads}, n, n)", shape)
    return shape[-2:]


def _check_rows(layer, rows: int, columns: int) -> None:
    """Refuse tables that together leave a row of scores without a visible key."""
    masses = None if layer.log_weights is None else layer.log_weights > -math.inf
    bias = None if layer.bias is None else layer.bias > -math.inf
    tables = [x for x in (layer.mask, bias) if x is not None and not bool(x.all())]
    if not tables and layer.window is None:
        # masses alone: the first key decides if causal, else any of them, without n × n entries
        seen = torch.ones(1, 1) if masses is None else masses[None, : 1 if layer.causal else None]
    else:
        seen = torch.ones(rows, columns, dtype=torch.bool, device=layer.query.device)
        seen = seen.tril_() if layer.causal else seen
        if layer.window is not None:
            seen &= within_window(layer.window, 0, rows, columns, seen.device)
        for table in [*tables, *([] if masses is None else [masses])]:
            seen = seen & table
    blind = (~seen.any(-1)).nonzero()[:1].flatten().tolist()
    names = "mask, bias, log_weights"
    require(not blind, names, "a visible key in every row", f"none in row {blind[-1:]}")


def check_fits(layer, X: Tensor, memory: Tensor | None = None) -> None:
    """Refuse tokens (…, n, d) whose number or batch is not that of the tables.

    Queries come from X and keys from ``memory``, which is X itself if left out.
    """
    names = ("X", "X") if memory is None else ("queries", "memory")
    sizes = (X.shape[-2], (X if memory is None else memory).shape[-2])
    shape = (*X.shape[:-2], layer.heads, *sizes)
    if layer.log_weights is not None:
        n = len(layer.log_weights)
        require(sizes[1] == n, names[1], f"{n} tokens as log_weights has", sizes[1])
    for name in ("mask", "bias"):
        table = getattr(layer, name)
        if table is None:
            continue
        for who, size, n in zip(names, table.shape[-2:], sizes, strict=True):
            require(size in (1, n), who, f"{size} tokens as {name} has", n)
        # dimensions in front are compared from the last on, as broadcasting does
        lead = zip(table.shape[:-2][::-1], shape[-3::-1], strict=False)
        fits = table.ndim <= len(shape) and all(size in (1, n) for size, n in lead)
        got = f"{tuple(X.shape)} beside a {name} of shape {tuple(table.shape)}"
        require(fits, "X", f"a batch that the {name} is for", got)
