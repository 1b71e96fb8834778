"""Two Diracs: closed forms against general code, and how near they come to the bounds."""

import itertools
import math

import pytest
import torch
from scipy.optimize import minimize_scalar

from draws import F64, ONE, close, draw, norm, of_kind, tensor
from lipcore import Attention
from lipcore.measures import (
    TwoDirac,
    dense_local_constant,
    gamma_derivative,
    gamma_map,
    local_constant,
    splitting_gain,
)


def mean_field_bound(a):
    return (1 + a) * math.exp(a) + a


def best_two_dirac(a):
    """Largest constant over p for A = −γI, γR² = a, and the odds (1−p)/p where it is attained."""
    found = minimize_scalar(
        lambda t: -TwoDirac(1 / (1 + math.exp(t)), 1.0, a).constant.item(),
        bounds=(2 * a - 4, 2 * a + 4),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return -found.fun, math.exp(found.x - 2 * a)


def test_the_factor_to_the_bound_tends_to_eight_over_three_root_three():
    gaps = []
    for a in (30, 60, 120, 240):
        best, odds = best_two_dirac(a)
        gaps.append(mean_field_bound(a) / best - 8 / (3 * math.sqrt(3)))
        assert odds == pytest.approx(3, rel=2 / a)
    for before, after in itertools.pairwise(gaps):
        assert 2 * after == pytest.approx(before, rel=0.05)
    assert 0 < gaps[-1] < 0.003


@pytest.mark.parametrize("p", [1e-6, 0.5, 0.9])
@pytest.mark.parametrize(
    "options", [{}, {"sign": 1}, {"positions": (0.3, -0.8)}, {"sign": 1, "positions": (1, 0)}]
)
def test_closed_forms_of_two_diracs(p, options):
    pair = TwoDirac(p, 1.5, 0.8, **options)
    whole = torch.maximum(pair.constant, pair.transverse_constant)
    for dim, expected in ((1, pair.constant), (3, whole)):
        mu, V = pair.measure(dim), torch.eye(dim, dtype=F64)
        A = pair.sign * 0.8 * V
        expected = pytest.approx(expected.item(), rel=1e-12)
        assert local_constant(mu, A, V, tol=1e-13) == expected
        assert dense_local_constant(mu.points, mu.weights, A, V).item() == expected
        assert close(gamma_map(mu, mu.points, A, V)[:, 0], pair.images)
        own = torch.linalg.matrix_norm(gamma_derivative(mu, mu.points, A, V), 2)
        assert close(own, pair.own_query)
    weights = Attention.from_matrices(A, V, log_weights=mu.weights.log()).weights(mu.points)[0]
    assert close(pair.other_weight, torch.stack([weights[0, 1], weights[1, 0]]))
    assert torch.allclose(pair.own_weight, weights.diagonal(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("sign", "radius", "gap"), [(-1, 1.0, 6.0), (1, 2.0, 3.0)])
def test_two_diracs_take_a_curve_of_masses(sign, radius, gap):
    """The theorem on eigenvectors: w = 1/(1 + (1/p − 1) e^{−g*}), g* = 2γR² or γR²/4."""
    p = torch.logspace(-9, -0.01, 50, dtype=F64)
    pair = TwoDirac(p, radius, 3.0, sign=sign)
    assert pair.constant.shape == (50,)
    assert pair.constant[7].item() == TwoDirac(p[7].item(), radius, 3.0, sign=sign).constant.item()
    expected = 1 / (1 + (1 / p - 1) * math.exp(-gap))
    assert torch.allclose(pair.other_weight[:, 1], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 1.0), "^p: "),
        ((1.0, 1.0, 1.0), "^p: "),
        ((math.nan, 1.0, 1.0), "^p: "),
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
    with pytest.raises(ValueError, match=r"^p: "):
        TwoDirac(tensor(0.1, 0.2), 1.0, 1.0).measure()


def test_the_cross_over_seen_through_weights():
    """n − 1 copies at R, one token at −R, A = −I, R² = a = 3: growth, a turn near n = e^{2a}."""
    a = 3.0
    points = tensor([-math.sqrt(a)], [math.sqrt(a)])
    lengths = torch.tensor([2, 8, 20, 60, 200, 1000, 1053, 5000, 20_000, 100_000], dtype=F64)
    weights = torch.stack([1 / lengths, 1 - 1 / lengths], dim=-1)
    batch = points.expand(len(lengths), 2, 1)
    found = dense_local_constant(batch, weights, -ONE, ONE, splitting=True)
    for n in (8, 20):
        X = torch.cat([points[:1], points[1:].expand(n - 1, 1)])
        of_sequence = norm(Attention.from_matrices(-ONE, ONE).jacobian(X).dense())
        assert found[lengths == n].item() == pytest.approx(of_sequence, rel=1e-12)
    assert found.argmax() == 6 and found.max().item() == pytest.approx(48.07, abs=0.01)
    w = 1 / (1 + (lengths - 1) * math.exp(-2 * a))
    lower = (lengths - 1).sqrt() * w * (1 + 2 * a * (1 - w))  # the theorem on eigenvectors
    assert (lower <= found).all() and (found[2:] < 1.3 * lower[2:]).all()


@pytest.mark.parametrize("kind", ["any", "identity", "negative"])
def test_no_measure_breaks_the_mean_field_bound(kind):
    for seed, d in itertools.product(range(3), (1, 2)):
        A = of_kind(kind, draw(seed, d, d))
        points = draw(seed + 10, 500, 3, d)
        points *= 1.5 / points.norm(dim=-1, keepdim=True).amax(1, keepdim=True)  # R = 1.5: a = 2.25
        weights = (4 * draw(seed + 20, 500, 3)).softmax(-1)
        batch = (points, weights, A / norm(A), torch.eye(d, dtype=F64))
        assert dense_local_constant(*batch, splitting=True).max() <= mean_field_bound(2.25)
        times = (draw(seed + 30, 500, 3).sigmoid() * 3).floor() / 3
        masked = dense_local_constant(*batch, splitting=True, times=times)
        assert masked.max() <= 2 * (1 + 4.5) * math.exp(2.25) + 2.25


@pytest.mark.parametrize("radius", [3.0, 10.0, 100.0, 1000.0])
def test_the_gain_of_splitting_has_no_bound(radius):
    """A = −I, mass 1/R² at R, the rest at 0: own query cancels mixing at 0, and the gain is ~ R."""
    pair = TwoDirac(1 / radius**2, radius, 1.0, positions=(1.0, 0.0))
    gain = (pair.own_query.max() / pair.constant).item()
    assert gain == pytest.approx(radius * (1 - radius**-2) ** 1.5, rel=2e-3)
    assert splitting_gain(pair.measure(), -ONE, ONE) == pytest.approx(gain, rel=1e-9)
