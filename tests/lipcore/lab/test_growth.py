"""Growth along a model's layers, and who carries the constant."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lipcore import Attention, local_lipschitz
from lipcore.bounds import local_terms, local_upper
from lipcore.lab.growth import layer_constants, listeners, term_shares

transformers = pytest.importorskip("transformers", reason="needs lipcore[models]")


@pytest.fixture(scope="module")
def model():
    from lipcore.models import LanguageModel

    config = transformers.GPT2Config(vocab_size=40, n_layer=3, n_head=2, n_embd=16, n_positions=16,
                                     bos_token_id=0, eos_token_id=0)  # fmt: skip
    torch.manual_seed(0)
    drawn = transformers.GPT2Model(config)
    drawn.set_attn_implementation("eager")
    return LanguageModel(drawn.double(), name="tiny", tokenizer_folder=None)


IDS = torch.arange(200) * 7 % 40


def test_constants_are_those_of_each_layer_and_piece(model):
    sigma = layer_constants(model, IDS, [3, 5], layers=[0, 2], count=4, start=6, tol=1e-6)
    assert sigma.shape == (2, 2, 4)
    X = model.hidden_states(2, IDS[6 + 5 : 6 + 10])  # second piece of five
    dense = model.attention(2).jacobian(X[0]).dense()
    assert sigma[1, 1, 1] == pytest.approx(torch.linalg.matrix_norm(dense, 2).item(), rel=1e-5)
    assert layer_constants(model, IDS, [3], count=1).shape == (3, 1, 1)


def test_constants_refuse_what_does_not_fit(model):
    with pytest.raises(IndexError):
        layer_constants(model, IDS, [3], layers=[3])
    with pytest.raises(ValueError, match="positions"):
        layer_constants(model, IDS, [17], count=1)
    for nothing in ({"lengths": []}, {"lengths": [3], "layers": []}):
        with pytest.raises(ValueError, match="layers, lengths: expected at least one of each"):
            layer_constants(model, IDS, **nothing)


def test_layers_may_come_one_by_one(model):
    assert layer_constants(model, IDS, iter([3]), layers=iter([0, 2]), count=1).shape == (2, 1, 1)


def test_a_constant_of_zero_has_no_shares():
    f, X = Attention.from_matrices(torch.zeros(2, 2), torch.zeros(2, 2)), torch.ones(3, 2)
    with pytest.raises(ValueError, match="found: expected constants other than zero"):
        term_shares(f, X, local_lipschitz(f, X))


def test_shares_are_the_terms_of_the_definition(case):
    """Each share from a derivative of the layer in which only one of the three roles of a token moves."""
    f, X = case.attention, case.X
    found = local_lipschitz(f, X, tol=1e-10)
    queries, keys, values = f.project(X)

    def output(q, k, v):
        return f.join_heads(f.row_weights(q, k, slice(0, X.shape[-2])) @ v)

    H, expected = found.right, []
    moved = [
        b - a for a, b in zip(f.project(torch.zeros_like(X)), f.project(H), strict=True)
    ]  # linear parts
    for role in (2, 0, 1):  # mixing moves values, own query queries, others' keys keys
        tangents = [
            change if role == i else torch.zeros_like(change) for i, change in enumerate(moved)
        ]
        image = torch.func.jvp(output, (queries, keys, values), tuple(tangents))[1]
        expected.append((image * found.left).sum((-2, -1)) / found.value)
    shares = term_shares(f, X, found)
    torch.testing.assert_close(shares, torch.stack(expected, -1), rtol=0, atol=1e-9)
    torch.testing.assert_close(shares.sum(-1), torch.ones_like(found.value), rtol=0, atol=1e-6)


def test_local_terms_add_up_to_the_local_bound_and_each_bounds_its_term(case):
    f, X = case.attention, case.X
    terms = local_terms(f, X)
    assert terms.shape == (*X.shape[:-2], f.heads, 3)
    total = terms.sum((-2, -1))
    assert (local_upper(f, X) <= total * (1 + 1e-9)).all()
    if f.heads == 1 and f.output is None:
        torch.testing.assert_close(local_upper(f, X), total)
    found = local_lipschitz(f, X, tol=1e-8)
    assert (term_shares(f, X, found) * found.value[..., None] <= terms.sum(-2) * (1 + 1e-6)).all()


def test_listeners_bracket_the_norm():
    generator = torch.Generator().manual_seed(3)
    P = torch.softmax(3 * torch.randn(50, 7, 7, generator=generator, dtype=torch.float64), dim=-1)
    mean, square = listeners(P)
    norm = torch.linalg.matrix_norm(P, 2) / np.sqrt(7)
    assert (square <= norm + 1e-12).all()
    assert (norm <= mean.sqrt() + 1e-12).all()
    assert (norm - square).min() < 0.1  # neither side is idle
    half = torch.tensor(
        [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    )  # the first column: ½ on average
    assert [part.item() for part in listeners(half)] == pytest.approx([0.5, (1.25 / 3) ** 0.5])
