"""Relatives of softmax attention, each against its definition written out in loops."""

import math

import pytest
import torch
from numpy.testing import assert_allclose

from lab.zoo import (
    cosine_attention_map,
    l2_attention_map,
    linear_attention_map,
    sigmoid_attention_map,
)


def by_loops(X, weight):
    """Σ_j weight(x_i, x_j) x_j for every i."""
    return torch.stack([sum(weight(x, y) * y for y in X) for x in X])


def softmax_by_loops(X, score):
    """The same with weights e^score, normalised over j."""

    def weight(x, y):
        return math.exp(score(x, y)) / sum(math.exp(score(x, z)) for z in X)

    return by_loops(X, weight)


def test_l2_attention(randn):
    X, Q, V = randn(5, 3), randn(2, 4, 3), randn(2, 2, 3)
    heads = []
    for q, v in zip(Q, V, strict=True):
        mixed = softmax_by_loops(X, lambda x, y: -((q @ x - q @ y) ** 2).sum().item() / 2)  # noqa: B023
        heads.append(mixed @ (v @ q.mT @ q / 2).mT)  # V A, A = QᵀQ/√k with k = 4
    joined = torch.cat(heads, dim=-1)
    assert_allclose(l2_attention_map(X, Q, V), joined)


def test_sigmoid_and_linear_attention(randn):
    X, A, V = randn(5, 3), randn(3, 3), randn(2, 3)
    for bias, b in ((None, -math.log(5)), (0.7, 0.7)):
        mixed = by_loops(X, lambda x, y: 1 / (1 + math.exp(-(A @ x @ y).item() - b)))  # noqa: B023
        assert_allclose(sigmoid_attention_map(X, A, V, bias=bias), mixed @ V.mT)
    mixed = by_loops(X, lambda x, y: (A @ x) @ y / 5)
    assert_allclose(linear_attention_map(X, A, V), mixed @ V.mT)


def test_cosine_attention(randn):
    X, Q, K, V = randn(5, 3), randn(2, 3), randn(2, 3), randn(4, 3)
    mixed = softmax_by_loops(X, lambda x, y: 3 * torch.cosine_similarity(Q @ x, K @ y, dim=0))
    assert_allclose(cosine_attention_map(X, Q, K, V, temperature=3.0), mixed @ V.mT)


def test_batches_agree_with_single_inputs(randn):
    X, A, V, Q = randn(2, 3, 5, 3), randn(3, 3), randn(2, 3), randn(2, 3)
    for f in (
        lambda Y: l2_attention_map(Y, Q[None], V[None]),
        lambda Y: sigmoid_attention_map(Y, A, V),
        lambda Y: linear_attention_map(Y, A, V),
        lambda Y: cosine_attention_map(Y, Q, Q, V),
    ):
        assert_allclose(f(X)[1, 2], f(X[1, 2]))


def test_bad_input_is_named(randn):
    X, eye = randn(4, 3), torch.eye(3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^V: "):
        linear_attention_map(X, eye, eye[:2, :2])
    with pytest.raises(ValueError, match=r"^X: "):
        cosine_attention_map(0 * X, eye, eye, eye)
