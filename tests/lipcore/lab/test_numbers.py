"""Numbers read as a person writes them, and say what was computed."""

import math

import numpy as np
import pytest
import torch

from lipcore.lab.numbers import count, decimal, percent, power

DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-")


def read(text: str) -> float:
    """Read a number back, independently of how it was written."""
    text = text.replace(",", "").removesuffix("\N{NO-BREAK SPACE}%")
    factor, _, exponent = text.partition("×10")
    return float(factor.translate(DIGITS)) * 10.0 ** int(exponent.translate(DIGITS) or 0)


@pytest.mark.parametrize("x", [0.0, 1.0, -0.0123, 7252.345, -98304.5, 1e-11, 123456.789])
def test_a_decimal_is_the_number_rounded(x):
    assert read(decimal(x, 3)) == round(x, 3)


@pytest.mark.parametrize("exponent", range(-20, 21, 4))
@pytest.mark.parametrize("factor", [1.0, -2.5, 9.99, 9.996])
def test_a_power_is_the_number_to_its_digits(factor, exponent):
    x = factor * 10.0**exponent
    assert read(power(x, 2)) == pytest.approx(x, rel=6e-3)


def test_a_factor_that_rounds_up_to_ten_moves_to_the_next_power():
    assert power(9.7e3) == "1×10⁴"


def test_no_sign_stands_before_what_rounds_to_zero():
    assert decimal(-0.004) == "0.00" and percent(-0.001) == "0\N{NO-BREAK SPACE}%"


def test_no_hyphen_is_a_minus_sign():
    for text in (decimal(-1.5), power(-1e-7), count(-3), percent(-0.5)):
        assert "-" not in text and text.startswith("\N{MINUS SIGN}")


@pytest.mark.parametrize("make", [torch.tensor, np.float64], ids=["tensor", "numpy"])
def test_scalars_of_arrays_are_numbers(make):
    assert decimal(make(0.5)) == "0.50" and power(make(2e9)) == "2×10⁹"
    assert count(make(2048.0)) == "2,048" and percent(make(0.25)) == "25\N{NO-BREAK SPACE}%"


@pytest.mark.parametrize("write", [decimal, power, count, percent])
@pytest.mark.parametrize("x", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(write, x):
    with pytest.raises(ValueError, match="finite number"):
        write(x)


def test_a_count_is_whole():
    with pytest.raises(ValueError, match=r"whole number, got 2\.5"):
        count(2.5)
