"""Relatives of softmax attention, each against its definition written out in loops."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from numpy.testing import assert_allclose

from lab.attack.truth import frobenius_norm, reverse_mode_jacobian
from lab.zoo import (
    cosine_attention_map,
    l2_attention_map,
    linear_attention_map,
    sigmoid_attention_map,
)


def local_constants(f, X):
    """Norms of dense Jacobians by autodiff: X of shape (K, n, d) → (K,)."""
    return frobenius_norm(reverse_mode_jacobian(f, X))


def by_loops(X, weight):
    """Σ_j weight(x_i, x_j) x_j for every i."""
    return torch.stack([sum(weight(x, y) * y for y in X) for x in X])


def softmax_by_loops(X, score):
    """The same with weights e^score, normalised over j."""

    def weight(x, y):
        return math.exp(score(x, y)) / sum(math.exp(score(x, z)) for z in X)

    return by_loops(X, weight)


def test_l2_attention(randn):
    X, Q, V, W = randn(5, 3), randn(2, 4, 3), randn(2, 2, 3), randn(6, 4)
    heads = []
    for q, v in zip(Q, V, strict=True):
        mixed = softmax_by_loops(X, lambda x, y: -((q @ x - q @ y) ** 2).sum().item() / 2)  # noqa: B023
        heads.append(mixed @ (v @ q.mT @ q / 2).mT)  # V A, A = QᵀQ/√k with k = 4
    joined = torch.cat(heads, dim=-1)
    assert_allclose(l2_attention_map(X, Q, V), joined)
    assert_allclose(l2_attention_map(X, Q, V, W), joined @ W.mT)


def test_sigmoid_attention(randn):
    X, A, V = randn(5, 3), randn(3, 3), randn(2, 3)
    for bias, b in ((None, -math.log(5)), (0.7, 0.7)):
        mixed = by_loops(X, lambda x, y: 1 / (1 + math.exp(-(A @ x @ y).item() - b)))  # noqa: B023
        assert_allclose(sigmoid_attention_map(X, A, V, bias=bias), mixed @ V.mT)


def test_linear_attention(randn):
    X, A, V = randn(5, 3), randn(3, 3), randn(2, 3)
    mixed = by_loops(X, lambda x, y: (A @ x) @ y / 5)
    assert_allclose(linear_attention_map(X, A, V), mixed @ V.mT)


def test_cosine_attention(randn):
    X, Q, K, V = randn(5, 3), randn(2, 3), randn(2, 3), randn(4, 3)

    def score(x, y):
        return 3 * torch.nn.functional.cosine_similarity(Q @ x, K @ y, dim=0).item()

    expected = softmax_by_loops(X, score) @ V.mT
    assert_allclose(cosine_attention_map(X, Q, K, V, temperature=3.0), expected)


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
    for name, call in (
        ("value: ", lambda: l2_attention_map(X, randn(2, 2, 3), randn(1, 2, 3))),
        ("X: ", lambda: sigmoid_attention_map(X, eye[:2, :2], eye[:2, :2])),
        ("A is ", lambda: linear_attention_map(X.float(), eye, eye)),
        ("V: ", lambda: linear_attention_map(X, eye, eye[:2, :2])),
        ("key: ", lambda: cosine_attention_map(X, randn(2, 3), randn(1, 3), eye)),
        ("X: ", lambda: cosine_attention_map(0 * X, eye, eye, eye)),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{name}"):
            call()


def test_cosine_attention_mixes_little_and_obeys_its_bound(randn):
    """Column sums at most min(√n, e^τ), and the bound of the book, which is nearly attained."""
    best = 0.0
    eye = torch.eye(3, dtype=torch.float64)
    for tau, n in ((0.5, 3), (0.5, 41), (3.0, 41), (8.0, 9)):
        directions = torch.nn.functional.normalize(randn(n, 3), dim=-1)
        between = torch.zeros_like(directions)  # long keys to both sides of a short query
        between[0, 1] = 1
        between[1::2, 0] = 2
        between[2::2, 0] = -2
        repeated = directions.clone()
        repeated[: n // 2] = directions[0]
        X = torch.stack([directions, between, repeated])
        lengths = X.norm(dim=-1)
        unit = X / lengths[..., None]
        top = min(math.sqrt(n), math.exp(tau))
        assert torch.softmax(tau * unit @ unit.mT, dim=-1).sum(-2).max() <= top * (1 + 1e-12)
        ratio = lengths.amax(-1) / lengths.amin(-1)
        f = partial(cosine_attention_map, query=eye, key=eye, V=eye, temperature=tau)
        bound = (1 + tau * ratio) * math.sqrt(top) + tau * ratio
        best = max(best, (local_constants(f, X) / bound).max())
    assert 0.4 < best <= 1


def test_splitting_helps_neither_l2_nor_linear_attention_with_many_tokens(randn):
    """Every token twice is the same measure, with the same constant here; not so with one token."""
    A, eye = randn(3, 3), torch.eye(3, dtype=torch.float64)
    for f, X in (
        (partial(linear_attention_map, A=A, V=eye), randn(20, 4, 3)),
        (partial(l2_attention_map, query=eye[None], value=eye[None]), 2 * randn(20, 4, 3)),
    ):
        assert_allclose(local_constants(f, X.repeat(1, 2, 1)), local_constants(f, X), rtol=1e-9)
    turn = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    f = partial(linear_attention_map, A=turn, V=eye)
    alone, twice = (local_constants(f, eye[None, :1].repeat(1, n, 1)).item() for n in (1, 2))
    assert alone == pytest.approx(0, abs=1e-12) and twice == pytest.approx(1)
