"""What is added to scores before the softmax: who sees whom, biases of pairs, masses of tokens.

A *table* holds an entry for each pair of tokens, and may do so for each head and each sequence: its
shape is broadcastable to (…, heads, n, n), so that (n, n) serves all of them, (heads, n, n) is a
bias like ALiBi's, and (batch, 1, 1, n) hides the padding of each sequence.
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
    """Entries of a table for some rows and the first columns.

    ``blocks`` are the shape (…, heads) and which of its members are wanted, counted through; if
    None, all of them, in a shape broadcastable to (…, heads, rows, columns).

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


def member(attention, batch: tuple[int, ...], index: int):
    """The layer with the tables of one sequence of a batch, counted through."""
    tables = {name: getattr(attention, name) for name in ("mask", "bias")}
    own = {
        name: table.expand(*batch, *table.shape[-3:]).flatten(0, -4)[index]
        for name, table in tables.items()
        if table is not None and table.ndim > 3
    }
    return replace(attention, **own) if own else attention


def check_tables(attention) -> None:
    """Refuse masks, biases, masses and sinks that do not fit, or leave a row without a key."""
    for name in ("mask", "bias", "log_weights", "sinks"):
        value = getattr(attention, name)
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")
    sizes = {name: _size(name, attention) for name in ("mask", "bias", "log_weights")}
    sizes = {name: n for name, n in sizes.items() if n is not None}
    if len(set(sizes.values())) > 1:
        names = ", ".join(sizes)
        raise ValueError(f"{names}: expected one number of tokens, got {list(sizes.values())}")
    sinks = attention.sinks
    if sinks is not None:
        check_same_kind("sinks", sinks, attention.query, "query")
        if tuple(sinks.shape) != (attention.heads,) or not bool((sinks < math.inf).all()):
            expected = f"a number below +infinity for each of {attention.heads} heads"
            raise ValueError(f"sinks: expected {expected}, got shape {tuple(sinks.shape)}")
    if sizes:
        _check_rows(attention, next(iter(sizes.values())))


def _size(name: str, attention) -> int | None:
    """The number of tokens that a mask, a bias or masses are for."""
    table = getattr(attention, name)
    if table is None:
        return None
    if name == "mask":
        if table.dtype != torch.bool:
            raise ValueError(f"mask: expected a boolean tensor, got {table.dtype}")
    else:
        check_same_kind(name, table, attention.query, "query")
        if not bool((table < math.inf).all()):
            raise ValueError(f"{name}: expected numbers below +infinity")
    if name == "log_weights":
        if table.ndim != 1:
            raise ValueError("log_weights: expected a vector of numbers below +infinity")
        return len(table)
    n = max(table.shape[-2:], default=0)
    fits = table.ndim >= 2 and all(size in (1, n) for size in table.shape[-2:])
    if not fits or (table.ndim > 2 and table.shape[-3] not in (1, attention.heads)):
        expected = f"a shape broadcastable to (…, {attention.heads}, n, n)"
        raise ValueError(f"{name}: expected {expected}, got {tuple(table.shape)}")
    return n


def _check_rows(attention, n: int) -> None:
    mask = attention.mask
    masses = attention.log_weights
    bias = attention.bias
    if bias is not None and bool((bias > -math.inf).all()):
        bias = None  # hides nothing
    if mask is None and bias is None and masses is None:
        return
    if mask is None and bias is None:  # the first key decides, or any of them: no n × n array
        seen = (masses[:1] if attention.causal else masses) > -math.inf
        row = 0
    else:
        seen = torch.ones(n, n, dtype=torch.bool, device=attention.query.device)
        seen = seen.tril_() if attention.causal else seen
        for allowed in (mask, None if bias is None else bias > -math.inf):
            seen = seen if allowed is None else seen & allowed
        seen = (seen if masses is None else seen & (masses > -math.inf)).any(-1)
        row = int((~seen).nonzero()[0, -1]) if not bool(seen.all()) else 0
        seen = seen.all()
    if not bool(seen.any()):
        names = "mask, bias, log_weights"
        raise ValueError(f"{names}: expected a visible key in every row, row {row} has none")


def check_fits(attention, X: Tensor) -> None:
    """Refuse tokens X (…, n, d) of another number, or in another batch, than the tables are for."""
    *batch, n, _ = X.shape
    shape = (*batch, attention.heads, n, n)
    for name in ("mask", "bias", "log_weights"):
        table = getattr(attention, name)
        if table is None:
            continue
        size = max(table.shape[-2:])
        if size != n:
            raise ValueError(f"X: expected {size} tokens as {name} has, got {n}")
        try:
            fits = torch.broadcast_shapes(table.shape, shape) == shape
        except RuntimeError:
            fits = False
        if not fits and name != "log_weights":
            got = f"{tuple(X.shape)} beside a {name} of shape {tuple(table.shape)}"
            raise ValueError(f"X: expected a batch that the {name} is for, got {got}")
