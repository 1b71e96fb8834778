r"""Lower bounds from one leader (:mod:`lipcore.adversarial` has the inputs).

The leader, or distinguished token, is seen by all others with weight w. Copies of it, and queries
that are torn between tokens, reach more, see :mod:`lipcore.bounds.copies`. Sizes are keyword-only:
``n`` tokens of norm at most ``radius`` :math:`= R`; ``gamma``
:math:`= \max(-\gamma_{\min}, \gamma_{\max}/8)` over the real eigenvalues of A
(:func:`~lipcore.bounds.eigen_gamma`); ``norm_v`` and ``norm_vu`` are ‖V‖₂ and ‖Vu‖, u the unit
eigenvector.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_count, check_head, check_number
from lipcore.bounds._logarithms import (
    exp,
    finish,
    log_,
    log_add,
    log_norm,
    log_one_plus,
    log_scaled,
    log_sum,
    log_times,
)
from lipcore.bounds._matrices import scaled
from lipcore.bounds.gap import score_gap

#: This many terms of a slowly varying sum are added; the rest is an Euler–Maclaurin integral.
_TERMS = 256


def adversarial_lower(
    *, n: int, radius: float, gamma: float, norm_v: float, log: bool = False
) -> float:
    r"""Return the lower bound of Castin, Ablin & Peyré 2024 (:prf:ref:`thm-lower-eigen`).

    .. math:: \mathrm{Lip}(f|B_R^n) \ge \|V\|_2 \sqrt{n-1}\; w, \qquad
        w = \frac{1}{1+(n-1)e^{-2R^2\gamma}}

    Examples
    --------
    >>> adversarial_lower(n=5, radius=10.0, gamma=1.0, norm_v=1.0)  # √(n−1) for n ≪ e^{2R²γ}
    2.0
    """
    n = check_count("n", n)
    gap = 2 * exp(log_scaled(radius, gamma, "gamma"))
    return finish(log_times(log_norm(norm_v), log_(n - 1) / 2, _log_weight(n, gap)), log)


def refined_lower(
    *, n: int, radius: float, gamma: float, norm_vu: float, log: bool = False
) -> float:
    r"""Return the bound for a leader that moves along an eigenvector (:prf:ref:`thm-lower-eigen`).

    .. math:: \mathrm{Lip}(f|B_R^n) \ge \sqrt{n-1}\; w\, \big(1 + 2\gamma R^2 (1-w)\big) \|Vu\|

    where u is the eigenvector and w is that of :func:`adversarial_lower`.

    Examples
    --------
    >>> size = {"n": 5, "radius": 1.0, "gamma": 1.0}
    >>> refined_lower(norm_vu=1.0, **size) > adversarial_lower(norm_v=1.0, **size)
    True
    """
    n = check_count("n", n)
    log_gap = math.log(2) + log_scaled(radius, gamma, "gamma")
    log_vu = log_norm(norm_vu, "norm_vu")
    log_w = _log_weight(n, exp(log_gap))
    log_rest = log_times(log_w, log_(n - 1) - exp(log_gap))  # log(1 − w)
    keys = log_one_plus(log_gap, log_rest)
    return finish(log_times(log_vu, log_(n - 1) / 2, log_w, keys), log)


def masked_lower(*, n: int, radius: float, gamma: float, norm_v: float, log: bool = False) -> float:
    r"""Return the lower bound with a causal mask (:prf:ref:`thm-lower-masked`).

    The leader comes first.

    .. math:: \mathrm{Lip}(f^m|B_R^n) \ge \|V\|_2 \Big(\sum_{i=2}^n w_i^2\Big)^{1/2},
        \qquad w_i = \frac{1}{1+(i-1)e^{-2R^2\gamma}}

    Examples
    --------
    >>> masked_lower(n=5, radius=10.0, gamma=1.0, norm_v=1.0)
    2.0
    """
    n = check_count("n", n)
    gap = 2 * exp(log_scaled(radius, gamma, "gamma"))
    return finish(log_times(log_norm(norm_v), _log_square_sum(n - 1, -gap) / 2), log)


def score_gap_lower(*, n: int, radius: float, A: Tensor, V: Tensor, log: bool = False) -> float:
    r"""Return a lower bound that needs no real eigenvalue (:prf:ref:`thm-lower-gap`).

    .. math:: \mathrm{Lip}(f|B_R^n) \ge
        \sqrt{n-1}\; w\, \big\| V\big(I + (1-w)(x_1-x_2)(Ax_2)^\top\big) \big\|_2,
        \qquad w = \frac{1}{1+(n-1)e^{-g_AR^2}},

    with :math:`x_2 = Ru` for the maximiser u of :func:`score_gap` and :math:`x_1 = R\,Au/\|Au\|`.
    A : Tensor, shape (d, d). V : Tensor, shape (p, d).

    Examples
    --------
    >>> import torch
    >>> J = torch.tensor([[0.0, -3.0], [3.0, 0.0]], dtype=torch.float64)
    >>> score_gap_lower(n=5, radius=10.0, A=J, V=torch.eye(2, dtype=torch.float64))
    2.0
    """
    n = check_count("n", n)
    log_square = 2 * log_(check_number("radius", radius, minimum=0))
    A, V = check_head(A, V)
    A, log_a = scaled(A.double())
    V, log_v = scaled(V.double())
    log_square += log_a
    gap, u = score_gap(A)
    gap = exp(log_(gap) + log_square)
    image = A @ u
    size = image.norm().item()
    first = image / size if size else u
    log_w = _log_weight(n, gap)
    rest = exp(log_times(log_w, log_(n - 1) - gap, log_square, log_(size)))  # (1 − w) R²‖Au‖
    moved = V + rest * torch.outer(V @ (first - u), first)
    log_moved = log_v + log_(torch.linalg.matrix_norm(moved, 2).item())
    return finish(log_times(log_(n - 1) / 2, log_w, log_moved), log)


def _log_weight(n: int, gap: float) -> float:
    """Return log 1/(1+(n−1)e^{−gap}), the weight of a token that leads n − 1 others by ``gap``."""
    return 0.0 if gap == math.inf else -log_one_plus(log_(n - 1) - gap)


def _log_square_sum(terms: int, log_q: float) -> float:
    r"""Return log of :math:`\sum_{i=1}^{m} (1+iq)^{-2}`, for q ≤ 1 and any number m of terms."""
    q = exp(log_q)
    first = min(terms, _TERMS)
    head = sum((1 + i * q) ** -2 for i in range(1, first + 1))
    if terms == first:
        return log_(head)
    # the integral of (1+xq)^{−2} from half a step below the tail, and Euler–Maclaurin's correction
    start = 1 + (first + 0.5) * q
    log_end = log_add(0.0, log_(terms + 0.5 if terms < 2**52 else terms) + log_q)
    integral = log_(terms - first) - math.log(start) - log_end
    slope = q / 12 * (start**-3 - math.exp(-3 * log_end))
    return log_sum([math.log(head), integral]) + math.log1p(-slope / (head + exp(integral)))
