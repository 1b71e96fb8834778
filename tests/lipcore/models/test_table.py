"""A whole model in one table: what is in it, what it says, what it keeps."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch
from torch import nn

from lipcore import measure
from lipcore.models import measure as measuring


@pytest.fixture
def model():
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    return nn.TransformerEncoder(layer, 3).double().eval()


@pytest.fixture
def X():
    return torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_one_row_for_each_module_and_sequence(model, X, capsys):
    table = measure(model, X)
    assert list(table) == measuring.COLUMNS and table.attrs["complete"]
    assert table["layer"].tolist() == [f"layers.{i}.self_attn" for i in (0, 0, 1, 1, 2, 2)]
    assert table["sequence"].tolist() == [0, 1] * 3
    assert set(table["kind"]) == {"MultiheadAttention"} and set(table["shape"]) == {(4, 8)}
    rows = json.loads(table.to_json(orient="records", double_precision=15))
    assert [row["sigma"] for row in rows] == pytest.approx(table["sigma"].tolist(), rel=1e-14)
    with pd.option_context("display.width", 80, "display.max_columns", 0):  # a narrow terminal
        title = str(table).splitlines()[0].split()
    assert title[0] == "layer" and title[-2:] == ["upper", "sigma"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("layers", "expected"), (
    (1, ["layers.1.self_attn"]),
    ([2, 0], ["layers.0.self_attn", "layers.2.self_attn"]),
    ("layers.1.self_attn", ["layers.1.self_attn"]),
))  # fmt: skip
def test_some_of_the_layers(model, X, layers, expected):
    assert list(dict.fromkeys(measure(model, X, layers=layers)["layer"])) == expected


def test_tolerance_and_start_are_passed_on(model, X):
    rough = measure(model, X, tol=0.1, layers=0)
    fine = measure(model, X, tol=1e-8, layers=0)
    assert fine["upper"][0] - fine["lower"][0] < rough["upper"][0] - rough["lower"][0]
    other = measure(model, X, tol=0.1, layers=0, generator=torch.Generator().manual_seed(5))
    assert rough["sigma"].tolist() != other["sigma"].tolist()


@pytest.mark.parametrize(("named", "options"), (
    ("scope", {"scope": "head"}),
    ("tol", {"tol": 0}),
    ("layers", {"layers": 3}),
    ("layers", {"layers": "layers.7"}),
    ("layers", {"layers": 0, "scope": "model"}),
    ("model", {"model": "bert"}),
    ("model", {"model": nn.Linear(8, 8).double().eval()}),
    ("model", {"model": nn.MultiheadAttention(8, 2).double()}),  # in training
))  # fmt: skip
def test_bad_options(model, X, named, options):
    with pytest.raises((ValueError, TypeError), match=f"^{named}: "):
        measure(options.pop("model", model), X, **options)


def test_a_module_that_cannot_be_measured_says_so_and_the_others_are(model, X):
    class Nowhere(nn.MultiheadAttention):
        def forward(self, *args, **kwargs):
            out, weights = super().forward(*args, **kwargs)
            return out * float("nan"), weights

    model.layers[2].self_attn = Nowhere(8, 2, batch_first=True).double().eval()
    with pytest.warns(UserWarning, match="^1 of 5 rows"):
        table = measure(model, X)
    last = table.iloc[-1]
    assert last[["probability", "lower", "upper", "sigma"]].isna().all() and not last["converged"]
    assert "NaN" in last["note"] and all(sigma > 0 for sigma in table["sigma"][:4])


def test_half_precision_is_refused(model, X):
    with pytest.warns(UserWarning, match="^3 of 3 rows"):
        table = measure(model.half(), X.half())
    assert table["sigma"].dtype == float and table["sigma"].isna().all()
    assert all("float16" in note for note in table["note"])


def test_interrupted(model, X, monkeypatch):
    calls, real = [], measuring.local_lipschitz

    def interrupted(fn, X, **options):
        calls.append(fn)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(fn, X, **options)

    monkeypatch.setattr(measuring, "local_lipschitz", interrupted)
    with pytest.warns(UserWarning, match="2 of 3 modules"):
        table = measure(model, X)
    assert not table.attrs["complete"] and len(table) == 4


def test_derivatives_that_are_not_compared(model, X):
    """What autodiff gives says so; an attention that is read has no such derivative."""
    block = measure(model, X, scope="block", layers=0, check=False)
    assert all("unchecked" in note for note in block["note"])
    assert set(measure(model, X, scope="block", layers=0)["note"]) == {""}
    assert set(measure(model, X, layers=0, check=False)["note"]) == {""}
