"""Folders with a checkpoint of any architecture, read with the network cut, and measured as they run."""

from __future__ import annotations

import socket

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs lipcore[models]")

from lab.models import LanguageModel, load  # noqa: E402
from lab.models.layers import ARCHITECTURES  # noqa: E402
from lipcore import measure  # noqa: E402
from tiny_models import CONFIGS, config_of, inputs_of, tiny_model  # noqa: E402


@pytest.fixture
def no_network(monkeypatch):
    """Any attempt to reach another machine fails the test."""

    def refuse(*_):
        pytest.fail("asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def save(family, folder):
    """The tiny model of a family as a folder; of Whisper the whole, which a folder holds."""
    model = transformers.AutoModel.from_config(config_of(family))
    if family != "whisper":
        model = tiny_model(family).float()
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family(family, tmp_path, no_network):
    loaded = load(save(family, tmp_path), dtype=torch.float64)
    kind = config_of(family).model_type
    assert isinstance(loaded, LanguageModel) == (kind in ARCHITECTURES)
    inputs = inputs_of(family)
    if family == "whisper":
        inputs["decoder_input_ids"] = torch.tensor([[1, 2, 3], [4, 5, 6]])
    table = measure(loaded, **inputs, layers=0)
    assert bool(table["converged"].all() and (table["lower"] <= table["upper"]).all())
    if family != "whisper":
        expected = measure(tiny_model(family).float().double(), **inputs, layers=0)
        assert table["sigma"].tolist() == pytest.approx(expected["sigma"].tolist(), rel=1e-5)


@pytest.mark.parametrize("family", ("bert", "gpt2"))
def test_padding_of_layers_that_are_read(family, tmp_path):
    """What enters a layer, and the layer itself, are those of the padded run."""
    model = load(save(family, tmp_path), dtype=torch.float64)
    ids = inputs_of(family)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    table = measure(model, input_ids=ids, attention_mask=mask, scope="attention", layers=1)
    X = model.hidden_states(1, ids, attention_mask=mask)
    attention = model.attention(1, attention_mask=mask, output_projection=family != "bert")
    sigma = torch.linalg.matrix_norm(attention.jacobian(X).dense(), 2)
    assert table["sigma"].tolist() == pytest.approx(sigma.tolist(), rel=1e-4)
    short = model.hidden_states(1, ids[1:, :3])
    torch.testing.assert_close(X[1, :3], short[0])
    torch.testing.assert_close(attention(X)[1, :3], model.attention(
        1, output_projection=family != "bert")(short)[0])  # fmt: skip
    with pytest.raises(ValueError, match=r"^attention_mask: "):
        model.hidden_states(1, ids, attention_mask=mask[:1])
    with pytest.raises(TypeError, match=r"^attention_mask: "):
        model.hidden_states(1, ids, attention_mask=[1])
