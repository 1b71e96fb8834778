"""Numbers as a person writes them, for the sentences and tables of the book.

Each function returns a plain string, with a true minus sign and a comma between thousands. A
page glues the string, so that what a cell computed stands in the sentence as it should be read.
Behind "at least" a number is rounded down, behind "at most" up: the sentence stays true.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

__all__ = ["count", "decimal", "percent", "power"]

MINUS = "\N{MINUS SIGN}"
SPACE = "\N{NO-BREAK SPACE}"

# Digits enough for every float.
_EXACT = Context(prec=2000)
_SIDES = {"nearest": None, "up": ROUND_CEILING, "down": ROUND_FLOOR}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def decimal(x: float, digits: int = 2, *, rounding: str = "nearest") -> str:
    """Return a number with the given number of digits after the point.

    Parameters
    ----------
    x : float
        Finite; a tensor or array of one element will do.
    digits : int
        Digits after the point.
    rounding : {"nearest", "up", "down"}
        "up" for an upper limit ("at most"), towards +∞; "down" for a lower limit ("at least"),
        towards −∞. A number that has these digits already stays as it is.

    Returns
    -------
    str
        The number; one that rounds to zero has no sign.

    Raises
    ------
    ValueError
        If x is not a finite number, or for another word.

    Examples
    --------
    >>> decimal(-0.0123), decimal(7252.34, 1), decimal(-0.001)
    ('−0.01', '7,252.3', '0.00')
    >>> decimal(0.947, rounding="down"), decimal(1.234, rounding="up"), decimal(0.15, rounding="up")
    ('0.94', '1.24', '0.15')
    """
    return _fixed(_finite(x), digits, rounding)


def power(x: float, digits: int = 0, *, rounding: str = "nearest") -> str:
    """Return a number times a power of ten.

    Parameters
    ----------
    x : float
        Finite.
    digits : int
        Digits after the point of the factor.
    rounding : {"nearest", "up", "down"}
        As for :func:`decimal`.

    Returns
    -------
    str
        The number; without a power of ten where the power is zero.

    Raises
    ------
    ValueError
        If x is not a finite number, or for another word.

    Examples
    --------
    >>> power(60_000), power(3.2e-11), power(-1.25e-3, 2), power(0.0), power(4.0)
    ('6×10⁴', '3×10⁻¹¹', '−1.25×10⁻³', '0', '4')
    >>> power(3.2e-11, rounding="up"), power(9.6e3, rounding="down")
    ('4×10⁻¹¹', '9×10³')
    """
    value = _finite(x)
    mode = _mode(rounding)
    if value == 0:
        return "0"
    if mode is not None:
        value = _exact(value)
        last = Decimal(1).scaleb(value.adjusted() - digits)
        value = value.quantize(last, mode, _EXACT)
    factor, _, exponent = f"{value:.{digits}e}".partition("e")
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


def percent(x: float, digits: int = 0, *, rounding: str = "nearest") -> str:
    """Return a share of one as a percentage, rounded as by :func:`decimal`.

    Raises
    ------
    ValueError
        If x is not a finite number, or for another word than there.

    Examples
    --------
    >>> print(percent(0.374), percent(-0.0125, 1), sep=", ")
    37 %, −1.2 %
    >>> print(percent(0.9473, rounding="down"), percent(0.154, rounding="up"), sep=", ")
    94 %, 16 %
    """
    value = _finite(x)
    # One hundred times 0.29 is below 29 in floating point, and would be rounded down to 28.
    share = 100 * value if _mode(rounding) is None else 100 * _exact(value)
    return f"{_fixed(share, digits, rounding)}{SPACE}%"


def _finite(x: float) -> float:
    value = float(x)
    if not math.isfinite(value):
        raise ValueError(f"a finite number is needed, got {value}")
    return value


def _mode(rounding: str) -> str | None:
    if rounding not in _SIDES:
        words = ", ".join(repr(word) for word in _SIDES)
        raise ValueError(f"rounding must be one of {words}, got {rounding!r}")
    return _SIDES[rounding]


def _exact(value: float) -> Decimal:
    """Return the shortest decimal number that stands for the float: 0.15 is 0.15."""
    return Decimal(repr(value))


def _fixed(value: float | Decimal, digits: int, rounding: str) -> str:
    mode = _mode(rounding)
    if mode is not None:
        exact = value if isinstance(value, Decimal) else _exact(value)
        value = exact.quantize(Decimal(1).scaleb(-digits), mode, _EXACT)
    text = f"{value:,.{digits}f}"
    return _signed(text if text.strip("-0.,") else text.lstrip("-"))


def _signed(text: str) -> str:
    return text.replace("-", MINUS)
