"""The truth that bounds are held against: dense Jacobians by reverse mode, ascent on their norms."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest
import torch


def to_ball(X, radius):
    return X * (radius / X.norm(dim=-1, keepdim=True).clamp(min=radius))


def jacobians(function, X):
    """Of a map on tokens, at K inputs (K, n, d): (K, outputs, n·d). Differentiable where X is."""
    differentiable = X.requires_grad
    X = X if differentiable else X.detach().requires_grad_()
    outputs = function(X).flatten(1).sum(0)
    rows = [
        torch.autograd.grad(out, X, create_graph=differentiable, retain_graph=True)[0]
        for out in outputs
    ]
    return torch.stack(rows, dim=1).flatten(2)


def of_map(function, X):
    """The local constant of a map on tokens at each of K inputs."""
    return torch.linalg.matrix_norm(jacobians(function, X), 2)


def of_head(A, V, X, log_masses=None, causal=False):
    """The local constant of one or K heads (K, d, d), (K, p, d); with masses (K, n), in L²(μ)."""
    w = X.new_zeros(X.shape[:2]) if log_masses is None else log_masses

    def head(X):
        scores = X @ A.mT @ X.mT + w[:, None]
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), -math.inf)
        return torch.softmax(scores, -1) @ X @ V.mT

    J = jacobians(head, X)
    left = (w / 2).exp().repeat_interleave(V.shape[-2], dim=1)[:, :, None]
    right = (w / 2).exp().repeat_interleave(X.shape[-1], dim=1)[:, None]
    return torch.linalg.matrix_norm(left * J / right, 2)


def ascended(function, X, radius, steps):
    """Go uphill on a function of the inputs (K, n, d) inside the ball: the best value of each."""
    best = function(X).detach()
    for step in range(steps):
        X = X.detach().requires_grad_()
        value = function(X)
        best = torch.maximum(best, value.detach())
        (gradient,) = torch.autograd.grad(value.sum(), X)
        size = gradient.flatten(1).norm(dim=1)[:, None, None].clamp(min=1e-30)
        X = to_ball(X.detach() + 0.3 * radius * (1 - step / steps) * gradient / size, radius)
    return best


def two_clusters(n, x, y, gamma):
    """Local constant of f with A = γ, V = 1, d = 1 at one token x and n − 1 tokens y.

    In the basis (first token, mean of the others) the Jacobian is 2 × 2: n may be huge.
    """
    rows = []
    for z, is_first in ((x, True), (y, False)):
        w = 1 / (1 + (n - 1) * math.exp(gamma * z * (y - x)))  # weight of x seen from z
        own = w * (1 - w) * (x - y) ** 2 * gamma
        keys = w * (1 - w) * (x - y) * gamma * z
        on_x = w + keys + (own if is_first else 0)
        on_y = 1 - w - keys + (0 if is_first else own)
        out = 1.0 if is_first else math.sqrt(n - 1)
        rows.append([out * on_x, out * on_y / math.sqrt(n - 1)])
    return np.linalg.norm(rows, 2)


@pytest.fixture(scope="session")
def truth():
    """``truth.of_head(A, V, X)``, ``truth.of_map(layer, X)``, ``truth.ascended(…)``."""
    return types.SimpleNamespace(
        jacobians=jacobians,
        of_map=of_map,
        of_head=of_head,
        two_clusters=two_clusters,
        ascended=ascended,
        to_ball=to_ball,
    )
