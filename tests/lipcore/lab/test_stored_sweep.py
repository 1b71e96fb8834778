"""The stored tables behind Part III: complete, small, and what a machine that measures again finds."""

from __future__ import annotations

import functools
import hashlib
import platform
import random
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab import models
from lab import sweep as sweeps
from lab.models.texts import load_text
from lab.sweep import Cell, measure, read_plan, stored
from lipcore import local_lipschitz

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


def test_small(name):
    assert (DATA / f"{name}.parquet").stat().st_size < 500_000


def test_has_every_cell_of_the_plan_and_no_other(name, table):
    first = table[table.sequence == 0]
    assert [cell_of(row) for row in first.to_dict("records")] == PLANS[name]
    assert table.sequence.tolist() == [i for cell in PLANS[name] for i in range(cell.count)]


def test_no_number_is_missing(table):
    """But for heads, which whole layers have not, and local bounds, which are in a plan."""
    numbers = table.drop(columns=["head", "local"], errors="ignore")
    assert not numbers.isna().any(axis=None)
    assert np.isfinite(numbers.select_dtypes("number").to_numpy(float)).all()


def test_brackets_are_those_of_the_tolerance(table):
    """Lanczos stops when the bracket is narrower than the root of the tolerance."""
    ratio = table.upper / table.sigma
    assert (table.sigma > 0).all() and (ratio >= 1).all()
    assert (ratio <= 1 + 1.01 * np.sqrt(table.tol)).all()
    assert "local" not in table or not (table.local < table.sigma).any()


def test_says_how_it_was_made(name, table):
    assert f"sweep --plan book/data/{name}.toml" in table.attrs["command"]
    assert table.attrs["seconds"] > 60
    assert {"lipcore", "torch", "python", "transformers"} <= set(table.attrs["versions"])
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
    here = {"python": platform.python_version(), "transformers": version("transformers")}
    source = {"pydoc": "python", "code": "python", "licences": "transformers"}.get(text)
    changed = source is not None and here[source] != made_with[source]
    if not is_the_same(name, text) and changed:
        pytest.skip(f"{source} {here[source]} words it in another way than {made_with[source]}")
    assert is_the_same(name, text)


def kind(name, cell):
    """What is measured, in words: the table, the model, and what was done to it."""
    parts = (
        cell.model,
        "as decoder" * cell.decoder,
        cell.control,
        "heads" * (cell.head is not None),
    )
    return ", ".join(filter(None, (name, *parts)))


KINDS = {kind(name, cell): name for name in NAMES for cell in PLANS[name]}


def drawn(kind_name):
    """A cell of each length, drawn from the length among those of the kind, and its first row."""
    name = KINDS[kind_name]
    plan = PLANS[name]
    cells = [cell for cell in plan if kind(name, cell) == kind_name]
    cells = [cell for cell in cells if is_the_same(name, cell.text)]
    if not cells:
        pytest.skip("another version of Python words the text in another way")
    table = table_of(name)
    starts = dict(zip(plan, table.index[table.sequence == 0], strict=True))
    cells = [cell for cell in cells if cell.n < 512 or cell.layer <= 3]  # the model runs up to it
    for n in sorted({cell.n for cell in cells}):
        draw = random.Random(f"{kind_name} {n}")
        cell = draw.choice([cell for cell in cells if cell.n == n])
        yield cell, starts[cell], draw


def is_long(cell):
    """Whether it takes too long to measure in full."""
    return cell.n >= 2048 and cell.head is None


@pytest.mark.parametrize("kind_name", KINDS)
def test_a_sequence_of_every_length_measured_again_agrees(kind_name):
    table = table_of(KINDS[kind_name])
    for cell, start, draw in drawn(kind_name):
        if is_long(cell):
            continue
        sequence = draw.randrange(cell.count)
        row = table.loc[start + sequence]
        (again,) = measure(replace(cell, count=1, start=cell.start + sequence * cell.n))
        for column in ("sigma", "released", "radius_rms", "radius_max", "local"):
            if column in row:
                expected = pytest.approx(again[column], rel=cell.tol, nan_ok=True)
                assert row[column] == expected, (cell, sequence, column)
        assert row["upper"] >= again["lower"], cell


@pytest.mark.slow
def test_long_texts_lie_in_the_bracket_of_a_few_products():
    lengths = set()
    for cell, start, _ in drawn("texts, smollm2"):
        if is_long(cell):
            lengths.add(cell.n)
            found = local_lipschitz(*sweeps._inputs(cell), tol=0.03)
            row = table_of("texts").loc[start]
            assert 0.999 * found.lower <= row["sigma"] <= found.upper, cell
            assert found.upper < 1.2 * found.lower
    assert lengths == {2048, 4096}
