"""Relatives of softmax attention, each against its definition written out in loops."""

from __future__ import annotations

import math

import pytest
import torch

from lipcore.zoo import cosine_attention_map, linear_attention_map, sigmoid_attention_map


def by_loops(X, weight):
    """Σ_j weight(i, j) x_j for every i."""
    n = len(X)
    return torch.stack([sum(weight(i, j) * X[j] for j in range(n)) for i in range(n)])


def test_sigmoid_attention(randn):
    X, A, V = randn(5, 3), randn(3, 3), randn(2, 3)
    for bias in (None, 0.7):
        b = -math.log(5) if bias is None else bias
        mixed = by_loops(X, lambda i, j: 1 / (1 + math.exp(-(A @ X[i] @ X[j]).item() - b)))  # noqa: B023
        torch.testing.assert_close(sigmoid_attention_map(X, A, V, bias=bias), mixed @ V.mT)


def test_linear_attention(randn):
    X, A, V = randn(5, 3), randn(3, 3), randn(2, 3)
    mixed = by_loops(X, lambda i, j: (A @ X[i]) @ X[j] / 5)
    torch.testing.assert_close(linear_attention_map(X, A, V), mixed @ V.mT)
    torch.testing.assert_close(linear_attention_map(2 * X, A, V), 8 * mixed @ V.mT)


def test_cosine_attention(randn):
    X, Q, K, V = randn(5, 3), randn(2, 3), randn(2, 3), randn(4, 3)

    def score(i, j):
        return 3 * torch.nn.functional.cosine_similarity(Q @ X[i], K @ X[j], dim=0).item()

    mixed = by_loops(X, lambda i, j: math.exp(score(i, j)) / sum(math.exp(score(i, k)) for k in range(5)))
    torch.testing.assert_close(cosine_attention_map(X, Q, K, V, temperature=3.0), mixed @ V.mT)
    near = cosine_attention_map(X, Q, K, V, temperature=3.0, epsilon=1e-6)
    torch.testing.assert_close(near, mixed @ V.mT, rtol=1e-8, atol=1e-8)
    flat = cosine_attention_map(X, Q, K, V, temperature=3.0, epsilon=1e6)  # lengths drowned: equal weights
    torch.testing.assert_close(flat, (X.mean(0) @ V.mT).expand(5, -1), rtol=0, atol=1e-8)


def test_batches_agree_with_single_inputs(randn):
    X, A, V, Q = randn(2, 3, 5, 3), randn(3, 3), randn(2, 3), randn(2, 3)
    for f in (lambda Y: sigmoid_attention_map(Y, A, V), lambda Y: linear_attention_map(Y, A, V),
              lambda Y: cosine_attention_map(Y, Q, Q, V)):  # fmt: skip
        torch.testing.assert_close(f(X)[1, 2], f(X[1, 2]))


def test_bad_input_is_refused(randn):
    X = randn(4, 3)
    with pytest.raises(ValueError, match="A: expected"):
        sigmoid_attention_map(X, torch.eye(2, dtype=X.dtype), torch.eye(3, dtype=X.dtype))
    with pytest.raises(ValueError, match="V: expected"):
        linear_attention_map(X, torch.eye(3, dtype=X.dtype), torch.eye(2, dtype=X.dtype))
    with pytest.raises(ValueError, match="key: expected"):
        cosine_attention_map(X, randn(2, 3), randn(1, 3), randn(3, 3))
    with pytest.raises(ValueError, match="other than zero"):
        cosine_attention_map(torch.zeros(4, 3), torch.eye(3), torch.eye(3), torch.eye(3))
    with pytest.raises(ValueError, match="epsilon"):
        cosine_attention_map(X, randn(2, 3), randn(2, 3), randn(3, 3), epsilon=-1.0)
