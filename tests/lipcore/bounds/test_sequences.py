"""Upper bounds for n tokens: true on random, worst-case and optimised inputs, and as sharp as they claim to be."""

import math

import numpy as np
import pytest
import torch

from lipcore import Attention, bounds
from lipcore.bounds import (
    general_upper,
    masked_upper,
    mean_field_upper_paper,
    torn_upper,
    unified_upper,
    unified_upper_rate,
    unified_upper_sharp,
)

ROUNDING = 1 + 1e-9
F64 = torch.float64
EYE = torch.eye(2, dtype=F64)
MATRICES = {
    "-2 I": -2 * EYE,
    "2 I": 2 * EYE,
    "rotation": torch.tensor([[0.0, -1.5], [1.5, 0.0]], dtype=F64),
    "nearly nilpotent": torch.tensor([[0.2, 2.0], [0.0, 0.2]], dtype=F64),
    "diag(4, -0.1)": torch.diag(torch.tensor([4.0, -0.1], dtype=F64)),
    "zero": 0 * EYE,
}


def worst_case(n, radius, sign):
    """For A = γI of that sign: one token apart, the others together."""
    X = torch.zeros(n, 2, dtype=F64)
    X[:, 0] = radius if sign < 0 else radius / 2
    X[0, 0] = -radius if sign < 0 else radius
    return X


@pytest.mark.parametrize("causal", [False, True], ids=["unmasked", "masked"])
@pytest.mark.parametrize("n", [2, 7])
def test_bounds_hold(generator, truth, n, causal):
    """Random inputs of the ball and its sphere, the worst cases, and what ascent finds from these."""
    radius = 1.1
    V = torch.tensor([[1.0, 0.3], [0.0, 0.8]], dtype=F64)
    inside = truth.to_ball(radius * torch.randn(n, 2, generator=generator, dtype=F64), radius)
    sphere = radius * inside / inside.norm(dim=-1, keepdim=True)
    starts = torch.stack([inside, sphere, worst_case(n, radius, -1), worst_case(n, radius, 1)])
    A = torch.stack(list(MATRICES.values())).repeat_interleave(4, dim=0)
    X = starts.repeat(len(MATRICES), 1, 1) + 1e-3 * radius * inside
    X = truth.to_ball(X, radius)
    value = truth.ascended(lambda X: truth.of_head(A, V, X, causal=causal), X, radius, steps=40)
    start = truth.of_head(A, V, X, causal=causal)
    assert (value > 1.2 * start).any()  # it went uphill
    for index, A in enumerate(MATRICES.values()):
        sigma = value[4 * index : 4 * index + 4].max().item()
        norms = {
            "radius": radius,
            "norm_a": torch.linalg.matrix_norm(A, 2),
            "norm_v": torch.linalg.matrix_norm(V, 2),
        }
        upper = [general_upper(n=n, **norms), torn_upper(n=n, **norms)]
        if causal:
            upper += [masked_upper(n=n, **norms)]
        else:
            upper += [unified_upper(n=n, **norms), unified_upper_sharp(n=n, **norms)]
            upper += [unified_upper(**norms), mean_field_upper_paper(**norms)]
            rate = {"A": A, "radius": radius, "norm_v": norms["norm_v"]}
            upper += [unified_upper_rate(n=n, **rate)]
        assert all(sigma <= bound * ROUNDING for bound in upper)


@pytest.mark.parametrize("gamma", [-1.0, 1.0])
def test_two_clusters_are_what_they_say(truth, gamma):
    attention = Attention.from_matrices(torch.tensor([[gamma]]).double(), torch.ones(1, 1).double())
    X = torch.full((9, 1), 1.3, dtype=F64)
    X[0] = -1.1
    expected = truth.of_map(attention, X[None]).item()
    assert truth.two_clusters(9, -1.1, 1.3, gamma) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("a", [0.5, 1.0, 2.0, 3.0, 5.0, 8.0])
def test_unified_bounds_are_sharp(truth, a):
    """Two clusters for A = −I reach two thirds of both bounds at the best n."""
    lengths = np.unique(np.geomspace(2, 10.0 ** (1 + 2 * a / math.log(10)), 80).astype(int))
    radius = math.sqrt(a)
    reached = [truth.two_clusters(n, -radius, radius, -1.0) for n in lengths.tolist()]
    sizes = {"radius": radius, "norm_a": 1.0, "norm_v": 1.0}
    for bound in (unified_upper, unified_upper_sharp):
        ratios = [bound(n=n, **sizes) / s for n, s in zip(lengths.tolist(), reached, strict=True)]
        assert 1 / ROUNDING <= min(ratios) < 1.5


def test_unified_bound_where_the_book_quotes_it(truth):
    """a = 3: 48.06 is reached by two Diracs, and 1.18 is the ratio at n = 1000."""
    radius = math.sqrt(3)
    values = [truth.two_clusters(n, -radius, radius, -1.0) for n in (1000, 1210, 100_000)]
    unified = unified_upper(n=1000, radius=radius, norm_a=1.0, norm_v=1.0)
    assert unified / values[0] == pytest.approx(1.179, abs=0.001)
    assert max(values) <= 48.07


@pytest.mark.parametrize("bound", [unified_upper, unified_upper_sharp])
def test_unified_bounds_are_exact_without_scores(truth, bound):
    """a = 0: averaging, of norm one, at any n."""
    attention = Attention.from_matrices(0 * EYE, 3 * EYE)
    assert truth.of_map(attention, torch.ones(8, 2, dtype=F64)[None]).item() == pytest.approx(
        3.0, rel=1e-10
    )
    assert bound(n=8, radius=1.0, norm_a=0.0, norm_v=3.0) == pytest.approx(3.0, rel=1e-10)


def test_general_bound_has_the_right_rate(truth):
    """√n is attained while n ≪ e^{2a}: the ratio to two clusters stays within a constant."""
    sizes = {"radius": 3.0, "norm_a": 1.0, "norm_v": 1.0}
    ratios = [
        general_upper(n=n, **sizes) / truth.two_clusters(n, -3.0, 3.0, -1.0)
        for n in (10, 1000, 100_000)
    ]
    assert max(ratios) / min(ratios) < 1.3


def test_torn_bounds_meet_at_large_radius():
    n, a = 10_000, 64.0
    lower = bounds.construction_lower("torn", n=n, radius=1.0, A=-a * EYE, V=EYE)
    for bound in (torn_upper, unified_upper_sharp):
        assert 1 <= bound(n=n, radius=1.0, norm_a=a, norm_v=1.0) / lower < 1.03


@pytest.mark.parametrize("sign", [-1, 1])
def test_rate_bound_by_hand(sign):
    """A = ±I has the gap 2 or 1/4; for −I the bound is the unified one."""
    for a, n in ((0.3, 5), (0.01, 2), (5.0, 40), (20.0, 10**12), (3.0, 1)):
        size = {"radius": math.sqrt(a), "norm_v": 2.0}
        kappa = math.exp(2 * a)
        voice = math.exp(a / 4 if sign > 0 else 2 * a)
        S = min(voice, kappa / (n + kappa - 1) + (n - 1) * voice / (n - 1 + voice))
        found = unified_upper_rate(n=n, A=sign * EYE, **size)
        assert found == pytest.approx(2 * (math.sqrt((1 + a * a) * S) + a), rel=1e-10)
        if sign < 0:
            assert found == pytest.approx(unified_upper(n=n, norm_a=1.0, **size), rel=1e-10)
