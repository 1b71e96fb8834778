r"""Lower bounds from constructions with copies, for any number of tokens.

The chapters on lower bounds describe four families. In ``own`` a query is torn between two
halves of the tokens. In the others, with the best numbers of copies, a crowd looks at one token
(``copies``), is torn between two tokens (``torn``), or looks at one token while others pull its
mean aside (``pulled``). Equal tokens count as one token with a mass, so that n may be any number,
or may be left out for measures. :func:`best_lower` is the best of all.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_count, check_head, check_number
from lipcore.bounds._logarithms import exp, finish, log_
from lipcore.bounds._matrices import remembered, scaled
from lipcore.bounds.gap import score_gap

#: How many places between the crowd and its leader are tried.
_SHARES = 64
#: The bounds of longer inputs are those of this length, whose tokens are then repeated.
_MOST = 10**300


#: Tokens over R, the crowd first; the logarithm of what they reach; and their numbers of copies.
_Found = tuple[Tensor, float, Tensor]


def best_lower(
    *, A: Tensor, V: Tensor, radius: float, n: int | None = None, log: bool = False
) -> float:
    r"""Return the largest constant that the constructions reach.

    It is the counterpart of :func:`best_upper`: the maximum of ‖V‖, :func:`own_lower`,
    :func:`copies_lower`, :func:`torn_lower` and :func:`pulled_lower`. Up to a universal factor it
    is the constant itself, for measures (:prf:ref:`thm-every-rate`) and for every number of tokens
    (:prf:ref:`thm-every-finite`), whatever A, V, R and d are.

    Parameters
    ----------
    A, V : Tensor, shapes (d, d) and (p, d)
    radius : float
    n : int, optional
        Number of tokens; without it, any number, which bounds the mean-field constant from below.
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
    found = [form(**size) for form in (own_lower, copies_lower, torn_lower, pulled_lower)]
    return finish(max(log_(norm_v), *found), log)


def own_lower(
    *, A: Tensor, V: Tensor, radius: float, n: int | None = None, log: bool = False
) -> float:
    r"""Return the bound from a query torn between halves of the tokens (:prf:ref:`thm-lower-own`).

    The query is at the origin. With n ≥ 3 tokens, m = ⌊(n−1)/2⌋ of the others are at Rw and m at
    −Rw; with two tokens, one is at Rw. Then

    .. math:: \mathrm{Lip}(f|B_R^n) \ge \Big\| V\Big(\frac1n I + \theta R^2\,ww^\top A\Big)
        \Big\|_2, \qquad \theta = \frac{2m}n, \quad\text{or } \theta = \tfrac14
        \text{ for } n = 2,

    for the unit vector w that is found, for which :math:`\|Vw\|\,\|A^\top w\|` is at least half of
    :math:`\|V\|_2\|A\|_2`. The bound is zero for one token, and where A is zero.

    Examples
    --------
    >>> import torch
    >>> eye = torch.eye(1, dtype=torch.float64)
    >>> round(own_lower(n=2, radius=10.0, A=eye, V=eye), 9)  # 1/2 + 100/4
    25.5
    """
    best = _torn_between(A, V, n, radius)
    return finish(-math.inf if best is None else best[1], log)


def own_inputs(A: Tensor, n: int, radius: float, *, V: Tensor | None = None) -> Tensor:
    """Return (n, d): tokens on both sides of the origin, then at it (:prf:ref:`thm-lower-own`).

    V is the identity if left out. A ValueError or TypeError is raised if n < 2, the radius is
    negative or not finite, or A and V do not fit.

    Examples
    --------
    >>> import torch
    >>> own_inputs(torch.eye(1), n=6, radius=2.0)[:, 0].abs()
    tensor([2., 2., 2., 2., 0., 0.])
    """
    n = check_count("n", n, minimum=2)
    return _repeated(_torn_between(A, _identity_or(V, A), n, radius), A, radius)


def copies_lower(
    *, A: Tensor, V: Tensor, radius: float, n: int | None = None, log: bool = False
) -> float:
    r"""Return the bound from a crowd that looks at copies of a token (:prf:ref:`thm-lower-copies`).

    With :math:`x_2 = Ru` at the score gap, x_1 a share τ of the way to :math:`R\,Au/\|Au\|`, and
    :math:`\rho = m/(n-m)`,

    .. math:: \mathrm{Lip}(f|B_R^n) \ge \frac{W}{\sqrt\rho}\,
        \big\| V\big(I + (1-W)(x_1-x_2)(Ax_2)^\top\big) \big\|_2, \qquad
        W = \frac{\rho}{\rho + e^{-\tau g^*}},

    for the τ and m of a grid that give most, or over every ρ > 0 where ``n`` is left out
    (measures). It is zero for one token, and where A is zero.

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
    """Return (n, d): copies of one token, then its crowd (:prf:ref:`thm-lower-copies`).

    V is the identity if left out. A ValueError or TypeError is raised if n < 2, A is zero, the
    radius is negative or not finite, or A and V do not fit.

    Examples
    --------
    >>> import torch
    >>> eye = torch.eye(1, dtype=torch.float64)
    >>> copies_inputs(-eye, n=400, radius=1.0).sign().sum().item()  # 24 against 376
    352.0
    """
    n = check_count("n", n, minimum=2)
    return _repeated(_copied(A, _identity_or(V, A), n, radius), A, radius)


def torn_lower(
    *, A: Tensor, V: Tensor, radius: float, n: int | None = None, log: bool = False
) -> float:
    r"""Return the bound from balanced queries, of order a√n for V = I (:prf:ref:`thm-torn`).

    .. math:: \mathrm{Lip}(f|B_R^n) \ge \sqrt{2q}\; p\, t\beta R^2 \|Av\|\, \|Ve\|, \qquad
        p = \frac{1}{2+q\,e^{-tR^2(\alpha\|Av\| - t\,v\cdot Av)}},
        \quad q = \frac{n-2m}{m},\quad \alpha^2+\beta^2=1,\; e\perp Av,

    The v are A's right singular vectors and the score gap's u. The α, t ∈ (0, 1] and the number m
    of copies are those that give most, with every q > 0 where ``n`` is left out (measures). For V =
    I the order a√n holds as long as log n ≤ a/10. The bound is zero where d = 1 or n ≤ 2, for which
    there is no such input. A is a Tensor of shape (d, d), and V of shape (p, d).

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
    """Return two distant tokens with copies, then queries torn between them (:prf:ref:`thm-torn`).

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
    return _repeated(_balanced(A, _identity_or(V, A), n, radius), A, radius)


def pulled_lower(
    *, A: Tensor, V: Tensor, radius: float, n: int | None = None, log: bool = False
) -> float:
    r"""Return the bound from a crowd whose mean others pull aside (:prf:ref:`thm-lower-pulled`).

    The crowd looks at one token. With the score gap's u, :math:`b = Au/\|Au\|` and
    :math:`e \perp b`, let the crowd be at :math:`x_0 = Ru`, rare tokens at :math:`x_1 = Rb` and
    others at :math:`z = R(b\cos\varphi + e\sin\varphi)`, in the proportions of 1,
    :math:`W_1e^{-g^*}` and :math:`W_2e^{-(Ax_0)\cdot(z-x_0)}`. Then, with
    :math:`D = 1 + W_1 + W_2`,

    .. math:: \mathrm{Lip} \ge e^{g^*/2}\, \frac{\sqrt{W_1}}{D}\,
        \Big\| V\Big(b + \|Ax_0\|\, \frac{(x_1 - x_0) + W_2(x_1 - z)}{D}\Big) \Big\|

    for the φ, W_1 and W_2 of a grid that give most. It is of order :math:`a\,e^{g^*/2}` also for a
    V that does not see :math:`x_1 - x_0`. For n tokens the numbers of copies are whole, and
    :math:`x_1` and z are only as far from the crowd as the weights need
    (:prf:ref:`thm-every-finite`). The bound is zero where d = 1, n ≤ 2 or A is zero.

    Examples
    --------
    >>> import torch
    >>> A = torch.diag(torch.tensor([-99.0, -50.0]))
    >>> head = {"A": A, "V": torch.tensor([[0.0, 1.0]]), "radius": 1.0}
    >>> pulled_lower(**head) > 2 * max(copies_lower(**head), torn_lower(**head))
    True
    """
    best = _pulled(A, V, n, radius)
    return finish(-math.inf if best is None else best[1], log)


def pulled_inputs(A: Tensor, n: int, radius: float, *, V: Tensor | None = None) -> Tensor:
    """Return (n, d): rare tokens, those that pull, the crowd (:prf:ref:`thm-lower-pulled`).

    V is the identity if left out. A ValueError or TypeError is raised if d < 2, n < 3, A is zero,
    the radius is negative or not finite, or A and V do not fit.

    Examples
    --------
    >>> import torch
    >>> pulled_inputs(-3 * torch.eye(2, dtype=torch.float64), n=500, radius=1.0).shape
    torch.Size([500, 2])
    """
    n = check_count("n", n, minimum=3)
    return _repeated(_pulled(A, _identity_or(V, A), n, radius), A, radius)


def _within_range(A: Tensor, log_square: float) -> float:
    """Return log R², or less for a beyond 10¹⁰⁰: large balls hold the inputs of small ones."""
    return min(log_square, 230 - math.log(torch.linalg.matrix_norm(A, 2).item()))


def _identity_or(V: Tensor | None, A: Tensor) -> Tensor:
    return torch.eye(len(A), dtype=A.dtype, device=A.device) if V is None else V


def _repeated(found: _Found | None, A: Tensor, radius: float) -> Tensor:
    """Return the tokens, each as often as its count says, with the crowd last instead of first."""
    if found is None:
        shape = tuple(A.shape)
        expected = (
            "a matrix other than zero (of at least two rows where queries are torn or pulled)"
        )
        got = f"shape {shape} and radius {radius:g}"
        raise ValueError(f"A, radius: expected {expected} and a radius above 0, got {got}")
    tokens, _, counts = found
    order = [*range(1, len(tokens)), 0]
    return radius * tokens[order].repeat_interleave(counts[order], dim=0).to(A.dtype)


def _counts(shares: Tensor, n: int | None) -> Tensor:
    """Return whole numbers of copies, or zeros for measures."""
    if n is None or n > 2**53:
        return torch.zeros_like(shares, dtype=torch.long)
    return (n * shares).round().long()


def _checked(
    A: Tensor, V: Tensor, n: int | None, radius: float
) -> tuple[Tensor, Tensor, int | None, float, float]:
    """Return A and V in units of their own, n, log R² in A's units, and the log of V's unit.

    Where there is nothing to move with (R = 0, A = 0, one token), log R² is −∞.
    """
    A, V = check_head(A, V)
    n = None if n is None else check_count("n", n)
    radius = check_number("radius", radius, minimum=0)
    is_still = n == 1 or not bool(A.any())
    A, log_a = scaled(A.double())
    V, log_v = scaled(V.double())
    return A, V, n, -math.inf if is_still else 2 * log_(radius) + log_a, log_v


def _torn_between(A: Tensor, V: Tensor, n: int | None, radius: float) -> _Found | None:
    """Return the direction w as tokens, what it reaches, and the numbers of copies."""
    A, V, n, log_square, log_v = _checked(A, V, n, radius)
    if log_square == -math.inf:
        return None
    norm_a, norm_v = (torch.linalg.matrix_norm(M, 2) for M in (A, V))
    unit_a = A / norm_a
    unit_v = V / norm_v if norm_v > 0 else V
    w = _pulled_most(unit_v, unit_a.mT)
    if n is not None and n <= 2**53:
        side = max((n - 1) // 2, 1)
        counts = torch.tensor([n - 2 * side, side, side] if n > 2 else [1, 1, 0])
        spread = 2 * side / n if n > 2 else 1 / 4
        own = 1 / n
    else:  # nearly all tokens are on the two sides
        counts = torch.zeros(3, dtype=torch.long)
        spread = 1.0 if n is None else 1 - 2**-52
        own = 0.0
    pull = spread * exp(_within_range(A, log_square) + math.log(norm_a.item()))
    row = torch.outer(unit_v @ w, pull * (w @ unit_a)) + own * unit_v
    reached = log_v + log_(norm_v.item()) + log_(torch.linalg.matrix_norm(row, 2).item())
    return torch.stack([0 * w, w, -w]), reached, counts


@remembered
def _pulled_most(V: Tensor, B: Tensor) -> Tensor:
    """Return a unit w with a large ‖Vw‖ ‖Bw‖, for norms one: at least half.

    The best w maximises s‖Vw‖² + (1−s)‖Bw‖² for some s, at which both terms are equal: no
    point of the convex hull of the pairs (‖Vw‖², ‖Bw‖²) has a larger product.
    """
    p, q = (torch.linalg.svd(M).Vh[0] for M in (V, B))
    tried = [p + q if p @ q >= 0 else p - q]
    low = 0.0
    high = 1.0
    for _ in range(30):
        s = (low + high) / 2
        tried.append(torch.linalg.eigh(s * V.mT @ V + (1 - s) * B.mT @ B).eigenvectors[:, -1])
        if s * (V @ tried[-1]).norm() ** 2 > (1 - s) * (B @ tried[-1]).norm() ** 2:
            high = s
        else:
            low = s
    w = torch.stack(tried)
    w = w / w.norm(dim=-1, keepdim=True)
    return w[((w @ V.mT).norm(dim=-1) * (w @ B.mT).norm(dim=-1)).argmax()]


def _copied(A: Tensor, V: Tensor, n: int | None, radius: float) -> tuple[Tensor, float, int] | None:
    """Return (x_1/R, x_2/R) for the best τ and m, log of what they reach, and numbers of copies."""
    A, V, n, log_square, log_v = _checked(A, V, n, radius)
    if log_square == -math.inf:
        return None
    gap, u = score_gap(A)
    first = A @ u / (A @ u).norm()
    log_square = _within_range(A, log_square)
    tau = torch.linspace(1 / _SHARES, 1, _SHARES, dtype=A.dtype, device=A.device)[:, None]
    lead = tau * exp(math.log(gap) + log_square)
    log_rho = _log_copy_ratios(n, lead, torch.linspace(-4, 4, 33, dtype=A.dtype, device=A.device))
    weight = -torch.nn.functional.softplus(-lead - log_rho) - log_rho / 2  # log W/√ρ
    slope = exp(log_square + math.log((A @ u).norm().item())) * tau * torch.sigmoid(-lead - log_rho)
    along = torch.linalg.vector_norm(V @ first + slope[..., None] * (V @ (first - u)), dim=-1)
    across = torch.linalg.matrix_norm(V - torch.outer(V @ first, first), 2)
    value = (weight + torch.maximum(along, across).log()).nan_to_num(nan=-math.inf)
    share, ratio = torch.unravel_index(value.argmax(), value.shape)
    moved = V + slope[share, ratio] * torch.outer(V @ (first - u), first)
    norm = torch.linalg.matrix_norm(moved, 2).item()
    reached = log_v + weight[share, ratio].item() + log_(norm)
    rare = torch.sigmoid(log_rho[share, ratio])
    shares = torch.stack([1 - rare, rare])
    return torch.stack([u, u + tau[share] * (first - u)]), reached, _counts(shares, n)


def _log_copy_ratios(n: int | None, lead: Tensor, offsets: Tensor) -> Tensor:
    """Return log m/(n−m) for m near W = ½: whole numbers of copies, or any for measures."""
    log_rho = offsets - lead
    if n is None:
        return log_rho
    n = float(min(n, _MOST))
    copies = (n * torch.sigmoid(log_rho)).round().clamp(1, max(n // 2, 1))
    return copies.log() - (n - copies).log()


def _balanced(A: Tensor, V: Tensor, n: int | None, radius: float) -> _Found | None:
    """Return the best v, α, t of a grid, or None where there is no balanced query."""
    A, V, n, log_square, log_v = _checked(A, V, n, radius)
    if len(A) < 2 or (n is not None and n < 3) or log_square == -math.inf:
        return None
    crowd = _crowd_places(A)
    image = crowd @ A.mT
    sizes = image.norm(dim=-1)
    lead = image / sizes[:, None]
    across, reached = _across(V, lead)
    own = (crowd * lead).sum(-1)  # v·Av / ‖Av‖
    angle = torch.linspace(0.01, math.pi / 2, 150, dtype=sizes.dtype, device=A.device)
    angle = angle[:, None, None]
    t = torch.linspace(0.01, 1, 100, dtype=sizes.dtype, device=A.device)[:, None]
    log_size = sizes.log() + (log_square if n else _within_range(A, log_square))
    leads = t * (angle.cos() - t * own) * log_size.exp()  # of the pair's scores over a query's own
    log_q, copies = _log_crowds(n, leads)
    log_p = -torch.logaddexp(torch.full_like(leads, math.log(2)), log_q - leads)
    value = log_p + (math.log(2) + log_q) / 2 + (t * angle.sin()).log() + log_size + reached.log()
    value = value.nan_to_num(nan=-math.inf)  # leads beyond the range of float64
    first, second, k = torch.unravel_index(value.argmax(), value.shape)
    along = angle[first].cos() * lead[k]
    aside = angle[first].sin() * across[k]
    tokens = torch.stack([t[second] * crowd[k], (along + aside)[0], (along - aside)[0]])
    each = copies[first, second, k]
    shares = each / float(min(n or 1, _MOST))
    counts = _counts(torch.stack([1 - 2 * shares, shares, shares]), n)
    return tokens, log_v + value[first, second, k].item(), counts


@remembered
def _crowd_places(A: Tensor) -> Tensor:
    """Return A's right singular vectors and the score gap's u, as rows."""
    _, sizes, right = torch.linalg.svd(A)
    return torch.cat([right[sizes > 1e-9 * sizes[0]], score_gap(A)[1][None]])


def _log_crowds(n: int | None, leads: Tensor) -> tuple[Tensor, Tensor]:
    """Return log q and m: crowds of q tokens a copy, near the best q = 2e^lead, and m copies."""
    log_q = math.log(2) + leads
    if n is None:
        return log_q, torch.zeros_like(leads)
    n = float(min(n, _MOST))
    copies = (n / (2 + log_q.exp())).round().clamp(1, max((n - 1) // 2, 1))
    return (n - 2 * copies).log() - copies.log(), copies


def _pulled(A: Tensor, V: Tensor, n: int | None, radius: float) -> _Found | None:
    """Return the best of a grid, or None where there is nothing to pull with."""
    A, V, n, log_square, log_v = _checked(A, V, n, radius)
    if len(A) < 2 or (n is not None and n < 3) or log_square == -math.inf:
        return None
    gap, u = score_gap(A)
    lead = A @ u / (A @ u).norm()
    aside = _across(V, lead[None])[0][0]
    log_square = _within_range(A, log_square)
    size = exp(math.log((A @ u).norm().item()) + log_square)  # |Ax_0|R
    grid = {"dtype": A.dtype, "device": A.device}
    log_w = torch.linspace(-5, 5, 21, **grid)
    angle = torch.linspace(-math.pi, math.pi, 49, **grid)[1:-1, None, None]
    leads = torch.stack(
        torch.broadcast_tensors(
            0 * angle,
            0 * angle + exp(math.log(gap) + log_square),
            size * (angle.cos() - u @ lead),
        )
    )  # of the crowd itself, of x_1 and of z, over the crowd
    votes = torch.stack(torch.broadcast_tensors(0 * log_w, log_w[:, None], log_w))[:, None]
    log_mass = votes - leads
    way = torch.ones_like(log_mass)  # which part of the way from the crowd each token goes
    if n is not None:
        log_mass = _rounded(log_mass, n)
        wanted = votes - (log_mass - log_mass[0])
        way = torch.where(leads > 0, (wanted / leads).clamp(0, 1), way)
    weight = torch.softmax(log_mass + way * leads, dim=0)
    near = (weight[0] + weight[2]) * way[1]
    far = weight[2] * way[2]
    parts = torch.stack(
        [1 + size * (near - far * angle.cos()), -size * far * angle.sin(), size * (far - near)],
        dim=-1,
    )  # of the vector that V is applied to, along b, e and u
    seen = V @ torch.stack([lead, aside, u], dim=-1)  # (p, 3)
    moved = torch.linalg.vector_norm(parts @ seen.mT, dim=-1)
    value = (log_mass[0] - log_mass[1]) / 2 + weight[1].log() + moved.log()
    value = value.nan_to_num(nan=-math.inf)
    i, j, k = torch.unravel_index(value.argmax(), value.shape)
    pull = angle[i, 0, 0].cos() * lead + angle[i, 0, 0].sin() * aside
    shares = torch.softmax(log_mass[:, i, j, k], dim=0)
    places = torch.stack([u, lead, pull])
    places = u + way[:, i, j, k, None] * (places - u)
    return places, log_v + value[i, j, k].item(), _counts(shares, n)


def _rounded(log_mass: Tensor, n: int) -> Tensor:
    """Return log of whole numbers of copies (3, …) near these shares of n; first the rest."""
    n = float(min(n, _MOST))
    copies = (n * torch.softmax(log_mass, dim=0)).round().clamp(min=1)
    copies[0] = n - copies[1] - copies[2]
    return copies.clamp(min=0).log()  # −∞ where no crowd is left


@remembered
def _across(V: Tensor, lead: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each unit ``lead`` the unit e ⊥ to it that V stretches most, and ‖Ve‖."""
    restricted = V - (V @ lead[:, :, None]) * lead[:, None, :]
    e = torch.linalg.svd(restricted).Vh[:, 0]
    e = e - (e * lead).sum(-1, keepdim=True) * lead  # where V vanishes on the complement
    e = e / e.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    return e, (e @ V.mT).norm(dim=-1)
