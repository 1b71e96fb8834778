"""The truth that bounds are held against: dense Jacobians by reverse mode, ascent."""

from __future__ import annotations

import math
import sys

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
    """Local constant at one token x and n − 1 tokens y for A = γ, V = 1, d = 1: n may be huge."""
    one = torch.ones(1, 1, dtype=torch.float64)
    log_masses = torch.tensor([[-math.log(n), math.log1p(-1 / n)]], dtype=torch.float64)
    return of_head(
        gamma * one, one, torch.tensor([[[x], [y]]], dtype=torch.float64), log_masses
    ).item()


@pytest.fixture(scope="session")
def truth():
    """The functions above, as ``truth.of_head(A, V, X)``."""
    return sys.modules[__name__]
