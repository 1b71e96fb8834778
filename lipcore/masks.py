"""What is added to scores before the softmax: who sees whom, biases of pairs, masses of tokens.

A *table* holds an entry for each pair of tokens, and may do so for each head and each sequence: its
shape is broadcastable to (…, heads, n, n), so that (n, n) serves all of them, (heads, n, n) is a
bias like ALiBi's, and (batch, 1, 1, n) hides the padding of each sequence. In cross-attention,
where m queries look at n other tokens, it is broadcastable to (…, heads, m, n).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from lipcore._checks import check_same_kind


def tile_of(
    table: Tensor, rows: slice, columns: int, blocks: tuple[tuple[int, ...], slice] | None
) -> Tensor:
    """Return the entries of a table for some rows and the first columns.

    ``blocks`` holds the shape (…, heads) and a slice of its members, in order; None means all
    of them, in a shape broadcastable to (…, heads, rows, columns).

    Examples
    --------
    >>> table = torch.arange(8.0).reshape(2, 1, 2, 2)  # of two sequences, one for all heads
    >>> tile_of(table, slice(0, 1), 2, ((2, 3), slice(2, 4)))
    tensor([[[0., 1.]],
            [[4., 5.]]])
    """
    tile = table[..., rows if table.shape[-2] > 1 else slice(None), :columns]
    if blocks is None or tile.ndim == 2:
        return tile
    shape, wanted = blocks
    lead = tile.shape[:-2]
    members = torch.arange(lead.numel(), device=tile.device).reshape(lead)
    return tile.flatten(0, -3)[members.expand(shape).flatten()[wanted]]


def mask_scores_(layer, scores: Tensor, rows: slice, blocks=None) -> Tensor:
    """Mask the scores (…, rows, columns) of ``rows`` against the first keys, in place.

    ``blocks``: see :func:`tile_of`.
    """
    columns = scores.shape[-1]
    if layer.log_weights is not None:
        scores += layer.log_weights[:columns]
    if layer.bias is not None:
        scores += tile_of(layer.bias, rows, columns, blocks)
    if layer.mask is not None:
        scores.masked_fill_(~tile_of(layer.mask, rows, columns, blocks), -math.inf)
    if layer.window is not None:
        scores.masked_fill_(
            ~_band(layer.window, rows.start, *scores.shape[-2:], scores.device), -math.inf
        )
    if layer.causal:  # keys before the first of the rows are seen by all of them
        recent = scores[..., rows.start :]
        ones = torch.ones(recent.shape[-2:], dtype=torch.bool, device=recent.device)
        recent.masked_fill_(ones.triu_(1), -math.inf)
    return scores


def _band(window: int, start: int, rows: int, columns: int, device) -> Tensor:
    """Return which of the keys, from zero on, the rows from ``start`` on see in a window."""
    queries = torch.arange(start, start + rows, device=device)[:, None]
    return (queries - torch.arange(columns, device=device)).abs() < window


def kept(layer, scores: Tensor, blocks=None) -> Tensor | None:
    """Return the share of each row that sinks leave to keys, (…, rows, 1), of masked scores."""
    if layer.sinks is None:
        return None
    sinks = tile_of(layer.sinks[:, None, None], slice(0, 1), 1, blocks)
    return torch.sigmoid(torch.logsumexp(scores, dim=-1, keepdim=True) - sinks)


def members(layer, batch: tuple[int, ...], index):
    """Return the layer for some sequences of a batch, with the masks and biases of these alone."""
    tables = {name: getattr(layer, name) for name in ("mask", "bias")}
    own = {
        name: table.expand(*batch, *table.shape[-3:])[index]
        for name, table in tables.items()
        if table is not None and table.ndim > 3
    }
    return replace(layer, **own) if own else layer


def check_tables(layer) -> None:
    """Refuse masks, biases, masses and sinks that do not fit, or that leave a row without a key."""
    for name in ("mask", "bias", "log_weights", "sinks"):
        value = getattr(layer, name)
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")
    sizes = {name: _size(name, layer) for name in ("mask", "bias", "log_weights")}
    sizes = {name: size for name, size in sizes.items() if size is not None}
    for place in (0, 1):
        numbers = {name: size[place] for name, size in sizes.items() if size[place] > 1}
        if len(set(numbers.values())) > 1:
            got = list(numbers.values())
            raise ValueError(f"{', '.join(numbers)}: expected one number of tokens, got {got}")
    rows = max((size[0] for size in sizes.values()), default=1)
    columns = max((size[1] for size in sizes.values()), default=1)
    one_sequence = layer.causal or layer.window is not None
    if one_sequence and min(rows, columns) > 1 and rows != columns:
        expected = "expected them to be square beside causal=True or a window"
        raise ValueError(f"mask, bias: {expected}, got ({rows}, {columns})")
    sinks = layer.sinks
    if sinks is not None:
        check_same_kind("sinks", sinks, layer.query, "query")
        if tuple(sinks.shape) != (layer.heads,) or not bool((sinks < math.inf).all()):
            expected = f"a number below +infinity for each of {layer.heads} heads"
            raise ValueError(f"sinks: expected {expected}, got shape {tuple(sinks.shape)}")
    if sizes:
        _check_rows(layer, max(rows, columns) if one_sequence else rows, columns)


def _size(name: str, layer) -> tuple[int, int] | None:
    """Return for how many queries and keys a table is; 1 stands for any number."""
    table = getattr(layer, name)
    if table is None:
        return None
    if name == "mask":
        if table.dtype != torch.bool:
            raise ValueError(f"mask: expected a boolean tensor, got {table.dtype}")
    else:
        check_same_kind(name, table, layer.query, "query")
        if not bool((table < math.inf).all()):
            raise ValueError(f"{name}: expected numbers below +infinity")
    if name == "log_weights":
        if table.ndim != 1:
            raise ValueError("log_weights: expected a vector of numbers below +infinity")
        return 1, len(table)
    if table.ndim < 2 or (table.ndim > 2 and table.shape[-3] not in (1, layer.heads)):
        expected = f"a shape broadcastable to (…, {layer.heads}, n, n)"
        raise ValueError(f"{name}: expected {expected}, got {tuple(table.shape)}")
    return tuple(table.shape[-2:])


def _check_rows(layer, rows: int, columns: int) -> None:
    mask = layer.mask
    masses = layer.log_weights
    bias = layer.bias
    if bias is not None and bool((bias > -math.inf).all()):
        bias = None  # hides nothing
    if mask is None and bias is None and masses is None:
        return
    if (
        mask is None and bias is None and layer.window is None
    ):  # the first key decides, or any of them: no n × n array
        seen = (masses[:1] if layer.causal else masses) > -math.inf
        row = 0
    else:
        seen = torch.ones(rows, columns, dtype=torch.bool, device=layer.query.device)
        seen = seen.tril_() if layer.causal else seen
        if layer.window is not None:
            seen &= _band(layer.window, 0, rows, columns, seen.device)
        for allowed in (mask, None if bias is None else bias > -math.inf):
            seen = seen if allowed is None else seen & allowed
        seen = (seen if masses is None else seen & (masses > -math.inf)).any(-1)
        row = int((~seen).nonzero()[0, -1]) if not bool(seen.all()) else 0
        seen = seen.all()
    if not bool(seen.any()):
        names = "mask, bias, log_weights"
        raise ValueError(f"{names}: expected a visible key in every row, row {row} has none")


def check_fits(layer, X: Tensor, memory: Tensor | None = None) -> None:
    """Refuse tokens (…, n, d) whose number or batch is not that of the tables.

    Queries come from X and keys from ``memory``, which is X itself if left out.
    """
    names = ("X", "X") if memory is None else ("queries", "memory")
    sizes = (X.shape[-2], (X if memory is None else memory).shape[-2])
    shape = (*X.shape[:-2], layer.heads, *sizes)
    for name in ("mask", "bias", "log_weights"):
        table = getattr(layer, name)
        if table is None:
            continue
        wanted = (None, len(table)) if name == "log_weights" else table.shape[-2:]
        any_number = None if name == "log_weights" else 1
        for who, size, n in zip(names, wanted, sizes, strict=True):
            if size not in (any_number, n):
                raise ValueError(f"{who}: expected {size} tokens as {name} has, got {n}")
        try:
            fits = torch.broadcast_shapes(table.shape, shape) == shape
        except RuntimeError:
            fits = False
        if not fits and name != "log_weights":
            got = f"{tuple(X.shape)} beside a {name} of shape {tuple(table.shape)}"
            raise ValueError(f"X: expected a batch that the {name} is for, got {got}")
