"""Functions of matrices that several bounds need."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor

#: How many results :func:`memoise_on_values` keeps, enough for the heads of one layer.
_KEPT = 16


def memoise_on_values(function: Callable) -> Callable:
    """Keep the last results of a function of matrices alone, which every length asks for again."""
    results = {}

    @wraps(function)
    def cached(*matrices: Tensor):
        matrices = [M.detach() for M in matrices]
        key = tuple((M.device, M.dtype, M.shape, _digest(M)) for M in matrices)
        try:
            return results[key]
        except KeyError:
            value = results[key] = function(*matrices)
        if len(results) > _KEPT:
            results.pop(next(iter(results)), None)  # another thread may have been faster
        return value

    cached.cache_clear = results.clear
    return cached


def _digest(matrix: Tensor) -> bytes:
    return hashlib.blake2b(matrix.cpu().numpy().tobytes()).digest()


def scaled(M: Tensor) -> tuple[Tensor, float]:
    """Return M in units of its largest entry's power of two, which costs no digit, and the log."""
    largest = M.abs().amax().item()
    unit = math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0
    return M / unit, math.log(unit)


def square_root(matrices: Tensor) -> Tensor:
    """Return R, (…, min(q, p), p), with RᵀR = MᵀM, so that ‖MB‖ = ‖RB‖ for every B."""
    return torch.linalg.qr(matrices, mode="r").R


def norms(matrices: Tensor) -> Tensor:
    """Return the spectral norms, from the Gram matrices of the shorter sides."""
    # squares lose half of the digits of small singular values, but none of the largest
    largest = matrices.abs().amax((-2, -1), keepdim=True)
    unit = matrices / torch.where(largest > 0, largest, 1)
    tall = unit.shape[-2] > unit.shape[-1]
    gram = unit.mT @ unit if tall else unit @ unit.mT
    return torch.linalg.eigvalsh(gram)[..., -1].sqrt() * largest[..., 0, 0]


def product_norm(query: Tensor, key: Tensor) -> Tensor:
    """Return ‖KᵀQ‖₂ of each head from its factors (heads, k, d), without the d × d product."""
    return torch.linalg.matrix_norm(square_root(key.mT) @ square_root(query.mT).mT, 2)


def rank_of(values: list[float]) -> int:
    """Return how many singular values (largest first) are not rounding errors of the largest."""
    return sum(value > 1e-14 * values[0] for value in values)


def second_moments(P: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return Σ_j P_ij a_j b_jᵀ for each row i: (heads, n, p), (heads, n, k) → (heads, n, p, k)."""
    outer = a[..., :, None] * b[..., None, :]
    return (P @ outer.flatten(-2)).unflatten(-1, outer.shape[-2:])


def covariances(P: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the covariance of a and b under each row of P."""
    return second_moments(P, a, b) - (P @ a)[..., :, None] * (P @ b)[..., None, :]


def std_and_radius(log_p: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's largest standard deviation and distance from the mean: (heads, n)."""
    P = log_p.exp()
    points = points - points.mean(-2, keepdim=True)  # centred, covariances lose fewer digits
    squares = torch.linalg.eigvalsh(covariances(P, points, points))[..., -1].clamp(min=0)
    rounding = 8 * points.shape[-1] * torch.finfo(P.dtype).eps
    largest = points.square().sum(-1).amax(-1)[:, None]
    distances = torch.cdist(P @ points, points, compute_mode="donot_use_mm_for_euclid_dist")
    reach = torch.where(log_p > -math.inf, distances, 0).amax(-1)
    return (squares + rounding * largest).sqrt(), reach  # the variance is not below the true one
