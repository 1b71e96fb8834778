"""The longest rows: closed forms against every two-level row, random rows, and rows of real inputs."""

import itertools
import math

import numpy as np
import pytest
import torch

from lipcore.bounds import torn_peak, two_dirac_peak
from lipcore.bounds.ball import log_column_sum, log_rows, log_seen


@pytest.mark.parametrize("a", [0.0, 0.2, 0.5, 0.7, 1.0, 3.0, 50.0])
def test_closed_form_of_the_short_peak_is_the_maximum(a):
    w = torch.linspace(0, 1, 200_001, dtype=torch.float64)
    values = w**2 * (1 + 2 * a * (1 - w)) ** 2 + (1 - w) ** 2 * (1 - 2 * a * w) ** 2
    assert torn_peak(a) == pytest.approx(values.max().item(), rel=1e-8)
    assert torn_peak(a, log=True) == pytest.approx(math.log(torn_peak(a)), abs=1e-15)


@pytest.mark.parametrize("a", [1e-3, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0])
def test_long_peak_is_the_largest_over_every_two_level_row(a):
    """Weights in two levels, tokens at ±R: the extreme rows to which convexity reduces every row."""
    grid = np.linspace(0, 1, 81)
    w, high, low = (axis.ravel() for axis in np.meshgrid(grid, grid, grid))
    small = math.exp(-2 * a)
    mass = np.stack([w * high, w * (1 - high), (1 - w) * low, (1 - w) * (1 - low)])
    side = np.array([[1.0], [-1], [1], [-1]])
    level = np.array([[1.0], [1], [small], [small]])
    moved = (1 + a * (side - (mass * side).sum(0))) ** 2
    value = (w * small + 1 - w) * (mass * level * moved).sum(0)
    assert 0.99 * two_dirac_peak(a) < value.max() <= two_dirac_peak(a) * (1 + 1e-12)


@pytest.mark.parametrize("a", [0.1, 1.0, 4.0])
def test_no_row_of_any_measure_exceeds_the_peak(a):
    """E_P[ G (1 + a(t − E t))² ] ≤ κF(a), for scores that differ by at most 2a, P = Gμ and |t| ≤ 1."""
    rng = np.random.default_rng(0)
    limit = math.exp(2 * a) * two_dirac_peak(a)
    for _ in range(3000):
        m = rng.integers(1, 6)
        mu, s, t = rng.dirichlet(np.full(m, 0.2)), rng.uniform(-a, a, m), rng.uniform(-1, 1, m)
        if rng.random() < 0.6:
            s, t = a * np.sign(s), np.sign(t)
        G = np.exp(s) / (mu * np.exp(s)).sum()
        P = mu * G
        assert (P * G * (1 + a * (t - P @ t)) ** 2).sum() <= limit * (1 + 1e-9)


def test_rows_of_inputs_in_the_ball():
    """√n times the longest row over unit g, from P and the tokens of random, clustered and antipodal inputs."""
    generator = torch.Generator().manual_seed(3)
    largest = 0.0
    for a, n, kind in itertools.product((0.3, 1.0, 4.0), (2, 5, 30), range(3)):
        X = torch.randn(200, n, 2, generator=generator, dtype=torch.float64)
        if kind:
            X[:, kind:] = X[:, :1] * torch.tensor([-1.0, 0.3])[kind - 1]
        X = X / X.norm(dim=-1, keepdim=True).clamp(min=1)
        P = torch.softmax(-a * X @ X.mT, -1)
        g = X[:, :, None] / X[:, :, None].norm(dim=-1, keepdim=True)  # query's own direction
        centred = X[:, None] - (P @ X)[:, :, None]
        rows = g + (centred * g).sum(-1, keepdim=True) * (-a * X)[:, :, None]
        length = n * (P[..., None] * rows).square().sum((-2, -1)).max().item()
        log_a = math.log(a)
        limit = math.exp(2 * log_rows(n, log_a, log_column_sum(n, log_a)))
        largest = max(largest, length / limit)
    assert 0.9 < largest <= 1 + 1e-12


def test_peaks_far_out_and_bad_sizes():
    assert two_dirac_peak(1e4) / 1e8 == pytest.approx(27 / 64, rel=1e-3)
    for peak in (torn_peak, two_dirac_peak):
        assert peak(0.0) == pytest.approx(1)
        assert math.isfinite(peak(1e300, log=True)) and peak(1e300) == math.inf
        for bad in (-1.0, math.inf):
            with pytest.raises(ValueError, match=r"^a: "):
                peak(bad)


def scores_seen(n, generator):
    """The longest rows of P_j (t_j − t̄) found: random scores, one leader, two camps."""
    t = torch.randn(4000, n, generator=generator, dtype=torch.float64)
    t *= torch.linspace(0, 20, 4000, dtype=torch.float64)[:, None]
    t[2000:, 1:] = 0
    t[3000:, : n // 2] = t[3000:, :1]
    P = t.softmax(dim=-1)
    deviations = P * (t - (P * t).sum(-1, keepdim=True))
    return deviations.norm(dim=-1).max().item()


@pytest.mark.parametrize("n", [2, 3, 5, 20, 300])
def test_what_a_row_sees_of_its_scores(n):
    """Reached by two tokens, and by a factor √2 at most not by many: M_n itself is reached there."""
    along = math.expm1(log_seen(n, -math.inf) - math.log(n) / 2)
    p = torch.linspace(1e-6, 1 - 1e-6, 1_000_001, dtype=torch.float64)
    M = (p * (1 - p) * (p.logit() + math.log(n - 1))).max().item()
    assert along == pytest.approx(math.sqrt(2) * M, rel=1e-9)
    assert M <= (1 + math.log(n)) / 4
    found = scores_seen(n, torch.Generator().manual_seed(n))
    assert found <= along * (1 + 1e-9)
    assert found > 0.999 * (along if n == 2 else M)


def test_what_a_row_sees_across():
    """Two tokens at ±R with weight one half each: Σ P_j²(e·(x_j − m))² = R²/2."""
    for n, omega in ((2, 3.0), (50, 1e3), (10**9, 0.2)):
        along = math.exp(log_seen(n, -math.inf))
        whole = math.exp(log_seen(n, math.log(omega)))
        assert whole - along == pytest.approx(math.sqrt(n * (0.5**2 + 0.5**2)) * omega, rel=1e-9)
