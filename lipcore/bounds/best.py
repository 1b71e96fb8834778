r"""The least upper bound for the ball that the book proves.

All upper bounds for the ball are of the form :math:`\|V\|_2(M + a)`, with a for the own query, and
M for mixing and others' keys (the key term). What bounds M depends on what is known of a head, so
that the minimum is taken over the theorems that apply to it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from lipcore._checks import check_count
from lipcore.attention import Attention
from lipcore.bounds._columns import log_causal_column_sum, log_column_sum, log_least_cells
from lipcore.bounds._logarithms import exp, finish, log_, log_add, log_one_plus
from lipcore.bounds.gap import score_gap_upper
from lipcore.bounds.layer import log_join, log_score_reach
from lipcore.bounds.masked import log_hardy, log_masked_rows, log_moments
from lipcore.bounds.rows import log_rows, log_seen, log_torn


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
    - Hardy's inequality for a causal mask (:prf:ref:`thm-masked-upper`,
      :prf:ref:`prop-masked-moments`), and its exact exponential rate for heads without biases
      (:prf:ref:`thm-masked-rate`), with cells of the best size;
    - three separate terms for rotary positions (:prf:ref:`prop-norm-rotary`);

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
        If neither or both of A, V and a layer are given, A and V do not fit, n is not a whole
        number of at least one, or not that of the layer's mask, or the radius is negative or not
        finite.

    Examples
    --------
    >>> import torch
    >>> A, V = -torch.eye(2), torch.eye(2)
    >>> round(best_upper(A=A, V=V, radius=5**0.5, n=64), 1)
    34.1
    >>> round(best_upper(A=A, V=V, radius=3**0.5, n=4096, causal=True), 1)
    89.4
    """
    layer = _one_layer(A, V, attention, causal)
    log_as = log_score_reach(layer, radius)
    n = _tokens(layer, n)
    bounds = [_log_head(layer, head, n, log_a, radius) for head, log_a in enumerate(log_as)]
    return finish(log_join(layer, bounds), log)


def _one_layer(A: Tensor | None, V: Tensor | None, attention: Attention | None, causal: bool):
    """Return the layer, which is made of A and V if they are given."""
    given = [name for name, x in (("A", A), ("V", V), ("attention", attention)) if x is not None]
    if given == ["A", "V"]:
        return Attention.from_matrices(A, V, causal=causal)
    if given != ["attention"]:
        raise ValueError(f"A, V, attention: expected A and V, or a layer, got {given or 'none'}")
    if causal and not attention.causal:
        raise ValueError("causal: expected False beside a layer without a causal mask, got True")
    return attention


def _tokens(attention: Attention, n: int | None) -> int | None:
    """Return the number of tokens, which a mask or log-weights fix."""
    n = None if n is None else check_count("n", n)
    for name in ("mask", "bias", "log_weights"):
        table = getattr(attention, name)
        if table is None:
            continue
        fixed = max(table.shape[-2:])
        if n not in (None, fixed):
            raise ValueError(f"n: expected {fixed} as the layer's {name} has, got {n}")
        return fixed
    return n


def _log_head(attention: Attention, head: int, n: int | None, log_a: float, radius: float) -> float:
    """Return the logarithm of one head's bound for ‖V‖₂ = 1."""
    if n == 1:
        return 0.0  # one token sees only itself, and the map is V
    given = (attention.mask, attention.bias, attention.log_weights, attention.window)
    if any(table is not None for table in given):
        mixing = _any_weights(attention, n, log_a)
    elif attention.rotary is not None:
        mixing = _separate_terms(attention, n, log_a)
    else:
        mixing = _one_map(attention, head, n, log_a, radius)
    return log_add(mixing, log_a)


def _any_weights(attention: Attention, n: int, log_a: float) -> float:
    """Return log M if rows of P sum to one: column sums are at most the number of rows there."""
    if attention.window is not None:
        reach = attention.window if attention.causal else 2 * attention.window - 1
        n = reach if n is None else min(n, reach)
    long_row = 2 * log_one_plus(log_a) if attention.rotary is not None else log_torn(log_a)
    return (math.log(n) + long_row) / 2


def _separate_terms(attention: Attention, n: int | None, log_a: float) -> float:
    """Return log M with rotary positions, where A depends on the key and no cross term vanishes."""
    if not attention.causal:
        return log_one_plus(log_a) + log_column_sum(n, log_a) / 2
    hardy = log_hardy(log_a) + exp(log_a)
    if n is None:
        return hardy
    return min(hardy, log_one_plus(log_a) + log_causal_column_sum(n, log_a) / 2)


def _one_map(attention: Attention, head: int, n: int | None, log_a: float, radius: float) -> float:
    """Return log M where scores are (A x_i + c)·x_j."""
    mixing = _by_scores(attention, head, n, log_a, radius)
    if n is None or attention.output is not None or log_seen(n, -math.inf) >= mixing:
        return mixing
    return min(mixing, log_seen(n, _across(attention, head, log_a, radius)))


def _across(attention: Attention, head: int, log_a: float, radius: float) -> float:
    """Return log of ω/‖V‖, at most R·max(‖(I−pp^⊤)(Ax+c)‖² + (σ_2/‖V‖)²‖Ax+c‖²)^{1/2}.

    The p is the direction that V stretches most.
    """
    alone = _in_double(attention, head)
    _, sizes, right = torch.linalg.svd(alone.value[0], full_matrices=False)
    if sizes[0] == 0:
        return -math.inf
    p = right[0]
    beside = replace(alone, key=alone.key - (alone.key @ p)[..., None] * p)
    second = sizes[1].item() / sizes[0].item() if len(sizes) > 1 else 0.0
    if attention.d > 1:
        second += 1e-14  # p is known to rounding
    return log_add(2 * log_score_reach(beside, radius)[0], 2 * (log_(second) + log_a)) / 2


def _by_scores(
    attention: Attention, head: int, n: int | None, log_a: float, radius: float
) -> float:
    """Return log M as far as the scores alone bound it, for every V."""
    if not attention.causal:
        return _by_gap(attention, head, n, log_a, radius)
    factor = log_moments(log_a)
    mixing = factor + exp(log_a)
    if n is not None:
        mixing = min(mixing, log_masked_rows(n, log_a))
    if attention.query_bias is not None:
        return mixing
    A = _in_double(attention, head).score_matrices()[0]
    return min(mixing, factor + log_least_cells(A, radius, below=2 * (mixing - factor)) / 2)


def _by_gap(attention: Attention, head: int, n: int | None, log_a: float, radius: float) -> float:
    """Return log M without a mask; the gap is computed where it can help, as it is at least a/5."""
    mixing = log_rows(n, log_a, log_column_sum(n, log_a))
    if log_rows(n, log_a, log_column_sum(n, log_a, exp(log_a) / 5)) >= mixing:
        return mixing
    alone = _in_double(attention, head)
    A = alone.score_matrices()[0]
    if attention.query_bias is None:
        log_gap = log_(score_gap_upper(A)) + 2 * log_(radius)
    else:
        offset = alone.score_offsets()[0]
        log_gap = log_(score_gap_upper(radius * A, offset)) + log_(radius)
    return log_rows(n, log_a, log_column_sum(n, log_a, exp(log_gap)))


def _in_double(attention: Attention, head: int) -> Attention:
    """Return one head in the dimensions that it reads, which changes neither gap nor norms.

    It is in float64, since KᵀQ in float32 may lose the digits of the score gap.
    """
    return attention.head(head).to(torch.float64).compressed()[0]
