"""Lower bounds: what the worst-case inputs reach (their construction: :mod:`lipcore.adversarial`)."""

from __future__ import annotations

import math

from lipcore._checks import check_count
from lipcore.bounds._logarithms import (
    exp,
    finish,
    log_,
    log_add,
    log_norm,
    log_scaled,
    log_sum,
    log_times,
)

#: Terms of a slowly varying sum that are added one by one; the rest is Euler–Maclaurin's integral.
_TERMS = 256


def adversarial_lower(
    *, n: int, radius: float, gamma: float, norm_v: float, log: bool = False
) -> float:
    r"""Lower bound for n tokens in the ball of radius R (Castin, Ablin & Peyré 2024; theory §3).

    .. math:: \mathrm{Lip}(f|B_R^n) \ge \|V\|_2 \sqrt{n-1}\; w, \qquad w = \frac{1}{1+(n-1)e^{-2R^2\gamma}},

    with :math:`\gamma = \max(-\gamma_{\min}, \gamma_{\max}/8)` over the real eigenvalues of A
    (:func:`~lipcore.bounds.eigen_gamma`): one distinguished token, seen by n − 1 others with weight w.

    Parameters
    ----------
    n : int
        Number of tokens.
    radius : float
        Largest norm of a token.
    gamma : float
        Half the score gap at R = 1; at least zero.
    norm_v : float
        Spectral norm of V.
    log : bool
        Whether to return the logarithm of the bound.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        If n < 1, or gamma, a norm or the radius is negative or not finite.

    Examples
    --------
    >>> adversarial_lower(n=5, radius=10.0, gamma=1.0, norm_v=1.0)  # √(n − 1) as long as n is far below e^{2R²γ}
    2.0
    """
    n, half_gap, log_v = (
        check_count("n", n),
        exp(log_scaled(radius, gamma, "gamma")),
        log_norm(norm_v),
    )
    return finish(log_times(log_v, log_(n - 1) / 2, log_weight(n, 2 * half_gap)), log)


def refined_lower(
    *, n: int, radius: float, gamma: float, norm_vu: float, log: bool = False
) -> float:
    r"""Lower bound by the same inputs, the distinguished token moved along the eigenvector u (this book; theory §3).

    .. math:: \mathrm{Lip}(f|B_R^n) \ge \sqrt{n-1}\; w\, \big(1 + 2\gamma R^2 (1-w)\big) \|Vu\|,
        \qquad w = \frac{1}{1+(n-1)e^{-2R^2\gamma}}

    Parameters
    ----------
    n, radius, gamma, log
        As in :func:`adversarial_lower`.
    norm_vu : float
        ‖Vu‖ for the unit eigenvector u that gives gamma.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`adversarial_lower`.

    Examples
    --------
    >>> size = {"n": 5, "radius": 1.0, "gamma": 1.0}
    >>> refined_lower(norm_vu=1.0, **size) > adversarial_lower(norm_v=1.0, **size)
    True
    """
    n, log_half_gap = check_count("n", n), log_scaled(radius, gamma, "gamma")
    log_vu = log_norm(norm_vu, "norm_vu")
    gap = 2 * exp(log_half_gap)
    log_w = log_weight(n, gap)
    log_rest = log_times(log_w, log_(n - 1) - gap)  # log(1 − w)
    growth = log_add(0.0, log_times(math.log(2) + log_half_gap, log_rest))
    return finish(log_times(log_vu, log_(n - 1) / 2, log_w, growth), log)


def masked_lower(*, n: int, radius: float, gamma: float, norm_v: float, log: bool = False) -> float:
    r"""Lower bound with a causal mask, the distinguished token first (theory §3).

    .. math:: \mathrm{Lip}(f^m|B_R^n) \ge \|V\|_2 \Big(\sum_{i=2}^n w_i^2\Big)^{1/2},
        \qquad w_i = \frac{1}{1+(i-1)e^{-2R^2\gamma}}

    Parameters
    ----------
    n, radius, gamma, norm_v, log
        As in :func:`adversarial_lower`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`adversarial_lower`.

    Examples
    --------
    >>> masked_lower(n=5, radius=10.0, gamma=1.0, norm_v=1.0)
    2.0
    """
    n, half_gap, log_v = (
        check_count("n", n),
        exp(log_scaled(radius, gamma, "gamma")),
        log_norm(norm_v),
    )
    return finish(log_times(log_v, log_square_sum(n - 1, -2 * half_gap) / 2), log)


def log_weight(n: int, gap: float) -> float:
    """log w, w = 1/(1+(n−1)e^{−gap}): the weight of one token whose score leads n − 1 others by ``gap``."""
    return 0.0 if gap == math.inf else -log_add(0.0, log_(n - 1) - gap)


def log_square_sum(terms: int, log_q: float) -> float:
    r"""log of :math:`\sum_{i=1}^{m} (1+iq)^{-2}`, for q ≤ 1 and any number m of terms."""
    q, first = exp(log_q), min(terms, _TERMS)
    head = sum((1 + i * q) ** -2 for i in range(1, first + 1))
    if terms == first:
        return log_(head)
    start, log_end = (
        1 + (first + 0.5) * q,
        log_add(0.0, log_(terms + 0.5 if terms < 2**52 else terms) + log_q),
    )
    integral = (
        log_(terms - first) - math.log(start) - log_end
    )  # of (1+xq)^{−2}, from half a step below the tail
    slope = q / 12 * (start**-3 - math.exp(-3 * log_end))  # Euler–Maclaurin's correction
    return log_sum([math.log(head), integral]) + math.log1p(-slope / (head + exp(integral)))
