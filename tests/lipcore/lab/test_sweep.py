"""Sweeps: what a cell measures, and that nothing is lost and nothing repeated.

How cells are run and saved is tested on a measurement that costs nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch

from lab import models
from lab import sweep as sweeps
from lab.measure_layer import measure_layer
from lab.models.texts import load_text, sequences
from lab.sweep import Cell, export, grid, measure, read_plan, sweep

CELLS = grid(models=["minilm"], layers=[0, 3], lengths=[4, 8], count=3)


# --- what is measured -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm():
    return models.load("minilm")


@pytest.mark.parametrize(
    "options",
    [{}, {"head": 5, "bounds": ["local"]}, {"start": 9, "text": "licences"}, {"dtype": "float64"}],
)
def test_a_cell_is_a_layer_at_consecutive_pieces_of_a_text(options, minilm):
    cell = Cell("minilm", layer=3, n=6, count=2, tol=1e-3, **options)
    ids = sequences(minilm, load_text(cell.text), 6, 2, start=cell.start)
    X = minilm.hidden_states(3, ids)
    expected = measure_layer(minilm.attention(3, head=cell.head), X, tol=1e-3, bounds=cell.bounds)
    for row, values in zip(measure(cell), expected, strict=True):
        assert row["model"] == "minilm" and row["layer"] == 3 and row["text"] == cell.text
        for name in ("sigma", "upper", "released", "radius_max", "local"):
            assert row[name] == pytest.approx(values[name], rel=1e-3, nan_ok=True)


def test_a_decoder_is_causal(minilm):
    (row,) = measure(Cell("minilm", layer=3, n=6, count=1, decoder=True))
    decoder = models.load("minilm", decoder=True)
    X = decoder.hidden_states(3, sequences(decoder, load_text("pydoc"), 6))
    (expected,) = measure_layer(decoder.attention(3), X, bounds=[])
    (other,) = measure(Cell("minilm", layer=3, n=6, count=1))
    assert row["sigma"] == pytest.approx(expected["sigma"], rel=1e-4)
    assert row["sigma"] != pytest.approx(other["sigma"], rel=1e-2)


def test_the_tokens_of_controls(minilm):
    """Each is the beginning of one text of its own, whatever the length."""

    def pieces(control, n=20, text="licences", **options):
        return sweeps._pieces(minilm, Cell("minilm", 0, n, text=text, control=control, **options))

    whole = minilm.encode(load_text("licences"))
    for control in ("", "shuffled", "uniform", "repeated", "permuted"):
        longer = pieces(control, count=1)
        assert torch.equal(pieces(control, n=7, count=1), longer[:, :7])
        assert torch.equal(longer, pieces(control, count=1))  # the seed is fixed
    everything = pieces("shuffled", n=500, count=len(whole) // 500).flatten()
    assert not torch.equal(everything, whole[: len(everything)])
    left = whole.bincount(minlength=40_000) - everything.bincount(minlength=40_000)
    assert left.min() == 0 and left.sum() == len(whole) % 500  # the same tokens
    uniform = pieces("uniform", n=500, count=10)
    assert len(uniform.unique()) > 4_000 and uniform.max() > 0.99 * minilm.vocab_size
    assert not torch.equal(uniform[0, :20], pieces("uniform", text="pydoc", count=1)[0])
    repeated = pieces("repeated", count=3)
    assert torch.equal(repeated, whole[[0, 20, 40], None].expand(3, 20))
    assert torch.equal(pieces("permuted", count=3), whole[:60].reshape(3, 20))


@pytest.mark.parametrize(("name", "decoder"), [("minilm", True), ("smollm2", False)])
def test_permuted_scores(name, decoder):
    """Queries and keys lose their order, and nothing else changes."""
    plain, permuted = (
        sweeps._model(name, decoder, "float32", changed, "") for changed in (False, True)
    )
    before, after = plain.attention(1), permuted.attention(1)
    for matrix in ("query", "key"):
        old, new = (getattr(f, matrix).flatten() for f in (before, after))
        assert torch.equal(old.sort().values, new.sort().values)
        assert (old == new).double().mean() < 0.1
    assert torch.equal(before.value, after.value) and torch.equal(before.output, after.output)
    (row,) = measure(Cell(name, 1, 6, count=1, decoder=decoder, control="permuted"))
    X = permuted.hidden_states(1, sequences(permuted, load_text("pydoc"), 6))
    (expected,) = measure_layer(after, X, bounds=[])
    assert row["sigma"] == pytest.approx(expected["sigma"], rel=1e-3)
    assert row["control"] == "permuted"


def test_scores_in_one_matrix_cannot_be_permuted():
    with pytest.raises(ValueError, match="query"):
        sweeps._model("gpt2-random", False, "float32", True, "")


def test_layers_share_one_run_of_the_model(tmp_path, monkeypatch, minilm):
    runs = []
    whole = minilm.all_hidden_states

    def counted(ids, up_to):
        runs.append(up_to)
        return whole(ids, up_to=up_to)

    monkeypatch.setattr(sweeps, "_model", lambda *_: minilm)
    monkeypatch.setattr(sweeps, "_latest", {})
    monkeypatch.setattr(minilm, "all_hidden_states", counted)
    cells = grid(models=["minilm"], layers=[1, 4, 2], heads=[None, 3], lengths=[4, 8], count=2)
    table = sweep(cells, tmp_path, progress=False)
    assert runs == [4, 4] and len(sweeps._latest) == 1
    expected = [(cell.layer, cell.n) for cell in cells for _ in range(2)]
    assert list(zip(table.layer, table.n, strict=True)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "bert-enormous"}, "^name: "),
        ({"layer": 6}, "^layer: "),
        ({"n": 513}, "^n: "),
        ({"head": 12}, "^head: "),
        ({"text": "no-such-file.txt"}, "^text: "),
        ({"text": "licences", "n": 512, "count": 15}, "^text: "),
        ({"model": "smollm2", "decoder": True}, "^decoder: "),
    ],
)
def test_what_no_model_can_measure_is_said_clearly(options, message):
    with pytest.raises((ValueError, IndexError), match=message):
        measure(Cell(**{"model": "minilm", "layer": 0, "n": 4} | options))


def test_a_text_that_changes_is_read_again(tmp_path):
    path = tmp_path / "text.txt"
    cell = Cell("minilm", layer=0, n=4, count=1, text=str(path))
    keys = set()
    sigmas = set()
    for words in ("one two three ", "four five six seven "):
        path.write_text(words * 20)
        keys.add(cell.key)
        sigmas.add(measure(cell)[0]["sigma"])
    assert len(keys) == len(sigmas) == 2


def test_a_checkpoint_that_changes_has_another_key(tmp_path):
    cell = Cell(str(tmp_path), layer=0, n=4)
    keys = set()
    for age in (1, 2):
        (tmp_path / "model.safetensors").write_bytes(b"weights")
        os.utime(tmp_path / "model.safetensors", (age, age))
        keys.add(cell.key)
    assert len(keys) == 2


def test_a_cell_runs_on_one_thread(monkeypatch):
    """Sums come in one order: the same numbers in this process, in a pool and on a cluster."""
    threads = []
    monkeypatch.setattr(
        sweeps, "measure_layer", lambda *_, **options: threads.append(torch.get_num_threads()) or []
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        measure(CELLS[0])
        threads.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert threads == [1, 2]


# --- cells, grids and plans -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "^n: "),
        ({"n": 2.5}, "^n: "),
        ({"layer": -1}, "layer"),
        ({"head": -1}, "^head: "),
        ({"head": "all"}, "^head: "),
        ({"count": 0}, "count"),
        ({"start": -3}, "start"),
        ({"tol": 0}, "tol"),
        ({"dtype": "float16"}, "dtype"),
        ({"model": 3}, "^model: "),
        ({"decoder": "no"}, "^decoder: "),
        ({"control": "reversed"}, "^control: "),
        ({"bounds": ["unified"]}, "^bounds: "),
    ],
)
def test_bad_cells_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Cell(**({"model": "minilm", "layer": 0, "n": 4} | options))


def test_cells_of_any_kind_of_numbers_are_the_same():
    """NumPy's numbers among them, of which JSON makes no key."""
    (cell,) = grid(
        models=["minilm"],
        layers=np.arange(1),
        lengths=np.array([4]),
        heads=np.array([2]),
        tol=np.float32(0.5),
        count=3.0,
        bounds=["local"],
    )
    plain = Cell("minilm", layer=0, n=4, head=2, tol=0.5, count=3, bounds=("local",))
    assert cell == plain and cell.key == plain.key


def test_every_attribute_of_a_cell_is_in_its_key():
    other = {"model": "gpt2", "layer": 1, "n": 5, "head": 0, "text": "alice", "count": 9}
    other |= {"start": 1, "decoder": True, "dtype": "float64", "tol": 0.1, "bounds": ("local",)}
    other |= {"control": "shuffled"}
    plain = {"model": "minilm", "layer": 0, "n": 4}
    keys = {Cell(**plain | {name: value}).key for name, value in other.items()}
    assert set(other) == set(asdict(CELLS[0])) and len(keys | {Cell(**plain).key}) == 13


def test_grid_in_order():
    cells = grid(models=["minilm", "smollm2"], lengths=iter([4, 8]), heads="all", layers=[5, 2])
    assert len(cells) == 2 * 2 * (12 + 9)
    assert [(c.model, c.layer, c.head, c.n) for c in cells[:3]] == [
        ("minilm", 5, 0, 4),
        ("minilm", 5, 0, 8),
        ("minilm", 5, 1, 4),
    ]


def write_plan(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path


def test_plan(tmp_path):
    text = """
        lengths = [4, 8]
        count = 3
        [[grid]]
        models = ["minilm", "smollm2"]
        [[grid]]
        models = ["minilm"]
        layers = [0, 5]
        heads = "all"
        lengths = [2]
        bounds = ["local"]
    """
    heads = {"heads": range(12), "bounds": ["local"]}
    expected = grid(models=["minilm"], layers=range(6), lengths=[4, 8], count=3)
    expected += grid(models=["smollm2"], layers=range(30), lengths=[4, 8], count=3)
    expected += grid(models=["minilm"], layers=[0, 5], lengths=[2], count=3, **heads)
    assert read_plan(write_plan(tmp_path, text)) == expected


def test_repeated_cells_of_a_plan_come_once(tmp_path):
    text = '[[grid]]\nmodels = ["minilm"]\nlengths = [4]\n'
    assert len(read_plan(write_plan(tmp_path, text * 2))) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "TOML"),
        ("count = 3", "grid"),
        ("grid = 3", "grid"),
        ('[[grid]]\nmodels = ["minilm"]', "lengths"),
        ('[[grid]]\nmodels = "all"\nlengths = [4]', "models: "),
        ('[[grid]]\nmodels = ["minilm"]\nlengths = []', "lengths: "),
        ('[[grid]]\nmodels = ["minilm"]\nlengths = [4]\nheads = 3', "grid 1"),
        ('[[grid]]\nmodels = ["minilm"]\nlengths = [4]\nheads = "two"', "heads: "),
        ('[[grid]]\nmodels = ["minilm"]\nlengths = [0]', "n: "),
        ('[[grid]]\nmodels = ["minilm"]\nlengths = [4]\nspeed = 3', "speed"),
        ('[[grid]]\nmodels = ["bert-enormous"]\nlengths = [4]', "name: "),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_plan(write_plan(tmp_path, text))


def test_absent_plan(tmp_path):
    with pytest.raises(ValueError, match=r"^plan: "):
        read_plan(tmp_path / "no.toml")


# --- running and saving -----------------------------------------------------------------------


class Stub:
    """A measurement that costs nothing, and remembers what it was asked for."""

    def __init__(self):
        self.done: list[Cell] = []
        self.before = lambda cell: None  # may raise, or wait

    def __call__(self, cell):
        self.before(cell)
        self.done.append(cell)
        attributes = asdict(cell)
        del attributes["bounds"]
        values = {"sigma": cell.layer + cell.n / 10, "local": np.nan}
        return [attributes | values | {"sequence": i} for i in range(cell.count)]


@pytest.fixture
def stub(monkeypatch):
    stub = Stub()
    monkeypatch.setattr(sweeps, "measure", stub)
    return stub


@pytest.fixture
def expected(stub):
    table = pd.DataFrame([row for cell in CELLS for row in stub(cell)])
    stub.done.clear()
    return table.astype({"head": "Int64"})


def run(folder, cells=CELLS, **options):
    return sweep(cells, folder, progress=False, **options)


def saved(folder):
    return {path.stem for path in (folder / "cells").iterdir()}


def assert_same(table, expected):
    pd.testing.assert_frame_equal(table, expected, check_exact=True)


def test_table_is_in_the_order_of_the_cells(stub, expected, tmp_path):
    table = run(tmp_path)
    assert_same(table, expected)
    assert_same(pd.read_parquet(tmp_path / "table.parquet"), expected)
    assert table.attrs["seconds"] >= 0 and saved(tmp_path) == {cell.key for cell in CELLS}


def test_the_top_layer_comes_first(stub, tmp_path):
    run(tmp_path)
    assert [(cell.n, cell.layer) for cell in stub.done] == [(4, 3), (4, 0), (8, 3), (8, 0)]


def test_a_stopped_sweep_resumes_without_repeating(stub, expected, tmp_path):
    def stop(cell):
        if len(stub.done) == 2:
            raise KeyboardInterrupt

    stub.before = stop
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert saved(tmp_path) == {cell.key for cell in stub.done}
    stub.before = lambda cell: None
    assert_same(run(tmp_path), expected)
    assert sorted(stub.done, key=CELLS.index) == CELLS


def test_a_run_killed_outright_resumes_without_repeating(stub, expected, tmp_path):
    """The only real kill: of a process that works at its third cell."""

    def wait(cell):
        if len(stub.done) == 2:
            time.sleep(60)

    stub.before = wait
    process = multiprocessing.get_context("fork").Process(target=run, args=(tmp_path,))
    process.start()
    end = time.monotonic() + 30
    while len(list((tmp_path / "cells").glob("*.json"))) < 2:
        assert time.monotonic() < end, "nothing was saved"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not (tmp_path / "table.parquet").exists()
    stub.before = lambda cell: None
    assert_same(run(tmp_path), expected)
    assert len(stub.done) == 2


def test_another_run_in_the_same_folder(stub, expected, tmp_path):
    def run_whole(cell):
        stub.before = lambda cell: None
        run(tmp_path)

    stub.before = run_whole
    assert_same(run(tmp_path), expected)
    assert len(stub.done) == 2 * len(CELLS) and saved(tmp_path) == {cell.key for cell in CELLS}


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"", bytes.upper])
def test_a_damaged_file_is_measured_again(damage, stub, expected, tmp_path):
    run(tmp_path)
    path = tmp_path / "cells" / f"{CELLS[1].key}.json"
    path.write_bytes(damage(path.read_bytes()))
    stub.done.clear()
    assert_same(run(tmp_path), expected)
    assert stub.done == [CELLS[1]]


def test_an_interrupted_write_leaves_nothing(stub, tmp_path, monkeypatch):
    def full(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        run(tmp_path)
    assert not saved(tmp_path)


class Inline(Executor):
    """Runs at once."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Breaks(Inline):
    """Takes two cells, then no more."""

    left = 2

    def submit(self, fn, /, *args, **kwargs):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the pool is broken")
        return super().submit(fn, *args, **kwargs)


class Cancels(Inline):
    """Drops the first cell."""

    def submit(self, fn, /, *args, **kwargs):
        if args[0] != CELLS[0]:
            return super().submit(fn, *args, **kwargs)
        future = Future()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future


@pytest.mark.parametrize(("executor", "count"), [(Breaks, 2), (Cancels, 3)])
def test_an_executor_that_breaks_costs_no_finished_cell(executor, count, stub, tmp_path):
    message = f"{4 - count} of 4"
    with pytest.raises(RuntimeError, match=message):
        run(tmp_path, executor=executor())
    assert len(saved(tmp_path)) == count


@pytest.mark.parametrize("executor", [None, Inline()])
def test_a_failing_cell_costs_only_itself(executor, stub, tmp_path):
    def fail(cell):
        if cell == CELLS[2]:
            raise ValueError("too difficult")

    stub.before = fail
    with pytest.raises(RuntimeError, match="layer=3, n=4"):
        run(tmp_path, executor=executor)
    assert len(saved(tmp_path)) == 3 and not (tmp_path / "table.parquet").exists()


def test_threads(stub, expected, tmp_path):
    with ThreadPoolExecutor(2) as executor:
        assert_same(run(tmp_path, executor=executor), expected)


def test_dask(stub, expected, tmp_path):
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(processes=False, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert_same(run(tmp_path, executor=client.get_executor()), expected)


@pytest.mark.parametrize(
    ("cells", "options", "error", "message"),
    [
        ([], {}, ValueError, "^cells: "),
        ([3], {}, TypeError, "^cells: "),
        (["minilm"], {}, TypeError, "^cells: "),
        (CELLS, {"executor": "processes"}, TypeError, "^executor: "),
    ],
)
def test_what_cannot_be_swept_is_refused(cells, options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        run(tmp_path, cells, **options)


# --- the small copy ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    cells = [Cell("minilm", 1, n, count=3, bounds=["local"] * (n == 6)) for n in (4, 6)]
    return sweep(cells, tmp_path_factory.mktemp("sweep"), progress=False)


def test_export_is_small_and_says_how_it_was_made(table, tmp_path):
    export(table, tmp_path / "small.parquet", command="the command")
    small = pd.read_parquet(tmp_path / "small.parquet")
    assert small.attrs == {"seconds": round(table.attrs["seconds"], 1), "command": "the command"}
    assert table.attrs["seconds"] > 0
    gone = {"lower", "residual", "converged", "best", "general", "log_best", "log_general"}
    assert set(table) - set(small) == gone and small["head"].isna().all()
    pd.testing.assert_series_equal(small.n, table.n)


def test_export_rounds_to_a_few_digits_and_bounds_upwards(table, tmp_path):
    export(table, tmp_path / "small.parquet")
    small = pd.read_parquet(tmp_path / "small.parquet")
    assert small.sigma.dtype == "float32"
    assert 1e-6 < (small.sigma / table.sigma - 1).abs().max() < 2**-14 * 1.01
    for name in ("upper", "local"):
        ratio = (small[name] / table[name]).dropna()
        assert len(ratio) >= 3 and (ratio >= 1).all() and (ratio <= 1 + 2**-12).all()
    assert small.local.isna().tolist() == [True] * 3 + [False] * 3


def test_export_says_what_did_not_converge(table, tmp_path):
    export(table.assign(converged=False), tmp_path / "small.parquet")
    assert not pd.read_parquet(tmp_path / "small.parquet").converged.any()
