"""Random measures, and attention on them written out: what the tests of measures share."""

from __future__ import annotations

import torch

from lipcore.measures import DiscreteMeasure, TimedMeasure

F64 = torch.float64


def tensor(*rows):
    return torch.tensor(rows, dtype=F64)


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def masses(seed, *shape):
    raw = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=F64) + 0.05
    return raw / raw.sum(-1, keepdim=True)


def measure(seed, n, d):
    return DiscreteMeasure(draw(seed, n, d), masses(seed + 1, n))


def timed(seed, n, d, ties=True):
    rand = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    times = (rand * 3).floor() / 3 if ties else rand
    return TimedMeasure(times, draw(seed + 1, n, d), masses(seed + 2, n))


def norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2).item()


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


def reference_jacobian(X, w, A, V, visible=None):
    """D_X f by reverse mode, a matrix (n·q, n·d)."""
    return autograd_jacobian(lambda Y: softmax_map(Y, w, A, V, visible), X)


def autograd_jacobian(f, X):
    """Derivative of all entries of f(X) in all entries of X, without torch.func's long import."""
    X = X.clone().requires_grad_()
    rows = [torch.autograd.grad(y, X, retain_graph=True)[0].flatten() for y in f(X).flatten()]
    return torch.stack(rows)


def reference_in_mass(X, w, A, V, visible=None):
    """W^{1/2} D_X f W^{-1/2}, by reverse mode."""
    root_out = w.sqrt().repeat_interleave(V.shape[0])
    root_in = w.sqrt().repeat_interleave(X.shape[1])
    return root_out[:, None] * reference_jacobian(X, w, A, V, visible) / root_in


def close(found, expected, tol=1e-12):
    """Whether two tensors of one shape and dtype agree (torch.testing imports for seconds)."""
    assert found.shape == expected.shape
    return torch.allclose(found, expected, rtol=tol, atol=tol)
