"""What is measured: ten sequences of MiniLM, random layers, and the bare matrix products of a pair."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from lab import models
from lab.models.texts import load_text, sequences
from lipcore import Attention, local_lipschitz
from lipcore.jacobian import AttentionJacobian, cut_into_tiles

LENGTHS = (8, 32, 64, 128, 256)
LAYER = 3
SEQUENCES = 10


@functools.cache
def minilm(n: int) -> tuple[Attention, Tensor]:
    """The layer, and what enters it for ten sequences of n tokens, in float32."""
    model = models.load("minilm")
    return model.attention(LAYER), model.hidden_states(
        LAYER, sequences(model, load_text("pydoc"), n, SEQUENCES)
    )


@functools.cache
def converged(n: int) -> Tensor:
    """Their local constants, converged in float64 from a start of their own."""
    attention, X = minilm(n)
    start = torch.Generator().manual_seed(1)
    return local_lipschitz(
        attention.to(torch.float64), X.double(), tol=1e-13, generator=start
    ).value


def relative_error(values: Tensor, exact: Tensor) -> float:
    return ((values.double() - exact).abs() / exact).max().item()


def random_layer(*, heads: int, d: int, k: int = 32, causal: bool = False) -> Attention:
    """Heads of dimension k = p in a layer of width d, projected back to d, in float32."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) / shape[-1] ** 0.5

    return Attention(
        query=draw(heads, k, d),
        key=draw(heads, k, d),
        value=draw(heads, k, d),
        output=draw(d, heads * k),
        causal=causal,
    )


def random_jacobian(*, n: int, batch: int = 1, **layer) -> AttentionJacobian:
    attention = random_layer(**layer)
    return attention.jacobian(
        torch.randn(batch, n, attention.d, generator=torch.Generator().manual_seed(1))
    )


def pair(J: AttentionJacobian):
    """One product with J and one with Jᵀ, as a function without arguments."""
    generator = torch.Generator().manual_seed(2)
    H, G = (
        torch.randn(*J.batch_shape, *shape, generator=generator)
        for shape in (J.input_shape, J.output_shape)
    )
    return lambda: (J.matvec(H), J.rmatvec(G))


def multiplications(J: AttentionJacobian) -> int:
    """Multiplications in the matrix products of a pair, where the weights are kept and nothing is masked."""
    (n, d), (heads, k, _), p = J.input_shape, J.attention.query.shape, J.attention.value.shape[1]
    projections = n * heads * (d * (2 * k + p) + p * J.attention.output_dim)
    return 2 * math.prod(J.batch_shape) * (projections + heads * n**2 * 2 * (k + p))


def bare_pair(J: AttentionJacobian):
    """The matrix products of a pair and nothing else: same tiles, outputs there beforehand.

    The two products of the scores' tangents are made as one here, of twice the width, which is quicker.
    """
    attention = J.attention
    n = J.input_shape[0]
    k = attention.query.shape[1]
    p = attention.value.shape[1]
    sequences = math.prod(J.batch_shape)
    blocks = sequences * attention.heads
    wide = torch.cat([attention.query, attention.key, attention.value], dim=1).flatten(0, 1)
    output = attention.output
    tokens = sequences * n
    H, moved = torch.randn(tokens, wide.shape[1]), torch.randn(tokens, wide.shape[0])
    joined, G = torch.randn(tokens, output.shape[1]), torch.randn(tokens, output.shape[0])
    left, right, q, g = (torch.randn(blocks, n, size) for size in (2 * k, 2 * k, k, p))
    mixed, keys, values = torch.empty_like(g), torch.empty_like(q), torch.empty_like(g)
    there = [(torch.mm, H, wide.mT, moved)]
    back = [(torch.mm, G, output, joined)]
    cuts = cut_into_tiles(blocks, n, H.element_size())
    scratch = None  # of the first and largest tile; the others work in the same memory
    for heads, rows, seen in cuts:
        P = torch.rand(heads.stop - heads.start, rows.stop - rows.start, n)
        scratch = torch.empty(P.numel()) if scratch is None else scratch
        tile = scratch[: P.numel()].view(P.shape)
        there += [
            (torch.bmm, left[heads, rows], right[heads, seen].mT, tile),
            (torch.bmm, P, g[heads, seen], mixed[heads, rows]),
            (torch.bmm, tile, g[heads, seen], mixed[heads, rows]),
        ]
        back += [
            (torch.bmm, P.mT, g[heads, rows], values[heads, seen]),
            (torch.bmm, g[heads, rows], g[heads, seen].mT, tile),
            (torch.bmm, tile, q[heads, seen], keys[heads, rows]),
            (torch.bmm, tile.mT, q[heads, rows], keys[heads, seen]),
        ]
    calls = [*there, (torch.mm, joined, output.mT, G), *back, (torch.mm, moved, wide, H)]
    assert sum(a.numel() * b.shape[-1] for _, a, b, _ in calls) == multiplications(J)

    def run() -> None:
        for product, a, b, out in calls:
            product(a, b, out=out)

    return run
