"""The score gap: its value, its maximiser, its dual bound; and what eigenvalues say of it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from lipcore import bounds

KINDS = (
    "general",
    "symmetric",
    "antisymmetric",
    "low rank",
    "non-normal",
    "diagonal",
    "multiple of I",
)


def _tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


def _matrix(kind, d, seed):
    A = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {
        "general": A, "symmetric": A + A.mT, "antisymmetric": A - A.mT, "low rank": torch.outer(A[0], A[:, 0]),
        "non-normal": 20 * A.triu(1) + A, "diagonal": torch.diag(4 * A[0]),
        "multiple of I": A[0, 0] * torch.eye(d, dtype=A.dtype),
    }[kind]  # fmt: skip


def _gap(A, u):
    return (torch.linalg.vector_norm(A @ u) - u @ A @ u).item()


#: A, its gap, and how the theory knows it
KNOWN = [
    (-2 * np.eye(2), 4.0),  # −γI: 2γ
    (2 * np.eye(2), 0.5),  # γI: γ/4
    ([[0, -3.0], [3, 0]], 3.0),  # antisymmetric: ‖A‖
    ([[4, 0], [0, -0.1]], 1.0775641025641026),  # eigenvalues give 1
    ([[1, 5], [0, 1]], 5.124074788735894),  # eigenvalues give 0.25
    (
        [[-1.6053, 0.2325], [2.2399, 0.8473]],
        4.588416314838977,
    ),  # where ascent on the sphere stops at 3.97
]


@pytest.mark.parametrize(("rows", "value"), KNOWN)
def test_known_gaps(rows, value):
    A = _tensor(rows)
    gap, u = bounds.score_gap(A)
    assert gap == pytest.approx(value, abs=1e-9)
    assert u.norm() <= 1 + 1e-12
    assert _gap(A, u) == pytest.approx(gap, abs=1e-12)


def test_hard_matrix_agrees_with_many_quasi_newton_starts():
    A = np.array(KNOWN[-1][0])

    def minus(
        z,
    ):  # the ball as the shadow of a sphere in one dimension more: smooth up to its boundary
        u = z[:2] / np.linalg.norm(z)
        return -(np.linalg.norm(A @ u) - u @ A @ u)

    rng = np.random.default_rng(0)
    found = max(-minimize(minus, rng.standard_normal(3), method="BFGS").fun for _ in range(20))
    assert bounds.score_gap(_tensor(A))[0] == pytest.approx(found, abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_value_and_dual_bound_meet(kind):
    """A point with the value, and a bound of the same value: neither can be wrong."""
    for d, seed in itertools.product((1, 2, 3, 6), range(5)):
        A = _matrix(kind, d, seed)
        gap, u = bounds.score_gap(A)
        size = torch.linalg.matrix_norm(A, 2).item()
        assert u.norm() <= 1 + 1e-12
        assert _gap(A, u) == pytest.approx(gap, abs=1e-12 * size)
        assert bounds.score_gap_upper(A) == pytest.approx(gap, abs=1e-11 * size)


def test_no_point_of_the_ball_exceeds_it():
    u = torch.randn(3, 20000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u = u / u.norm(dim=0) * torch.linspace(0, 1, 20000, dtype=torch.float64)
    for kind in KINDS:
        A = _matrix(kind, 3, 7)
        gaps = (A @ u).norm(dim=0) - (u * (A @ u)).sum(0)
        gap = bounds.score_gap(A)[0]
        assert gap * 0.9 < gaps.max() <= gap * (1 + 1e-12)


def test_symmetric_agrees_with_the_linear_programme():
    """In squared coordinates t_r = u_r², Σt ≤ 1: √(Σγ²t) − Σγt, whose maximum has at most two t_r other than zero."""
    for seed in range(5):
        gamma = np.random.default_rng(seed).standard_normal(5) * 3
        best = 0.0
        for i, j in itertools.combinations(range(5), 2):
            t = np.linspace(0, 1, 2001)
            for size in np.linspace(0.01, 1, 100):
                squares = size * (t * gamma[i] ** 2 + (1 - t) * gamma[j] ** 2)
                best = max(
                    best, (np.sqrt(squares) - size * (t * gamma[i] + (1 - t) * gamma[j])).max()
                )
        gap = bounds.score_gap(torch.diag(_tensor(gamma)))[0]
        assert best <= gap * (1 + 1e-12)
        assert best == pytest.approx(gap, rel=1e-3)


@pytest.mark.parametrize("scale", [1e-200, 1e-8, 1e8, 1e200])
def test_gap_scales(scale):
    A = _matrix("general", 3, 1)
    assert bounds.score_gap(scale * A)[0] == pytest.approx(
        scale * bounds.score_gap(A)[0], rel=1e-12
    )


def test_gap_turns_with_the_axes_and_ignores_what_A_does_not_touch():
    small = _matrix("general", 2, 3)
    turn, _ = torch.linalg.qr(_matrix("general", 40, 4))
    large = turn[:, :2] @ small @ turn[:, :2].mT
    assert bounds.score_gap(large)[0] == pytest.approx(bounds.score_gap(small)[0], rel=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_gap_lies_between_what_the_norm_and_the_eigenvalues_say(kind):
    for seed in range(5):
        A = _matrix(kind, 4, seed)
        gap, norm = bounds.score_gap(A)[0], torch.linalg.matrix_norm(A, 2).item()
        assert norm / 4 * (1 - 1e-12) <= gap <= 2 * norm * (1 + 1e-12)
        assert 2 * bounds.eigen_gamma(A)[0] <= gap * (1 + 1e-12)


def test_zero_matrix():
    gap, u = bounds.score_gap(torch.zeros(3, 3))
    assert gap == 0 and u.dtype == torch.float64 and u.norm() == 1
    assert bounds.score_gap_upper(torch.zeros(3, 3)) == 0
    assert bounds.eigen_gamma(torch.zeros(3, 3))[0] == 0


@pytest.mark.parametrize(
    ("rows", "gamma"),
    [([[8.0, 0], [0, -0.5]], 1.0), ([[8.0, 0], [0, -3]], 3.0), ([[1, 5], [0, 1]], 0.125), ([[-1, 5], [0, -1]], 1.0),
     ([[-1.6053, 0.2325], [2.2399, 0.8473]], 1.8018803)],
)  # fmt: skip
def test_eigen_gamma(rows, gamma):
    A = _tensor(rows)
    found, u = bounds.eigen_gamma(A)
    assert found == pytest.approx(gamma, abs=1e-7)
    value = u @ A @ u
    assert u.norm() == pytest.approx(1.0)
    assert torch.allclose(A @ u, value * u, atol=1e-9)
    assert max(-value.item(), value.item() / 8) == pytest.approx(gamma, abs=1e-7)


def test_without_real_eigenvalue():
    gamma, u = bounds.eigen_gamma(_tensor([[0.0, -1], [1, 0]]))
    assert gamma == 0 and not u.any()


@pytest.mark.parametrize("name", ["score_gap", "score_gap_upper", "eigen_gamma"])
def test_bad_matrices_are_refused(name):
    function = getattr(bounds, name)
    with pytest.raises(ValueError, match=r"^A: "):
        function(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"^A: "):
        function(torch.full((2, 2), math.nan))
    with pytest.raises(TypeError, match=r"^A: "):
        function(torch.zeros(2, 2, dtype=torch.int64))


def test_matrices_that_ask_for_gradients():
    A = torch.tensor([[0.0, -3.0], [3.0, 0.0]], dtype=torch.float64, requires_grad=True)
    assert bounds.score_gap(A)[0] == pytest.approx(3) and bounds.score_gap_upper(
        A
    ) == pytest.approx(3)


# --- with an offset ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["any", "symmetric", "positive", "negative", "zero"])
def test_gap_with_an_offset_is_above_every_pair_and_reached(kind):
    """max (Ax + c)·(y − x) by climbing from many starts; the best y is the direction of Ax + c."""
    generator = torch.Generator().manual_seed(4)
    for size in (1e-9, 0.1, 1.0, 30.0):
        M = torch.randn(3, 3, generator=generator, dtype=torch.float64)
        A = {"any": M, "symmetric": M + M.mT, "positive": M @ M.mT, "negative": -M @ M.mT,
             "zero": 0 * M}[kind]  # fmt: skip
        c = size * torch.randn(3, generator=generator, dtype=torch.float64)
        x = torch.randn(500, 3, generator=generator, dtype=torch.float64)
        x = x / x.norm(dim=1, keepdim=True).clamp(min=1)
        best = 0.0
        for step in range(300):
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
    eye = torch.eye(2, dtype=torch.float64)
    assert bounds.score_gap_upper(eye, torch.zeros(2)) == bounds.score_gap_upper(eye)
    with pytest.raises(ValueError, match=r"^offset: "):
        bounds.score_gap_upper(eye, torch.ones(3, dtype=torch.float64))
