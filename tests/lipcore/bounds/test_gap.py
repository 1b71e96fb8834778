"""The score gap: its value, its maximiser, its dual bound; and what eigenvalues say of it."""

import itertools
import math

import pytest
import torch

from draws import EYE, F64, KINDS, draw, norm, tensor
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


@pytest.mark.parametrize("kind", KINDS)
def test_value_and_dual_bound_meet(kind):
    """A point with the value, and a bound of the same value: neither can be wrong."""
    for d, seed in itertools.product((1, 2, 3, 6), range(3)):
        A = KINDS[kind](draw(seed, d, d))
        gap, u = bounds.score_gap(A)
        size = norm(A)
        assert u.norm() <= 1 + 1e-12
        assert gap_at(A, u) == pytest.approx(gap, abs=1e-12 * size)
        assert bounds.score_gap_upper(A) == pytest.approx(gap, abs=1e-11 * size)
        assert size / 4 * (1 - 1e-12) <= gap <= 2 * size * (1 + 1e-12)
        assert 2 * bounds.eigen_gamma(A)[0] <= gap * (1 + 1e-12)


@pytest.mark.parametrize(
    ("rows", "gamma"),
    [(([8.0, 0], [0, -0.5]), 1.0), (([8.0, 0], [0, -3]), 3.0), (([1.0, 5], [0, 1]), 0.125),
     (([-1.0, 5], [0, -1]), 1.0), (HARD, 1.8018803)],
)  # fmt: skip
def test_eigen_gamma(rows, gamma):
    A = tensor(*rows)
    found, u = bounds.eigen_gamma(A)
    assert found == pytest.approx(gamma, abs=1e-7)
    value = u @ A @ u
    assert u.norm() == pytest.approx(1.0)
    assert torch.allclose(A @ u, value * u, atol=1e-9)
    assert max(-value.item(), value.item() / 8) == pytest.approx(gamma, abs=1e-7)
    gamma, u = bounds.eigen_gamma(tensor([0.0, -1], [1, 0]))
    assert gamma == 0 and not u.any()


@pytest.mark.parametrize("kind", ["any", "symmetric", "positive", "negative", "zero"])
def test_gap_with_an_offset_is_above_every_pair_and_reached(kind):
    """max ‖Ax + c‖ − (Ax + c)·x by climbing from many starts."""
    for seed, size in enumerate((1e-9, 0.1, 1.0, 30.0)):
        A, c = KINDS[kind](draw(seed, 3, 3)), size * draw(seed + 10, 3)
        x = draw(seed + 20, 100, 3)
        x = x / x.norm(dim=1, keepdim=True).clamp(min=1)
        best = 0.0
        for step in range(120):
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
