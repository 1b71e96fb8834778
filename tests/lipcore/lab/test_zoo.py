"""Relatives of softmax attention, each against its definition written out in loops."""

from __future__ import annotations

import math

import pytest
import torch

from lipcore import local_lipschitz
from lipcore.lab.zoo import (
    cosine_attention_map,
    l2_attention_map,
    linear_attention_map,
    sigmoid_attention_map,
)


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

    mixed = by_loops(
        X, lambda i, j: math.exp(score(i, j)) / sum(math.exp(score(i, k)) for k in range(5))
    )
    torch.testing.assert_close(cosine_attention_map(X, Q, K, V, temperature=3.0), mixed @ V.mT)
    near = cosine_attention_map(X, Q, K, V, temperature=3.0, epsilon=1e-6)
    torch.testing.assert_close(near, mixed @ V.mT, rtol=1e-8, atol=1e-8)
    flat = cosine_attention_map(
        X, Q, K, V, temperature=3.0, epsilon=1e6
    )  # lengths drowned: equal weights
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


def test_cosine_attention_mixes_little_and_obeys_its_bound(randn):
    """Column sums at most min(√n, e^τ), and the bound of the book, which an undecided query comes near to."""
    best = 0.0
    for tau, n in ((0.5, 3), (0.5, 41), (3.0, 41), (8.0, 9)):
        directions = randn(n, 3)
        directions /= directions.norm(dim=-1, keepdim=True)
        between = torch.zeros_like(directions)
        between[0, 1], between[1::2, 0], between[2::2, 0] = (
            1,
            2,
            -2,
        )  # long keys to both sides of a short query
        crowd = directions.clone()
        crowd[: n // 2] = directions[0]
        for X in (directions, between, crowd):
            unit = X / X.norm(dim=-1, keepdim=True)
            P = torch.softmax(tau * unit @ unit.mT, dim=-1)
            top = min(math.sqrt(n), math.exp(tau))
            assert P.sum(0).max() <= top * (1 + 1e-12)
            ratio = X.norm(dim=-1).max().item() / X.norm(dim=-1).min().item()
            eye = torch.eye(3, dtype=X.dtype)
            found = local_lipschitz(
                lambda Y: cosine_attention_map(Y, eye, eye, eye, temperature=tau), X  # noqa: B023
            ).value.item()
            best = max(best, found / ((1 + tau * ratio) * math.sqrt(top) + tau * ratio))
    assert 0.4 < best <= 1


def test_splitting_helps_neither_squared_distances_nor_linear_attention_with_many_tokens(randn):
    """Every token twice is the same measure; here its constant is the same too. With one token it need not be."""
    A, eye = randn(3, 3), torch.eye(3, dtype=torch.float64)
    for f, X in ((lambda Y: linear_attention_map(Y, A, eye), randn(20, 4, 3)),
                 (lambda Y: l2_attention_map(Y, eye[None], eye[None]), 2 * randn(20, 4, 3))):  # fmt: skip
        twice = local_lipschitz(f, X.repeat(1, 2, 1), tol=1e-9).value
        torch.testing.assert_close(twice, local_lipschitz(f, X, tol=1e-9).value, rtol=1e-6, atol=0)
    turn = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    x = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    alone, twice = (
        local_lipschitz(lambda Y: linear_attention_map(Y, turn, eye), Y).value
        for Y in (x, x.repeat(2, 1))
    )
    assert alone.item() == pytest.approx(0, abs=1e-12) and twice.item() == pytest.approx(1)
