"""Measures and the maps on them: sums written out, sequences with copies, autodiff."""

import math

import pytest
import torch

from draws import (
    F64,
    ONE,
    autograd_jacobian,
    close,
    draw,
    measure,
    softmax_map,
    tensor,
    timed,
    visible_of,
)
from lipcore import attention_map
from lipcore.measures import (
    DiscreteMeasure,
    TimedMeasure,
    gamma_derivative,
    gamma_map,
    masked_mean_field_attention,
    mean_field_attention,
    wasserstein,
)


def test_mean_field_attention_is_the_push_forward_by_gamma():
    mu, A, V = measure(0, 5, 3), draw(7, 3, 3), draw(8, 2, 3)
    image = mean_field_attention(mu, A, V)
    assert close(image.points, softmax_map(mu.points, mu.weights, A, V), 1e-13)
    assert torch.equal(image.weights, mu.weights)
    for x in (mu.points, draw(9, 4, 3)):  # at any point it is the integral
        density = mu.weights * torch.exp(x @ A.mT @ mu.points.mT)
        expected = density @ mu.points @ V.mT / density.sum(-1, keepdim=True)
        assert close(gamma_map(mu, x, A, V), expected, 1e-13)


def test_weights_stand_for_repeated_tokens():
    counts = torch.tensor([3, 1, 4, 2])
    points, A, V = draw(0, 4, 2), draw(1, 2, 2), draw(2, 2, 2)
    weighted = mean_field_attention(DiscreteMeasure(points, counts / counts.sum().double()), A, V)
    repeated = attention_map(points.repeat_interleave(counts, 0), A, V)
    assert close(repeated, weighted.points.repeat_interleave(counts, 0), 1e-13)
    assert wasserstein(DiscreteMeasure(repeated), weighted) < 1e-7


def test_masked_attention_of_a_sequence_in_any_order():
    X, A, V = draw(0, 6, 2), draw(1, 2, 2), draw(2, 3, 2)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    mu = TimedMeasure(order.double() / 5, X[order])
    expected = attention_map(X, A, V, causal=True)[order]
    image = masked_mean_field_attention(mu, A, V)
    assert close(image.points, expected, 1e-13)
    assert torch.equal(image.times, mu.times) and torch.equal(image.weights, mu.weights)
    assert close(gamma_map(mu, mu.points, A, V, times=mu.times), expected, 1e-13)


def test_tokens_that_share_a_time_see_one_another():
    mu, A, V = timed(0, 8, 2), draw(1, 2, 2), draw(2, 2, 2)
    assert len(mu.time_marginal()[0]) < 8
    expected = softmax_map(mu.points, mu.weights, A, V, visible_of(mu))
    assert close(masked_mean_field_attention(mu, A, V).points, expected, 1e-13)
    together = TimedMeasure(torch.full((8,), 0.5, dtype=F64), mu.points, mu.weights)
    flat = softmax_map(mu.points, mu.weights, A, V)
    assert close(masked_mean_field_attention(together, A, V).points, flat, 1e-13)


def test_a_continuum_of_times_is_the_limit_of_sequences():
    """Tokens x(τ) = τ, density θ uniform, scores −xy: Γ(s, x) = ∫₀ˢ y e^{−xy} dy / ∫₀ˢ e^{−xy}."""
    n, s, x = 4000, 0.75, 2.0
    tau = (torch.arange(n, dtype=F64) + 0.5) / n
    exact = (1 - math.exp(-x * s) * (1 + x * s)) / (x * (1 - math.exp(-x * s)))
    found = gamma_map(TimedMeasure(tau, tau[:, None]), tensor([x]), -ONE, ONE, times=tensor(s))
    assert found.item() == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("make", [measure, timed])
def test_the_derivative_of_gamma_is_that_of_autodiff(make):
    mu, A, V, x = make(0, 6, 3), draw(1, 3, 3), draw(2, 2, 3), draw(3, 4, 3)
    times = mu.times.sort().values[[0, 2, 3, 5]] if make is timed else None
    J = autograd_jacobian(lambda y: gamma_map(mu, y, A, V, times=times), x).reshape(4, 2, 4, 3)
    found = gamma_derivative(mu, x, A, V, times=times)
    assert close(found, J[range(4), :, range(4)])


def test_a_massless_token_has_an_image_where_gamma_is_defined():
    points, A, V = draw(0, 3, 1), draw(1, 1, 1), draw(2, 1, 1)
    weights = tensor(0.0, 0.5, 0.5)
    image = mean_field_attention(DiscreteMeasure(points, weights), A, V)
    assert torch.isfinite(image.points).all()
    late = TimedMeasure(tensor(1.0, 0.0, 0.5), points, weights)
    assert torch.isfinite(masked_mean_field_attention(late, A, V).points).all()
    early = TimedMeasure(tensor(0.0, 0.5, 1.0), points, weights)
    with pytest.raises(ValueError, match=r"^mu\.times: "):
        masked_mean_field_attention(early, A, V)
    assert len(masked_mean_field_attention(early.support(), A, V).points) == 2


def test_weights_are_uniform_by_default_and_may_be_rounded():
    assert torch.equal(DiscreteMeasure(draw(0, 4, 2)).weights, torch.full((4,), 0.25, dtype=F64))
    DiscreteMeasure(draw(0, 10, 1), torch.full((10,), 0.1, dtype=F64) + 5e-11)
    DiscreteMeasure(draw(0, 100_000, 1).float())


def test_support_adds_up_copies_and_drops_massless_points():
    points = tensor([2.0, 0.0], [1.0, 0.0], [2.0, 0.0], [7.0, 7.0], [-0.0, 1.0], [0.0, 1.0])
    mu = DiscreteMeasure(points, tensor(0.1, 0.2, 0.3, 0.0, 0.25, 0.15))
    support = mu.support()
    assert torch.equal(support.points, tensor([0.0, 1.0], [1.0, 0.0], [2.0, 0.0]))
    assert close(support.weights, tensor(0.4, 0.2, 0.4))
    assert mu.radius == 2  # it counts only what has mass


def test_support_keeps_copies_at_different_times_apart():
    times, points = tensor(1.0, 0.5, 0.5, 0.0), tensor([1.0], [1.0], [1.0], [3.0])
    mu = TimedMeasure(times, points, tensor(0.5, 0.2, 0.3, 0.0))
    support = mu.support()
    assert support.times.tolist() == [0.5, 1.0] and support.weights.tolist() == [0.5, 0.5]
    assert torch.equal(support.points, points[:2])
    assert mu.radius == 1


def test_a_timed_measure_falls_apart_into_laws():
    points = tensor([1.0], [2.0], [3.0], [4.0])
    mu = TimedMeasure(tensor(1.0, 0.5, 1.0, 0.0), points, tensor(0.1, 0.6, 0.3, 0.0))
    times, weights = mu.time_marginal()
    assert times.tolist() == [0.5, 1.0]
    assert close(weights, tensor(0.6, 0.4))
    assert close(mu.at(1.0).weights, tensor(0.25, 0.75))
    assert mu.at(1.0).points.flatten().tolist() == [1, 3]
    for time in (0.0, 0.75):
        with pytest.raises(ValueError, match=r"^time: "):
            mu.at(time)
