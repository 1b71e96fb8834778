"""One pair of products: against its bare matrix products, and as n, d, heads and batch grow."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cases import bare_pair, minilm, multiplications, pair, random_jacobian
from lipcore import AutogradJacobian

BASE = {"n": 128, "d": 128, "heads": 4, "batch": 1}
GROWTH = {
    "n": (64, 128, 256, 512, 1024, 2048),
    "d": (64, 128, 256, 512, 1024, 2048),
    "heads": (1, 2, 4, 8, 16, 32),
    "batch": (1, 2, 4, 8, 16, 32),
}


def _check(J, X) -> None:
    """Products of a member of the batch, against autodiff."""
    by_autodiff = AutogradJacobian(lambda Y: J.attention(Y), X)
    H = torch.randn(X.shape, generator=torch.Generator().manual_seed(3))
    for product in ("matvec", "rmatvec"):
        exact = getattr(by_autodiff, product)(H)
        assert (getattr(J, product)(H) - exact).norm() <= 1e-4 * exact.norm()


@pytest.mark.parametrize("n", [256, 512], ids=lambda n: f"n{n}")
def test_pair(benchmark, n):
    """lipcore's pair on ten MiniLM sequences."""
    attention, X = minilm(n)
    J = attention.jacobian(X)
    benchmark.pedantic(pair(J), rounds=15, warmup_rounds=3)
    benchmark.extra_info |= {"n": n, "multiplications": multiplications(J)}
    _check(attention.jacobian(X[0]), X[0])


@pytest.mark.parametrize("n", [256, 512], ids=lambda n: f"n{n}")
def test_bare_products(benchmark, n):
    """The matrix products of that pair, and nothing else."""
    attention, X = minilm(n)
    J = attention.jacobian(X)
    benchmark.pedantic(bare_pair(J), rounds=15, warmup_rounds=3)
    benchmark.extra_info |= {"n": n, "multiplications": multiplications(J)}


@pytest.mark.parametrize(
    ("size", "value"), [(size, value) for size, values in GROWTH.items() for value in values]
)
def test_growth(benchmark, size, value):
    """One size grows, the others stay."""
    J = random_jacobian(**BASE | {size: value})
    benchmark.pedantic(pair(J), rounds=40, warmup_rounds=5)
    benchmark.extra_info |= {"size": size, "at": value, "multiplications": multiplications(J)}
