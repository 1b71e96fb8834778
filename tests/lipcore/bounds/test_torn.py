"""Torn queries: the input that reaches a√n, and the upper bound that meets it."""

from __future__ import annotations

import math

import pytest
import torch

from lipcore import Attention, bounds

F64 = torch.float64
EYE = torch.eye(2, dtype=F64)


def _constant(A, V, X):
    return torch.linalg.matrix_norm(Attention.from_matrices(A, V).jacobian(X).dense(), 2)


@pytest.mark.parametrize("a", [0.0, 0.2, 0.5, 0.7, 1.0, 3.0, 50.0])
def test_closed_form_of_the_peak_is_the_maximum(a):
    w = torch.linspace(0, 1, 200_001, dtype=F64)
    values = w**2 * (1 + 2 * a * (1 - w)) ** 2 + (1 - w) ** 2 * (1 - 2 * a * w) ** 2
    assert math.exp(bounds.torn_peak(a)) == pytest.approx(values.max().item(), rel=1e-8)


@pytest.mark.parametrize("kind", ["any", "symmetric", "antisymmetric", "rank one", "positive"])
def test_lower_bound_is_reached_by_its_inputs(kind):
    generator = torch.Generator().manual_seed(7)
    for trial in range(8):
        d, n, radius = 2 + trial % 4, 3 + 2 * trial, 0.3 + 0.4 * trial
        M = torch.randn(d, d, generator=generator, dtype=F64)
        A = {"any": M, "symmetric": M + M.mT, "antisymmetric": M - M.mT, "rank one": torch.outer(M[0], M[1]),
             "positive": M @ M.mT}[kind]  # fmt: skip
        V = torch.randn(3, d, generator=generator, dtype=F64)
        X = bounds.torn_inputs(A, n, radius, V=V)
        assert X.shape == (n, d) and X.norm(dim=-1).max() <= radius * (1 + 1e-12)
        assert bounds.torn_lower(n=n, radius=radius, A=A, V=V) <= _constant(A, V, X) * (1 + 1e-9)


def test_no_head_escapes_a_root_n():
    """(The theorem: a·ν·√(n−2)/6 for n ≤ 2 + e^{a/10}.)"""
    generator = torch.Generator().manual_seed(8)
    for trial in range(15):
        A = torch.randn(3, 3, generator=generator, dtype=F64)
        a = 4.0 + 3 * trial
        n, norm_a = 2 + int(math.exp(a / 10)), torch.linalg.matrix_norm(A, 2).item()
        reached = bounds.torn_lower(
            n=n, radius=math.sqrt(a / norm_a), A=A, V=torch.eye(3, dtype=F64)
        )
        assert reached >= a * math.sqrt(n - 2) / 6


def test_bounds_meet_at_large_radius():
    n, a = 10_000, 64.0
    upper = bounds.torn_upper(n=n, radius=1.0, norm_a=a, norm_v=1.0)
    lower = bounds.torn_lower(n=n, radius=1.0, A=-a * EYE, V=EYE)
    assert 1 <= upper / lower < 1.03


@pytest.mark.parametrize(("a", "n"), [(0.5, 5), (2.0, 12), (8.0, 12), (8.0, 48)])
def test_masked_attention_lies_between_the_two_bounds_too(a, n):
    f = Attention.from_matrices(-a * EYE, EYE, causal=True)
    X = bounds.torn_inputs(-a * EYE, n, 1.0)
    found = torch.linalg.matrix_norm(f.jacobian(X).dense(), 2)
    assert found <= bounds.torn_upper(n=n, radius=1.0, norm_a=a, norm_v=1.0)
    assert bounds.torn_lower(n=n, radius=1.0, A=-a * EYE, V=EYE) <= found * (1 + 1e-9)


@pytest.mark.parametrize("radius", [1e-8, 1.0, 1e3, 1e160])
@pytest.mark.parametrize("n", [1, 3, 10**12])
def test_extreme_sizes_stay_ordered(n, radius):
    upper = bounds.torn_upper(n=n, radius=radius, norm_a=1.0, norm_v=1.0, log=True)
    lower = bounds.torn_lower(n=n, radius=radius, A=-EYE, V=EYE, log=True)
    assert not math.isnan(upper) and not math.isnan(lower) and lower <= upper


def test_there_are_no_torn_queries_on_a_line():
    line = torch.ones(1, 1, dtype=F64)
    assert bounds.torn_lower(n=9, radius=2.0, A=line, V=line) == 0
    assert bounds.torn_lower(n=2, radius=2.0, A=EYE, V=EYE) == 0
    with pytest.raises(ValueError, match="A: expected a matrix other than zero"):
        bounds.torn_inputs(line, 9, 2.0)
    with pytest.raises(ValueError, match="n: expected at least 3"):
        bounds.torn_inputs(EYE, 2, 2.0)
    with pytest.raises(ValueError, match="V: expected 2 columns"):
        bounds.torn_lower(n=5, radius=1.0, A=EYE, V=line)
