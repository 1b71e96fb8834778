"""Sweeps: the same numbers on every executor, nothing lost, nothing repeated."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch

from lipcore import bounds, models
from lipcore.lab import sweep as sweeps
from lipcore.lab.sweep import Cell, collect, export, grid, measure, read_plan, sweep
from lipcore.models.texts import load_text, sequences

CELLS = grid(models=["minilm"], layers=[0, 3], lengths=[4, 8], count=3)


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    return sweep(CELLS, tmp_path_factory.mktemp("serial"), progress=False)


def test_values_are_those_of_the_dense_jacobian(serial):
    model = models.load("minilm", dtype=torch.float64)
    ids = sequences(model, load_text("pydoc"), 4, 3)
    J = model.attention(3).jacobian(model.hidden_states(3, ids)).dense()
    rows = serial[(serial.layer == 3) & (serial.n == 4)]
    assert torch.allclose(
        torch.tensor(rows.sigma.values), torch.linalg.matrix_norm(J, 2), rtol=2e-4
    )
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


def test_cells_with_and_without_the_local_bound_share_a_table(tmp_path):
    cells = [Cell("minilm", layer=1, n=6, count=2, local=local) for local in (True, False)]
    table = sweep(cells, tmp_path, progress=False)
    assert table.local.dtype == float and table.local.isna().tolist() == [False, False, True, True]
    assert pd.read_parquet(tmp_path / "table.parquet").local.equals(table.local)


def test_processes_give_the_same_numbers(serial, tmp_path):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        pd.testing.assert_frame_equal(
            sweep(CELLS, tmp_path, executor=executor, progress=False), serial, check_exact=True
        )


def test_dask_cluster_gives_the_same_numbers(serial, tmp_path):
    distributed = pytest.importorskip("distributed")
    options = {
        "n_workers": 1,
        "threads_per_worker": 1,
        "dashboard_address": None,
        "processes": True,
    }
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        table = sweep(CELLS[:2], tmp_path, executor=client.get_executor(), progress=False)
    pd.testing.assert_frame_equal(
        table, serial.iloc[: len(table)].reset_index(drop=True), check_exact=True
    )


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
    assert len(again) == 2 and set(done + again) == set(CELLS)
    pd.testing.assert_frame_equal(table, serial, check_exact=True)


SCRIPT = """
import sys
from lipcore.lab.sweep import grid, sweep
sweep(grid(models=["minilm"], layers=[0, 3], lengths=eval(sys.argv[2]), count=3), sys.argv[1], progress=False)
"""


def start(folder, lengths="[4, 8]"):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), lengths])


def wait_for_cells(folder, count, seconds=120):
    """Wait until that many cells are saved."""
    end = time.monotonic() + seconds
    while len(list((folder / "cells").glob("*.parquet"))) < count:
        assert time.monotonic() < end, "nothing was saved"
        time.sleep(0.001)


def test_a_run_killed_outright_resumes(serial, tmp_path):
    run = start(tmp_path, "[4, 8, 512]")
    wait_for_cells(tmp_path, 1)
    run.send_signal(signal.SIGKILL)
    run.wait()
    saved = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").glob("*.parquet")}
    assert len(saved) < 6 and not (tmp_path / "table.parquet").exists()  # it had more to do
    pd.testing.assert_frame_equal(sweep(CELLS, tmp_path, progress=False), serial, check_exact=True)
    assert all(path.stat().st_mtime_ns == changed for path, changed in saved.items())


def test_two_runs_in_one_folder(serial, tmp_path):
    runs = [start(tmp_path), start(tmp_path)]
    assert [run.wait(timeout=300) for run in runs] == [0, 0]
    assert len(list((tmp_path / "cells").iterdir())) == len(CELLS)
    pd.testing.assert_frame_equal(collect(CELLS, tmp_path), serial, check_exact=True)


def test_a_worker_that_dies_costs_no_saved_cell(serial, tmp_path):
    (tmp_path / "cells").mkdir()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        worker = executor.submit(os.getpid).result()

        def kill():
            wait_for_cells(tmp_path, 1)
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(RuntimeError, match="cells failed, the others are saved"):
            sweep(CELLS + grid(models=["minilm"], layers=[1, 2], lengths=[64], count=3), tmp_path,
                  executor=executor, progress=False)  # fmt: skip
        killer.join()
    pd.testing.assert_frame_equal(sweep(CELLS, tmp_path, progress=False), serial, check_exact=True)


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"", lambda raw: b"not Parquet"]
)
def test_a_damaged_file_is_measured_again(damage, serial, tmp_path, monkeypatch):
    sweep(CELLS, tmp_path, progress=False)
    path = tmp_path / "cells" / f"{CELLS[1].key}.parquet"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FileNotFoundError, match="1 are missing"):
        collect(CELLS, tmp_path)
    again = []
    monkeypatch.setattr(sweeps, "measure", lambda cell: again.append(cell) or measure(cell))
    pd.testing.assert_frame_equal(sweep(CELLS, tmp_path, progress=False), serial, check_exact=True)
    assert again == [CELLS[1]]


def test_a_file_damaged_anywhere_is_measured_again(serial, tmp_path):
    """One bit: a number that can be read must be the one that was written."""
    sweep(CELLS[:1], tmp_path, progress=False)
    path, numbers = (
        tmp_path / "cells" / f"{CELLS[0].key}.parquet",
        ["sigma", "upper", "released", "radius_max"],
    )
    raw, caught = path.read_bytes(), 0
    for place in range(0, len(raw), 61):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 16]) + raw[place + 1 :])
        try:
            assert collect(CELLS[:1], tmp_path)[numbers].equals(serial[numbers].iloc[:3])
        except FileNotFoundError:
            caught += 1
    assert caught > 20


def test_another_table_is_measured_again(serial, tmp_path):
    sweep(CELLS[:1], tmp_path, progress=False)
    pd.DataFrame({"x": [1, 2, 3]}).to_parquet(tmp_path / "cells" / f"{CELLS[0].key}.parquet")
    assert len(sweep(CELLS[:1], tmp_path, progress=False)) == 3


def test_a_file_with_rows_missing_is_measured_again(serial, tmp_path):
    sweep(CELLS[:1], tmp_path, progress=False)
    path = tmp_path / "cells" / f"{CELLS[0].key}.parquet"
    pd.read_parquet(path).iloc[:1].to_parquet(path)
    assert len(sweep(CELLS[:1], tmp_path, progress=False)) == 3


def test_what_a_killed_run_left_half_written_goes(tmp_path):
    (tmp_path / "cells").mkdir()
    old, young = tmp_path / "cells" / "old.part", tmp_path / "cells" / "young.part"
    for part in (old, young):
        part.write_bytes(b"PAR1")
    os.utime(old, (0, 0))
    sweep(CELLS[:1], tmp_path, progress=False)
    assert not old.exists() and young.exists()


def test_layers_share_one_run_of_the_model(tmp_path, monkeypatch):
    model = models.load("minilm")
    runs = []
    monkeypatch.setattr(sweeps, "_model", lambda *_: model)
    monkeypatch.setattr(sweeps, "_kept", ((), []))
    whole = model.all_hidden_states
    monkeypatch.setattr(
        model, "all_hidden_states", lambda ids, up_to: runs.append(up_to) or whole(ids, up_to=up_to)
    )
    cells = grid(models=["minilm"], layers=[1, 4, 2], heads=[None, 3], lengths=[4, 8], count=2)
    table = sweep(cells, tmp_path, progress=False)
    assert runs == [4, 4]
    assert list(zip(table.layer, table.n, strict=True)) == [
        (c.layer, c.n) for c in cells for _ in range(2)
    ]


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


class _Breaks(_Inline):
    """Takes two cells, then no more."""

    def __init__(self):
        self.left = 2

    def submit(self, fn, /, *args, **kwargs):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the pool is broken")
        return super().submit(fn, *args, **kwargs)


class _Cancels(_Inline):
    """Drops the first cell."""

    def submit(self, fn, /, *args, **kwargs):
        if args[0] == CELLS[0]:
            future = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future
        return super().submit(fn, *args, **kwargs)


@pytest.mark.parametrize(("executor", "saved"), [(_Breaks, 2), (_Cancels, 3)])
def test_an_executor_that_breaks_costs_no_finished_cell(executor, saved, serial, tmp_path):
    with pytest.raises(RuntimeError, match=f"{4 - saved} of 4 cells failed, the others are saved"):
        sweep(CELLS, tmp_path, executor=executor(), progress=False)
    assert len(list((tmp_path / "cells").iterdir())) == saved


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
    before = measure(cell)
    path.write_text("four five six " * 20)
    assert cell.key != key
    assert (
        measure(cell)[0]["sigma"] != before[0]["sigma"]
    )  # nor is the old text remembered within a process


def test_a_checkpoint_that_changes_is_measured_again(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"1")
    cell = Cell(str(folder), layer=0, n=4, count=1)
    key = cell.key
    (folder / "model.safetensors").write_bytes(b"2")
    assert cell.key != key


class TestPlan:
    def write(self, tmp_path, text):
        path = tmp_path / "plan.toml"
        path.write_text(text)
        return path

    def test_grids(self, tmp_path):
        path = self.write(tmp_path, """
            lengths = [4, 8]
            count = 3
            [[grid]]
            models = ["minilm", "smollm2"]
            [[grid]]
            models = ["minilm"]
            layers = [0, 5]
            heads = "all"
            lengths = [2]
            local = true
        """)  # fmt: skip
        expected = grid(models=["minilm"], layers=range(6), lengths=[4, 8], count=3)
        expected += grid(models=["smollm2"], layers=range(30), lengths=[4, 8], count=3)
        expected += grid(
            models=["minilm"], layers=[0, 5], heads=range(12), lengths=[2], count=3, local=True
        )
        assert read_plan(path) == expected

    def test_repeated_cells_come_once(self, tmp_path):
        assert (
            len(
                read_plan(
                    self.write(tmp_path, '[[grid]]\nmodels = ["minilm"]\nlengths = [4]\n' * 2)
                )
            )
            == 6
        )

    @pytest.mark.parametrize(("text", "message"), [
        ("nonsense", "expected a TOML file"),
        ("count = 3", r"expected at least one \[\[grid\]\]"),
        ("grid = 3", r"expected at least one \[\[grid\]\]"),
        ('[[grid]]\nmodels = ["minilm"]', "grid 1 .*lengths: expected a list, got None"),
        ('[[grid]]\nmodels = "all"\nlengths = [4]', "grid 1 .*models: expected a list"),
        ('[[grid]]\nmodels = ["minilm"]\nlengths = []', "lengths: expected a list"),
        ('[[grid]]\nmodels = ["minilm"]\nlengths = [0]', "n: expected at least 1"),
        ('[[grid]]\nmodels = ["minilm"]\nlengths = [4]\nspeed = 3', "grid 1 .*speed"),
        ('[[grid]]\nmodels = ["bert-enormous"]\nlengths = [4]', "expected one of minilm"),
    ])  # fmt: skip
    def test_what_is_no_plan_is_refused(self, tmp_path, text, message):
        with pytest.raises(ValueError, match=message):
            read_plan(self.write(tmp_path, text))

    def test_absent_file(self, tmp_path):
        with pytest.raises(ValueError, match="plan: expected a TOML file"):
            read_plan(tmp_path / "no.toml")


def test_export_is_small_and_says_how_it_was_made(serial, tmp_path):
    export(serial, tmp_path / "small.parquet", command="the command")
    small = pd.read_parquet(tmp_path / "small.parquet")
    assert small.attrs == {"seconds": round(serial.attrs["seconds"], 1), "command": "the command"}
    assert serial.attrs["seconds"] > 0 and "lower" not in small and "converged" not in small
    assert small.sigma.dtype == "float32"
    pd.testing.assert_series_equal(small.sigma, serial.sigma, rtol=6e-5, check_dtype=False)
    assert 1e-6 < (small.sigma / serial.sigma - 1).abs().max() < 2**-14 * 1.01  # rounded
    assert (small.upper >= serial.upper).all() and (
        small.upper <= serial.upper * (1 + 2**-12)
    ).all()
    pd.testing.assert_series_equal(small.n, serial.n, check_dtype=False)
    unfinished = serial.assign(converged=False)
    unfinished.attrs = {}
    export(unfinished, tmp_path / "small.parquet")
    assert not pd.read_parquet(tmp_path / "small.parquet").converged.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"n": 0}, "n: expected at least 1"), ({"layer": -1}, "layer"), ({"tol": 0}, "tol"), ({"count": 0}, "count"),
     ({"dtype": "float16"}, "dtype"), ({"start": -3}, "start"), ({"n": 2.5}, "n: expected a whole number"),
     ({"head": -1}, "head: expected at least 0"), ({"head": "all"}, "head: expected a whole number"),
     ({"model": 3}, "model: expected a str, got 3"), ({"local": "no"}, "local: expected a bool, got 'no'")],
)  # fmt: skip
def test_bad_cells_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Cell(**({"model": "minilm", "layer": 0, "n": 4} | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"model": "bert-enormous"}, "name: expected one of minilm"), ({"layer": 6}, "layer: expected 0 to 5"),
     ({"n": 513}, "n: expected at most 512 tokens, the positions of minilm"), ({"head": 12}, "index"),
     ({"text": "no-such-file.txt"}, "text: expected one of pydoc"),
     ({"text": "licences", "n": 512, "count": 15}, "text: expected at least 15 × 512 tokens, it has 7"),
     ({"model": "smollm2", "decoder": True}, "decoder: expected a BERT model")],
)  # fmt: skip
def test_what_no_model_can_measure_is_said_clearly(options, message):
    with pytest.raises((ValueError, IndexError), match=message):
        measure(Cell(**({"model": "minilm", "layer": 0, "n": 4} | options)))


def test_a_checkpoint_of_another_architecture_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(
        ValueError, match="expected a checkpoint of type bert, gpt2, llama, got 't5'"
    ):
        measure(Cell(str(tmp_path), layer=0, n=4))


def test_no_cells_are_refused(tmp_path):
    with pytest.raises(ValueError, match="cells: expected at least one"):
        sweep([], tmp_path)


def test_cells_of_any_kind_of_numbers_are_the_same():
    """NumPy's numbers among them, of which JSON makes no key."""
    (cell,) = grid(models=["minilm"], layers=np.arange(1), lengths=np.array([4]), heads=np.array([2]),
                   tol=np.float32(0.5), count=3.0)  # fmt: skip
    plain = Cell("minilm", layer=0, n=4, head=2, tol=0.5, count=3)
    assert cell == plain and cell.key == plain.key


@pytest.mark.parametrize("cells", [[3], ["minilm"]])
def test_what_is_no_cell_is_refused(cells, tmp_path):
    with pytest.raises(TypeError, match="cells: expected Cells, got"):
        sweep(cells, tmp_path, progress=False)


def test_what_is_no_executor_is_refused(tmp_path):
    with pytest.raises(
        TypeError, match=r"executor: expected a concurrent.futures.Executor, got str"
    ):
        sweep(CELLS, tmp_path, executor="processes", progress=False)
