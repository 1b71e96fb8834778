"""Checks of arguments; every message names the argument, what was expected, and what came."""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor


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
