"""Transport against linear programmes, quantiles, permutations; and when its solver fails."""

import itertools
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, linprog

from lipcore import attention_map
from lipcore.measures import (
    DiscreteMeasure,
    TimedMeasure,
    conditional_wasserstein,
    mean_field_attention,
    transport_plan,
    wasserstein,
)
from random_measures import F64, close, draw, measure, tensor, timed


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
        assert wasserstein(mu, nu, p) ** p == pytest.approx(programme(mu, nu, p), rel=1e-8)


def test_weightless_points_do_not_count():
    mu, nu = measure(0, 4, 2), measure(5, 3, 2)
    points = torch.cat([mu.points, tensor([1e9, 0.0])])
    far = DiscreteMeasure(points, torch.cat([mu.weights, tensor(0.0)]))
    assert wasserstein(far, nu) == pytest.approx(wasserstein(mu, nu), rel=1e-12)


def quantile_distance(mu, nu, p):
    """W_p on the line, from the quantile functions."""
    sides = []
    for one in (mu, nu):
        order = one.points.flatten().argsort()
        sides.append((one.points.flatten()[order], one.weights[order].cumsum(0)))
    levels = torch.cat([cumulated for _, cumulated in sides]).sort().values
    widths = levels.diff(prepend=tensor(0.0))
    middle = (levels - widths / 2).clamp(max=1 - 1e-15)
    places = [z[torch.searchsorted(c, middle).clamp(max=len(z) - 1)] for z, c in sides]
    return ((places[0] - places[1]).abs() ** p * widths).sum() ** (1 / p)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_on_the_line_quantiles_are_matched(p):
    mu, nu = measure(3, 40, 1), measure(4, 25, 1)
    assert wasserstein(mu, nu, p) == pytest.approx(quantile_distance(mu, nu, p).item(), rel=1e-9)


def test_between_empirical_measures_the_best_plan_is_a_permutation():
    X, Y = draw(0, 30, 3), draw(1, 30, 3)
    rows, columns = linear_sum_assignment(torch.cdist(X, Y).square().numpy())
    best = (X[rows] - Y[columns]).norm().item() / math.sqrt(30)
    assert wasserstein(DiscreteMeasure(X), DiscreteMeasure(Y)) == pytest.approx(best, rel=1e-10)
    plan = transport_plan(DiscreteMeasure(X), DiscreteMeasure(Y))
    assert close(plan[rows, columns], torch.full((30,), 1 / 30, dtype=F64))


def test_the_plan_couples_the_two_and_costs_the_distance():
    mu, nu = measure(0, 7, 2), measure(1, 5, 2)
    plan = transport_plan(mu, nu, 3)
    assert close(plan.sum(1), mu.weights)
    assert close(plan.sum(0), nu.weights)
    cost = (plan * torch.cdist(mu.points, nu.points) ** 3).sum().item()
    assert cost == pytest.approx(wasserstein(mu, nu, 3) ** 3, rel=1e-10)


@pytest.mark.parametrize("shift", [1e-10, 1e-6, 1e200])
@pytest.mark.parametrize("p", [1, 2, 50])
def test_a_translation_costs_its_length_at_every_scale(shift, p):
    mu = measure(2, 20, 2)
    moved = DiscreteMeasure(mu.points.flip(0) + tensor(shift, 0.0), mu.weights.flip(0))
    assert wasserstein(mu, moved, p) == pytest.approx(shift, rel=2e-6)
    assert wasserstein(mu, mu, p) == 0


@pytest.mark.parametrize("far", [1e6, 1e7, 1e8, 1e10])
def test_one_far_point_does_not_cost_the_digits_of_the_others(far):
    """The first point of both measures at the far place: the other four are an assignment."""
    for seed in range(40):
        X, Y = draw(seed, 5, 2), draw(seed + 50, 5, 2)
        X[0, 0] = Y[0, 0] = far
        ways = (X - Y[list(order)] for order in itertools.permutations(range(5)))
        best = min((way.square().sum() / 5).sqrt().item() for way in ways)
        assert wasserstein(DiscreteMeasure(X), DiscreteMeasure(Y)) == pytest.approx(best, rel=1e-7)


@pytest.mark.parametrize("far", [1e5, 1e7, 1e9])
def test_beside_a_far_point_no_plan_is_given_up(far):
    """Far ways that count as twice the longest are too cheap at times, and are asked for again at more."""
    for seed in (15, 22, 26, 43, 59):
        X, Y = draw(seed, 12, 2), draw(seed + 500, 12, 2)
        X[0, 0] = Y[0, 0] = far
        near = torch.cdist(X[1:], Y[1:]).square().numpy()
        total = near[linear_sum_assignment(near)].sum() + (X[0] - Y[0]).square().sum().item()
        found = wasserstein(DiscreteMeasure(X), DiscreteMeasure(Y))
        assert found == pytest.approx(math.sqrt(total / 12), rel=1e-7)


@pytest.mark.parametrize("n", [2, 3, 7, 50])
def test_a_measure_is_at_distance_zero_from_itself(n):
    for seed in range(5):
        mu = measure(seed, n, 2)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        assert wasserstein(mu, DiscreteMeasure(mu.points[order], mu.weights[order])) < 1e-7
        assert wasserstein(mu, mu) == 0


def test_differences_of_weights_by_rounding_are_no_error():
    mu = measure(0, 30, 2)
    weights = mu.weights * (1 + 1e-16 * draw(1, 30))
    assert wasserstein(mu, DiscreteMeasure(mu.points, weights / weights.sum())) < 1e-7


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


def test_a_solver_that_gives_up_is_an_error(monkeypatch):
    stub_of_pot(monkeypatch, np.outer, warning="numItermax reached")
    with pytest.raises(RuntimeError, match="numItermax"):
        wasserstein(measure(0, 3, 1), measure(1, 3, 1))


def test_to_one_dirac_there_is_one_plan_and_pot_is_not_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    mu, dirac = measure(0, 6, 2), DiscreteMeasure(tensor([1.0, 2.0]))
    expected = (mu.weights * (mu.points - dirac.points).square().sum(-1)).sum().sqrt().item()
    assert wasserstein(mu, dirac) == pytest.approx(expected) == wasserstein(dirac, mu)
    with pytest.raises(ImportError, match=r"lipcore\[measures\]"):
        wasserstein(mu, mu)


def test_what_importing_pot_says_about_progress_bars_is_not_heard(monkeypatch, tmp_path, recwarn):
    (tmp_path / "ot.py").write_text(
        "import warnings\n"
        'warnings.warn("IProgress not found. Please update jupyter.")\n'
        "def emd(a, b, cost, **options):\n"
        '    return a * (a[:, None] == a), {"warning": None, "v": 0 * b}\n'
    )
    monkeypatch.delitem(sys.modules, "ot", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    mu = measure(0, 3, 1)
    assert wasserstein(mu, mu) == 0
    assert sys.modules.pop("ot").__file__ == str(tmp_path / "ot.py")
    assert not recwarn.list


@pytest.mark.parametrize("p", [0.5, 0, -1, math.nan, math.inf])
def test_orders_below_one_are_refused(p):
    with pytest.raises(ValueError, match=r"^p: "):
        wasserstein(measure(0, 2, 1), measure(1, 2, 1), p)
    with pytest.raises(ValueError, match=r"^p: "):
        conditional_wasserstein(timed(0, 2, 1), timed(0, 2, 1), p)


def test_measures_on_different_spaces_are_refused():
    mu = measure(0, 2, 1)
    with pytest.raises(ValueError, match=r"^nu: "):
        wasserstein(mu, measure(1, 2, 2))
    with pytest.raises(TypeError, match=r"^mu: "):
        wasserstein(mu.points, mu)
    with pytest.raises(TypeError, match=r"^nu: "):
        wasserstein(mu, timed(0, 2, 1))
    with pytest.raises(TypeError, match=r"^mu: "):
        conditional_wasserstein(mu, timed(0, 2, 1))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_conditional_distance_adds_up_linear_programmes(p):
    times, weights = tensor(0.0, 0.5, 0.5, 0.5, 1.0, 1.0), tensor(0.1, 0.1, 0.2, 0.1, 0.25, 0.25)
    other = torch.tensor([3, 5, 1, 0, 4, 2])  # another order, other masses, the same marginal
    mu = TimedMeasure(times, draw(0, 6, 2), weights)
    nu = TimedMeasure(times[other], draw(1, 6, 2), tensor(0.3, 0.4, 0.05, 0.1, 0.1, 0.05))
    marginal = {0.0: 0.1, 0.5: 0.4, 1.0: 0.5}
    expected = sum(m * programme(mu.at(t), nu.at(t), p) for t, m in marginal.items())
    assert conditional_wasserstein(mu, nu, p) ** p == pytest.approx(expected, rel=1e-9)


def test_with_distinct_times_it_is_the_weighted_frobenius_norm():
    mu = timed(0, 50, 3, ties=False)
    nu = TimedMeasure(mu.times, draw(9, 50, 3), mu.weights)
    expected = (mu.weights * (mu.points - nu.points).square().sum(-1)).sum().sqrt().item()
    assert conditional_wasserstein(mu, nu) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_it_is_never_below_transport_in_time_and_space(p):
    for seed in range(5):
        mu = timed(seed, 8, 2)
        nu = TimedMeasure(mu.times, draw(seed + 50, 8, 2), mu.weights)
        joint = [torch.cat([one.times[:, None], one.points], 1) for one in (mu, nu)]
        flat = [DiscreteMeasure(points, mu.weights) for points in joint]
        assert wasserstein(*flat, p) <= conditional_wasserstein(mu, nu, p) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("times", "weights", "message"),
    [
        ((0.0, 0.5, 1.0), (0.2, 0.3, 0.5), r"0\.25"),
        ((0.0, 0.25, 1.0), (0.2, 0.4, 0.4), r"0\.25"),
        ((0.0, 0.1, 0.25), (0.2, 0.3, 0.5), r"0\.1"),
    ],
)
def test_different_time_marginals_are_refused_and_the_time_is_named(times, weights, message):
    points = draw(0, 3, 1)
    mu = TimedMeasure(tensor(0.0, 0.25, 1.0), points, tensor(0.2, 0.3, 0.5))
    with pytest.raises(ValueError, match=message):
        conditional_wasserstein(mu, TimedMeasure(tensor(*times), points, tensor(*weights)))


def test_a_time_of_little_mass_is_missed_all_the_same():
    light = TimedMeasure(tensor(0.0, 0.5), draw(0, 2, 1), tensor(1e-12, 1 - 1e-12))
    with pytest.raises(ValueError, match="marginal"):
        conditional_wasserstein(light, TimedMeasure(tensor(0.5), draw(0, 1, 1)))


def test_massless_tokens_have_no_say_in_the_time_marginal():
    mu = TimedMeasure(tensor(0.0, 0.5, 1.0), draw(0, 3, 1), tensor(0.5, 0.0, 0.5))
    nu = TimedMeasure(tensor(0.0, 1.0), draw(1, 2, 1))
    assert math.isfinite(conditional_wasserstein(mu, nu))


def test_transport_ratios_are_ratios_of_frobenius_norms():
    """W₂(F(μ), F(ν))/W₂(μ, ν) ≤ ‖f(X) − f(Y_σ)‖/‖X − Y_σ‖, σ the best permutation; equal nearby."""
    A, V = -torch.eye(2, dtype=F64), torch.eye(2, dtype=F64)
    for seed, distance in itertools.product(range(10), (1e-4, 1.0)):
        X = draw(seed, 6, 2)
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        Y = (X + distance * draw(seed + 50, 6, 2))[order]
        mu, nu = DiscreteMeasure(X), DiscreteMeasure(Y)
        images = mean_field_attention(mu, A, V), mean_field_attention(nu, A, V)
        ratio = wasserstein(*images) / wasserstein(mu, nu)
        Y = Y[linear_sum_assignment(torch.cdist(X, Y).square().numpy())[1]]
        moved = (attention_map(X, A, V) - attention_map(Y, A, V)).norm()
        frobenius = (moved / (X - Y).norm()).item()
        assert ratio <= frobenius * (1 + 1e-9)
        if distance < 1:
            assert ratio == pytest.approx(frobenius, rel=1e-6)


def split_and_moved(seed, length):
    """Points whose masses are split at random, each part moved a little: the plan is known."""
    generator = torch.Generator().manual_seed(seed)
    n, d, k = (int(torch.randint(*range_, (1,), generator=generator))
               for range_ in ((2, 12), (1, 5), (2, 5)))  # fmt: skip

    def draw(sampler, *shape):
        return sampler(*shape, generator=generator, dtype=torch.float64)

    points, weights, parts = draw(torch.randn, n, d), draw(torch.rand, n), draw(torch.rand, n, k)
    weights = weights / weights.sum()
    masses = weights[:, None] * parts / parts.sum(-1, keepdim=True)
    moves = length * draw(torch.randn, n, k, d)
    mu = DiscreteMeasure(points, weights)
    nu = DiscreteMeasure((points[:, None] + moves).flatten(0, 1), masses.flatten())
    return mu, nu, masses, moves.norm(dim=-1)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_short_moves_of_split_masses(p):
    """Rounding of the masses, sent far, would cost as much as all of the short moves."""
    for seed in [*range(40), 178]:
        for length in (1e-5, 1e-6):
            mu, nu, masses, moves = split_and_moved(seed, length)
            expected = (masses * moves**p).sum() ** (1 / p)
            assert wasserstein(mu, nu, p) == pytest.approx(expected.item(), rel=1e-5)


def test_masses_that_differ_by_rounding_are_the_same():
    points = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    weights = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    other = torch.tensor([0.1, 0.2 + 2**-54, 0.7 - 2**-54], dtype=torch.float64)
    assert wasserstein(DiscreteMeasure(points, weights), DiscreteMeasure(points, other)) < 1e-7
