"""How far a layer's output moves when numbers in its computation are rounded to fewer digits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_scores, require
from lipcore._heads import mask_scores_
from lipcore.attention import Attention
from lipcore.bounds._matrices import norms, std_and_radius
from lipcore.bounds.layer import join_heads, output_roots, rounded_up, sequences_of

#: What :func:`rounding_upper` can round.
ROUNDED = ("scores", "weights", "values")


def spacing(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the distance of neighbouring numbers of a floating-point format around each entry."""
    info = torch.finfo(dtype)
    largest = x.abs().amax().item() if x.numel() else 0.0
    if not largest <= info.max:
        raise ValueError(
            f"x: expected entries of at most {info.max:g} for {dtype}, got {largest:g}"
        )
    lowest = round(math.log2(info.smallest_normal))
    exponents = torch.where(x == 0, lowest, torch.frexp(x).exponent - 1)
    return torch.ldexp(torch.full_like(x, info.eps), exponents.clamp(min=lowest))


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the nearest numbers of ``dtype``, ties to even, in the precision of x."""
    step = spacing(x, dtype)
    return torch.round(x / step) * step


def largest_error(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return how far rounding can move each entry: half the spacing, or zero for a zero."""
    return torch.where(x == 0, 0, spacing(x, dtype) / 2)


def rounding_upper(
    attention: Attention, X: Tensor, dtype: torch.dtype, *, sources: tuple[str, ...] = ROUNDED
) -> Tensor:
    r"""Return how far f(X) can move if its parts are rounded (:prf:ref:`thm-rounding`).

    The parts are scores λ(q·k), before biases and masks; weights, after an exact softmax of the
    rounded scores, whose rows are not normalised again; and values. The bound holds for all errors
    up to half the spacing. Tokens and parameters are not rounded, and sums are exact. For rounded
    tokens see :func:`change_upper`.

    For X (…, n, d) the result (…) is an upper bound of :math:`\|\hat f(X)-f(X)\|_F`. The layer has no
    sinks, softcap, normalised queries or gates, which no theorem covers, and scores and values fit
    into the floating-point format ``dtype``. ``sources`` are what is rounded, among :data:`ROUNDED`.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.zeros(1, 1), torch.eye(1))  # exact scores, equal weights
    >>> rounding_upper(f, torch.ones(4, 1), torch.bfloat16, sources=("scores",)).item()
    0.0
    """
    require({*sources} <= {*ROUNDED}, "sources", f"some of {', '.join(ROUNDED)}", sources)
    sequences = sequences_of(attention, X)
    return rounded_up([_at(layer, tokens, dtype, sources) for layer, tokens in sequences], X)


def _at(attention: Attention, X: Tensor, dtype: torch.dtype, sources: tuple[str, ...]) -> Tensor:
    """Return the bound at one X (n, d)."""
    queries, keys, values = attention.project(X)
    check_scores(queries, keys)
    exact = queries @ keys.mT
    scores = mask_scores_(attention, exact.clone(), slice(0, len(X)))
    log_p = torch.log_softmax(scores, dim=-1)
    score_errors = torch.zeros_like(exact)
    if "scores" in sources:
        score_errors = torch.where(log_p > -math.inf, largest_error(exact, dtype), 0)
    oscillation = score_errors.topk(min(2, len(X)), dim=-1).values.sum(-1)
    info = torch.finfo(dtype)
    share = floor = 0.0
    if "weights" in sources:  # below the normal numbers the spacing is the smallest number
        share = info.eps / 2
        floor = info.eps * info.smallest_normal / 2
    value_errors = torch.zeros_like(values[..., 0])
    if "values" in sources:
        value_errors = largest_error(values, dtype).norm(dim=-1)

    def rows(values: Tensor, value_errors: Tensor) -> Tensor:
        """Return the root of the sum of squares of b_i: (heads,)."""
        spread, reach = std_and_radius(log_p, values)
        moved = torch.tanh(oscillation / 4)  # largest change of the probability of a set of keys
        shift = torch.sinh((oscillation / 2).clamp(max=700.0)) * spread
        shift = torch.minimum(shift, reach * (2 * moved).clamp(max=1))
        lengths = values.norm(dim=-1)
        each = (share * lengths + (1 + share) * value_errors)[:, None, :]
        seen = log_p > -math.inf
        largest = torch.where(seen, each, 0).amax(-1)
        tiny = torch.where(seen, (lengths + value_errors)[:, None, :], 0).sum(-1)
        mean = (log_p.exp() * each).sum(-1)
        return (shift + mean + moved * largest + floor * tiny).norm(dim=-1)

    alone = rows(values, value_errors)
    left = output_roots(attention)
    if left is None:
        return join_heads(attention, alone, alone)
    projected = rows(values @ left.mT, norms(left)[:, None] * value_errors)
    return join_heads(attention, alone, projected)
