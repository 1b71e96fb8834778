"""The stored table behind Part III: complete, small, and what a machine that measures again finds."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lipcore import models
from lipcore.lab.sweep import Cell, measure, read_plan, stored
from lipcore.models.texts import load_text

DATA = Path(__file__).resolve().parents[3] / "book" / "data"
PLAN = read_plan(DATA / "sweep.toml")


@pytest.fixture(scope="module")
def table():
    return stored()


def cell_of(row):
    """The cell that a row of the table comes from."""
    values = {name: row[name] for name in ("model", "text", "dtype", "tol")}
    whole = {name: int(row[name]) for name in ("layer", "n", "count", "start")}
    head = None if pd.isna(row["head"]) else int(row["head"])
    return Cell(
        **values,
        **whole,
        head=head,
        decoder=bool(row["decoder"]),
        local=bool(np.isfinite(row["local"])),
    )


def test_small(table):
    assert (DATA / "sweep.parquet").stat().st_size < 300_000


def test_has_every_cell_of_the_plan_and_no_other(table):
    first = table[table.sequence == 0]
    assert [cell_of(row) for _, row in first.iterrows()] == PLAN
    assert table.sequence.tolist() == [i for cell in PLAN for i in range(cell.count)]


def test_no_number_is_missing(table):
    optional = [
        "head",
        "local",
    ]  # the whole layer has no head; test_has_every_cell looks at the local bound
    assert not table.drop(columns=optional).isna().any(axis=None)
    assert np.isfinite(table.drop(columns=optional).select_dtypes("number").to_numpy(float)).all()
    asked = table.groupby([*optional[:1], "model", "decoder"], dropna=False).local
    assert set(asked.apply(lambda column: column.isna().mean())) == {0.0, 1.0}
    assert (table.sigma > 0).all() and (table.upper >= table.sigma).all()


def test_says_how_it_was_made(table):
    assert "lipcore sweep --plan book/data/sweep.toml" in table.attrs["command"]
    assert table.attrs["seconds"] > 60 and {"lipcore", "torch", "python"} <= set(
        table.attrs["versions"]
    )
    known = {row["name"]: row["sha256"] for row in models.available()}
    assert table.attrs["weights"] == {name: known[name] for name in table.model.unique()}
    assert set(table.attrs["texts"]) == set(table.text.unique())


@pytest.mark.parametrize("model", sorted({cell.model for cell in PLAN}))
def test_cells_measured_again_agree(table, model):
    texts = table.attrs["texts"]
    same = [
        name
        for name in texts
        if hashlib.sha256(load_text(name).encode()).hexdigest() == texts[name]
    ]
    cells = [cell for cell in PLAN if cell.model == model and cell.n <= 32 and cell.text in same]
    if not cells:
        pytest.skip("this version of Python words its manual in another way")
    first = table.sequence == 0
    starts = dict(zip(PLAN, table.index[first], strict=True))
    for cell in random.Random(model).sample(cells, 3):
        rows = table.loc[starts[cell] : starts[cell] + cell.count - 1]
        again = pd.DataFrame(measure(cell))
        for name in ("sigma", "released", "radius_max"):
            assert rows[name].to_numpy() == pytest.approx(again[name].to_numpy(), rel=cell.tol), (
                cell,
                name,
            )
