"""What every closed form must do: agree with its formula, stay a number far out, grow."""

import itertools
import math

import pytest
import torch

from draws import EYE, KINDS, ONE, draw
from lipcore import bounds
from lipcore.bounds import torn_peak, two_dirac_peak


def column(n, a, gap=None):
    """The largest column sum, from scores within 2a alone or from the gap too."""
    kappa = math.exp(2 * a)
    by_norm = n * kappa / (n + kappa - 1)
    if gap is None:
        return by_norm
    voice = math.exp(gap)
    return min(voice, kappa / (n + kappa - 1) + (n - 1) * voice / (n - 1 + voice), n)


def hardy(a):
    return 2 * (1 + 2 * a) * math.exp(a)


def split(m, a):
    """The smallest weight of a row, and what is above it, or both at once."""
    return min(m * math.exp(a), m + (1 + math.sqrt(2) * a) * math.sqrt(math.expm1(2 * a))) + a


def unified(a, column_sum):
    return math.sqrt((1 + a * a) * column_sum) + a


def long_row(a):
    return math.exp(a) * math.sqrt(two_dirac_peak(a))


def short_row(n, a):
    return math.sqrt(min((1 + a**2) * column(n, a), n * torn_peak(a)))


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
    """The bound without n, which is left out of the call."""
    return lambda *, n, **sizes: bound(**sizes)


def of_matrix(bound, sign, *, without_n=False):
    """A bound by the score gap, for ±norm_a on a line."""

    def found(*, norm_a, n, **sizes):
        return bound(A=sign * norm_a * ONE, **sizes, **({} if without_n else {"n": n}))

    return found


#: The formulas of the book for ‖V‖ = 1, without care for overflow: name → (bound, formula in n, a).
FORMS = {
    "general": (bounds.general_upper, lambda n, a: math.sqrt(3 * (a**2 * (4 * n + 1) + n))),
    "torn": (bounds.torn_upper, lambda n, a: math.sqrt(n * torn_peak(a)) + a),
    "unified": (bounds.unified_upper, lambda n, a: unified(a, column(n, a))),
    "unified, every n": (every_n(bounds.unified_upper), lambda n, a: unified(a, math.exp(2 * a))),
    "sharp": (bounds.unified_upper_sharp, lambda n, a: min(long_row(a), short_row(n, a)) + a),
    "sharp, every n": (every_n(bounds.unified_upper_sharp), lambda n, a: long_row(a) + a),
    "paper, every n": (
        every_n(bounds.mean_field_upper_paper),
        lambda n, a: (1 + 3 * a) * math.exp(2 * a),
    ),
    "rate of −I": (
        of_matrix(bounds.unified_upper_rate, -1),
        lambda n, a: unified(a, column(n, a, 2 * a)),
    ),
    "rate of I": (
        of_matrix(bounds.unified_upper_rate, 1),
        lambda n, a: unified(a, column(n, a, a / 4)),
    ),
    "rate of I, every n": (
        of_matrix(bounds.unified_upper_rate, 1, without_n=True),
        lambda n, a: unified(a, math.exp(a / 4)),
    ),
    "masked": (
        bounds.masked_upper,
        lambda n, a: min((1 + a) * math.sqrt(n) + a, split(2 * (1 + 2 * a), a)),
    ),
    "masked moments, every n": (
        every_n(bounds.masked_upper_moments),
        lambda n, a: split(moments(a), a),
    ),
    "masked rate of −I, every n": (
        of_matrix(bounds.masked_upper_rate, -1, without_n=True),
        lambda n, a: hardy(a) + a,
    ),
    "masked rate of I, every n": (
        of_matrix(bounds.masked_upper_rate, 1, without_n=True),
        lambda n, a: min(hardy(a), hardy(a) * math.sqrt((1 + 2 * a) * math.exp(1 - 7 * a / 4))) + a,
    ),
}
EACH = pytest.mark.parametrize("name", FORMS)


@EACH
def test_formula(name):
    bound, formula = FORMS[name]
    tolerance = 1e-3 if "moments" in name else 1e-10
    for radius, norm_a, norm_v in ((1.0, 1.0, 1.0), (0.5, 0.1, 3.0), (2.0, 1.5, 0.2), (0, 5, 2)):
        for n in (1, 2, 30, 10**6):
            found = bound(n=n, radius=radius, norm_a=norm_a, norm_v=norm_v)
            expected = norm_v * formula(n, norm_a * radius**2)
            assert found == pytest.approx(expected, rel=tolerance)


def test_rates_of_a_matrix_by_hand():
    """A = diag(1/2, −1/5) has the gap 2/5; from five dimensions on Voronoi cells are counted."""
    A = torch.diag(torch.tensor([0.5, -0.2], dtype=torch.float64))
    for radius in (0.5, 3.0, 40.0):
        a, gap = 0.5 * radius**2, 0.4 * radius**2
        size = {"A": A, "radius": radius, "norm_v": 2.0}
        expected = 2 * unified(a, math.exp(gap))
        assert bounds.unified_upper_rate(**size) == pytest.approx(expected, rel=1e-11)
        cells = 2 * math.log(2 * a * math.sqrt(2) + 1) + 1 + gap
        expected = 2 * (2 * (1 + 2 * a) * math.exp(min(2 * a, cells) / 2) + a)
        assert bounds.masked_upper_rate(**size) == pytest.approx(expected, rel=1e-11)
    for d, side in ((2, 2e3 * math.sqrt(2)), (6, 4e3)):  # g* = 250
        rate = math.log(2 * 2001) + (d * math.log(side + 1) + 251) / 2
        A = 1e3 * torch.eye(d, dtype=torch.float64)
        found = bounds.masked_upper_rate(A=A, radius=1.0, norm_v=1.0, log=True)
        assert found == pytest.approx(rate, rel=1e-9)


@EACH
def test_extremes(name):
    """Never NaN, never an error; ``inf`` past float64's range, where the logarithm is a number."""
    bound = FORMS[name][0]
    scores = (0.0, 1e-300, 1e-9, 1.0, 30.0, 354.0, 1e3, 1e6)
    for a, n in itertools.product(scores, (1, 2, 10**6, 10**12, 10**40)):
        size = {"n": n, "radius": 1.0, "norm_a": a, "norm_v": 2.0}
        value, logarithm = (bound(log=log, **size) for log in (False, True))
        assert math.isfinite(logarithm) and value > 0
        expected = math.exp(logarithm) if logarithm < 709.7 else math.inf
        assert value == pytest.approx(expected, rel=1e-9)
        same_a = size | {"radius": 1e3 * math.sqrt(a), "norm_a": 1e-6}
        assert bound(log=True, **same_a) == pytest.approx(logarithm, rel=1e-9, abs=1e-9)
    for radius, norm_a, log in itertools.product((1e-200, 1e200), (1e-300, 1e308), (True, False)):
        found = bound(n=7, radius=radius, norm_a=norm_a, norm_v=1.0, log=log)
        assert not math.isnan(found)
    for a, log in itertools.product((0.0, 1.0, 1e6, 1e308), (True, False)):
        found = bound(n=5, radius=2.0, norm_a=a, norm_v=0.0, log=log)
        assert found == (-math.inf if log else 0)


@EACH
def test_monotone(name):
    bound = FORMS[name][0]
    sizes = {"norm_a": 1.0, "norm_v": 1.0, "log": True}
    for radius in (0.1, 1.0, 2.0):
        values = [bound(n=n, radius=radius, **sizes) for n in (1, 2, 5, 50, 10**5, 10**12)]
        assert values == sorted(values)
    for n in (1, 20, 10**9):
        values = [bound(n=n, radius=r, **sizes) for r in (0, 1e-3, 0.5, 1, 3, 10, 1e3)]
        assert values == sorted(values)


@pytest.mark.parametrize(
    "chain",
    [("sharp, every n", "unified, every n", "paper, every n"), ("sharp", "unified", "general"),
     ("sharp", "torn"), ("sharp", "sharp, every n"), ("masked", "general"),
     ("rate of I", "rate of −I", "unified"), ("masked", "masked rate of −I, every n"),
     ("rate of I", "rate of I, every n", "unified, every n"),
     ("masked rate of I, every n", "masked rate of −I, every n")],
)  # fmt: skip
def test_order(chain):
    """From the sharpest to the loosest, everywhere."""
    scores = (0.0, 1e-9, 1e-3, 0.3, 1.0, 5.0, 50.0, 1e3, 1e6)
    for a, n in itertools.product(scores, (1, 2, 3, 10, 1000, 10**9, 10**40)):
        sizes = {"n": n, "radius": 1.0, "norm_a": a, "norm_v": 1.5, "log": True}
        values = [FORMS[name][0](**sizes) for name in chain]
        assert all(x <= y + 1e-9 * (1 + a) for x, y in itertools.pairwise(values))


@pytest.mark.parametrize(
    "kind", ["identity", "negative", "antisymmetric", "diagonal", "non-normal"]
)
def test_rate_is_half_the_gap(truth, kind):
    """log of the bounds and of what two Diracs reach grow as g_A R²/2, up to a power of R."""
    A = KINDS[kind](draw(0, 2, 2))
    gap, _ = bounds.score_gap(A)
    for bound in (
        lambda R: bounds.unified_upper_rate(A=A, radius=R, norm_v=1.0, log=True),
        lambda R: bounds.masked_upper_rate(A=A, radius=R, norm_v=1.0, log=True),
        lambda R: bounds.best_upper(A=A, V=EYE, radius=R, log=True),
        lambda R: bounds.best_upper(A=A, V=EYE, radius=R, causal=True, log=True),
    ):
        low, high = (bound(math.sqrt(square)) for square in (1e5, 2e5))
        assert (high - low) / 1e5 == pytest.approx(gap / 2, abs=1e-3)
    squares = (20 / gap, 40 / gap)
    low, high = (math.log(worst_pair(truth, A, math.sqrt(square))) for square in squares)
    assert (high - low) / (squares[1] - squares[0]) == pytest.approx(gap / 2, rel=0.1)


def worst_pair(truth, A, radius):
    """Largest local constant over measures with masses p, 1 − p at the score gap's pair, V = I."""
    gap, u = bounds.score_gap(A)
    pair = radius * torch.stack([A @ u / (A @ u).norm(), u])
    log_p = -torch.linspace(0.3, gap * radius**2 + 3, 40, dtype=torch.float64)
    masses = torch.stack([log_p, torch.log1p(-log_p.exp())], dim=-1)
    return truth.of_head(A, EYE, pair.expand(40, 2, -1), masses).max().item()
