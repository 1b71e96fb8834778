"""What the fast path costs, counted and not timed; the limits are a little above today's counts."""

from __future__ import annotations

import collections
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, bmm_flop

from lipcore import Attention, local_lipschitz, spectral, spectral_norm
from lipcore.jacobian import AttentionJacobian
from seeded import drawn

HEADS, K, P, D, Q = 4, 8, 12, 48, 40  # all differ: no two terms of a count can be confused
PROJECTIONS = 2 * HEADS * (D * (2 * K + P) + P * Q)  # of one token, on both sides


def layer(*, heads=HEADS, d=D, q=Q, causal=False, dtype=torch.float32) -> Attention:
    shapes = {"query": (heads, K, d), "key": (heads, K, d), "value": (heads, P, d)}
    shapes["output"] = (q, heads * P)
    weights = {
        name: drawn(*shape, seed=1).to(dtype) / shape[-1] ** 0.5 for name, shape in shapes.items()
    }
    return Attention(**weights, causal=causal)


def tokens(*shape, dtype=torch.float32) -> torch.Tensor:
    return drawn(*shape, seed=2).to(dtype)


def both_products(J: AttentionJacobian):
    """The two products of an iteration, each as a function without arguments."""
    H, G = tokens(*J.batch_shape, *J.input_shape), tokens(*J.batch_shape, *J.output_shape)
    return (lambda: J.matvec(H)), (lambda: J.rmatvec(G))


def _baddbmm_flop(_, a_shape, b_shape, out_shape=None, **kwargs) -> int:
    return bmm_flop(a_shape, b_shape)


def _mv_flop(a_shape, _, out_shape=None, **kwargs) -> int:
    return 2 * math.prod(a_shape)


def flops(compute) -> int:
    """Twice the multiplications in matrix products; PyTorch leaves out those in place."""
    mapping = {torch.ops.aten.baddbmm_: _baddbmm_flop, torch.ops.aten.mv: _mv_flop}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        compute()
    return counter.get_total_flops()


class Tally(TorchDispatchMode):
    """Calls of each operation."""

    def __init__(self, compute) -> None:
        super().__init__()
        self.calls = collections.Counter()
        with self:
            compute()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("n", "dtype", "tol", "limit"),
    [(8, torch.float32, 1e-4, 17), (64, torch.float32, 1e-4, 14),
     (8, torch.float64, 1e-10, 23), (64, torch.float64, 1e-10, 21)],
)  # fmt: skip
def test_iterations(n, dtype, tol, limit):
    found = local_lipschitz(layer(dtype=dtype), tokens(n, D, dtype=dtype), tol=tol)
    assert found.converged and found.iterations <= limit


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("n", [30, 200])
def test_multiplications_of_a_product(n, batch, store):
    """Projections, four products n × n × k or p, and P once more where it is not kept."""
    # J[H]: q̇·k and q·k̇; P·v̇; Ṗ·v. Jᵀ[G]: Pᵀ·g; g·v; Ṗ·k; Ṗᵀ·q
    J = AttentionJacobian(layer(), tokens(*batch, n, D), store=store)
    tiles = 2 * n**2 * HEADS * (2 * K + 2 * P + (0 if store else K))
    for product in both_products(J):
        assert flops(product) == math.prod(batch) * (n * PROJECTIONS + tiles)


def test_a_mask_halves_the_work():
    """Causal tiles end at the last key that they see: half of n², and one tile's rows more."""
    n = 1024
    J = AttentionJacobian(layer(causal=True), tokens(n, D), store=False)
    visited = sum(tile.numel() for *_, tile in J._tiles()) / HEADS
    assert visited < 0.63 * n**2
    for product in both_products(J):
        assert flops(product) == n * PROJECTIONS + 2 * visited * HEADS * (3 * K + 2 * P)


@pytest.mark.parametrize(("n", "limit"), [(2, 94), (8, 103), (32, 103)])
def test_calls_of_a_pair(n, limit):
    """For few tokens a pair's time is that of its calls, views included. (Of a second pair.)"""
    J = layer().jacobian(tokens(10, n, D))
    counted = [[Tally(product).calls for product in both_products(J)] for _ in range(2)][-1]
    assert sum(c.total() for c in counted) <= limit, counted


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_transfer_an_iteration(dtype, monkeypatch):
    """Norms go to the host once an iteration; the rest of a run asks for one truth value."""
    transfers, scalars = [], []
    real = spectral._to_host
    monkeypatch.setattr(spectral, "_to_host", lambda *x: transfers.append(x) or real(*x))
    J = layer(dtype=dtype, causal=True).jacobian(tokens(3, 64, D, dtype=dtype))
    monkeypatch.setattr(J, "in_float64", lambda: None)
    for steps in (6, 10):
        transfers.clear()
        counted = Tally(lambda steps=steps: spectral_norm(J, tol=1e-7, max_iterations=steps))
        assert len(transfers) == steps
        scalars.append(counted.calls["_local_scalar_dense"])
    assert scalars[0] == scalars[1] <= 1


def test_a_head_alone_works_in_its_own_dimensions():
    """The layer's width enters the cost of setting up, not that of an iteration."""
    each, double = [], {"dtype": torch.float64}
    for d in (128, 1024):
        head, X = layer(d=d, q=d, **double).head(2), tokens(20, d, **double)

        def run(steps, head=head, X=X):
            return local_lipschitz(head, X, tol=1e-8, max_iterations=steps)

        each.append(flops(lambda run=run: run(6)) - flops(lambda run=run: run(3)))
    assert each[0] == each[1] > 0
