"""The table of measurements: every column is what the function it names gives."""

import math

import pytest
import torch

from lab.measure_layer import BOUNDS, measure_layer
from lipcore import Attention, local_lipschitz
from lipcore.bounds import best_upper, layer_upper, local_upper

NUMBERS = {"sigma", "lower", "upper", "probability", "residual", "iterations", "converged"}
OTHERS = {"sequence", "released", "radius_rms", "radius_max", "log_best", "log_general", *BOUNDS}


@pytest.fixture(params=("biases", "biases, causal"))
def attention(make_case, request):
    return make_case(request.param).attention


@pytest.fixture
def X(attention, randn):
    return randn(3, 5, attention.d)


@pytest.fixture
def rows(attention, X):
    return measure_layer(attention, X)


def test_columns(attention, X, rows):
    assert [row["sequence"] for row in rows] == [0, 1, 2]
    assert all(set(row) == NUMBERS | OTHERS for row in rows)
    assert {row["converged"] for row in rows} == {True}
    found, J = local_lipschitz(attention, X), attention.jacobian(X).dense()
    assert [row["iterations"] for row in rows] == found.iterations.tolist()
    assert {row["probability"] for row in rows} == {found.probability}
    norms, outputs = X.norm(dim=-1), attention(X).flatten(1)
    gradients = (J.mT @ outputs[..., None])[..., 0]
    expected = {
        "sigma": torch.linalg.matrix_norm(J, 2),
        "lower": found.lower,
        "upper": found.upper,
        "residual": found.residual,
        "released": gradients.norm(dim=-1).sqrt(),  # the square root of the gradient
        "radius_max": norms.amax(-1),
        "radius_rms": norms.square().mean(-1).sqrt(),
        "local": local_upper(attention, X),
    }
    for name, truth in expected.items():
        column = [row[name] for row in rows]
        assert column == pytest.approx(truth.tolist(), rel=1e-4, abs=1e-9), name


def test_bounds(attention, rows):
    for row in rows:
        ball = {"n": 5, "radius": row["radius_max"]}
        bounds = {"general": layer_upper(attention, **ball)}
        bounds["best"] = best_upper(attention=attention, **ball)
        for name, bound in bounds.items():
            assert row[name] == pytest.approx(bound)
            assert row[f"log_{name}"] == pytest.approx(math.log(bound))
        assert row["sigma"] <= min(row["local"], row["best"]) and row["best"] <= row["general"]


def test_bounds_that_were_not_asked_for(attention, X, rows):
    for row, whole in zip(measure_layer(attention, X, bounds=["general"]), rows, strict=True):
        assert list(row) == list(whole) and row["general"] == whole["general"]
        missing = {name for name, value in row.items() if math.isnan(value)}
        assert missing == {"local", "best", "log_best"}


def test_certificate_that_always_holds(attention, X):
    for row in measure_layer(attention, X, certificate="always", bounds=["local"]):
        assert row["probability"] == 1 and row["upper"] == pytest.approx(row["local"])
    (row,) = measure_layer(attention, X[:1], certificate="always", bounds=[])
    assert row["upper"] > 1.01 * row["sigma"] and math.isnan(row["local"])


def test_tolerance_and_start(attention, X, rows):
    loose = measure_layer(attention, X, tol=0.1, bounds=[])
    other = measure_layer(attention, X, generator=torch.Generator(), bounds=[])
    for one, two, three in zip(loose, rows, other, strict=True):
        assert one["iterations"] < two["iterations"]
        assert two["sigma"] != three["sigma"] == pytest.approx(two["sigma"], rel=1e-3)


def test_bounds_past_the_range_of_numbers(attention, X, monkeypatch):
    module = "lab.measure_layer"
    monkeypatch.setattr(f"{module}.best_upper", lambda log, **options: 709.0 if log else None)
    monkeypatch.setattr(f"{module}.layer_upper", lambda *args, log, **options: 1e4)
    for row in measure_layer(attention, X):
        assert row["best"] == pytest.approx(math.exp(709)) and row["log_best"] == 709
        assert row["general"] == math.inf and row["log_general"] == 1e4


BAD = [{"bounds": ["unified"]}, {"bounds": "all"}, {"certificate": "never"}, {"tol": 0},
       {"X": torch.ones(3, 4)}, {"X": torch.ones(1, 3, 5)}, {"X": [1.0]}]  # fmt: skip


@pytest.mark.parametrize("options", BAD, ids=str)
def test_bad_input(options):
    given = {"attention": Attention.from_matrices(torch.eye(4), torch.eye(4))}
    given["X"] = torch.ones(1, 3, 4)
    with pytest.raises((ValueError, TypeError), match=f"^{next(iter(options))}: "):
        measure_layer(**given | options)
