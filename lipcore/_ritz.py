r"""What the tridiagonal matrices of a Lanczos run know of σ_max: estimate, error, certificate.

Small matrices, on the host and in float64. Row i of ``diagonal`` and ``below`` (members, K) is one member of the batch;
``steps`` (members,) says how many of the K columns are its own. With k of them, :math:`T_k = B_k^\top B_k` has the
diagonal :math:`d_j = \alpha_j^2+\beta_{j-1}^2`, and beside it :math:`t_j = \alpha_j\beta_j`; :math:`t_k` leads on to
the next vector, :math:`J^\top J V_k = V_k T_k + t_k v_{k+1} e_k^\top`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

_NEWTON_STEPS = 60


@dataclass(frozen=True)
class Ritz:
    """Roots θ of the eigenvalues of T_k (members, K), decreasing and padded with zeros; the largest one's vector.

    ``right`` (members, K) is that vector, in the basis V_k, and ``residual`` (members,) is ‖Jᵀu − θ_1 v‖.
    """

    theta: ndarray
    right: ndarray
    residual: ndarray


def ritz(diagonal: ndarray, below: ndarray, steps: ndarray) -> Ritz:
    """Ritz values, and the triplet of the largest."""
    members, own = np.arange(len(steps)), np.arange(diagonal.shape[1]) < steps[:, None]
    inner = np.roll(own, -1, axis=1) & own  # t_k stands outside T_k
    values, vectors = np.linalg.eigh(_dense(np.where(own, diagonal, 0), np.where(inner, below, 0)))
    theta, right = _roots(values), vectors[:, :, -1]
    left_over = below[members, steps - 1] * np.abs(right[members, steps - 1])
    return Ritz(theta, right, left_over / np.where(theta[:, 0] > 0, theta[:, 0], 1))


def _dense(diagonal: ndarray, below: ndarray) -> ndarray:
    """T_k as matrices (members, k, k), the lower triangle."""
    members, k = diagonal.shape
    matrix = np.zeros((members, k * k))
    matrix[:, :: k + 1], matrix[:, k :: k + 1] = diagonal, below[:, :-1]
    return matrix.reshape(members, k, k)


def _roots(eigenvalues: ndarray) -> ndarray:
    """Roots, decreasing, of the eigenvalues of T_k, increasing."""
    return np.sqrt(np.maximum(eigenvalues[:, ::-1], 0))


def has_converged(
    diagonal: ndarray, below: ndarray, tol: float, overlap: float
) -> tuple[ndarray, ndarray]:
    r"""Whether θ_1 of each member is within tol, by two tests; and how far it is from passing the second one.

    The error of θ_1 is of second order in the residual r: about :math:`\theta_1 r^2 / 2(\theta_1^2 - \theta_2^2)`,
    or at most r where the gap is not resolved. That trusts that no larger singular value hides behind a start nearly
    orthogonal to its vector; the certificate rules out, at its confidence, one above :math:`(1+\sqrt{tol})\,\theta_1`,
    where the excess, which comes second, is not negative.
    """
    theta = _roots(np.linalg.eigvalsh(_dense(diagonal, below)))
    excess = _log_excess((1 + math.sqrt(tol)) * theta[:, 0], theta, below, overlap)
    converged = excess >= 0
    if converged.any():  # the certificate comes last as a rule, so that most steps are done here
        steps = np.full(len(theta), theta.shape[1])
        converged[converged] = (
            _estimated_error(ritz(*(x[converged] for x in (diagonal, below, steps)))) <= tol
        )
    return converged, excess


def steps_to_wait(excess: ndarray, k: int) -> ndarray:
    """Steps until it is worth looking again: only a spectrum that falls off steeply gains more than 3 in a step."""
    return 1 + np.clip(-excess / 3, 0, k).astype(int)


def _estimated_error(found: Ritz) -> ndarray:
    """Relative error of θ_1, if no larger singular value hides; zero where all are zero."""
    top, residual = found.theta[:, 0], found.residual
    gap = top**2 - (found.theta[:, 1] ** 2 if found.theta.shape[1] > 1 else 0)
    resolved = gap > 0
    error = np.where(resolved, top * residual**2 / (2 * np.where(resolved, gap, 1)), np.inf)
    return np.minimum(residual, error) / np.where(top > 0, top, 1)


def _log_excess(sigma: ndarray, theta: ndarray, below: ndarray, overlap: float) -> ndarray:
    r"""Logarithm of :math:`s\prod_i(\sigma^2-\theta_i^2) / \prod_j t_j`: above zero, σ is ruled out."""
    exhausted = below.min(1) == 0  # the Krylov space is all that there is
    scale = np.where(exhausted, 1, sigma)[:, None]
    factors = (sigma[:, None] / scale) ** 2 - (theta / scale) ** 2
    factors, below = (np.where(exhausted[:, None], 1, x) for x in (factors, below / scale**2))
    with np.errstate(divide="ignore"):  # a tolerance below rounding: nothing is ruled out
        factors = np.log(factors)
    return np.where(exhausted, np.inf, (factors - np.log(below)).sum(1) + math.log(overlap))


def largest_growth(theta: ndarray, below: ndarray, steps: ndarray, overlap: float) -> ndarray:
    """How far above θ_1 the certificates let σ_max lie, as a factor: the better of the two."""
    return np.minimum(_growth_seen(theta, below, steps, overlap), _growth_at_worst(steps, overlap))


def _growth_at_worst(steps: ndarray, overlap: float) -> ndarray:
    """cosh(arcosh(1/s)/(2k−1)): after k steps, whatever the spectrum."""
    return np.cosh(math.acosh(1 / overlap) / (2 * steps - 1))


def _growth_seen(theta: ndarray, below: ndarray, steps: ndarray, overlap: float) -> ndarray:
    r"""σ/θ_1 for the root σ > θ_1 of :math:`\prod_i(\sigma^2-\theta_i^2) = \prod_j t_j / s`.

    By Newton's method on m = log(σ²/θ_1² − 1), in which the logarithm of the left-hand side increases and is convex:
    from the right it comes down to the root and never passes it, so that every step is on the safe side.
    """
    used = np.arange(theta.shape[1]) < steps[:, None]
    top = np.where(theta[:, :1] > 0, theta[:, :1], 1)
    depth = np.where(used, 1 - (theta / top) ** 2, 0)  # 1 − θ_i²/θ_1² ≥ 0
    exhausted = (np.where(used, below, 1) == 0).any(1)
    safe = np.where(used & ~exhausted[:, None], below / top**2, 1)
    target = np.log(safe).sum(1) - math.log(overlap)
    m = target / steps  # every term of the sum is at least m
    for _ in range(_NEWTON_STEPS):
        terms = np.exp(m)[:, None] + depth
        excess = np.where(used, np.log(terms), 0).sum(1) - target
        step = excess / np.where(used, np.exp(m)[:, None] / terms, 0).sum(1)
        m = np.maximum(m - np.maximum(step, 0), -80)
        if (step <= 1e-12).all():
            break
    return np.where(exhausted, 1, np.sqrt(1 + np.exp(m)))
