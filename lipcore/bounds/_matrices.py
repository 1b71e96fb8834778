"""Functions of matrices that several bounds need."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def square_root(matrices: Tensor) -> Tensor:
    """Return R, (…, min(q, p), p), with RᵀR = MᵀM, so that ‖MB‖ = ‖RB‖ for every B."""
    return torch.linalg.qr(matrices, mode="r").R


def product_norm(query: Tensor, key: Tensor) -> Tensor:
    """Return ‖KᵀQ‖₂ of each head from its factors (heads, k, d), without the d × d product."""
    return torch.linalg.matrix_norm(square_root(key.mT) @ square_root(query.mT).mT, 2)


def rank_of(values: list[float]) -> int:
    """Return how many singular values (largest first) are not rounding errors of the largest."""
    return sum(value > 1e-14 * values[0] for value in values)


def second_moments(P: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return Σ_j P_ij a_j b_jᵀ for each row i: (heads, n, p), (heads, n, k) → (heads, n, p, k)."""
    return (P @ _outer(a, b).flatten(-2)).unflatten(-1, (a.shape[-1], b.shape[-1]))


def covariances(P: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the covariance of a and b under each row of P."""
    return second_moments(P, a, b) - _outer(P @ a, P @ b)


def spread_and_reach(log_p: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's largest standard deviation and largest distance from the mean: (heads, n).

    A bound of the rounding error is added to the variance.
    """
    P = log_p.exp()
    points = points - points.mean(-2, keepdim=True)  # centred, covariances lose fewer digits
    squares = torch.linalg.eigvalsh(covariances(P, points, points))[..., -1].clamp(min=0)
    rounding = 8 * points.shape[-1] * torch.finfo(P.dtype).eps
    largest = points.square().sum(-1).amax(-1)[:, None]
    distances = torch.cdist(P @ points, points, compute_mode="donot_use_mm_for_euclid_dist")
    reach = torch.where(log_p > -math.inf, distances, 0).amax(-1)
    return (squares + rounding * largest).sqrt(), reach


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a[..., :, None] * b[..., None, :]
