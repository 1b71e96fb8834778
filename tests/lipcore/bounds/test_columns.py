"""Column sums of P: never above their bounds, and close to them at one token apart from many."""

import itertools
import math

import pytest
import torch

from lipcore.bounds import score_gap
from lipcore.bounds.ball import log_column_sum
from lipcore.bounds.causal import (
    log_causal_column_sum,
    log_cells,
    log_cubes,
    log_least_cells,
    log_voronoi,
)

F64 = torch.float64


def test_columns_of_scores_within_2a():
    generator = torch.Generator().manual_seed(0)
    for a, n in itertools.product((0.0, 0.4, 2.0, 9.0), (1, 2, 7, 60)):
        scores = 2 * a * torch.rand(40, n, n, generator=generator, dtype=F64)
        scores[20:] = 2 * a * (torch.arange(n) == 0).double()  # all look at the first key
        columns = torch.softmax(scores, -1).sum(-2).max().item()
        limit = math.exp(log_column_sum(n, math.log(a) if a else -math.inf))
        assert columns == pytest.approx(limit, rel=1e-12)
        causal = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        columns = torch.softmax(causal, -1).sum(-2).max().item()
        limit = math.exp(log_causal_column_sum(n, math.log(a) if a else -math.inf))
        assert 0.7 * limit <= columns <= limit * (1 + 1e-12)
        kappa = math.exp(2 * a)
        expected = min(n, 1 + kappa * math.log(1 + (n - 1) / kappa))
        assert limit == pytest.approx(expected, rel=1e-7)
    assert log_column_sum(None, 0.0) == 2.0


@pytest.mark.parametrize("kind", ["any", "symmetric", "rotation", "rank one", "zero"])
def test_cells(kind):
    """No column sum of random inputs is above either count, and the best count is never above the theorem's."""
    generator = torch.Generator().manual_seed(1)
    for radius in (0.3, 1.0, 3.0):
        M = torch.randn(3, 3, generator=generator, dtype=F64)
        A = {"any": M, "symmetric": M + M.mT, "rotation": M - M.mT, "rank one": M[:, :1] @ M[:1],
             "zero": 0 * M}[kind]  # fmt: skip
        log_a, cells = log_cells(A, radius)
        least = log_least_cells(A, radius, below=math.inf)
        assert log_a == pytest.approx(
            math.log(radius**2 * torch.linalg.matrix_norm(A, 2).item())
            if kind != "zero"
            else -math.inf
        )
        assert score_gap(A)[0] * radius**2 <= least <= cells + 1e-9
        X = torch.randn(50, 40, 3, generator=generator, dtype=F64)
        X = radius * X / X.norm(dim=-1, keepdim=True)
        columns = torch.softmax((X @ A.mT) @ X.mT, -1).sum(-2).max().item()
        assert math.log(columns) <= least
        for below in (least - 1e-9, least / 2, 0.0):  # skipped only where it would not help
            assert log_least_cells(A, radius, below=below) >= below
        assert log_least_cells(A, radius, below=least + 1e-9) == least


@pytest.mark.parametrize("rank", [4, 9])
def test_least_cells_by_hand(rank):
    """A = I: cubes up to rank four, Voronoi cells beyond; the best t is near the rank."""
    t = torch.linspace(0.01, 30, 30_000, dtype=F64)
    factor = 2 * min(math.sqrt(rank), 2)
    counts = rank * torch.log(factor * 100 / t + 1) + t + 25
    A = torch.eye(rank, dtype=F64)
    found = log_least_cells(A, 10.0, below=math.inf)
    assert found == pytest.approx(counts.min().item(), abs=1e-3)
    assert found >= counts.min().item() - 1e-6
    expected = rank * math.log(100 * factor + 1) + 26
    assert log_cells(A, 10.0)[1] == pytest.approx(expected)


@pytest.mark.parametrize("axes", [(3.0, 3.0), (3.0, 0.5), (4.0, 0.01), (2.0, 1.0, 0.3)])
def test_voronoi_cells_are_enough(axes):
    """No set of points in the ellipsoid further apart than t/2 has more points than cells are counted."""
    generator = torch.Generator().manual_seed(2)
    axes = torch.tensor(axes, dtype=F64)
    x = torch.randn(20_000, len(axes), generator=generator, dtype=F64)
    x = x / x.norm(dim=-1, keepdim=True)
    inside = torch.rand(len(x), 1, generator=generator, dtype=F64) ** (1 / len(axes))
    points = axes * x * inside
    kept = points[:0]
    for point in points:
        if len(kept) == 0 or (kept - point).norm(dim=-1).min() > 0.5:
            kept = torch.cat([kept, point[None]])
    log_n = log_voronoi(axes.log(), 0.0)
    assert len(kept) <= math.exp(log_n) < 12 * len(kept)
    volumes = torch.log1p(4 * axes).sum().item()  # Brunn–Minkowski: no fewer by this proof
    assert volumes - 1e-12 <= log_n < volumes + math.log(4)
    assert log_cubes(axes.log(), 0.0) == pytest.approx(
        torch.log1p(2 * axes * math.sqrt(len(axes))).sum().item()
    )
