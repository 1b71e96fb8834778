"""Inputs of two distinct tokens, x_1 once and n − 1 copies of x_2, which attend to x_1."""

from __future__ import annotations

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
        x_1 first. All tokens are zero where A has no real eigenvalue.

    Raises
    ------
    ValueError, TypeError
        If A is not a finite square matrix, n < 1, or the radius is negative or not finite.

    Examples
    --------
    >>> import torch
    >>> eigenvector_inputs(-torch.eye(1), n=3, radius=2.0).abs().flatten()
    tensor([2., 2., 2.])
    """
    A, n, radius = _checked(A, n, radius)
    _, u = eigen_gamma(A)
    u = u.to(A)
    return radius * one_against_others(*eigenvector_pairs(u @ A @ u, u), n)


def score_gap_inputs(A: Tensor, n: int, radius: float) -> Tensor:
    r"""Return a worst case that exists for every A (:prf:ref:`thm-lower-gap`).

    With a maximiser u of the score gap (:func:`lipcore.bounds.score_gap`),
    :math:`x_1 = R\,Au/\|Au\|` and :math:`x_2 = Ru`. Parameters and errors are those of
    :func:`eigenvector_inputs`.

    Returns
    -------
    Tensor, shape (n, d)
        x_1 first.

    Examples
    --------
    >>> import torch
    >>> quarter_turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    >>> x1, x2 = score_gap_inputs(quarter_turn, n=2, radius=3.0)  # A has no real eigenvalue
    >>> round((quarter_turn @ x2 @ (x1 - x2)).item(), 6)
    9.0
    """
    A, n, radius = _checked(A, n, radius)
    return radius * one_against_others(*score_gap_pair(A), n)


def reduced_scores(head: Attention) -> tuple[Tensor, Tensor]:
    r"""Return A of one head in an orthonormal basis B of the span of the rows of Q and K, and B.

    Scores depend on nothing else: :math:`\lambda K^\top Q = BAB^\top`, and B has at most 2k
    columns. An input x for A is the input Bx of the head.

    Parameters
    ----------
    head : Attention
        With one head.

    Returns
    -------
    A : Tensor, shape (r, r)
    B : Tensor, shape (d, r)

    Raises
    ------
    ValueError
        If there are several heads.

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
    query = head.query[0]
    key = head.key[0]
    basis, _ = torch.linalg.qr(torch.cat([query, key]).mT)
    return head.scale * (key @ basis).mT @ (query @ basis), basis


def eigenvector_pairs(values: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x_1, x_2) in the unit ball, for real eigenvalues (…) and unit eigenvectors (…, d)."""
    negative = (values < 0)[..., None]
    first = torch.where(negative, -vectors, vectors)
    others = torch.where(negative, vectors, vectors / 2)
    return first, others


def score_gap_pair(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x_1, x_2) of the score gap in the unit ball, two vectors (d,)."""
    _, u = score_gap(A)
    u = u.to(A)
    image = A @ u
    return image / image.norm() if image.norm() > 0 else u, u


def one_against_others(first: Tensor, others: Tensor, n: int) -> Tensor:
    """Return one token and n − 1 copies of another: (d,), (d,) → (n, d)."""
    return torch.cat([first[None], others.expand(n - 1, -1)])


def _checked(A: Tensor, n: int, radius: float) -> tuple[Tensor, int, float]:
    A = check_square("A", A).detach()
    return A, check_count("n", n), check_number("radius", radius, minimum=0)
