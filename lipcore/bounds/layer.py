"""Upper bounds of a whole layer: several heads, biases, rotary positions, an output projection."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_number
from lipcore.attention import Attention
from lipcore.bounds._logarithms import finish, log_, log_inputs, log_sum, log_three_terms, log_times
from lipcore.bounds.closed_form import general_upper, masked_upper, unified_upper
from lipcore.bounds.local import _square_root


def layer_upper(
    attention: Attention, *, n: int, radius: float, form: str = "unified", log: bool = False
) -> float:
    r"""Upper bound of a layer with several heads, for n tokens in the ball of radius R (theory §8).

    Each head h has its bound :math:`b_h` with :math:`a_h` (:func:`score_reach`) in the place of a: three terms in which
    every factor :math:`\|A\|_2 R^2` is at most :math:`a_h`. Concatenated heads add up in squares,
    :math:`(\sum_h b_h^2)^{1/2}`; with an output projection W the bound is the smaller of :math:`\|W\|_2` times that and
    :math:`\sum_h b_h` with :math:`\|W_h V_h\|_2` in the place of :math:`\|V_h\|_2`.

    Parameters
    ----------
    attention : Attention
    n, radius, log
        As in :func:`general_upper`.
    form : {"unified", "general"}
        :func:`unified_upper` (with a causal mask :func:`masked_upper`, with any other mask or log-weights
        :math:`\|V\|_2((1+a)\sqrt n + a)`, which holds for every P), or :func:`general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`general_upper`; also for an unknown form.

    Examples
    --------
    >>> import torch
    >>> f = Attention.from_matrices(torch.eye(2), torch.eye(2))
    >>> layer_upper(f, n=5, radius=1.0) == unified_upper(n=5, radius=1.0, norm_a=1.0, norm_v=1.0)
    True
    """
    if form not in ("unified", "general"):
        raise ValueError(f"form: expected 'unified' or 'general', got {form!r}")
    per_head = _head_form(attention, form)
    factors = [per_head(n=n, radius=1.0, norm_a=a, norm_v=1.0, log=True) if math.isfinite(a) else math.inf
               for a in score_reach(attention, radius=radius).tolist()]  # fmt: skip

    def heads(matrices: Tensor) -> list[float]:
        return [
            log_times(factor, log_(norm))
            for factor, norm in zip(factors, _spectral_norms(matrices), strict=True)
        ]

    joined = log_sum([2 * value for value in heads(attention.value)]) / 2
    if attention.output is None:
        return finish(joined, log)
    projected = log_times(joined, log_(_spectral_norms(attention.output[None])[0]))
    blocks = attention.output.unflatten(1, (attention.heads, -1)).movedim(1, 0)  # (heads, q, p)
    through = _square_root(blocks.double()) @ attention.value.double()  # ‖·‖ as W_h V_h, but p rows
    return finish(min(projected, log_sum(heads(through))), log)


def score_reach(attention: Attention, *, radius: float) -> Tensor:
    r"""What takes the place of :math:`a = \|A\|_2R^2` in the bounds of each head of a layer: shape (heads,), float64.

    .. math:: a_h = (\|A_h\|_2 R + \|c_h\|)\,R, \qquad\text{with rotary positions}\quad
        a_h = \lambda\,(\|Q_h\|_2 R + \|b^q_h\|)(\|K_h\|_2 R + \|b^k_h\|).

    Scores of one query differ by at most :math:`2a_h` in the ball, since a key's bias cancels in the softmax unless
    keys are turned by their positions.

    Parameters
    ----------
    attention : Attention
    radius : float

    Returns
    -------
    Tensor, shape (heads,)

    Raises
    ------
    ValueError, TypeError
        If the radius is negative or not finite.

    Examples
    --------
    >>> import torch
    >>> score_reach(Attention.from_matrices(2 * torch.eye(3), torch.eye(3)), radius=2.0)
    tensor([8.], dtype=torch.float64)
    """
    radius = check_number("radius", radius, minimum=0)
    query, key = attention.query.double(), attention.key.double()
    if attention.rotary is None:
        # QR first: A = λKᵀQ is d × d, but of rank at most k
        norms = torch.linalg.matrix_norm(_square_root(key.mT) @ _square_root(query.mT).mT, 2)
        offsets = attention.score_offsets().double().norm(dim=-1)
        return (abs(attention.scale) * norms * radius + offsets) * radius
    reach = abs(attention.scale) * query.new_ones(attention.heads)
    for weight, bias in ((query, attention.query_bias), (key, attention.key_bias)):
        offset = 0 if bias is None else bias.double().norm(dim=-1)
        reach = reach * (torch.linalg.matrix_norm(weight, 2) * radius + offset)
    return reach


def _head_form(attention: Attention, form: str):
    """The bound of one head that holds for this layer's masks."""
    if form == "general":
        return general_upper
    if attention.mask is not None or attention.log_weights is not None:
        return _row_stochastic_upper
    return masked_upper if attention.causal else unified_upper


def _row_stochastic_upper(
    *, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r""":math:`\|V\|_2((1+a)\sqrt n + a)`, for which it is enough that rows sum to one: :math:`\|P\|_2 \le \sqrt n`."""
    n, log_a, log_v = log_inputs(n, radius, norm_a, norm_v)
    return finish(log_times(log_v, log_three_terms(log_a, math.log(n) / 2, keys=1)), log)


def _spectral_norms(matrices: Tensor) -> list[float]:
    return torch.linalg.matrix_norm(matrices.double(), 2).tolist()
