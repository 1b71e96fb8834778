"""Checks of arguments; every message names the argument, what was expected, and what came."""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor

from lipcore._heads import within_window


def check_real_tensor(
    name: str, value: object, *, ndim: int | None = None, min_ndim: int = 0
) -> Tensor:
    """Return ``value`` if it is a finite float32 or float64 tensor of that rank, else raise."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")
    if value.is_nested or value.layout != torch.strided or value.is_meta:
        kind = "on the meta device" if value.is_meta else f"of layout {value.layout}"
        kind = "that is nested: pad it" if value.is_nested else kind
        raise TypeError(f"{name}: expected a dense tensor with entries, got one {kind}")
    if value.dtype not in (torch.float32, torch.float64):
        got = str(value.dtype).removeprefix("torch.")
        cure = "convert it first: .double() for claims, .float() for speed"
        raise TypeError(f"{name}: expected float32 or float64, got {got} ({cure})")
    shape = tuple(value.shape)
    if ndim is not None and value.ndim != ndim:
        raise ValueError(f"{name}: expected {ndim} dimensions, got shape {shape}")
    if value.ndim < min_ndim:
        raise ValueError(f"{name}: expected at least {min_ndim} dimensions, got shape {shape}")
    if value.numel() and not all(math.isfinite(extreme) for extreme in value.detach().aminmax()):
        raise ValueError(f"{name}: expected finite entries, got NaN or infinity")
    return value


def check_square(name: str, value: object) -> Tensor:
    """Return ``value`` if it is a finite square matrix, else raise."""
    matrix = check_real_tensor(name, value, ndim=2)
    shape = tuple(matrix.shape)
    if shape[0] != shape[1]:
        raise ValueError(f"{name}: expected a square matrix, got shape {shape}")
    if shape[0] == 0:
        raise ValueError(f"{name}: expected at least one row, got shape {shape}")
    return matrix


def check_tokens(X: object, d: int | None = None, name: str = "X") -> Tensor:
    """Return ``X`` if it is a finite (…, n, d) tensor with n ≥ 1, else raise."""
    tokens = check_real_tensor(name, X, min_ndim=2)
    shape = tuple(tokens.shape)
    if shape[-2] == 0:
        raise ValueError(f"{name}: expected at least one token, got shape {shape}")
    if d is not None and shape[-1] != d:
        raise ValueError(f"{name}: expected tokens of dimension {d}, got shape {shape}")
    if tokens.numel() == 0:
        raise ValueError(f"{name}: expected a non-empty tensor, got shape {shape}")
    return tokens


def check_same_kind(name: str, value: Tensor, reference: Tensor, reference_name: str) -> None:
    """Refuse tensors of different dtype or device: silent promotion hides a loss of accuracy."""
    if value.dtype != reference.dtype:
        other = f"{reference_name} is {reference.dtype}"
        raise TypeError(f"{name} is {value.dtype} but {other}: convert one of them")
    if value.device != reference.device:
        other = f"{reference_name} is on {reference.device}"
        raise ValueError(f"{name} is on {value.device} but {other}: move one")


def check_scores(queries: Tensor, keys: Tensor) -> None:
    """Refuse scores that may overflow (Cauchy–Schwarz): their softmax would be NaN."""
    largest = queries.detach().norm(dim=-1).amax() * keys.detach().norm(dim=-1).amax()
    if not bool(torch.isfinite(largest)):
        expected = f"tokens whose scores are finite in {queries.dtype}"
        raise ValueError(f"X: expected {expected}, got scores that overflow")


def check_number(
    name: str, value: object, *, minimum=-math.inf, maximum=math.inf, strict=False
) -> float:
    """Return ``value`` as a float if it is a finite real number in the stated range, else raise."""
    if isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected a real number, got {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name}: expected a finite number, got {number}")
    outside = number <= minimum if strict else number < minimum
    if outside or number > maximum:
        above = f"{'more than' if strict else 'at least'} {minimum:g}"
        below = f" and at most {maximum:.12g}" if math.isfinite(maximum) else ""
        raise ValueError(f"{name}: expected a number {above}{below}, got {number:g}")
    return number


def check_count(name: str, value: object, *, minimum: int = 1) -> int:
    """Return ``value`` as an int if it is a whole number at least ``minimum``, else raise."""
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer and not (isinstance(value, float) and value.is_integer()):
        raise TypeError(f"{name}: expected a whole number, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name}: expected at least {minimum}, got {int(value)}")
    return int(value)


def check_head(A: object, V: object) -> tuple[Tensor, Tensor]:
    """Return A and V if they are a head's matrices, (d, d) and (p, d) of one kind, else raise."""
    A = check_square("A", A)
    V = check_real_tensor("V", V, ndim=2)
    check_same_kind("V", V, A, "A")
    if V.shape[1] != A.shape[0]:
        raise ValueError(f"V: expected {A.shape[0]} columns as A has, got shape {tuple(V.shape)}")
    return A, V


def check_layer(layer) -> None:
    """Refuse an Attention whose weights, biases, gates, tables or numbers do not fit together."""
    _check_weights(layer)
    _check_tables(layer)


def _check_weights(layer) -> None:
    """Refuse weights, biases, gates and numbers that do not fit one another."""
    for name in ("query", "key", "value"):
        check_real_tensor(name, getattr(layer, name), ndim=3)
    heads, k, d = layer.query.shape
    key_heads, p, memory_d = layer.key.shape[0], layer.value.shape[1], layer.key.shape[2]
    if min(heads, key_heads, k, d, p, memory_d) == 0:
        shapes = [tuple(part.shape) for part in (layer.query, layer.key, layer.value)]
        raise ValueError(f"query, key, value: expected non-empty tensors, got shapes {shapes}")
    if heads % key_heads:
        allowed = f"a number of heads that divides {heads}"
        raise ValueError(f"key: expected {allowed}, got {key_heads}")
    if layer.rotary is not None and k % 2:
        raise ValueError(f"rotary: expected an even head dimension k, got k={k}")
    if layer.output is None and layer.output_bias is not None:
        raise ValueError("output_bias: expected an output beside it, got output=None")
    if layer.output is not None:
        check_real_tensor("output", layer.output, ndim=2)
    q = None if layer.output is None else layer.output.shape[0]
    expected = {"key": (key_heads, k, memory_d), "value": (key_heads, p, memory_d)}
    expected |= {"output": (q, heads * p), "output_bias": (q,), "query_bias": (heads, k)}
    expected |= {"key_bias": (key_heads, k), "value_bias": (key_heads, p), "rotary": (k // 2,)}
    expected |= _shapes_of_gates(layer, heads, p, d)
    for name, shape in expected.items():
        tensor = getattr(layer, name)
        if tensor is not None:
            check_same_kind(name, check_real_tensor(name, tensor), layer.query, "query")
            if tuple(tensor.shape) != shape:
                raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")
    if layer.softcap is not None:
        check_number("softcap", layer.softcap, minimum=0, strict=True)
    if layer.window is not None:
        check_count("window", layer.window)
    for name in ("query_norm", "key_norm"):
        norm = getattr(layer, name)
        if norm is not None and not callable(norm):
            raise TypeError(f"{name}: expected a callable, got {type(norm).__name__}")


def _shapes_of_gates(layer, heads: int, p: int, d: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of gates: one number for each head, or one for each of its p outputs."""
    name = "gate_bias" if layer.gate is None else "gate"
    given = getattr(layer, name)
    if given is None:
        return {}
    numbers = check_real_tensor(name, given, min_ndim=2).shape[1]
    if numbers not in (1, p):
        expected = f"1 or {p} numbers for each head"
        raise ValueError(f"{name}: expected {expected}, got shape {tuple(given.shape)}")
    return {"gate": (heads, numbers, d), "gate_bias": (heads, numbers)}


def _check_tables(layer) -> None:
    """Refuse masks, biases, masses and sinks that do not fit, or that leave a row without a key."""
    sizes = {name: _size_of_table(name, layer) for name in ("mask", "bias", "log_weights")}
    sizes = {name: size for name, size in sizes.items() if size is not None}
    for place in (0, 1):
        numbers = {name: size[place] for name, size in sizes.items() if size[place] > 1}
        if len({*numbers.values()}) > 1:
            got = [*numbers.values()]
            raise ValueError(f"{', '.join(numbers)}: expected one number of tokens, got {got}")
    rows, columns = (max((size[i] for size in sizes.values()), default=1) for i in (0, 1))
    one_sequence = layer.causal or layer.window is not None
    if one_sequence and min(rows, columns) > 1 and rows != columns:
        expected = "expected them to be square beside causal=True or a window"
        raise ValueError(f"mask, bias: {expected}, got ({rows}, {columns})")
    sinks = layer.sinks
    if sinks is not None:
        _check_below_infinity("sinks", sinks, layer)
        if tuple(sinks.shape) != (layer.heads,):
            expected = f"a number for each of {layer.heads} heads"
            raise ValueError(f"sinks: expected {expected}, got shape {tuple(sinks.shape)}")
    if sizes:
        _check_rows(layer, max(rows, columns) if one_sequence else rows, columns)


def _check_below_infinity(name: str, table: object, layer) -> None:
    """Refuse what is no tensor of the layer's kind, or +∞, which no softmax stands."""
    if not isinstance(table, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(table).__name__}")
    check_same_kind(name, table, layer.query, "query")
    if not bool((table < math.inf).all()):
        raise ValueError(f"{name}: expected numbers below +infinity")


def _size_of_table(name: str, layer) -> tuple[int, int] | None:
    """Return for how many queries and keys a table is; 1 stands for any number."""
    table = getattr(layer, name)
    if table is None:
        return None
    if name != "mask":
        _check_below_infinity(name, table, layer)
    elif not isinstance(table, Tensor):
        raise TypeError(f"mask: expected a torch.Tensor, got {type(table).__name__}")
    elif table.dtype != torch.bool:
        raise ValueError(f"mask: expected a boolean tensor, got {table.dtype}")
    if name == "log_weights":
        if table.ndim != 1:
            raise ValueError(f"log_weights: expected a vector, got shape {tuple(table.shape)}")
        return 1, len(table)
    if table.ndim < 2 or (table.ndim > 2 and table.shape[-3] not in (1, layer.heads)):
        expected = f"a shape broadcastable to (…, {layer.heads}, n, n)"
        raise ValueError(f"{name}: expected {expected}, got {tuple(table.shape)}")
    return tuple(table.shape[-2:])


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
    has_key = seen.any(-1)
    if not bool(has_key.all()):
        names = "mask, bias, log_weights"
        row = int((~has_key).nonzero()[0, -1])
        raise ValueError(f"{names}: expected a visible key in every row, row {row} has none")


def check_fits(layer, X: Tensor, memory: Tensor | None = None) -> None:
    """Refuse tokens (…, n, d) whose number or batch is not that of the tables.

    Queries come from X and keys from ``memory``, which is X itself if left out.
    """
    names = ("X", "X") if memory is None else ("queries", "memory")
    sizes = (X.shape[-2], (X if memory is None else memory).shape[-2])
    shape = (*X.shape[:-2], layer.heads, *sizes)
    if layer.log_weights is not None and len(layer.log_weights) != sizes[1]:
        expected = f"{len(layer.log_weights)} tokens as log_weights has"
        raise ValueError(f"{names[1]}: expected {expected}, got {sizes[1]}")
    for name in ("mask", "bias"):
        table = getattr(layer, name)
        if table is None:
            continue
        for who, size, n in zip(names, table.shape[-2:], sizes, strict=True):
            if size not in (1, n):
                raise ValueError(f"{who}: expected {size} tokens as {name} has, got {n}")
        lead = table.shape[:-2][::-1]
        fits = all(size in (1, n) for size, n in zip(lead, shape[-3::-1], strict=False))
        if not fits or table.ndim > len(shape):
            got = f"{tuple(X.shape)} beside a {name} of shape {tuple(table.shape)}"
            raise ValueError(f"X: expected a batch that the {name} is for, got {got}")
