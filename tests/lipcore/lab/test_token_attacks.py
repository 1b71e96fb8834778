"""The search over token sequences, on a small BERT with random weights."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

pytest.importorskip("transformers", reason="needs lipcore[book]")

import transformers

from lab import token_attacks
from lab.models import LanguageModel
from lab.token_attacks import entering, guided_search, random_search, random_sequences, token_scores

VOCABULARY = 60
IDS = torch.tensor([3, 14, 15, 9, 2, 6])


def tiny(**options):
    size = {"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 32}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 16}
    config = transformers.BertConfig(**size, **layers, **options)
    config._attn_implementation = "eager"
    model = transformers.AutoModel.from_config(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.1, 0.5, generator=generator)
    return LanguageModel(model.double(), name="tiny", folder=None)


@pytest.fixture(scope="module")
def model():
    return tiny()


def chance():
    return torch.Generator().manual_seed(0)


def some_tokens(*tokens):
    allowed = torch.zeros(VOCABULARY, dtype=torch.bool)
    allowed[list(tokens)] = True
    return allowed


def dense_constant(model, layer, ids):
    """The constant from the dense Jacobian at the model's own hidden states."""
    J = model.attention(layer).jacobian(model.hidden_states(layer, ids)[0]).dense()
    return torch.linalg.matrix_norm(J, 2).item()


@pytest.mark.parametrize("decoder", [False, True])
def test_entering_agrees_with_the_running_model(decoder):
    model = tiny(is_decoder=decoder)
    X = entering(model, 1, model.hidden_states(0, IDS)[0])
    assert_allclose(X, model.hidden_states(1, IDS)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("layer", [0, 1])
def test_scores_are_directional_derivatives_towards_each_token(model, layer, monkeypatch):
    """The gradient of the norm of a dense Jacobian, times each move of the embedding layer's output."""
    monkeypatch.setattr(token_attacks, "TOLERANCE", 1e-13)
    scores = token_scores(model, layer, IDS)
    x0 = model.hidden_states(0, IDS)[0].requires_grad_()
    X = entering(model, layer, x0)
    J = torch.autograd.functional.jacobian(model.attention(layer), X, create_graph=True)
    constant = torch.linalg.matrix_norm(J.reshape(X.numel(), -1), 2)
    (gradient,) = torch.autograd.grad(constant, x0)
    everywhere = torch.arange(VOCABULARY)[:, None].expand(-1, len(IDS))
    moves = model.hidden_states(0, everywhere) - x0.detach()  # (vocabulary, n, d)
    expected = (moves * gradient).sum(-1).T
    assert_allclose(scores, expected, rtol=0, atol=1e-5 * expected.abs().max())


@pytest.mark.parametrize("search", [guided_search, random_search])
@pytest.mark.parametrize("copies", [(1, 2, 4), (3, 50)])
def test_a_search_climbs_with_allowed_tokens_and_repeats(model, search, copies):
    options = {"evaluations": 33, "batch": 8, "allowed": some_tokens(*range(10, 60))}
    found = search(model, 0, IDS, copies=copies, generator=chance(), **options)
    assert len(found.history) == 33 and (found.history.diff() >= 0).all()
    assert found.value == found.history[-1] > found.history[0]
    assert dense_constant(model, 0, found.ids) == pytest.approx(found.value, rel=1e-3)
    assert (found.ids[found.ids != IDS] >= 10).all()
    again = search(model, 0, IDS, copies=copies, generator=chance(), **options)
    assert torch.equal(again.ids, found.ids) and torch.equal(again.history, found.history)


@pytest.fixture
def tried(monkeypatch):
    """The sequences that a search looks at, none of which is an improvement."""
    batches = []

    def watched(model, layer, ids, attention=None):
        batches.append(ids.reshape(-1, ids.shape[-1]).clone())
        return torch.zeros(len(batches[-1]), dtype=torch.float64)

    monkeypatch.setattr(token_attacks, "evaluate", watched)
    return batches


@pytest.mark.parametrize(("copies", "per_position"), [(1, 1), (1, 3), (2, 2)])
def test_guided_proposals_are_the_most_promising_and_none_is_tried_twice(
    model, tried, monkeypatch, copies, per_position
):
    """By brute force over all exchanges, until none is left."""
    monkeypatch.setattr(token_attacks, "PER_POSITION", per_position)
    options = {"copies": (copies,), "allowed": some_tokens(*range(60)), "generator": chance()}
    found = guided_search(model, 0, IDS, evaluations=60, batch=4, **options)
    scores = token_scores(model, 0, IDS)
    scores[torch.arange(6), IDS] = -torch.inf
    if copies == 1:  # the best tokens of every place
        best = {((i,), t) for i in range(6) for t in scores[i].argsort()[-per_position:].tolist()}
    else:  # the tokens whose best pair of places promises most
        pairs = list(itertools.combinations(range(6), 2))
        promise = torch.stack([scores[list(pair)].sum(0) for pair in pairs])
        tokens = promise.amax(0).argsort()[-6 * per_position :].tolist()
        best = {(pairs[promise[:, t].argmax()], t) for t in tokens}
    rounds = torch.cat(tried[1:]).tolist()
    assert len(rounds) == 6 * per_position
    changed = [IDS.index_fill(0, torch.tensor(places), token) for places, token in best]
    assert {*map(tuple, rounds)} == {tuple(ids.tolist()) for ids in changed}
    assert torch.equal(found.ids, IDS)
    assert len(found.history) == 60


def test_random_proposals_are_uniform_over_copies_places_and_tokens(model, tried):
    options = {"allowed": some_tokens(30, 31, 32, 33), "generator": chance()}
    random_search(model, 0, IDS, evaluations=1801, batch=600, **options)
    rounds = torch.cat(tried[1:])
    moved = rounds != IDS
    copies = moved.sum(1).bincount(minlength=5)
    assert copies[[0, 3]].tolist() == [0, 0]
    assert ((copies[[1, 2, 4]] - 600).abs() < 5 * 20).all()  # five standard deviations
    assert ((moved.sum(0) - 1800 * (7 / 3) / 6).abs() < 5 * 21).all()
    assert set(rounds[moved].tolist()) == {30, 31, 32, 33}
    assert all(len(row[places].unique()) == 1 for row, places in zip(rounds, moved, strict=True))


def test_random_sequences_are_uniform_and_the_best_is_returned(model):
    options = {"allowed": some_tokens(*range(30, 34)), "generator": chance()}
    found = random_sequences(model, 1, 5, evaluations=20, **options)
    drawn = 30 + torch.randint(4, (20, 5), generator=chance())
    values = [dense_constant(model, 1, ids) for ids in drawn]
    assert torch.equal(found.ids, drawn[int(np.argmax(values))])
    assert found.value == pytest.approx(max(values), rel=1e-3)
    assert_allclose(found.history, np.maximum.accumulate(values), rtol=1e-3)
