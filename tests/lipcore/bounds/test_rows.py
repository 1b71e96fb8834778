"""The longest rows: closed forms against every two-level row, random rows, and rows of real inputs."""

import itertools
import math

import numpy as np
import pytest
import torch

from lipcore.bounds import torn_peak, two_dirac_peak
from lipcore.bounds._columns import log_column_sum
from lipcore.bounds.rows import log_rows


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
            with pytest.raises(ValueError, match="a: expected"):
                peak(bad)
