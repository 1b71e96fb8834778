r"""The score gap of A, which sets the exact exponential rate of the Lipschitz constant.

The gap solves a quadratic problem with two constraints, so that its Lagrange dual is exact. The
dual is one convex function of one variable, and replaces a search from many starts. With an offset
(a query's bias, the centre of an ellipsoid) the dual is still an upper bound.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_real_tensor, check_square
from lipcore.bounds import _logarithms as logs
from lipcore.bounds._matrices import memoise_on_values, rank_of

#: Eigenvalues within these relative distances are tried as one multiple eigenvalue, at a kink.
_MULTIPLE = (1e-14, 1e-12, 1e-10, 1e-8)


def score_gap(A: Tensor) -> tuple[float, Tensor]:
    r"""Return the score gap of A and a query that has it (:prf:ref:`def-score-gap`).

    It is the largest amount by which a key's score can exceed that of the query's own token,

    .. math:: g_A = \max_{\|u\|\le 1} \big( \|Au\| - u\cdot Au \big)
        = \min_{\mu > 0}\; \mu
        + \lambda_{\max}\Big( \frac{A^\top A}{4\mu} - \frac{A+A^\top}{2} \Big)_+

    The second form is an upper bound for every μ, as :math:`\|Au\| \le \mu + \|Au\|^2/4\mu`. It is
    exact, as a homogeneous quadratic problem with two constraints has an optimal relaxation of rank
    one (Pataki 1998). It is convex in μ, and its eigenvectors give the maximiser;
    :prf:ref:`thm-score-gap` says how the gap depends on A. The tests enclose the gap of heads of
    many kinds between its value at u and the dual, in interval arithmetic, to a relative 1e-12.

    Parameters
    ----------
    A : Tensor, shape (d, d)

    Returns
    -------
    gap : float
        The value at u.
    u : Tensor, shape (d,), float64
        A maximiser, of norm at most one; it need not be an eigenvector, nor lie on the sphere.

    Examples
    --------
    >>> import torch
    >>> turn = torch.tensor([[0.0, -3.0], [3.0, 0.0]], dtype=torch.float64)  # it has no eigenvector
    >>> gap, u = score_gap(turn)
    >>> round(gap, 9)
    3.0
    """
    gap, u, _ = _solve(check_square("A", A).double())
    return gap, u.clone()


def score_gap_upper(A: Tensor, offset: Tensor | None = None) -> float:
    r"""Return an upper bound of the score gap, also with an offset c (:prf:ref:`lem-columns`).

    .. math:: \max_{\|x\|, \|y\| \le 1} (Ax+c)\cdot(y-x) \le \mu + \max_{\|x\|\le1}
        \Big( \frac{\|Ax+c\|^2}{4\mu} - (Ax+c)\cdot x \Big) \quad\text{for every } \mu > 0

    Without an offset this is the dual of :prf:ref:`def-score-gap`, which is exact. With one, the
    inner maximum over the ball is bounded by its own dual, and the best μ is searched for.

    Parameters
    ----------
    A : Tensor, shape (d, d)
    offset : Tensor, shape (d,), optional
        The offset c. For tokens in a ball of radius R, scores (Ax + b)·y have the gap R² times that
        of A and b/R.

    Examples
    --------
    >>> import torch
    >>> A = torch.tensor([[1.0, 5.0], [0.0, 1.0]], dtype=torch.float64)
    >>> abs(score_gap_upper(A) - score_gap(A)[0]) < 1e-12
    True
    >>> round(score_gap_upper(0 * A, torch.tensor([0.0, 3.0], dtype=torch.float64)), 6)  # 2‖c‖
    6.0
    """
    A = check_square("A", A).detach().double()
    if offset is not None:
        offset = check_real_tensor("offset", offset, ndim=1).detach().double()
        if len(offset) != len(A):
            raise ValueError(f"offset: expected {len(A)} entries as A has, got {len(offset)}")
        if bool(offset.any()):
            return _affine_dual(A, offset)
    return _solve(A)[2]


def eigen_gamma(A: Tensor) -> tuple[float, Tensor]:
    r"""Return the lower bound 2γ of the score gap by real eigenvalues (:prf:ref:`thm-lower-eigen`).

    .. math:: \gamma = \max(-\gamma_{\min}, \gamma_{\max}/8) \le g_A/2

    Parameters
    ----------
    A : Tensor, shape (d, d)

    Returns
    -------
    gamma : float
        At least zero; zero if A has no real eigenvalue other than zero.
    u : Tensor, shape (d,), float64
        The unit eigenvector of γ (u·Au tells which of the two it is); zero if there is none.

    Examples
    --------
    >>> import torch
    >>> eigen_gamma(torch.diag(torch.tensor([4.0, -0.1], dtype=torch.float64)))[0]
    0.5
    """
    A = check_square("A", A).double()
    symmetric = bool((A == A.mT).all())
    values, vectors = torch.linalg.eigh(A) if symmetric else torch.linalg.eig(A)
    # of a real matrix, LAPACK returns real eigenvalues with an imaginary part of exactly zero
    real = torch.ones(len(A), dtype=torch.bool) if symmetric else (values.imag == 0).cpu()
    if not real.any():
        return 0.0, torch.zeros(len(A), dtype=A.dtype, device=A.device)
    values = values[real].real
    vectors = vectors[:, real].real
    gammas = torch.maximum(-values, values / 8)
    best = int(gammas.argmax())
    return max(gammas[best].item(), 0.0), vectors[:, best] / vectors[:, best].norm()


def _compress(A: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return (B, E, s): A = s·E B Eᵀ, ‖B‖₂ = 1; the columns of E span the ranges of A and Aᵀ."""
    size = A.abs().amax()
    if size == 0:
        return A, A, 0.0
    left, values, right = torch.linalg.svd(A / size)
    size = (size * values[0]).item()
    rank = rank_of(values.tolist())
    if 2 * rank >= len(A):
        return A / size, torch.eye(len(A), dtype=A.dtype, device=A.device), size
    basis, _ = torch.linalg.qr(torch.cat([left[:, :rank], right[:rank].mT], dim=1))
    return basis.mT @ (A / size) @ basis, basis, size


@memoise_on_values
def _solve(A: Tensor) -> tuple[float, Tensor, float]:
    """Return the gap, its query, and the value of the dual, which is an upper bound."""
    unit, basis, size = _compress(A)
    if size == 0:
        return 0.0, torch.eye(len(A), dtype=A.dtype, device=A.device)[0], 0.0
    upper, mu = _dual(unit)
    candidates = torch.stack([_primal(unit, mu, within) for within in _MULTIPLE])
    images = candidates @ unit.mT
    gaps = images.norm(dim=-1) - (candidates * images).sum(-1)  # ‖Au‖ − u·Au
    best = int(gaps.argmax())
    return size * gaps[best].item(), basis @ candidates[best], size * max(upper, 0.0)


def _dual(A: Tensor) -> tuple[float, float]:
    """Return the least value of the dual and its μ, for ‖A‖₂ = 1."""
    gram = A.mT @ A
    symmetric = (A + A.mT) / 2
    # bisect on the slope 1 − ‖Ae‖²/4μ², e the top eigenvector; as ‖Au‖ = 2μ at the optimum and
    # ‖A‖/4 ≤ g_A ≤ 2‖Au‖, the optimal μ lies in [1/16, 1/2]
    low = 1 / 16
    high = 1 / 2
    best = (math.inf, high)
    for _ in range(50):
        mu = (low + high) / 2
        values, vectors = torch.linalg.eigh(gram / (4 * mu) - symmetric)
        best = min(best, (mu + max(values[-1].item(), 0.0), mu))
        if values[-1] > 0 and (A @ vectors[:, -1]).norm() > 2 * mu:
            low = mu
        else:
            high = mu
    return best


@memoise_on_values
def _affine_dual(A: Tensor, c: Tensor) -> float:
    """Return the least value of the dual with an offset; every μ and inner λ give a bound."""
    left, values, right = torch.linalg.svd(A)
    keep = max(rank_of(values.tolist()), 1)
    basis, _ = torch.linalg.qr(torch.cat([left[:, :keep], right[:keep].mT, c[:, None]], dim=1))
    size = max(values[0].item(), c.norm().item())
    A = basis.mT @ (A / size) @ basis
    c = basis.mT @ (c / size)
    norm_a = values[0].item() / size
    norm_c = c.norm().item()
    gram = A.mT @ A
    symmetric = (A + A.mT) / 2

    def bound(log_mu: float) -> float:
        mu = math.exp(log_mu)
        curvatures, vectors = torch.linalg.eigh(gram / (4 * mu) - symmetric)
        squares = (vectors.mT @ (A.mT @ c / (4 * mu) - c / 2)).square()
        low = max(curvatures[-1].item(), 0.0)
        room = low - curvatures
        reach = squares.sum().sqrt().item()

        def inner(log_excess: float) -> float:  # of λ over its least value
            excess = math.exp(log_excess)
            return (squares / (room + excess)).sum().item() + low + excess

        log_reach = math.log(max(reach, 1e-12 * (low + mu)))
        return mu + norm_c**2 / (4 * mu) + logs.minimum_on(inner, log_reach - 30, log_reach)

    # the best μ is ‖Ax + c‖/2, and the gap, at least ‖A‖/4 and ‖c‖, is at most 2‖Ax + c‖
    lowest = math.log(max(norm_a / 16, norm_c / 4))
    return size * logs.minimum_on(bound, lowest, math.log((norm_a + norm_c) / 2))


def _primal(A: Tensor, mu: float, within: float) -> Tensor:
    """Return the maximiser, in the top eigenspace of the dual matrix and with ‖Au‖ = 2μ."""
    # For ‖Au‖ = 2μ the gap is ‖Au‖ − u·Au = μ + u·Mu, M the dual matrix: a unit vector u of M's
    # top eigenspace then reaches the dual. On that space ‖A·‖² is a quadratic form; between its
    # extreme directions, √share and √(1 − share), it is share·most + (1 − share)·least.
    values, vectors = torch.linalg.eigh(A.mT @ A / (4 * mu) - (A + A.mT) / 2)
    top = vectors[:, values >= values[-1] - within]
    squares, directions = torch.linalg.eigh((A @ top).mT @ (A @ top))
    least = squares[0].item()
    most = squares[-1].item()
    share = min(max((4 * mu**2 - least) / (most - least), 0.0), 1.0) if most > least else 1.0
    mixture = math.sqrt(share) * directions[:, -1] + math.sqrt(1 - share) * directions[:, 0]
    u = top @ mixture
    if values[-1] <= within:  # M has no positive eigenvalue: the maximiser may lie inside the ball
        u = u * min(1.0, 2 * mu / (A @ u).norm().item())
    return u / max(1.0, u.norm().item())
