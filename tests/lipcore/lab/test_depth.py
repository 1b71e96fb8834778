"""Numbers through the depth of a model: against dense Jacobians, and what is stored."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="needs lipcore[book]")

from lab import depth


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True)
        norm = nn.LayerNorm(4)
        model = nn.TransformerEncoder(layer, 3, norm, enable_nested_tensor=False).double().eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter)
    return model


def norm(J):
    return torch.linalg.matrix_norm(J, 2).item()


def test_numbers_are_those_of_the_dense_jacobians(model):
    X = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    dense, at = [], X
    for part in (*model.layers, model.norm):
        J = torch.autograd.functional.jacobian(lambda x: part(x[None])[0], at[0])  # noqa: B023
        dense.append(J.reshape(12, 12))
        at = part(at).detach()
    stacks = [torch.linalg.multi_dot([torch.eye(12).double(), *dense[k::-1]]) for k in range(4)]
    whole = stacks[-1]
    rows = whole.reshape(3, 4, 12)
    v = torch.linalg.svd(whole)[2][0]
    found = depth.through(model, "norm", read=1, tol=1e-8, src=X)
    for name, expected in {
        "sigma": [norm(J) for J in dense],
        "branch": [norm(J - torch.eye(12).double()) for J in dense],
        "up_to": [norm(J) for J in stacks],
        "model": norm(whole),
        "read": norm(rows[1]),
        "token": max(map(norm, rows)),
        "others": norm(rows[1:].flatten(0, 1)),
    }.items():
        assert found[name] == pytest.approx(expected, rel=1e-6), name
    assert found["from"] == pytest.approx(v.reshape(3, 4).square().sum(-1).tolist(), rel=1e-4)
    moves = zip(dense, found["gain"], found["cosine"], found["first"], strict=True)
    for J, gain, cosine, first in moves:
        own, image = torch.linalg.svd(J)[2][0], J @ v
        assert cosine == pytest.approx(abs(own @ v).item() / v.norm().item(), rel=1e-4)
        assert gain == pytest.approx((image.norm() / v.norm()).item(), rel=1e-4)
        assert first == pytest.approx((image[:4].norm() / image.norm()).item() ** 2, rel=1e-3)
        v = image
    other = depth.product_and_whole(model, "norm", tol=1e-8, src=X)
    assert other["product"] == pytest.approx(math.prod(map(norm, dense)), rel=1e-6)
    assert other["model"] == pytest.approx(norm(whole), rel=1e-6)


def test_one_command_stores_the_rows_and_goes_on_where_it_was_interrupted(monkeypatch, tmp_path):
    asked = []

    def measured(name):
        asked.append(name)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return {"name": name, "sigma": [1.2345678]}

    monkeypatch.setattr(depth, "measured", measured)
    file = tmp_path / "depth.json"
    with pytest.raises(KeyboardInterrupt):
        depth.main(str(file))
    depth.main(str(file))
    assert asked == ["minilm", "smollm2", "smollm2", "vit"] and [*tmp_path.iterdir()] == [file]
    monkeypatch.setattr(depth, "stored_file", lambda *_: file)
    assert depth.stored() == [{"name": name, "sigma": [1.23457]} for name in depth.MODELS]


def test_a_chain_that_is_none():
    class Skipping(nn.TransformerEncoder):
        def forward(self, X):
            return self.layers[1](2 * self.layers[0](X))

    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = Skipping(layer, 2, enable_nested_tensor=False).double().eval()
    with pytest.raises(ValueError, match=r"layers\.0"):
        depth.chain(model, X=torch.ones(1, 2, 4).double())


@pytest.fixture(scope="module")
def stored():
    return {row["name"]: row for row in depth.stored()}


@pytest.mark.parametrize("name", depth.MODELS)
def test_stored_numbers_agree_with_one_another(stored, name):
    row = stored[name]
    tokens = depth.SIDE**2 + 1 if depth.MODELS[name].photographs else depth.LENGTH
    assert len(row["from"]) == len(row["to"]) == row["n"] == tokens
    assert len(row["again"]) == depth.INPUTS - 1
    gains = torch.tensor(row["gain"])
    assert gains.prod().item() == pytest.approx(row["model"], rel=1e-3)
    assert row["up_to"][-1] == pytest.approx(row["model"], rel=1e-3)
    assert (gains <= torch.tensor(row["sigma"]) * (1 + depth.TOLERANCE)).all()
    assert sum(row["from"]) == pytest.approx(1, rel=1e-4)
    assert sum(row["to"]) == pytest.approx(1, rel=1e-4)
    assert row["read"] <= row["token"] * (1 + depth.TOLERANCE)
    assert all(one["model"] < 1e-3 * one["product"] for one in row["again"])


@pytest.mark.parametrize(("name", "again"), [("smollm2", [11, 30]), ("vit", [0, 5, 12])])
def test_measured_again(stored, name, again):
    """Some blocks of the first input, the last of which is the normalisation after the blocks."""
    model = depth.load(name, dtype=torch.float64)
    first = depth.inputs_of(name, model)[0]
    module = depth.module_of(model)
    names = [*depth.blocks(module), *depth.MODELS[name].after]
    calls = depth.record(module, [names[k] for k in again], **first)
    maps = [depth.captured(call) for call in calls]
    factors = depth.jacobians(maps)
    found = [depth.spectral_norm(J, tol=1e-3).value.item() for J in factors]
    assert found == pytest.approx([stored[name]["sigma"][k] for k in again], rel=2e-3)
    if name == "vit":  # the class token comes first, and the size is that which is stored
        embedded = model.model.embeddings(**first)
        torch.testing.assert_close(maps[0].X, embedded)
        size = embedded.square().sum(-1).mean().sqrt().item()
        assert size == pytest.approx(stored[name]["size"][0], rel=1e-4)
