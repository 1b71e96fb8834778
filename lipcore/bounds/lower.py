r"""Lower bounds: what the constructions of chapter 6 reach (as inputs: :mod:`lipcore.adversarial`).

The first four have one distinguished token, seen by all others with weight w. In the fifth, a query
is balanced between two tokens: chapter 6 calls it torn. :func:`best_lower` takes the best of all,
with as many copies as suit n. Sizes are keyword-only: ``n`` tokens of
norm at most ``radius`` :math:`= R`; ``gamma`` :math:`= \max(-\gamma_{\min}, \gamma_{\max}/8)` over
the real eigenvalues of A (:func:`~lipcore.bounds.eigen_gamma`); ``norm_v`` and ``norm_vu`` are ‖V‖₂
and ‖Vu‖, u the unit eigenvector.
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
from lipcore.bounds.gap import score_gap

#: Terms of a slowly varying sum that are added one by one; the rest is Euler–Maclaurin's integral.
_TERMS = 256
#: Places on the way from the crowd to the distinguished token that are tried.
_SHARES = 64
#: Longer inputs only repeat their tokens.
_MOST = 10**300


def adversarial_lower(
    *, n: int, radius: float, gamma: float, norm_v: float, log: bool = False
) -> float:
    r"""The published bound of Castin, Ablin & Peyré 2024 (:prf:ref:`thm-lower-eigen`).

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
    r"""The distinguished token moved along the eigenvector u (:prf:ref:`thm-lower-eigen`).

    .. math:: \mathrm{Lip}(f|B_R^n) \ge \sqrt{n-1}\; w\, \big(1 + 2\gamma R^2 (1-w)\big) \|Vu\|

    with the w of :func:`adversarial_lower`.

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
    r"""With a causal mask, the distinguished token first (:prf:ref:`thm-lower-masked`).

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
    r"""Lower bound that needs no real eigenvalue (:prf:ref:`thm-lower-gap`).

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
    gap, u = score_gap(A)
    gap = exp(log_(gap) + log_square)
    image = A.double() @ u
    size = image.norm().item()
    first = image / size if size else u
    log_w = _log_weight(n, gap)
    rest = exp(log_times(log_w, log_(n - 1) - gap, log_square, log_(size)))  # (1 − w) R²‖Au‖
    moved = V.double() + rest * torch.outer(V.double() @ (first - u), first)
    log_moved = log_(torch.linalg.matrix_norm(moved, 2).item())
    return finish(log_times(log_(n - 1) / 2, log_w, log_moved), log)


def best_lower(
    *, A: Tensor, V: Tensor, radius: float, n: int | None = None, log: bool = False
) -> float:
    r"""The largest constant that the constructions reach: the counterpart of :func:`best_upper`.

    The maximum of ‖V‖, of :func:`copies_lower` and of :func:`torn_lower`. For V = I in dimension
    two or more, and n ≥ 3, its quotient by :func:`best_upper` is bounded away from zero, whatever
    A, R, d and n are (:prf:ref:`thm-every-rate`).

    Parameters
    ----------
    A, V : Tensor, shapes (d, d) and (p, d)
    radius : float
    n : int, optional
        Number of tokens; left out, any number: a lower bound of the mean-field constant.
    log : bool
        Whether to return the logarithm of the bound.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        If A and V do not fit, n is not a whole number of at least one, or the radius is negative or
        not finite.

    Examples
    --------
    >>> import torch
    >>> from lipcore.bounds import best_upper
    >>> head = {"A": -3 * torch.eye(2), "V": torch.eye(2), "radius": 1.0}
    >>> round(best_upper(**head) / best_lower(**head), 2)
    1.06
    """
    size = {"A": A, "V": V, "radius": radius, "n": n, "log": True}
    norm_v = torch.linalg.matrix_norm(check_head(A, V)[1].double(), 2).item()
    return finish(max(log_(norm_v), copies_lower(**size), torn_lower(**size)), log)


def copies_lower(
    *, A: Tensor, V: Tensor, radius: float, n: int | None = None, log: bool = False
) -> float:
    r"""A crowd that looks at m copies of one token (:prf:ref:`thm-lower-copies`).

    With :math:`x_2 = Ru` at the score gap, x_1 a share τ of the way to :math:`R\,Au/\|Au\|`, and
    :math:`\rho = m/(n-m)`,

    .. math:: \mathrm{Lip}(f|B_R^n) \ge \frac{W}{\sqrt\rho}\,
        \big\| V\big(I + (1-W)(x_1-x_2)(Ax_2)^\top\big) \big\|_2, \qquad
        W = \frac{\rho}{\rho + e^{-\tau g^*}},

    for the τ and m of a grid that give most; for every ρ > 0 where ``n`` is left out (measures).
    Zero for one token, and where A is zero.

    Examples
    --------
    >>> import torch
    >>> head = {"A": torch.eye(1), "V": torch.eye(1), "radius": 8.0}
    >>> round(copies_lower(**head) / copies_lower(n=10**4, **head))  # e^{g*/2} = e^8 against 100
    58
    """
    best = _copied(A, V, n, radius)
    return finish(-math.inf if best is None else best[1], log)


def copies_inputs(A: Tensor, n: int, radius: float, *, V: Tensor | None = None) -> Tensor:
    """Copies of one token, then those that look at it (:prf:ref:`thm-lower-copies`): shape (n, d).

    V is the identity if left out. ValueError or TypeError if n < 2, A is zero, the radius is
    negative or not finite, or A and V do not fit.

    Examples
    --------
    >>> import torch
    >>> eye = torch.eye(1, dtype=torch.float64)
    >>> copies_inputs(-eye, n=400, radius=1.0).sign().sum().item()  # 24 against 376
    352.0
    """
    n = check_count("n", n, minimum=2)
    V = torch.eye(len(A), dtype=A.dtype, device=A.device) if V is None else V
    best = _copied(A, V, n, radius)
    if best is None:
        raise ValueError(f"A: expected a matrix other than zero, got {tuple(A.shape)} of zeros")
    pair, _, copies = best
    repeats = torch.tensor([copies, n - copies], device=A.device)
    return radius * pair.repeat_interleave(repeats, dim=0).to(A.dtype)


def torn_lower(
    *, A: Tensor, V: Tensor, radius: float, n: int | None = None, log: bool = False
) -> float:
    r"""Balanced queries: of order a√n for V = I and log n ≤ a/10 (:prf:ref:`thm-torn`).

    .. math:: \mathrm{Lip}(f|B_R^n) \ge \sqrt{2q}\; p\, t\beta R^2 \|Av\|\, \|Ve\|, \qquad
        p = \frac{1}{2+q\,e^{-tR^2(\alpha\|Av\| - t\,v\cdot Av)}},
        \quad q = \frac{n-2m}{m},\quad \alpha^2+\beta^2=1,\; e\perp Av,

    with the v among A's right singular vectors and the score gap's u, the α, t ∈ (0, 1] and the
    number m of copies that give most; for every q > 0 where ``n`` is left out (measures). Zero
    where d = 1 or n ≤ 2: there is no such input.
    A : Tensor, shape (d, d). V : Tensor, shape (p, d).

    Examples
    --------
    >>> import torch
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(torn_lower(n=18, radius=10.0, A=-eye, V=eye), 2)  # a√(n − 2)/√2
    282.84
    """
    best = _balanced(A, V, n, radius)
    return finish(-math.inf if best is None else best[1], log)


def torn_inputs(A: Tensor, n: int, radius: float, *, V: Tensor | None = None) -> Tensor:
    """Two tokens far apart, with copies, then queries balanced between them (:prf:ref:`thm-torn`).

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
    >>> import torch
    >>> torn_inputs(-torch.eye(2, dtype=torch.float64), n=5, radius=2.0).shape
    torch.Size([5, 2])
    """
    n = check_count("n", n, minimum=3)
    V = torch.eye(len(A), dtype=A.dtype, device=A.device) if V is None else V
    best = _balanced(A, V, n, radius)
    if best is None:
        shape = tuple(A.shape)
        raise ValueError(f"A: expected a matrix other than zero, of at least two rows, got {shape}")
    (first, second, query), _, copies = best
    repeats = torch.tensor([copies, copies, n - 2 * copies], device=A.device)
    tokens = torch.stack([first, second, query])
    return radius * tokens.repeat_interleave(repeats, dim=0).to(A.dtype)


def _copied(A: Tensor, V: Tensor, n: int | None, radius: float) -> tuple[Tensor, float, int] | None:
    """(x_1/R, x_2/R) with the best τ and number of copies, log of what they reach, and copies."""
    n = None if n is None else check_count("n", n)
    A, V = (M.double() for M in check_head(A, V))
    radius = check_number("radius", radius, minimum=0)
    if n == 1 or radius == 0 or not bool(A.any()):
        return None
    gap, u = score_gap(A)
    first = A @ u / (A @ u).norm()
    log_square = 2 * math.log(radius)
    tau = torch.linspace(1 / _SHARES, 1, _SHARES, dtype=A.dtype, device=A.device)[:, None]
    lead = tau * exp(math.log(gap) + log_square)
    log_rho = _log_copy_ratios(n, lead, torch.linspace(-4, 4, 33, dtype=A.dtype, device=A.device))
    weight = -torch.nn.functional.softplus(-lead - log_rho) - log_rho / 2  # log W/√ρ
    slope = exp(log_square + math.log((A @ u).norm().item())) * tau * torch.sigmoid(-lead - log_rho)
    along = torch.linalg.vector_norm(V @ first + slope[..., None] * (V @ (first - u)), dim=-1)
    across = torch.linalg.matrix_norm(V - torch.outer(V @ first, first), 2)
    share, ratio = torch.unravel_index(
        (weight + torch.maximum(along, across).log()).argmax(), slope.shape
    )
    moved = V + slope[share, ratio] * torch.outer(V @ (first - u), first)
    reached = weight[share, ratio].item() + log_(torch.linalg.matrix_norm(moved, 2).item())
    copies = 0 if n is None else round(min(n, _MOST) * torch.sigmoid(log_rho[share, ratio]).item())
    return torch.stack([u + tau[share] * (first - u), u]), reached, copies


def _log_copy_ratios(n: int | None, lead: Tensor, offsets: Tensor) -> Tensor:
    """log m/(n−m) for numbers m of copies near those for which W is one half; all, for measures."""
    log_rho = offsets - lead
    if n is None:
        return log_rho
    n = float(min(n, _MOST))
    copies = (n * torch.sigmoid(log_rho)).round().clamp(1, max(n // 2, 1))
    return copies.log() - (n - copies).log()


def _balanced(
    A: Tensor, V: Tensor, n: int | None, radius: float
) -> tuple[Tensor, float, int] | None:
    """(x_1/R, x_2/R, x_3/R) with the best v, α, t of a grid, log of what they reach, and copies.

    None where there is no balanced query.
    """
    n = None if n is None else check_count("n", n)
    A, V = check_head(A, V)
    A = A.double()
    radius = check_number("radius", radius, minimum=0)
    _, sizes, right = torch.linalg.svd(A)
    if len(A) < 2 or (n is not None and n < 3) or sizes[0] == 0 or radius == 0:
        return None
    crowd = torch.cat([right[sizes > 1e-9 * sizes[0]], score_gap(A)[1][None]])
    image = crowd @ A.mT
    sizes = image.norm(dim=-1)
    lead = image / sizes[:, None]
    across, reached = _across(V.double(), lead)
    own = (crowd * lead).sum(-1)  # v·Av / ‖Av‖
    angle = torch.linspace(0.01, math.pi / 2, 150, dtype=sizes.dtype, device=A.device)
    angle = angle[:, None, None]
    t = torch.linspace(0.01, 1, 100, dtype=sizes.dtype, device=A.device)[:, None]
    log_size = sizes.log() + 2 * math.log(radius)
    leads = t * (angle.cos() - t * own) * log_size.exp()  # of the pair's scores over a query's own
    log_q, copies = _log_crowds(n, leads)
    log_p = -torch.logaddexp(torch.full_like(leads, math.log(2)), log_q - leads)
    value = log_p + (math.log(2) + log_q) / 2 + (t * angle.sin()).log() + log_size + reached.log()
    first, second, k = torch.unravel_index(value.argmax(), value.shape)
    along = angle[first].cos() * lead[k]
    aside = angle[first].sin() * across[k]
    tokens = torch.stack([(along + aside)[0], (along - aside)[0], t[second] * crowd[k]])
    return tokens, value[first, second, k].item(), int(copies[first, second, k])


def _log_crowds(n: int | None, leads: Tensor) -> tuple[Tensor, Tensor]:
    """log q and m: crowds of q tokens a copy, near the best q = 2e^lead, m copies of n tokens."""
    log_q = math.log(2) + leads
    if n is None:
        return log_q, torch.zeros_like(leads)
    n = float(min(n, _MOST))
    copies = (n / (2 + log_q.exp())).round().clamp(1, max((n - 1) // 2, 1))
    return (n - 2 * copies).log() - copies.log(), copies


def _across(V: Tensor, lead: Tensor) -> tuple[Tensor, Tensor]:
    """For each unit vector of ``lead`` the unit e ⊥ to it that V stretches most, and ‖Ve‖."""
    restricted = V - (V @ lead[:, :, None]) * lead[:, None, :]
    e = torch.linalg.svd(restricted).Vh[:, 0]
    e = e - (e * lead).sum(-1, keepdim=True) * lead  # where V vanishes on the complement
    e = e / e.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    return e, (e @ V.mT).norm(dim=-1)


def _log_weight(n: int, gap: float) -> float:
    """log of 1/(1+(n−1)e^{−gap}), the weight of a token that leads n − 1 others by ``gap``."""
    return 0.0 if gap == math.inf else -log_one_plus(log_(n - 1) - gap)


def _log_square_sum(terms: int, log_q: float) -> float:
    r"""log of :math:`\sum_{i=1}^{m} (1+iq)^{-2}`, for q ≤ 1 and any number m of terms."""
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
