r"""What the tridiagonal matrices of a Lanczos run tell about σ_max: estimate, error, certificate.

Small matrices, on the host, in float64. After k steps :math:`T_k = B_k^\top B_k`
(:prf:ref:`prop-gkl`) has :math:`d_j = \alpha_j^2 + \beta_{j-1}^2` on its diagonal and
:math:`t_j = \alpha_j\beta_j` beside it, where :math:`t_k` leads on to :math:`v_{k+1}`; rows of
``d`` and ``t`` (members, k) are members of a batch. The roots of the eigenvalues of :math:`T_k` are
the Ritz values :math:`\theta_i`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy import ndarray

_SMALLEST_LOG = -80.0  # e^-80 is nothing beside 1
_TINY = 1e-300
_NEWTON_STEPS = 60


def ritz(d: ndarray, t: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """θ (members, k), decreasing; y (members, k) with v = V_k y for the largest; its ‖Jᵀu − θv‖."""
    eigenvalues, eigenvectors = np.linalg.eigh(_tridiagonal(d, t))
    theta = _roots(eigenvalues)
    y = eigenvectors[:, :, -1]
    return theta, y, t[:, -1] * np.abs(y[:, -1]) / _or_one(theta[:, 0])


def has_converged(d: ndarray, t: ndarray, tol: float, overlap: float | None) -> ndarray:
    r"""Whether θ_1 of each member is within tol as estimated, and within √tol as certified.

    The certificate is left out where ``overlap`` is None; else it has the confidence of
    :math:`s \le |\langle v_1, z\rangle|`, s the overlap of start and top singular vector.
    """
    converged = np.ones(len(d), dtype=bool)
    if overlap is not None:  # as a rule this comes last, and it needs no eigenvectors
        theta = _roots(np.linalg.eigvalsh(_tridiagonal(d, t)))
        m = max(math.log(2 * math.sqrt(tol) + tol), _SMALLEST_LOG)  # (1 + √tol)² = 1 + e^m
        log_left = np.log(math.exp(m) + _depths(theta)).sum(1)
        converged = log_left >= _log_right(theta, t, overlap)
    if converged.any():
        theta, _, residual = ritz(d[converged], t[converged])
        converged[converged] = _estimated_error(theta, residual) <= tol
    return converged


def _estimated_error(theta: ndarray, residual: ndarray) -> ndarray:
    """Relative error of θ_1 if θ_2 is near σ_2: second order in ‖r‖ (:prf:ref:`thm-residual`)."""
    theta_1 = theta[:, 0]
    theta_2 = theta[:, 1] if theta.shape[1] > 1 else 0
    second_order = theta_1 * residual**2 / (2 * np.maximum(theta_1**2 - theta_2**2, _TINY))
    return np.minimum(residual, second_order) / _or_one(theta_1)


def largest_growth(theta: ndarray, t: ndarray, overlap: float) -> ndarray:
    """How far above θ_1 the certificates let σ_max lie, as a factor: the better of the two."""
    k = theta.shape[1]
    whatever_the_spectrum = math.cosh(math.acosh(1 / overlap) / (2 * k - 1))  # certificate A
    return np.minimum(whatever_the_spectrum, _growth_seen(theta, t, overlap))


def _growth_seen(theta: ndarray, t: ndarray, overlap: float) -> ndarray:
    r"""σ/θ_1 at the root of :math:`\prod_i(\sigma^2-\theta_i^2) = \prod_j t_j/s` (certificate B).

    By Newton's method on m = log(σ²/θ_1² − 1), in which the logarithm of the left-hand side
    increases and is convex: from the right it comes down to the root and never passes it, so that
    every step is on the safe side.
    """
    x = _depths(theta)
    log_right = _log_right(theta, t, overlap)
    m = log_right / theta.shape[1]  # right of the root, since every logarithm is at least m
    for _ in range(_NEWTON_STEPS):
        factors = np.exp(m)[:, None] + x
        slope = (np.exp(m)[:, None] / factors).sum(1)
        step = np.maximum(np.log(factors).sum(1) - log_right, 0) / slope
        m = np.maximum(m - step, _SMALLEST_LOG)
        if (step <= 1e-12).all():
            break
    return np.sqrt(1 + np.exp(m))


def _tridiagonal(d: ndarray, t: ndarray) -> ndarray:
    """T_k as matrices (members, k, k), the lower triangle."""
    members, k = d.shape
    T = np.zeros((members, k * k))
    T[:, :: k + 1] = d
    T[:, k :: k + 1] = t[:, :-1]
    return T.reshape(members, k, k)


def _depths(theta: ndarray) -> ndarray:
    """1 − θ_i²/θ_1², so that (σ² − θ_i²)/θ_1² = e^m + 1 − θ_i²/θ_1² keeps its digits."""
    return 1 - (theta / _or_one(theta[:, :1])) ** 2


def _log_right(theta: ndarray, t: ndarray, overlap: float) -> ndarray:
    """Logarithm of Π t_j/(s θ_1^2k); where a t_j is zero the Krylov space is all that there is."""
    return np.log(np.maximum(t / _or_one(theta[:, :1]) ** 2, _TINY)).sum(1) - math.log(overlap)


def _roots(eigenvalues: ndarray) -> ndarray:
    """Square roots in decreasing order, of increasing eigenvalues."""
    return np.sqrt(np.maximum(eigenvalues[:, ::-1], 0))


def _or_one(x: ndarray) -> ndarray:
    """One instead of zero, to divide by."""
    return np.where(x > 0, x, 1)
