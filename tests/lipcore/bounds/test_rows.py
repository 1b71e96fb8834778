"""Rows and columns of attention, its cells; and causal attention, bounded with and without n."""

import math

import numpy as np
import pytest
import torch

from draws import F64, KINDS, ONE, draw, norm
from lipcore import Attention, bounds, spectral_norm
from lipcore.bounds import ball, causal


@pytest.mark.parametrize("a", [0.1, 1.0, 4.0])
def test_no_row_of_any_measure_exceeds_the_peak(a):
    """E_P[ G (1 + a(t − E t))² ] ≤ κF(a), for scores that differ by at most 2a, P = Gμ, |t| ≤ 1."""
    rng = np.random.default_rng(0)
    limit = math.exp(2 * a) * bounds.two_dirac_peak(a)
    for _ in range(1000):
        m = rng.integers(1, 6)
        mu, s, t = rng.dirichlet(np.full(m, 0.2)), rng.uniform(-a, a, m), rng.uniform(-1, 1, m)
        if rng.random() < 0.6:
            s, t = a * np.sign(s), np.sign(t)
        G = np.exp(s) / (mu * np.exp(s)).sum()
        P = mu * G
        assert (P * G * (1 + a * (t - P @ t)) ** 2).sum() <= limit * (1 + 1e-9)


def scores_seen(n):
    """The longest rows of P_j (t_j − t̄) found: random scores, one leader, two camps."""
    t = draw(n, 4000, n) * torch.linspace(0, 20, 4000, dtype=F64)[:, None]
    t[2000:, 1:] = 0
    t[3000:, : n // 2] = t[3000:, :1]
    P = t.softmax(dim=-1)
    return (P * (t - (P * t).sum(-1, keepdim=True))).norm(dim=-1).max().item()


@pytest.mark.parametrize("n", [2, 3, 5, 20, 300])
def test_what_a_row_sees_of_its_scores(n):
    """Reached by two tokens; by many up to a factor √2, as M_n itself is reached."""
    along = math.expm1(ball.log_seen(n, -math.inf) - math.log(n) / 2)
    p = torch.linspace(1e-6, 1 - 1e-6, 1_000_001, dtype=F64)
    M = (p * (1 - p) * (p.logit() + math.log(n - 1))).max().item()
    assert along == pytest.approx(math.sqrt(2) * M, rel=1e-9)
    assert M <= (1 + math.log(n)) / 4
    assert 0.999 * (along if n == 2 else M) < scores_seen(n) <= along * (1 + 1e-9)


@pytest.mark.parametrize("n", [1, 2, 7, 60])
@pytest.mark.parametrize("a", [0.0, 0.4, 2.0, 9.0])
def test_columns_of_scores_within_2a(a, n):
    scores = 2 * a * torch.rand(40, n, n, generator=torch.Generator().manual_seed(n), dtype=F64)
    scores[20:] = 2 * a * (torch.arange(n) == 0).double()  # all look at the first key
    log_a = math.log(a) if a else -math.inf
    columns = torch.softmax(scores, -1).sum(-2).max().item()
    assert columns == pytest.approx(math.exp(ball.log_column_sum(n, log_a)), rel=1e-12)
    masked = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
    columns = torch.softmax(masked, -1).sum(-2).max().item()
    limit = math.exp(causal.log_causal_column_sum(n, log_a))
    assert 0.7 * limit <= columns <= limit * (1 + 1e-12)
    kappa = math.exp(2 * a)
    assert limit == pytest.approx(min(n, 1 + kappa * math.log(1 + (n - 1) / kappa)), rel=1e-7)


@pytest.mark.parametrize("kind", ["any", "symmetric", "antisymmetric", "rank one", "zero"])
def test_cells(kind):
    """No column sum of random inputs is above the best count, nor this above the theorem's."""
    for seed, radius in enumerate((0.3, 1.0, 3.0)):
        A = KINDS[kind](draw(seed, 3, 3))
        log_a, cells = causal.log_cells(A, radius)
        least = causal.log_least_cells(A, radius, below=math.inf)
        assert math.exp(log_a) == pytest.approx(radius**2 * norm(A))
        assert bounds.score_gap(A)[0] * radius**2 <= least <= cells + 1e-9
        X = draw(seed + 10, 50, 40, 3)
        X = radius * X / X.norm(dim=-1, keepdim=True)
        columns = torch.softmax((X @ A.mT) @ X.mT, -1).sum(-2).max().item()
        assert math.log(columns) <= least
        for below in (least - 1e-9, least / 2, 0.0):  # skipped only where it would not help
            assert causal.log_least_cells(A, radius, below=below) >= below
        assert causal.log_least_cells(A, radius, below=least + 1e-9) == least


@pytest.mark.parametrize("rank", [4, 9])
def test_least_cells_by_hand(rank):
    """A = I: cubes up to rank four, Voronoi cells beyond; the best t is near the rank."""
    t = torch.linspace(0.01, 30, 30_000, dtype=F64)
    factor = 2 * min(math.sqrt(rank), 2)
    counts = rank * torch.log(factor * 100 / t + 1) + t + 25
    A = torch.eye(rank, dtype=F64)
    found = causal.log_least_cells(A, 10.0, below=math.inf)
    assert found == pytest.approx(counts.min().item(), abs=1e-3)
    assert found >= counts.min().item() - 1e-6
    assert causal.log_cells(A, 10.0)[1] == pytest.approx(rank * math.log(100 * factor + 1) + 26)


@pytest.mark.parametrize("axes", [(3.0, 3.0), (3.0, 0.5), (4.0, 0.01), (2.0, 1.0, 0.3)])
def test_voronoi_cells_are_enough(axes):
    """No points in the ellipsoid further apart than t/2 are more than the cells counted."""
    axes = torch.tensor(axes, dtype=F64)
    x = draw(2, 8000, len(axes))
    chance = torch.rand(len(x), 1, generator=torch.Generator().manual_seed(2), dtype=F64)
    points = axes * x / x.norm(dim=-1, keepdim=True) * chance ** (1 / len(axes))
    kept = points[:1]
    for point in points:
        if (kept - point).norm(dim=-1).min() > 0.5:
            kept = torch.cat([kept, point[None]])
    assert len(kept) <= math.exp(causal.log_voronoi(axes.log(), 0.0)) < 12 * len(kept)
    volumes = torch.log1p(4 * axes).sum().item()  # Brunn–Minkowski: no fewer by this proof
    assert volumes - 1e-12 <= causal.log_voronoi(axes.log(), 0.0) < volumes + math.log(4)


def test_counts_of_cells_by_the_letter():
    axes = torch.tensor([5.0, 0.7, 0.1], dtype=F64)
    within = (axes.log(), math.log(1.3))
    c = torch.linspace(-30, 6, 145, dtype=F64).exp()[:, None]
    cells = ((1 + c) * (4 * axes / 1.3) ** 2 + 1 + 1 / c).prod(-1).min().sqrt().log().item()
    assert causal.log_voronoi(*within) == pytest.approx(cells, rel=1e-9)
    cubes = (1 + 2 * axes * math.sqrt(3) / 1.3).prod().log().item()
    assert causal.log_cubes(*within) == pytest.approx(cubes, rel=1e-9)


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
    assert averages[-1] > 0.93 * max(*every, bounds.masked_upper(n=10**5, **sizes))
    assert bounds.masked_upper(n=2, **sizes) == pytest.approx(math.sqrt(2), rel=1e-15)
    assert bounds.masked_upper(n=10**12, **sizes) == pytest.approx(2.0, rel=1e-15)


@pytest.mark.parametrize("a", [0.0, 0.1, 1.0, 3.0, 20.0])
def test_row_moment_is_the_largest_over_rows(a):
    """(Two tokens reach it: ``test_enclosures.py``.)"""
    for q in (2.0, 3.0, 3.5, 10.0):
        P = torch.softmax(3 * draw(0, 500, 6), -1)
        x, g, y = draw(1, 500, 6, 2), draw(2, 500, 2), draw(3, 500, 2)
        x, g, y = (v / v.norm(dim=-1, keepdim=True) for v in (x, g, y))
        deviation = (x - P[:, None] @ x) @ g[..., None]  # g·(x_j − m_i), tokens in the unit ball
        moment = (P * (g[:, None] + deviation * a * y[:, None]).norm(dim=-1) ** q).sum(-1)
        assert moment.max() ** (1 / q) <= causal.row_moment(a, q) * (1 + 1e-12)
    assert causal.row_moment(a, 2.0) ** 2 == pytest.approx(1 + a**2)
    assert causal.row_moment(a, math.inf) == pytest.approx(1 + 2 * a)


@pytest.mark.parametrize("a", [0.0, 0.3, 1.0, 3.0])
def test_rows_with_a_known_n(a):
    """The sum over rows, G as long as i ≤ κF/G, then κF/i; or over columns; or a little more."""
    kappa, F, G = math.exp(2 * a), bounds.two_dirac_peak(a), bounds.torn_peak(a)
    for n in (1, 2, 7, 100, 10_000):
        i = torch.arange(1, n + 1, dtype=F64)
        rows = (kappa * F / i).clamp(max=G).sum().item()
        columns = (1 + a**2) * (kappa / (kappa + i - 1)).sum().item()
        found = math.exp(2 * causal.log_masked_rows(n, math.log(a) if a else -math.inf))
        assert min(rows, columns) * (1 - 1e-6) <= found
        by_rows = n * G
        if kappa * F < n * G:
            by_rows = min(by_rows, kappa * F * (1 + math.log(n * G / kappa / F)) + G)
        by_columns = (1 + a * a) * min(n, 1 + kappa * math.log(1 + (n - 1) / kappa))
        assert found == pytest.approx(min(by_rows, by_columns), rel=1e-7)


@pytest.mark.parametrize("a", [0.2, 2.0])
def test_separate_terms_by_the_letter(a):
    """Below a = log(5/3) and above it."""
    above = math.sqrt(math.expm1(2 * a))
    expected = min(2 * math.exp(a), 2 + above)
    expected += a * min(4 * math.exp(a), 4 + math.sqrt(2) * above)
    found = math.exp(causal.log_separate_terms(None, math.log(a)))
    assert found == pytest.approx(expected, rel=1e-12)
