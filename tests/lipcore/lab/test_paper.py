"""``make paper`` on tiny models of the same architectures: what it measures, keeps and refuses."""

from __future__ import annotations

import random
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import gmean

pytest.importorskip("transformers", reason="needs lipcore[book]")

import transformers

from lab import models, paper, sweep
from lab.models.texts import load_text, sequences
from lipcore import local_lipschitz

KINDS = ("png", "svg")
WORDS = [f"w{i}" for i in range(40)]
draw = paper._draw  # which most tests leave out


def save(home, config):
    """A model with random weights, larger than the library's, and a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = transformers.AutoModel.from_config(config)
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=chance)
    folder = home / config.model_type
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture(scope="module")
def instead(tmp_path_factory):
    home = tmp_path_factory.mktemp("stand-ins")
    size = {"hidden_size": 32, "num_hidden_layers": 7, "num_attention_heads": 8, "vocab_size": 40}
    bert = transformers.BertConfig(intermediate_size=16, max_position_embeddings=64, **size)
    gpt2 = transformers.GPT2Config(n_positions=64, bos_token_id=0, eos_token_id=0, **size)
    text = home / "text.txt"
    text.write_text(" ".join(random.Random(0).choices(WORDS, k=1000)), encoding="utf8")
    names = {"bert-base-uncased": save(home, bert), "gpt2": save(home, gpt2)}
    return names | {"gpt2-random": names["gpt2"], "alice": str(text), "ag_news": str(text)}


@pytest.fixture(scope="module")
def done(instead, tmp_path_factory):
    """The folder and table of one run at the first and the last length, shortened; nothing drawn."""
    folder = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "LENGTHS", {"alice": range(2, 37, 2), "ag_news": range(2, 43, 10)})
        patch.setattr(paper, "CROWDS", range(2, 33, 5))
        patch.setattr(paper, "_draw", lambda found: SimpleNamespace(figure=plt.figure()))
        yield folder, paper.redo(folder, instead=instead, every=60)


@pytest.mark.parametrize("number", range(8))
def test_panels_are_the_layers_at_the_text(done, instead, number):
    panel, row = paper.PANELS[number], done[1].iloc[number]
    model = models.load(instead[panel.model], decoder=panel.decoder)
    n = 36 if panel.text == "alice" else 42
    ids = sequences(model, load_text(instead[panel.text]), n, 10)
    f, X = model.attention(panel.layer), model.hidden_states(panel.layer, ids)
    assert f.causal == (panel.figure == "masked")
    assert row["n"] == n
    expected = gmean(local_lipschitz(f, X, tol=1e-6).value)
    assert row["local constant there"] == pytest.approx(expected, rel=2e-3)
    released = torch.stack([f.jacobian(x).rmatvec(f(x)).norm().sqrt() for x in X])
    assert row["released quantity there"] == pytest.approx(gmean(released.detach()), rel=1e-3)


def test_published_curves_are_those_of_the_scripts(done):
    there = done[1]["published there"].to_numpy(float)
    expected = [14.3 * 36**0.24, 6.44 * 36**0.25, 0.445 * 36**0.25]
    assert there[[0, 4, 7]] == pytest.approx(expected)
    assert pd.isna(there[[1, 2, 3, 5, 6]]).all()
    assert there[8:] == pytest.approx([c * 32**0.5 for c in (4.39, 5.73, 0.92, 46.9)])


def test_heads_are_measured_on_inputs_of_the_radius(done, instead):
    """One leader against a crowd reaches the rate of the paper, on the head as it was cut."""
    for head in paper.PANELS[8:]:
        largest = paper._worst(head, instead[head.model], every=3).groupby("n")["sigma"].max()
        assert [*largest.index] == [2, 17, 32]
        model = models.load(instead[head.model], decoder=head.decoder)
        f = model.attention(head.layer, head=head.head, output_projection=False)
        norm_v = torch.linalg.matrix_norm(f.value_matrices()[0], 2).item()
        rates = largest / (norm_v * (largest.index - 1) ** 0.5)
        assert rates.iloc[1:].min() > 0.9


def test_figures_and_table_are_written(done):
    folder, table = done
    assert pd.read_csv(folder / "table.csv")["what"].tolist() == table["what"].tolist()
    names = [f"{name}.{kind}" for name in ("adversarial", "encoder", "masked") for kind in KINDS]
    assert sorted(path.name for path in folder.glob("*.?[nv]g")) == names


def test_both_quantities_are_drawn_with_the_published_curve():
    """With its prefactor, from the first released value if that is not known, or not at all."""
    lengths = np.repeat([2, 36], 3)
    sigma, released = np.random.default_rng(0).uniform(1, 3, (2, 6))
    rows = pd.DataFrame({"n": lengths, "sigma": sigma, "released": released})
    panels = [paper.PANELS[i] for i in (0, 1, 5)]
    grid = draw(dict.fromkeys(panels, rows))
    means = [gmean(column.reshape(2, 3), axis=1) for column in (sigma, released)]
    ends = np.array([2, 36])
    curves = [[14.3 * ends**0.24], [], [means[1][0] * (ends / 2) ** 0.26]]
    for ax, panel, published in zip(grid.axes.flat, panels, curves, strict=True):
        assert ax.get_title() == panel.title
        drawn = [line.get_ydata() for line in ax.lines if len(line.get_ydata())]
        np.testing.assert_allclose(drawn, [*means, *published])


def test_a_second_run_measures_no_cell_and_prints_the_table(done, instead, monkeypatch, capsys):
    def refuse(cell):
        raise AssertionError(f"measured again: {cell}")

    monkeypatch.setattr(sweep, "measure", refuse)
    monkeypatch.setattr(paper, "_draw", lambda found: SimpleNamespace(figure=plt.figure()))
    monkeypatch.setattr(paper, "PANELS", paper.PANELS[:4])
    pairs = [f"{name}={other}" for name, other in instead.items() if "gpt2" not in name]
    assert paper.main([str(done[0]), "--every", "60", "--instead", *pairs]) == 0
    printed = capsys.readouterr().out
    for panel, value in zip(paper.PANELS, done[1]["local constant there"], strict=False):
        assert panel.title in printed and f"{value:.3f}" in printed


@pytest.mark.parametrize("wanted", ["gpt2", "alice"])
def test_without_a_network_it_refuses_in_one_line(instead, wanted, tmp_path, monkeypatch, capsys):
    """A model or text that is missing, before anything is measured."""

    def no_texts(name):
        if name == "alice":
            raise ConnectionError(f"{name}: cannot be downloaded")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("LIPCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(paper, "load_text", no_texts)
    pairs = [f"{name}={other}" for name, other in instead.items() if name != wanted]
    assert paper.main([str(tmp_path / "out"), "--instead", *pairs]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"paper: error: {wanted}:") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert paper.main([str(tmp_path), "--instead", "bert=x"]) == 2
    assert "bert" in capsys.readouterr().err
