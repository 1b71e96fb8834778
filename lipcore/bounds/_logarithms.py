"""Arithmetic on logarithms, in which every closed form is evaluated so that nothing overflows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable

from scipy.optimize import minimize_scalar

from lipcore._checks import check_count, check_number


def check_length(n: int | None) -> int | None:
    """Return a number of tokens after checking it; None stands for every number."""
    return None if n is None else check_count("n", n)


def sizes(radius: float, norm_a: float, norm_v: float) -> tuple[float, float]:
    """Return (log a, log ‖V‖) with a = ‖A‖R² and log 0 = −∞, after checking the arguments."""
    return scaled(radius, norm_a, "norm_a"), norm(norm_v)


def scaled(radius: float, size: float, name: str) -> float:
    """Return log(size·R²), after checking the arguments."""
    radius = check_number("radius", radius, minimum=0)
    return norm(size, name) + 2 * log(radius)


def norm(value: float, name: str = "norm_v") -> float:
    """Return the log of a norm, after checking it."""
    return log(check_number(name, value, minimum=0))


def log(x: float) -> float:
    """Return log x, with log 0 = −∞."""
    return math.log(x) if x > 0 else -math.inf


def exp(x: float) -> float:
    """Return e^x, or infinity beyond the range of float64."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def add(x: float, y: float) -> float:
    """Return log(e^x + e^y)."""
    high = max(x, y)
    low = min(x, y)
    if low == -math.inf or high == math.inf:
        return high
    return high + math.log1p(math.exp(low - high))


def total(logs: Iterable[float]) -> float:
    """Return log Σ e^x."""
    return functools.reduce(add, logs, -math.inf)


def times(*factors: float) -> float:
    """Return log of a product, in which a zero factor wins over one beyond the range of float64."""
    return -math.inf if -math.inf in factors else sum(factors)


def one_plus(*factors: float) -> float:
    """Return log(1 + the product of the factors)."""
    return add(0.0, times(*factors))


def exp_unless_log(log_value: float, log: bool) -> float:
    """Return the logarithm itself or what it stands for."""
    return log_value if log else exp(log_value)


def with_own_query(log_v: float, log_mixing: float, log_a: float, log: bool) -> float:
    """Return ‖V‖ (mixing + a), where ``mixing`` bounds others' keys too and a is the own query."""
    return exp_unless_log(times(log_v, add(log_mixing, log_a)), log)


def minimum_on(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the least value, by Brent's method, of a function with one valley in [low, high]."""
    # where the valley is smooth, its floor is then known to rounding
    options = {"xatol": 1e-9 * (high - low)}
    result = minimize_scalar(function, bounds=(low, high), method="bounded", options=options)
    return float(result.fun)
