"""Lower bounds: below the truth at the inputs that they describe, close to it, and right far out."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy.special import polygamma

from lipcore import Attention, bounds


def _norm_at(A, V, X, causal=False):
    return torch.linalg.matrix_norm(
        Attention.from_matrices(A, V, causal=causal).jacobian(X).dense(), 2
    ).item()


def _eigen_inputs(A, n, radius):
    _, u = bounds.eigen_gamma(A)
    first, others = (-u, u) if u @ A @ u < 0 else (u, u / 2)
    return radius * torch.stack([first, *[others] * (n - 1)])


def _cases():
    """(A, V) of every kind, seeded."""
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        A, V = (torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(2))
        yield from ((A, V), (A + A.mT, V), (torch.outer(A[0], A[:, 0]), V))
        yield torch.eye(3, dtype=A.dtype), torch.outer(V[0], V[1])


@pytest.mark.parametrize(("n", "radius"), [(1, 1.0), (2, 0.3), (5, 1.0), (8, 2.5)])
def test_lower_bounds_hold_at_their_inputs(n, radius):
    for A, V in _cases():
        gamma, u = bounds.eigen_gamma(A)
        size = {"n": n, "radius": radius, "gamma": gamma}
        norm_v, norm_vu = torch.linalg.matrix_norm(V, 2).item(), (V @ u).norm().item()
        X = _eigen_inputs(A, n, radius)
        plain, masked = _norm_at(A, V, X), _norm_at(A, V, X, causal=True)
        assert bounds.adversarial_lower(norm_v=norm_v, **size) <= plain * (1 + 1e-9)
        assert bounds.refined_lower(norm_vu=norm_vu, **size) <= plain * (1 + 1e-9)
        assert bounds.masked_lower(norm_v=norm_v, **size) <= masked * (1 + 1e-9)
        _, u = bounds.score_gap(A)
        X = radius * torch.stack([A @ u / (A @ u).norm(), *[u] * (n - 1)])
        assert bounds.score_gap_lower(n=n, radius=radius, A=A, V=V) <= _norm_at(A, V, X) * (
            1 + 1e-9
        )


def test_lower_bounds_are_close_to_the_truth_at_their_inputs():
    A, V, n = -torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64), 40
    size = {"n": n, "radius": 1.5, "gamma": 1.0}
    X = _eigen_inputs(A, n, 1.5)
    assert bounds.refined_lower(norm_vu=1.0, **size) > 0.95 * _norm_at(A, V, X)
    assert bounds.score_gap_lower(n=n, radius=1.5, A=A, V=V) > 0.95 * _norm_at(A, V, X)
    wide = {"n": n, "radius": 5.0, "gamma": 1.0}  # far from the turn, the plain bound is sharp
    assert bounds.adversarial_lower(norm_v=1.0, **wide) > 0.98 * _norm_at(
        A, V, _eigen_inputs(A, n, 5.0)
    )
    assert bounds.masked_lower(norm_v=1.0, **wide) > 0.98 * _norm_at(
        A, V, _eigen_inputs(A, n, 5.0), causal=True
    )


def test_formulas_by_hand():
    w = 1 / (1 + 4 * math.exp(-2 * 0.7 * 1.3**2))
    size = {"n": 5, "radius": 1.3, "gamma": 0.7}
    assert bounds.adversarial_lower(norm_v=3.0, **size) == pytest.approx(3 * 2 * w, rel=1e-14)
    refined = 2 * w * (1 + 2 * 0.7 * 1.69 * (1 - w)) * 3
    assert bounds.refined_lower(norm_vu=3.0, **size) == pytest.approx(refined, rel=1e-14)
    squares = sum((1 + (i - 1) * math.exp(-2 * 0.7 * 1.69)) ** -2 for i in range(2, 6))
    assert bounds.masked_lower(norm_v=3.0, **size) == pytest.approx(
        3 * math.sqrt(squares), rel=1e-14
    )


def test_half_of_root_n_up_to_the_turn():
    for a in (1.0, 3.0, 10.0):
        n = int(math.exp(2 * a)) + 1
        assert bounds.adversarial_lower(n=n, radius=1.0, gamma=a, norm_v=2.0) >= math.sqrt(n - 1)


def test_refined_equals_the_score_gap_for_multiples_of_the_identity():
    for a, n in itertools.product((0.1, 1.0, 4.0, 300.0), (2, 100, 10**12)):
        size = {"n": n, "radius": 1.0, "log": True}
        for sign, gamma in ((-a, a), (8 * a, a)):
            A = sign * torch.eye(2, dtype=torch.float64)
            refined = bounds.refined_lower(gamma=gamma, norm_vu=1.0, **size)
            found = bounds.score_gap_lower(A=A, V=torch.eye(2, dtype=A.dtype), **size)
            assert found == pytest.approx(refined, abs=1e-9)


@pytest.mark.parametrize("log_q", [-40.0, -14.0, -3.0, 0.0])
@pytest.mark.parametrize("n", [2, 257, 258, 300, 5000, 10**6])
def test_masked_sum_agrees_with_trigamma(log_q, n):
    inverse = math.exp(-log_q)
    if inverse > 1e10:
        expected = n - 1.0
    else:
        expected = inverse**2 * float(polygamma(1, 1 + inverse) - polygamma(1, n + inverse))
    found = bounds.masked_lower(n=n, radius=1.0, gamma=-log_q / 2, norm_v=1.0) ** 2
    # the difference of two trigammas loses digits
    assert found == pytest.approx(expected, rel=1e-7 if inverse > 1e5 else 1e-10)


def test_masked_sum_stops_where_the_unmasked_bound_falls():
    """One seen token in 10¹² no longer matters to the mean, but a causal row near the start still sees it."""
    size = {"n": 10**12, "radius": 1.0, "gamma": 5.0, "norm_v": 1.0}
    assert bounds.masked_lower(**size) == pytest.approx(math.exp(5.0), rel=0.01)
    assert bounds.adversarial_lower(**size) < 0.03


def test_lower_below_upper():
    for a, n in itertools.product((0.0, 1e-3, 1.0, 20.0, 1e3, 1e6), (1, 2, 1000, 10**12)):
        size, norms = {"n": n, "radius": 1.0, "log": True}, {"norm_a": a, "norm_v": 1.0}
        slack = 1e-9 * (1 + a)
        plain = bounds.refined_lower(gamma=a, norm_vu=1.0, **size)
        assert bounds.adversarial_lower(gamma=a, norm_v=1.0, **size) <= plain + slack
        for upper in (bounds.general_upper, bounds.unified_upper, bounds.unified_upper_sharp):
            assert plain <= upper(**size, **norms) + slack
        masked = bounds.masked_lower(gamma=a, norm_v=1.0, **size)
        for upper in (bounds.masked_upper, bounds.masked_upper_sharp):
            assert masked <= upper(**size, **norms) + slack


def test_extremes_are_numbers():
    V = torch.eye(2, dtype=torch.float64)
    radii, sizes = (0.0, 1e-200, 1.0, 1e200), (0.0, 1e-300, 1.0, 1e6)
    for n, radius, size, v in itertools.product((1, 10**12, 10**40), radii, sizes, (0.0, 1.0)):
        for log in (True, False):
            values = [
                bounds.adversarial_lower(n=n, radius=radius, gamma=size, norm_v=v, log=log),
                bounds.refined_lower(n=n, radius=radius, gamma=size, norm_vu=v, log=log),
                bounds.masked_lower(n=n, radius=radius, gamma=size, norm_v=v, log=log),
                bounds.score_gap_lower(n=n, radius=radius, A=size * V, V=v * V, log=log),
            ]
            assert not any(math.isnan(value) for value in values)


def test_score_gap_lower_where_V_sees_one_direction_only():
    """V = b(Au)ᵀ vanishes on (Au)^⊥: the bound then comes from the direction Au itself, and grows at the same rate."""
    A = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    _, u = bounds.score_gap(A)
    V = torch.outer(torch.tensor([1.0, 0.0], dtype=torch.float64), A @ u)
    n = int(math.exp(9.0))
    value = bounds.score_gap_lower(n=n, radius=3.0, A=A, V=V)
    assert value > math.sqrt(n - 1) / 2


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="gamma: expected a number at least 0"):
        bounds.adversarial_lower(n=2, radius=1.0, gamma=-1.0, norm_v=1.0)
    with pytest.raises(ValueError, match="n: expected at least 1"):
        bounds.masked_lower(n=0, radius=1.0, gamma=1.0, norm_v=1.0)
    with pytest.raises(ValueError, match="norm_vu: expected a finite number"):
        bounds.refined_lower(n=2, radius=1.0, gamma=1.0, norm_vu=math.inf)
    with pytest.raises(ValueError, match="V: expected 2 columns"):
        bounds.score_gap_lower(n=2, radius=1.0, A=torch.eye(2), V=torch.eye(3))
    with pytest.raises(TypeError, match=r"V is torch\.float32 but A is torch\.float64"):
        bounds.score_gap_lower(n=2, radius=1.0, A=torch.eye(2).double(), V=torch.eye(2))
