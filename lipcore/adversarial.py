r"""Inputs on which attention is as rough as it gets: constructions, and gradient ascent on σ_max.

Everything here returns *lower* bounds of the Lipschitz constant on a set: a value at one input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcore._checks import check_count, check_number, check_real_tensor, check_square
from lipcore._progress import bar
from lipcore.attention import Attention
from lipcore.bounds.gap import eigen_gamma, score_gap
from lipcore.spectral import spectral_norm

#: Relative distance by which a token may stand off the set that it claims to lie in.
OUTSIDE = {torch.float32: 1e-5, torch.float64: 1e-9}
#: Products with J and Jᵀ a step: singular vectors are carried over, so few are enough.
_PRODUCTS = 3
#: Steps after which the top singular vector is looked for anew, lest the ascent follow another one.
_RENEWAL = 25


def worst_case_inputs(A: Tensor, n: int, radius: float, *, causal: bool = False) -> Tensor:
    r"""The roughest input among the constructions of the theory, scores :math:`(Ax_i)\cdot x_j`, V = I (theory §3).

    Some tokens ``x_1`` are seen by all the others, ``x_2``. The pairs tried are, for each real eigenvalue,
    (−Ru, Ru) where it is negative and (Ru, Ru/2) where it is positive, and for the score gap
    (R Au/‖Au‖, Ru); each with the copies of ``x_1`` and the shorter ``x_1`` that suit n. The pair is picked by the
    spectral norm of the Jacobian, which is known in closed form for two distinct tokens.

    Parameters
    ----------
    A : Tensor, shape (d, d)
        Any real matrix; it need not have real eigenvalues.
    n : int
        Number of tokens.
    radius : float
        Radius of the ball.
    causal : bool
        Whether tokens see the past only: then one distinguished token comes first.

    Returns
    -------
    Tensor, shape (n, d)
        Distinguished tokens first.

    Raises
    ------
    ValueError, TypeError
        If A is not a finite square matrix, n < 1, or the radius is negative or not finite.

    Examples
    --------
    >>> import torch
    >>> worst_case_inputs(-3 * torch.eye(1), n=500, radius=1.0).flatten().unique(return_counts=True)
    (tensor([-1.,  1.]), tensor([  1, 499]))
    """
    A = check_square("A", A).detach()
    n, radius = check_count("n", n), check_number("radius", radius, minimum=0)
    scores = (
        A.double() * radius * radius
    )  # as a tensor: past float64's range it is infinite, not an error
    if not bool(torch.isfinite(scores).all()):
        raise ValueError(f"radius: expected scores within float64's range, got {radius:g}")
    first, others = _shortened(*_candidate_pairs(scores))  # (candidates, d), in units of the radius
    if n == 1:
        return (radius * first[-1:]).to(A.dtype)  # one token is moved by V alone, wherever it is
    copies = (
        torch.ones(1, dtype=torch.long)
        if causal
        else torch.logspace(0, math.log10(n - 1), 24).long().unique()
    )
    values = (_first_block_norm(scores, first, others, n)[:, None] if causal
              else _two_token_norm(scores, first, others, copies.to(A.device), n))  # fmt: skip
    pair, count = divmod(int(values.argmax()), values.shape[1])
    repeated = torch.where(
        torch.arange(n, device=A.device)[:, None] < copies[count].item(), first[pair], others[pair]
    )
    return (radius * repeated).to(A.dtype)


@dataclass(frozen=True, eq=False)
class Crowd:
    """A leader and its crowd, for one head.

    Attributes
    ----------
    X : Tensor, shape (n, d)
        The leader first, then n − 1 equal tokens.
    lead : float
        By how much the crowd's score for the leader exceeds its score for itself.
    lower : float
        Lower bound of the local constant at X: what the leader alone can move.
    """

    X: Tensor
    lead: float
    lower: float


def leader_and_crowd(head: Attention, n: int, radius: float) -> Crowd:
    r"""One token that all the others look at, for a head with or without biases and causal mask (this book).

    The crowd stands at :math:`x_2 = Ru`, u the maximiser of the score gap of A, the leader at :math:`x_1 = Ry/\|y\|`
    with :math:`y = Ax_2 + c`, the direction in which the crowd's query pulls. With :math:`z = x_1 - x_2`,
    :math:`w_i = 1/(1 + m_i e^{-y\cdot z})`, and :math:`m_i = n - 1`, or i − 1 with a causal mask,

    .. math:: \|D_Xf\|_2 \ge \max_{\|\varepsilon\|=1} \Big( \sum_{i\ge2} w_i^2
        \big\| V(I + (1-w_i)\,zy^\top)\varepsilon \big\|^2 \Big)^{1/2}.

    Parameters
    ----------
    head : Attention
        With one head. With rotary positions the tokens are those for equal positions, and ``lower`` is no bound.
    n : int
    radius : float

    Returns
    -------
    Crowd

    Raises
    ------
    ValueError, TypeError
        If there are several heads, other masks than the causal one, n < 2, or the radius is not positive.

    Examples
    --------
    >>> import torch
    >>> found = leader_and_crowd(Attention.from_matrices(-torch.eye(2), torch.eye(2)), n=50, radius=4.0)
    >>> round(found.lead, 3), round(found.lower, 3)  # the lead is 2γR²; all the weight is on the leader: √49
    (32.0, 7.0)
    """
    if head.heads != 1 or head.mask is not None or head.log_weights is not None:
        raise ValueError(
            "head: expected one head, without other masks or weights than the causal mask"
        )
    n, radius = (
        check_count("n", n, minimum=2),
        check_number("radius", radius, minimum=0, strict=True),
    )
    basis = _score_basis(head.query[0], head.key[0])
    A, c = basis.mT @ head.score_matrices()[0] @ basis, head.score_offsets()[0]
    x2 = radius * (basis @ score_gap(A)[1].to(A))
    y = basis @ (A @ (basis.mT @ x2)) + c
    if not bool(y.norm() > 0):
        raise ValueError(
            "head: expected scores that depend on the key, all of the crowd's are equal"
        )
    z = radius * y / y.norm() - x2
    lead = y @ z
    if not bool(torch.isfinite(lead)):
        raise ValueError(f"radius: expected scores within range of {lead.dtype}, got {radius:g}")
    others = (
        torch.arange(1, n, device=y.device)
        if head.causal
        else torch.full((n - 1,), n - 1, device=y.device)
    )
    lower = _leader_response(_reduced_value(head), y, z, torch.sigmoid(lead - others.to(y).log()))
    return Crowd(torch.cat([(x2 + z)[None], x2.expand(n - 1, -1)]), lead.item(), lower.item())


def eigenvector_pair(query: Tensor, key: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    r"""(x_1, x_2) of the published construction for one head (Castin, Ablin & Peyré 2024; theory §3).

    An eigenvector u of :math:`A = K^\top Q/\sqrt k` for the real eigenvalue that counts: (−Ru, Ru) if it is negative,
    (Ru, Ru/2) if positive.

    Parameters
    ----------
    query, key : Tensor, shape (k, d)
    radius : float

    Returns
    -------
    x_1, x_2 : Tensor, shape (d,)

    Examples
    --------
    >>> import torch
    >>> eigenvector_pair(torch.eye(1), -torch.eye(1), 2.0)[0].abs()
    tensor([2.])
    """
    for name, matrix in (("query", query), ("key", key)):
        check_real_tensor(name, matrix, ndim=2)
    radius = check_number("radius", radius, minimum=0)
    basis = _score_basis(query, key)
    A = (key @ basis).mT @ (query @ basis) / math.sqrt(len(query))
    u = eigen_gamma(A)[1].to(A)
    x = radius * (basis @ u)
    return (-x, x) if u @ A @ u < 0 else (x, x / 2)


def _score_basis(query: Tensor, key: Tensor) -> Tensor:
    """Orthonormal basis (d, ≤ 2k) of the span of the rows of Q and K, where everything about the scores happens."""
    return torch.linalg.qr(torch.cat([query, key]).mT)[0]


def _reduced_value(head: Attention) -> Tensor:
    """V, or a matrix with the norms of W V and few rows."""
    return (
        head.value[0]
        if head.output is None
        else torch.linalg.qr(head.output, mode="r")[1] @ head.value[0]
    )


def _leader_response(V: Tensor, y: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """Largest √Σ_i w_i² ‖V(I + (1−w_i) z yᵀ) ε‖² over unit ε: an eigenvalue in the span of V's rows and y."""
    B = torch.linalg.qr(torch.cat([V, y[None]]).mT)[0]
    s0, s1, s2 = ((w.square() * (1 - w) ** power).sum() for power in range(3))
    VB, yB, Vz = V @ B, y @ B, V @ z
    cross = torch.outer(Vz @ VB, yB)
    form = s0 * VB.mT @ VB + s1 * (cross + cross.mT) + s2 * (Vz @ Vz) * torch.outer(yB, yB)
    return torch.linalg.eigvalsh(form)[-1].clamp(min=0).sqrt()


def _candidate_pairs(A: Tensor) -> tuple[Tensor, Tensor]:
    """(x_1, x_2) in the unit ball, both (candidates, d): eigenvectors, then the score gap."""
    values, vectors = torch.linalg.eig(A)
    real = values.imag == 0
    values, vectors = values[real].real, vectors[:, real].real.mT
    vectors = vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(A.dtype).tiny)
    negative = (values < 0)[:, None]
    _, u = score_gap(A)
    image = A @ u
    lead = image / image.norm() if image.norm() > 0 else u
    return (torch.cat([torch.where(negative, -vectors, vectors), lead[None]]),
            torch.cat([torch.where(negative, vectors, vectors / 2), u[None]]))  # fmt: skip


def _shortened(first: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Each pair also with x_1 moved towards x_2: a smaller lead suits fewer tokens."""
    shares = torch.linspace(0.02, 1, 50, dtype=first.dtype, device=first.device)[:, None, None]
    moved = others + shares * (first - others)
    return moved.flatten(0, 1), others.expand_as(moved).flatten(0, 1)


def _two_token_norm(A: Tensor, first: Tensor, others: Tensor, copies: Tensor, n: int) -> Tensor:
    r"""‖D_X f‖₂ where ``copies`` tokens are x_1 and the rest x_2, V = I: shape (pairs, copies).

    On vectors that are equal for equal tokens it is a map of two tokens with masses; on the rest, own query alone.
    Outside the span of x_1 − x_2, Aᵀ(x_1 − x_2), Ax_1 and Ax_2 the map is mixing: one more direction stands for it.
    """
    z, lead, seen, pulled = first - others, first @ A.mT, others @ A.mT, (first - others) @ A
    masses = torch.stack([copies.to(A.dtype), n - copies.to(A.dtype)], dim=-1) / n  # (copies, 2)
    gaps = torch.stack(
        [(lead * z).sum(-1), (seen * z).sum(-1)], dim=-1
    )  # lead of x_1's score for queries x_1, x_2
    w = torch.sigmoid(
        gaps[:, None, :] + (masses[:, 0] / masses[:, 1]).log()[:, None]
    )  # (pairs, copies, 2 queries)
    z, lead, seen, pulled = _common_coordinates([z, lead, seen, pulled])
    P = torch.stack([w, 1 - w], dim=-1)  # (pairs, copies, query, key)
    offsets = torch.stack([1 - w, -w], dim=-1)  # x_j − m_i = offset · z
    images = torch.stack([lead, seen], dim=1)  # (pairs, query, r)
    identity = torch.eye(z.shape[-1], dtype=A.dtype, device=A.device)
    keys = torch.einsum("pcij,pr,pis->pcijrs", P * offsets, z, images)
    own = torch.einsum("pci,pr,ps->pcirs", w * (1 - w), z, pulled)
    blocks = (
        P[..., None, None] * identity
        + keys
        + torch.diag_embed(own.movedim(2, -1)).movedim((-2, -1), (2, 3))
    )
    blocks = blocks * (masses[:, :, None] / masses[:, None, :]).sqrt()[..., None, None]
    norms = torch.linalg.matrix_norm(blocks.transpose(3, 4).flatten(4).flatten(2, 3), 2)
    repeated = torch.linalg.matrix_norm(own, 2) * (masses * n >= 2)  # copies moved apart
    return torch.maximum(norms, repeated.amax(-1))


def _common_coordinates(vectors: list[Tensor]) -> list[Tensor]:
    """The same vectors (pairs, d) in an orthonormal basis of their span and one direction more."""
    stacked = torch.stack(vectors, dim=-1)  # (pairs, d, m)
    d = stacked.shape[-2]
    if d <= len(vectors) + 1:
        return vectors
    extra = torch.randn(d, 1, generator=torch.Generator().manual_seed(0), dtype=stacked.dtype).to(
        stacked.device
    )
    basis, _ = torch.linalg.qr(torch.cat([stacked, extra.expand(len(stacked), d, 1)], dim=-1))
    return list((basis.mT @ stacked).unbind(-1))


def _first_block_norm(A: Tensor, first: Tensor, others: Tensor, n: int) -> Tensor:
    r"""Norm of the causal Jacobian's columns of token 1, x_1 once and then x_2, V = I: shape (pairs,).

    Row i is :math:`w_i(I + (1-w_i)\,zy^\top)`, z = x_1 − x_2, y = Ax_2; their squares add up to a matrix that is
    a multiple of I outside the span of z and y.
    """
    z, y = first - others, others @ A.mT
    past = torch.arange(1, n, dtype=A.dtype, device=A.device)
    w = torch.sigmoid((y * z).sum(-1)[:, None] - past.log())  # (pairs, n − 1)
    s0, s1, s2 = (w.square() * (1 - w) ** power for power in range(3))
    s0, s1, s2 = s0.sum(-1), s1.sum(-1), s2.sum(-1)
    zz, yy, zy = z.square().sum(-1), y.square().sum(-1), (z * y).sum(-1)
    # eigenvalues of s1 (zyᵀ + yzᵀ) + s2 |z|² yyᵀ on the span: from its trace and its determinant
    trace, determinant = 2 * s1 * zy + s2 * zz * yy, -(s1**2) * (zz * yy - zy**2)
    top = (
        trace if len(A) == 1 else trace / 2 + (trace.square() / 4 - determinant).clamp(min=0).sqrt()
    )
    return (1 + s0 + top).sqrt()  # token 1 sees itself alone: 1


def star_inputs(
    q: int,
    *,
    dimension: int | None = None,
    shifted: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Points at which attention with squared distances mixes roughly (the book, "A zoo of attentions").

    2q leaders at the origin, and satellites at the distance :math:`\sqrt{\log q}` from them: q² at right angles to each
    other, or, in a given dimension k, :math:`\lceil q^2e^{-2\log^2q/k}\rceil` in random directions. With
    :math:`P_{ij}\propto e^{-\|y_i-y_j\|^2}`, :math:`\|P\|_2^2\ge q/8` for the first, at least
    :math:`\tfrac q8\,e^{-2\log^2q/k}` in the mean for the second. The shifted star has 4q leaders, and all satellites
    are moved by :math:`\sqrt{\log 2}` in a direction of their own: the map moves farther than it mixes,
    :math:`\|D\|_2^2\ge\tfrac{\log 2}{64}\,q\log q`.

    Parameters
    ----------
    q : int
        Size of the star: the satellites' distance is √log q, their number about q².
    dimension : int, optional
        Of the space of the satellites; q² if left out, enough for right angles.
    shifted : bool
        Whether to return the shifted star.
    generator : torch.Generator, optional
        Source of the directions; a fixed seed if left out.

    Returns
    -------
    Tensor, shape (n, q²) or (n, dimension), one column more if shifted
        float64, leaders first.

    Raises
    ------
    ValueError, TypeError
        If a count is not a positive integer.

    Examples
    --------
    >>> Y = star_inputs(3)
    >>> Y.shape, torch.linalg.matrix_norm(torch.softmax(-torch.cdist(Y, Y) ** 2, dim=-1), 2) ** 2 >= 3 / 8
    (torch.Size([15, 9]), tensor(True))
    """
    check_count("q", q)
    if dimension is None:
        directions = torch.eye(q**2, dtype=torch.float64)
    else:
        check_count("dimension", dimension)
        generator = generator or torch.Generator().manual_seed(0)
        count = math.ceil(q**2 * math.exp(-2 * math.log(q) ** 2 / dimension))
        directions = torch.randn(count, dimension, generator=generator, dtype=torch.float64)
        directions /= directions.norm(dim=1, keepdim=True)
    satellites = math.sqrt(math.log(q)) * directions
    if shifted:
        satellites = torch.nn.functional.pad(satellites, (0, 1), value=math.sqrt(math.log(2)))
    return torch.cat(
        [satellites.new_zeros(4 * q if shifted else 2 * q, satellites.shape[1]), satellites]
    )


@dataclass(frozen=True, eq=False)
class Ascent:
    """What gradient ascent reached, one entry a member of the batch.

    Attributes
    ----------
    X : Tensor, shape (…, n, d)
        The best input found, in its set.
    value : Tensor, shape (…)
        σ_max of the Jacobian there: a lower bound of the Lipschitz constant on the set.
    history : Tensor, shape (steps + 1, …)
        Best value after each step; it never falls.
    """

    X: Tensor
    value: Tensor
    history: Tensor


def ascend(
    attention: Attention,
    X: Tensor,
    radius: float | None = None,
    *,
    ellipsoid: tuple[Tensor, Tensor | None] | None = None,
    steps: int = 200,
    restarts: int = 1,
    learning_rate: float = 0.1,
    progress: bool = True,
    generator: torch.Generator | None = None,
) -> Ascent:
    r"""Projected gradient ascent on :math:`\sigma_{\max}(D_Xf)` in a ball, or on the ellipsoid of layer normalisation.

    The gradient is :math:`\nabla_X\,(u\cdot D_Xf[v])` with the top singular vectors held fixed (Danskin; theory §10).
    Each member of the batch has its own step, which grows when σ grows and shrinks when it does not; a step is
    kept only if σ grows.

    Parameters
    ----------
    attention : Attention
    X : Tensor, shape (…, n, d)
        Where to start; every leading dimension is a batch.
    radius : float, optional
        Radius of the ball that the tokens keep to. Give this or ``ellipsoid``.
    ellipsoid : (gain, bias), tensors of shape (d,), optional
        Tokens keep to :math:`\sqrt d\,\mathrm{diag}(g)S^{d-1} + b`; bias may be None (RMSNorm).
    steps : int
    restarts : int
        Starts for each member: X itself, and X with random moves; the best is returned.
    learning_rate : float
        First step: how far the token that moves most goes, in units of the radius.
    progress : bool
        Whether to show a progress bar.
    generator : torch.Generator, optional
        Source of the random moves; a fixed seed if left out.

    Returns
    -------
    Ascent

    Raises
    ------
    ValueError, TypeError
        If X does not fit, leaves the ball or ellipsoid, or not exactly one of these is given.

    Examples
    --------
    >>> import torch
    >>> f = Attention.from_matrices(-torch.eye(1, dtype=torch.float64), torch.eye(1, dtype=torch.float64))
    >>> X = torch.tensor([[0.3], [-0.2], [0.1]], dtype=torch.float64)
    >>> found = ascend(f, X, 1.0, steps=30, progress=False)
    >>> bool(found.value >= found.history[0]), bool((found.X.abs() <= 1).all())
    (True, True)
    """
    attention.check_input(X)
    domain = _Domain.of(X, radius, ellipsoid)
    steps, restarts = check_count("steps", steps, minimum=0), check_count("restarts", restarts)
    check_number("learning_rate", learning_rate, minimum=0, strict=True)
    start = domain.inward(X.detach())
    flat = start.reshape(1, -1, *X.shape[-2:])
    starts = _perturbed(flat, domain, restarts, generator).flatten(0, 1)  # (restarts·batch, n, d)
    climber = _Climber(attention, domain, starts, learning_rate)
    history = [climber.value]
    for step in bar(range(steps), show=progress, desc="ascent", leave=False):
        climber.step(renew=step % _RENEWAL == _RENEWAL - 1)
        history.append(climber.value)
    return _best_restart(climber, torch.stack(history), restarts, X.shape[:-2])


def _perturbed(
    flat: Tensor, domain: _Domain, restarts: int, generator: torch.Generator | None
) -> Tensor:
    """(1, batch, n, d) → (restarts, batch, n, d): the starts themselves, then copies moved by more and more."""
    if restarts == 1:
        return flat
    generator = generator or torch.Generator().manual_seed(0)
    noise = torch.randn(
        restarts - 1,
        *flat.shape[1:],
        generator=generator,
        dtype=flat.dtype,
        device=generator.device,
    )
    size = torch.linspace(1 / (restarts - 1), 1, restarts - 1, dtype=flat.dtype, device=flat.device)
    return torch.cat(
        [flat, domain.project(flat + size[:, None, None, None] * noise.to(flat.device))]
    )


def _best_restart(climber: _Climber, history: Tensor, restarts: int, batch: torch.Size) -> Ascent:
    X = climber.domain.outward(climber.y)
    tol = max(1e-10, 16 * torch.finfo(X.dtype).eps)
    value = spectral_norm(climber.attention.jacobian(X), tol=tol).value
    value = torch.maximum(value, climber.value).reshape(restarts, -1)
    best = value.argmax(0)
    member = torch.arange(value.shape[1], device=value.device)
    n, d = X.shape[-2:]
    # the history of the best over all restarts so far, which ends at the value
    history = history.reshape(len(history), restarts, -1).amax(1)
    history = torch.minimum(history, value[best, member])
    history[-1] = value[best, member]
    return Ascent(X.reshape(restarts, -1, n, d)[best, member].reshape(*batch, n, d),
                  value[best, member].reshape(batch), history.reshape(-1, *batch))  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Domain:
    """Tokens x = scale ⊙ y + offset, with y in the unit ball or on the unit sphere."""

    scale: Tensor  # (d,)
    offset: Tensor  # (d,)
    sphere: bool

    @classmethod
    def of(
        cls, X: Tensor, radius: float | None, ellipsoid: tuple[Tensor, Tensor | None] | None
    ) -> _Domain:
        if (radius is None) == (ellipsoid is None):
            raise ValueError("radius, ellipsoid: expected exactly one of the two")
        d = X.shape[-1]
        if radius is not None:
            radius = check_number("radius", radius, minimum=0, strict=True)
            domain = cls(X.new_full((d,), radius), X.new_zeros(d), sphere=False)
        else:
            gain, bias = ellipsoid
            bias = torch.zeros_like(gain) if bias is None else bias
            for name, tensor in (("gain", gain), ("bias", bias)):
                if tuple(check_real_tensor(f"ellipsoid {name}", tensor).shape) != (d,):
                    raise ValueError(
                        f"ellipsoid {name}: expected shape ({d},), got {tuple(tensor.shape)}"
                    )
            if bool((gain == 0).any()):
                raise ValueError("ellipsoid gain: expected entries other than zero, got a zero")
            domain = cls(math.sqrt(d) * gain.to(X), bias.to(X), sphere=True)
        domain.check(X)
        return domain

    def check(self, X: Tensor) -> None:
        """Refuse tokens outside the set that they claim."""
        norms = ((X - self.offset) / self.scale).norm(dim=-1)
        if self.sphere and bool(((norms - 1).abs() > 1e-3).any()):
            off = norms.flatten()[(norms - 1).abs().argmax()].item()
            raise ValueError(
                f"X: expected tokens on the ellipsoid, got one at {off:.6g} of its size"
            )
        if bool((norms > 1 + OUTSIDE[X.dtype]).any()) and not self.sphere:
            radius = self.scale[0].item()
            raise ValueError(
                f"X: expected tokens in the ball of radius {radius:g}, "
                f"got one of norm {norms.max().item() * radius:.9g}"
            )

    def inward(self, X: Tensor) -> Tensor:
        return self.project((X - self.offset) / self.scale)

    def outward(self, y: Tensor) -> Tensor:
        return self.scale * y + self.offset

    def project(self, y: Tensor) -> Tensor:
        norms = y.norm(dim=-1, keepdim=True)
        if not self.sphere:
            return y / norms.clamp(min=1.0)
        return y / torch.where(norms > 0, norms, 1)


class _Climber:
    """Ascent of a batch (B, n, d): the points y, their top singular vectors v, and the value reached."""

    def __init__(
        self, attention: Attention, domain: _Domain, y: Tensor, learning_rate: float
    ) -> None:
        self.attention, self.domain, self.y = attention, domain, y
        found = spectral_norm(attention.jacobian(domain.outward(y)), tol=1e-6)
        self.value, self.left, self.right = found.value, found.left, found.right
        self.rate = y.new_full((len(y), 1, 1), learning_rate)

    def step(self, *, renew: bool) -> None:
        """One step of each member, kept where σ grows."""
        gradient = self._gradient()
        largest = gradient.norm(dim=-1, keepdim=True).amax(-2, keepdim=True)
        move = self.rate * gradient / torch.where(largest > 0, largest, 1)
        y = self.domain.project(self.y + move)
        value, left, right = self._top(y, renew)
        better = value > self.value
        pick = better[:, None, None]
        self.y, self.left, self.right = (
            torch.where(pick, new, old)
            for new, old in ((y, self.y), (left, self.left), (right, self.right))
        )
        self.value = torch.where(better, value, self.value)
        self.rate = torch.where(pick, 1.3 * self.rate, 0.5 * self.rate).clamp(1e-9, 1.0)

    @torch.enable_grad()
    def _gradient(self) -> Tensor:
        """∇_y of u·D_Xf[v], u and v held fixed."""
        y = self.y.clone().requires_grad_()
        X = self.domain.outward(y)
        # u·D_Xf[v] as (D_Xf)ᵀ[u]·v: two reverse passes
        (pulled,) = torch.autograd.grad(self.attention(X), X, self.left, create_graph=True)
        (gradient,) = torch.autograd.grad((pulled * self.right).sum(), y)
        if self.domain.sphere:  # only the part along the sphere moves a token
            gradient = gradient - (gradient * self.y).sum(-1, keepdim=True) * self.y
        return gradient

    def _top(self, y: Tensor, renew: bool) -> tuple[Tensor, Tensor, Tensor]:
        """(σ, u, v) at y: power iterations from the old v, or anew."""
        operator = self.attention.jacobian(self.domain.outward(y))
        if renew:
            found = spectral_norm(operator, tol=1e-6)
            return found.value, found.left, found.right
        right = self.right
        for _ in range(_PRODUCTS):
            right = _normalised(operator.rmatvec(operator.matvec(right)))
        left = operator.matvec(right)
        return left.flatten(1).norm(dim=-1), _normalised(left), right


def _normalised(vectors: Tensor) -> Tensor:
    """(B, n, d) with each member scaled to norm one; zero stays zero."""
    norms = vectors.flatten(1).norm(dim=-1)[:, None, None]
    return vectors / torch.where(norms > 0, norms, 1)
