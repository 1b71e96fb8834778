"""Sweeps: what a cell measures, that nothing is lost and nothing repeated, and the small copy."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from lab import models
from lab import sweep as sweeps
from lab.controls import CONTROLS, permute_scores
from lab.measure_layer import measure_layer
from lab.models.texts import load_text, sequences
from lab.sweep import Cell, collect, export, finish, grid, main, measure, read_plan, sweep


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


def test_the_tokens_of_controls(minilm):
    """Each is the beginning of one text of its own, whatever the length."""

    def pieces(control, n=20, text="licences", **options):
        return sweeps.pieces(minilm, Cell("minilm", 0, n, text=text, control=control, **options))

    whole = minilm.encode(load_text("licences"))
    for control in CONTROLS:
        assert torch.equal(pieces(control, n=7, count=1), pieces(control, count=1)[:, :7])
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
        sweeps._model(name, decoder, "float32", changed) for changed in (False, True)
    )
    before, after = plain.attention(1), permuted.attention(1)
    for matrix in ("query", "key"):
        old, new = (getattr(f, matrix).flatten() for f in (before, after))
        assert torch.equal(old.sort().values, new.sort().values)
        assert (old == new).double().mean() < 0.1
    assert torch.equal(before.value, after.value) and torch.equal(before.output, after.output)


def test_scores_are_permuted_in_every_layer_or_not_at_all():
    other = SimpleNamespace(model=torch.nn.Linear(2, 2), n_layers=1)
    with pytest.raises(ValueError, match="model"):
        permute_scores(other, generator=torch.Generator())


def test_layers_share_one_run_of_the_model_on_one_thread(tmp_path, monkeypatch, minilm):
    runs = []
    whole = minilm.all_hidden_states

    def counted(ids, up_to):
        runs.append((up_to, torch.get_num_threads()))
        return whole(ids, up_to=up_to)

    monkeypatch.setattr(sweeps, "_model", lambda *_: minilm)
    monkeypatch.setattr(sweeps, "_latest", {})
    monkeypatch.setattr(minilm, "all_hidden_states", counted)
    cells = grid(models=["minilm"], layers=[1, 4, 2], heads=[None, 3], lengths=[4, 8], count=2)
    table = sweep(cells, tmp_path)
    assert runs == [(4, 1), (4, 1)]
    expected = [(cell.layer, cell.n) for cell in cells for _ in range(2)]
    assert list(zip(table.layer, table.n, strict=True)) == expected


def test_unknown_names_are_refused():
    for wrong in ({"control": "reversed"}, {"bounds": ["unified"]}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Cell("minilm", layer=0, n=4, **wrong)


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


def test_plan(tmp_path):
    text = """
        lengths = [4, 8]
        count = 3
        [[grid]]
        models = ["minilm"]
        [[grid]]
        models = ["minilm"]
        layers = [5, 0]
        heads = "all"
        bounds = ["local"]
        [[grid]]
        models = ["minilm"]
    """
    (tmp_path / "plan.toml").write_text(text)
    expected = [("minilm", layer, None, n) for layer in range(6) for n in (4, 8)]
    expected += [
        ("minilm", layer, head, n) for layer in (5, 0) for head in range(12) for n in (4, 8)
    ]
    cells = read_plan(tmp_path / "plan.toml")
    assert [(cell.model, cell.layer, cell.head, cell.n) for cell in cells] == expected
    assert {cell.count for cell in cells} == {3} and cells[-1].bounds == ("local",)


# --- running and keeping, on a measurement that costs nothing ---------------------------------


@dataclass(frozen=True)
class Fake:
    """A cell of any other kind."""

    key: str


FAKES = [Fake(key) for key in "abcd"]


@pytest.fixture
def run(tmp_path):
    """Finish the cells, of which some may be too difficult, and say what was measured."""

    def run(difficult=""):
        measured = []

        def measure(cell):
            if cell.key in difficult:
                raise ValueError("too difficult")
            measured.append(cell.key)
            return [{"key": cell.key}]

        finish(FAKES, tmp_path, measure)
        return measured

    return run


def test_a_failing_cell_costs_only_itself(run, tmp_path):
    with pytest.raises(RuntimeError, match=r"key='c'.*too difficult"):
        run(difficult="c")
    assert run() == ["c"]
    assert collect(FAKES, tmp_path)["key"].tolist() == [*"abcd"]


@pytest.mark.parametrize("left", [0, 20])
def test_a_damaged_file_is_measured_again(run, tmp_path, left):
    run()
    path = tmp_path / "cells" / "b.json"
    path.write_bytes(path.read_bytes()[:left])
    assert run() == ["b"]


# --- the command, and the small copy ----------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A command, the table that it writes, and the small copy."""
    folder = tmp_path_factory.mktemp("sweep")
    plan = folder / "plan.toml"
    text = '[[grid]]\nmodels = ["minilm"]\nlayers = [0, 1]\nlengths = [{}]\ncount = 3\n{}\n'
    plan.write_text(text.format(4, "") + text.format(6, 'bounds = ["local"]'))
    command = f"--plan {plan} --folder {folder} --export {folder / 'small.parquet'}"
    main(command.split())
    return command, *(pd.read_parquet(folder / f"{name}.parquet") for name in ("table", "small"))


def test_export_says_how_it_was_made(done):
    command, whole, small = done
    assert small.attrs["command"] == f"python -m lab.sweep {command}"
    assert small.attrs["seconds"] == round(whole.attrs["seconds"], 1) > 0
    assert {"lipcore", "torch", "python", "transformers"} <= set(small.attrs["versions"])
    assert len(small.attrs["weights"]["minilm"]) == len(small.attrs["texts"]["pydoc"]) == 64
    gone = {"lower", "residual", "converged"}
    assert set(whole) - set(small) == gone and small["head"].isna().all()


def test_export_rounds_to_a_few_digits_and_bounds_upwards(done, tmp_path):
    _, table, small = done
    assert small.sigma.dtype == "float32"
    assert 1e-6 < (small.sigma / table.sigma - 1).abs().max() < 2**-14 * 1.01
    for name in ("upper", "local"):
        ratio = (small[name] / table[name]).dropna()
        assert len(ratio) >= 3 and (ratio >= 1).all() and (ratio <= 1 + 2**-12).all()
    assert small.local.isna().tolist() == [True] * 6 + [False] * 6
    export(table.assign(converged=False), tmp_path / "small.parquet", command="")
    assert not pd.read_parquet(tmp_path / "small.parquet").converged.any()


def test_what_cannot_be_swept_is_said_by_the_command(tmp_path, capsys):
    (tmp_path / "plan.toml").write_text('[[grid]]\nmodels = ["bert-enormous"]\nlengths = [4]')
    with pytest.raises(SystemExit, match="2"):
        main(f"--plan {tmp_path / 'plan.toml'} --folder {tmp_path}".split())
    assert "bert-enormous" in capsys.readouterr().err
