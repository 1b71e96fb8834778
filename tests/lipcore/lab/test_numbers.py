"""Numbers read as a person writes them, and say what was computed."""

import math

import numpy as np
import pytest
import torch

from lab.numbers import count, decimal, percent, power

PERCENT = "\N{NO-BREAK SPACE}%"
DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-")


def read(text: str) -> float:
    """Read a number back, independently of how it was written."""
    text = text.replace(",", "").removesuffix(PERCENT)
    factor, _, exponent = text.partition("×10")
    return float(factor.translate(DIGITS)) * 10.0 ** int(exponent.translate(DIGITS) or 0)


def test_it_is_the_number_to_its_digits():
    for x in (0.0, 1.0, -0.0123, 7252.345, -98304.5, 1e-11, 123456.789):
        assert read(decimal(x, 3)) == round(x, 3)
        assert read(power(x, 2)) == pytest.approx(x, rel=6e-3)


def test_how_it_is_written():
    assert decimal(-0.004) == "0.00" and percent(-0.001) == "0" + PERCENT
    for text in (decimal(-1.5), power(-1e-7), count(-3), percent(-0.5)):
        assert "-" not in text and text.startswith("\N{MINUS SIGN}")
    for make in (torch.tensor, np.float64):
        assert decimal(make(0.5)) == "0.50" and power(make(2e9)) == "2×10⁹"
        assert count(make(2048.0)) == "2,048" and percent(make(0.25)) == "25" + PERCENT


@pytest.mark.parametrize("write", [decimal, power, count, percent])
def test_what_is_no_number_is_refused(write):
    for x in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match=r"^x: "):
            write(x)
    with pytest.raises(ValueError, match=r"^n: "):
        count(2.5)


@pytest.mark.parametrize("write", [decimal, power, percent])
@pytest.mark.parametrize("rounding", ["nearest", "up", "down"])
@pytest.mark.parametrize("hundredths", [0, 7, 15, 28, 29, -57, 58, 113, -115, 201, 819])
def test_a_number_that_has_these_digits_stays(write, hundredths, rounding):
    # Most of these are no binary fractions, and some are moved by a multiplication with 100.
    digits = 0 if write is percent else 2
    found = read(write(hundredths / 100, digits, rounding=rounding))
    assert found == pytest.approx(hundredths * (1 if write is percent else 0.01), rel=1e-15)


@pytest.mark.parametrize(
    ("write", "x", "digits", "down", "up"),
    [
        (decimal, -0.154, 2, "−0.16", "−0.15"),
        (decimal, -0.001, 2, "−0.01", "0.00"),
        (decimal, 2.5, 0, "2", "3"),
        (decimal, 7252.3411, 2, "7,252.34", "7,252.35"),
        (power, 3.2e-11, 0, "3×10⁻¹¹", "4×10⁻¹¹"),
        (power, -9.7e3, 0, "−1×10⁴", "−9×10³"),
        (power, 1.2345e5, 2, "1.23×10⁵", "1.24×10⁵"),
        (decimal, 1.7e308, 2, f"{17 * 10**307:,}.00", f"{17 * 10**307:,}.00"),
        (power, 5e-324, 0, "5×10⁻³²⁴", "5×10⁻³²⁴"),
        (percent, -0.154, 0, "−16" + PERCENT, "−15" + PERCENT),
    ],
)
def test_a_limit_is_rounded_to_its_side(write, x, digits, down, up):
    assert write(x, digits, rounding="down") == down and write(x, digits, rounding="up") == up


@pytest.mark.parametrize("write", [decimal, power, percent])
def test_both_sides_enclose_the_number(write):
    for x in np.random.default_rng(0).normal(size=200).tolist():
        scale = 100 if write is percent else 1
        low, high = read(write(x, rounding="down")), read(write(x, rounding="up"))
        assert low <= scale * x <= high and low < high
        assert read(write(x)) in (low, high)
