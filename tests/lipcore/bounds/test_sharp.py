"""Bounds with mixing and others' keys taken together; and the radius of layer normalisation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from lipcore import bounds
from lipcore.lab.attack.truth import dense_jacobian, frobenius_norm


def _two_diracs(a):
    """Largest local constant over p δ_{−1} + (1−p) δ_1 for A = −a in dimension one, V = 1."""
    odds = torch.linspace(-2.0, 2 * a + 5, 4001, dtype=torch.float64)  # log (1−p)/p
    masses = torch.stack(
        [-torch.nn.functional.softplus(odds), -torch.nn.functional.softplus(-odds)], dim=-1
    )
    A, V = -a * torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    X = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    return frobenius_norm(dense_jacobian(A, V, X.expand(len(odds), 2, 1), masses)).max().item()


@pytest.mark.parametrize(
    ("a", "theory", "sharp"), [(1.0, 2.10, 1.336), (3.0, 1.73, 1.0612), (8.0, 1.60, 1.0005)]
)
def test_two_diracs_nearly_reach_the_mean_field_bounds(a, theory, sharp):
    reached = _two_diracs(a)
    size = {"radius": 1.0, "norm_a": a, "norm_v": 1.0}
    assert bounds.mean_field_upper(**size) / reached == pytest.approx(theory, rel=0.01)
    assert bounds.mean_field_upper_sharp(**size) / reached == pytest.approx(sharp, rel=1e-3)


def test_sharp_bound_becomes_exact():
    """(8/3√3 for the bound that adds the terms up; 1 for this one.)"""
    reached = _two_diracs(14.0)
    assert (
        1 <= bounds.mean_field_upper_sharp(radius=1.0, norm_a=14.0, norm_v=1.0) / reached < 1 + 1e-5
    )
    assert math.exp(bounds.two_dirac_peak(1e4)) / 1e8 == pytest.approx(27 / 64, rel=1e-3)


@pytest.mark.parametrize("a", [1e-3, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0])
def test_peak_is_the_largest_over_every_two_level_row(a):
    """Weights in two levels, tokens at ±R: the extreme rows to which convexity reduces every row."""
    grid = np.linspace(0, 1, 81)
    w, high, low = (axis.ravel() for axis in np.meshgrid(grid, grid, grid))
    small = math.exp(-2 * a)
    mass = np.stack([w * high, w * (1 - high), (1 - w) * low, (1 - w) * (1 - low)])
    side, level = np.array([[1.0], [-1], [1], [-1]]), np.array([[1.0], [1], [small], [small]])
    moved = (1 + a * (side - (mass * side).sum(0))) ** 2
    value = (w * small + 1 - w) * (mass * level * moved).sum(0)
    peak = math.exp(bounds.two_dirac_peak(a))
    assert 0.99 * peak < value.max() <= peak * (1 + 1e-12)


@pytest.mark.parametrize("a", [0.1, 1.0, 4.0])
def test_no_row_of_any_measure_exceeds_the_peak(a):
    """E_P[ G (1 + a(t − E t))² ] ≤ e^{2a}F(a), for scores that differ by at most 2a, P = Gμ and |t| ≤ 1."""
    rng = np.random.default_rng(0)
    limit = math.exp(2 * a + bounds.two_dirac_peak(a))
    for _ in range(3000):
        m = rng.integers(1, 6)
        mu, s, t = rng.dirichlet(np.full(m, 0.2)), rng.uniform(-a, a, m), rng.uniform(-1, 1, m)
        if rng.random() < 0.6:
            s, t = a * np.sign(s), np.sign(t)
        G = np.exp(s) / (mu * np.exp(s)).sum()
        P = mu * G
        assert (P * G * (1 + a * (t - P @ t)) ** 2).sum() <= limit * (1 + 1e-9)


def test_sharp_bounds_are_below_the_others_everywhere():
    for a, n in itertools.product(
        (0.0, 1e-9, 1e-3, 0.3, 1.0, 5.0, 50.0, 1e3, 1e6), (1, 2, 7, 1000, 10**12, 10**40)
    ):
        size = {"radius": 1.0, "norm_a": a, "norm_v": 1.5, "log": True}
        slack = 1e-9 * (1 + a)
        mean_field = bounds.mean_field_upper_sharp(**size)
        assert mean_field <= bounds.mean_field_upper(**size) + slack
        unified = bounds.unified_upper_sharp(n=n, **size)
        assert unified <= min(bounds.unified_upper(n=n, **size), mean_field) + slack
        assert bounds.masked_upper_sharp(n=n, **size) <= bounds.masked_upper(n=n, **size) + slack
        assert unified <= bounds.unified_upper_sharp(n=n + 1, **size) + slack
        assert (
            bounds.masked_upper_sharp(n=n, **size)
            <= bounds.masked_upper_sharp(n=2 * n, **size) + slack
        )


def test_extremes_are_numbers():
    radii, sizes = (0.0, 1e-200, 1.0, 1e200), (0.0, 1e-300, 1.0, 1e6, 1e308)
    for n, radius, a, v in itertools.product((1, 10**12), radii, sizes, (0.0, 1.0)):
        for log in (True, False):
            size = {"radius": radius, "norm_a": a, "norm_v": v, "log": log}
            assert not math.isnan(bounds.mean_field_upper_sharp(**size))
            assert not math.isnan(bounds.unified_upper_sharp(n=n, **size))
            assert not math.isnan(bounds.masked_upper_sharp(n=n, **size))


@pytest.mark.parametrize("a", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("n", [1, 3, 40, 300])
def test_masked_sharp_holds_for_the_worst_causal_weights(a, n):
    """The first token seen as much as scores allow, A = −aI in dimension one."""
    A, V = -a * torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    X = torch.ones(1, n, 1, dtype=torch.float64)
    X[:, 0] = -1
    reached = frobenius_norm(dense_jacobian(A, V, X, causal=True)).item()
    assert reached <= bounds.masked_upper_sharp(n=n, radius=1.0, norm_a=a, norm_v=1.0) * (1 + 1e-9)
    if a == 0 and n == 300:
        assert reached > 1.6  # the Cesàro operator, whose norm tends to Hardy's constant 2


def test_layer_norm_radius_holds_and_is_reached():
    generator = torch.Generator().manual_seed(0)
    gain, bias = (
        torch.randn(6, generator=generator).double(),
        torch.randn(6, generator=generator).double(),
    )
    norm = torch.nn.LayerNorm(6, dtype=torch.float64)
    norm.weight.data, norm.bias.data = gain, bias
    tokens = norm(torch.randn(2000, 6, generator=generator).double()).detach()
    radius = bounds.layer_norm_radius(gain=gain, bias=bias)
    assert tokens.norm(dim=-1).max() <= radius
    largest = torch.zeros(6, dtype=torch.float64)
    largest[gain.abs().argmax()] = math.sqrt(6)
    assert (gain * largest).norm().item() == pytest.approx(bounds.layer_norm_radius(gain=gain))
    assert bounds.layer_norm_radius(gain=torch.tensor([-3.0, 1.0])) == pytest.approx(
        3 * math.sqrt(2)
    )


def test_layer_norm_radius_refuses_bad_input():
    with pytest.raises(ValueError, match="bias: expected shape"):
        bounds.layer_norm_radius(gain=torch.ones(2), bias=torch.ones(3))
    with pytest.raises(ValueError, match="gain: expected at least one entry"):
        bounds.layer_norm_radius(gain=torch.ones(0))
    with pytest.raises(ValueError, match="gain: expected finite"):
        bounds.layer_norm_radius(gain=torch.tensor([math.inf]))
