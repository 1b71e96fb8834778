r"""Lower bounds: from one leader, and from constructions with copies for any number of tokens.

The leader, or distinguished token, is seen by all others with weight w. Sizes are keyword-only: n,
``radius`` :math:`= R`; ``gamma`` :math:`= \max(-\gamma_{\min}, \gamma_{\max}/8)` over the real
eigenvalues of A (:func:`~lipcore.bounds.eigen_gamma`); ``norm_v`` and ``norm_vu`` are ‖V‖₂ and
‖Vu‖, u the unit eigenvector.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_count, check_head, check_number
from lipcore.bounds import _logarithms as logs
from lipcore.bounds._matrices import memoise_on_values, scaled
from lipcore.bounds.gap import score_gap

#: So many terms of a slowly varying sum are added; the rest is an Euler–Maclaurin integral.
_TERMS = 256
#: How many places between the crowd and its leader are tried.
_SHARES = 64
#: The bounds of longer inputs are those of this length, whose tokens are then repeated.
_MOST = 10**300

#: Tokens over R, the crowd first; the logarithm of what they reach; and their shares of n.
_Construction = tuple[Tensor, float, Tensor]


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
    gap = 2 * logs.exp(logs.scaled(radius, gamma, "gamma"))
    bound = logs.times(logs.norm(norm_v), logs.log(n - 1) / 2, _log_weight(n, gap))
    return logs.exp_unless_log(bound, log)


def refined_lower(
    *, n: int, radius: float, gamma: float, norm_vu: float, log: bool = False
) -> float:
    r"""Return the bound for a leader that moves along an eigenvector (:prf:ref:`thm-lower-eigen`).

    .. math:: \mathrm{Lip}(f|B_R^n) \ge \sqrt{n-1}\; w\, \big(1 + 2\gamma R^2 (1-w)\big) \|Vu\|

    where u is the eigenvector and w is that of :func:`adversarial_lower`.
    """
    n = check_count("n", n)
    log_gap = math.log(2) + logs.scaled(radius, gamma, "gamma")
    log_vu = logs.norm(norm_vu, "norm_vu")
    log_w = _log_weight(n, logs.exp(log_gap))
    log_rest = logs.times(log_w, logs.log(n - 1) - logs.exp(log_gap))  # log(1 − w)
    keys = logs.one_plus(log_gap, log_rest)
    return logs.exp_unless_log(logs.times(log_vu, logs.log(n - 1) / 2, log_w, keys), log)


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
    gap = 2 * logs.exp(logs.scaled(radius, gamma, "gamma"))
    return logs.exp_unless_log(logs.times(logs.norm(norm_v), _log_square_sum(n - 1, -gap) / 2), log)


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
    log_square = 2 * logs.log(check_number("radius", radius, minimum=0))
    A, V = check_head(A, V)
    A, log_a = scaled(A.double())
    V, log_v = scaled(V.double())
    log_square += log_a
    gap, u = score_gap(A)
    gap = logs.exp(logs.log(gap) + log_square)
    image = A @ u
    size = image.norm().item()
    first = image / size if size else u
    log_w = _log_weight(n, gap)
    # (1 − w) R²‖Au‖
    rest = logs.exp(logs.times(log_w, logs.log(n - 1) - gap, log_square, logs.log(size)))
    moved = V + rest * torch.outer(V @ (first - u), first)
    log_moved = log_v + logs.log(torch.linalg.matrix_norm(moved, 2).item())
    return logs.exp_unless_log(logs.times(logs.log(n - 1) / 2, log_w, log_moved), log)


def _log_weight(n: int, gap: float) -> float:
    """Return log 1/(1+(n−1)e^{−gap}), the weight of a token that leads n − 1 others by ``gap``."""
    return 0.0 if gap == math.inf else -logs.one_plus(logs.log(n - 1) - gap)


def _log_square_sum(terms: int, log_q: float) -> float:
    r"""Return log of :math:`\sum_{i=1}^{m} (1+iq)^{-2}`, for q ≤ 1 and any number m of terms."""
    q = logs.exp(log_q)
    first = min(terms, _TERMS)
    head = sum((1 + i * q) ** -2 for i in range(1, first + 1))
    if terms == first:
        return logs.log(head)
    # the integral of (1+xq)^{−2} from half a step below the tail, and Euler–Maclaurin's correction
    start = 1 + (first + 0.5) * q
    log_end = logs.add(0.0, logs.log(terms + 0.5 if terms < 2**52 else terms) + log_q)
    integral = logs.log(terms - first) - math.log(start) - log_end
    slope = q / 12 * (start**-3 - math.exp(-3 * log_end))
    return logs.total([math.log(head), integral]) + math.log1p(-slope / (head + logs.exp(integral)))


# --- constructions with copies -------------------------------------------------------------------


def best_lower(
    *, A: Tensor, V: Tensor, radius: float, n: int | None = None, log: bool = False
) -> float:
    r"""Return the largest constant that the constructions reach.

    It is the counterpart of :func:`best_upper`: the maximum of ‖V‖ and of
    :func:`construction_lower` of every family. Up to a universal factor it is the constant itself,
    for measures (:prf:ref:`thm-every-rate`) and for every number of tokens
    (:prf:ref:`thm-every-finite`), whatever A, V, R and d are.

    A larger ball holds the inputs of a smaller one, and kn tokens may be k copies of each of n, so
    that the constant itself falls neither with R nor from n to kn. What is found for places and
    copies of a grid may fall by a few per cent.

    Parameters
    ----------
    A, V : Tensor, shapes (d, d) and (p, d)
    radius : float
    n : int, optional
        Number of tokens; without it, any number, which bounds the mean-field constant from below.
    log : bool
        Whether to return the logarithm of the bound.

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
    reached = [construction_lower(family, **size) for family in _FAMILIES]
    return logs.exp_unless_log(max(logs.log(norm_v), *reached), log)


def construction_lower(
    family: str, *, A: Tensor, V: Tensor, radius: float, n: int | None = None, log: bool = False
) -> float:
    r"""Return the constant that the best input of one family reaches.

    Equal tokens count as one token with a mass, so that n may be any number, or may be left out for
    measures. Places and numbers of copies are the best of a grid. The families are

    - ``"own"``, a query at the origin, torn between the two halves of the others, at Rw and −Rw,
      with one more at Rw if n is even (:prf:ref:`thm-lower-own`):

      .. math:: \Big\| V\Big(\frac1n I + \theta R^2\,ww^\top A\Big) \Big\|_2, \qquad
          \theta = 1 - \frac1n - \frac{[n\text{ even}]}{n^2},

      for a unit vector w for which :math:`\|Vw\|\,\|A^\top w\|` is at least half of
      :math:`\|V\|_2\|A\|_2`;
    - ``"copies"``, a crowd that looks at copies of one token (:prf:ref:`thm-lower-copies`). The
      crowd is at :math:`x_2 = Ru`, u of the score gap, the m copies :math:`x_1` a share τ of the
      way to :math:`R\,Au/\|Au\|`, and with :math:`\rho = m/(n-m)`,

      .. math:: \frac{W}{\sqrt\rho}\,
          \big\| V\big(I + (1-W)(x_1-x_2)(Ax_2)^\top\big) \big\|_2, \qquad
          W = \frac{\rho}{\rho + e^{-\tau g^*}};

    - ``"torn"``, a crowd torn between two tokens with m copies each (:prf:ref:`thm-torn`), of order
      a√n for V = I as long as log n ≤ a/10; the v are A's right singular vectors and u:

      .. math:: \sqrt{2q}\; p\, t\beta R^2 \|Av\|\, \|Ve\|, \qquad
          p = \frac{1}{2+q\,e^{-tR^2(\alpha\|Av\| - t\,v\cdot Av)}},
          \quad q = \frac{n-2m}{m},\quad \alpha^2+\beta^2=1,\; e\perp Av;

    - ``"pulled"``, a crowd that looks at one token while others pull its mean aside
      (:prf:ref:`thm-lower-pulled`). With :math:`b = Au/\|Au\|` and :math:`e \perp b`, the crowd is
      at :math:`x_0 = Ru`, rare tokens are at :math:`x_1 = Rb`, and others at
      :math:`z = R(b\cos\varphi + e\sin\varphi)`, in the proportions of 1, :math:`W_1e^{-g^*}` and
      :math:`W_2e^{-(Ax_0)\cdot(z-x_0)}`. With :math:`D = 1 + W_1 + W_2`,

      .. math:: e^{g^*/2}\, \frac{\sqrt{W_1}}{D}\,
          \Big\| V\Big(b + \|Ax_0\|\, \frac{(x_1 - x_0) + W_2(x_1 - z)}{D}\Big) \Big\|,

      of order :math:`a\,e^{g^*/2}` also where V does not see :math:`x_1 - x_0`. For n tokens both
      are only as far from the crowd as the weights need (:prf:ref:`thm-every-finite`).

    Parameters
    ----------
    family : {"own", "copies", "torn", "pulled"}
    A, V, radius, n, log
        As in :func:`best_lower`.

    Returns
    -------
    float
        Zero where there is no such input: n = 1, A = 0, and but for two families n = 2 or d = 1.

    Examples
    --------
    >>> import torch
    >>> eye = torch.eye(1, dtype=torch.float64)
    >>> round(construction_lower("own", n=2, radius=10.0, A=eye, V=eye), 9)  # 1/2 + 100/4
    25.5
    """
    best = _construct(family, A, V, n, radius)
    return logs.exp_unless_log(-math.inf if best is None else best[1], log)


def construction_inputs(
    family: str, A: Tensor, n: int, radius: float, *, V: Tensor | None = None
) -> Tensor:
    """Return the input of :func:`construction_lower` (:prf:ref:`thm-every-finite`), the crowd last.

    Parameters
    ----------
    family : {"own", "copies", "torn", "pulled"}
    A : Tensor, shape (d, d)
    n : int
        At least 2, or 3 for ``"torn"`` and ``"pulled"``.
    radius : float
    V : Tensor, shape (p, d), optional
        The identity if left out.

    Returns
    -------
    Tensor, shape (n, d)

    Raises
    ------
    ValueError, TypeError
        If there is no such input, and in the cases of :func:`construction_lower`.

    Examples
    --------
    >>> import torch
    >>> construction_inputs("own", torch.eye(1), n=6, radius=2.0)[:, 0].abs()
    tensor([2., 2., 2., 2., 2., 0.])
    """
    n = check_count("n", n, minimum=3 if family in _ASIDE else 2)
    V = torch.eye(len(A), dtype=A.dtype, device=A.device) if V is None else V
    best = _construct(family, A, V, n, radius)
    if best is None:
        expected = "a matrix other than zero (of at least two rows to pull or tear aside)"
        got = f"shape {tuple(A.shape)} and radius {radius:g}"
        raise ValueError(f"A, radius: expected {expected} and a radius above 0, got {got}")
    tokens, _, shares = best
    order = [*range(1, len(tokens)), 0]
    counts = (n * shares[order]).round().long()
    return radius * tokens[order].repeat_interleave(counts, dim=0).to(A.dtype)


def _construct(
    family: str, A: Tensor, V: Tensor, n: int | None, radius: float
) -> _Construction | None:
    """Return the best input of a family, or None where there is nothing to move with."""
    if family not in _FAMILIES:
        raise ValueError(f"family: expected one of {', '.join(_FAMILIES)}, got {family!r}")
    A, V = check_head(A, V)
    n = None if n is None else float(min(check_count("n", n), _MOST))
    radius = check_number("radius", radius, minimum=0)
    is_narrow = family in _ASIDE and (len(A) < 2 or n == 2)
    if n == 1 or radius == 0 or is_narrow or not bool(A.any()):
        return None
    # in units of their own, A and V leave squares and products within the range of float64
    A, log_a = scaled(A.double())
    V, log_v = scaled(V.double())
    tokens, reached, shares = _FAMILIES[family](A, V, n, 2 * logs.log(radius) + log_a)
    return tokens, log_v + reached, shares


def _within_range(A: Tensor, log_square: float) -> float:
    """Return log R², or less for a beyond 10¹⁰⁰: large balls hold the inputs of small ones."""
    return min(log_square, 230 - math.log(torch.linalg.matrix_norm(A, 2).item()))


def _own(A: Tensor, V: Tensor, n: float | None, log_square: float) -> _Construction:
    """Return the query, and tokens in the direction w on both sides of it."""
    norm_a, norm_v = (torch.linalg.matrix_norm(M, 2) for M in (A, V))
    unit_a = A / norm_a
    unit_v = V / norm_v if norm_v > 0 else V
    w = _pulled_most(unit_v, unit_a.mT)
    own = 0.0 if n is None else 1 / n
    more = n is not None and n % 2 == 0  # on one side is one more
    shares = w.new_tensor([own, (1 - own + more * own) / 2, (1 - own - more * own) / 2])
    theta = 1 - own - more * own**2
    pull = theta * logs.exp(_within_range(A, log_square) + math.log(norm_a.item()))
    row = torch.outer(unit_v @ w, pull * (w @ unit_a)) + own * unit_v
    reached = logs.log(norm_v.item()) + logs.log(torch.linalg.matrix_norm(row, 2).item())
    return torch.stack([0 * w, w, -w]), reached, shares


@memoise_on_values
def _pulled_most(V: Tensor, B: Tensor) -> Tensor:
    """Return a unit w with a large ‖Vw‖ ‖Bw‖, for norms one: at least half."""
    # the best w maximises s‖Vw‖² + (1−s)‖Bw‖² for some s, at which both terms are equal: no point
    # of the convex hull of the pairs (‖Vw‖², ‖Bw‖²) has a larger product
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


def _copies(A: Tensor, V: Tensor, n: float | None, log_square: float) -> _Construction:
    """Return (x_2, x_1) for the best τ and m of a grid."""
    gap, u = score_gap(A)
    first = A @ u / (A @ u).norm()
    log_square = _within_range(A, log_square)
    tau = torch.linspace(1 / _SHARES, 1, _SHARES, dtype=A.dtype, device=A.device)[:, None]
    lead = tau * logs.exp(math.log(gap) + log_square)
    log_rho = torch.linspace(-4, 4, 33, dtype=A.dtype, device=A.device) - lead  # W is near ½
    if n is not None:  # whole numbers of copies
        copies = (n * torch.sigmoid(log_rho)).round().clamp(1, max(n // 2, 1))
        log_rho = copies.log() - (n - copies).log()
    weight = -torch.nn.functional.softplus(-lead - log_rho) - log_rho / 2  # log W/√ρ
    size = logs.exp(log_square + math.log((A @ u).norm().item()))  # ‖Ax_2‖R
    slope = size * tau * torch.sigmoid(-lead - log_rho)
    along = torch.linalg.vector_norm(V @ first + slope[..., None] * (V @ (first - u)), dim=-1)
    across = torch.linalg.matrix_norm(V - torch.outer(V @ first, first), 2)
    value = (weight + torch.maximum(along, across).log()).nan_to_num(nan=-math.inf)
    share, ratio = torch.unravel_index(value.argmax(), value.shape)
    moved = V + slope[share, ratio] * torch.outer(V @ (first - u), first)
    reached = weight[share, ratio].item() + logs.log(torch.linalg.matrix_norm(moved, 2).item())
    rare = torch.sigmoid(log_rho[share, ratio])
    tokens = torch.stack([u, u + tau[share] * (first - u)])
    return tokens, reached, torch.stack([1 - rare, rare])


def _torn(A: Tensor, V: Tensor, n: float | None, log_square: float) -> _Construction:
    """Return the crowd and two tokens for the best v, α, t and m of a grid."""
    crowd = _crowd_places(A)
    image = crowd @ A.mT
    sizes = image.norm(dim=-1)
    lead = image / sizes[:, None]
    across, reached = _across(V, lead)
    own = (crowd * lead).sum(-1)  # v·Av / ‖Av‖
    grid = {"dtype": A.dtype, "device": A.device}
    angle = torch.linspace(0.01, math.pi / 2, 150, **grid)[:, None, None]
    t = torch.linspace(0.01, 1, 100, **grid)[:, None]
    log_size = sizes.log() + (log_square if n else _within_range(A, log_square))
    leads = t * (angle.cos() - t * own) * log_size.exp()  # of the pair's scores over a query's own
    log_q = math.log(2) + leads  # of q tokens a copy, the best number
    shares = torch.zeros_like(leads)
    if n is not None:  # whole numbers of copies
        copies = (n / (2 + log_q.exp())).round().clamp(1, max((n - 1) // 2, 1))
        log_q = (n - 2 * copies).log() - copies.log()
        shares = copies / n
    log_p = -torch.logaddexp(torch.full_like(leads, math.log(2)), log_q - leads)
    value = log_p + (math.log(2) + log_q) / 2 + (t * angle.sin()).log() + log_size + reached.log()
    value = value.nan_to_num(nan=-math.inf)  # leads beyond the range of float64
    first, second, k = torch.unravel_index(value.argmax(), value.shape)
    along = angle[first].cos() * lead[k]
    aside = angle[first].sin() * across[k]
    tokens = torch.stack([t[second] * crowd[k], (along + aside)[0], (along - aside)[0]])
    share = shares[first, second, k]
    return tokens, value[first, second, k].item(), torch.stack([1 - 2 * share, share, share])


@memoise_on_values
def _crowd_places(A: Tensor) -> Tensor:
    """Return A's right singular vectors and the score gap's u, as rows."""
    _, sizes, right = torch.linalg.svd(A)
    return torch.cat([right[sizes > 1e-9 * sizes[0]], score_gap(A)[1][None]])


def _pulled(A: Tensor, V: Tensor, n: float | None, log_square: float) -> _Construction:
    """Return the crowd, x_1 and z for the best φ, W_1 and W_2 of a grid."""
    gap, u = score_gap(A)
    lead = A @ u / (A @ u).norm()
    aside = _across(V, lead[None])[0][0]
    log_square = _within_range(A, log_square)
    size = logs.exp(math.log((A @ u).norm().item()) + log_square)  # |Ax_0|R
    grid = {"dtype": A.dtype, "device": A.device}
    log_w = torch.linspace(-5, 5, 21, **grid)
    angle = torch.linspace(-math.pi, math.pi, 49, **grid)[1:-1, None, None]
    zero = 0 * angle
    # scores of the crowd itself, of x_1 and of z, over the crowd's
    ahead = zero + logs.exp(math.log(gap) + log_square)
    leads = torch.stack([zero, ahead, size * (angle.cos() - u @ lead)])
    votes = torch.stack(torch.broadcast_tensors(0 * log_w, log_w[:, None], log_w))[:, None]
    log_mass = votes - leads
    way = torch.ones_like(log_mass)  # which part of the way from the crowd each token goes
    if n is not None:
        copies = (n * torch.softmax(log_mass, dim=0)).round().clamp(min=1)
        copies[0] = n - copies[1] - copies[2]
        log_mass = copies.clamp(min=0).log()  # −∞ where no crowd is left
        wanted = votes - (log_mass - log_mass[0])
        way = torch.where(leads > 0, (wanted / leads).clamp(0, 1), way)
    weight = torch.softmax(log_mass + way * leads, dim=0)
    near = (weight[0] + weight[2]) * way[1]
    far = weight[2] * way[2]
    # the vector that V is applied to, along b, e and u
    along_b = 1 + size * (near - far * angle.cos())
    parts = torch.stack([along_b, -size * far * angle.sin(), size * (far - near)], dim=-1)
    seen = V @ torch.stack([lead, aside, u], dim=-1)  # (p, 3)
    moved = torch.linalg.vector_norm(parts @ seen.mT, dim=-1)
    value = (log_mass[0] - log_mass[1]) / 2 + weight[1].log() + moved.log()
    value = value.nan_to_num(nan=-math.inf)
    i, j, k = torch.unravel_index(value.argmax(), value.shape)
    pull = angle[i, 0, 0].cos() * lead + angle[i, 0, 0].sin() * aside
    shares = torch.softmax(log_mass[:, i, j, k], dim=0)
    places = torch.stack([u, lead, pull])
    places = u + way[:, i, j, k, None] * (places - u)
    return places, value[i, j, k].item(), shares


@memoise_on_values
def _across(V: Tensor, lead: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each unit ``lead`` the unit e ⊥ to it that V stretches most, and ‖Ve‖."""
    restricted = V - (V @ lead[:, :, None]) * lead[:, None, :]
    e = torch.linalg.svd(restricted).Vh[:, 0]
    e = e - (e * lead).sum(-1, keepdim=True) * lead  # where V vanishes on the complement
    e = e / e.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    return e, (e @ V.mT).norm(dim=-1)


#: The families of constructions, and those in which a token stands aside, which takes room.
_FAMILIES = {"own": _own, "copies": _copies, "torn": _torn, "pulled": _pulled}
_ASIDE = ("torn", "pulled")
