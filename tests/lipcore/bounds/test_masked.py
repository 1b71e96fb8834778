"""Causal attention: uniform averaging, the longest moments of rows, bounds with and without n."""

import math

import pytest
import torch

from draws import EYE, F64, ONE, draw
from lipcore import Attention, bounds, local_lipschitz, spectral_norm
from lipcore.adversarial import worst_case_inputs
from lipcore.bounds.causal import log_masked_rows, row_moment

LENGTHS = (1, 10, 1000, 100_000)


def test_average_is_attention_at_the_origin():
    f = Attention.from_matrices(ONE, ONE, causal=True)
    J = f.jacobian(torch.zeros(7, 1, dtype=F64)).dense()
    assert torch.allclose(bounds.causal_average(7).dense(), J)
    assert torch.allclose(bounds.causal_average(7).T.dense(), J.mT)


@pytest.fixture(scope="module")
def averages():
    """Norms of causal averaging on LENGTHS tokens."""
    return [spectral_norm(bounds.causal_average(n), tol=1e-6).lower.item() for n in LENGTHS]


def test_norm_tends_to_two(averages):
    assert averages == sorted(averages) and averages[0] == pytest.approx(1) and averages[-1] < 2
    assert bounds.causal_average_norm(LENGTHS[-1]) == pytest.approx(averages[-1], rel=2e-3)
    # Wilf (1970): the square is 4 − 16π²/(ln n + γ + 6 ln 2)² up to smaller terms
    shift = 0.5772156649 + 6 * math.log(2)
    wilf = [math.sqrt(4 - (4 * math.pi / (math.log(n) + shift)) ** 2) for n in LENGTHS[2:]]
    assert 0 < averages[3] - wilf[1] < averages[2] - wilf[0] < 0.08
    expected = 2 / math.sqrt(1 + (2 * math.pi / (math.log(2000) + shift)) ** 2)
    assert bounds.causal_average_norm(2000) == pytest.approx(expected, rel=1e-9)


def test_bounds_are_sharp_without_scores(averages):
    """a = 0: averaging reaches more than nine tenths of every bound, none of which is below it."""
    sizes = {"radius": 1.0, "norm_a": 0.0, "norm_v": 1.0}
    head = {"A": 0 * ONE, "V": ONE, "radius": 1.0, "causal": True}
    every = [bounds.masked_upper_moments(**sizes), bounds.best_upper(**head)]
    every.append(bounds.masked_upper_rate(A=0 * ONE, radius=1.0, norm_v=1.0))
    for n, reached in zip(LENGTHS, averages, strict=True):
        for bound in (bounds.masked_upper(n=n, **sizes), bounds.best_upper(n=n, **head), *every):
            assert reached <= bound * (1 + 1e-9)
    assert all(
        averages[-1] > 0.93 * bound for bound in [*every, bounds.masked_upper(n=10**5, **sizes)]
    )
    assert bounds.masked_upper(n=2, **sizes) == pytest.approx(math.sqrt(2), rel=1e-15)


@pytest.mark.parametrize("a", [0.0, 0.1, 1.0, 3.0, 20.0])
def test_row_moment_is_the_largest_over_rows(a):
    """(Two tokens reach it: ``test_enclosures.py``.)"""
    for q in (2.0, 3.0, 3.5, 10.0):
        P = torch.softmax(3 * draw(0, 500, 6), -1)
        x, g, y = draw(1, 500, 6, 2), draw(2, 500, 2), draw(3, 500, 2)
        x, g, y = (v / v.norm(dim=-1, keepdim=True) for v in (x, g, y))
        deviation = (x - P[:, None] @ x) @ g[..., None]  # g·(x_j − m_i), tokens in the unit ball
        moment = (P * (g[:, None] + deviation * a * y[:, None]).norm(dim=-1) ** q).sum(-1)
        assert moment.max() ** (1 / q) <= row_moment(a, q) * (1 + 1e-12)
    assert row_moment(a, 2.0) ** 2 == pytest.approx(1 + a**2)
    assert row_moment(a, math.inf) == pytest.approx(1 + 2 * a)


@pytest.mark.parametrize("a", [0.3, 1.0, 2.0])
def test_bounds_hold_at_worst_inputs(a):
    X = worst_case_inputs(-a * EYE, 400, 1.0, causal=True)
    f = Attention.from_matrices(-a * EYE, EYE, causal=True)
    reached = local_lipschitz(f, X).value.item()
    assert reached <= bounds.masked_upper_moments(radius=1.0, norm_a=a, norm_v=1.0) <= 3 * reached
    best = bounds.best_upper(A=-a * EYE, V=EYE, radius=1.0, n=400, causal=True)
    assert reached <= best <= bounds.masked_upper(n=400, radius=1.0, norm_a=a, norm_v=1.0)


@pytest.mark.parametrize("a", [0.0, 0.3, 1.0, 3.0])
def test_rows_with_a_known_n(a):
    """The sum over rows, G as long as i ≤ κF/G, then κF/i; or over columns; or a little more."""
    kappa, F, G = math.exp(2 * a), bounds.two_dirac_peak(a), bounds.torn_peak(a)
    for n in (1, 2, 7, 100, 10_000):
        i = torch.arange(1, n + 1, dtype=F64)
        rows = (kappa * F / i).clamp(max=G).sum().item()
        columns = (1 + a**2) * (kappa / (kappa + i - 1)).sum().item()
        found = math.exp(2 * log_masked_rows(n, math.log(a) if a else -math.inf))
        assert min(rows, columns) * (1 - 1e-6) <= found
        by_rows = n * G
        if kappa * F < n * G:
            by_rows = min(by_rows, kappa * F * (1 + math.log(n * G / kappa / F)) + G)
        by_columns = (1 + a * a) * min(n, 1 + kappa * math.log(1 + (n - 1) / kappa))
        assert found == pytest.approx(min(by_rows, by_columns), rel=1e-7)
    assert math.isfinite(log_masked_rows(10**40, 3.0))
