"""The search over token sequences, on a small BERT with random weights."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs lipcore[models]")

from lipcore.lab import token_attack  # noqa: E402
from lipcore.lab.token_attack import (  # noqa: E402
    embedded,
    entering,
    evaluate,
    guided_search,
    random_search,
    token_scores,
)
from lipcore.models import LanguageModel  # noqa: E402
from lipcore.spectral import local_lipschitz  # noqa: E402


def tiny(kind="bert"):
    if kind == "bert":
        config = transformers.BertConfig(vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2,
                                         intermediate_size=32, max_position_embeddings=16)  # fmt: skip
    else:
        config = transformers.GPT2Config(
            vocab_size=60, n_layer=2, n_head=2, n_embd=24, n_positions=16
        )
    config._attn_implementation = "eager"
    model = transformers.AutoModel.from_config(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.1, 0.5, generator=generator)
    return LanguageModel(model.double(), name="tiny", tokenizer_folder=None)


@pytest.fixture(scope="module")
def model():
    return tiny()


IDS = torch.tensor([3, 14, 15, 9, 2, 6])


@pytest.mark.parametrize("layer", [0, 1])
def test_entering_agrees_with_the_running_model(model, layer):
    X = entering(model, layer, embedded(model, IDS))
    torch.testing.assert_close(X, model.hidden_states(layer, IDS)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        model.hidden_states(layer, IDS)[0], X, rtol=0, atol=1e-12
    )  # no hook is left behind


@pytest.mark.parametrize("layer", [0, 1])
def test_scores_are_directional_derivatives_towards_each_token(model, layer):
    scores = token_scores(model, layer, IDS)
    assert scores.shape == (6, 60)
    assert scores[torch.arange(6), IDS].abs().max() == 0
    x0, f, step = embedded(model, IDS), model.attention(layer), 1e-5
    for position, token in [(0, 7), (3, 40), (5, 0)]:
        other = IDS.clone()
        other[position] = token
        move = embedded(model, other) - x0
        ends = torch.stack([entering(model, layer, x0 + sign * step * move) for sign in (1, -1)])
        up, down = local_lipschitz(f, ends, tol=1e-13).value
        # singular vectors of an evaluation are good to about the root of its tolerance
        assert abs((up - down) / (2 * step) - scores[position, token]) < 0.05 * scores.abs().max()


@pytest.mark.parametrize(
    "options", [{}, {"per_position": 5}, {"copies": (1,)}, {"copies": (3, 50)}]
)
def test_guided_search_keeps_its_promises(model, options):
    allowed = torch.ones(60, dtype=torch.bool)
    allowed[:10] = False
    found = guided_search(
        model, 0, IDS, evaluations=50, batch=8, allowed=allowed, progress=False, **options
    )
    assert len(found.history) == 50
    assert (found.history.diff() >= 0).all()
    assert found.value == found.history[-1] > found.history[0]
    assert evaluate(model, 0, found.ids[None]).item() == pytest.approx(found.value, rel=1e-3)
    changed = found.ids[found.ids != IDS]
    assert (changed >= 10).all()


@pytest.mark.parametrize("search", [guided_search, random_search])
@pytest.mark.parametrize(("copies", "most"), [((1,), 1), ((3,), 3)])
def test_one_round_puts_one_token_at_so_many_places(model, search, copies, most):
    found = search(model, 0, IDS, evaluations=21, batch=20, copies=copies, progress=False)
    assert found.value > found.history[0]
    changed = found.ids[found.ids != IDS]
    assert 1 <= len(changed) <= most
    assert len(set(changed.tolist())) == 1


def test_guided_proposals_are_the_promising_ones_and_none_is_tried_twice(model, monkeypatch):
    """With one token a position and one copy, the round is exactly the best exchange of every position."""
    tried = []

    def watched(model, layer, ids, attention=None):
        tried.append(ids.clone())
        return torch.zeros(len(ids), dtype=torch.float64)  # nothing is an improvement

    monkeypatch.setattr(token_attack, "evaluate", watched)
    found = guided_search(
        model, 0, IDS, evaluations=30, batch=4, copies=(1,), per_position=1, progress=False
    )
    rounds = torch.cat(tried[1:])
    scores = token_scores(model, 0, IDS)
    scores[torch.arange(6), IDS] = -torch.inf
    expected = IDS.repeat(6, 1)
    expected[torch.arange(6), torch.arange(6)] = scores.argmax(1)
    assert len(rounds) == 6
    assert {tuple(row) for row in rounds.tolist()} == {tuple(row) for row in expected.tolist()}
    assert torch.equal(found.ids, IDS)
    assert len(found.history) == 30


def test_random_search_keeps_its_promises_and_repeats(model):
    first, second = (
        random_search(model, 1, IDS, evaluations=40, batch=8, progress=False) for _ in range(2)
    )
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(first.history, second.history)
    assert (first.history.diff() >= 0).all()


def test_more_rounds_than_exchanges_end(model):
    allowed = torch.zeros(60, dtype=torch.bool)
    allowed[IDS[0]] = True
    found = guided_search(
        model, 0, IDS[:1], evaluations=30, batch=8, allowed=allowed, progress=False
    )
    assert found.ids.tolist() == [3]
    assert len(found.history) == 30


def test_bad_input_is_refused(model):
    with pytest.raises(ValueError, match="one sequence"):
        guided_search(model, 0, IDS.repeat(2, 1), evaluations=2, progress=False)
    with pytest.raises(IndexError):
        guided_search(model, 5, IDS, evaluations=2, progress=False)
    with pytest.raises(ValueError, match="allowed"):
        random_search(
            model, 0, IDS, evaluations=2, allowed=torch.ones(5, dtype=torch.bool), progress=False
        )
    with pytest.raises(ValueError, match="copies"):
        guided_search(model, 0, IDS, evaluations=2, copies=(), progress=False)
    with pytest.raises(ValueError, match="none"):
        random_search(
            model, 0, IDS, evaluations=2, allowed=torch.zeros(60, dtype=torch.bool), progress=False
        )
    with pytest.raises(ValueError, match="BERT"):
        token_scores(tiny("gpt2"), 0, IDS)
    for search in (guided_search, random_search):
        with pytest.raises(TypeError, match=r"token_ids: expected a torch.Tensor, got list"):
            search(model, 0, [1, 2], evaluations=2, progress=False)
        with pytest.raises(TypeError, match="copies: expected a sequence of counts, got 2"):
            search(model, 0, IDS, evaluations=2, copies=2, progress=False)


def test_search_where_gradients_are_off(model):
    expected = guided_search(model, 1, IDS, evaluations=6, progress=False).value
    with torch.no_grad():
        assert guided_search(model, 1, IDS, evaluations=6, progress=False).value == expected
