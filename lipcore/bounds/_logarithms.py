"""Arithmetic on logarithms, in which every closed form is worked out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from lipcore._checks import check_count, check_number


def log_inputs(n: int, radius: float, norm_a: float, norm_v: float) -> tuple[int, float, float]:
    """Checked (n, log a, log ‖V‖), with log 0 = −∞."""
    n = check_count("n", n)
    return n, log_scaled(radius, norm_a, "norm_a"), log_norm(norm_v)


def log_scaled(radius: float, size: float, name: str) -> float:
    """Checked log(size·R²)."""
    radius = check_number("radius", radius, minimum=0)
    return log_(check_number(name, size, minimum=0)) + 2 * log_(radius)


def log_norm(norm: float, name: str = "norm_v") -> float:
    """Checked log of a norm."""
    return log_(check_number(name, norm, minimum=0))


def log_(x: float) -> float:
    """log x, with log 0 = −∞."""
    return math.log(x) if x > 0 else -math.inf


def exp(x: float) -> float:
    """e^x, infinite past float64's range."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def log_add(x: float, y: float) -> float:
    """log(e^x + e^y)."""
    high, low = max(x, y), min(x, y)
    return high if low == -math.inf or high == math.inf else high + math.log1p(math.exp(low - high))


def log_times(*factors: float) -> float:
    """log of a product from the logarithms of its factors; a factor zero wins over one past float64's range."""
    return -math.inf if -math.inf in factors else sum(factors)


def log_sum(logs: Iterable[float]) -> float:
    """log Σ e^x."""
    total = -math.inf
    for value in logs:
        total = log_add(total, value)
    return total


def finish(log_value: float, log: bool) -> float:
    """Return the logarithm itself or what it stands for."""
    return log_value if log else exp(log_value)


def log_three_terms(log_a: float, log_mixing: float, *, keys: int) -> float:
    """log( (1 + keys·a)·mixing + a ): mixing, others' keys (a multiple of mixing) and own query."""
    return log_add(log_add(0.0, math.log(keys) + log_a) + log_mixing, log_a)


def log_column_sum(n: int, log_a: float) -> float:
    """log( nκ/(n+κ−1) ), the largest column sum of P that scores within 2a of one another allow."""
    a = exp(log_a)
    log_complement = log_(-math.expm1(-2 * a))  # log(1 − 1/κ)
    # 1/(1/κ + (1 − 1/κ)/n): no difference of large logarithms
    return min(max(0.0, -log_add(-2 * a, log_complement - math.log(n))), math.log(n))


def smallest(function: Callable[[float], float], low: float, high: float) -> float:
    """Least value that golden section sees of a function with one valley in [low, high]: a value of the function."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(40):  # where the valley is smooth, its floor is then known to rounding
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return min(at_left, at_right)
