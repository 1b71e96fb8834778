"""Local constants: against autodiff, sequences with copies, and slopes in Wasserstein space."""

import itertools
import math

import pytest
import torch

from draws import F64, ONE, draw, jacobian_in_mass, masses, measure, norm, tensor, timed, visible_of
from lipcore.measures import (
    DiscreteMeasure,
    TimedMeasure,
    dense_local_constant,
    dense_splitting_gain,
    gamma_derivative,
    local,
    local_constant,
    mean_field_attention,
    splitting_gain,
    wasserstein,
)

EXAMPLE = DiscreteMeasure(
    tensor([-0.091], [-6.124], [-3.012]), tensor(0.916477, 0.009119, 0.074404)
)
EXAMPLE_A = tensor([-2.220])
WITH_OR_WITHOUT_TIMES = pytest.mark.parametrize("make", [measure, timed])


@WITH_OR_WITHOUT_TIMES
@pytest.mark.parametrize(("n", "d", "q"), [(1, 1, 1), (1, 3, 2), (2, 1, 1), (5, 3, 2), (12, 2, 4)])
def test_local_constant_is_the_norm_of_the_derivative_by_autodiff(make, n, d, q):
    mu, A, V = make(n + d, n, d), draw(1, d, d), draw(2, q, d)
    expected = norm(jacobian_in_mass(mu.points, mu.weights, A, V, visible_of(mu)))
    assert local_constant(mu, A, V, tol=1e-12) == pytest.approx(expected, rel=1e-12)
    times = mu.times if make is timed else None
    found = dense_local_constant(mu.points, mu.weights, A, V, times=times).item()
    assert found == pytest.approx(expected, rel=1e-12)


@WITH_OR_WITHOUT_TIMES
def test_batches_agree_with_single_measures(make):
    """With massless atoms, copies, and ties in time among them; leading dimensions are kept."""
    mus = [make(seed, 6, 2) for seed in range(6)]
    points = torch.stack([mu.points for mu in mus])
    weights = torch.stack([mu.weights for mu in mus])
    points[1, 3] = points[1, 0]
    points[2, 1:4] = points[2, 0]
    points[5, 1] = points[5, 4]
    weights[3] = tensor(0.0, 0.5, 0.0, 0.2, 0.3, 0.0)
    weights[4] = tensor(0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    weights[5] = tensor(0.0, 0.4, 0.0, 0.2, 0.4, 0.0)
    times = torch.stack([mu.times for mu in mus]) if make is timed else None
    A, V = draw(1, 2, 2), draw(2, 3, 2)
    batch = (points.view(2, 3, 6, 2), weights.view(2, 3, 6), A, V)
    options = {} if times is None else {"times": times.view(2, 3, 6)}
    whole = dense_local_constant(*batch, **options)
    split = dense_local_constant(*batch, splitting=True, **options)
    gain = dense_splitting_gain(*batch, **options)
    assert whole.shape == split.shape == gain.shape == (2, 3)
    for i in range(6):
        mu = DiscreteMeasure(points[i], weights[i])
        mu = mu if times is None else TimedMeasure(times[i], points[i], weights[i])
        expected = local_constant(mu, A, V, tol=1e-12)
        expected_gain = splitting_gain(mu, A, V, tol=1e-12)
        assert whole.flatten()[i].item() == pytest.approx(expected, rel=1e-11)
        assert split.flatten()[i].item() == pytest.approx(expected * expected_gain, rel=1e-11)
        assert gain.flatten()[i].item() == pytest.approx(expected_gain, rel=1e-11)


def test_chunks_do_not_change_the_result(monkeypatch):
    points = draw(0, 50, 3, 1)
    whole = dense_local_constant(points, None, -ONE, ONE, splitting=True)
    mu = DiscreteMeasure(3 * draw(0, 20, 1))
    split = local_constant(mu, -ONE, ONE, splitting=True)
    assert split > 1.001 * local_constant(mu, -ONE, ONE)
    monkeypatch.setattr(local, "BATCH_BYTES", 1000)
    assert torch.equal(dense_local_constant(points, None, -ONE, ONE, splitting=True), whole)
    assert local_constant(mu, -ONE, ONE, splitting=True) == pytest.approx(split, rel=1e-13)


def test_extreme_weights_and_scores_give_numbers():
    points = tensor([[-10.0], [10.0]], [[0.0], [0.0]], [[0.0], [1e-300]], [[-30.0], [30.0]])
    weights = tensor([1e-300, 1 - 1e-300], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5])
    for A, splitting in itertools.product((ONE, -ONE), (False, True)):
        found = dense_local_constant(points, weights, A, ONE, splitting=splitting)
        assert torch.isfinite(found).all()
    mu = DiscreteMeasure(draw(0, 4, 1))
    assert local_constant(mu, ONE, 0 * ONE) == 0 and splitting_gain(mu, ONE, 0 * ONE) == 1


def test_an_iteration_that_stops_early_is_an_error(monkeypatch):
    found = local.spectral_norm(torch.eye(2, dtype=F64))
    object.__setattr__(found, "converged", torch.tensor(False))
    monkeypatch.setattr(local, "spectral_norm", lambda *args, **options: found)
    with pytest.raises(RuntimeError, match=r"^local_constant: "):
        local_constant(measure(0, 3, 1), ONE, ONE)


def test_a_geometric_time_marginal_shows_the_constant_two():
    """Masses e^{−δ(n−i)}: the norm of an n × n Toeplitz matrix of symbol at most 1 + e^{−δ/2}."""
    n, delta = 700, 0.05
    cumulated = torch.exp(-delta * torch.arange(n - 1, -1, -1, dtype=F64))
    weights = cumulated.diff(prepend=tensor(0.0))
    mu = TimedMeasure(torch.arange(n, dtype=F64) / n, draw(0, n, 1), weights)
    assert 1.95 < local_constant(mu, 0 * ONE, ONE) < 1 + math.exp(-delta / 2)


@pytest.mark.parametrize("counts", [[2, 3, 2], [1, 1, 4], [3, 1, 1], [1, 1, 1]])
@WITH_OR_WITHOUT_TIMES
def test_a_sequence_with_repeated_tokens_has_the_constant_with_splitting(make, counts):
    """‖D_X f‖ is Lip_split if each token repeats; otherwise only what repeats may part."""
    counts = torch.tensor(counts)
    for seed in range(2):
        base, A = make(seed, 3, 1), -(3 + seed) * ONE
        times = base.times if make is timed else torch.zeros(3, dtype=F64)
        mu = TimedMeasure(times, base.points, counts / counts.sum().double())
        X, t = mu.points.repeat_interleave(counts, 0), times.repeat_interleave(counts)
        visible = (t[None, :] <= t[:, None]).to(F64)
        jacobian = jacobian_in_mass(X, torch.ones(len(X), dtype=F64), A, ONE, visible)
        of_sequence = pytest.approx(norm(jacobian), rel=1e-11)
        own = torch.linalg.matrix_norm(gamma_derivative(mu, mu.points, A, ONE, times=times), 2)
        whole = local_constant(mu, A, ONE, tol=1e-12)
        assert max(whole, *own[counts > 1].tolist(), 0.0) == of_sequence
        if (counts > 1).all():
            assert local_constant(mu, A, ONE, splitting=True, tol=1e-12) == of_sequence
        # a function of the measure, however it is written
        as_sequence = local_constant(TimedMeasure(t, X), A, ONE, tol=1e-12)
        assert as_sequence == pytest.approx(whole, rel=1e-11)
        dense = dense_local_constant(X, None, A, ONE, times=t).item()
        assert dense == pytest.approx(whole, rel=1e-11)


def slope(mu, nu, A, V):
    """The difference quotient in W₂."""
    images = mean_field_attention(mu, A, V), mean_field_attention(nu, A, V)
    return wasserstein(*images) / wasserstein(mu, nu)


@pytest.mark.parametrize("seed", range(3))
def test_finite_differences_in_wasserstein_space_attain_both_constants(seed):
    """Move atoms along the top singular vector; or split the atom that feels most in two."""
    mu, A, V, step = measure(seed, 4, 2), 2 * draw(seed + 9, 2, 2), draw(seed + 19, 2, 2), 1e-6
    J = jacobian_in_mass(mu.points, mu.weights, A, V)
    along = torch.linalg.svd(J).Vh[0].view(4, 2) / mu.weights.sqrt()[:, None]
    moved = DiscreteMeasure(mu.points + step * along, mu.weights)
    assert slope(mu, moved, A, V) == pytest.approx(local_constant(mu, A, V), rel=1e-4)
    own = gamma_derivative(mu, mu.points, A, V)
    i = torch.linalg.matrix_norm(own, 2).argmax()
    direction = torch.linalg.svd(own[i]).Vh[:1]
    copies = mu.points[i] + step * torch.cat([direction, -direction])
    others = torch.arange(4) != i
    points = torch.cat([mu.points[others], copies])
    weights = torch.cat([mu.weights[others], mu.weights[i].expand(2) / 2])
    split = DiscreteMeasure(points, weights)
    assert slope(mu, split, A, V) == pytest.approx(norm(own[i]), rel=1e-4)


def test_the_splitting_example():
    """Random splittings into copies of random mass, moved at random, stay below it."""
    plain = local_constant(EXAMPLE, EXAMPLE_A, ONE)
    split = local_constant(EXAMPLE, EXAMPLE_A, ONE, splitting=True)
    assert (plain, split) == pytest.approx((0.30220, 0.99514), abs=1e-5)
    assert splitting_gain(EXAMPLE, EXAMPLE_A, ONE) == pytest.approx(split / plain, rel=1e-9)
    best = 0.0
    for seed, copies in itertools.product(range(30), (2, 3)):
        parts = masses(seed, 3, copies) * EXAMPLE.weights[:, None]
        away = draw(seed + 500, 3, copies) * (draw(seed + 900, 3, copies) > 0.8)
        if bool(away.any()):
            nu = DiscreteMeasure((EXAMPLE.points + 1e-5 * away).reshape(-1, 1), parts.flatten())
            found = slope(EXAMPLE, nu, EXAMPLE_A, ONE)
            assert found <= split * (1 + 1e-3)
            best = max(best, found)
    assert best > plain
