"""What happens to the scores and the outputs of heads: masks, sinks, tiles of tables, projections.

A *table* (a mask or a bias) holds an entry for each pair of tokens. Its shape is broadcastable to
(…, heads, queries, keys): (n, n) serves all heads, (heads, n, n) is a bias like ALiBi's, and
(batch, 1, 1, n) hides the padding of each sequence.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: How many attention weights are held at a time where only the outputs are wanted.
ENTRIES = 2**23


def tile_of(table: Tensor, rows: slice, columns: int, blocks: tuple | None) -> Tensor:
    """Return the entries of a table for some rows and the first columns.

    ``blocks`` holds the shape (…, heads) and a slice of its entries, in order; None means all.
    """
    tile = table[..., rows if table.shape[-2] > 1 else slice(None), :columns]
    if blocks is None or tile.ndim == 2:
        return tile
    # a table of one entry for many heads is not copied for each: only its places are repeated
    shape, wanted = blocks
    lead = tile.shape[:-2]
    places = torch.arange(lead.numel(), device=tile.device).reshape(lead)
    return tile.flatten(0, -3)[places.expand(shape).flatten()[wanted]]


def mask_scores_(layer, scores: Tensor, rows: slice, blocks=None) -> Tensor:
    """Mask the scores (…, rows, columns) of ``rows`` against the first keys, in place."""
    columns = scores.shape[-1]
    if layer.log_weights is not None:
        scores += layer.log_weights[:columns]
    if layer.bias is not None:
        scores += tile_of(layer.bias, rows, columns, blocks)
    if layer.mask is not None:
        scores.masked_fill_(~tile_of(layer.mask, rows, columns, blocks), -math.inf)
    if layer.window is not None:
        near = within_window(layer.window, rows.start, *scores.shape[-2:], scores.device)
        scores.masked_fill_(~near, -math.inf)
    if layer.causal:  # keys before the first of the rows are seen by all of them
        recent = scores[..., rows.start :]
        ones = torch.ones(recent.shape[-2:], dtype=torch.bool, device=recent.device)
        recent.masked_fill_(ones.triu_(1), -math.inf)
    return scores


def within_window(window: int, start: int, rows: int, columns: int, device) -> Tensor:
    """Return which keys, from zero on, the rows from ``start`` on see in a window."""
    queries = torch.arange(start, start + rows, device=device)[:, None]
    return (queries - torch.arange(columns, device=device)).abs() < window


def sink_factor(layer, scores: Tensor, blocks=None) -> Tensor | None:
    """Return the factor that sinks leave to the keys of each row of masked scores, (…, rows, 1)."""
    if layer.sinks is None:
        return None
    sinks = tile_of(layer.sinks[:, None, None], slice(0, 1), 1, blocks)
    return torch.sigmoid(torch.logsumexp(scores, dim=-1, keepdim=True) - sinks)


def per_head(X: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return X (…, n, d) times weight (heads, k, d), in one product: (…, heads, n, k)."""
    projected = (X @ weight.flatten(0, 1).mT).unflatten(-1, weight.shape[:2]).transpose(-3, -2)
    return projected if bias is None else projected + bias[:, None, :]


@torch.no_grad()
def head_outputs(layer, X: Tensor) -> Tensor:
    """Return the heads' outputs before their gates, (…, heads, n, p), in memory linear in n."""
    queries, keys, values = layer.project(layer.check_input(X))
    n = queries.shape[-2]
    height = max(1, ENTRIES // max(1, queries[..., :1, 0].numel() * keys.shape[-2]))
    # written in place: small results kept between large ones would leave holes in the memory
    outputs = values.new_empty(*queries.shape[:-1], values.shape[-1])
    for start in range(0, n, height):
        rows = slice(start, min(start + height, n))
        outputs[..., rows, :] = layer.row_weights(queries, keys, rows) @ values
    return outputs
