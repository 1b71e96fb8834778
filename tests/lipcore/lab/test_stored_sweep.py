"""The stored tables behind Part III: complete, small, and what a machine that measures again finds."""

from __future__ import annotations

import functools
import hashlib
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab import models
from lab import sweep as sweeps
from lab.models.texts import load_text
from lab.sweep import Cell, measure, read_plan, stored
from lipcore import local_lipschitz
from lipcore.models.measure import versions

DATA = Path(__file__).resolve().parents[3] / "book" / "data"
NAMES = ("sweep", "texts")
PLANS = {name: read_plan(DATA / f"{name}.toml") for name in NAMES}
ATTRIBUTES = ("model", "layer", "n", "text", "count", "start", "decoder", "dtype", "tol")
TEXTS = {"sweep": {"pydoc", "licences"}, "texts": {"pydoc", "licences", "code", "bible"}}

table_of = functools.cache(stored)


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def table(name):
    return table_of(name)


def cell_of(row):
    """The cell that a row of a table comes from."""
    attributes = {name: row[name] for name in ATTRIBUTES} | {"control": row.get("control", "")}
    attributes["decoder"] = bool(row["decoder"])
    head = None if pd.isna(row["head"]) else row["head"]
    bounds = ["local"] if np.isfinite(row.get("local", np.nan)) else ()
    return Cell(**attributes, head=head, bounds=bounds)


def test_has_every_cell_of_the_plan_and_no_other(name, table):
    assert (DATA / f"{name}.parquet").stat().st_size < 500_000
    first = table[table.sequence == 0]
    assert [cell_of(row) for row in first.to_dict("records")] == PLANS[name]
    assert table.sequence.tolist() == [i for cell in PLANS[name] for i in range(cell.count)]


def test_brackets_are_those_of_the_tolerance(table):
    """Lanczos stops when the bracket is narrower than the root of the tolerance."""
    numbers = table.drop(columns=["head", "local"], errors="ignore")  # not in every row
    assert np.isfinite(numbers.select_dtypes("number").to_numpy(float)).all()
    ratio = table.upper / table.sigma
    assert (table.sigma > 0).all() and (ratio >= 1).all()
    assert (ratio <= 1 + 1.01 * np.sqrt(table.tol)).all()
    assert "local" not in table or not (table.local < table.sigma).any()


def test_says_how_it_was_made(name, table):
    assert f"sweep --plan book/data/{name}.toml" in table.attrs["command"]
    assert table.attrs["seconds"] > 60
    known = {row["name"]: row["sha256"] for row in models.available()}
    assert table.attrs["weights"] == {name: known[name] for name in table.model.unique()}
    assert set(table.attrs["texts"]) == TEXTS[name]


def test_a_causal_layer_never_falls_while_a_text_is_read():
    """The Jacobian at a beginning of the text is a block of that at the whole."""
    table = table_of("texts")
    read_on = table[(table["count"] == 1) & table.control.isin(["", "repeated"])]
    keys = ["layer", "text", "control", read_on["head"].fillna(-1).astype(int)]
    for _, rows in read_on.sort_values("n").groupby(keys):
        sigma = rows.sigma.to_numpy(float)
        assert (sigma[1:] >= 0.98 * sigma[:-1]).all(), rows[["layer", "text", "n", "sigma"]]


@functools.cache
def is_the_same(name, text):
    """Whether the text is what it was when the table was made."""
    digest = hashlib.sha256(load_text(text).encode()).hexdigest()
    return digest == table_of(name).attrs["texts"][text]


@pytest.mark.parametrize(("name", "text"), [(n, t) for n in NAMES for t in sorted(TEXTS[n])])
def test_texts_are_those_of_the_table(name, text):
    """Python words its manual anew in each version, and packages may change their licences."""
    made_with = table_of(name).attrs["versions"]
    here = versions()
    source = {"licences": "transformers", "bible": None}.get(text, "python")
    if source and here[source] != made_with[source] and not is_the_same(name, text):
        pytest.skip(f"{source} {here[source]} words it in another way than {made_with[source]}")
    assert is_the_same(name, text)


def kind(name, cell):
    """What is measured, in words: the table, the model, and what was done to it."""
    whole = "layers" if cell.head is None else "heads"
    return " ".join([name, cell.model, "as decoder" * cell.decoder, cell.control, whole])


KINDS = {kind(name, cell): name for name in NAMES for cell in PLANS[name]}


@pytest.mark.parametrize("kind_name", KINDS)
def test_a_sequence_measured_again_agrees(kind_name):
    name = KINDS[kind_name]
    plan, table = PLANS[name], table_of(name)
    starts = dict(zip(plan, table.index[table.sequence == 0], strict=True))
    cells = [cell for cell in plan if kind(name, cell) == kind_name and cell.n <= 64]
    cells = [cell for cell in cells if is_the_same(name, cell.text)]
    if not cells:
        pytest.skip("another version of Python words the text in another way")
    draw = random.Random(kind_name)
    cell = draw.choice(cells)
    sequence = draw.randrange(cell.count)
    row = table.loc[starts[cell] + sequence]
    (again,) = measure(replace(cell, count=1, start=cell.start + sequence * cell.n))
    for column in ("sigma", "released", "radius_rms", "radius_max", "local"):
        if column in row:
            expected = pytest.approx(again[column], rel=cell.tol, nan_ok=True)
            assert row[column] == expected, (cell, sequence, column)
    assert row["upper"] >= again["lower"], cell


def test_a_long_text_lies_in_the_bracket_of_a_few_products():
    names = ["model", "layer", "n", "text", "control"]
    known = ["smollm2", 1, 512, "pydoc", ""]
    cell = next(c for c in PLANS["texts"] if [getattr(c, x) for x in names] == known)
    found = local_lipschitz(*sweeps.inputs(cell), tol=0.03)
    table = table_of("texts")
    row = table[table[names].eq(known).all(axis=1)]
    (sigma,) = row.sigma[row["head"].isna()]
    assert 0.999 * found.lower <= sigma <= found.upper < 1.2 * found.lower
