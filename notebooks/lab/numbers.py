"""Numbers as a person writes them, for the sentences and tables of the book.

Each function returns a plain string, with a true minus sign and a comma between thousands. A
page glues the string, so that what a cell computed stands in the sentence as it should be read.
Behind "at least" a number is rounded down, behind "at most" up: the sentence stays true.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

MINUS = "\N{MINUS SIGN}"
SPACE = "\N{NO-BREAK SPACE}"

_EXACT = Context(prec=2000)  # digits enough for every float
_MODES = {"nearest": ROUND_HALF_EVEN, "up": ROUND_CEILING, "down": ROUND_FLOOR}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def decimal(x: float, digits: int = 2, *, rounding: str = "nearest") -> str:
    """Return a finite number, or a tensor or array of one, with some digits after the point.

    ``rounding`` is "nearest", "up" (for "at most") or "down" (for "at least").

    >>> decimal(-0.0123), decimal(7252.34, 1), decimal(-0.001)
    ('−0.01', '7,252.3', '0.00')
    >>> decimal(0.947, rounding="down"), decimal(1.234, rounding="up"), decimal(0.15, rounding="up")
    ('0.94', '1.24', '0.15')
    """
    return _fixed(_exact(x, rounding), digits, rounding)


def power(x: float, digits: int = 0, *, rounding: str = "nearest") -> str:
    """Return a number times a power of ten, rounded as by :func:`decimal`.

    >>> power(60_000), power(3.2e-11), power(-1.25e-3, 2), power(0.0), power(4.0)
    ('6×10⁴', '3×10⁻¹¹', '−1.25×10⁻³', '0', '4')
    >>> power(3.2e-11, rounding="up"), power(9.6e3, rounding="down")
    ('4×10⁻¹¹', '9×10³')
    """
    value = _exact(x, rounding)
    if value == 0:
        return "0"
    last = Decimal(1).scaleb(value.adjusted() - digits)
    value = value.quantize(last, _MODES[rounding], _EXACT)
    factor, _, exponent = f"{value:.{digits}e}".partition("e")
    if int(exponent) != 0:
        factor += "×10" + str(int(exponent)).translate(_RAISED)
    return factor.replace("-", MINUS)


def count(n: int) -> str:
    """Return a whole number, with a comma between thousands: 98,304."""
    value = _exact(n, "nearest")
    if value != int(value):
        raise ValueError(f"n: expected a whole number, got {n!r}: use decimal or power")
    return _fixed(value, 0, "nearest")


def percent(x: float, digits: int = 0, *, rounding: str = "nearest") -> str:
    """Return a share of one as a percentage, rounded as by :func:`decimal`.

    >>> print(percent(0.374), percent(-0.0125, 1), sep=", ")
    37 %, −1.2 %
    >>> print(percent(0.9473, rounding="down"), percent(0.154, rounding="up"), sep=", ")
    94 %, 16 %
    """
    # one hundred times the float 0.29 is below 29, and would be rounded down to 28
    share = _exact(100 * float(x) if rounding == "nearest" else x, rounding)
    if rounding != "nearest":
        share = 100 * share
    return f"{_fixed(share, digits, rounding)}{SPACE}%"


def _exact(x: float, rounding: str) -> Decimal:
    """Return a float as it is, or for limits the shortest number that stands for it: 0.15 is 0.15."""
    value = float(x)
    if not math.isfinite(value):
        raise ValueError(f"x: expected a finite number, got {value}")
    return Decimal(value if rounding == "nearest" else repr(value))


def _fixed(value: Decimal, digits: int, rounding: str) -> str:
    value = value.quantize(Decimal(1).scaleb(-digits), _MODES[rounding], _EXACT)
    text = f"{value:,f}" if value else f"{value.copy_abs():f}"
    return text.replace("-", MINUS)
