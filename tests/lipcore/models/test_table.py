"""A whole model in one table: what is in it, what it says, what it keeps."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from lipcore import measure
from lipcore.models import measure as measuring
from lipcore.models.table import Table

COLUMNS = ["layer", "kind", "sequence", "shape", "sigma", "lower", "upper", "probability",
           "converged", "note"]  # fmt: skip


@pytest.fixture
def model():
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    return nn.TransformerEncoder(layer, 3).double().eval()


@pytest.fixture
def X():
    return torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_one_row_for_each_module_and_sequence(model, X):
    table = measure(model, X)
    assert table.columns == COLUMNS
    assert table.complete
    assert table["layer"] == [f"layers.{i}.self_attn" for i in (0, 0, 1, 1, 2, 2)]
    assert table["sequence"] == [0, 1] * 3
    assert {row["kind"] for row in table} == {"MultiheadAttention"}
    assert {row["shape"] for row in table} == {(4, 8)}


@pytest.mark.parametrize(("layers", "expected"), (
    (1, ["layers.1.self_attn"]),
    ([2, 0], ["layers.0.self_attn", "layers.2.self_attn"]),
    ("layers.1.self_attn", ["layers.1.self_attn"]),
))  # fmt: skip
def test_some_of_the_layers(model, X, layers, expected):
    assert list(dict.fromkeys(measure(model, X, layers=layers)["layer"])) == expected


def test_scopes(model, X):
    assert measure(model, X, scope="block")["kind"][0] == "TransformerEncoderLayer"
    (first, _second) = measure(model, X, scope="model")
    assert first["layer"] == "TransformerEncoder"
    assert first["note"] == "output as a map of what enters layers.0"


def test_tolerance_and_start_are_passed_on(model, X):
    rough = measure(model, X, tol=0.1, layers=0)
    fine = measure(model, X, tol=1e-8, layers=0)
    assert fine["upper"][0] - fine["lower"][0] < rough["upper"][0] - rough["lower"][0]
    other = measure(model, X, tol=0.1, layers=0, generator=torch.Generator().manual_seed(5))
    assert rough["sigma"] != other["sigma"]


@pytest.mark.parametrize(("options", "message"), (
    ({"scope": "head"}, "^scope: "),
    ({"layers": 3}, "^layers: "),
    ({"layers": "layers.7"}, "^layers: "),
    ({"layers": 0, "scope": "model"}, "^layers: "),
))  # fmt: skip
def test_bad_options(model, X, options, message):
    with pytest.raises(ValueError, match=message):
        measure(model, X, **options)


def test_models_that_cannot_be_measured(model, X):
    with pytest.raises(TypeError, match=r"^model: "):
        measure("bert", X)
    with pytest.raises(ValueError, match=r"lipcore\.capture"):
        measure(nn.Linear(8, 8).double().eval(), X)
    with pytest.raises(ValueError, match=r"^model: "):
        measure(model.train(), X)


def test_a_module_that_cannot_be_measured_says_so_and_the_others_are(model, X):
    class NoGradient(nn.MultiheadAttention):
        @torch.no_grad()
        def forward(self, *args, **kwargs):
            out, weights = super().forward(*args, **kwargs)
            return out * float("nan"), weights

    model.layers[2].self_attn = NoGradient(8, 2, batch_first=True).double().eval()
    table = measure(model, X)
    assert table["sigma"][-1] is None
    assert table["note"][-1].startswith("not measured: name: 'layers.2.self_attn' puts out NaN or")
    assert all(sigma > 0 for sigma in table["sigma"][:4])


def test_half_precision_is_refused(model, X):
    table = measure(model.half(), X.half())
    assert all("expected float32 or float64, got float16" in note for note in table["note"])


def test_interrupted(model, X, monkeypatch):
    real = measuring.local_lipschitz
    calls = []

    def interrupted(fn, X, **options):
        calls.append(fn)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(fn, X, **options)

    monkeypatch.setattr(measuring, "local_lipschitz", interrupted)
    table = measure(model, X)
    assert not table.complete
    assert len(table) == 4
    assert str(table).endswith("interrupted: there are more")
    assert not json.loads(table.to_json())["complete"]


def test_progress_bar(model, X, capsys):
    measure(model, X)
    assert capsys.readouterr().err == ""


def test_as_text_json_html_and_for_pandas(model, X, tmp_path):
    table = measure(model, X, layers=0)
    lines = str(table).splitlines()
    assert " ".join(lines[:2]) == (
        "attention of TransformerEncoder, σ to 0.0001 relative; kind: MultiheadAttention; "
        "shape: 4 × 8; probability: 0.999; converged: yes"
    )
    assert lines[2].split() == ["layer", "sequence", "sigma", "lower", "upper"]
    assert len(lines) == 5
    frame = table.to_pandas()
    assert list(frame) == COLUMNS
    assert frame["sigma"].tolist() == table["sigma"]
    content = json.loads(table.to_json(tmp_path / "table.json"))
    assert content == json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    assert [row["sigma"] for row in content["rows"]] == table["sigma"]
    assert table._repr_html_().count("<tr>") == 3
    assert "4 × 8" in table._repr_html_()


def test_what_differs_and_what_is_asked_for_is_shown_in_each_row():
    rows = [{"layer": "a", "sigma": 1.0, "upper": 2.0, "note": note} for note in ("", "odd")]
    titles = [str(Table("t", chosen)).splitlines()[1].split() for chosen in (rows, rows[:1])]
    assert titles == [["layer", "sigma", "note"], ["layer", "sigma", "upper", "note"]]
    assert str(Table("t", rows)).splitlines()[0] == "t; upper: 2"
    assert "<caption>t; upper: 2</caption>" in Table("t", rows)._repr_html_()
    assert Table("t", rows).columns == ["layer", "sigma", "upper", "note"]


def test_what_is_not_known_is_null_and_a_dash():
    table = Table("<t>", [{"a": None, "b": float("inf"), "c": True, "d": "<i>"}])
    assert json.loads(table.to_json())["rows"] == [{"a": None, "b": None, "c": True, "d": "<i>"}]
    assert str(table).splitlines()[2].split() == ["-", "inf", "yes", "<i>"]
    assert "<i>" not in table._repr_html_()
    assert str(Table("nothing")) == "nothing"
