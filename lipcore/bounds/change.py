r"""Certificates: how far a layer's output moves when its tokens move by a finite step.

The local Lipschitz constant σ at X describes an infinitely small step. Over a ball, attention
leaves its tangent. How far it does is bounded by how much the scores can change, row by row, with
explicit numbers at X.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcore._checks import check_number, check_scores
from lipcore._heads import mask_scores_
from lipcore.attention import Attention
from lipcore.bounds._matrices import norms, product_norm, square_root, std_and_radius
from lipcore.bounds.best import best_upper
from lipcore.bounds.layer import join_heads, output_roots, rounded_up, sequences_of
from lipcore.bounds.local import nonnegative_norm_upper
from lipcore.bounds.normalised import Normalisation, normalise, pre_norm_jacobian, standardise
from lipcore.lipschitz import check_norm, local_lipschitz
from lipcore.spectral import spectral_norm

#: Options for the σ of a certificate: its confidence, over the random start of the iteration, and a
#: tolerance that leaves its upper end within √tol. Behind a normalisation two of them must hold.
SIGMA = {"probability": 1 - 4e-13, "tol": 1e-7}
#: The way to the rim of the ball is cut into this many steps, each with a bound of the curvature.
STEPS = 16


def change_upper(
    attention: Attention,
    X: Tensor,
    radius: float,
    *,
    norm: str = "frobenius",
    normalisation: Normalisation | None = None,
) -> Tensor:
    r"""Return a bound of ‖f(Y) − f(X)‖_F over all Y in a ball around X (:prf:ref:`thm-ball`).

    It is the least of three bounds, with R = ``radius``, or with R = :math:`\sqrt n` times
    ``radius`` where every token may move by ``radius``:

    - the tangent and how far f leaves it, :math:`\sigma R` + :func:`tangent_error_upper`, which is
      :math:`\sigma R` in the limit of small radii;
    - what rows of weights can do at most (:prf:ref:`prop-ball-rows`), which does not grow without
      limit in the scores;
    - :func:`best_upper` of the ball that holds all these Y, times R.

    Here σ is the upper end that :func:`~lipcore.local_lipschitz` certifies. For each sequence the
    bound holds with probability 1 − 10⁻¹² over the start of the iteration, and all else is always
    true. Masks, biases, rotary positions and several heads are covered; sinks, a softcap and
    normalised queries are refused.

    Parameters
    ----------
    attention : Attention
    X : Tensor, shape (…, n, d)
    radius : float
    norm : {"frobenius", "token"}
        Whether :math:`\|Y-X\|_F`, or the move of every single token, is at most ``radius``.
    normalisation : Normalisation, optional
        A LayerNorm or RMSNorm N in front: X and Y are then what enters N, and f is f∘N
        (:prf:ref:`prop-ball-norm`).

    Returns
    -------
    Tensor, shape (…)

    Raises
    ------
    ValueError, TypeError
        If something does not fit, or the layer has what no theorem covers.

    Examples
    --------
    >>> import torch
    >>> f = Attention.from_matrices(torch.zeros(2, 2), 3 * torch.eye(2))  # averages, times three
    >>> round(change_upper(f, torch.randn(4, 2), 0.5).item(), 3)
    1.5
    """
    check_norm(norm)
    radius = check_number("radius", radius, minimum=0)
    sequences = sequences_of(attention, X)
    if normalisation is None:
        return rounded_up([_change(*one, radius, norm)[0] for one in sequences], X)
    if not isinstance(normalisation, Normalisation):
        got = type(normalisation).__name__
        raise TypeError(f"normalisation: expected a Normalisation, got {got}")
    if len(normalisation.gain) != X.shape[-1]:
        expected = f"a gain of {X.shape[-1]} entries as X has"
        raise ValueError(f"normalisation: expected {expected}, got {len(normalisation.gain)}")
    return rounded_up([_change_behind(normalisation, *one, radius, norm) for one in sequences], X)


def tangent_error_upper(
    attention: Attention, X: Tensor, radius: float, *, norm: str = "frobenius"
) -> Tensor:
    r"""Return a bound of ‖f(Y) − f(X) − D_X f[Y − X]‖_F over the ball (:prf:ref:`thm-ball`).

    For a linear map L of the output, such as the logit of a classifier on pooled tokens, a
    certificate is :math:`\|L\,D_Xf\|_2R` plus ‖L‖ times this bound. It is always true. Arguments,
    errors and the shape of the result are those of :func:`change_upper`, and heads add up as in
    :prf:ref:`prop-norm-heads`.

    Examples
    --------
    >>> import torch
    >>> X = torch.randn(4, 2)
    >>> tangent_error_upper(Attention.from_matrices(torch.eye(2), torch.eye(2)), X, 0.0).item()
    0.0
    """
    check_norm(norm)
    radius = check_number("radius", radius, minimum=0)
    errors = []
    for layer, tokens in sequences_of(attention, X):
        heads = _heads_at(layer, tokens)
        errors.append(join_heads(layer, *(each.tangent_error(radius, norm) for each in heads)))
    return rounded_up(errors, X)


def _change(
    attention: Attention, X: Tensor, radius: float, norm: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the bound at one X (n, d), and its parts: σ and the error of the tangent."""
    heads = _heads_at(attention, X)
    sigma = local_lipschitz(attention, X, **SIGMA).upper
    error = join_heads(attention, *(each.tangent_error(radius, norm) for each in heads))
    rows = join_heads(attention, *(each.rows_change(radius, norm) for each in heads))
    largest = X.norm(dim=-1).amax().item() + radius
    ball = best_upper(attention=attention, n=len(X), radius=largest)
    total = _total(radius, len(X), norm)
    bounds = [sigma * total + error, rows, rows.new_tensor(ball * total)]
    return torch.stack(bounds).amin(), sigma, error


def _change_behind(
    normalisation: Normalisation, attention: Attention, X: Tensor, radius: float, norm: str
) -> Tensor:
    """Return the bound at one X (n, d) in front of a normalisation."""
    d = X.shape[-1]
    gain = normalisation.gain.double().abs().amax()
    # behind N, tokens of Y are within stretch·radius of those of X, and within bend_i·ρ² of their
    # tangents if they have moved by ρ
    size = standardise(normalisation, X)[1][..., 0]
    smallest = (size - radius / math.sqrt(d)).clamp(min=math.sqrt(normalisation.eps))
    stretch = (gain / (size * smallest).sqrt()).amax().item()
    bend = gain / (math.sqrt(3 * d) * smallest.square())
    if radius > 0:  # normalised tokens have norm gain·√d at most
        tokens = len(X) if norm == "frobenius" else 1
        stretch = min(stretch, 2 * math.sqrt(tokens * d) * gain.item() / radius)
    whole, inner, error = _change(attention, normalise(normalisation, X), stretch * radius, norm)
    if not bool(bend.isfinite().all()):
        return whole
    sigma = spectral_norm(pre_norm_jacobian(normalisation, X, attention), **SIGMA).upper
    bent = radius**2 * (bend.norm() if norm == "token" else bend.amax())
    return torch.minimum(whole, sigma * _total(radius, len(X), norm) + inner * bent + error)


def _total(radius: float, n: int, norm: str) -> float:
    """Return R, how far all tokens together move."""
    return radius * math.sqrt(n) if norm == "token" else radius


@dataclass(frozen=True, eq=False)
class _Heads:
    r"""What the certificate needs of each head and each query at one X.

    log_p : (heads, n, n), log P.
    value, score : (heads, 1), ‖V‖ and ‖A‖.
    pull : (heads, n), ‖y_i‖, the change of the scores of query i when a key moves by one.
    key_spread, value_spread : (heads, n), κ_i and ν_i, the largest standard deviations of the keys
        (as scores of a unit query) and of the values under P_i.
    key_reach, value_reach : (heads, n), D_i and ω_i, the largest distances from their means.
    """

    log_p: Tensor
    score: Tensor
    pull: Tensor
    key_spread: Tensor
    key_reach: Tensor
    value: Tensor
    value_spread: Tensor
    value_reach: Tensor

    def tangent_error(self, radius: float, norm: str) -> Tensor:
        """Return radius² times the sum over steps of (∫(1 − t)dt)·M at their end: (heads,)."""
        total = 0
        for step in range(1, STEPS + 1):
            share = (2 * (STEPS - step) + 1) / (2 * STEPS**2)
            total = total + share * self._curvature(radius * step / STEPS, norm)
        return (radius**2 * total).nan_to_num(nan=math.inf, posinf=math.inf)

    def _curvature(self, r: float, norm: str) -> Tensor:
        """Return M(r), a bound of all second derivatives along units within r of X: (heads,)."""
        # for moves ‖h_j‖, the second derivative of row i is at most α‖h_i‖m + β m² + γ‖h_i‖², with
        # m² = Σ_j W_ij ‖h_j‖²; a standard deviation grows by e^{u/2}, as weights do by e^u, and by
        # what keys or values move; see the proof of the theorem
        pull = self.pull + self.score * r
        growth = self._growth(r, norm)
        factor = (growth / 2).exp()
        key_spread = factor * (self.key_spread + self.score * r)
        value_spread = factor * (self.value_spread + self.value * r)
        reach = self.value_reach + self._shift(r, norm) + 2 * self.value * r
        alpha = self.value * key_spread + self.score * value_spread + reach * key_spread * pull
        alpha = 2 * alpha
        beta = 2 * self.value * pull + reach * pull.square()
        gamma = reach * key_spread.square()
        if norm == "token":  # ‖h_j‖ ≤ 1 for all j, and m ≤ 1
            return (alpha + beta + gamma).norm(dim=-1)
        weights = self._weights(growth)
        # Σ_j ‖h_j‖² ≤ 1: what is convex in these squares is largest where one token moves
        mixed = (alpha * weights.amax(-1).sqrt()).amax(-1)
        others = (beta[..., None] * weights).norm(dim=-2).amax(-1)
        return mixed + others + gamma.amax(-1)

    def rows_change(self, radius: float, norm: str) -> Tensor:
        """Return the change of weights, row by row, plus that of mixing: (heads,)."""
        shift = self._shift(radius, norm)
        if norm == "token":
            return (shift + self.value * radius).norm(dim=-1)
        weights = self._weights(self._growth(radius, norm))
        mixing = nonnegative_norm_upper(weights).clamp(max=math.sqrt(shift.shape[-1]))
        return shift.norm(dim=-1) + self.value[:, 0] * mixing * radius

    def _growth(self, r: float, norm: str) -> Tensor:
        """Return u_i: weights of row i grow by the factor e^u at most (:prf:ref:`lem-ball-weights`)."""
        pull = self.pull + self.score * r
        if norm == "token":
            return r * (self.key_reach + 2 * pull)
        return r * torch.hypot(self.key_reach + pull, pull)

    def _weights(self, growth: Tensor) -> Tensor:
        """Return min(1, e^u P), which bounds all weights in the ball."""
        grown = (self.log_p + growth[..., None]).clamp(max=0).exp()
        return torch.where(self.log_p > -math.inf, grown, 0)

    def _shift(self, r: float, norm: str) -> Tensor:
        """Return μ_i, how far the mean of the values at X moves when the weights change."""
        pull = self.pull + self.score * r
        if norm == "token":
            oscillation = r * (2 * self.key_reach + 2 * pull)
        else:
            oscillation = r * torch.hypot(2 * self.key_reach + pull, pull)
        change = torch.sinh((oscillation / 2).clamp(max=700.0)) * self.value_spread
        return torch.minimum(change, self.value_reach)


def _heads_at(attention: Attention, X: Tensor) -> tuple[_Heads, _Heads]:
    """Return the heads of a layer alone, and with W_hV_h in place of V_h."""
    queries, keys, values = attention.project(X, value_bias=False)
    check_scores(queries, keys)
    scores = mask_scores_(attention, queries @ keys.mT, slice(0, len(X)))
    log_p = torch.log_softmax(scores, dim=-1)
    # seen: keys as a query's unit move sees them (heads, n, ·); pull: ‖y_i‖; score: ‖A‖
    query = attention.scale * attention.query
    if attention.rotary is None:
        seen = keys @ square_root(query.mT).mT
        pull = (queries @ square_root(attention.key.mT).mT).norm(dim=-1)
        score = product_norm(query, attention.key)
    else:  # A depends on both positions: only the norms of Q and K are used
        norm_q, norm_k = (norms(M) for M in (query, attention.key))
        seen = norm_q[:, None, None] * keys
        pull = norm_k[:, None] * queries.norm(dim=-1)
        score = norm_q * norm_k
    keys = log_p, score[:, None], pull, *std_and_radius(log_p, seen)
    alone = _Heads(*keys, norms(attention.value)[:, None], *std_and_radius(log_p, values))
    left = output_roots(attention)
    if left is None:
        return alone, alone
    size = norms(left @ attention.value)[:, None]
    return alone, _Heads(*keys, size, *std_and_radius(log_p, values @ left.mT))
