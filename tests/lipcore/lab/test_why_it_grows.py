"""Constants along a model's layers, and the terms that carry them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lab import models
from lab.models.texts import load_text
from lab.why_it_grows import column_means, layer_constants, term_shares
from lipcore import local_lipschitz
from lipcore.bounds import local_terms


def test_constants_are_those_of_each_layer_and_piece():
    model = models.load("minilm", dtype=torch.float64)
    ids = model.encode(load_text("pydoc")[:1000])
    sigma = layer_constants(model, ids, [3, 5], layers=[0, 2], count=3, tol=1e-6)
    for i, layer in enumerate((0, 2)):
        for j, n in enumerate((3, 5)):
            X = model.hidden_states(layer, ids[: 3 * n].reshape(3, n))
            expected = local_lipschitz(model.attention(layer), X, tol=1e-8).value
            np.testing.assert_allclose(sigma[i, j], expected, rtol=1e-5)


def test_shares_are_the_terms_of_the_definition(case):
    """Each share from the gradient with respect to one of the three roles of a token."""
    f, X = case.attention, case.X
    found = local_lipschitz(f, X, tol=1e-10)
    roles = [role.requires_grad_() for role in f.project(X)]
    output = f.join_heads(f.row_weights(*roles[:2], slice(0, X.shape[-2])) @ roles[2])
    gradients = torch.autograd.grad((output * found.left).sum(), roles)
    moved = [b - a for a, b in zip(f.project(0 * X), f.project(found.right), strict=True)]
    own, others, mixing = (
        (gradient * change).sum((-3, -2, -1)) / found.value
        for gradient, change in zip(gradients, moved, strict=True)
    )
    shares = term_shares(f, X, found)
    np.testing.assert_allclose(shares, torch.stack([mixing, own, others], -1), rtol=0, atol=1e-9)
    np.testing.assert_allclose(shares.sum(-1), 1, rtol=0, atol=1e-6)
    assert (shares * found.value[..., None] <= local_terms(f, X).sum(-2) * (1 + 1e-6)).all()


def test_column_means_bracket_the_norm():
    generator = torch.Generator().manual_seed(3)
    P = torch.softmax(3 * torch.randn(50, 7, 7, generator=generator, dtype=torch.float64), dim=-1)
    mean, square = column_means(P)
    norm = torch.linalg.matrix_norm(P, 2) / np.sqrt(7)
    assert (square <= norm + 1e-12).all()
    assert (norm <= mean.sqrt() + 1e-12).all()
    assert (norm - square).min() < 0.1  # neither side is idle
    P = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])  # the first column wins
    assert [part.item() for part in column_means(P)] == pytest.approx([0.5, (1.25 / 3) ** 0.5])
