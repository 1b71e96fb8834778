"""Numbers as a person writes them, for the sentences and tables of the book.

Each function returns a plain string, with a true minus sign and a comma between thousands. A
page glues the string, so that what a cell computed stands in the sentence as it should be read.
"""

from __future__ import annotations

import math

__all__ = ["count", "decimal", "percent", "power"]

MINUS = "\N{MINUS SIGN}"
SPACE = "\N{NO-BREAK SPACE}"

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def decimal(x: float, digits: int = 2) -> str:
    """Return a number with the given number of digits after the point.

    Parameters
    ----------
    x : float
        Finite; a tensor or array of one element will do.
    digits : int
        Digits after the point.

    Returns
    -------
    str
        The number; one that rounds to zero has no sign.

    Raises
    ------
    ValueError
        If x is not a finite number.

    Examples
    --------
    >>> decimal(-0.0123), decimal(7252.34, 1), decimal(-0.001)
    ('−0.01', '7,252.3', '0.00')
    """
    text = f"{_finite(x):,.{digits}f}"
    return _signed(text if text.strip("-0.,") else text.lstrip("-"))


def power(x: float, digits: int = 0) -> str:
    """Return a number times a power of ten.

    Parameters
    ----------
    x : float
        Finite.
    digits : int
        Digits after the point of the factor.

    Returns
    -------
    str
        The number; without a power of ten where the power is zero.

    Raises
    ------
    ValueError
        If x is not a finite number.

    Examples
    --------
    >>> power(60_000), power(3.2e-11), power(-1.25e-3, 2), power(0.0), power(4.0)
    ('6×10⁴', '3×10⁻¹¹', '−1.25×10⁻³', '0', '4')
    """
    if _finite(x) == 0:
        return "0"
    factor, _, exponent = f"{float(x):.{digits}e}".partition("e")
    raised = str(int(exponent)).translate(_RAISED)
    return _signed(factor if int(exponent) == 0 else f"{factor}×10{raised}")


def count(n: int) -> str:
    """Return a whole number, with a comma between thousands.

    Raises
    ------
    ValueError
        If n is not a whole number.

    Examples
    --------
    >>> count(98304), count(-12), count(7.0)
    ('98,304', '−12', '7')
    """
    if _finite(n) != int(n):
        raise ValueError(f"n must be a whole number, got {float(n)!r}: use decimal or power")
    return _signed(f"{int(n):,}")


def percent(x: float, digits: int = 0) -> str:
    """Return a share of one as a percentage.

    Raises
    ------
    ValueError
        If x is not a finite number.

    Examples
    --------
    >>> print(percent(0.374), percent(-0.0125, 1), sep=", ")
    37 %, −1.2 %
    """
    return f"{decimal(100 * _finite(x), digits)}{SPACE}%"


def _finite(x: float) -> float:
    value = float(x)
    if not math.isfinite(value):
        raise ValueError(f"a finite number is needed, got {value}")
    return value


def _signed(text: str) -> str:
    return text.replace("-", MINUS)
