"""Measures, transport, local constants: against linear programmes, autodiff, differences, closed forms."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, linprog, minimize_scalar

from lipcore import Attention, attention_map
from lipcore.measures import (
    DiscreteMeasure,
    TimedMeasure,
    TwoDirac,
    conditional_wasserstein,
    gamma_derivative,
    gamma_map,
    local,
    local_constant,
    local_constants,
    masked_mean_field_attention,
    mean_field_attention,
    splitting_gain,
    splitting_gains,
    transport,
    transport_plan,
    wasserstein,
)

F64 = torch.float64


def tensor(*rows):
    return torch.tensor(rows, dtype=F64)


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def masses(seed, *shape):
    raw = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=F64) + 0.05
    return raw / raw.sum(-1, keepdim=True)


def measure(seed, n, d, scale=1.0):
    return DiscreteMeasure(scale * draw(seed, n, d), masses(seed + 1, n))


def timed(seed, n, d, ties=True):
    rand = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    times = (rand * 3).floor() / 3 if ties else rand
    return TimedMeasure(times, draw(seed + 1, n, d), masses(seed + 2, n))


def softmax_map(X, w, A, V, visible=None):
    """f(X) for tokens of masses w, straight from theory §0: the reference that autodiff is taken of."""
    density = w * torch.exp((X @ A.T) @ X.T)
    if visible is not None:
        density = density * visible
    return (density / density.sum(-1, keepdim=True)) @ X @ V.T


def reference_jacobian(X, w, A, V, visible=None):
    """D_X f by reverse mode as a matrix (n·q, n·d)."""
    J = torch.func.jacrev(lambda Y: softmax_map(Y, w, A, V, visible))(X)
    return J.reshape(X.shape[0] * V.shape[0], -1)


def reference_in_mass(X, w, A, V, visible=None):
    """W^{1/2} D_X f W^{-1/2}, by reverse mode."""
    root_out, root_in = (
        w.sqrt().repeat_interleave(V.shape[0]),
        w.sqrt().repeat_interleave(X.shape[1]),
    )
    return root_out[:, None] * reference_jacobian(X, w, A, V, visible) / root_in


def visible_of(mu):
    return (
        (mu.times[None, :] <= mu.times[:, None]).to(F64) if isinstance(mu, TimedMeasure) else None
    )


def norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2).item()


# --- measures


def test_weights_default_to_uniform():
    assert torch.equal(DiscreteMeasure(draw(0, 4, 2)).weights, torch.full((4,), 0.25, dtype=F64))


@pytest.mark.parametrize(
    ("points", "weights", "message"),
    [
        (draw(0, 2, 1), tensor(1.5, -0.5), "weights.*non-negative.*-0.5"),
        (draw(0, 2, 1), tensor(0.5, 0.4), "weights.*sum of one.*0.9"),
        (draw(0, 3, 1), tensor(0.916, 0.009, 0.074), "weights.*sum of one.*0.999"),
        (draw(0, 2, 1), tensor(0.5, math.nan), "weights.*finite"),
        (draw(0, 2, 1), tensor(0.5, 0.3, 0.2), r"weights.*shape \(2,\)"),
        (draw(0, 0, 1), None, "points.*at least one"),
        (draw(0, 2, 0), None, "points.*non-empty"),
        (draw(0, 2), None, "points.*2 dimensions"),
        (tensor([math.inf], [0.0]), None, "points.*finite"),
    ],
)
def test_a_measure_that_is_none_is_refused(points, weights, message):
    with pytest.raises(ValueError, match=message):
        DiscreteMeasure(points, weights)


@pytest.mark.parametrize("weights", [torch.tensor([0.5, 0.5]), torch.tensor([1, 0]), [0.5, 0.5]])
def test_weights_of_another_kind_are_refused(weights):
    with pytest.raises(TypeError, match="weights"):
        DiscreteMeasure(draw(0, 2, 1), weights)


def test_rounding_of_the_sum_is_no_error():
    DiscreteMeasure(draw(0, 10, 1), torch.full((10,), 0.1, dtype=F64) + 5e-11)
    DiscreteMeasure(draw(0, 100_000, 1).float())
    with pytest.raises(ValueError, match="sum of one"):
        DiscreteMeasure(draw(0, 10, 1), torch.full((10,), 0.1, dtype=F64) + 1e-9)


@pytest.mark.parametrize(
    ("times", "error", "message"),
    [
        (tensor(0.0, 1.1), ValueError, r"times.*\[0, 1\].*1.1"),
        (tensor(-0.1, 0.5), ValueError, r"times.*\[0, 1\]"),
        (tensor(0.0), ValueError, r"times.*shape \(2,\)"),
        (tensor(0.0, math.nan), ValueError, "times.*finite"),
        (torch.tensor([0, 1]), TypeError, "times"),
        (torch.tensor([0.0, 1.0]), TypeError, "times"),
    ],
)
def test_times_outside_the_interval_are_refused(times, error, message):
    with pytest.raises(error, match=message):
        TimedMeasure(times, draw(0, 2, 1))


def test_support_adds_up_copies_and_drops_massless_points():
    points = tensor([2.0, 0.0], [1.0, 0.0], [2.0, 0.0], [7.0, 7.0], [-0.0, 1.0], [0.0, 1.0])
    support = DiscreteMeasure(points, tensor(0.1, 0.2, 0.3, 0.0, 0.25, 0.15)).support()
    assert torch.equal(support.points, points[[0, 1, 4]])
    torch.testing.assert_close(support.weights, tensor(0.4, 0.2, 0.4))


def test_support_keeps_copies_at_different_times_apart():
    mu = TimedMeasure(
        tensor(0.5, 0.5, 1.0, 0.0), tensor([1.0], [1.0], [1.0], [1.0]), tensor(0.2, 0.3, 0.5, 0.0)
    )
    support = mu.support()
    assert support.times.tolist() == [0.5, 1.0] and support.weights.tolist() == [0.5, 0.5]


def test_the_radius_counts_only_what_has_mass():
    points, weights = tensor([3.0, 4.0], [10.0, 0.0]), tensor(1.0, 0.0)
    assert DiscreteMeasure(points, weights).radius == 5
    assert TimedMeasure(tensor(0.0, 0.0), points, weights).radius == 5


def test_a_timed_measure_falls_apart_into_laws():
    mu = TimedMeasure(
        tensor(1.0, 0.5, 1.0, 0.0), tensor([1.0], [2.0], [3.0], [4.0]), tensor(0.1, 0.6, 0.3, 0.0)
    )
    times, weights = mu.time_marginal()
    assert times.tolist() == [0.5, 1.0]
    torch.testing.assert_close(weights, tensor(0.6, 0.4))
    torch.testing.assert_close(mu.at(1.0).weights, tensor(0.25, 0.75))
    assert mu.at(1.0).points.flatten().tolist() == [1, 3]
    for time in (0.0, 0.75):
        with pytest.raises(ValueError, match="time: expected a time that has mass"):
            mu.at(time)


# --- transport


def programme(mu, nu, p):
    """W_p^p by a general linear programme."""
    a, b = mu.weights.numpy(), nu.weights.numpy()
    cost = np.linalg.norm(mu.points.numpy()[:, None] - nu.points.numpy()[None], axis=-1) ** p
    rows, columns = (
        np.kron(np.eye(len(a)), np.ones(len(b))),
        np.kron(np.ones(len(a)), np.eye(len(b))),
    )
    found = linprog(
        cost.ravel(), A_eq=np.vstack([rows, columns])[:-1], b_eq=np.r_[a, b][:-1], method="highs"
    )
    return found.fun


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("d", [1, 3])
def test_wasserstein_is_the_value_of_the_linear_programme(p, d):
    for seed in range(5):
        mu, nu = measure(seed, 4 + seed, d), measure(seed + 100, 6, d)
        assert wasserstein(mu, nu, p) ** p == pytest.approx(programme(mu, nu, p), rel=1e-8)


def test_weightless_points_do_not_count():
    mu, nu = measure(0, 4, 2), measure(5, 3, 2)
    far = DiscreteMeasure(
        torch.cat([mu.points, tensor([1e9, 0.0])]), torch.cat([mu.weights, tensor(0.0)])
    )
    assert wasserstein(far, nu) == pytest.approx(wasserstein(mu, nu), rel=1e-12)


def quantile_distance(mu, nu, p):
    """W_p on the line, from the quantile functions."""
    (x, a), (y, b) = (
        (k.points.flatten()[i := k.points.flatten().argsort()], k.weights[i].cumsum(0))
        for k in (mu, nu)
    )
    levels = torch.cat([a, b]).sort().values
    widths = levels.diff(prepend=tensor(0.0))
    middle = (levels - widths / 2).clamp(max=1 - 1e-15)
    quantile = [z[torch.searchsorted(c, middle).clamp(max=len(z) - 1)] for z, c in ((x, a), (y, b))]
    return ((quantile[0] - quantile[1]).abs() ** p * widths).sum() ** (1 / p)


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
    torch.testing.assert_close(plan[rows, columns], torch.full((30,), 1 / 30, dtype=F64))


def test_the_plan_couples_the_two_and_costs_the_distance():
    mu, nu = measure(0, 7, 2), measure(1, 5, 2)
    plan = transport_plan(mu, nu, 3)
    torch.testing.assert_close(plan.sum(1), mu.weights)
    torch.testing.assert_close(plan.sum(0), nu.weights)
    cost = (plan * torch.cdist(mu.points, nu.points) ** 3).sum().item()
    assert cost == pytest.approx(wasserstein(mu, nu, 3) ** 3, rel=1e-10)


@pytest.mark.parametrize("shift", [1e-10, 1e-6, 1e200])
@pytest.mark.parametrize("p", [1, 2, 50])
def test_a_translation_costs_its_length_at_every_scale(shift, p):
    mu = measure(2, 20, 2)
    moved = DiscreteMeasure(mu.points.flip(0) + tensor(shift, 0.0), mu.weights.flip(0))
    assert wasserstein(mu, moved, p) == pytest.approx(shift, rel=2e-6)
    assert wasserstein(mu, mu, p) == 0


def test_to_one_dirac_there_is_one_plan_and_pot_is_not_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    mu, dirac = measure(0, 6, 2), DiscreteMeasure(tensor([1.0, 2.0]))
    expected = (mu.weights * (mu.points - dirac.points).square().sum(-1)).sum().sqrt().item()
    assert wasserstein(mu, dirac) == pytest.approx(expected) == wasserstein(dirac, mu)
    with pytest.raises(ImportError, match=r"lipcore\[measures\]"):
        wasserstein(mu, mu)


def test_what_importing_pot_says_about_progress_bars_is_not_heard(monkeypatch, tmp_path, recwarn):
    (tmp_path / "ot.py").write_text(
        'import warnings\nwarnings.warn("IProgress not found. Please update jupyter.")\n'
    )
    monkeypatch.delitem(sys.modules, "ot", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert transport._pot().__file__ == str(tmp_path / "ot.py")
    assert not recwarn.list


def test_a_solver_that_gives_up_is_an_error(monkeypatch):
    class Pot:
        @staticmethod
        def emd(a, b, cost, **options):
            return np.outer(a, b), {"warning": "numItermax reached"}

    monkeypatch.setattr(transport, "_pot", lambda: Pot)
    with pytest.raises(RuntimeError, match="numItermax"):
        wasserstein(measure(0, 3, 1), measure(1, 3, 1))


@pytest.mark.parametrize("p", [0.5, 0, -1, math.nan, math.inf])
def test_orders_below_one_are_refused(p):
    with pytest.raises(ValueError, match="p: expected"):
        wasserstein(measure(0, 2, 1), measure(1, 2, 1), p)
    with pytest.raises(ValueError, match="p: expected"):
        conditional_wasserstein(timed(0, 2, 1), timed(0, 2, 1), p)


def test_measures_on_different_spaces_are_refused():
    with pytest.raises(ValueError, match=r"nu: expected points of dimension 1.*got 2"):
        wasserstein(measure(0, 2, 1), measure(1, 2, 2))
    for mu, nu, name in (
        (draw(0, 2, 1), measure(0, 2, 1), "mu"),
        (measure(0, 2, 1), timed(0, 2, 1), "nu"),
    ):
        with pytest.raises(TypeError, match=f"{name}: expected a DiscreteMeasure"):
            wasserstein(mu, nu)
    with pytest.raises(TypeError, match="mu: expected a TimedMeasure"):
        conditional_wasserstein(measure(0, 2, 1), timed(0, 2, 1))


# --- conditional transport


@pytest.mark.parametrize("p", [1, 2, 3])
def test_conditional_distance_adds_up_linear_programmes(p):
    times, weights = tensor(0.0, 0.5, 0.5, 0.5, 1.0, 1.0), tensor(0.1, 0.1, 0.2, 0.1, 0.25, 0.25)
    other = torch.tensor([3, 5, 1, 0, 4, 2])  # another order, other masses, the same marginal
    mu = TimedMeasure(times, draw(0, 6, 2), weights)
    nu = TimedMeasure(times[other], draw(1, 6, 2), tensor(0.3, 0.4, 0.05, 0.1, 0.1, 0.05))
    expected = sum(
        theta * programme(mu.at(tau), nu.at(tau), p)
        for tau, theta in ((0.0, 0.1), (0.5, 0.4), (1.0, 0.5))
    )
    assert conditional_wasserstein(mu, nu, p) ** p == pytest.approx(expected, rel=1e-9)


def test_with_distinct_times_it_is_the_weighted_frobenius_norm():
    mu = timed(0, 50, 3, ties=False)
    nu = TimedMeasure(mu.times, draw(9, 50, 3), mu.weights)
    expected = (mu.weights * (mu.points - nu.points).square().sum(-1)).sum().sqrt().item()
    assert conditional_wasserstein(mu, nu) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_it_is_never_below_transport_in_time_and_space(p):
    for seed in range(10):
        mu = timed(seed, 8, 2)
        nu = TimedMeasure(mu.times, draw(seed + 50, 8, 2), mu.weights)
        joint = [
            DiscreteMeasure(torch.cat([k.times[:, None], k.points], 1), k.weights) for k in (mu, nu)
        ]
        assert wasserstein(*joint, p) <= conditional_wasserstein(mu, nu, p) * (1 + 1e-9)


def test_different_time_marginals_are_refused_and_the_time_is_named():
    points = draw(0, 3, 1)
    mu = TimedMeasure(tensor(0.0, 0.25, 1.0), points, tensor(0.2, 0.3, 0.5))
    with pytest.raises(ValueError, match=r"time 0\.25 has mass 0\.3 in mu and 0 in nu"):
        conditional_wasserstein(mu, TimedMeasure(tensor(0.0, 0.5, 1.0), points, mu.weights))
    with pytest.raises(ValueError, match=r"time 0\.25 has mass 0\.3 in mu and 0\.4 in nu"):
        conditional_wasserstein(mu, TimedMeasure(mu.times, points, tensor(0.2, 0.4, 0.4)))
    with pytest.raises(ValueError, match=r"time 0\.1 has mass 0 in mu"):
        conditional_wasserstein(mu, TimedMeasure(tensor(0.0, 0.1, 0.25), points, mu.weights))
    with pytest.raises(ValueError, match="time marginal of mu"):
        light = TimedMeasure(tensor(0.0, 0.5), points[:2], tensor(1e-12, 1 - 1e-12))
        conditional_wasserstein(light, TimedMeasure(tensor(0.5), points[:1]))


def test_massless_tokens_have_no_say_in_the_time_marginal():
    mu = TimedMeasure(tensor(0.0, 0.5, 1.0), draw(0, 3, 1), tensor(0.5, 0.0, 0.5))
    nu = TimedMeasure(tensor(0.0, 1.0), draw(1, 2, 1))
    assert math.isfinite(conditional_wasserstein(mu, nu))


# --- the maps


def test_mean_field_attention_is_the_push_forward_by_gamma():
    mu, A, V = measure(0, 5, 3), draw(7, 3, 3), draw(8, 2, 3)
    image = mean_field_attention(mu, A, V)
    torch.testing.assert_close(
        image.points, softmax_map(mu.points, mu.weights, A, V), rtol=1e-13, atol=1e-13
    )
    torch.testing.assert_close(image.points, gamma_map(mu, mu.points, A, V), rtol=1e-13, atol=1e-13)
    assert torch.equal(image.weights, mu.weights)


def test_gamma_at_any_point_is_the_integral():
    mu, A, V, x = measure(0, 5, 2), draw(7, 2, 2), draw(8, 3, 2), draw(9, 4, 2)
    for i, value in enumerate(gamma_map(mu, x, A, V)):
        density = [
            w * math.exp(float((A @ x[i]) @ y))
            for w, y in zip(mu.weights.tolist(), mu.points, strict=True)
        ]
        expected = V @ sum(g * y for g, y in zip(density, mu.points, strict=True)) / sum(density)
        torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-13)


def test_weights_stand_for_repeated_tokens():
    counts = torch.tensor([3, 1, 4, 2])
    points, A, V = draw(0, 4, 2), draw(1, 2, 2), draw(2, 2, 2)
    weighted = mean_field_attention(DiscreteMeasure(points, counts / counts.sum().double()), A, V)
    repeated = attention_map(points.repeat_interleave(counts, 0), A, V)
    torch.testing.assert_close(
        repeated, weighted.points.repeat_interleave(counts, 0), rtol=1e-13, atol=1e-13
    )
    image = DiscreteMeasure(repeated)
    assert wasserstein(image, weighted) < 1e-7
    assert len(image.points) == 10


def test_masked_attention_of_a_sequence_in_any_order():
    X, A, V = draw(0, 6, 2), draw(1, 2, 2), draw(2, 3, 2)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    mu = TimedMeasure(order.double() / 5, X[order])
    expected = attention_map(X, A, V, causal=True)[order]
    image = masked_mean_field_attention(mu, A, V)
    torch.testing.assert_close(image.points, expected, rtol=1e-13, atol=1e-13)
    assert torch.equal(image.times, mu.times) and torch.equal(image.weights, mu.weights)
    torch.testing.assert_close(
        gamma_map(mu, mu.points, A, V, times=mu.times), expected, rtol=1e-13, atol=1e-13
    )


def test_tokens_that_share_a_time_see_one_another():
    mu, A, V = timed(0, 8, 2), draw(1, 2, 2), draw(2, 2, 2)
    assert len(mu.time_marginal()[0]) < 8
    expected = softmax_map(mu.points, mu.weights, A, V, visible_of(mu))
    torch.testing.assert_close(
        masked_mean_field_attention(mu, A, V).points, expected, rtol=1e-13, atol=1e-13
    )
    together = TimedMeasure(torch.full((8,), 0.5, dtype=F64), mu.points, mu.weights)
    image = masked_mean_field_attention(together, A, V)
    flat = mean_field_attention(DiscreteMeasure(mu.points, mu.weights), A, V)
    torch.testing.assert_close(image.points, flat.points, rtol=1e-13, atol=1e-13)


def test_a_continuum_of_times_is_the_limit_of_sequences():
    """Tokens x(τ) = τ, density θ uniform, scores −xy: Γ(s, x) = ∫₀ˢ e^{−xy} y dy / ∫₀ˢ e^{−xy} dy."""
    n, s, x = 4000, 0.75, 2.0
    tau = (torch.arange(n, dtype=F64) + 0.5) / n
    mu = TimedMeasure(tau, tau[:, None])
    exact = (1 - math.exp(-x * s) * (1 + x * s)) / (x * (1 - math.exp(-x * s)))
    found = gamma_map(
        mu, tensor([x]), -torch.eye(1, dtype=F64), torch.eye(1, dtype=F64), times=tensor(s)
    )
    assert found.item() == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("with_times", [False, True])
def test_the_derivative_of_gamma_is_that_of_autodiff(with_times):
    mu, A, V, x = (
        (timed if with_times else measure)(0, 6, 3),
        draw(1, 3, 3),
        draw(2, 2, 3),
        draw(3, 4, 3),
    )
    times = mu.times.sort().values[[0, 2, 3, 5]] if with_times else None
    J = torch.func.jacrev(lambda y: gamma_map(mu, y, A, V, times=times))(x)
    expected = torch.stack([J[i, :, i] for i in range(4)])
    torch.testing.assert_close(
        gamma_derivative(mu, x, A, V, times=times), expected, rtol=1e-12, atol=1e-12
    )


def test_a_massless_token_has_an_image_where_gamma_is_defined():
    points, A, V = draw(0, 3, 1), draw(1, 1, 1), draw(2, 1, 1)
    weights = tensor(0.0, 0.5, 0.5)
    image = mean_field_attention(DiscreteMeasure(points, weights), A, V)
    assert torch.isfinite(image.points).all()
    late = TimedMeasure(tensor(1.0, 0.0, 0.5), points, weights)
    assert torch.isfinite(masked_mean_field_attention(late, A, V).points).all()
    early = TimedMeasure(tensor(0.0, 0.5, 1.0), points, weights)
    with pytest.raises(ValueError, match=r"mu\.times: expected times from 0\.5 on.*got 0"):
        masked_mean_field_attention(early, A, V)
    assert len(masked_mean_field_attention(early.support(), A, V).points) == 2


BAD_MATRICES = [
    (draw(0, 3, 3), draw(0, 2, 2), ValueError, "A: expected shape"),
    (draw(0, 2, 3), draw(0, 2, 2), ValueError, "A: expected a square"),
    (draw(0, 2, 2), draw(0, 2, 3), ValueError, "V: expected 2 columns"),
    (draw(0, 2, 2), draw(0, 0, 2), ValueError, "V: expected"),
    (draw(0, 2, 2).float(), draw(0, 2, 2), TypeError, "A is torch.float32"),
    (draw(0, 2, 2), draw(0, 2, 2).float(), TypeError, "V is torch.float32"),
    (draw(0, 2, 2) * math.nan, draw(0, 2, 2), ValueError, "A: expected finite"),
    (torch.eye(2, dtype=torch.int64), draw(0, 2, 2), TypeError, "A: expected float32 or float64"),
]


@pytest.mark.parametrize(("A", "V", "error", "message"), BAD_MATRICES)
def test_matrices_that_do_not_fit_are_refused(A, V, error, message):
    mu, nu = measure(0, 3, 2), timed(0, 3, 2)
    calls = [
        lambda: mean_field_attention(mu, A, V),
        lambda: masked_mean_field_attention(nu, A, V),
        lambda: local_constant(mu, A, V),
        lambda: splitting_gain(nu, A, V),
        lambda: gamma_map(mu, mu.points, A, V),
        lambda: local_constants(mu.points[None], mu.weights[None], A, V),
    ]
    for call in calls:
        with pytest.raises(error, match=message):
            call()


def test_what_is_no_measure_or_lacks_its_times_is_refused():
    mu, nu, eye = measure(0, 3, 2), timed(0, 3, 2), torch.eye(2, dtype=F64)
    with pytest.raises(TypeError, match="mu: expected a DiscreteMeasure"):
        mean_field_attention(nu, eye, eye)
    with pytest.raises(TypeError, match="mu: expected a TimedMeasure"):
        masked_mean_field_attention(mu, eye, eye)
    for call in (local_constant, splitting_gain):
        with pytest.raises(TypeError, match="mu: expected a DiscreteMeasure or a TimedMeasure"):
            call(mu.points, eye, eye)
    with pytest.raises(ValueError, match="times: expected one for each row of x"):
        gamma_map(nu, mu.points, eye, eye)
    with pytest.raises(ValueError, match="times: expected None"):
        gamma_map(mu, mu.points, eye, eye, times=nu.times)
    with pytest.raises(ValueError, match="x: expected tokens of dimension 2"):
        gamma_map(mu, draw(0, 2, 3), eye, eye)
    with pytest.raises(ValueError, match="scores that overflow"):
        gamma_map(mu, 1e200 * mu.points, 1e200 * eye, eye)
    with pytest.raises(ValueError, match="times: expected times from"):
        gamma_map(
            TimedMeasure(tensor(0.5), tensor([0.0, 0.0])),
            mu.points,
            eye,
            eye,
            times=tensor(0.5, 0.4, 0.6),
        )


# --- local constants


@pytest.mark.parametrize("make", [measure, timed])
@pytest.mark.parametrize(("n", "d", "q"), [(1, 1, 1), (1, 3, 2), (2, 1, 1), (5, 3, 2), (12, 2, 4)])
def test_local_constant_is_the_norm_of_the_derivative_by_autodiff(make, n, d, q):
    mu, A, V = make(n + d, n, d), draw(1, d, d), draw(2, q, d)
    expected = norm(reference_in_mass(mu.points, mu.weights, A, V, visible_of(mu)))
    assert local_constant(mu, A, V, tol=1e-12) == pytest.approx(expected, rel=1e-12)
    times = mu.times if make is timed else None
    assert local_constants(mu.points, mu.weights, A, V, times=times).item() == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize("make", [measure, timed])
def test_batches_agree_with_single_measures(make):
    """With massless atoms, copies, and ties in time among them; leading dimensions are kept."""
    mus = [make(seed, 6, 2) for seed in range(6)]
    points, weights = (
        torch.stack([mu.points for mu in mus]),
        torch.stack([mu.weights for mu in mus]),
    )
    points[1, 3] = points[1, 0]
    points[2, 1:4] = points[2, 0]
    weights[3] = tensor(0.0, 0.5, 0.0, 0.2, 0.3, 0.0)
    weights[4] = tensor(0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    weights[5], points[5, 1] = tensor(0.0, 0.4, 0.0, 0.2, 0.4, 0.0), points[5, 4]
    times = torch.stack([mu.times for mu in mus]) if make is timed else None
    A, V = draw(1, 2, 2), draw(2, 3, 2)
    batch = (points.view(2, 3, 6, 2), weights.view(2, 3, 6), A, V)
    options = {} if times is None else {"times": times.view(2, 3, 6)}
    gains = splitting_gains(*batch, **options)
    for splitting in (False, True):
        found = local_constants(*batch, splitting=splitting, **options)
        assert found.shape == gains.shape == (2, 3)
        for i in range(6):
            mu = DiscreteMeasure(points[i], weights[i])
            mu = mu if times is None else TimedMeasure(times[i], points[i], weights[i])
            expected = local_constant(mu, A, V, splitting=splitting, tol=1e-12)
            assert found.flatten()[i].item() == pytest.approx(expected, rel=1e-11)
            assert gains.flatten()[i].item() == pytest.approx(
                splitting_gain(mu, A, V, tol=1e-12), rel=1e-11
            )


def test_chunks_do_not_change_the_result(monkeypatch):
    points, A, V = draw(0, 50, 3, 1), -torch.eye(1, dtype=F64), torch.eye(1, dtype=F64)
    whole = local_constants(points, None, A, V, splitting=True)
    monkeypatch.setattr(local, "BATCH_BYTES", 1000)
    assert torch.equal(local_constants(points, None, A, V, splitting=True), whole)
    mu = measure(0, 20, 2)
    expected = gamma_derivative(mu, mu.points, draw(1, 2, 2), draw(2, 2, 2))
    found = local._own_query_norm(mu, draw(1, 2, 2), draw(2, 2, 2))
    assert found == pytest.approx(torch.linalg.matrix_norm(expected, 2).max().item(), rel=1e-13)


@pytest.mark.parametrize(
    ("points", "weights", "times", "message"),
    [
        (
            draw(0, 2, 3, 1),
            tensor([0.5, 0.5, 0.0], [0.9, 0.0, 0.2]),
            None,
            "weights.*sum of one.*1.1",
        ),
        (
            draw(0, 2, 3, 1),
            tensor([1.5, -0.5, 0.0], [1.0, 0.0, 0.0]),
            None,
            "weights.*non-negative",
        ),
        (draw(0, 2, 3, 1), tensor(0.5, 0.5, 0.0), None, "weights.*shape"),
        (draw(0, 2, 0, 1), None, None, "points.*at least one"),
        (draw(0, 1, 2, 1), None, tensor([0.0, 2.0]), "times"),
        (draw(0, 1, 2, 1), None, tensor(0.0, 1.0), "times.*shape"),
    ],
)
def test_batches_of_what_is_no_measure_are_refused(points, weights, times, message):
    eye = torch.eye(1, dtype=F64)
    with pytest.raises(ValueError, match=message):
        local_constants(points, weights, eye, eye, times=times)


def test_extreme_weights_and_scores_give_numbers():
    eye = torch.eye(1, dtype=F64)
    points = tensor([[-10.0], [10.0]], [[0.0], [0.0]], [[0.0], [1e-300]], [[-30.0], [30.0]])
    weights = tensor([1e-300, 1 - 1e-300], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5])
    for A in (eye, -eye):
        for splitting in (False, True):
            assert torch.isfinite(
                local_constants(points, weights, A, eye, splitting=splitting)
            ).all()
    mu = DiscreteMeasure(draw(0, 4, 1))
    assert local_constant(mu, eye, 0 * eye) == 0 and splitting_gain(mu, eye, 0 * eye) == 1


def test_an_iteration_that_stops_early_is_an_error(monkeypatch):
    found = local.spectral_norm(torch.eye(2, dtype=F64))
    object.__setattr__(found, "converged", torch.tensor(False))
    monkeypatch.setattr(local, "spectral_norm", lambda *args, **options: found)
    with pytest.raises(RuntimeError, match="local_constant: expected the relative tolerance"):
        local_constant(measure(0, 3, 1), torch.eye(1, dtype=F64), torch.eye(1, dtype=F64))


# --- theory §5: W₂ of empirical measures, mean-field and masked bounds


def test_without_copies_the_constant_is_that_of_the_sequence():
    X, A, V = draw(0, 7, 2), draw(1, 2, 2), draw(2, 2, 2)
    jacobian = Attention.from_matrices(A, V).jacobian(X)
    assert local_constant(DiscreteMeasure(X), A, V, tol=1e-12) == pytest.approx(
        norm(jacobian.dense()), rel=1e-12
    )


def test_transport_ratios_are_ratios_of_frobenius_norms():
    """With σ the best permutation, W₂(F(μ), F(ν))/W₂(μ, ν) ≤ ‖f(X) − f(Y_σ)‖/‖X − Y_σ‖; equal nearby."""
    A, V = -torch.eye(2, dtype=F64), torch.eye(2, dtype=F64)
    for seed, distance in itertools.product(range(10), (1e-4, 1.0)):
        X = draw(seed, 6, 2)
        Y = (X + distance * draw(seed + 50, 6, 2))[
            torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        ]
        mu, nu = DiscreteMeasure(X), DiscreteMeasure(Y)
        ratio = wasserstein(
            mean_field_attention(mu, A, V), mean_field_attention(nu, A, V)
        ) / wasserstein(mu, nu)
        sigma = linear_sum_assignment(torch.cdist(X, Y).square().numpy())[1]
        frobenius = (attention_map(X, A, V) - attention_map(Y[sigma], A, V)).norm() / (
            X - Y[sigma]
        ).norm()
        assert ratio <= frobenius.item() * (1 + 1e-9)
        if distance < 1:
            assert ratio == pytest.approx(frobenius.item(), rel=1e-6)


def mean_field_bound(a):
    return (1 + a) * math.exp(a) + a


def best_two_dirac(a):
    """Largest constant over p for A = −γI, γR² = a, and the odds (1−p)/p where it is attained."""
    found = minimize_scalar(
        lambda t: -TwoDirac(1 / (1 + math.exp(t)), 1.0, a).constant.item(),
        bounds=(2 * a - 4, 2 * a + 4), method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    return -found.fun, math.exp(found.x - 2 * a)


@pytest.mark.parametrize(("a", "factor"), [(1, 2.10), (3, 1.73), (8, 1.60), (16, 1.57)])
def test_two_diracs_reach_the_mean_field_bound_to_a_factor(a, factor):
    best, _ = best_two_dirac(a)
    assert mean_field_bound(a) / best == pytest.approx(factor, rel=0.01)
    assert (1 + 3 * a) * math.exp(2 * a) / best > factor


def test_the_factor_tends_to_eight_over_three_root_three():
    gaps = []
    for a in (30, 60, 120, 240):
        best, odds = best_two_dirac(a)
        gaps.append(mean_field_bound(a) / best - 8 / (3 * math.sqrt(3)))
        assert odds == pytest.approx(3, rel=2 / a)
    assert all(
        2 * after == pytest.approx(before, rel=0.05) for before, after in itertools.pairwise(gaps)
    )
    assert 0 < gaps[-1] < 0.003


@pytest.mark.parametrize("p", [1e-6, 0.01, 0.5, 0.9])
@pytest.mark.parametrize(
    "options", [{}, {"sign": 1}, {"positions": (0.3, -0.8)}, {"sign": 1, "positions": (1, 0)}]
)
def test_closed_forms_of_two_diracs(p, options):
    pair = TwoDirac(p, 1.5, 0.8, **options)
    for dim in (1, 3):
        mu, V = pair.measure(dim), torch.eye(dim, dtype=F64)
        A = pair.sign * 0.8 * V
        expected = (
            pair.constant if dim == 1 else torch.maximum(pair.constant, pair.transverse_constant)
        )
        assert local_constant(mu, A, V, tol=1e-13) == pytest.approx(expected.item(), rel=1e-12)
        assert local_constants(mu.points, mu.weights, A, V).item() == pytest.approx(
            expected.item(), rel=1e-12
        )
        torch.testing.assert_close(
            gamma_map(mu, mu.points, A, V)[:, 0], pair.images, rtol=1e-12, atol=1e-12
        )
        own = torch.linalg.matrix_norm(gamma_derivative(mu, mu.points, A, V), 2)
        torch.testing.assert_close(own, pair.own_query, rtol=1e-12, atol=1e-12)
    weights = Attention.from_matrices(A, V, log_weights=mu.weights.log()).weights(mu.points)[0]
    torch.testing.assert_close(pair.other_weight, torch.stack([weights[0, 1], weights[1, 0]]))
    torch.testing.assert_close(pair.own_weight, weights.diagonal(), rtol=1e-12, atol=1e-14)


def test_two_diracs_take_a_curve_of_masses():
    p = torch.logspace(-9, -0.01, 50, dtype=F64)
    curve = TwoDirac(p, 1.0, 3.0).constant
    assert curve.shape == (50,)
    assert curve[7].item() == TwoDirac(p[7].item(), 1.0, 3.0).constant.item()
    gap = 2 * 3.0  # theory §3: w = 1/(1 + (1/p − 1) e^{−g*})
    torch.testing.assert_close(
        TwoDirac(p, 1.0, 3.0).other_weight[:, 1], 1 / (1 + (1 / p - 1) * math.exp(-gap))
    )
    torch.testing.assert_close(
        TwoDirac(p, 2.0, 3.0, sign=1).other_weight[:, 1], 1 / (1 + (1 / p - 1) * math.exp(-3))
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 1.0), "p: expected"),
        ((1.0, 1.0, 1.0), "p: expected"),
        ((math.nan, 1.0, 1.0), "p: expected"),
        ((0.5, -1.0, 1.0), "radius"),
        ((0.5, 1.0, -1.0), "gamma"),
        ((0.5, 1e200, 1.0), r"gamma \* radius"),
        ((0.5, 1.0, 1.0, 2), "sign"),
        ((0.5, 1.0, 1.0, 1, (1.0, 2.0, 3.0)), "positions"),
        ((0.5, 1.0, 1.0, 1, (1.0, math.inf)), "positions"),
    ],
)
def test_two_diracs_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        TwoDirac(*arguments)


def test_only_a_single_mass_makes_a_measure():
    with pytest.raises(ValueError, match="p: expected one mass"):
        TwoDirac(tensor(0.1, 0.2), 1.0, 1.0).measure()


def test_the_cross_over_seen_through_weights():
    """n − 1 copies at R, one token at −R, A = −I, R² = a = 3, n to 10⁵: growth, and a turn near e^{2a}."""
    a, V = 3.0, torch.eye(1, dtype=F64)
    points = tensor([-math.sqrt(a)], [math.sqrt(a)])
    lengths = torch.tensor([2, 8, 20, 60, 200, 1000, 1053, 5000, 20_000, 100_000], dtype=F64)
    weights = torch.stack([1 / lengths, 1 - 1 / lengths], dim=-1)
    found = local_constants(points.expand(len(lengths), 2, 1), weights, -V, V, splitting=True)
    for n in (8, 20):
        X = torch.cat([points[:1], points[1:].expand(n - 1, 1)])
        of_sequence = norm(Attention.from_matrices(-V, V).jacobian(X).dense())
        assert found[lengths == n].item() == pytest.approx(of_sequence, rel=1e-12)
    kappa = math.exp(2 * a)
    upper = (1 + a) * (lengths * kappa / (lengths + kappa - 1)).sqrt() + a
    assert (found < upper).all()
    assert found.argmax() == 6 and found.max().item() == pytest.approx(48.07, abs=0.01)
    assert (upper / found)[5].item() == pytest.approx(1.47, abs=0.01)
    w = 1 / (1 + (lengths - 1) / kappa)
    lower = (lengths - 1).sqrt() * w * (1 + 2 * a * (1 - w))  # theory §3
    assert (lower <= found).all() and (found[2:] < 1.3 * lower[2:]).all()


@pytest.mark.parametrize("sign", [-1, 1, 0])
def test_no_measure_breaks_the_mean_field_bound(sign):
    for seed, d in itertools.product(range(3), (1, 2)):
        A = draw(seed, d, d) if sign == 0 else sign * torch.eye(d, dtype=F64)
        A /= norm(A)
        points = draw(seed + 10, 500, 3, d)
        points *= 1.5 / points.norm(dim=-1, keepdim=True).amax(1, keepdim=True)  # R = 1.5: a = 2.25
        weights = (4 * draw(seed + 20, 500, 3)).softmax(-1)
        times = (torch.rand(500, 3, generator=torch.Generator().manual_seed(seed)) * 3).floor().to(
            F64
        ) / 3
        V = torch.eye(d, dtype=F64)
        assert local_constants(points, weights, A, V, splitting=True).max() <= mean_field_bound(
            2.25
        )
        masked = local_constants(points, weights, A, V, splitting=True, times=times).max()
        assert masked <= 2 * (1 + 4.5) * math.exp(2.25) + 2.25


# --- theory §7: the constant 2 of causal averaging


def test_uniform_causal_averaging_has_norm_below_two_and_growing():
    eye, found = torch.eye(1, dtype=F64), []
    for n in (2, 10, 100, 400):
        mu = TimedMeasure(torch.arange(n, dtype=F64) / n, draw(0, n, 1))
        found.append(local_constant(mu, 0 * eye, eye))
        cesaro = (
            torch.tril(torch.ones(n, n, dtype=F64)) / torch.arange(1, n + 1, dtype=F64)[:, None]
        )
        assert found[-1] == pytest.approx(norm(cesaro), rel=1e-7)
    assert found == sorted(found) and found[-1] < 2


def test_a_geometric_time_marginal_shows_the_constant_two():
    """Masses e^{−δ(n−i)}: the norm is that of an n × n Toeplitz matrix with symbol at most 1 + e^{−δ/2}."""
    n, delta, eye = 1000, 0.05, torch.eye(1, dtype=F64)
    cumulated = torch.exp(-delta * torch.arange(n - 1, -1, -1, dtype=F64))
    weights = cumulated.diff(prepend=tensor(0.0))
    mu = TimedMeasure(torch.arange(n, dtype=F64) / n, draw(0, n, 1), weights)
    found = local_constant(mu, 0 * eye, eye)
    assert 1.95 < found < 1 + math.exp(-delta / 2) < 2


# --- theory §9: mass splitting

EXAMPLE = DiscreteMeasure(
    tensor([-0.091], [-6.124], [-3.012]), tensor(0.916477, 0.009119, 0.074404)
)
EXAMPLE_A, EXAMPLE_V = tensor([-2.220]), tensor([1.0])


def test_the_splitting_example():
    """Weights that round to 0.916, 0.009, 0.074 (which sum to 0.999)."""
    assert local_constant(EXAMPLE, EXAMPLE_A, EXAMPLE_V) == pytest.approx(0.30220, abs=5e-6)
    assert local_constant(EXAMPLE, EXAMPLE_A, EXAMPLE_V, splitting=True) == pytest.approx(
        0.99514, abs=1e-5
    )
    assert splitting_gain(EXAMPLE, EXAMPLE_A, EXAMPLE_V) == pytest.approx(3.293, abs=1e-3)
    rounded = DiscreteMeasure(EXAMPLE.points, tensor(0.916, 0.009, 0.074) / 0.999)
    assert local_constant(rounded, EXAMPLE_A, EXAMPLE_V) == pytest.approx(0.3011, abs=1e-4)


@pytest.mark.parametrize("make", [measure, timed])
def test_a_sequence_with_repeated_tokens_has_the_constant_with_splitting(make):
    """‖D_X f‖ of the sequence: Lip_split if each token repeats, and only what repeats may part otherwise."""
    for seed, counts in itertools.product(range(4), ([2, 3, 2], [1, 1, 4], [3, 1, 1], [1, 1, 1])):
        counts = torch.tensor(counts)
        base, A, V = (
            make(seed, 3, 1),
            -(3 + seed) * torch.eye(1, dtype=F64),
            torch.eye(1, dtype=F64),
        )
        times = base.times if make is timed else torch.zeros(3, dtype=F64)
        mu = TimedMeasure(times, base.points, counts / counts.sum().double())
        X, t = mu.points.repeat_interleave(counts, 0), times.repeat_interleave(counts)
        visible = (t[None, :] <= t[:, None]).to(F64)
        of_sequence = norm(reference_jacobian(X, torch.ones(len(X), dtype=F64), A, V, visible))
        own = torch.linalg.matrix_norm(gamma_derivative(mu, mu.points, A, V, times=times), 2)
        expected = max(local_constant(mu, A, V, tol=1e-12), *own[counts > 1].tolist(), 0.0)
        assert of_sequence == pytest.approx(expected, rel=1e-11)
        if (counts > 1).all():
            assert of_sequence == pytest.approx(
                local_constant(mu, A, V, splitting=True, tol=1e-12), rel=1e-11
            )
        plain = local_constant(
            mu, A, V, tol=1e-12
        )  # a function of the measure, however it is written
        assert local_constant(TimedMeasure(t, X), A, V, tol=1e-12) == pytest.approx(
            plain, rel=1e-11
        )
        assert local_constants(X, None, A, V, times=t).item() == pytest.approx(plain, rel=1e-11)


@pytest.mark.parametrize("counts", [[1, 8], [2, 16]])
@pytest.mark.parametrize("with_times", [False, True])
def test_splitting_helps_a_sequence_of_repeated_tokens(counts, with_times):
    """One token in nine at 3, the others at 0, A = −1: ‖D_X f‖ = 8/9 comes from copies that part."""
    A, V, counts = -tensor([1.0]), tensor([1.0]), torch.tensor(counts)
    pair = TwoDirac(1 / 9, 3.0, 1.0, positions=(1.0, 0.0))
    X = tensor([3.0], [0.0]).repeat_interleave(counts, 0)
    times = torch.full((len(X),), 0.5, dtype=F64) if with_times else None
    mu = TimedMeasure(times, X) if with_times else DiscreteMeasure(X)
    assert norm(Attention.from_matrices(A, V).jacobian(X).dense()) == pytest.approx(
        8 / 9, rel=1e-12
    )
    assert pair.constant < 0.4
    for splitting, expected in ((True, 8 / 9), (False, pair.constant.item())):
        assert local_constant(mu, A, V, splitting=splitting) == pytest.approx(expected, rel=1e-12)
        found = local_constants(X, None, A, V, splitting=splitting, times=times)
        assert found.item() == pytest.approx(expected, rel=1e-12)


def transport_slope(mu, nu, A, V):
    return wasserstein(
        mean_field_attention(mu, A, V), mean_field_attention(nu, A, V)
    ) / wasserstein(mu, nu)


@pytest.mark.parametrize("seed", range(4))
def test_finite_differences_in_wasserstein_space_attain_both_constants(seed):
    """Move atoms along the top singular vector; or split the atom that feels most, copies going apart."""
    mu, A, V, step = measure(seed, 4, 2), 2 * draw(seed + 9, 2, 2), draw(seed + 19, 2, 2), 1e-6
    J = reference_in_mass(mu.points, mu.weights, A, V)
    along = torch.linalg.svd(J).Vh[0].view(4, 2) / mu.weights.sqrt()[:, None]
    moved = DiscreteMeasure(mu.points + step * along, mu.weights)
    assert transport_slope(mu, moved, A, V) == pytest.approx(local_constant(mu, A, V), rel=1e-4)
    own = gamma_derivative(mu, mu.points, A, V)
    i = torch.linalg.matrix_norm(own, 2).argmax()
    direction = torch.linalg.svd(own[i]).Vh[:1]
    copies = mu.points[i] + step * torch.cat([direction, -direction])
    others = torch.arange(4) != i
    split = DiscreteMeasure(torch.cat([mu.points[others], copies]),
                            torch.cat([mu.weights[others], mu.weights[i].expand(2) / 2]))  # fmt: skip
    assert transport_slope(mu, split, A, V) == pytest.approx(norm(own[i]), rel=1e-4)


@pytest.mark.parametrize("copies", [2, 3])
def test_no_small_perturbation_of_copies_goes_beyond(copies):
    """Random splittings of the example into copies of random mass, each moved at random."""
    best = 0.0
    limit = local_constant(EXAMPLE, EXAMPLE_A, EXAMPLE_V, splitting=True)
    for seed in range(60):
        parts = masses(seed, 3, copies) * EXAMPLE.weights[:, None]
        away = draw(seed + 500, 3, copies) * (draw(seed + 900, 3, copies) > 0.8)
        if not bool(away.any()):
            continue
        nu = DiscreteMeasure((EXAMPLE.points + 1e-5 * away).reshape(-1, 1), parts.flatten())
        slope = transport_slope(EXAMPLE, nu, EXAMPLE_A, EXAMPLE_V)
        assert slope <= limit * (1 + 1e-3)
        best = max(best, slope)
    assert best > local_constant(EXAMPLE, EXAMPLE_A, EXAMPLE_V)


def test_a_little_mass_moved_far_can_have_a_larger_slope():
    """ν → μ in W₂ but not in W_∞: the slope is a difference quotient of Γ, (tanh 1.5 + tanh 5)/1.3."""
    mu, A, V = DiscreteMeasure(tensor([-1.0], [1.0])), tensor([5.0]), tensor([1.0])
    limit = local_constant(mu, A, V, splitting=True)
    quotient = (math.tanh(1.5) + math.tanh(5)) / 1.3
    for eps in (1e-4, 1e-6):
        nu = DiscreteMeasure(tensor([-1.0], [1.0], [0.3]), tensor(0.5 - eps, 0.5, eps))
        assert transport_slope(mu, nu, A, V) == pytest.approx(quotient, rel=20 * eps)
    assert limit == pytest.approx(1.0017, abs=1e-4) and quotient > 1.4


def test_the_gain_of_splitting_has_no_bound():
    """A = −I, mass 1/R² at R, the rest at 0: own query cancels mixing at 0, and the gain grows as R."""
    for radius in (3.0, 10.0, 100.0, 1000.0):
        pair = TwoDirac(1 / radius**2, radius, 1.0, positions=(1.0, 0.0))
        gain = (pair.own_query.max() / pair.constant).item()
        assert gain == pytest.approx(radius * (1 - radius**-2) ** 1.5, rel=2e-3)
        assert splitting_gain(pair.measure(), -tensor([1.0]), tensor([1.0])) == pytest.approx(
            gain, rel=1e-9
        )
