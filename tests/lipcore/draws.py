"""Seeded tensors, heads and measures that the tests of bounds and of measures share."""

from __future__ import annotations

import torch

from lipcore.measures import DiscreteMeasure, TimedMeasure

F64 = torch.float64
EYE = torch.eye(2, dtype=F64)
ONE = torch.eye(1, dtype=F64)
#: Matrices of every kind, made of a random one.
KINDS = {
    "any": lambda M: M,
    "symmetric": lambda M: M + M.mT,
    "antisymmetric": lambda M: M - M.mT,
    "positive": lambda M: M @ M.mT,
    "negative": lambda M: -M @ M.mT,
    "rank one": lambda M: torch.outer(M[0], M[:, 0]),
    "non-normal": lambda M: 20 * M.triu(1) + M,
    "diagonal": lambda M: torch.diag(4 * M[0]),
    "identity": lambda M: M[0, 0] * torch.eye(len(M), dtype=M.dtype),
    "zero": lambda M: 0 * M,
}


def tensor(*rows):
    return torch.tensor(rows, dtype=F64)


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2).item()


def close(found, expected, tol=1e-12):
    """Whether two tensors of one shape and dtype agree (torch.testing imports for seconds)."""
    assert found.shape == expected.shape
    return torch.allclose(found, expected, rtol=tol, atol=tol)


def autograd_jacobian(f, X):
    """Derivative of all entries of f(X) in all entries of X, without torch.func's long import."""
    X = X.clone().requires_grad_()
    rows = [torch.autograd.grad(y, X, retain_graph=True)[0].flatten() for y in f(X).flatten()]
    return torch.stack(rows)


# --- measures ------------------------------------------------------------------------------------


def masses(seed, *shape):
    raw = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=F64) + 0.05
    return raw / raw.sum(-1, keepdim=True)


def measure(seed, n, d):
    return DiscreteMeasure(draw(seed, n, d), masses(seed + 1, n))


def timed(seed, n, d, ties=True):
    rand = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    times = (rand * 3).floor() / 3 if ties else rand
    return TimedMeasure(times, draw(seed + 1, n, d), masses(seed + 2, n))


def visible_of(mu):
    """Which token sees which, as numbers; None without times."""
    if isinstance(mu, DiscreteMeasure):
        return None
    return (mu.times[None, :] <= mu.times[:, None]).to(F64)


def softmax_map(X, w, A, V, visible=None):
    """f(X) for tokens of masses w, straight from its definition."""
    density = w * torch.exp((X @ A.T) @ X.T)
    if visible is not None:
        density = density * visible
    return (density / density.sum(-1, keepdim=True)) @ X @ V.T


def jacobian_in_mass(X, w, A, V, visible=None):
    """W^{1/2} D_X f W^{-1/2}, a matrix (n·q, n·d), by reverse mode."""
    J = autograd_jacobian(lambda Y: softmax_map(Y, w, A, V, visible), X)
    root_out = w.sqrt().repeat_interleave(V.shape[0])
    root_in = w.sqrt().repeat_interleave(X.shape[1])
    return root_out[:, None] * J / root_in
