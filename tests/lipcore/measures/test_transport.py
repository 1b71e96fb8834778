"""Transport against linear programmes, quantiles, permutations; and when its solver fails."""

import itertools
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, linprog

from draws import close, draw, measure, tensor
from lipcore.measures import (
    DiscreteMeasure,
    TimedMeasure,
    conditional_wasserstein,
    transport_plan,
    wasserstein,
)


def programme(mu, nu, p):
    """W_p^p by a general linear programme."""
    a, b = mu.weights.numpy(), nu.weights.numpy()
    cost = np.linalg.norm(mu.points.numpy()[:, None] - nu.points.numpy()[None], axis=-1) ** p
    rows = np.kron(np.eye(len(a)), np.ones(len(b)))
    columns = np.kron(np.ones(len(a)), np.eye(len(b)))
    marginals = {"A_eq": np.vstack([rows, columns])[:-1], "b_eq": np.r_[a, b][:-1]}
    return linprog(cost.ravel(), **marginals, method="highs").fun


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("d", [1, 3])
def test_wasserstein_is_the_value_of_the_linear_programme(p, d):
    for seed in range(3):
        mu, nu = measure(seed, 4 + seed, d), measure(seed + 100, 6, d)
        cost = wasserstein(mu, nu, p) ** p
        assert cost == pytest.approx(programme(mu, nu, p), rel=1e-8)
        plan = transport_plan(mu, nu, p)
        assert close(plan.sum(1), mu.weights) and close(plan.sum(0), nu.weights)
        reached = (plan * torch.cdist(mu.points, nu.points) ** p).sum().item()
        assert reached == pytest.approx(cost, rel=1e-10)


def assignment(X, Y):
    """W₂ between as many points with equal masses, by the best permutation."""
    rows, columns = linear_sum_assignment(torch.cdist(X, Y).square().numpy())
    return (X[rows] - Y[columns]).norm().item() / math.sqrt(len(X))


@pytest.mark.parametrize("shift", [1e-10, 1e-6, 1e200])
@pytest.mark.parametrize("p", [1, 2, 50])
def test_a_translation_costs_its_length_at_every_scale(shift, p):
    mu = measure(2, 20, 2)
    moved = DiscreteMeasure(mu.points.flip(0) + tensor(shift, 0.0), mu.weights.flip(0))
    assert wasserstein(mu, moved, p) == pytest.approx(shift, rel=2e-6)
    assert wasserstein(mu, mu, p) == 0


@pytest.mark.parametrize("far", [1e5, 1e7, 1e8, 1e10])
def test_one_far_point_does_not_cost_the_digits_of_the_others(far):
    """Both measures have a point there: at some seeds a solver prices short ways by rounding."""
    for seed in (*range(20), 22, 26, 43, 59):
        X, Y = draw(seed, 12, 2), draw(seed + 500, 12, 2)
        X[0, 0] = Y[0, 0] = far
        near = assignment(X[1:], Y[1:])
        best = math.sqrt((11 * near**2 + (X[0] - Y[0]).square().sum().item()) / 12)
        assert wasserstein(DiscreteMeasure(X), DiscreteMeasure(Y)) == pytest.approx(best, rel=1e-7)


@pytest.mark.parametrize("n", [2, 3, 7, 50])
def test_a_measure_is_at_distance_zero_from_itself(n):
    """In another order, with weights that differ by rounding, beside points without mass."""
    for seed in range(5):
        mu = measure(seed, n, 2)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        assert wasserstein(mu, DiscreteMeasure(mu.points[order], mu.weights[order])) < 1e-7
        weights = mu.weights * (1 + 1e-16 * draw(seed, n))
        assert wasserstein(mu, DiscreteMeasure(mu.points, weights / weights.sum())) < 1e-7
        points = torch.cat([mu.points, tensor([1e9, 0.0])])
        assert wasserstein(mu, DiscreteMeasure(points, torch.cat([mu.weights, tensor(0.0)]))) < 1e-7


@pytest.mark.parametrize("p", [1, 2, 3])
def test_short_moves_of_split_masses(p):
    """Rounding of the masses, sent far, would cost as much as all of the short moves."""
    for seed, length in itertools.product([*range(40), 178], (1e-5, 1e-6)):
        n, d, k = 2 + seed % 10, 1 + seed % 4, 2 + seed % 3
        mu = measure(seed, n, d)
        parts = measure(seed + 500, n * k, 1).weights.view(n, k)
        masses = mu.weights[:, None] * parts / parts.sum(-1, keepdim=True)
        moves = length * draw(seed + 900, n, k, d)
        nu = DiscreteMeasure((mu.points[:, None] + moves).flatten(0, 1), masses.flatten())
        expected = (masses * moves.norm(dim=-1) ** p).sum() ** (1 / p)
        assert wasserstein(mu, nu, p) == pytest.approx(expected.item(), rel=1e-5)


def stub_of_pot(monkeypatch, plan_of, warning=None):
    """Put a solver in POT's place that returns a given plan, and no dual potential but zero."""

    def emd(a, b, cost, **options):
        return plan_of(a, b), {"warning": warning, "v": np.zeros_like(b)}

    monkeypatch.setitem(sys.modules, "ot", SimpleNamespace(emd=emd))


def test_a_plan_that_is_not_optimal_is_refused(monkeypatch):
    mu = DiscreteMeasure(tensor([0.0], [1.0]))
    stub_of_pot(monkeypatch, lambda a, b: np.diag(a))
    assert wasserstein(mu, mu) == 0
    stub_of_pot(monkeypatch, np.outer)
    with pytest.raises(RuntimeError, match="optimal"):
        wasserstein(mu, mu)
    stub_of_pot(monkeypatch, np.outer, warning="numItermax reached")
    with pytest.raises(RuntimeError, match="numItermax"):
        wasserstein(mu, mu)


def test_to_one_dirac_there_is_one_plan_and_pot_is_not_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    mu, dirac = measure(0, 6, 2), DiscreteMeasure(tensor([1.0, 2.0]))
    expected = (mu.weights * (mu.points - dirac.points).square().sum(-1)).sum().sqrt().item()
    assert wasserstein(mu, dirac) == pytest.approx(expected) == wasserstein(dirac, mu)
    with pytest.raises(ImportError, match=r"lipcore\[measures\]"):
        wasserstein(mu, mu)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_conditional_distance_adds_up_linear_programmes(p):
    times, weights = tensor(0.0, 0.5, 0.5, 0.5, 1.0, 1.0), tensor(0.1, 0.1, 0.2, 0.1, 0.25, 0.25)
    other = torch.tensor([3, 5, 1, 0, 4, 2])  # another order, other masses, the same marginal
    mu = TimedMeasure(times, draw(0, 6, 2), weights)
    nu = TimedMeasure(times[other], draw(1, 6, 2), tensor(0.3, 0.4, 0.05, 0.1, 0.1, 0.05))
    marginal = {0.0: 0.1, 0.5: 0.4, 1.0: 0.5}
    expected = sum(m * programme(mu.at(t), nu.at(t), p) for t, m in marginal.items())
    assert conditional_wasserstein(mu, nu, p) ** p == pytest.approx(expected, rel=1e-9)
