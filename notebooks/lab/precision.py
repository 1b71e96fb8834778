"""How far rounding inside a layer moves the output, and what the layer's derivative predicts.

The prediction takes the rest of the layer as linear, and the errors as random: uniform within the
spacing of the format, and equal for equal numbers. ``torch.int8`` has 127 steps for a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from lab import rounding
from lipcore._heads import mask_scores_
from lipcore.attention import Attention
from lipcore.bounds.layer import check_covered

#: What can be rounded, in the order of the computation in a layer.
SOURCES = ("tokens", "parameters", "queries", "keys", "scores", "weights", "values")
_PARAMETERS = [
    name + kind for kind in ("", "_bias") for name in ("query", "key", "value", "output")
]

#: The numbers z that are rounded, and the map g of them.
Stage = tuple[tuple[Tensor, ...], Callable[..., Tensor]]


def stage(attention: Attention, X: Tensor, source: str) -> Stage:
    """Return the numbers z that are rounded, and the map g from them to the output f(X) = g(*z).

    Scores are λ(q·k), before biases and masks; queries and keys are already rotated by their
    positions. The layer has no sinks, gates, softcap or normalised queries; X is (n, d).

    Examples
    --------
    >>> X = torch.randn(4, 2)
    >>> f = Attention.from_matrices(torch.eye(2), torch.eye(2))
    >>> z, g = stage(f, X, "weights")
    >>> z[0].shape, torch.allclose(g(*z), f(X))
    (torch.Size([1, 4, 4]), True)
    """
    check_covered(attention)
    if source == "tokens":
        return (X,), attention
    if source == "parameters":
        names = [name for name in _PARAMETERS if getattr(attention, name) is not None]
        parameters = tuple(getattr(attention, name) for name in names)
        return parameters, lambda *new: replace(attention, **dict(zip(names, new, strict=True)))(X)
    rows = slice(0, len(X))
    q, k, v = attention.project(X)
    P = attention.row_weights(q, k, rows)

    def joined(P: Tensor, v: Tensor) -> Tensor:
        return attention.join_heads(P @ v, bias=True)

    def of_scores(scores: Tensor) -> Tensor:
        return joined(torch.softmax(mask_scores_(attention, scores.clone(), rows), dim=-1), v)

    z, g = {
        "queries": (q, lambda new: joined(attention.row_weights(new, k, rows), v)),
        "keys": (k, lambda new: joined(attention.row_weights(q, new, rows), v)),
        "scores": (q @ k.mT, of_scores),
        "weights": (P, lambda new: joined(new, v)),
        "values": (v, lambda new: joined(P, new)),
    }[source]
    return (z,), g


@torch.no_grad()
def measured(at: Stage, dtype: torch.dtype) -> Tensor:
    """Return how rounding to ``dtype`` moves the output of a stage: g(rounded z) − g(z)."""
    z, g = at
    return g(*(_rounded(part, dtype) for part in z)) - g(*z)


@torch.no_grad()
def measured_inside(attention: Attention, X: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the move of f(X) that :func:`lab.rounding.rounding_upper` bounds, for all sources."""
    (scores,), of_scores = stage(attention, X, "scores")
    masked = mask_scores_(attention, rounding.rounded(scores, dtype), slice(0, len(X)))
    P = rounding.rounded(torch.softmax(masked, dim=-1), dtype)
    values = rounding.rounded(attention.project(X)[2], dtype)
    return attention.join_heads(P @ values, bias=True) - of_scores(scores)


@torch.no_grad()
def predicted(
    at: Stage, dtype: torch.dtype, *, generator: torch.Generator, probes: int = 8
) -> Tensor:
    r"""Return the root mean square of each token's move (n,), if rounding errors were random.

    It is the mean of :math:`\|(Dg\,[\delta])_i\|^2` over ``probes`` draws of δ = ± (largest
    error)/√3, the standard deviation of a uniform error. Signs are independent, but the same for
    equal numbers and opposite for opposite ones.
    """
    z, g = at
    total = 0
    draws = [_signs(part, generator, probes) for part in z]
    sizes = [_largest_error(part, dtype) / 3**0.5 for part in z]
    for signs in zip(*draws, strict=True):
        errors = tuple(size * sign for size, sign in zip(sizes, signs, strict=True))
        total = total + torch.func.jvp(g, z, errors)[1].square().sum(-1)
    return (total / probes).sqrt()


def _largest_error(z: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.int8:
        return torch.full_like(z, z.abs().amax().item() / 254)
    return rounding.largest_error(z, dtype)


def _rounded(z: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.int8:
        step = z.abs().amax() / 127
        return torch.round(z / step) * step
    return rounding.rounded(z, dtype)


def _signs(z: Tensor, generator: torch.Generator, probes: int) -> Iterator[Tensor]:
    """Yield random signs of the entries, the same for the same number and opposite for −z."""
    numbers, place = z.abs().unique(return_inverse=True)
    for _ in range(probes):
        signs = torch.randint(0, 2, numbers.shape, generator=generator).to(z.dtype)
        yield (2 * signs - 1)[place] * z.sign()
