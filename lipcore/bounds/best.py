r"""The least upper bound for the ball that the book proves.

All upper bounds for the ball are of the form :math:`\|V\|_2(M + a)`, with a for the own query, and
M for mixing and others' keys (the key term). What bounds M depends on what is known of a head, so
that the minimum is taken over the theorems that apply to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lipcore.attention import Attention
from lipcore.bounds import _logarithms as logs
from lipcore.bounds.ball import log_column_sum, log_rows, log_seen, log_torn
from lipcore.bounds.causal import (
    log_every_n,
    log_least_cells,
    log_masked_rows,
    log_moments,
    log_separate_terms,
)
from lipcore.bounds.gap import score_gap_upper
from lipcore.bounds.layer import log_join, log_score_reach


def best_upper(
    *,
    radius: float,
    A: Tensor | None = None,
    V: Tensor | None = None,
    attention: Attention | None = None,
    n: int | None = None,
    causal: bool = False,
    log: bool = False,
) -> float:
    r"""Return the least bound that is proved for n tokens in the ball, of one head or of a layer.

    It is the least of those of the following that apply:

    - the largest column sum S, by the score gap of the head and its bias, without a mask
      (:prf:ref:`thm-every`): :math:`\sqrt{(1+a^2)S}`;
    - the largest norm of a row (:prf:ref:`thm-every-row`): :math:`\sqrt{n\,G(a)}`,
      :math:`e^a\sqrt{F(a)}`; with a causal mask, summed over rows;
    - what V sees across the queries, without an output projection (:prf:ref:`thm-every-seen`):
      :math:`\sqrt n\,(1+\sqrt2M_n+\omega/\sqrt2)`;
    - :func:`masked_upper_moments` for a causal mask (:prf:ref:`prop-masked-moments`,
      :prf:ref:`thm-masked-split`), and the exact exponential rate of heads without biases
      (:prf:ref:`thm-masked-rate`), with cells of the best size;
    - three separate terms for rotary positions (:prf:ref:`prop-norm-rotary`).

    Here :math:`a_h` of :func:`score_reach` replaces a, since :math:`|A_hx_i+c_h|R \le a_h` is all
    that the proofs use of a query (:prf:ref:`cor-upper-layer`), and heads are joined as in
    :prf:ref:`prop-norm-heads`. With another mask or with log-weights, only those apply that need no
    more than that rows of P sum to one. The result is never above :func:`general_upper`,
    :func:`layer_upper`, or any other bound that holds for the same inputs.

    Parameters
    ----------
    radius : float
    A, V : Tensor, shapes (d, d) and (p, d)
        One head. Give these or ``attention``.
    attention : Attention
        A layer.
    n : int, optional
        Number of tokens. Without it the bound holds for every n, and without a mask for the
        mean-field constant, in :math:`W_2` on measures. A layer with a mask or with log-weights has
        the n of these.
    causal : bool
        Whether the head of A and V has a causal mask.
    log : bool
        Whether to return the logarithm of the bound.

    Returns
    -------
    float
        Infinite beyond the range of float64; the logarithm is finite up to :math:`a = 10^{308}`.

    Raises
    ------
    ValueError, TypeError
        If not one of A, V and a layer is given, or they, n, or the radius do not fit.

    Examples
    --------
    >>> import torch
    >>> A, V = -torch.eye(2), torch.eye(2)
    >>> round(best_upper(A=A, V=V, radius=5**0.5, n=64), 1)
    34.1
    >>> round(best_upper(A=A, V=V, radius=3**0.5, n=4096, causal=True), 1)
    89.4
    """
    given = [name for name, x in (("A", A), ("V", V), ("attention", attention)) if x is not None]
    if given not in (["A", "V"], ["attention"]):
        raise ValueError(f"A, V, attention: expected A and V, or a layer, got {given or 'none'}")
    layer = Attention.from_matrices(A, V, causal=causal) if attention is None else attention
    if causal and not layer.causal:
        raise ValueError("causal: expected False beside a layer without a causal mask, got True")
    log_as = log_score_reach(layer, radius)
    n = _tokens(layer, n)
    heads = [_Head(layer, index, log_a, radius) for index, log_a in enumerate(log_as)]
    return logs.exp_unless_log(log_join(layer, [_log_head(head, n) for head in heads]), log)


def _tokens(attention: Attention, n: int | None) -> int | None:
    """Return the number of tokens, which a mask or log-weights fix."""
    n = logs.check_length(n)
    for name in ("mask", "bias", "log_weights"):
        table = getattr(attention, name)
        if table is not None:
            fixed = max(table.shape[-2:])
            if n not in (None, fixed):
                raise ValueError(f"n: expected {fixed} as the layer's {name} has, got {n}")
            return fixed
    return n


@dataclass(frozen=True, eq=False)
class _Head:
    """What the theorems read of one head; ``alone`` is made once, and where it is needed."""

    layer: Attention
    index: int
    log_a: float
    radius: float

    @cached_property
    def alone(self) -> Attention:
        """The head in the dimensions that it reads, which changes neither gap nor norms."""
        # in float32 KᵀQ may lose the digits of the score gap
        return self.layer.head(self.index).to(torch.float64).compressed()[0]

    @cached_property
    def A(self) -> Tensor:
        """The matrix of the scores, in the dimensions of ``alone``."""
        return self.alone.score_matrices()[0]


def _log_head(head: _Head, n: int | None) -> float:
    """Return the logarithm of one head's bound for ‖V‖₂ = 1."""
    if n == 1:
        return 0.0  # one token sees only itself, and the map is V
    layer = head.layer
    tables = (layer.mask, layer.bias, layer.log_weights, layer.window)
    if any(table is not None for table in tables):
        mixing = _any_weights(layer, n, head.log_a)
    elif layer.rotary is not None:
        mixing = _separate_terms(layer, n, head.log_a)
    else:
        mixing = _causal(head, n) if layer.causal else _by_gap(head, n)
        # what V sees across costs a decomposition: only where it can be the least
        if n is not None and layer.output is None and log_seen(n, -math.inf) < mixing:
            mixing = min(mixing, log_seen(n, _across(head)))
    return logs.add(mixing, head.log_a)


def _any_weights(layer: Attention, n: int | None, log_a: float) -> float:
    """Return log M if rows of P sum to one: column sums are at most the number of rows there."""
    if layer.window is not None:
        reach = layer.window if layer.causal else 2 * layer.window - 1
        n = reach if n is None else min(n, reach)
    long_row = 2 * logs.one_plus(log_a) if layer.rotary is not None else log_torn(log_a)
    return (math.log(n) + long_row) / 2


def _separate_terms(layer: Attention, n: int | None, log_a: float) -> float:
    """Return log M with rotary positions, where A depends on the key and no cross term vanishes."""
    if layer.causal:
        return log_separate_terms(n, log_a)
    return logs.one_plus(log_a) + log_column_sum(n, log_a) / 2


def _causal(head: _Head, n: int | None) -> float:
    """Return log M with a causal mask, by Hardy's inequality, by rows, and by cells of the ball."""
    factor = log_moments(head.log_a)
    mixing = log_every_n(factor, head.log_a)
    if n is not None:
        mixing = min(mixing, log_masked_rows(n, head.log_a))
    if head.layer.query_bias is not None:
        return mixing
    cells = log_least_cells(head.A, head.radius, below=2 * (mixing - factor))
    return min(mixing, factor + cells / 2)


def _by_gap(head: _Head, n: int | None) -> float:
    """Return log M without a mask; the gap is computed where it can help, as it is at least a/5."""
    log_a = head.log_a
    mixing = log_rows(n, log_a, log_column_sum(n, log_a))
    if log_rows(n, log_a, log_column_sum(n, log_a, logs.exp(log_a) / 5)) >= mixing:
        return mixing
    if head.layer.query_bias is None:
        log_gap = logs.log(score_gap_upper(head.A)) + 2 * logs.log(head.radius)
    else:
        offset = head.alone.score_offsets()[0]
        log_gap = logs.log(score_gap_upper(head.radius * head.A, offset)) + logs.log(head.radius)
    return log_rows(n, log_a, log_column_sum(n, log_a, logs.exp(log_gap)))


def _across(head: _Head) -> float:
    """Return log of ω/‖V‖, at most R·max(‖(I−ppᵀ)(Ax+c)‖² + (σ_2/‖V‖)²‖Ax+c‖²)^{1/2}."""
    _, sizes, right = torch.linalg.svd(head.alone.value[0], full_matrices=False)
    if sizes[0] == 0:
        return -math.inf
    p = right[0]  # the direction that V stretches most
    key = head.alone.key
    beside = replace(head.alone, key=key - (key @ p)[..., None] * p)
    second = sizes[1].item() / sizes[0].item() if len(sizes) > 1 else 0.0
    if head.layer.d > 1:
        second += 1e-14  # p is known to rounding
    log_beside = log_score_reach(beside, head.radius)[0]
    return logs.add(2 * log_beside, 2 * (logs.log(second) + head.log_a)) / 2
