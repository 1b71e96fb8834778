"""Discrete probability measures, and those with times, which are sequences with a causal order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipcore._checks import check_real_tensor, check_same_kind, check_tokens

#: How far a sum of weights may be from one, and two time marginals from each other.
WEIGHT_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


class _Atoms:
    """The properties that measures with and without times share."""

    points: Tensor
    weights: Tensor

    @property
    def dim(self) -> int:
        """The dimension d of the space."""
        return self.points.shape[-1]

    @property
    def radius(self) -> float:
        """The largest norm of a point that has mass."""
        return self.points[self.weights > 0].norm(dim=-1).max().item()


@dataclass(frozen=True, eq=False)
class DiscreteMeasure(_Atoms):
    r"""A probability measure :math:`\mu = \sum_i w_i \delta_{x_i}` on :math:`\mathbb R^d`.

    Its ``dim`` is d, its ``radius`` the largest norm of a point that has mass.

    Parameters
    ----------
    points : Tensor, shape (n, d)
        Points may repeat.
    weights : Tensor, shape (n,), optional
        Non-negative, with sum one (to 1e-9; 1e-5 in float32); 1/n each if left out. A point may
        have weight zero.

    Raises
    ------
    ValueError, TypeError
        If a weight is negative, or they do not sum to one (to 1e-9; 1e-5 in float32).

    Examples
    --------
    >>> import torch
    >>> DiscreteMeasure(torch.tensor([[0.0], [1.0]])).weights
    tensor([0.5000, 0.5000])
    """

    points: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        check_tokens(check_real_tensor("points", self.points, ndim=2), name="points")
        object.__setattr__(self, "weights", check_weights(self.weights, self.points))

    def support(self) -> DiscreteMeasure:
        """Return the same measure with each point that has mass once, in lexicographic order."""
        return DiscreteMeasure(*_merged(self.points, self.weights))


@dataclass(frozen=True, eq=False)
class TimedMeasure(_Atoms):
    r"""A probability measure on :math:`[0,1]\times\mathbb R^d` (:prf:ref:`def-timed`).

    .. math:: \mu = \sum_i w_i\, \delta_{(t_i, x_i)}

    It stands for a sequence with a causal order. Its time marginal is
    :math:`\theta = \sum_i w_i \delta_{t_i}`, and :math:`\mu^\tau` is the law of the tokens at time
    τ. Its ``dim`` is d, its ``radius`` the largest norm of a point that has mass.

    Parameters
    ----------
    times : Tensor, shape (n,)
        In [0, 1], in any order. Tokens may share a time: they then see one another.
    points : Tensor, shape (n, d)
    weights : Tensor, shape (n,), optional
        Non-negative, with sum one; 1/n each if left out.

    Examples
    --------
    >>> import torch
    >>> mu = TimedMeasure(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([[0.0], [1.0], [3.0]]))
    >>> mu.at(1.0).points.flatten(), mu.at(1.0).weights
    (tensor([1., 3.]), tensor([0.5000, 0.5000]))
    """

    times: Tensor
    points: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        check_tokens(check_real_tensor("points", self.points, ndim=2), name="points")
        check_times("times", self.times, self.points)
        object.__setattr__(self, "weights", check_weights(self.weights, self.points))

    def support(self) -> TimedMeasure:
        """Return the same measure with each (time, point) that has mass once, times increasing."""
        atoms, weights = _merged(torch.cat([self.times[:, None], self.points], 1), self.weights)
        return TimedMeasure(atoms[:, 0], atoms[:, 1:], weights)

    def time_marginal(self) -> tuple[Tensor, Tensor]:
        """Return the times that have mass, increasing, and their masses: two tensors (times,)."""
        times, masses = _merged(self.times[:, None], self.weights)
        return times[:, 0], masses

    def at(self, time: float) -> DiscreteMeasure:
        r"""Return the law :math:`\mu^\tau` of the points at one time, which must have mass."""
        now = (self.times == time) & (self.weights > 0)
        if not bool(now.any()):
            raise ValueError(f"time: expected a time that has mass, got {float(time):g}")
        return DiscreteMeasure(self.points[now], self.weights[now] / self.weights[now].sum())


#: The measures that attention acts on.
Measure = DiscreteMeasure | TimedMeasure


def check_weights(weights: Tensor | None, points: Tensor) -> Tensor:
    """Return ``weights``, or 1/n for None, as probabilities of the points (…, n); else raise."""
    shape = points.shape[:-1]
    if weights is None:
        return points.new_full(shape, 1 / shape[-1])
    check_real_tensor("weights", weights)
    check_same_kind("weights", weights, points, "points")
    if weights.shape != shape:
        expected = f"shape {tuple(shape)} as the points have"
        raise ValueError(f"weights: expected {expected}, got {tuple(weights.shape)}")
    if bool((weights < 0).any()):
        raise ValueError(f"weights: expected non-negative numbers, got {weights.min().item():g}")
    # the sum is taken in float64, so that only the weights' own rounding counts
    total = weights.double().sum(-1).flatten()
    worst = total[(total - 1).abs().argmax()].item()
    if abs(worst - 1) > WEIGHT_TOLERANCE[weights.dtype]:
        got = f"{worst:.10g} (divide by weights.sum() to normalise)"
        raise ValueError(f"weights: expected a sum of one, got {got}")
    return weights


def check_times(name: str, times: object, points: Tensor) -> Tensor:
    """Return ``times`` if there is one in [0, 1] for each point, else raise."""
    check_real_tensor(name, times)
    check_same_kind(name, times, points, "points")
    if times.shape != points.shape[:-1]:
        expected = f"shape {tuple(points.shape[:-1])}, one for each point"
        raise ValueError(f"{name}: expected {expected}, got {tuple(times.shape)}")
    outside = times[(times < 0) | (times > 1)]
    if len(outside):
        raise ValueError(f"{name}: expected numbers in [0, 1], got {outside[0].item():g}")
    return times


def _merged(atoms: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows of atoms (n, k) with mass, lexicographically, and their masses."""
    positive = weights > 0
    distinct, group = torch.unique(atoms[positive], dim=0, return_inverse=True)
    masses = weights.new_zeros(len(distinct)).index_add(0, group, weights[positive])
    return distinct, masses
