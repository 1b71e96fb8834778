"""The worst input among the constructions of the theory, for scores (A x_i)·x_j."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_count, check_number, check_square
from lipcore.adversarial.pairs import eigenvector_pairs, score_gap_pair
from lipcore.adversarial.two_tokens import first_token_norm, two_token_norm


def worst_case_inputs(A: Tensor, n: int, radius: float, *, causal: bool = False) -> Tensor:
    r"""Return the worst input among the constructions of the theory, for V = I.

    All other tokens, x_2, attend to some tokens x_1. The pairs that are tried are, for each real
    eigenvalue, (−Ru, Ru) if it is negative and (Ru, Ru/2) if it is positive
    (:prf:ref:`thm-lower-eigen`), and (R Au/‖Au‖, Ru) for the score gap (:prf:ref:`thm-lower-gap`).
    In each pair x_1 is moved towards x_2, and repeated, as is best for n. The choice is by the norm
    of the Jacobian, which is known in closed form for two distinct tokens, or with a mask by the
    norm of its first columns (:prf:ref:`thm-lower-masked`).

    Parameters
    ----------
    A : Tensor, shape (d, d)
        Any real matrix; it need not have real eigenvalues.
    n : int
        Number of tokens.
    radius : float
        Radius of the ball.
    causal : bool
        Whether tokens see the past only; x_1 is then not repeated.

    Returns
    -------
    Tensor, shape (n, d)
        Copies of x_1 first.

    Raises
    ------
    ValueError, TypeError
        If A is not a finite square matrix, n < 1, or the radius is negative or not finite.

    Examples
    --------
    >>> import torch
    >>> X = worst_case_inputs(-3 * torch.eye(1), n=500, radius=1.0)
    >>> X.flatten().unique(return_counts=True)
    (tensor([-1.,  1.]), tensor([  1, 499]))
    """
    A = check_square("A", A).detach()
    n = check_count("n", n)
    radius = check_number("radius", radius, minimum=0)
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


def _candidates(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x_1, x_2) in the unit ball, (candidates, d), with x_1 at 50 places on its way."""
    values, vectors = torch.linalg.eig(A)
    real = values.imag == 0
    directions = vectors[:, real].real.mT
    sizes = directions.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(A.dtype).tiny)
    first, others = eigenvector_pairs(values[real].real, directions / sizes)
    gap_first, gap_others = score_gap_pair(A)
    first = torch.cat([first, gap_first[None]])
    others = torch.cat([others, gap_others[None]])
    shares = torch.linspace(0.02, 1, 50, dtype=A.dtype, device=A.device)[:, None, None]
    moved = others + shares * (first - others)
    return moved.flatten(0, 1), others.expand_as(moved).flatten(0, 1)
