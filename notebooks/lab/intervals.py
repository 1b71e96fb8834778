"""Bounds of attention in a ball by interval arithmetic, for layers with plain scores."""

import torch
from torch import Tensor

from lipcore._checks import require
from lipcore._heads import mask_scores_
from lipcore.attention import Attention
from lipcore.bounds.layer import join_heads, output_roots


def _at(attention: Attention, X: Tensor) -> tuple[Tensor, ...]:
    """Return queries, keys, values, scores and means of values at X (n, d)."""
    parts = (attention.rotary, attention.gate, attention.sinks)
    is_plain = not attention.not_bilinear and all(part is None for part in parts)
    require(is_plain, "attention", "plain scores", "rotary, sinks, a gate, a softcap or norms")
    q, k, v = attention.project(X, value_bias=False)
    scores = mask_scores_(attention, q @ k.mT, slice(0, len(X)))
    return q, k, v, scores, torch.softmax(scores, -1) @ v


def interval_change(attention: Attention, X: Tensor, radius: float) -> Tensor:
    """Return a bound of ‖f(Y) − f(X)‖_F by intervals, if no token moves further than ``radius``."""
    q, k, v, middle, mean = _at(attention, X)
    weights = (attention.scale * attention.query, attention.key, attention.value)
    dq, dk, dv = (radius * weight.norm(dim=-1)[:, None] for weight in weights)  # (heads, 1, ·)
    half = q.abs() @ dk.mT + dq @ k.abs().mT + dq @ dk.mT
    least, most = _weights(middle - half, middle + half)
    low = v - dv
    high = v + dv
    above = most @ high.clamp(min=0) + least @ high.clamp(max=0)
    below = least @ low.clamp(min=0) + most @ low.clamp(max=0)
    return _joined(attention, torch.maximum(above - mean, mean - below))


def vertex_change(attention: Attention, X: Tensor, radius: float) -> Tensor:
    """Return the same by the exact range of means over boxes of scores, which the ball gives.

    This range is that of Davoodi & Rezazadeh (2026).
    """
    q, k, v, middle, mean = _at(attention, X)
    query = attention.scale * attention.query
    A = torch.linalg.matrix_norm(attention.key.mT @ query, 2)[:, None, None]
    from_query = (k @ query).norm(dim=-1)[:, None, :]
    from_key = (q @ attention.key).norm(dim=-1)[:, :, None]
    half = radius * (from_query + from_key) + radius**2 * A
    above = largest_mean(middle - half, middle + half, v) - mean
    below = mean + largest_mean(middle - half, middle + half, -v)
    mixing = radius * attention.value.norm(dim=-1)[:, None]
    return _joined(attention, torch.maximum(above, below) + mixing)


def largest_mean(low: Tensor, high: Tensor, values: Tensor) -> Tensor:
    """Return the largest means (…, m, p) of values (…, n, p) over scores in a box (…, m, n)."""
    shift = high.amax(-1, keepdim=True)
    down = (low - shift).exp()
    up = (high - shift).exp()
    found = []
    # scores of the largest values are as high as possible, others as low: n thresholds are tried
    for column in values.unbind(-1):
        order = column.argsort(dim=-1, descending=True)
        v = column.gather(-1, order)[..., None, :]
        index = order[..., None, :].expand(down.shape)
        raised = up.gather(-1, index)
        lowered = down.gather(-1, index)
        mass = raised.cumsum(-1) + lowered.sum(-1, keepdim=True) - lowered.cumsum(-1)
        sums = lowered * v
        total = (raised * v).cumsum(-1) + sums.sum(-1, keepdim=True) - sums.cumsum(-1)
        found.append((total / mass).amax(-1))
    return torch.stack(found, dim=-1)


def _weights(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the exact range of each softmax weight over a box of scores (…, n)."""
    shift = high.amax(-1, keepdim=True)
    down = (low - shift).exp()
    up = (high - shift).exp()
    least = down / (down + (up.sum(-1, keepdim=True) - up).clamp(min=0))
    most = up / (up + (down.sum(-1, keepdim=True) - down).clamp(min=0))
    return least, most


def _joined(attention: Attention, deviation: Tensor) -> Tensor:
    """Return ‖·‖_F of the layer from the largest deviations (heads, n, p) of its heads."""
    alone = deviation.flatten(1).norm(dim=1)
    left = output_roots(attention)
    if left is None:
        return join_heads(attention, alone, alone)
    through = deviation @ left.to(deviation).abs().mT
    return join_heads(attention, alone, through.flatten(1).norm(dim=1))
