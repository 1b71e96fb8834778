"""The stored table behind Part III: complete, small, and what a machine that measures again finds."""

from __future__ import annotations

import hashlib
import platform
import random
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lipcore import models
from lipcore.lab.sweep import Cell, measure, read_plan, stored
from lipcore.models.texts import load_text

DATA = Path(__file__).resolve().parents[3] / "book" / "data"
PLAN = read_plan(DATA / "sweep.toml")
ATTRIBUTES = ("model", "layer", "n", "text", "count", "start", "decoder", "dtype", "tol")


@pytest.fixture(scope="module")
def table():
    return stored()


def cell_of(row):
    """The cell that a row of the table comes from."""
    attributes = {name: row[name] for name in ATTRIBUTES}
    attributes["decoder"] = bool(row["decoder"])
    head = None if pd.isna(row["head"]) else row["head"]
    return Cell(**attributes, head=head, bounds=["local"] if np.isfinite(row["local"]) else ())


def test_small():
    assert (DATA / "sweep.parquet").stat().st_size < 300_000


def test_has_every_cell_of_the_plan_and_no_other(table):
    first = table[table.sequence == 0]
    assert [cell_of(row) for row in first.to_dict("records")] == PLAN
    assert table.sequence.tolist() == [i for cell in PLAN for i in range(cell.count)]


def test_no_number_is_missing(table):
    """But for heads, which whole layers have not, and local bounds, which are in the plan."""
    numbers = table.drop(columns=["head", "local"])
    assert not numbers.isna().any(axis=None)
    assert np.isfinite(numbers.select_dtypes("number").to_numpy(float)).all()


def test_brackets_are_those_of_the_tolerance(table):
    """Lanczos stops when the bracket is narrower than the root of the tolerance."""
    ratio = table.upper / table.sigma
    assert (table.sigma > 0).all() and (ratio >= 1).all()
    assert (ratio <= 1 + 1.01 * np.sqrt(table.tol)).all()
    assert not (table.local < table.sigma).any()


def test_says_how_it_was_made(table):
    assert "lipcore sweep --plan book/data/sweep.toml" in table.attrs["command"]
    assert table.attrs["seconds"] > 60
    assert {"lipcore", "torch", "python", "transformers"} <= set(table.attrs["versions"])
    known = {row["name"]: row["sha256"] for row in models.available()}
    assert table.attrs["weights"] == {name: known[name] for name in table.model.unique()}
    assert set(table.attrs["texts"]) == {"pydoc", "licences"}


def is_the_same(table, text):
    """Whether the text is what it was when the table was made."""
    digest = hashlib.sha256(load_text(text).encode()).hexdigest()
    return digest == table.attrs["texts"][text]


@pytest.mark.parametrize("text", ["pydoc", "licences"])
def test_texts_are_those_of_the_table(table, text):
    """Python words its manual anew in each version, and packages may change their licences."""
    made_with = table.attrs["versions"]
    here = {"python": platform.python_version(), "transformers": version("transformers")}
    source = {"pydoc": "python", "licences": "transformers"}[text]
    if not is_the_same(table, text) and here[source] != made_with[source]:
        pytest.skip(f"{source} {here[source]} words it in another way than {made_with[source]}")
    assert is_the_same(table, text)


def kind(cell):
    return (cell.model, cell.decoder, cell.head is not None)


KINDS = {
    f"{model}{' as decoder' * decoder}{', heads' * alone}": (model, decoder, alone)
    for model, decoder, alone in sorted({kind(cell) for cell in PLAN})
}


@pytest.mark.parametrize("name", KINDS)
def test_a_sequence_of_every_length_measured_again_agrees(table, name):
    """One sequence of one cell at each length: drawn, from the length, among those of the kind."""
    texts = [text for text in table.attrs["texts"] if is_the_same(table, text)]
    cells = [cell for cell in PLAN if kind(cell) == KINDS[name] and cell.text in texts]
    if not cells:
        pytest.skip("another version of Python words the text in another way")
    starts = dict(zip(PLAN, table.index[table.sequence == 0], strict=True))
    for n in sorted({cell.n for cell in cells}):
        draw = random.Random(f"{name} {n}")
        cell = draw.choice([cell for cell in cells if cell.n == n])
        sequence = draw.randrange(cell.count)
        row = table.loc[starts[cell] + sequence]
        (again,) = measure(replace(cell, count=1, start=cell.start + sequence * n))
        for column in ("sigma", "released", "radius_rms", "radius_max", "local"):
            expected = pytest.approx(again[column], rel=cell.tol, nan_ok=True)
            assert row[column] == expected, (cell, sequence, column)
        assert row["upper"] >= again["lower"], cell
