"""What the fast path costs, counted and not timed: iterations, multiplications, calls, bytes, transfers to the host.

The bounds are a little above what is counted today. A change that passes one of them has made the package slower.
"""

from __future__ import annotations

import collections
import itertools
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, bmm_flop

from lipcore import Attention, jacobian, local_lipschitz, spectral, spectral_norm
from lipcore.jacobian import AttentionJacobian

aten = torch.ops.aten


def layer(
    *, heads=4, k=8, p=12, d=48, q=40, causal=False, dtype=torch.float32, seed=1
) -> Attention:
    """A layer whose five sizes all differ, so that no two terms of a count can be mistaken for one another."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "query": (heads, k, d),
        "key": (heads, k, d),
        "value": (heads, p, d),
        "output": (q, heads * p),
    }
    weights = {
        name: (torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5).to(
            dtype
        )
        for name, shape in shapes.items()
    }
    return Attention(**weights, causal=causal)


def tokens(*shape, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(
        dtype
    )


def _baddbmm_flop(_, a_shape, b_shape, out_shape=None, **kwargs) -> int:
    return bmm_flop(a_shape, b_shape)


def _mv_flop(a_shape, _, out_shape=None, **kwargs) -> int:
    return 2 * math.prod(a_shape)


def flops(compute) -> int:
    """Twice the multiplications in the matrix products of ``compute()``; PyTorch leaves out those in place."""
    mapping = {aten.baddbmm_: _baddbmm_flop, aten.mv: _mv_flop}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        compute()
    return counter.get_total_flops()


class Tally(TorchDispatchMode):
    """Calls of each operation, and the bytes of each storage that one of them makes anew."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.allocated = collections.Counter(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls[func.overloadpacket.__name__] += 1
        given = {
            x.untyped_storage().data_ptr()
            for x in tree_leaves((args, kwargs))
            if isinstance(x, torch.Tensor)
        }
        made = {
            x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
            for x in tree_leaves(result)
            if isinstance(x, torch.Tensor)
        }
        self.allocated += [size for pointer, size in made.items() if pointer not in given]
        return result


def tally(compute) -> Tally:
    with Tally() as counted:
        compute()
    return counted


def both_products(J: AttentionJacobian):
    """The two products of an iteration, each as a function without arguments."""
    H, G = tokens(*J.batch_shape, *J.input_shape), tokens(*J.batch_shape, *J.output_shape)
    return (lambda: J.matvec(H)), (lambda: J.rmatvec(G))


@pytest.mark.parametrize(
    ("n", "dtype", "tol", "limit"),
    [
        (8, torch.float32, 1e-4, 17),
        (64, torch.float32, 1e-4, 14),
        (8, torch.float64, 1e-10, 23),
        (64, torch.float64, 1e-10, 21),
    ],
)
def test_iterations(n, dtype, tol, limit):
    found = local_lipschitz(layer(dtype=dtype), tokens(n, 48, dtype=dtype), tol=tol)
    assert found.converged
    assert found.iterations <= limit


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("n", [30, 200])
def test_multiplications_of_a_product(n, batch, store):
    """Projections on both sides, and four products of n × n × k or p; P costs one more where it is not kept.

    J[H]: tangents of queries, keys and values; q̇·k and q·k̇; P·v̇; Ṗ·v; output.
    Jᵀ[G]: output; Pᵀ·g; g·v; Ṗ·k; Ṗᵀ·q; back through the three projections.
    """
    heads, k, p, d, q = 4, 8, 12, 48, 40
    J = AttentionJacobian(layer(), tokens(*batch, n, d), store=store)
    projections = 2 * n * heads * (d * (2 * k + p) + p * q)
    tiles = 2 * n**2 * heads * (2 * k + 2 * p + (0 if store else k))
    for product in both_products(J):
        assert flops(product) == math.prod(batch) * (projections + tiles)


def test_a_mask_halves_the_work():
    """Causal tiles end at the last key that they see: at most half of n², and one tile's rows more."""
    n = 1024
    J = AttentionJacobian(layer(causal=True), tokens(n, 48), store=False)
    visited = sum(P.shape[-1] * P.shape[-2] * P.shape[0] for *_, P in J._tiles()) / 4
    assert visited < 0.63 * n**2
    for product in both_products(J):
        assert flops(product) == 2 * n * 4 * (48 * 28 + 12 * 40) + 2 * visited * 4 * 48


@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_with_the_length(causal, monkeypatch):
    """Twice the tokens, at most twice the largest array, and none as large as one head's P."""
    monkeypatch.setattr(jacobian, "TILE_BYTES", 1)  # tiles as small as they get hide nothing
    largest = []
    for n in (512, 1024, 2048):
        J = AttentionJacobian(layer(causal=causal), tokens(n, 48), store=False)
        largest.append([max(tally(product).allocated) for product in both_products(J)])
        assert max(largest[-1]) < 4 * n**2
    for before, after in itertools.pairwise(largest):
        assert all(a <= 2.1 * b for a, b in zip(after, before, strict=True)), largest


def test_stored_weights_are_used_where_they_lie():
    """With P kept (16 MiB), a product makes no copy of it: tiles, and arrays of n × k."""
    J = AttentionJacobian(layer(heads=16), tokens(512, 48), store=True)
    for product in both_products(J):
        assert max(tally(product).allocated) == jacobian.TILE_BYTES < sum(P.nbytes for P in J._P)


@pytest.mark.parametrize(("n", "limit"), [(2, 94), (8, 103), (32, 103)])
def test_calls_of_a_pair(n, limit):
    """For few tokens a pair's time is that of its calls into PyTorch, views included. (Of a second pair.)"""
    J = layer().jacobian(tokens(10, n, 48))
    counted = [[tally(product).calls for product in both_products(J)] for _ in range(2)][-1]
    assert sum(c.total() for c in counted) <= limit, counted


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_transfer_an_iteration(dtype, monkeypatch):
    """Norms go to the host once an iteration; the rest of a run asks for one truth value."""
    transfers = []
    monkeypatch.setattr(
        spectral, "_to_host", lambda *x, real=spectral._to_host: transfers.append(x) or real(*x)
    )
    scalars = []
    for steps in (6, 10):
        transfers.clear()
        J = layer(dtype=dtype).jacobian(tokens(3, 64, 48, dtype=dtype))
        counted = tally(lambda J=J, steps=steps: spectral_norm(J, tol=1e-7, max_iterations=steps))
        assert len(transfers) == steps
        scalars.append(counted.calls["_local_scalar_dense"])
    assert scalars[0] == scalars[1] <= 1


def test_a_repeated_orthogonalisation_asks_once_more(monkeypatch):
    """Where the Krylov space ends, what is left is orthogonalised again: two transfers in that iteration, not more."""
    transfers = []
    monkeypatch.setattr(
        spectral, "_to_host", lambda *x, real=spectral._to_host: transfers.append(x) or real(*x)
    )
    found = spectral_norm(torch.diag(torch.tensor([3.0, 2.0, 1.0, 0.0, 0.0])), tol=1e-7)
    assert found.iterations < len(transfers) <= 2 * found.iterations


def test_products_ask_the_host_nothing():
    for product in both_products(layer(causal=True).jacobian(tokens(2, 70, 48))):
        assert tally(product).calls["_local_scalar_dense"] == 0


def test_a_head_alone_works_in_its_own_dimensions():
    """The layer's width enters the cost of setting up, not that of an iteration."""
    each, double = [], {"dtype": torch.float64}
    for d in (128, 1024):
        head, X = layer(d=d, q=d, **double).head(2), tokens(20, d, **double)

        def run(steps, head=head, X=X):
            return local_lipschitz(head, X, tol=1e-8, max_iterations=steps)

        each.append(flops(lambda run=run: run(6)) - flops(lambda run=run: run(3)))
    assert each[0] == each[1] > 0
