"""Two Diracs: closed forms against general code, and how near they come to the bounds."""

import itertools
import math

import pytest
import torch

from draws import F64, KINDS, ONE, close, draw, norm
from lipcore import Attention, bounds, measures


def mean_field_bound(a):
    return (1 + a) * math.exp(a) + a


@pytest.mark.parametrize("p", [1e-6, 0.5, 0.9])
@pytest.mark.parametrize(
    "options", [{}, {"sign": 1}, {"positions": (0.3, -0.8)}, {"sign": 1, "positions": (1, 0)}]
)
def test_closed_forms_of_two_diracs(p, options):
    pair = measures.TwoDirac(p, 1.5, 0.8, **options)
    whole = torch.maximum(pair.constant, pair.transverse_constant)
    for dim, expected in ((1, pair.constant), (3, whole)):
        mu, V = pair.measure(dim), torch.eye(dim, dtype=F64)
        A = pair.sign * 0.8 * V
        expected = pytest.approx(expected.item(), rel=1e-12)
        assert measures.local_constant(mu, A, V, tol=1e-13) == expected
        assert measures.dense_local_constant(mu.points, mu.weights, A, V).item() == expected
        assert close(measures.gamma_map(mu, mu.points, A, V)[:, 0], pair.images)
        own = torch.linalg.matrix_norm(measures.gamma_derivative(mu, mu.points, A, V), 2)
        assert close(own, pair.own_query)
    weights = Attention.from_matrices(A, V, log_weights=mu.weights.log()).weights(mu.points)[0]
    assert close(pair.other_weight, torch.stack([weights[0, 1], weights[1, 0]]))
    assert torch.allclose(pair.own_weight, weights.diagonal(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("sign", "radius", "gap"), [(-1, 1.0, 6.0), (1, 2.0, 3.0)])
def test_two_diracs_take_a_curve_of_masses(sign, radius, gap):
    """The theorem on eigenvectors: w = 1/(1 + (1/p − 1) e^{−g*}), g* = 2γR² or γR²/4."""
    p = torch.logspace(-9, -0.01, 50, dtype=F64)
    pair = measures.TwoDirac(p, radius, 3.0, sign=sign)
    assert pair.constant.shape == (50,)
    assert (
        pair.constant[7].item()
        == measures.TwoDirac(p[7].item(), radius, 3.0, sign=sign).constant.item()
    )
    expected = 1 / (1 + (1 / p - 1) * math.exp(-gap))
    assert torch.allclose(pair.other_weight[:, 1], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["any", "identity", "negative"])
def test_no_measure_breaks_the_mean_field_bound(kind):
    for seed, d in itertools.product(range(3), (1, 2)):
        A = KINDS[kind](draw(seed, d, d))
        points = draw(seed + 10, 500, 3, d)
        points *= 1.5 / points.norm(dim=-1, keepdim=True).amax(1, keepdim=True)  # R = 1.5: a = 2.25
        weights = (4 * draw(seed + 20, 500, 3)).softmax(-1)
        batch = (points, weights, A / norm(A), torch.eye(d, dtype=F64))
        assert measures.dense_local_constant(*batch, splitting=True).max() <= mean_field_bound(2.25)
        times = (draw(seed + 30, 500, 3).sigmoid() * 3).floor() / 3
        masked = measures.dense_local_constant(*batch, splitting=True, times=times)
        limit = bounds.masked_upper_moments(radius=1.5, norm_a=1.0, norm_v=1.0)
        assert masked.max() <= limit


@pytest.mark.parametrize("radius", [3.0, 10.0, 100.0, 1000.0])
def test_the_gain_of_splitting_has_no_bound(radius):
    """A = −I, mass 1/R² at R, the rest at 0: own query cancels mixing at 0, and the gain is ~ R."""
    pair = measures.TwoDirac(1 / radius**2, radius, 1.0, positions=(1.0, 0.0))
    gain = (pair.own_query.max() / pair.constant).item()
    assert gain == pytest.approx(radius * (1 - radius**-2) ** 1.5, rel=2e-3)
    assert measures.splitting_gain(pair.measure(), -ONE, ONE) == pytest.approx(gain, rel=1e-9)
