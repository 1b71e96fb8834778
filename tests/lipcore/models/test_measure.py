"""The table of measurements: every column is what the function it names gives."""

import math

import pytest
import torch

from lab.measure_layer import BOUNDS, measure_layer
from lipcore import Attention, local_lipschitz
from lipcore.bounds import local_upper
from lipcore.models.measure import versions

NUMBERS = {"sigma", "lower", "upper", "probability", "residual", "iterations", "converged"}
OF_TOKENS = {"sequence", "released", "radius_rms", "radius_max"}
CLOSE = {"rtol": 1e-4, "atol": 0.0}


@pytest.fixture(params=(False, True), ids=("both ways", "causal"))
def attention(make_case, request):
    return make_case("biases, causal" if request.param else "biases").attention


@pytest.fixture
def X(attention, randn):
    return randn(3, 5, attention.d)


@pytest.fixture
def rows(attention, X):
    return measure_layer(attention, X)


def column(rows, name):
    return torch.tensor([row[name] for row in rows], dtype=torch.float64)


def test_one_row_a_sequence_with_every_column(rows):
    assert [row["sequence"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert set(row) == NUMBERS | OF_TOKENS | set(BOUNDS)


def test_released_is_the_square_root_of_the_gradient(attention, X, rows):
    outputs = attention(X).flatten(1)
    gradients = (attention.jacobian(X).dense().mT @ outputs[..., None])[..., 0]
    torch.testing.assert_close(column(rows, "released"), gradients.norm(dim=-1).sqrt(), **CLOSE)


def test_bracket_and_how_it_was_found(attention, X, rows):
    found = local_lipschitz(attention, X)
    for name in ("lower", "upper", "residual"):
        torch.testing.assert_close(column(rows, name), getattr(found, name), rtol=1e-6, atol=1e-9)
    assert [row["iterations"] for row in rows] == found.iterations.tolist()
    assert {row["converged"] for row in rows} == {True}
    assert {row["probability"] for row in rows} == {found.probability}
    torch.testing.assert_close(column(rows, "sigma"), found.value)


def test_radii(X, rows):
    for row, tokens in zip(rows, X, strict=True):
        norms = tokens.norm(dim=-1)
        assert row["radius_max"] == pytest.approx(norms.max().item())
        assert row["radius_rms"] == pytest.approx(norms.square().mean().sqrt().item())


def test_bounds(attention, X, rows):
    torch.testing.assert_close(column(rows, "local"), local_upper(attention, X))
    assert (column(rows, "local") >= column(rows, "sigma")).all()
    without = measure_layer(attention, X, bounds=[])
    assert all(math.isnan(row["local"]) for row in without)
    assert [row | {"local": None} for row in rows] == [row | {"local": None} for row in without]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bounds": ["unified"]}, ValueError, "^bounds: "),
        ({"bounds": "all"}, ValueError, "^bounds: "),
        ({"X": torch.ones(3, 4)}, ValueError, "^X: "),
        ({"X": torch.ones(1, 3, 5)}, ValueError, "^X: "),
        ({"X": [1.0]}, TypeError, "^X: "),
        ({"tol": 0}, ValueError, "tol"),
    ],
)
def test_bad_input(options, error, message):
    attention = Attention.from_matrices(torch.eye(4), torch.eye(4))
    with pytest.raises(error, match=message):
        measure_layer(**{"attention": attention, "X": torch.ones(1, 3, 4)} | options)


def test_versions_are_those_of_the_packages():
    assert versions()["torch"].split("+")[0] == torch.__version__.split("+")[0]
