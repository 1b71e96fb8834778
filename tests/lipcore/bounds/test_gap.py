"""The score gap: its value, its maximiser, its dual bound; and what eigenvalues say of it."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from draws import EYE, F64, KINDS, draw, norm, of_kind, tensor
from lipcore import bounds


def gap_at(A, u):
    return (torch.linalg.vector_norm(A @ u) - u @ A @ u).item()


HARD = [-1.6053, 0.2325], [2.2399, 0.8473]
WIDE = torch.zeros(7, 7, dtype=F64)  # it has rank one
WIDE[0, 1] = 3.0
#: A, its gap, and how the theory knows it
KNOWN = [
    (-2 * EYE, 4.0),  # −γI: 2γ
    (2 * EYE, 0.5),  # γI: γ/4
    (tensor([0, -3.0], [3, 0]), 3.0),  # antisymmetric: ‖A‖
    (tensor([4, 0], [0, -0.1]), 1.0775641025641026),  # eigenvalues give 1
    (tensor([1, 5], [0, 1]), 5.124074788735894),  # eigenvalues give 0.25
    (tensor(*HARD), 4.588416314838977),  # where ascent on the sphere stops at 3.97
    (WIDE, 9 * math.sqrt(3) / 4),
    (0 * EYE, 0.0),
]


@pytest.mark.parametrize(("A", "value"), KNOWN)
def test_known_gaps(A, value):
    gap, u = bounds.score_gap(A.requires_grad_())
    assert gap == pytest.approx(value, abs=1e-9)
    assert u.norm() <= 1 + 1e-12 and u.dtype == F64
    assert gap_at(A, u) == pytest.approx(gap, abs=1e-12)
    assert bounds.score_gap_upper(A) == pytest.approx(value, abs=1e-9)
    u.zero_()  # what is handed out may be changed
    assert bounds.score_gap(A)[0] == gap and bounds.score_gap(A)[1].any()


def test_hard_matrix_agrees_with_many_quasi_newton_starts():
    A = np.array(HARD)

    def minus(z):
        """On the ball, the shadow of a sphere in one dimension more: smooth up to its boundary."""
        u = z[:2] / np.linalg.norm(z)
        return -(np.linalg.norm(A @ u) - u @ A @ u)

    rng = np.random.default_rng(0)
    found = max(-minimize(minus, rng.standard_normal(3), method="BFGS").fun for _ in range(20))
    assert bounds.score_gap(torch.from_numpy(A))[0] == pytest.approx(found, abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_value_and_dual_bound_meet(kind):
    """A point with the value, and a bound of the same value: neither can be wrong."""
    for d, seed in itertools.product((1, 2, 3, 6), range(5)):
        A = of_kind(kind, draw(seed, d, d))
        gap, u = bounds.score_gap(A)
        size = norm(A)
        assert u.norm() <= 1 + 1e-12
        assert gap_at(A, u) == pytest.approx(gap, abs=1e-12 * size)
        assert bounds.score_gap_upper(A) == pytest.approx(gap, abs=1e-11 * size)
        assert size / 4 * (1 - 1e-12) <= gap <= 2 * size * (1 + 1e-12)
        assert 2 * bounds.eigen_gamma(A)[0] <= gap * (1 + 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_no_point_of_the_ball_exceeds_it(kind):
    u = draw(0, 3, 20_000)
    u = u / u.norm(dim=0) * torch.linspace(0, 1, 20_000, dtype=F64)
    A = of_kind(kind, draw(7, 3, 3))
    gaps = (A @ u).norm(dim=0) - (u * (A @ u)).sum(0)
    gap = bounds.score_gap(A)[0]
    assert gap * 0.9 <= gaps.max() <= gap * (1 + 1e-12)


def test_symmetric_agrees_with_the_linear_programme():
    """In squares t_r = u_r², Σt ≤ 1: √(Σγ²t) − Σγt is largest where at most two t_r are not zero."""
    t, size = np.meshgrid(np.linspace(0, 1, 2001), np.linspace(0.01, 1, 100))
    for seed in range(5):
        gamma = np.random.default_rng(seed).standard_normal(5) * 3
        best = 0.0
        for i, j in itertools.combinations(range(5), 2):
            squares = size * (t * gamma[i] ** 2 + (1 - t) * gamma[j] ** 2)
            value = np.sqrt(squares) - size * (t * gamma[i] + (1 - t) * gamma[j])
            best = max(best, value.max())
        gap = bounds.score_gap(torch.diag(torch.from_numpy(gamma)))[0]
        assert best <= gap * (1 + 1e-12)
        assert best == pytest.approx(gap, rel=1e-3)


@pytest.mark.parametrize("scale", [1e-200, 1e-8, 1e8, 1e200])
def test_gap_scales(scale):
    A = draw(1, 3, 3)
    assert bounds.score_gap(scale * A)[0] == pytest.approx(scale * bounds.score_gap(A)[0])


def test_gap_turns_with_the_axes_and_ignores_what_A_does_not_touch():
    small = draw(3, 2, 2)
    turn, _ = torch.linalg.qr(draw(4, 40, 40))
    large = turn[:, :2] @ small @ turn[:, :2].mT
    assert bounds.score_gap(large)[0] == pytest.approx(bounds.score_gap(small)[0], rel=1e-10)


@pytest.mark.parametrize(
    ("rows", "gamma"),
    [
        (([8.0, 0], [0, -0.5]), 1.0),
        (([8.0, 0], [0, -3]), 3.0),
        (([1.0, 5], [0, 1]), 0.125),
        (([-1.0, 5], [0, -1]), 1.0),
        (HARD, 1.8018803),
    ],
)
def test_eigen_gamma(rows, gamma):
    A = tensor(*rows)
    found, u = bounds.eigen_gamma(A)
    assert found == pytest.approx(gamma, abs=1e-7)
    value = u @ A @ u
    assert u.norm() == pytest.approx(1.0)
    assert torch.allclose(A @ u, value * u, atol=1e-9)
    assert max(-value.item(), value.item() / 8) == pytest.approx(gamma, abs=1e-7)


def test_without_real_eigenvalue():
    gamma, u = bounds.eigen_gamma(tensor([0.0, -1], [1, 0]))
    assert gamma == 0 and not u.any()


@pytest.mark.parametrize("name", ["score_gap", "score_gap_upper", "eigen_gamma"])
def test_bad_matrices_are_refused(name):
    function = getattr(bounds, name)
    for bad in (torch.zeros(2, 3), torch.full((2, 2), math.nan)):
        with pytest.raises(ValueError, match=r"^A: "):
            function(bad)
    with pytest.raises(TypeError, match=r"^A: "):
        function(torch.zeros(2, 2, dtype=torch.int64))


# --- with an offset ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["any", "symmetric", "positive", "negative", "zero"])
def test_gap_with_an_offset_is_above_every_pair_and_reached(kind):
    """max ‖Ax + c‖ − (Ax + c)·x by climbing from many starts."""
    for seed, size in enumerate((1e-9, 0.1, 1.0, 30.0)):
        A, c = of_kind(kind, draw(seed, 3, 3)), size * draw(seed + 10, 3)
        x = draw(seed + 20, 300, 3)
        x = x / x.norm(dim=1, keepdim=True).clamp(min=1)
        best = 0.0
        for step in range(200):
            x = x.detach().requires_grad_()
            pulled = x @ A.mT + c
            value = pulled.norm(dim=1) - (pulled * x).sum(1)
            best = max(best, value.max().item())
            (slope,) = torch.autograd.grad(value.sum(), x)
            x = x + 0.1 / (1 + 0.05 * step) * slope / slope.norm(dim=1, keepdim=True)
            x = x / x.norm(dim=1, keepdim=True).clamp(min=1)
        found = bounds.score_gap_upper(A, c)
        assert best <= found * (1 + 1e-9) and found <= best * 1.001
        assert found == pytest.approx(bounds.score_gap_upper(3 * A, 3 * c) / 3, rel=1e-6)


def test_offset_must_fit():
    assert bounds.score_gap_upper(EYE, torch.zeros(2)) == bounds.score_gap_upper(EYE)
    with pytest.raises(ValueError, match=r"^offset: "):
        bounds.score_gap_upper(EYE, torch.ones(3, dtype=F64))
