r"""What the bidiagonal matrices of a Lanczos run know of σ_max: estimate, error, certificate.

Small matrices, on the host and in float64. Row i of ``alphas`` and ``betas`` (members, K) is one member of the batch;
``steps`` (members,) says how many of the K columns are its own. With k of them, :math:`B_k` has the diagonal
:math:`\alpha_1 … \alpha_k` and the superdiagonal :math:`\beta_1 … \beta_{k-1}`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

_NEWTON_STEPS = 60


@dataclass(frozen=True)
class Ritz:
    """Singular values θ of B_k (members, K), decreasing and padded with zeros; the rest of the largest one's triplet.

    ``right`` (members, K) is its right singular vector, ``residual`` (members,) is ‖Jᵀu − θ_1 v‖.
    """

    theta: ndarray
    right: ndarray
    residual: ndarray


def ritz(alphas: ndarray, betas: ndarray, steps: ndarray) -> Ritz:
    """Singular values of B_k by the eigenvalues of the tridiagonal B_kᵀB_k: exact to rounding for the largest."""
    members, last = np.arange(len(alphas)), steps - 1
    scale, a, gram = _gram(alphas, betas, steps)
    values, vectors = np.linalg.eigh(gram)
    theta, right = np.sqrt(np.maximum(values[:, ::-1], 0)), vectors[:, :, -1]
    u_last = a[members, last] * right[members, last] / np.where(theta[:, 0] > 0, theta[:, 0], 1)
    return Ritz(scale * theta, right, betas[members, last] * np.abs(u_last))


def _gram(alphas: ndarray, betas: ndarray, steps: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """Scale c (members, 1), diagonal of B_k/c, and B_kᵀB_k/c² (lower triangle), zero beyond the member's steps."""
    index = np.arange(alphas.shape[1])
    used = index < steps[:, None]
    scale = np.maximum(np.where(used, alphas, 0).max(1), np.where(used, betas, 0).max(1))[:, None]
    scale = np.where(scale > 0, scale, 1)
    a, b = np.where(used, alphas, 0) / scale, np.where(used[:, 1:], betas[:, :-1], 0) / scale
    gram = np.zeros((*alphas.shape, alphas.shape[1]))
    gram[:, index, index] = a**2
    gram[:, index[1:], index[1:]] += b**2
    gram[:, index[1:], index[:-1]] = a[:, :-1] * b
    return scale, a, gram


def has_converged(alphas: ndarray, betas: ndarray, tol: float, overlap: float) -> ndarray:
    r"""Whether θ_1 of each member is within tol, by two tests.

    The error of θ_1 is of second order in the residual r: about :math:`\theta_1 r^2 / 2(\theta_1^2 - \theta_2^2)`,
    or at most r where the gap is not resolved. That trusts that no larger singular value hides behind a start nearly
    orthogonal to its vector; the certificate rules out, at its confidence, one above :math:`(1+\sqrt{tol})\,\theta_1`.
    """
    steps = np.full(len(alphas), alphas.shape[1])
    scale, _, gram = _gram(alphas, betas, steps)
    theta = scale * np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[:, ::-1], 0))
    converged = _log_excess((1 + math.sqrt(tol)) * theta[:, 0], theta, alphas * betas, overlap) >= 0
    if converged.any():  # the certificate comes last as a rule, so that most steps are done here
        converged[converged] = _estimated_error(ritz(*(x[converged] for x in (alphas, betas, steps)))) <= tol
    return converged


def _estimated_error(found: Ritz) -> ndarray:
    """Relative error of θ_1, if no larger singular value hides; zero where all are zero."""
    top, residual = found.theta[:, 0], found.residual
    gap = top**2 - (found.theta[:, 1] ** 2 if found.theta.shape[1] > 1 else 0)
    resolved = gap > 0
    error = np.where(resolved, top * residual**2 / (2 * np.where(resolved, gap, 1)), np.inf)
    return np.minimum(residual, error) / np.where(top > 0, top, 1)


def _log_excess(sigma: ndarray, theta: ndarray, couplings: ndarray, overlap: float) -> ndarray:
    r"""Logarithm of :math:`s\prod_i(\sigma^2-\theta_i^2) / \prod_j \alpha_j\beta_j`: above zero, σ is ruled out."""
    exhausted = couplings.min(1) == 0  # the Krylov space is all that there is
    scale = np.where(exhausted, 1, sigma)[:, None]
    factors = (sigma[:, None] / scale) ** 2 - (theta / scale) ** 2
    factors, couplings = (np.where(exhausted[:, None], 1, x) for x in (factors, couplings / scale**2))
    with np.errstate(divide="ignore"):  # a tolerance below rounding: nothing is ruled out
        factors = np.log(factors)
    return np.where(exhausted, np.inf, (factors - np.log(couplings)).sum(1) + math.log(overlap))


def largest_growth(theta: ndarray, alphas: ndarray, betas: ndarray, steps: ndarray, overlap: float) -> ndarray:
    """How far above θ_1 the certificates let σ_max lie, as a factor: the better of the two."""
    return np.minimum(_growth_seen(theta, alphas * betas, steps, overlap), _growth_at_worst(steps, overlap))


def _growth_at_worst(steps: ndarray, overlap: float) -> ndarray:
    """cosh(arcosh(1/s)/(2k−1)): after k steps, whatever the spectrum."""
    return np.cosh(math.acosh(1 / overlap) / (2 * steps - 1))


def _growth_seen(theta: ndarray, couplings: ndarray, steps: ndarray, overlap: float) -> ndarray:
    r"""σ/θ_1 for the root σ > θ_1 of :math:`\prod_i(\sigma^2-\theta_i^2) = \prod_j \alpha_j\beta_j / s`.

    By Newton's method on m = log(σ²/θ_1² − 1), in which the logarithm of the left-hand side increases and is convex:
    from the right it comes down to the root and never passes it, so that every step is on the safe side.
    """
    used = np.arange(theta.shape[1]) < steps[:, None]
    top = np.where(theta[:, :1] > 0, theta[:, :1], 1)
    below = np.where(used, 1 - (theta / top) ** 2, 0)  # 1 − θ_i²/θ_1² ≥ 0
    exhausted = (np.where(used, couplings, 1) == 0).any(1)
    safe = np.where(used & ~exhausted[:, None], couplings / top**2, 1)
    target = np.log(safe).sum(1) - math.log(overlap)
    m = target / steps  # every term of the sum is at least m
    for _ in range(_NEWTON_STEPS):
        terms = np.exp(m)[:, None] + below
        excess = np.where(used, np.log(terms), 0).sum(1) - target
        step = excess / np.where(used, np.exp(m)[:, None] / terms, 0).sum(1)
        m = np.maximum(m - np.maximum(step, 0), -80)
        if (step <= 1e-12).all():
            break
    return np.where(exhausted, 1, np.sqrt(1 + np.exp(m)))
