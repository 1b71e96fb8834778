"""Folders with a checkpoint of any architecture, read with the network cut, and measured as they run."""

from __future__ import annotations

import json
import socket

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs lipcore[models]")

from lab.__main__ import main  # noqa: E402
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
    assert all(row["converged"] and row["lower"] <= row["upper"] for row in table)
    if family != "whisper":
        expected = measure(tiny_model(family).float().double(), **inputs, layers=0)
        assert table["sigma"] == pytest.approx(expected["sigma"], rel=1e-5)


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
    assert table["sigma"] == pytest.approx(sigma.tolist(), rel=1e-4)
    short = model.hidden_states(1, ids[1:, :3])
    torch.testing.assert_close(X[1, :3], short[0])
    torch.testing.assert_close(attention(X)[1, :3], model.attention(
        1, output_projection=family != "bert")(short)[0])  # fmt: skip
    with pytest.raises(ValueError, match=r"^attention_mask: "):
        model.hidden_states(1, ids, attention_mask=mask[:1])
    with pytest.raises(TypeError, match=r"^attention_mask: "):
        model.hidden_states(1, ids, attention_mask=[1])


class TestCommandLine:
    @pytest.fixture
    def run(self, capsys):
        def run(*arguments):
            capsys.readouterr()  # the library's bars
            code = main(["measure", *map(str, arguments)])
            return code, *capsys.readouterr()

        return run

    def test_ids(self, run, tmp_path, no_network):
        folder = save("qwen3", tmp_path)
        (tmp_path / "ids.json").write_text("[[1, 2, 3, 4, 5], [6, 7, 8]]")
        where = ("--model", folder, "--ids", tmp_path / "ids.json")
        code, out, err = run(*where, "--layers", "all", "--json")
        assert (code, err) == (0, "")
        report = json.loads(out)
        assert report["inputs"] == {"input_ids": [2, 5], "attention_mask": [2, 5]}
        ids = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])
        mask = torch.tensor([[1] * 5, [1, 1, 1, 0, 0]])
        expected = measure(load(folder), input_ids=ids, attention_mask=mask)
        assert [row["sigma"] for row in report["rows"]] == pytest.approx(expected["sigma"])
        code, out, _ = run(*where, "--layers", "1", "--scope", "block")
        assert code == 0
        names = [line.split()[0] for line in out.splitlines()]
        assert (names.count("layers.1"), names.count("layers.0")) == (2, 0), out
        code, out, _ = run(*where, "--scope", "model")
        assert "last_hidden_state as a map of what enters layers.0" in " ".join(out.split())

    def test_inputs_by_name(self, run, tmp_path):
        folder = save("t5", tmp_path)
        content = {"input_ids": [[1, 2, 3]], "decoder_input_ids": [[4, 5]]}
        (tmp_path / "ids.json").write_text(json.dumps(content))
        code, out, _ = run("--model", folder, "--ids", tmp_path / "ids.json", "--json")
        assert code == 0
        assert [row["shape"] for row in json.loads(out)["rows"]] == [[3, 8], [2, 8], [2, 8]]

    def test_a_decoder_without_tokens_of_its_own_reads_the_same(self, run, tmp_path):
        folder = save("bart", tmp_path)
        (tmp_path / "ids.json").write_text("[1, 2, 3]")
        code, out, _ = run("--model", folder, "--ids", tmp_path / "ids.json", "--json")
        assert code == 0
        assert json.loads(out)["inputs"] == {"decoder_input_ids": [1, 3], "input_ids": [1, 3]}

    def test_image(self, run, tmp_path):
        image = pytest.importorskip("PIL.Image")
        folder = save("vit", tmp_path)
        image.new("RGB", (10, 12), (200, 30, 90)).save(tmp_path / "red.png")
        where = ("--model", folder, "--image", tmp_path / "red.png")
        code, _, err = run(*where)
        assert code == 2
        assert "image: " in err
        transformers.ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(folder)
        code, out, err = run(*where, "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)["inputs"] == {"pixel_values": [1, 3, 8, 8]}
        (tmp_path / "red.png").write_text("no image")
        code, _, err = run(*where)
        assert code == 2
        assert "red.png" in err

    @pytest.mark.parametrize(("content", "message"), (
        ("nothing", "ids: "),
        ("[]", "ids: "),
        ("{}", "ids: "),
        ("[[1.5]]", "ids: "),
        ('{"input_ids": [[1], [1, 2]]}', "ids: "),
    ))  # fmt: skip
    def test_files_that_are_no_ids(self, run, tmp_path, content, message):
        folder = save("bert", tmp_path)
        (tmp_path / "ids.json").write_text(content)
        code, out, err = run("--model", folder, "--ids", tmp_path / "ids.json")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err

    @pytest.mark.parametrize(("options", "message"), (
        ("--layer 0 --layers all", "not allowed with"),
        ("--layer 0 --ids x.json", "ids: "),
        ("--layer 0 --scope block", "scope: "),
        ("--head 1", "head: "),
        ("--ids x.json --text pydoc", "ids, text: "),
        ("--ids x.json --layers 7", "ids: "),
    ))  # fmt: skip
    def test_options_that_do_not_go_together(self, run, tmp_path, options, message):
        code, out, err = run("--model", save("bert", tmp_path), *options.split())
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err

    def test_one_layer_needs_a_model_that_is_read(self, run, tmp_path):
        code, _, err = run("--model", save("qwen3", tmp_path), "--layer", 0)
        assert code == 2
        assert "got Qwen3: use --layers" in err
