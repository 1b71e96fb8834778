"""Bounds for a whole layer, with heads, biases, rotary positions and an output projection."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from lipcore._checks import check_count, check_number
from lipcore.attention import Attention
from lipcore.bounds import _logarithms as logs
from lipcore.bounds._matrices import norms, product_norm, square_root
from lipcore.bounds.ball import log_general
from lipcore.cross import CrossAttention


def layer_upper(attention: Attention, *, n: int, radius: float, log: bool = False) -> float:
    r"""Return a layer's bound by :func:`general_upper`, n tokens in the ball, or with log=True its log.

    Each head has :func:`general_upper` with the :math:`a_h` of :func:`score_reach` in place of
    :math:`\|A\|_2R^2`, and heads add up as in :prf:ref:`prop-norm-heads`
    (:prf:ref:`cor-upper-layer`). The bound holds for every mask; sinks, gates, a softcap and
    normalised queries are refused. :func:`best_upper` is the least that is proved for a layer.

    Examples
    --------
    >>> import torch
    >>> from lipcore.bounds import general_upper
    >>> f = Attention.from_matrices(torch.eye(2), torch.eye(2))
    >>> layer_upper(f, n=5, radius=1.0) == general_upper(n=5, radius=1.0, norm_a=1.0, norm_v=1.0)
    True
    """
    n = check_count("n", n)
    bounds = [log_general(n, log_a) for log_a in log_score_reach(attention, radius)]
    return logs.exp_unless_log(log_join(attention, bounds), log)


def score_reach(attention: Attention, *, radius: float) -> Tensor:
    r"""Return what replaces :math:`a = \|A\|_2R^2` in each head, shape (heads,), float64.

    .. math:: a_h = (\|A_h\|_2 R + \|c_h\|)\,R, \qquad\text{with rotary positions}\quad
        a_h = \lambda\,(\|Q_h\|_2 R + \|b^q_h\|)(\|K_h\|_2 R + \|b^k_h\|).

    Scores of one query differ by at most :math:`2a_h` in the ball, since a key's bias cancels in
    the softmax unless keys are turned by their positions (:prf:ref:`cor-upper-layer`,
    :prf:ref:`prop-norm-rotary`).

    Examples
    --------
    >>> import torch
    >>> score_reach(Attention.from_matrices(2 * torch.eye(3), torch.eye(3)), radius=2.0)
    tensor([8.], dtype=torch.float64)
    """
    radius = check_number("radius", radius, minimum=0)
    slope, offset, key_slope, key_offset = _score_sizes(attention)
    return (slope * radius + offset) * (key_slope * radius + key_offset)


def log_score_reach(attention: Attention, radius: float) -> list[float]:
    """Return the logarithms of :func:`score_reach`, which may be beyond the range of float64."""
    log_radius = logs.log(check_number("radius", radius, minimum=0))
    heads = torch.stack(_score_sizes(attention), dim=-1).tolist()

    def reach(slope: float, offset: float) -> float:  # log (slope·R + offset)
        return logs.add(logs.log(slope) + log_radius, logs.log(offset))

    return [logs.times(reach(*sizes[:2]), reach(*sizes[2:])) for sizes in heads]


def _score_sizes(attention: Attention) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (s, o, s', o'), each (heads,), with a_h = (sR + o)(s'R + o')."""
    check_covered(attention)
    query = attention.query.double()
    key = attention.key.double()
    scale = abs(attention.scale)
    none = query.new_zeros(attention.heads)
    biases = [
        none[:, None] if bias is None else bias.double()
        for bias in (attention.query_bias, attention.key_bias)
    ]
    if attention.rotary is None:
        offsets = (key * biases[0][..., None]).sum(-2).norm(dim=-1)  # ‖Kᵀb‖
        return scale * product_norm(query, key), scale * offsets, none + 1, none
    norm_q, norm_k = (norms(M) for M in (query, key))
    query_offset, key_offset = (bias.norm(dim=-1) for bias in biases)
    return scale * norm_q, scale * query_offset, norm_k, key_offset


def check_covered(layer: Attention | CrossAttention, *, cross: bool = False) -> None:
    """Refuse sinks, gates and scores of another form, and cross-attention without ``cross``."""
    attention = layer.attention if isinstance(layer, CrossAttention) else layer
    if not cross and (attention is not layer or attention.key.shape[2] != attention.d):
        expected = "expected a layer of one sequence, got cross-attention"
        raise ValueError(f"attention: {expected}: the only bound that covers it is local_upper")
    given = [name for name in ("sinks", "gate") if getattr(attention, name) is not None]
    given += attention.not_bilinear
    if given:
        names = ", ".join(given)
        raise ValueError(f"attention: expected one without {names}, which no bound here covers")


def sequences_of(
    layer: Attention | CrossAttention, X: Tensor, *, cross: bool = False
) -> list[tuple[Attention | CrossAttention, Tensor]]:
    """Return the layer and the tokens (n, d) of each sequence of the batch, in float64."""
    check_covered(layer, cross=cross)
    layer.check_input(X)
    wide = layer if X.dtype == torch.float64 else layer.to(torch.float64)
    batch = X.shape[:-2]
    places = itertools.product(*map(range, batch))
    return [(wide.select_sequences(batch, place), X[place].double()) for place in places]


def rounded_up(bounds: Sequence[Tensor], X: Tensor) -> Tensor:
    """Return the bounds of the sequences of X in its dtype, not below their values in float64."""
    bound = torch.stack(bounds).reshape(X.shape[:-2])
    rounded = bound.to(X.dtype)
    return torch.where(rounded < bound, rounded.nextafter(rounded.new_tensor(torch.inf)), rounded)


def join_heads(attention: Attention, alone: Tensor, projected: Tensor) -> Tensor:
    """Return min(‖W‖(Σ b_h²)^{1/2}, Σ b'_h), b' with W_hV_h for V_h: :prf:ref:`prop-norm-heads`."""
    joined = alone.square().sum(-1).sqrt()
    if attention.output is None:
        return joined
    return torch.minimum(norms(attention.output) * joined, projected.sum(-1))


def log_join(attention: Attention, bounds: Sequence[float]) -> float:
    """Return :func:`join_heads` in logarithms, from bounds for ‖V_h‖₂ = 1, which are multiplied."""

    def heads(matrices: Tensor) -> list[float]:
        log_sizes = map(logs.log, norms(matrices.double()).tolist())
        return [logs.times(*factors) for factors in zip(bounds, log_sizes, strict=True)]

    joined = logs.total(2 * value for value in heads(attention.value)) / 2
    if attention.output is None:
        return joined
    norm_w = norms(attention.output.double()).item()
    through = output_roots(attention) @ attention.value.double()
    return min(logs.times(joined, logs.log(norm_w)), logs.total(heads(through)))


def output_roots(attention: Attention) -> Tensor | None:
    """Return R_h, (heads, min(q, p), p), with ‖R_hB‖ = ‖W_hB‖ for every B, or None without W."""
    if attention.output is None:
        return None
    blocks = attention.output.double().unflatten(1, (attention.heads, -1))
    return square_root(blocks.movedim(1, 0))
