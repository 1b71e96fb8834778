"""Mean-field bounds: above every pair of Diracs, exact in the rate, and in the constant for A = −γI."""

import itertools
import math

import pytest
import torch

from lipcore import bounds
from lipcore.bounds import best_upper, score_gap, unified_upper_rate

F64 = torch.float64
GAPS = [
    torch.tensor(rows, dtype=F64)
    for rows in ([[-2, 0], [0, -2]], [[2, 0], [0, 2]], [[0, -3], [3, 0]], [[4, 0], [0, -0.1]], [[1, 5], [0, 1]])
]  # fmt: skip


def two_diracs(truth, a):
    """Largest local constant over p δ_{−1} + (1−p) δ_1 for A = −a in dimension one, V = 1."""
    odds = torch.linspace(min(a, 2 * a - 4), 2 * a + 5, 1001, dtype=F64)  # log (1−p)/p
    logsigmoid = torch.nn.functional.logsigmoid
    masses = torch.stack([logsigmoid(-odds), logsigmoid(odds)], dim=-1)
    one = torch.ones(1, 1, dtype=F64)
    X = torch.tensor([[-1.0], [1.0]], dtype=F64).expand(len(odds), 2, 1)
    return truth.of_head(-a * one, one, X, masses).max().item()


@pytest.mark.parametrize(
    ("a", "plain", "sharp"), [(1.0, 1.579, 1.336), (3.0, 1.389, 1.0612), (8.0, 1.434, 1.0005)]
)
def test_two_diracs_nearly_reach_the_bounds(truth, a, plain, sharp):
    reached = two_diracs(truth, a)
    size = {"radius": 1.0, "norm_a": a, "norm_v": 1.0}
    assert bounds.unified_upper(**size) / reached == pytest.approx(plain, rel=0.01)
    assert bounds.unified_upper_sharp(**size) / reached == pytest.approx(sharp, rel=1e-3)


def test_published_exponent_is_twice_too_large(truth):
    size = {"radius": 1.0, "norm_a": 8.0, "norm_v": 1.0}
    quotient = bounds.mean_field_upper_paper(**size) / two_diracs(truth, 8.0)
    assert quotient == pytest.approx(1.3e4, rel=0.05)


def test_sharp_bound_becomes_exact(truth):
    """(8/3√3 for the bound that adds the terms up; 1 for this one.)"""
    size = {"radius": 1.0, "norm_a": 14.0, "norm_v": 1.0}
    assert 1 <= bounds.unified_upper_sharp(**size) / two_diracs(truth, 14.0) < 1 + 1e-5


def worst_pair(truth, A, radius):
    """Largest local constant over measures with masses p, 1 − p at the score gap's pair, V = I."""
    gap, u = score_gap(A)
    pair = radius * torch.stack([A @ u / (A @ u).norm(), u])
    log_p = -torch.linspace(0.3, gap * radius**2 + 3, 40, dtype=F64)
    masses = torch.stack([log_p, torch.log1p(-log_p.exp())], dim=-1)
    return (
        truth.of_head(A, torch.eye(len(A), dtype=F64), pair.expand(40, 2, -1), masses).max().item()
    )


@pytest.mark.parametrize("A", GAPS, ids=["-2I", "2I", "turn", "diagonal", "shear"])
def test_rate_is_half_the_gap(truth, A):
    """log of the bounds and of what two Diracs reach grow as g_A R²/2, up to a power of R."""
    gap = score_gap(A)[0]
    eye = torch.eye(2, dtype=F64)
    for bound in (
        lambda R: unified_upper_rate(A=A, radius=R, norm_v=1.0, log=True),
        lambda R: bounds.masked_upper_rate(A=A, radius=R, norm_v=1.0, log=True),
        lambda R: best_upper(A=A, V=eye, radius=R, log=True),
        lambda R: best_upper(A=A, V=eye, radius=R, causal=True, log=True),
    ):
        low, high = (bound(math.sqrt(square)) for square in (1e5, 2e5))
        assert (high - low) / 1e5 == pytest.approx(gap / 2, abs=1e-3)
    squares = (20 / gap, 40 / gap)
    low, high = (math.log(worst_pair(truth, A, math.sqrt(square))) for square in squares)
    assert (high - low) / (squares[1] - squares[0]) == pytest.approx(gap / 2, rel=0.1)


def test_rate_bound_holds_at_the_worst_pairs(truth):
    generator = torch.Generator().manual_seed(0)
    M = torch.randn(6, 2, 2, generator=generator, dtype=F64)
    heads = [
        *M[:2],
        M[2] + M[2].mT,
        M[3] - M[3].mT,
        torch.outer(M[4, 0], M[4, 1]),
        20 * M[5].triu(1) + M[5],
    ]
    for A, a in itertools.product(heads, (0.25, 1.0, 4.0)):
        radius = math.sqrt(a / torch.linalg.matrix_norm(A, 2).item())
        reached = worst_pair(truth, A, radius)
        assert reached <= unified_upper_rate(A=A, radius=radius, norm_v=1.0) * (1 + 1e-9)


def test_rate_bounds_by_hand():
    """A = diag(1/2, −1/5) has the gap 2/5, by the closed form for symmetric matrices."""
    A = torch.diag(torch.tensor([0.5, -0.2], dtype=F64))
    for radius in (0.5, 3.0, 40.0):
        a = 0.5 * radius**2
        gap = 0.4 * radius**2  # 2·(1/5): the positive eigenvalue is below three times the other
        size = {"A": A, "radius": radius, "norm_v": 2.0}
        expected = math.sqrt(1 + a * a) * math.exp(gap / 2) + a
        assert unified_upper_rate(**size) == pytest.approx(2 * expected, rel=1e-11)
        cells = 2 * math.log(2 * a * math.sqrt(2) + 1) + 1 + gap
        expected = 2 * (1 + 2 * a) * math.exp(min(2 * a, cells) / 2) + a
        assert bounds.masked_upper_rate(**size) == pytest.approx(2 * expected, rel=1e-11)


def test_rate_needs_no_eigenvalue():
    """For γI the norm says e^a and the gap e^{a/8}: at a = 1000 the bounds differ by e^{800}."""
    A = torch.eye(1, dtype=F64)
    size = {"radius": math.sqrt(1000), "norm_v": 1.0, "log": True}
    assert bounds.unified_upper(norm_a=1.0, **size) > 1000
    found = unified_upper_rate(A=A, **size)
    assert found == pytest.approx(125 + math.log(math.hypot(1, 1000)), abs=1e-12)


def test_rate_extremes_are_numbers():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(2, 2, generator=generator, dtype=F64)
    rates = (unified_upper_rate, bounds.masked_upper_rate)
    scales = itertools.product((0.0, 1e-300, 1.0, 1e6), (0.0, 1e-200, 1.0, 1e200), (0.0, 1.0))
    for (scale, radius, norm_v), log, form in itertools.product(scales, (True, False), rates):
        assert not math.isnan(form(A=scale * A, radius=radius, norm_v=norm_v, log=log))
