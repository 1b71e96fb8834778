"""Each method does what it says, seeds do not touch each other, and the stored results come again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from scipy import stats

from lab import training
from lab.training import (
    ACCURACY,
    EVERY,
    HEADS,
    LAYERS,
    METHODS,
    SEEDS,
    STEPS,
    Trained,
    attacked,
    attend,
    capped,
    initial,
    interval,
    logits,
    margins,
    measure,
    rounded,
    sequences,
    states,
    stored,
    train,
    weights,
)
from lipcore import Attention, local_lipschitz

ROOT = Path(__file__).resolve().parents[3]
STORED = ROOT / "book" / "data" / "training.json"
PENALTIES = [name for name, method in METHODS.items() if method.penalty is not None]


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@pytest.fixture
def some():
    """Weights of two seeds and four sequences each."""
    drawn = generators(3, 4)
    return initial(drawn), *sequences(drawn, 4)


def one(parameters, seed):
    return {name: W[seed : seed + 1] for name, W in parameters.items()}


def test_the_answer_stands_beside_the_key_that_is_asked_for():
    X, answers = sequences(generators(0), 50)
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
    torch.testing.assert_close(weights(parameters, 1, X)[0], layer.weights(X[0]))


def test_qk_norm_bounds_the_ratio_of_weights(some):
    parameters, X, _ = some
    P = weights(parameters, 0, 30 * X, 1.5)
    ratio = P.amax(-1) / P.amin(-1)
    assert 1.5 < ratio.max().log() <= 3 + 1e-9
    assert weights(parameters, 0, 30 * X).amax() > 0.999


@pytest.mark.parametrize("name", PENALTIES)
def test_gradient_of_a_penalty_against_finite_differences(some, name, monkeypatch):
    monkeypatch.setattr(training, "TOLERANCE", 1e-3)
    parameters, X, _ = some
    penalty, X = METHODS[name].penalty, X[:, :2]
    along = initial(generators(8, 9))
    free = {key: W.clone().requires_grad_() for key, W in parameters.items()}
    value = penalty(free, X)
    assert value.shape == (2,)
    slopes = torch.autograd.grad(value.sum(), list(free.values()), materialize_grads=True)
    slope = sum((g * along[key]).sum() for g, key in zip(slopes, free, strict=True))

    def at(step):
        return penalty({key: W + step * along[key] for key, W in parameters.items()}, X).sum()

    quotient = (at(1e-4) - at(-1e-4)).item() / 2e-4
    assert slope.item() == pytest.approx(quotient, rel=0.02)
    assert abs(quotient) > 1e-3


def test_penalties_are_what_their_names_say(some):
    parameters, X, _ = some
    entering = states(parameters, X)
    sigma = norms = rows = 0.0
    for layer in range(LAYERS):
        for x in entering[layer][0]:

            def at(Y, layer=layer):
                return attend(one(parameters, 0), layer, Y[None, None])[0, 0]

            J = torch.autograd.functional.jacobian(at, x).reshape(x.numel(), -1)
            sigma = sigma + torch.linalg.matrix_norm(J, 2) / len(X[0])
            P = weights(one(parameters, 0), layer, x[None, None])[0, 0]
            for h in range(HEADS):
                VO = parameters[f"output{layer}"][0, h] @ parameters[f"value{layer}"][0, h]
                product = torch.linalg.svdvals(VO)[0] * torch.linalg.svdvals(P[h])[0]
                norms = norms + product / len(X[0])
            jacobians = torch.diag_embed(P) - P[..., :, None] * P[..., None, :]
            rows = rows + torch.linalg.matrix_norm(jacobians, 2).mean() / (len(X[0]) * LAYERS)
    found = training.sigma_of_attention(parameters, X)[0].item()
    assert found == pytest.approx(sigma.item(), rel=1e-2)
    assert training.mixing(parameters, X)[0].item() == pytest.approx(norms.item(), rel=1e-9)
    bound = training.softmax_jacobian(parameters, X)[0].item()
    assert rows.item() <= bound <= 1.3 * rows.item()
    dense = [
        torch.linalg.matrix_norm(
            torch.autograd.functional.jacobian(
                lambda Y: logits(one(parameters, 0), Y[None, None])[0, 0], x
            ).flatten(1),
            2,
        )
        for x in X[0]
    ]
    found = training.sigma_of_network(parameters, X)[0].item()
    assert found == pytest.approx(torch.stack(dense).mean().item(), rel=1e-2)


def test_caps_keep_norms_below_and_move_as_little_as_they_can(some):
    parameters, _, _ = some
    clipped = capped(parameters, 0.7)
    for name, W in clipped.items():
        assert torch.linalg.matrix_norm(W, 2).max() <= 0.7 + 1e-9
        excess = (torch.linalg.svdvals(parameters[name]) - 0.7).clamp(min=0).norm(dim=-1)
        torch.testing.assert_close((W - parameters[name]).norm(dim=(-2, -1)), excess)
    trained = train(METHODS["spectral caps"], 0.7, (0,), steps=6)
    for W in trained.parameters.values():
        assert torch.linalg.matrix_norm(W, 2).max() <= 0.7 + 1e-9


@pytest.mark.parametrize("name", PENALTIES)
def test_a_strong_penalty_lowers_what_it_names(name):
    X, _ = sequences(generators(7), 4)
    free, held = (train(METHODS[name], strength, (0,), steps=24) for strength in (0.0, 10.0))
    penalty = METHODS[name].penalty
    assert penalty(held.parameters, X) < 0.9 * penalty(free.parameters, X)


def test_attacks_stay_in_the_ball_and_find_what_a_linear_margin_admits(some):
    parameters, X, answers = some
    trained = Trained(parameters, None)
    clear = margins(trained, X, answers)
    X_free = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(margins(trained, X_free, answers).sum(), X_free)
    least = attacked(trained, X, answers, 1e-4)
    torch.testing.assert_close(
        (clear - least) / 1e-4, slope.norm(dim=(-2, -1)), rtol=1e-2, atol=1e-6
    )
    further = attacked(trained, X, answers, 1.0)
    assert (further < least).all()


def test_margin_is_right_where_the_answer_is(some):
    parameters, X, answers = some
    scores = logits(parameters, X)
    clear = margins(Trained(parameters, None), X, answers)
    assert ((clear > 0) == (scores.argmax(-1) == answers)).all()
    second = scores.topk(2).values
    right = clear > 0
    torch.testing.assert_close(clear[right], (second[..., 0] - second[..., 1])[right])


def test_rounding_moves_weights_by_half_a_step_at_most(some):
    parameters, _, _ = some
    for name, W in rounded(parameters, "int8").items():
        step = parameters[name].abs().amax(-1, keepdim=True) / 127
        assert ((W - parameters[name]).abs() <= step / 2 * (1 + 1e-9)).all()
        assert len((W / step).round().unique()) <= 255
    for name, W in rounded(parameters, "bfloat16").items():
        assert ((W - parameters[name]).abs() <= 2.0**-8 * parameters[name].abs()).all()
        assert (W != parameters[name]).any()
    with pytest.raises(ValueError, match=r"^kind: "):
        rounded(parameters, "int4")


def test_interval_is_students():
    values = [0.3, 1.2, 0.8, 0.9, 2.0]
    wanted = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert interval(values) == pytest.approx((wanted.low, wanted.high))


def test_measured_sigma_is_that_of_the_layers(some, monkeypatch):
    monkeypatch.setattr(training, "HELD_OUT", 16)
    monkeypatch.setattr(training, "MEASURED", 2)
    parameters, _, _ = some
    found = measure(Trained(parameters, None), (3, 4))
    X, _ = training.held_out((3, 4))
    few = X[:, : training.MEASURED]
    layers = [
        local_lipschitz(lambda Y, i=i: attend(parameters, i, Y), states(parameters, few)[i]).value
        for i in range(LAYERS)
    ]
    wanted = torch.maximum(*layers).mean(-1)
    torch.testing.assert_close(found["sigma attention"], wanted, rtol=1e-3, atol=0)
    fewer = measure(Trained(parameters, None), (3, 4), radii=(0.5,))
    left_out = [key for key in found if key.startswith("attacked") and key != "attacked 0.5"]
    assert list(fewer) == [key for key in found if key not in left_out] and len(left_out) == 2
    torch.testing.assert_close(fewer["attacked 0.5"], found["attacked 0.5"])


def test_what_is_stored_is_complete_and_was_chosen_as_the_page_says():
    table = stored()
    assert list(table.index) == list(METHODS)
    for name, row in table.iterrows():
        assert len(row["losses"]) == STEPS // EVERY
        assert all(len(row[key]) == len(SEEDS) for key in row.index[3:])
        tried = [row["tried"].get(f"{s:g}") for s in METHODS[name].strengths]
        kept = [accuracy for accuracy in tried if accuracy is not None]
        assert kept == tried[: len(kept)]
        assert METHODS[name].strengths[len(kept) - 1] == row["strength"]
        assert kept[-1] >= ACCURACY and all(accuracy < ACCURACY for accuracy in kept[:-1])


def test_one_command_makes_the_whole_file(monkeypatch, tmp_path):
    """Two steps of training and few sequences: every method, and every number that is stored."""
    for name, small in {"HELD_OUT": 8, "MEASURED": 1, "PENALISED": 1, "BATCH": 8}.items():
        monkeypatch.setattr(training, name, small)
    recipe = (ROOT / "Makefile").read_text(encoding="utf8").split("\ntraining:")[1].split("\n")[1]
    assert recipe.endswith("python -m lab.training book/data/training.json")
    file = tmp_path / "training.json"
    whole, studied = training.study, []

    def study(name, **options):
        studied.append(name)
        if studied == ["plain", "σ of attention"]:
            raise KeyboardInterrupt
        return whole(name, **options)

    monkeypatch.setattr(training, "study", study)
    with pytest.raises(KeyboardInterrupt):
        training.main([str(file), "--steps", "2"])
    assert not file.exists()
    assert training.main([str(file), "--steps", "2"]) == 0
    assert studied == ["plain", "σ of attention", *list(METHODS)[1:]]
    assert list(tmp_path.iterdir()) == [file]
    made, kept = (json.loads(path.read_text(encoding="utf8")) for path in (file, STORED))
    assert made["made"].keys() == kept["made"].keys()
    assert kept["made"]["command"] == "make training"
    assert made["made"]["command"] == "make training with 2 steps"
    for one, other in zip(made["methods"], kept["methods"], strict=True):
        assert list(one) == list(other)
        assert all(len(one[key]) == len(SEEDS) for key in list(one)[4:])
        assert one["tried"].keys() <= {f"{s:g}" for s in METHODS[one["name"]].strengths}


@pytest.mark.parametrize("name", list(METHODS))
def test_training_anew_begins_as_what_is_stored(name):
    row = stored().loc[name]
    begun = train(METHODS[name], row["strength"], SEEDS[:2], steps=EVERY + 1).losses[::EVERY]
    kept = torch.tensor(row["losses"], dtype=torch.float64)[:2, :2]
    torch.testing.assert_close(begun, kept, rtol=1e-3, atol=0)
