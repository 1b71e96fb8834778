"""Sweeps: the same numbers on every executor, nothing lost, nothing repeated."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Executor, Future, ProcessPoolExecutor

import pandas as pd
import pytest
import torch

from lipcore import bounds, models
from lipcore import sweep as sweeps
from lipcore.sweep import Cell, collect, grid, measure, sweep
from lipcore.texts import load_text, sequences

CELLS = grid(models=["minilm"], layers=[0, 3], lengths=[4, 8], count=3)


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    return sweep(CELLS, tmp_path_factory.mktemp("serial"), progress=False)


def test_values_are_those_of_the_dense_jacobian(serial):
    model = models.load("minilm", dtype=torch.float64)
    ids = sequences(model, load_text("pydoc"), 4, 3)
    J = model.attention(3).jacobian(model.hidden_states(3, ids)).dense()
    rows = serial[(serial.layer == 3) & (serial.n == 4)]
    assert torch.allclose(torch.tensor(rows.sigma.values), torch.linalg.matrix_norm(J, 2), rtol=2e-4)
    f = model.attention(3)(model.hidden_states(3, ids)).flatten(1)
    released = (J.mT @ f[..., None])[..., 0].norm(dim=-1).sqrt()
    assert torch.allclose(torch.tensor(rows.released.values), released, rtol=1e-4)


def test_table_is_tidy(serial):
    assert len(serial) == 3 * len(CELLS)
    assert serial.groupby(["layer", "n"]).sequence.apply(list).map(lambda s: s == [0, 1, 2]).all()
    assert (serial.lower <= serial.upper).all() and serial.converged.all()
    assert serial["head"].isna().all()


def test_head_and_local_bound():
    rows = pd.DataFrame(measure(Cell("minilm", layer=1, n=6, head=5, count=2, local=True)))
    model = models.load("minilm")
    ids = sequences(model, load_text("pydoc"), 6, 2)
    expected = bounds.local_upper(model.attention(1).head(5), model.hidden_states(1, ids))
    assert torch.allclose(torch.tensor(rows.local.values), expected.double(), rtol=1e-4)
    assert (rows.sigma <= rows.local).all()


def test_processes_give_the_same_numbers(serial, tmp_path):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        pd.testing.assert_frame_equal(
            sweep(CELLS, tmp_path, executor=executor, progress=False), serial, check_exact=True
        )


def test_dask_cluster_gives_the_same_numbers(serial, tmp_path):
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None, "processes": True}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        table = sweep(CELLS[:2], tmp_path, executor=client.get_executor(), progress=False)
    pd.testing.assert_frame_equal(table, serial.iloc[: len(table)].reset_index(drop=True), check_exact=True)


def test_a_stopped_sweep_resumes_without_repeating(serial, tmp_path, monkeypatch):
    done = []

    def stops_at_the_third(cell):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(cell)
        return measure(cell)

    monkeypatch.setattr(sweeps, "measure", stops_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        sweep(CELLS, tmp_path, progress=False)
    assert len(list((tmp_path / "cells").iterdir())) == 2

    again = []
    monkeypatch.setattr(sweeps, "measure", lambda cell: again.append(cell) or measure(cell))
    table = sweep(CELLS, tmp_path, progress=False)
    assert again == CELLS[2:]
    pd.testing.assert_frame_equal(table, serial, check_exact=True)


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def half(self, path, **_):
        with open(path, "wb") as file:
            file.write(b"PAR1")
        raise OSError("disk full")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", half)
    with pytest.raises(OSError, match="disk full"):
        sweep(CELLS[:1], tmp_path, progress=False)
    assert not list((tmp_path / "cells").iterdir())


class _Inline(Executor):
    """Runs at once; finishes in the reverse order."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.parametrize("executor", [None, _Inline()])
def test_a_failing_cell_costs_only_itself(executor, tmp_path):
    bad = Cell("minilm", layer=99, n=4, count=1)
    good = Cell("minilm", layer=0, n=4, count=1)
    with pytest.raises(RuntimeError, match=r"1 of 2 cells failed.*layer=99"):
        sweep([bad, good], tmp_path, executor=executor, progress=False)
    assert len(collect([good], tmp_path)) == 1
    with pytest.raises(FileNotFoundError, match="1 are missing"):
        collect([bad, good], tmp_path)


def test_a_text_that_changes_is_measured_again(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("one two three " * 20)
    cell = Cell("minilm", layer=0, n=4, count=1, text=str(path))
    key = cell.key
    path.write_text("four five six " * 20)
    assert cell.key != key


@pytest.mark.parametrize(
    ("options", "message"),
    [({"n": 0}, "n: expected at least 1"), ({"layer": -1}, "layer"), ({"tol": 0}, "tol"), ({"count": 0}, "count"),
     ({"dtype": "float16"}, "dtype"), ({"start": -3}, "start"), ({"n": 2.5}, "n: expected a whole number")],
)  # fmt: skip
def test_bad_cells_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Cell(**({"model": "minilm", "layer": 0, "n": 4} | options))


def test_no_cells_are_refused(tmp_path):
    with pytest.raises(ValueError, match="cells: expected at least one"):
        sweep([], tmp_path)
