"""Constants along a model's layers, and the terms that carry them."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import torch

from lab import models, why_it_grows
from lab.models.texts import load_text, sequences
from lab.why_it_grows import SHARES, column_means, layer_constants, term_shares
from lipcore import Attention, local_lipschitz
from lipcore.bounds import local_terms, local_upper


def test_constants_are_those_of_each_layer_and_piece(monkeypatch):
    smol = models.load("smollm2", dtype=torch.float64)
    ids = smol.encode(load_text("pydoc")[:1000])
    options = {"layers": [0, 2], "count": 3, "start": 6}
    sigma = layer_constants(smol, ids, [3, 5], tol=1e-6, **options)
    assert sigma.shape == (2, 2, 3)
    for (i, layer), (j, n), k in itertools.product(enumerate((0, 2)), enumerate((3, 5)), range(3)):
        X = smol.hidden_states(layer, ids[6 + k * n : 6 + (k + 1) * n])[0]
        found = local_lipschitz(smol.attention(layer), X, tol=1e-6).value.item()
        assert sigma[i, j, k] == pytest.approx(found, rel=1e-5)
    hasty = partial(local_lipschitz, max_iterations=1)
    monkeypatch.setattr(why_it_grows, "local_lipschitz", hasty)
    with pytest.raises(RuntimeError, match="tol"):
        layer_constants(smol, ids, [8], **options)


def test_a_constant_of_zero_has_no_shares():
    f = Attention.from_matrices(torch.zeros(2, 2), torch.zeros(2, 2))
    X = torch.ones(3, 2)
    with pytest.raises(ValueError, match=r"^found: "):
        term_shares(f, X, local_lipschitz(f, X))


def test_shares_are_the_terms_of_the_definition(case):
    """Each share from the gradient with respect to one of the three roles of a token."""
    f, X = case.attention, case.X
    found = local_lipschitz(f, X, tol=1e-10)
    roles = [role.requires_grad_() for role in f.project(X)]
    queries, keys, values = roles
    output = f.join_heads(f.row_weights(queries, keys, slice(0, X.shape[-2])) @ values)
    gradients = torch.autograd.grad((output * found.left).sum(), roles)
    moved = [b - a for a, b in zip(f.project(0 * X), f.project(found.right), strict=True)]
    own, others, mixing = (
        (gradient * change).sum((-3, -2, -1)) / found.value
        for gradient, change in zip(gradients, moved, strict=True)
    )
    shares = term_shares(f, X, found)
    np.testing.assert_allclose(shares, torch.stack([mixing, own, others], -1), rtol=0, atol=1e-9)
    np.testing.assert_allclose(shares.sum(-1), 1, rtol=0, atol=1e-6)


def test_shares_have_converged_where_two_directions_are_close():
    """Layer 11 of SmolLM2, where two terms are nearly equal, against what many more steps give."""
    smol = models.load("smollm2")
    pieces = sequences(smol, smol.encode(load_text("pydoc")), 64, 2)
    f, X = smol.attention(11), smol.all_hidden_states(pieces, up_to=11)[11]
    starts = [torch.Generator().manual_seed(seed) for seed in range(4)]
    exact = local_lipschitz(f.to(torch.float64), X.double(), tol=1e-10, generator=starts[0])
    shares = term_shares(f.to(torch.float64), X.double(), exact)
    assert shares.mean(0).argmax() == 1
    for start in starts[1:]:
        found = local_lipschitz(f, X, tol=SHARES, generator=start)
        np.testing.assert_allclose(term_shares(f, X, found), shares, rtol=0, atol=1e-3)
        energies = [result.right.square().sum(-1) for result in (found, exact)]
        np.testing.assert_allclose(*energies, rtol=0, atol=1e-3)


def test_local_terms_add_up_to_the_local_bound_and_each_bounds_its_term(case):
    f, X = case.attention, case.X
    terms = local_terms(f, X)
    assert terms.shape == (*X.shape[:-2], f.heads, 3)
    total = terms.sum((-2, -1))
    assert (local_upper(f, X) <= total * (1 + 1e-9)).all()
    if f.heads == 1 and f.output is None:
        np.testing.assert_allclose(local_upper(f, X), total)
    found = local_lipschitz(f, X, tol=1e-8)
    assert (term_shares(f, X, found) * found.value[..., None] <= terms.sum(-2) * (1 + 1e-6)).all()


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
