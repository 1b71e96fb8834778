r"""Torn queries: why the constant of n ≪ κ tokens grows as a√n, and not only as √n (this book).

A query whose weight is split between two far tokens ``x_1, x_2`` moves by up to half their distance times the change
of its scores. Put n − 2 queries at one point z with :math:`Az \perp x_1 - x_2`, and push the two along ±Az.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcore._checks import (
    check_count,
    check_number,
    check_real_tensor,
    check_same_kind,
    check_square,
)
from lipcore.bounds._logarithms import exp, finish, log_, log_add, log_inputs, log_times


def torn_peak(a: float) -> float:
    r"""The log G(a) for which mixing and others' keys have norm at most :math:`\sqrt{n\,G(a)}` (this book).

    .. math:: G(a) = \max_{0\le w\le1} w^2(1+2a(1-w))^2 + (1-w)^2(1-2aw)^2
        = \begin{cases} 1 & a \le \frac12 \\ \frac12 + \frac12\big(a+\frac1{4a}\big)^2 & a \ge \frac12 \end{cases}

    Parameters
    ----------
    a : float

    Returns
    -------
    float
        log G(a).

    Raises
    ------
    ValueError, TypeError
        If a is negative or not finite.

    Examples
    --------
    >>> round(math.exp(torn_peak(0.5)), 9), round(math.exp(torn_peak(1.0)), 5)
    (1.0, 1.28125)
    """
    a = check_number("a", a, minimum=0)
    return (
        0.0
        if a <= 0.5
        else log_add(0.0, 2 * (math.log(a) + math.log1p(1 / a / a / 4))) - math.log(2)
    )


def torn_upper(*, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False) -> float:
    r"""Upper bound for n tokens, with or without a mask, sharpest for 1 ≪ a, log n ≪ a (this book).

    .. math:: \mathrm{Lip}(f|B_R^n) \le \|V\|_2 \big( \sqrt{n\,G(a)} + a \big),
        \qquad G \sim \tfrac12 a^2

    with G of :func:`torn_peak`. For :math:`A=-\gamma I` and V = I in dimension two or more, its quotient by the true
    constant tends to one as n and a grow with log n = o(a).

    Parameters
    ----------
    n, radius, norm_a, norm_v, log
        As in :func:`~lipcore.bounds.general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`~lipcore.bounds.general_upper`.

    Examples
    --------
    >>> torn_upper(n=9, radius=1.0, norm_a=0.5, norm_v=1.0)
    3.5
    """
    n, log_a, log_v = log_inputs(n, radius, norm_a, norm_v)
    # past float64's range, where G(a) = a²/2 to all digits
    peak = torn_peak(exp(log_a)) if log_a < 300 else 2 * log_a - math.log(2)
    return finish(log_times(log_v, log_add((math.log(n) + peak) / 2, log_a)), log)


def torn_lower(*, n: int, radius: float, A: Tensor, V: Tensor, log: bool = False) -> float:
    r"""Lower bound for n tokens by torn queries: of order :math:`a\sqrt n` for V = I and log n ≤ a/10 (this book).

    .. math:: \mathrm{Lip}(f|B_R^n) \ge \sqrt{2(n-2)}\; p\, t\beta R^2 \|Av\|\, \|Ve\|, \qquad
        p = \frac{1}{2+(n-2)e^{-tR^2(\alpha\|Av\| - t\,v\cdot Av)}}, \quad \alpha^2+\beta^2=1,\; e\perp Av,

    with the v among A's right singular vectors, and α, t ∈ (0, 1], that give most.

    Parameters
    ----------
    n, radius, log
        As in :func:`~lipcore.bounds.adversarial_lower`.
    A : Tensor, shape (d, d)
    V : Tensor, shape (p, d)

    Returns
    -------
    float
        Zero where d = 1 or n ≤ 2: there is no such input.

    Raises
    ------
    ValueError, TypeError
        If n < 1, the radius is negative or not finite, or A and V do not fit.

    Examples
    --------
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(torn_lower(n=18, radius=10.0, A=-eye, V=eye), 2)  # a√(n − 2)/√2
    282.84
    """
    n = check_count("n", n)
    best = _best(A, n, radius, V)
    return finish(-math.inf if best is None else best.log_value, log)


def torn_inputs(A: Tensor, n: int, radius: float, *, V: Tensor | None = None) -> Tensor:
    """The tokens behind :func:`torn_lower`: two far apart, then n − 2 queries torn between them.

    Parameters
    ----------
    A : Tensor, shape (d, d)
        With d ≥ 2.
    n : int
        At least 3.
    radius : float
    V : Tensor, shape (p, d), optional
        The identity if left out.

    Returns
    -------
    Tensor, shape (n, d)

    Raises
    ------
    ValueError, TypeError
        If d < 2, n < 3, A is zero, the radius is negative or not finite, or A and V do not fit.

    Examples
    --------
    >>> torn_inputs(-torch.eye(2, dtype=torch.float64), n=5, radius=2.0).shape
    torch.Size([5, 2])
    """
    n = check_count("n", n, minimum=3)
    best = _best(
        A, n, radius, torch.eye(len(A), dtype=A.dtype, device=A.device) if V is None else V
    )
    if best is None:
        raise ValueError(
            f"A: expected a matrix other than zero, of at least two rows, got shape {tuple(A.shape)}"
        )
    pair = [best.alpha * best.lead + sign * best.beta * best.across for sign in (1, -1)]
    return radius * torch.stack([*pair, *[best.t * best.query] * (n - 2)]).to(A.dtype)


@dataclass(frozen=True, eq=False)
class _Torn:
    """x_1, x_2 = R(α·lead ± β·across), the queries tR·query, and the log of what they reach."""

    lead: Tensor
    across: Tensor
    query: Tensor
    alpha: float
    beta: float
    t: float
    log_value: float


def _best(A: Tensor, n: int, radius: float, V: Tensor) -> _Torn | None:
    """The best v, α, t by a grid; None where there is no torn query."""
    check_square("A", A)
    check_real_tensor("V", V, ndim=2)
    check_same_kind("V", V, A, "A")
    if V.shape[1] != A.shape[0]:
        raise ValueError(f"V: expected {A.shape[0]} columns as A has, got shape {tuple(V.shape)}")
    radius = check_number("radius", radius, minimum=0)
    left, sizes, right = torch.linalg.svd(A.double())
    if len(A) < 2 or n < 3 or sizes[0] == 0 or radius == 0:
        return None
    keep = sizes > 1e-9 * sizes[0]
    left, sizes, right = left.mT[keep], sizes[keep], right[keep]  # A right_k = sizes_k left_k
    own = (right * left).sum(-1)  # v·Av / ‖Av‖
    across = torch.linalg.svd(V.double() - (V.double() @ left[:, :, None]) * left[:, None, :]).Vh[
        :, 0
    ]
    across = across - (across * left).sum(-1, keepdim=True) * left  # where V vanishes on (Av)^⊥
    across = across / across.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    reached = (across @ V.double().mT).norm(dim=-1)
    angle = torch.linspace(0.01, math.pi / 2, 150, dtype=torch.float64, device=A.device)[
        :, None, None
    ]
    t = torch.linspace(0.01, 1, 100, dtype=torch.float64, device=A.device)[:, None]
    log_size = sizes.log() + 2 * math.log(radius)
    lead = t * (angle.cos() - t * own) * log_size.exp()  # of the pair's scores above a query's own
    log_p = -torch.logaddexp(torch.full_like(lead, math.log(2)), log_(n - 2) - lead)
    value = log_p + (t * angle.sin()).log() + log_size + reached.log()
    first, second, k = torch.unravel_index(value.argmax(), value.shape)
    alpha, beta = angle[first].cos().item(), angle[first].sin().item()
    log_value = value[first, second, k].item() + math.log(2 * (n - 2)) / 2
    return _Torn(left[k], across[k], right[k], alpha, beta, t[second].item(), log_value)
