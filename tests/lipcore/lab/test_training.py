"""Each method does what it says, seeds do not touch each other, and the stored results come again."""

from __future__ import annotations

import pytest
import torch

from lab import training
from lab.training import METHODS, Trained, attend, initial, logits, margins, states, train
from lipcore import Attention


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@pytest.fixture
def some():
    """Weights of two seeds and four sequences each."""
    drawn = generators(3, 4)
    return initial(drawn), *training.sequences(drawn, 4)


def one(parameters, seed):
    return {name: W[seed : seed + 1] for name, W in parameters.items()}


def test_the_answer_stands_beside_the_key_that_is_asked_for():
    X, answers = training.sequences(generators(0), 50)
    table = training.embeddings()
    key = X[0, :, -1] - table["question"]
    pairs = key[:, None] + table["value"][answers[0]][:, None]
    hits = (X[0, :, :-1] - pairs).norm(dim=-1) < 1e-9
    assert (hits.sum(-1) == 1).all()


def test_seeds_do_not_touch_each_other(some):
    parameters, X, _ = some
    both = logits(parameters, X)
    for seed in range(2):
        torch.testing.assert_close(logits(one(parameters, seed), X[seed][None])[0], both[seed])
    together = train(METHODS["plain"], 0.0, (5, 6), steps=6)
    alone = train(METHODS["plain"], 0.0, (6,), steps=6)
    torch.testing.assert_close(together.losses[:, 1], alone.losses[:, 0])
    assert not torch.allclose(together.losses[:, 0], together.losses[:, 1])


def test_a_layer_is_the_attention_of_the_package(some):
    parameters, X, _ = some
    layer = Attention(
        query=parameters["query1"][0],
        key=parameters["key1"][0],
        value=parameters["value1"][0],
        output=torch.cat(list(parameters["output1"][0]), -1),
    )
    torch.testing.assert_close(attend(parameters, 1, X)[0], layer(X[0]))
    torch.testing.assert_close(training.weights(parameters, 1, X)[0], layer.weights(X[0]))


def test_qk_norm_bounds_the_ratio_of_weights(some):
    parameters, X, _ = some
    P = training.weights(parameters, 0, 30 * X, 1.5)
    ratio = P.amax(-1) / P.amin(-1)
    assert 1.5 < ratio.max().log() <= 3 + 1e-9
    assert training.weights(parameters, 0, 30 * X).amax() > 0.999


def test_penalties_are_what_their_names_say(some):
    """Against dense Jacobians and singular values, for one seed, averaged over sequences."""
    parameters, X, _ = some
    X = X[:, :2]
    alone = one(parameters, 0)

    def dense_norm(fn, x):
        J = torch.autograd.functional.jacobian(lambda Y: fn(Y[None, None])[0, 0], x)
        return torch.linalg.matrix_norm(J.flatten(-2).flatten(0, -2), 2)

    entering = states(parameters, X)
    sigma = norms = rows = 0.0
    for layer in range(training.LAYERS):
        VO = (alone[f"output{layer}"] @ alone[f"value{layer}"])[0]
        for x in entering[layer][0]:
            sigma += dense_norm(lambda Y, layer=layer: attend(alone, layer, Y), x) / len(X[0])
            P = training.weights(alone, layer, x[None, None])[0, 0]
            for h in range(training.HEADS):
                norms += torch.linalg.svdvals(VO[h])[0] * torch.linalg.svdvals(P[h])[0] / len(X[0])
            jacobians = torch.diag_embed(P) - P[..., :, None] * P[..., None, :]
            rows += torch.linalg.matrix_norm(jacobians, 2).mean() / (len(X[0]) * training.LAYERS)
    network = torch.stack([dense_norm(lambda Y: logits(alone, Y), x) for x in X[0]]).mean()
    found = {
        name: method.penalty(parameters, X)[0].item()
        for name, method in METHODS.items()
        if method.penalty is not None
    }
    assert found["σ of attention"] == pytest.approx(sigma.item(), rel=1e-2)
    assert found["σ of the network"] == pytest.approx(network.item(), rel=1e-2)
    assert found["‖P‖ and values"] == pytest.approx(norms.item(), rel=1e-9)
    assert rows.item() <= found["softmax penalty"] <= 1.3 * rows.item()


def test_caps_keep_norms_below_and_move_as_little_as_they_can(some):
    parameters, _, _ = some
    for name, W in training.capped(parameters, 0.7).items():
        assert torch.linalg.matrix_norm(W, 2).max() <= 0.7 + 1e-9
        excess = (torch.linalg.svdvals(parameters[name]) - 0.7).clamp(min=0).norm(dim=-1)
        torch.testing.assert_close((W - parameters[name]).norm(dim=(-2, -1)), excess)
    trained = train(METHODS["spectral caps"], 0.7, (0,), steps=6)
    for W in trained.parameters.values():
        assert torch.linalg.matrix_norm(W, 2).max() <= 0.7 + 1e-9


def test_margins_and_attacks_on_them(some):
    """Attacks find what a linear margin admits near by, and more further away."""
    parameters, X, answers = some
    trained = Trained(parameters, None)
    X.requires_grad_()
    clear = margins(trained, X, answers)
    scores = logits(parameters, X)
    assert ((clear > 0) == (scores.argmax(-1) == answers)).all()
    second, right = scores.topk(2).values, clear > 0
    torch.testing.assert_close(clear[right], (second[..., 0] - second[..., 1])[right])
    (slope,) = torch.autograd.grad(clear.sum(), X)
    least = training.attacked(trained, X, answers, 1e-4)
    lost = (clear - least) / 1e-4
    torch.testing.assert_close(lost, slope.norm(dim=(-2, -1)), rtol=1e-2, atol=1e-6)
    assert (training.attacked(trained, X, answers, 1.0) < least).all()


def test_rounding_moves_weights_by_half_a_step_at_most(some):
    parameters, _, _ = some
    for name, W in training.rounded(parameters, "int8").items():
        step = parameters[name].abs().amax(-1, keepdim=True) / 127
        assert ((W - parameters[name]).abs() <= step / 2 * (1 + 1e-9)).all()
        assert len((W / step).round().unique()) <= 255
    for name, W in training.rounded(parameters, "bfloat16").items():
        assert ((W - parameters[name]).abs() <= 2.0**-8 * parameters[name].abs()).all()
        assert (W != parameters[name]).any()


def test_what_is_stored_was_chosen_as_the_page_says():
    """The strength is the first, from smooth to free, that keeps the accuracy."""
    for name, row in training.stored().iterrows():
        tried = list(row["tried"].values())
        assert [*row["tried"]] == [f"{s:g}" for s in METHODS[name].strengths[: len(tried)]]
        assert METHODS[name].strengths[len(tried) - 1] == row["strength"]
        assert tried[-1] >= training.ACCURACY > max(tried[:-1], default=0)


def test_one_command_makes_the_file_in_its_form(monkeypatch, tmp_path):
    """Two steps of training of one method, and few sequences: every number that is stored."""
    small = {"HELD_OUT": 8, "MEASURED": 1, "PENALISED": 1, "BATCH": 8, "STEPS": 2}
    small["METHODS"] = {"QK-norm": METHODS["QK-norm"]._replace(strengths=(8.0,))}
    for name, value in small.items():
        monkeypatch.setattr(training, name, value)
    file = tmp_path / "training.json"
    training.main(file)
    assert list(tmp_path.iterdir()) == [file]
    kept = training.stored()
    monkeypatch.setattr("lab.stored.stored_file", lambda *_: file)
    made = training.stored()
    assert made.attrs.keys() == kept.attrs.keys()
    assert [*made.index] == ["QK-norm"] and [*made.columns] == [*kept.columns]
    assert made.iloc[0, 3:].map(len).eq(len(training.SEEDS)).all()
    assert kept.iloc[:, 3:].map(len).eq(len(training.SEEDS)).all(axis=None)


@pytest.mark.parametrize("name", list(METHODS))
def test_training_anew_begins_as_what_is_stored(name):
    row = training.stored().loc[name]
    begun = train(METHODS[name], row["strength"], (0,), steps=training.EVERY + 1)
    kept = torch.tensor(row["losses"], dtype=torch.float64)[:2, :1]
    torch.testing.assert_close(begun.losses[:: training.EVERY], kept, rtol=1e-3, atol=0)
