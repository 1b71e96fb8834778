"""Each method does what it says, seeds do not touch each other, and the stored results come again."""

from __future__ import annotations

import json

import pytest
import torch

from lab import training
from lab.stored import stored_file
from lab.training import METHODS, Trained, attend, initial, logits, margins, states, train
from lipcore import Attention, local_lipschitz

PENALTIES = [name for name, method in METHODS.items() if method.penalty is not None]


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
    assert len(answers.unique()) == training.VALUES


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
    found = {name: METHODS[name].penalty(parameters, X)[0].item() for name in PENALTIES}
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


def test_measured_sigma_is_that_of_the_layers(some, monkeypatch):
    monkeypatch.setattr(training, "HELD_OUT", 16)
    monkeypatch.setattr(training, "MEASURED", 2)
    parameters, _, _ = some
    found = training.measure(Trained(parameters, None), (3, 4), radii=(0.5,))
    assert [key for key in found if key.startswith("attacked")] == ["attacked 0.5"]
    X, _ = training.held_out((3, 4))
    few = X[:, : training.MEASURED]
    layers = [
        local_lipschitz(lambda Y, i=i: attend(parameters, i, Y), states(parameters, few)[i]).value
        for i in range(training.LAYERS)
    ]
    wanted = torch.maximum(*layers).mean(-1)
    torch.testing.assert_close(found["sigma attention"], wanted, rtol=1e-3, atol=0)


def test_what_is_stored_was_chosen_as_the_page_says():
    """The strength is the first, from smooth to free, that keeps the accuracy."""
    for name, row in training.stored().iterrows():
        tried = list(row["tried"].values())
        assert [*row["tried"]] == [f"{s:g}" for s in METHODS[name].strengths[: len(tried)]]
        assert METHODS[name].strengths[len(tried) - 1] == row["strength"]
        assert tried[-1] >= training.ACCURACY > max(tried[:-1], default=0)


def test_one_command_makes_the_whole_file(monkeypatch, tmp_path):
    """Two steps of training and few sequences: every number that is stored, after a break, too."""
    for name, small in {
        "HELD_OUT": 8,
        "MEASURED": 1,
        "PENALISED": 1,
        "BATCH": 8,
        "STEPS": 2,
    }.items():
        monkeypatch.setattr(training, name, small)
    file = tmp_path / "training.json"
    whole, studied = training.study, []

    def study(name):
        studied.append(name)
        if studied == ["plain", "σ of attention"]:
            raise KeyboardInterrupt
        return whole(name)

    monkeypatch.setattr(training, "study", study)
    with pytest.raises(KeyboardInterrupt):
        training.main([str(file)])
    assert not file.exists()
    assert training.main([str(file)]) == 0
    assert studied == ["plain", "σ of attention", *list(METHODS)[1:]]
    assert list(tmp_path.iterdir()) == [file]
    stored_as = stored_file("training.json", training.COMMAND)
    made, kept = (json.loads(path.read_text(encoding="utf8")) for path in (file, stored_as))
    assert made["made"].keys() == kept["made"].keys()
    for row, other in zip(made["methods"], kept["methods"], strict=True):
        assert row["name"] == other["name"] and list(row) == list(other)
        assert all(
            len(rows[key]) == len(training.SEEDS) for rows in (row, other) for key in list(row)[4:]
        )


@pytest.mark.parametrize("name", list(METHODS))
def test_training_anew_begins_as_what_is_stored(name):
    row = training.stored().loc[name]
    begun = train(
        METHODS[name], row["strength"], training.SEEDS[:2], steps=training.EVERY + 1
    ).losses[:: training.EVERY]
    kept = torch.tensor(row["losses"], dtype=torch.float64)[:2, :2]
    torch.testing.assert_close(begun, kept, rtol=1e-3, atol=0)
