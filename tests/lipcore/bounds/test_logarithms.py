"""What every closed form must do: agree with its formula, stay a number far out, and refuse bad sizes."""

import itertools
import math

import pytest
import torch

from lipcore.bounds import (
    general_upper,
    masked_upper,
    masked_upper_moments,
    mean_field_upper_paper,
    torn_peak,
    torn_upper,
    two_dirac_peak,
    unified_upper,
    unified_upper_sharp,
)


def column(n, a):
    return n * math.exp(2 * a) / (n + math.exp(2 * a) - 1)


def moments(a):
    """min_p (2/(2−p))^{1/p} M_q(a) on a grid of p, M_q by brute force over w."""
    w = torch.linspace(0, 1, 4001, dtype=torch.float64)
    best = 2 * (1 + 2 * a)
    for p in torch.linspace(1.01, 1.7, 60).tolist():
        q = p / (p - 1)
        M = (w * (1 + 2 * a * (1 - w)) ** q + (1 - w) * (1 - 2 * a * w).abs() ** q).max() ** (1 / q)
        best = min(best, (2 / (2 - p)) ** (1 / p) * M.item())
    return best


def every_n(bound):
    """The bound without n, under a name of its own."""

    def without_n(**sizes):
        return bound(**sizes)

    without_n.__name__ = f"{bound.__name__}, every n"
    return without_n


unified_every_n, sharp_every_n = every_n(unified_upper), every_n(unified_upper_sharp)
#: The closed forms as the book writes them, without care for overflow: (bound, formula in n, a, ‖V‖ = 1).
FORMULAS = {
    general_upper: lambda n, a: math.sqrt(3 * (a**2 * (4 * n + 1) + n)),
    unified_upper: lambda n, a: math.sqrt((1 + a * a) * column(n, a)) + a,
    unified_upper_sharp: lambda n, a: (
        a
        + math.sqrt(
            min(
                (1 + a**2) * column(n, a),
                n * torn_peak(a),
                math.exp(2 * a) * two_dirac_peak(a),
            )
        )
    ),
    torn_upper: lambda n, a: math.sqrt(n * torn_peak(a)) + a,
    unified_every_n: lambda n, a: math.sqrt(1 + a * a) * math.exp(a) + a,
    mean_field_upper_paper: lambda n, a: (1 + 3 * a) * math.exp(2 * a),
    sharp_every_n: lambda n, a: math.exp(a) * math.sqrt(two_dirac_peak(a)) + a,
    masked_upper: lambda n, a: min((1 + a) * math.sqrt(n) + a, 2 * (1 + 2 * a) * math.exp(a) + a),
    masked_upper_moments: lambda n, a: moments(a) * math.exp(a) + a,
}
WITHOUT_N = (unified_every_n, mean_field_upper_paper, sharp_every_n, masked_upper_moments)
CLOSED_FORMS = pytest.mark.parametrize("bound", FORMULAS, ids=lambda bound: bound.__name__)


def evaluate(bound, *, n, **sizes):
    return bound(**sizes) if bound in WITHOUT_N else bound(n=n, **sizes)


@CLOSED_FORMS
def test_formula(bound):
    cases = [(1.0, 1.0, 1.0), (0.5, 0.1, 3.0), (2.0, 1.5, 0.2), (0.0, 5.0, 2.0)]
    for n, (radius, norm_a, norm_v) in itertools.product((1, 2, 30, 10**6), cases):
        if bound is masked_upper_moments and n > 1:
            continue
        found = evaluate(bound, n=n, radius=radius, norm_a=norm_a, norm_v=norm_v)
        expected = norm_v * FORMULAS[bound](n, norm_a * radius**2)
        assert found == pytest.approx(
            expected, rel=1e-3 if bound is masked_upper_moments else 1e-11
        )


@CLOSED_FORMS
def test_extremes(bound):
    """Never NaN, never an error; ``inf`` past float64's range, where the logarithm is still a number."""
    scores = (0.0, 1e-300, 1e-9, 1.0, 30.0, 354.0, 1e3, 1e6)
    for a, n in itertools.product(scores, (1, 2, 10**6, 10**12, 10**40)):
        value, logarithm = (
            evaluate(bound, n=n, radius=1.0, norm_a=a, norm_v=2.0, log=log) for log in (False, True)
        )
        assert math.isfinite(logarithm) and value > 0
        expected = math.exp(logarithm) if logarithm < 709.7 else math.inf
        assert value == pytest.approx(expected, rel=1e-9)
        # the same a in another way
        sizes = {"radius": 1e3 * math.sqrt(a), "norm_a": 1e-6, "norm_v": 2.0}
        again = evaluate(bound, n=n, log=True, **sizes)
        assert again == pytest.approx(logarithm, rel=1e-9, abs=1e-9)
    for radius, norm_a, log in itertools.product((1e-200, 1e200), (1e-300, 1e308), (True, False)):
        assert not math.isnan(
            evaluate(bound, n=7, radius=radius, norm_a=norm_a, norm_v=1.0, log=log)
        )
    for a in (0.0, 1.0, 1e6, 1e308):
        assert evaluate(bound, n=5, radius=2.0, norm_a=a, norm_v=0.0) == 0.0
        assert evaluate(bound, n=5, radius=2.0, norm_a=a, norm_v=0.0, log=True) == -math.inf


@CLOSED_FORMS
def test_monotone(bound):
    sizes = {"norm_a": 1.0, "norm_v": 1.0, "log": True}
    for by_n in (0.1, 1.0, 2.0):
        values = [evaluate(bound, n=n, radius=by_n, **sizes) for n in (1, 2, 5, 50, 10**5, 10**12)]
        assert values == sorted(values)
    for n in (1, 20, 10**9):
        values = [evaluate(bound, n=n, radius=r, **sizes) for r in (0, 1e-3, 0.5, 1, 3, 10, 1e3)]
        assert values == sorted(values)


def test_order():
    """From the sharpest to the loosest, everywhere."""
    scores = (0.0, 1e-9, 1e-3, 0.3, 1.0, 5.0, 50.0, 1e3, 1e6)
    for a, n in itertools.product(scores, (1, 2, 3, 10, 1000, 10**9, 10**40)):
        sizes = {"radius": 1.0, "norm_a": a, "norm_v": 1.5, "log": True}
        long = [sharp_every_n, unified_every_n, mean_field_upper_paper]
        short = [unified_upper_sharp, unified_upper, general_upper]
        masked = [masked_upper, general_upper]
        for chain in (long, short, masked, [unified_upper_sharp, torn_upper]):
            values = [evaluate(bound, n=n, **sizes) for bound in chain]
            assert all(x <= y + 1e-9 * (1 + a) for x, y in itertools.pairwise(values))
        assert unified_upper_sharp(n=n, **sizes) <= sharp_every_n(**sizes) + 1e-9 * (1 + a)
        if a < 300:  # else even 10⁴⁰⁰ tokens are few
            assert masked_upper_moments(**sizes) <= masked_upper(n=10**400, **sizes) + 1e-9


@pytest.mark.parametrize("a", [0.0, 1e-9, 0.1, 1.0, 5.0, 10.0])
def test_limit_of_long_sequences(a):
    sizes = {"radius": 1.0, "norm_a": a, "norm_v": 1.7}
    for bound, limit in (
        (unified_upper, unified_every_n),
        (unified_upper_sharp, sharp_every_n),
    ):
        assert bound(n=10**15, **sizes) == pytest.approx(limit(**sizes), rel=1e-6)


BAD_SIZES = [
    ({"n": 0}, ValueError, "^n: "),
    ({"n": 2.5}, TypeError, "^n: "),
    ({"n": True}, TypeError, "^n: "),
    ({"radius": -1.0}, ValueError, "^radius: "),
    ({"radius": math.nan}, ValueError, "^radius: "),
    ({"radius": True}, TypeError, "^radius: "),
    ({"radius": "1"}, TypeError, "^radius: "),
    ({"norm_a": -1.0}, ValueError, "^norm_a: "),
    ({"norm_a": torch.eye(2)}, TypeError, "^norm_a: "),
    ({"norm_v": -1e-9}, ValueError, "^norm_v: "),
]


@CLOSED_FORMS
def test_bad_sizes(bound):
    for change, error, message in BAD_SIZES:
        if "n" in change and bound in WITHOUT_N:
            continue
        with pytest.raises(error, match=message):
            evaluate(bound, **({"n": 3, "radius": 1.0, "norm_a": 1.0, "norm_v": 1.0} | change))
