"""The truth of the attack: dense Jacobians and their norms, independent of :mod:`lipcore.jacobian`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def dense_jacobian(
    A: Tensor,
    V: Tensor,
    X: Tensor,
    log_masses: Tensor | None = None,
    *,
    causal: bool = False,
    offset: Tensor | None = None,
) -> Tensor:
    """Return the Jacobian on L²(μ) of one head at each X (K, n, d): (K, n, p, n, d)."""
    images = X @ A.mT if offset is None else X @ A.mT + offset
    P, values = _weights_and_values(images, X, log_masses, causal=causal)
    identity = torch.eye(X.shape[1], dtype=X.dtype)
    V = V.expand(len(X), -1, -1)
    mixing = torch.einsum("kij,kps->kipjs", P, V)
    keys = torch.einsum("kij,kijr,kis->kirjs", P, values, images)
    own = torch.einsum("kij,kijr,kijt,ts,il->kirls", P, values, values, A, identity)
    J = torch.einsum("kpr,kirjs->kipjs", V, keys + own) + mixing
    if log_masses is None:
        return J
    # norms are those of the measure
    roots = ((log_masses[:, :, None] - log_masses[:, None, :]) / 2).exp()
    return J * roots[:, :, None, :, None]


def own_query_norm(A: Tensor, V: Tensor, X: Tensor, log_masses: Tensor) -> Tensor:
    """Return ‖V C_i A‖₂ of every token, (K, n), if its copies may part (:prf:ref:`thm-split`)."""
    P, values = _weights_and_values(X @ A.mT, X, log_masses)
    covariances = torch.einsum("kij,kijr,kijs->kirs", P, values, values)
    return torch.linalg.matrix_norm(V @ covariances @ A, 2)


def _weights_and_values(
    images: Tensor, X: Tensor, log_masses: Tensor | None, *, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Return P, shape (K, n, n), and x_j − m_i, shape (K, i, j, d), from images Ax_i + c."""
    scores = images @ X.mT
    if log_masses is not None:
        scores = scores + log_masses[:, None, :]
    if causal:
        future = torch.ones(X.shape[1], X.shape[1], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    P = torch.softmax(scores, dim=-1)
    return P, X[:, None] - (P @ X)[:, :, None]


def reverse_mode_jacobian(fn: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    """Return the Jacobian (K, n, p, n, d) of a map at each X (K, n, d), by reverse passes."""
    X = X.clone().requires_grad_()
    output = fn(X)
    rows = [
        torch.autograd.grad(entry.sum(), X, retain_graph=True)[0]
        for entry in output.flatten(1).unbind(-1)
    ]
    return torch.stack(rows, dim=1).unflatten(1, output.shape[1:])


def frobenius_norm(J: Tensor) -> Tensor:
    """Return the norm of each Jacobian (K, n, p, n, d) between Frobenius norms, σ_max: (K,)."""
    return torch.linalg.matrix_norm(J.flatten(3).flatten(1, 2), 2)


def token_norm(J: Tensor) -> Tensor:
    """Return the norm between largest-token norms, (K,): exact for d = 1, else from below."""
    best = J.new_zeros(len(J))
    for start in torch.eye(J.shape[2], dtype=J.dtype):
        g = start.expand(*J.shape[:3])  # (K, i, p)
        for _ in range(12):
            pulled = torch.einsum("kipjs,kip->kijs", J, g)
            h = pulled / pulled.norm(dim=-1, keepdim=True).clamp(min=1e-300)
            pushed = torch.einsum("kipjs,kijs->kip", J, h)
            size = pushed.norm(dim=-1)
            g = pushed / size[..., None].clamp(min=1e-300)
        best = torch.maximum(best, size.amax(-1))
    return best
