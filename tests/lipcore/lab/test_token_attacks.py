"""The search over token sequences, on a small BERT with random weights."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

transformers = pytest.importorskip("transformers", reason="needs lipcore[book]")

from lab import token_attacks  # noqa: E402
from lab.attack.truth import frobenius_norm, reverse_mode_jacobian  # noqa: E402
from lab.models import LanguageModel  # noqa: E402
from lab.token_attacks import (  # noqa: E402
    entering,
    evaluate,
    guided_search,
    random_search,
    random_sequences,
    token_scores,
)

VOCABULARY = 60
IDS = torch.tensor([3, 14, 15, 9, 2, 6])


def tiny(kind="bert", **options):
    if kind == "bert":
        config = transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
            **options,
        )
    else:
        config = transformers.GPT2Config(
            vocab_size=VOCABULARY, n_layer=2, n_head=2, n_embd=24, n_positions=16
        )
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


def dense_constant(model, layer, ids):
    """The constant from the dense Jacobian at the model's own hidden states."""
    J = model.attention(layer).jacobian(model.hidden_states(layer, ids)[0]).dense()
    return torch.linalg.matrix_norm(J, 2).item()


@pytest.mark.parametrize("layer", [0, 1])
def test_evaluations_are_norms_of_jacobians_by_autodiff(model, layer):
    ids = torch.stack([IDS, IDS.flip(0)])
    J = reverse_mode_jacobian(model.attention(layer), model.hidden_states(layer, ids))
    assert_allclose(evaluate(model, layer, ids), frobenius_norm(J), rtol=1e-3)


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("layer", [0, 1])
def test_entering_agrees_with_the_running_model(layer, decoder):
    model = tiny(is_decoder=decoder)
    X = entering(model, layer, model.hidden_states(0, IDS)[0])
    assert_allclose(X, model.hidden_states(layer, IDS)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("layer", [0, 1])
def test_scores_are_directional_derivatives_towards_each_token(model, layer, monkeypatch):
    """The gradient of the norm of a dense Jacobian, times each move of the embedding layer's output."""
    monkeypatch.setattr(token_attacks, "TOLERANCE", 1e-13)
    scores = token_scores(model, layer, IDS)

    def constant(x0):
        X = entering(model, layer, x0)
        f = model.attention(layer)
        J = torch.autograd.functional.jacobian(f, X, create_graph=True)
        return torch.linalg.matrix_norm(J.reshape(X.numel(), -1), 2)

    x0 = model.hidden_states(0, IDS)[0]
    (gradient,) = torch.autograd.grad(constant(leaf := x0.clone().requires_grad_()), leaf)
    everywhere = torch.arange(VOCABULARY)[:, None].expand(-1, len(IDS))
    moves = model.hidden_states(0, everywhere) - x0  # (vocabulary, n, d)
    expected = (moves * gradient).sum(-1).T
    assert_allclose(scores, expected, rtol=0, atol=1e-5 * expected.abs().max())


@pytest.mark.parametrize(
    "options", [{}, {"per_position": 5}, {"copies": (1,)}, {"copies": (3, 50)}]
)
def test_guided_search_climbs_with_allowed_tokens(model, options):
    allowed = torch.arange(VOCABULARY) >= 10
    found = guided_search(
        model, 0, IDS, evaluations=33, batch=8, allowed=allowed, progress=False, **options
    )
    assert len(found.history) == 33
    assert (found.history.diff() >= 0).all()
    assert found.value == found.history[-1] > found.history[0]
    assert dense_constant(model, 0, found.ids) == pytest.approx(found.value, rel=1e-3)
    changed = found.ids[found.ids != IDS]
    assert (changed >= 10).all()


@pytest.mark.parametrize("search", [guided_search, random_search])
@pytest.mark.parametrize("copies", [1, 3])
def test_one_round_puts_one_token_at_so_many_places(model, search, copies):
    found = search(model, 0, IDS, evaluations=21, batch=20, copies=(copies,), progress=False)
    assert found.value > found.history[0]
    changed = found.ids[found.ids != IDS]
    assert 1 <= len(changed) <= copies
    assert len(set(changed.tolist())) == 1


@pytest.fixture
def tried(monkeypatch):
    """The sequences that a search looks at, none of which is an improvement."""
    batches = []

    def watched(model, layer, ids, attention=None):
        batches.append(ids.reshape(-1, ids.shape[-1]).clone())
        return torch.zeros(len(batches[-1]), dtype=torch.float64)

    monkeypatch.setattr(token_attacks, "evaluate", watched)
    return batches


def exchanged(ids, places, token):
    changed = ids.clone()
    changed[list(places)] = token
    return tuple(changed.tolist())


@pytest.mark.parametrize(("copies", "per_position"), [(1, 1), (1, 3), (2, 2)])
def test_guided_proposals_are_the_most_promising_and_none_is_tried_twice(
    model, tried, copies, per_position
):
    """By brute force over all exchanges, until none is left."""
    found = guided_search(
        model, 0, IDS, evaluations=60, batch=4, copies=(copies,), per_position=per_position,
        progress=False,
    )  # fmt: skip
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
    assert {tuple(row) for row in rounds} == {exchanged(IDS, *exchange) for exchange in best}
    assert torch.equal(found.ids, IDS)
    assert len(found.history) == 60


def test_random_proposals_are_uniform_over_copies_places_and_tokens(model, tried):
    allowed = torch.zeros(VOCABULARY, dtype=torch.bool)
    allowed[30:34] = True
    random_search(
        model, 0, IDS, evaluations=1801, batch=600, copies=(1, 2, 4), allowed=allowed,
        progress=False,
    )  # fmt: skip
    rounds = torch.cat(tried[1:]).numpy()
    moved = rounds != IDS.numpy()
    counts = Counter(moved.sum(1).tolist())
    assert set(counts) == {1, 2, 4}
    assert all(abs(count - 600) < 5 * 20 for count in counts.values())  # five standard deviations
    assert (abs(moved.sum(0) - 1800 * (7 / 3) / 6) < 5 * 21).all()
    tokens = Counter(rounds[moved].tolist())
    assert set(tokens) == {30, 31, 32, 33}
    for row, places in zip(rounds, moved, strict=True):
        assert len(np.unique(row[places])) == 1


def test_a_round_of_random_search_finds_the_best_of_all_exchanges(model):
    """By brute force: three places, four tokens, one, two or three copies; two of them are best."""
    ids = IDS[:3]
    tokens = [20, 30, 40, 50]
    allowed = torch.zeros(VOCABULARY, dtype=torch.bool)
    allowed[tokens] = True
    exchanges = [
        (places, token)
        for copies in (1, 2, 3)
        for places in itertools.combinations(range(3), copies)
        for token in tokens
    ]
    values = {
        exchange: dense_constant(model, 0, torch.tensor(exchanged(ids, *exchange)))
        for exchange in exchanges
    }
    best = max(values, key=values.get)
    assert len(best[0]) > 1  # one copy would fall short
    found = random_search(
        model, 0, ids, evaluations=201, batch=200, copies=(1, 2, 3), allowed=allowed,
        progress=False,
    )  # fmt: skip
    assert tuple(found.ids.tolist()) == exchanged(ids, *best)
    assert found.value == pytest.approx(values[best], rel=1e-3)


def test_the_roughest_of_uniform_sequences(model, tried):
    allowed = torch.zeros(VOCABULARY, dtype=torch.bool)
    allowed[30:34] = True
    random_sequences(model, 0, 6, evaluations=500, batch=64, allowed=allowed, progress=False)
    drawn = torch.cat(tried)
    assert drawn.shape == (500, 6)
    counts = torch.bincount(drawn.flatten(), minlength=VOCABULARY)
    assert counts[30:34].sum() == 3000
    assert ((counts[30:34] - 750).abs() < 5 * 24).all()  # five standard deviations


def test_random_sequences_return_the_best(model):
    found = random_sequences(model, 1, 5, evaluations=20, batch=8, progress=False)
    tokens = torch.randint(VOCABULARY, (20, 5), generator=torch.Generator().manual_seed(0))
    values = [dense_constant(model, 1, ids) for ids in tokens]
    assert found.ids.tolist() == tokens[int(np.argmax(values))].tolist()
    assert found.value == pytest.approx(max(values), rel=1e-3)
    assert_allclose(found.history, np.maximum.accumulate(values), rtol=1e-3)


def test_random_search_repeats(model):
    first, second = (
        random_search(model, 1, IDS, evaluations=25, batch=8, progress=False) for _ in range(2)
    )
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(first.history, second.history)
    assert (first.history.diff() >= 0).all()


def test_more_rounds_than_exchanges_end(model):
    allowed = torch.zeros(VOCABULARY, dtype=torch.bool)
    allowed[IDS[0]] = True
    found = guided_search(
        model, 0, IDS[:1], evaluations=30, batch=8, allowed=allowed, progress=False
    )
    assert found.ids.tolist() == [3]
    assert len(found.history) == 30


def test_bad_input_is_refused(model):
    with pytest.raises(ValueError, match="one sequence"):
        guided_search(model, 0, IDS.repeat(2, 1), evaluations=2, progress=False)
    with pytest.raises(ValueError, match="one sequence"):
        token_scores(model, 0, IDS.repeat(2, 1))
    with pytest.raises(IndexError):
        guided_search(model, 5, IDS, evaluations=2, progress=False)
    with pytest.raises(ValueError, match=r"^allowed: "):
        random_search(
            model, 0, IDS, evaluations=2, allowed=torch.ones(5, dtype=torch.bool), progress=False
        )
    with pytest.raises(ValueError, match=r"^copies: "):
        guided_search(model, 0, IDS, evaluations=2, copies=(), progress=False)
    nothing = torch.zeros(VOCABULARY, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"^allowed: "):
        random_search(model, 0, IDS, evaluations=2, allowed=nothing, progress=False)
    with pytest.raises(ValueError, match="BERT"):
        token_scores(tiny("gpt2"), 0, IDS)
    for search in (guided_search, random_search):
        with pytest.raises(TypeError, match=r"^token_ids: "):
            search(model, 0, [1, 2], evaluations=2, progress=False)
        with pytest.raises(TypeError, match=r"^copies: "):
            search(model, 0, IDS, evaluations=2, copies=2, progress=False)


def test_search_where_gradients_are_off(model):
    expected = guided_search(model, 1, IDS, evaluations=6, progress=False).value
    with torch.no_grad():
        assert guided_search(model, 1, IDS, evaluations=6, progress=False).value == expected
