"""The stored measurements of images and speech: complete, small, and what a new measurement finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lab import images_and_speech as lab
from lab import models
from lab.models.signals import shortened, spectrogram, speech
from lab.why_it_grows import term_shares
from lipcore import local_lipschitz

DATA = Path(__file__).resolve().parents[3] / "book" / "data" / "images_and_speech.parquet"
ATTRIBUTES = ["model", "shown", "length"]
SIZES = ["sigma", "weighted", "map", "audience"]
SHARES = ["first", "largest", "mixing", "own_query", "others_keys"]


@pytest.fixture(scope="module")
def table():
    return lab.stored()


def test_has_every_cell_of_the_plan_and_no_other(table):
    assert DATA.stat().st_size < 500_000
    layers = {row["name"]: row["layers"] for row in models.available()}
    expected = [
        (cell.model, cell.shown, cell.length, layer, member)
        for cell in lab.plan()
        for layer in range(layers[cell.model])
        for member in range(cell.count)
    ]
    found = table[[*ATTRIBUTES, "layer", "member"]].itertuples(index=False, name=None)
    assert list(found) == expected


def test_numbers_are_whole_and_of_the_right_size(table):
    assert not table.isna().any(axis=None) and (table.sigma > 0).all()
    assert ((table["first"] >= 0) & (table["first"] <= table.largest + 1e-6)).all()
    assert (table.largest <= 1 + 1e-6).all() and (table.place < table.n).all()
    assert ((table["first"] - table.largest).abs()[table.place == 0] < 1e-6).all()
    terms = table[["mixing", "own_query", "others_keys"]].sum(axis=1)
    assert (terms - 1).abs().max() < 0.05
    # the rows of attention weights sum to one: the norm is at least one, and by Schur's test no more
    assert (table["map"] >= 1 - 1e-3).all()
    assert (table["map"] <= np.sqrt(table.n * table.audience) * 1.01).all()
    tokens = table.length.where(table.model == "whisper", table.length**2 + 1)
    assert (table.n == tokens).all()


def test_says_how_it_was_made(table):
    assert table.attrs["command"] == "make images" and table.attrs["seconds"] > 60
    known = {row["name"]: row["sha256"] for row in models.available()}
    assert table.attrs["weights"] == {name: known[name] for name in ("vit", "whisper")}


#: A quick cell of everything that is shown, with two of its layers, so that each has its turn.
CHOSEN = [
    (cell, {i % layers, (i + 6) % layers})
    for model, length, layers in (("vit", 4, 12), ("whisper", 32, 4))
    for i, cell in enumerate(x for x in lab.plan() if (x.model, x.length) == (model, length))
]


@pytest.mark.parametrize(("cell", "layers"), CHOSEN, ids=str)
def test_a_new_measurement_agrees(table, cell, layers):
    """Of the first photograph, or the first piece of the recording."""
    kept = table[(table[ATTRIBUTES] == [cell.model, cell.shown, cell.length]).all(axis=1)]
    kept = kept[kept.member == 0].set_index("layer")
    for row in lab.measure(replace(cell, count=1), layers):
        for name in SIZES:
            assert row[name] == pytest.approx(kept[name][row["layer"]], rel=1e-3)
        for name in SHARES:
            assert row[name] == pytest.approx(kept[name][row["layer"]], abs=2e-3)


def test_everything_that_is_shown_is_measured_again(table):
    shown = {(cell.model, cell.shown) for cell, _ in CHOSEN}
    assert shown == {*map(tuple, table[["model", "shown"]].drop_duplicates().to_numpy())}


def test_stored_shares_have_converged(table):
    """Where a second direction is close, against what another start and many more steps give."""
    length, start, layer = 128, 779, 3
    heard = spectrogram(speech())[None, :, 2 * start : 2 * (start + length)]
    model = shortened(models.load("whisper"), length)
    f = lab.attentions(model, input_features=heard)[layer].to(torch.float64)
    X = lab.entering(model, input_features=heard)[layer][0].double()
    found = local_lipschitz(f, X, tol=1e-10, generator=torch.Generator().manual_seed(1))
    energy = found.right.square().sum(-1)
    expected = [energy[0], energy.max(), *term_shares(f, X, found)]
    chosen = "shown == 'speech' and length == @length and layer == @layer and member == 3"
    (kept,) = table.query(chosen).to_dict("records")
    assert kept["sigma"] == pytest.approx(found.value.item(), rel=1e-4)
    assert [kept[name] for name in SHARES] == pytest.approx([x.item() for x in expected], abs=1e-3)
    assert kept["place"] == energy.argmax()


def test_blocks_are_exchanged_or_repeated():
    image = torch.arange(2 * 4 * 6.0).reshape(2, 4, 6)
    mixed = lab.shuffled(image, (2, 3), torch.Generator().manual_seed(1))
    assert not torch.equal(mixed, image)
    corners = sorted(mixed[0, ::2, ::3].flatten().tolist())
    assert corners == sorted(image[0, ::2, ::3].flatten().tolist())
    block = mixed[:, :2, :3] - mixed[:, :1, :1]
    torch.testing.assert_close(block, image[:, :2, :3] - image[:, :1, :1])
    sound = lab.repeated(image[:, 0], (3,), torch.Generator().manual_seed(0))
    torch.testing.assert_close(sound, sound[:, :3].repeat(1, 2))


def test_noise_of_the_same_spectrum():
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(3, 14, 14, generator=generator, dtype=torch.float64)
    noise = lab.same_spectrum(image, generator)
    assert not torch.allclose(noise, image, atol=0.1)
    torch.testing.assert_close(torch.fft.fft2(noise).abs(), torch.fft.fft2(image).abs())
    torch.testing.assert_close(noise.mean((1, 2)), image.mean((1, 2)))


def test_permuted_weights_keep_their_entries():
    model = models.load("whisper")
    mixed = lab.with_permuted_weights(model, torch.Generator().manual_seed(0))
    before, after = (m.model.layers[1].fc1.weight for m in (model, mixed))
    assert not torch.equal(before, after)
    assert torch.equal(before.flatten().sort().values, after.flatten().sort().values)
    assert torch.equal(model.model.embed_positions.weight, mixed.model.embed_positions.weight)


def test_shares_and_predictors_against_their_definitions():
    model = models.load("vit")
    image = next(iter(lab.photographs().values()))
    inputs = {"pixel_values": lab.patches(image, 2)[None]}
    layer = lab.attentions(model, **inputs)[3].to(torch.float64)
    X = lab.entering(model, **inputs)[3].double()
    running = model.model.encoder.layer[3].attention.double()
    torch.testing.assert_close(layer(X), running(X)[0], atol=1e-6, rtol=1e-6)
    running.float()
    (row,) = lab.measure_tokens(layer, X)
    found = local_lipschitz(layer, X, tol=1e-10)
    assert row["sigma"] == pytest.approx(found.value.item(), rel=1e-5)
    P = layer.weights(X)[0]
    norms = torch.linalg.matrix_norm(P, 2)
    loud = torch.linalg.matrix_norm(layer.value_matrices(), 2)
    assert row["map"] == pytest.approx(norms.max().item(), rel=1e-3)
    assert row["weighted"] == pytest.approx((norms * loud).norm().item(), rel=1e-3)
    assert row["audience"] == pytest.approx(P.mean(-2).max().item())
