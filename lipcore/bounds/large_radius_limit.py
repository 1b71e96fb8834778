r"""What the Jacobian of attention becomes when tokens are scaled up: the law at tX as t grows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcore._checks import check_count, check_number
from lipcore._heads import mask_scores_
from lipcore.attention import Attention
from lipcore.bounds import _logarithms as logs
from lipcore.measures.mean_field import derivative_blocks


@dataclass(frozen=True, eq=False)
class LargeRadius:
    r"""The limit law of the Jacobian at tX (:prf:ref:`thm-large-radius-ties`).

    .. math:: D_{tX}f \approx P^\infty \otimes V + t^2 L

    Attributes
    ----------
    weights : Tensor, shape (…, n, n)
        :math:`P^\infty`: each row is uniform on the keys that share its largest score.
    mixing : Tensor, shape (…, n·p, n·d)
        :math:`P^\infty \otimes V`.
    second_order : Tensor, shape (…, n·p, n·d)
        L, zero unless some row has a tie.
    gap : Tensor, shape (…)
        δ, the smallest distance over the rows from the largest score to the next smaller one;
        infinite if all scores of every row are equal.
    ties : Tensor of bool, shape (…)
        Whether some row has more than one maximiser.
    """

    weights: Tensor
    mixing: Tensor
    second_order: Tensor
    gap: Tensor
    ties: Tensor

    @property
    def most_attended(self) -> Tensor:
        r"""Largest column sum of :math:`P^\infty`: without ties, how many queries share a key."""
        return self.weights.sum(-2).amax(-1)

    def at(self, t: float) -> Tensor:
        r"""Return :math:`P^\infty \otimes V + t^2 L`, shape (…, n·p, n·d)."""
        return self.mixing + t**2 * self.second_order


def large_radius(
    X: Tensor, A: Tensor, V: Tensor, *, causal: bool = False, tie: float = 1e-9
) -> LargeRadius:
    r"""Return the limit law of the Jacobian at tX (:prf:ref:`thm-large-radius`), also with ties.

    Parameters
    ----------
    X : Tensor, shape (…, n, d)
    A : Tensor, shape (d, d)
    V : Tensor, shape (p, d)
    causal : bool
    tie : float
        Scores closer than this, relative to the largest score in size, count as equal.

    Returns
    -------
    LargeRadius
        The law, with dense matrices, so that n must be small.

    Examples
    --------
    >>> import torch
    >>> X = torch.tensor([[-1.0], [0.5], [2.0]], dtype=torch.float64)
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> law = large_radius(X, one, one)  # tokens 2 and 3 both look at token 3
    >>> law.most_attended.item(), law.gap.item(), law.ties.item()
    (2.0, 0.75, False)
    """
    layer = Attention.from_matrices(A, V, causal=causal)
    layer.check_input(X)
    tie = check_number("tie", tie, minimum=0)
    scores = mask_scores_(layer, (X @ A.mT) @ X.mT, slice(0, X.shape[-2]))  # s_ij = (A x_i)·x_j
    size = scores.masked_fill(scores == -math.inf, 0).abs().amax((-2, -1), keepdim=True)
    below = scores.amax(-1, keepdim=True) - scores
    tied = below <= tie * size
    weights = tied.to(X.dtype) / tied.sum(-1, keepdim=True)
    # L[H]_i = V(C_iAh_i + Σ_j P_ij(x_j − m_i)(Ax_i)·h_j)
    second_order, _ = derivative_blocks(weights, X, A, V, weights, mixing=False)
    flat = (*X.shape[:-2], X.shape[-2] * V.shape[0], X.shape[-2] * X.shape[-1])
    return LargeRadius(
        weights=weights,
        mixing=torch.einsum("...ij,pd->...ipjd", weights, V).reshape(flat),
        second_order=second_order.transpose(-3, -2).reshape(flat),
        gap=below.masked_fill(tied, math.inf).amin((-2, -1)),
        ties=(tied.sum(-1) > 1).any(-1),
    )


def large_radius_error(
    *, n: int, t: float, gap: float, radius: float, norm_a: float, norm_v: float, ties: bool = False
) -> float:
    r"""Return how far the Jacobian at tX may be from its law (:prf:ref:`thm-large-radius`).

    .. math:: \|V\|_2\, (n-1)\, e^{-t^2\delta} \Big( \sqrt{2n} + a t^2 (4 + 2\sqrt{2n}) \Big),

    with :math:`5 + 2\sqrt{5n}` in the inner bracket if there are ties
    (:prf:ref:`thm-large-radius-ties`).

    Parameters
    ----------
    n : int
    t : float
        The factor on the tokens.
    gap : float
        The :math:`\delta` of :class:`LargeRadius`; if it is infinite, the error is zero.
    radius : float
        The largest norm of a token of X; :math:`a = \|A\|_2R^2`.
    norm_a, norm_v : float
        The spectral norms of A and V.
    ties : bool
        Whether a row may have more than one maximiser.

    Examples
    --------
    >>> size = {"gap": 1.0, "radius": 1.0, "norm_a": 1.0, "norm_v": 1.0}
    >>> large_radius_error(n=1, t=2.0, **size)  # one token: no error
    0.0
    """
    n = check_count("n", n)
    for name, value in (("t", t), ("radius", radius), ("norm_a", norm_a), ("norm_v", norm_v)):
        check_number(name, value, minimum=0)
    if not gap > 0:
        raise ValueError(f"gap: expected a number above 0, got {gap}")
    if gap == math.inf:
        return 0.0
    constant = 5 + 2 * math.sqrt(5 * n) if ties else 4 + 2 * math.sqrt(2 * n)
    log_missing = logs.log(n - 1) - t * t * gap  # at most this mass of a row is off its maximisers
    log_keys = logs.log(norm_a) + 2 * (logs.log(radius) + logs.log(t)) + math.log(constant)
    log_terms = logs.add(math.log(2 * n) / 2, log_keys)
    return logs.exp(logs.times(logs.log(norm_v), log_missing, log_terms))
