"""Checks that the tensors of a layer fit together; every message names the argument."""

from __future__ import annotations

from lipcore._checks import check_count, check_number, check_real_tensor, check_same_kind


def check_shapes(layer) -> None:
    """Refuse weights, biases, gates and numbers of an Attention that do not fit one another."""
    for name in ("query", "key", "value"):
        check_real_tensor(name, getattr(layer, name), ndim=3)
    heads, k, d = layer.query.shape
    key_heads, memory_d = layer.key.shape[0], layer.key.shape[2]
    p = layer.value.shape[1]
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
    expected |= _gates(layer, heads, p, d)
    for name, shape in expected.items():
        tensor = getattr(layer, name)
        if tensor is None:
            continue
        check_real_tensor(name, tensor)
        check_same_kind(name, tensor, layer.query, "query")
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")
    if layer.softcap is not None:
        check_number("softcap", layer.softcap, minimum=0, strict=True)
    if layer.window is not None:
        check_count("window", layer.window)
    for name in ("query_norm", "key_norm"):
        if not callable(getattr(layer, name) or abs):
            got = type(getattr(layer, name)).__name__
            raise TypeError(f"{name}: expected a callable, got {got}")


def _gates(layer, heads: int, p: int, d: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of gates: one number for each head, or one for each of its p outputs."""
    given = layer.gate_bias if layer.gate is None else layer.gate
    if given is None:
        return {}
    name = "gate_bias" if layer.gate is None else "gate"
    check_real_tensor(name, given, min_ndim=2)
    numbers = given.shape[1]
    if numbers not in (1, p):
        expected = f"1 or {p} numbers for each head"
        raise ValueError(f"{name}: expected {expected}, got shape {tuple(given.shape)}")
    return {"gate": (heads, numbers, d), "gate_bias": (heads, numbers)}
