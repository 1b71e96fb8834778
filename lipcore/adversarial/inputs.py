"""Inputs with a large local constant, by the constructions of the theory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcore._checks import check_count, check_number, check_square
from lipcore.attention import Attention
from lipcore.bounds import eigen_gamma, score_gap


def eigenvector_inputs(A: Tensor, n: int, radius: float) -> Tensor:
    r"""Return the worst case that Castin, Ablin & Peyré 2024 publish (:prf:ref:`thm-lower-eigen`).

    Let u be the unit eigenvector of the real eigenvalue γ for which max(−γ, γ/8) is largest. Then
    x_1 and x_2 are −Ru and Ru if γ is negative, Ru and Ru/2 if it is positive.

    Parameters
    ----------
    A : Tensor, shape (d, d)
    n : int
        Number of tokens; with n = 2, the pair alone is returned.
    radius : float
        The radius R of the ball.

    Returns
    -------
    Tensor, shape (n, d)
        x_1 first, then n − 1 copies of x_2. All are zero where A has no real eigenvalue.

    Examples
    --------
    >>> import torch
    >>> eigenvector_inputs(-torch.eye(1), n=3, radius=2.0).abs().flatten()
    tensor([2., 2., 2.])
    """
    A, n, radius = _checked(A, n, radius)
    u = eigen_gamma(A)[1].to(A)
    return radius * _one_against_others(*_eigenvector_pairs(u @ A @ u, u), n)


def score_gap_inputs(A: Tensor, n: int, radius: float) -> Tensor:
    r"""Return a worst case that exists for every A (:prf:ref:`thm-lower-gap`).

    With a maximiser u of the score gap (:func:`lipcore.bounds.score_gap`), x_1 is
    :math:`R\,Au/\|Au\|` and x_2 is Ru. Parameters, result and errors are those of
    :func:`eigenvector_inputs`.

    Examples
    --------
    >>> import torch
    >>> quarter_turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    >>> x1, x2 = score_gap_inputs(quarter_turn, n=2, radius=3.0)  # A has no real eigenvalue
    >>> round((quarter_turn @ x2 @ (x1 - x2)).item(), 6)
    9.0
    """
    A, n, radius = _checked(A, n, radius)
    return radius * _one_against_others(*_score_gap_pair(A), n)


def worst_case_inputs(A: Tensor, n: int, radius: float, *, causal: bool = False) -> Tensor:
    r"""Return the worst input among the constructions of the theory, for V = I.

    All other tokens, x_2, attend to some tokens x_1. The pairs that are tried are, for each real
    eigenvalue, (−Ru, Ru) if it is negative and (Ru, Ru/2) if it is positive
    (:prf:ref:`thm-lower-eigen`), and (R Au/‖Au‖, Ru) for the score gap (:prf:ref:`thm-lower-gap`).
    In each pair x_1 is moved towards x_2, and repeated, as is best for n. The choice is by the norm
    of the Jacobian, or with a mask by the norm of its first columns (:prf:ref:`thm-lower-masked`).

    Parameters
    ----------
    A : Tensor, shape (d, d)
        Any real matrix; it need not have real eigenvalues.
    n : int
    radius : float
    causal : bool
        Whether tokens see the past only; x_1 is then not repeated.

    Returns
    -------
    Tensor, shape (n, d)
        Copies of x_1 first.

    Examples
    --------
    >>> import torch
    >>> X = worst_case_inputs(-3 * torch.eye(1), n=500, radius=1.0)
    >>> X.flatten().unique(return_counts=True)
    (tensor([-1.,  1.]), tensor([  1, 499]))
    """
    A, n, radius = _checked(A, n, radius)
    scores = A.double() * radius * radius  # a tensor overflows to infinity, a float to an error
    if not bool(torch.isfinite(scores).all()):
        raise ValueError(f"radius: expected scores within float64's range, got {radius:g}")
    first, others = _candidates(scores)
    if n == 1:  # one token is moved by V alone, wherever it is
        return (radius * first[-1:]).to(A.dtype)
    if causal:
        copies = torch.ones(1, dtype=torch.long, device=A.device)
        values = first_token_norm(scores, first, others, n)[:, None]
    else:
        copies = torch.logspace(0, math.log10(n - 1), 24).long().unique().to(A.device)
        values = two_token_norm(scores, first, others, copies, n)
    pair, count = divmod(int(values.argmax()), values.shape[1])
    is_first = torch.arange(n, device=A.device)[:, None] < copies[count]
    return (radius * torch.where(is_first, first[pair], others[pair])).to(A.dtype)


@dataclass(frozen=True, eq=False)
class SharedKey:
    """An input whose first token is attended to by all the others, for one head.

    Attributes
    ----------
    X : Tensor, shape (n, d)
        The shared key first, then n − 1 equal tokens.
    lead : float
        How much the others' score for the shared key exceeds their score for one another.
    lower : float
        A lower bound of the local constant at X, from moves of the first token alone.
    """

    X: Tensor
    lead: float
    lower: float


def shared_key_inputs(head: Attention, n: int, radius: float) -> SharedKey:
    r"""Return an input with one token that all others attend to (:prf:ref:`prop-crowd-bias`).

    The head may have biases and a causal mask. The others are at :math:`x_2 = Ru`, u the maximiser
    of the score gap of A, and the shared key is at :math:`x_1 = Ry/\|y\|` with
    :math:`y = Ax_2 + c`, the gradient of their scores. With :math:`z = x_1 - x_2`,
    :math:`w_i = 1/(1 + m_i e^{-y\cdot z})`, and :math:`m_i = n - 1`, or i − 1 with a causal mask,

    .. math:: \|D_Xf\|_2 \ge \max_{\|\varepsilon\|=1} \Big( \sum_{i\ge2} w_i^2
        \big\| V(I + (1-w_i)\,zy^\top)\varepsilon \big\|^2 \Big)^{1/2}.

    Parameters
    ----------
    head : Attention
        With one head. With rotary positions the tokens are those for equal positions, and
        ``lower`` is no bound.
    n : int
    radius : float

    Examples
    --------
    >>> import torch
    >>> head = Attention.from_matrices(-torch.eye(2), torch.eye(2))
    >>> found = shared_key_inputs(head, n=50, radius=4.0)
    >>> round(found.lead, 3), round(found.lower, 3)  # 2γR²; all the weight is on one key: √49
    (32.0, 7.0)
    """
    if head.heads != 1 or head.mask is not None or head.log_weights is not None or head.window:
        expected = "one head without mask, log_weights and window (causal=True is allowed)"
        raise ValueError(f"head: expected {expected}, got {head!r}")
    n = check_count("n", n, minimum=2)
    radius = check_number("radius", radius, minimum=0, strict=True)
    A, basis = reduced_scores(head)
    x2 = radius * (basis @ score_gap(A)[1].to(A))
    y = basis @ (A @ (basis.mT @ x2)) + head.score_offsets()[0]
    if not bool(y.norm() > 0):
        raise ValueError("head: expected scores that depend on the key, got equal ones")
    x1 = radius * y / y.norm()
    z = x1 - x2
    lead = y @ z
    if not bool(torch.isfinite(lead)):
        raise ValueError(f"radius: expected scores within range of {lead.dtype}, got {radius:g}")
    rivals = torch.arange(1, n) if head.causal else torch.full((n - 1,), n - 1)  # m_i
    w = torch.sigmoid(lead - rivals.to(y).log())
    value = head.value[0]
    if head.output is not None:  # fewer rows than W V, and the same norms
        value = torch.linalg.qr(head.output, mode="r").R @ value
    # Σ_i w_i² (I + (1−w_i)zyᵀ)ᵀVᵀV(I + (1−w_i)zyᵀ), in a basis of the span of Vᵀ and y
    basis, _ = torch.linalg.qr(torch.cat([value, y[None]]).mT)
    VB = value @ basis
    yB = y @ basis
    Vz = value @ z
    s0, s1, s2 = ((w.square() * (1 - w) ** power).sum() for power in range(3))
    cross = torch.outer(Vz @ VB, yB)
    form = s0 * VB.mT @ VB + s1 * (cross + cross.mT) + s2 * (Vz @ Vz) * torch.outer(yB, yB)
    lower = torch.linalg.eigvalsh(form)[-1].clamp(min=0).sqrt()
    return SharedKey(_one_against_others(x1, x2, n), lead.item(), lower.item())


def reduced_scores(head: Attention) -> tuple[Tensor, Tensor]:
    r"""Return A of one head in an orthonormal basis B of the span of the rows of Q and K, and B.

    Scores depend on nothing else: :math:`\lambda K^\top Q = BAB^\top`, and B has at most 2k
    columns. An input x for A is the input Bx of the head. A has shape (r, r), and B (d, r). Several
    heads raise a ValueError.

    Examples
    --------
    >>> import torch
    >>> query, key = torch.eye(5)[None, :1], torch.eye(5)[None, 1:2]
    >>> A, B = reduced_scores(Attention(query, key, key))
    >>> A.shape, B.shape
    (torch.Size([2, 2]), torch.Size([5, 2]))
    """
    if head.heads != 1:
        raise ValueError(f"head: expected one head, got {head.heads}")
    query, key = head.query[0], head.key[0]
    basis, _ = torch.linalg.qr(torch.cat([query, key]).mT)
    return head.scale * (key @ basis).mT @ (query @ basis), basis


def two_token_norm(A: Tensor, first: Tensor, others: Tensor, copies: Tensor, n: int) -> Tensor:
    """Return ‖D_X f‖₂, (pairs, numbers), if ``copies`` of n tokens are x_1, the rest x_2, V = I."""
    # on vectors that are equal for equal tokens, D_X f is a map of two tokens with masses; on the
    # rest it is own query alone. Equally good pairs are ordered by the rounding of these very steps
    z = first - others
    vectors = [z, first @ A.mT, others @ A.mT, z @ A]
    if len(A) > 4:  # four directions span them; one is orthogonal to all but z, as off the span
        stacked = torch.stack(vectors, dim=-1)
        vectors = (torch.linalg.qr(stacked).Q.mT @ stacked).unbind(-1)
    z, image_1, image_2, pulled = vectors
    counts = torch.stack([copies, n - copies], dim=-1).to(A.dtype)  # (numbers, 2)
    images = torch.stack([image_1, image_2], dim=1)  # A x_i: (pairs, query, r)
    lead = (images * z[:, None]).sum(-1)  # of x_1's score over x_2's, (pairs, query)
    log_odds = (counts[:, 0] / counts[:, 1]).log()
    w = torch.sigmoid(lead[:, None, :] + log_odds[:, None])  # of x_1: (pairs, numbers, query)
    P = torch.stack([w, 1 - w], dim=-1)  # (pairs, numbers, query, key)
    offsets = torch.stack([1 - w, -w], dim=-1)  # x_j − m_i = offset · z
    mixing = P[..., None, None] * torch.eye(z.shape[-1], dtype=A.dtype, device=A.device)
    keys = torch.einsum("pcij,pr,pis->pcijrs", P * offsets, z, images)
    blocks = mixing + keys
    own = torch.einsum("pci,pr,ps->pcirs", w * (1 - w), z, pulled)
    for i in range(2):
        blocks[:, :, i, i] += own[:, :, i]
    in_mass = (counts[:, :, None] / counts[:, None, :]).sqrt()[..., None, None]
    matrix = (blocks * in_mass).transpose(3, 4).flatten(4).flatten(2, 3)
    apart = torch.linalg.matrix_norm(own, 2) * (counts >= 2)  # copies of one token moved apart
    return torch.maximum(torch.linalg.matrix_norm(matrix, 2), apart.amax(-1))


def first_token_norm(A: Tensor, first: Tensor, others: Tensor, n: int) -> Tensor:
    """Return the norm, (pairs,), of the causal Jacobian's columns of token 1, for V = I."""
    # row i is w_i(I + (1−w_i)zyᵀ); off the span of z and y the sum of squares is a multiple of I
    z = first - others
    y = others @ A.mT
    zz = z.square().sum(-1)
    yy = y.square().sum(-1)
    zy = (z * y).sum(-1)
    earlier = torch.arange(1, n, dtype=A.dtype, device=A.device)  # tokens x_2 that a query sees
    w = torch.sigmoid(zy[:, None] - earlier.log())  # (pairs, n − 1)
    s0, s1, s2 = ((w.square() * (1 - w) ** power).sum(-1) for power in range(3))
    # eigenvalues of s1 (zyᵀ + yzᵀ) + s2 |z|² yyᵀ on the span: from its trace and its determinant
    trace = 2 * s1 * zy + s2 * zz * yy
    determinant = -(s1**2) * (zz * yy - zy**2)
    root = (trace.square() / 4 - determinant).clamp(min=0).sqrt()
    top = trace if len(A) == 1 else trace / 2 + root
    return (1 + s0 + top).sqrt()  # the 1 is for token 1, which sees only itself


def _candidates(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x_1, x_2) in the unit ball, (candidates, d), x_1 at 50 places on the line from x_2."""
    values, vectors = torch.linalg.eig(A)
    real = values.imag == 0
    directions = vectors[:, real].real.mT
    sizes = directions.norm(dim=-1, keepdim=True)
    first, others = _eigenvector_pairs(values[real].real, directions / sizes)
    gap_first, gap_others = _score_gap_pair(A)
    first = torch.cat([first, gap_first[None]])
    others = torch.cat([others, gap_others[None]])
    # the farthest key is not always the worst: it may take all the weight, and the softmax stops
    shares = torch.linspace(0.02, 1, 50, dtype=A.dtype, device=A.device)[:, None, None]
    moved = others + shares * (first - others)
    return moved.flatten(0, 1), others.expand_as(moved).flatten(0, 1)


def _eigenvector_pairs(values: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x_1, x_2) in the unit ball, for real eigenvalues (…) and unit eigenvectors (…, d)."""
    negative = (values < 0)[..., None]
    return torch.where(negative, -vectors, vectors), torch.where(negative, vectors, vectors / 2)


def _score_gap_pair(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x_1, x_2) of the score gap in the unit ball, two vectors (d,)."""
    u = score_gap(A)[1].to(A)
    image = A @ u
    return image / image.norm() if image.norm() > 0 else u, u


def _one_against_others(first: Tensor, others: Tensor, n: int) -> Tensor:
    """Return one token and n − 1 copies of another: (d,), (d,) → (n, d)."""
    return torch.cat([first[None], others.expand(n - 1, -1)])


def _checked(A: Tensor, n: int, radius: float) -> tuple[Tensor, int, float]:
    """Return the matrix, the number of tokens and the radius after checking them."""
    A = check_square("A", A).detach()
    return A, check_count("n", n), check_number("radius", radius, minimum=0)
