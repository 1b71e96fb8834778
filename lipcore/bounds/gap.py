r"""The score gap of A, which sets the exact exponential rate; and the bounds made of it.

The gap is a quadratic problem with two constraints, so its Lagrange dual is exact: one convex function of one
variable, instead of a search from many starts.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from lipcore._checks import (
    check_count,
    check_number,
    check_real_tensor,
    check_same_kind,
    check_square,
)
from lipcore.bounds._logarithms import (
    exp,
    finish,
    log_,
    log_add,
    log_column_sum,
    log_norm,
    log_three_terms,
    log_times,
)
from lipcore.bounds.lower import log_weight

#: Relative distances within which eigenvalues are tried as one multiple eigenvalue, at the kink of the dual.
_MULTIPLE = (1e-14, 1e-12, 1e-10, 1e-8)


def score_gap(A: Tensor) -> tuple[float, Tensor]:
    r"""Largest lead of one key over the query's own token, and the query that gives it (this book; theory §3).

    .. math:: g_A = \max_{\|u\|\le 1} \big( \|Au\| - u\cdot Au \big)
        = \min_{\mu > 0}\; \mu + \lambda_{\max}\Big( \frac{A^\top A}{4\mu} - \frac{A+A^\top}{2} \Big)_+

    The second form is an upper bound for every μ, as :math:`\|Au\| \le \mu + \|Au\|^2/4\mu`, and exact, as a
    homogeneous quadratic problem with two constraints has an optimal relaxation of rank one (Pataki 1998). It is
    convex in μ; the maximiser is read off its eigenvectors.

    Parameters
    ----------
    A : Tensor, shape (d, d)

    Returns
    -------
    gap : float
        The value at u.
    u : Tensor, shape (d,), float64
        A maximiser, of norm at most one; it need not be an eigenvector, nor lie on the sphere.

    Raises
    ------
    ValueError, TypeError
        If A is not a finite square matrix.

    Examples
    --------
    >>> import torch
    >>> gap, u = score_gap(torch.tensor([[0.0, -3.0], [3.0, 0.0]], dtype=torch.float64))  # a rotation: no eigenvector
    >>> round(gap, 9)
    3.0
    """
    A = check_square("A", A).detach().double()
    scaled, basis, size = _compress(A)
    if size == 0:
        return 0.0, torch.eye(len(A), dtype=A.dtype, device=A.device)[0]
    _, mu = _solved(scaled)
    candidates = torch.stack([_primal(scaled, mu, within) for within in _MULTIPLE])
    gaps = _gap(scaled, candidates)
    best = int(gaps.argmax())
    return size * gaps[best].item(), basis @ candidates[best]


def score_gap_upper(A: Tensor) -> float:
    """The dual value of :func:`score_gap`: at least g_A, however well the maximiser was found.

    Parameters
    ----------
    A : Tensor, shape (d, d)

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        If A is not a finite square matrix.

    Examples
    --------
    >>> import torch
    >>> A = torch.tensor([[1.0, 5.0], [0.0, 1.0]], dtype=torch.float64)
    >>> abs(score_gap_upper(A) - score_gap(A)[0]) < 1e-12
    True
    """
    scaled, _, size = _compress(check_square("A", A).detach().double())
    return size * max(_solved(scaled)[0], 0.0) if size else 0.0


def eigen_gamma(A: Tensor) -> tuple[float, Tensor]:
    r"""What A's real eigenvalues say of the score gap (Castin, Ablin & Peyré 2024; theory §3).

    .. math:: \gamma = \max(-\gamma_{\min}, \gamma_{\max}/8) \le g_A/2

    Parameters
    ----------
    A : Tensor, shape (d, d)

    Returns
    -------
    gamma : float
        At least zero; zero where A has no real eigenvalue but perhaps zero.
    u : Tensor, shape (d,), float64
        Its unit eigenvector (u·Au tells which of the two it is); zero where there is none.

    Raises
    ------
    ValueError, TypeError
        If A is not a finite square matrix.

    Examples
    --------
    >>> import torch
    >>> eigen_gamma(torch.diag(torch.tensor([4.0, -0.1], dtype=torch.float64)))[0]
    0.5
    """
    A = check_square("A", A).double()
    symmetric = bool((A == A.mT).all())
    values, vectors = torch.linalg.eigh(A) if symmetric else torch.linalg.eig(A)
    # of a real matrix, LAPACK returns real eigenvalues with imaginary part zero exactly
    real = torch.ones(len(A), dtype=torch.bool) if symmetric else (values.imag == 0).cpu()
    if not real.any():
        return 0.0, torch.zeros(len(A), dtype=A.dtype, device=A.device)
    values, vectors = values[real].real, vectors[:, real].real
    gammas = torch.maximum(-values, values / 8)
    best = int(gammas.argmax())
    return max(gammas[best].item(), 0.0), vectors[:, best] / vectors[:, best].norm()


def _compress(A: Tensor) -> tuple[Tensor, Tensor, float]:
    """(B, E, s) with A = s·E B Eᵀ, ‖B‖₂ = 1 and orthonormal columns E that span the ranges of A and Aᵀ."""
    size = A.abs().amax()
    if size == 0:
        return A, A, 0.0
    left, values, right = torch.linalg.svd(A / size)
    size, rank = (size * values[0]).item(), rank_of(values.tolist())
    if 2 * rank >= len(A):
        return A / size, torch.eye(len(A), dtype=A.dtype, device=A.device), size
    basis, _ = torch.linalg.qr(torch.cat([left[:, :rank], right[:rank].mT], dim=1))
    return basis.mT @ (A / size) @ basis, basis, size


def _gap(A: Tensor, u: Tensor) -> Tensor:
    """‖Au‖ − u·Au for the rows u (…, d)."""
    image = u @ A.mT
    return image.norm(dim=-1) - (u * image).sum(-1)


def _solved(A: Tensor) -> tuple[float, float]:
    """:func:`_dual`, remembered: several bounds of one A ask for it."""
    return _dual_from_bytes(A.cpu().numpy().tobytes(), len(A))


@lru_cache(maxsize=8)
def _dual_from_bytes(entries: bytes, d: int) -> tuple[float, float]:
    return _dual(torch.frombuffer(bytearray(entries), dtype=torch.float64).reshape(d, d))


def _dual(A: Tensor) -> tuple[float, float]:
    """The least value of the dual and its μ, for ‖A‖₂ = 1: bisection on the slope 1 − ‖Ae‖²/4μ², e the top eigenvector.

    With ‖Au‖ = 2μ at the optimum and ‖A‖/4 ≤ g_A ≤ 2‖Au‖, the optimal μ lies in [1/16, 1/2].
    """
    gram, symmetric = A.mT @ A, (A + A.mT) / 2
    low, high, best = 1 / 16, 1 / 2, (math.inf, 1 / 2)
    for _ in range(50):
        mu = (low + high) / 2
        values, vectors = torch.linalg.eigh(gram / (4 * mu) - symmetric)
        best = min(best, (mu + max(values[-1].item(), 0.0), mu))
        falls = values[-1] > 0 and (A @ vectors[:, -1]).norm() > 2 * mu
        low, high = (mu, high) if falls else (low, mu)
    return best


def _primal(A: Tensor, mu: float, within: float) -> Tensor:
    """The maximiser: in the top eigenspace of the dual matrix, with ‖Au‖ = 2μ."""
    values, vectors = torch.linalg.eigh(A.mT @ A / (4 * mu) - (A + A.mT) / 2)
    top = vectors[:, values >= values[-1] - within]
    squares, directions = torch.linalg.eigh((A @ top).mT @ (A @ top))
    least, most = squares[0].item(), squares[-1].item()
    share = min(max((4 * mu**2 - least) / (most - least), 0.0), 1.0) if most > least else 1.0
    u = top @ (math.sqrt(share) * directions[:, -1] + math.sqrt(1 - share) * directions[:, 0])
    if values[-1] <= within:  # the sphere does not bind: the point with ‖Au‖ = 2μ may lie inside
        u = u * min(1.0, 2 * mu / (A @ u).norm().item())
    return u / max(1.0, u.norm().item())


def score_gap_lower(*, n: int, radius: float, A: Tensor, V: Tensor, log: bool = False) -> float:
    r"""Lower bound for n tokens that needs no real eigenvalue (this book; theory §3).

    .. math:: \mathrm{Lip}(f|B_R^n) \ge \sqrt{n-1}\; w\, \big\| V\big(I + (1-w)(x_1-x_2)(Ax_2)^\top\big) \big\|_2,
        \qquad w = \frac{1}{1+(n-1)e^{-g_AR^2}},

    with :math:`x_2 = Ru` for the maximiser u of :func:`score_gap` and :math:`x_1 = R\,Au/\|Au\|`.

    Parameters
    ----------
    n, radius, log
        As in :func:`~lipcore.bounds.adversarial_lower`.
    A : Tensor, shape (d, d)
    V : Tensor, shape (p, d)

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        If n < 1, the radius is negative or not finite, or A and V do not fit.

    Examples
    --------
    >>> import torch
    >>> J = torch.tensor([[0.0, -3.0], [3.0, 0.0]], dtype=torch.float64)
    >>> score_gap_lower(n=5, radius=10.0, A=J, V=torch.eye(2, dtype=torch.float64))
    2.0
    """
    n, radius = check_count("n", n), check_number("radius", radius, minimum=0)
    V = _check_value(V, A)
    gap, u = score_gap(A)
    image = A.double() @ u
    size, gap = image.norm().item(), exp(log_(gap) + 2 * log_(radius))
    log_w = log_weight(n, gap)
    rest = exp(log_times(log_w, log_(n - 1) - gap, 2 * log_(radius), log_(size)))  # (1 − w) R²‖Au‖
    first = image / size if size else u
    norm = torch.linalg.matrix_norm(V + rest * torch.outer(V @ (first - u), first), 2).item()
    return finish(log_times(log_(n - 1) / 2, log_w, log_(norm)), log)


def mean_field_upper_rate(*, A: Tensor, radius: float, norm_v: float, log: bool = False) -> float:
    r"""Upper bound in the mean-field regime with the exact exponential rate (this book; theory §5).

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le \|V\|_2 \Big( (1+a)\sqrt{\min(\kappa, N e^{1+g^*})} + a \Big),
        \qquad g^* = g_A R^2,\quad N = (2a\sqrt r + 1)^r,\quad r = \mathrm{rank}\, A

    Parameters
    ----------
    A : Tensor, shape (d, d)
    radius : float
        Radius of the ball.
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
        If A is not a finite square matrix, or a number is out of range.

    Examples
    --------
    >>> import torch
    >>> A = torch.eye(1, dtype=torch.float64)  # the rate is 1/8 of the exponent of mean_field_upper here
    >>> 12.5 < mean_field_upper_rate(A=A, radius=10.0, norm_v=1.0, log=True) < 21
    True
    """
    log_a, log_cells = _log_inputs(A, radius)
    log_mixing = min(2 * exp(log_a), log_cells) / 2
    return finish(log_times(log_norm(norm_v), log_three_terms(log_a, log_mixing, keys=1)), log)


def unified_upper_rate(
    *, n: int, A: Tensor, radius: float, norm_v: float, log: bool = False
) -> float:
    r"""Upper bound for n tokens with the exact exponential rate (this book; theory §5).

    .. math:: \mathrm{Lip}(f|B_R^n) \le \|V\|_2 \Big(
        (1+a)\sqrt{\min\big(\tfrac{n\kappa}{n+\kappa-1}, N e^{1+g^*}\big)} + a \Big)

    Parameters
    ----------
    n : int
        Number of tokens.
    A, radius, norm_v, log
        As in :func:`mean_field_upper_rate`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`mean_field_upper_rate`.

    Examples
    --------
    >>> import torch
    >>> A = torch.eye(1, dtype=torch.float64)
    >>> unified_upper_rate(n=3, A=A, radius=10.0, norm_v=1.0) <= unified_upper_rate(n=4, A=A, radius=10.0, norm_v=1.0)
    True
    """
    n = check_count("n", n)
    log_a, log_cells = _log_inputs(A, radius)
    log_mixing = min(log_column_sum(n, log_a), log_cells) / 2
    return finish(log_times(log_norm(norm_v), log_three_terms(log_a, log_mixing, keys=1)), log)


def masked_upper_rate(*, A: Tensor, radius: float, norm_v: float, log: bool = False) -> float:
    r"""Upper bound for causal attention, whatever n, with the exact exponential rate (this book; theory §7).

    .. math:: \mathrm{Lip}(f^m|B_R^n) \le \|V\|_2 \Big( 2(1+2a)\min\big(e^a, \sqrt{N e^{1+g^*}}\big) + a \Big)

    Parameters
    ----------
    A, radius, norm_v, log
        As in :func:`mean_field_upper_rate`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`mean_field_upper_rate`.

    Examples
    --------
    >>> import torch
    >>> masked_upper_rate(A=torch.zeros(2, 2), radius=3.0, norm_v=1.0)
    2.0
    """
    log_a, log_cells = _log_inputs(A, radius)
    log_mixing = math.log(2) + min(2 * exp(log_a), log_cells) / 2
    return finish(log_times(log_norm(norm_v), log_three_terms(log_a, log_mixing, keys=2)), log)


def _log_inputs(A: Tensor, radius: float) -> tuple[float, float]:
    """Checked (log a, log N e^{1+g*}), with N = (2a√r + 1)^r cells on each of which scores vary by at most one."""
    values = torch.linalg.svdvals(check_square("A", A).double()).tolist()
    log_radius = log_(check_number("radius", radius, minimum=0))
    log_a, rank = log_(values[0]) + 2 * log_radius, rank_of(values)
    log_n = rank * log_add(0.0, math.log(2) + log_a + log_(rank) / 2)
    return log_a, log_n + 1 + exp(log_(score_gap_upper(A)) + 2 * log_radius)


def rank_of(values: list[float]) -> int:
    """Number of singular values (largest first) that are not rounding errors of the largest."""
    return sum(value > 1e-14 * values[0] for value in values)


def _check_value(V: Tensor, A: Tensor) -> Tensor:
    check_square("A", A)
    check_real_tensor("V", V, ndim=2)
    check_same_kind("V", V, A, "A")
    if V.shape[1] != A.shape[0]:
        raise ValueError(f"V: expected {A.shape[0]} columns as A has, got shape {tuple(V.shape)}")
    return V.double()
