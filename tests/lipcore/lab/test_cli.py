"""The command ``python -m lab.sweep``: its table, its plan, and one line for what it cannot do."""

from __future__ import annotations

import hashlib

import pandas as pd
import pytest

from lab import models
from lab.cli import main
from lab.measure_layer import measure_layer
from lab.models.texts import load_text, sequences
from lipcore.models.measure import versions


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Sixty words in a file."""
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("one two three four five six " * 10, encoding="utf-8")
    return path


@pytest.fixture
def sweep(text, capsys, tmp_path):
    """Run ``python -m lab.sweep``, and return (exit code, standard output, standard error)."""

    def run(options, folder=tmp_path):
        command = f"--quiet --folder {folder} --text {text} --count 2 --layer 0 3 {options}"
        return main(command.split()), *capsys.readouterr()

    return run


def test_table_has_the_numbers_of_the_layers(sweep, text, tmp_path):
    code, out, err = sweep("--n 4 8 --bounds local best")
    assert code == 0 and err == "" and "8 rows from 4 cells" in out
    table = pd.read_parquet(tmp_path / "table.parquet")
    model = models.load("minilm")
    ids = sequences(model, load_text(text), n=8, count=2)
    expected = measure_layer(model.attention(3), model.hidden_states(3, ids))
    rows = table[(table.layer == 3) & (table.n == 8)].to_dict("records")
    for row, values in zip(rows, expected, strict=True):
        assert set(values) <= set(row)
        for name in ("sigma", "lower", "upper", "released", "radius_max", "local", "best"):
            assert row[name] == pytest.approx(values[name], rel=1e-5)
        assert pd.isna(row["general"])


def test_two_processes_give_the_same_table(sweep, tmp_path):
    """The only real pool."""
    tables = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        code, out, _ = sweep(f"--n 4 --head 0 3 --workers {workers}", folder=folder)
        assert code == 0 and "8 rows from 4 cells" in out
        tables.append(pd.read_parquet(folder / "table.parquet"))
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def test_all_heads(sweep):
    assert "48 rows from 24 cells" in sweep("--n 4 --head all")[1]


@pytest.fixture
def plan(text, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(f"""
        texts = ["{text}"]
        count = 2
        layers = [0]
        [[grid]]
        models = ["minilm"]
        lengths = [4, 8]
        [[grid]]
        models = ["minilm"]
        heads = "all"
        lengths = [4]
    """)
    return path


def test_plan_and_export(plan, text, capsys, tmp_path):
    small = tmp_path / "small.parquet"
    command = f"--plan {plan} --folder {tmp_path} --export {small}"
    assert main([*command.split(), "--quiet"]) == 0
    assert "28 rows from 14 cells" in capsys.readouterr().out
    table = pd.read_parquet(small)
    whole = pd.read_parquet(tmp_path / "table.parquet")
    assert table.sigma.tolist() == pytest.approx(whole.sigma.tolist(), rel=1e-4)
    assert table.attrs["command"] == f"python -m lab.sweep {command}"
    assert table.attrs["versions"] == versions()
    assert table.attrs["seconds"] == round(whole.attrs["seconds"], 1) > 0
    digest = hashlib.sha256(load_text(text).encode()).hexdigest()
    assert table.attrs["texts"] == {str(text): digest}
    (weights,) = table.attrs["weights"].values()
    assert len(weights) == 64


@pytest.mark.parametrize("option", ["--layer 0", "--count 3", "--bounds local", "--head all"])
def test_options_beside_a_plan_are_refused(plan, capsys, tmp_path, option):
    code = main(f"--plan {plan} --folder {tmp_path} {option}".split())
    out, err = capsys.readouterr()
    assert code == 2 and out == "" and err.count("\n") == 1
    assert f"{option.split()[0]}: expected in the plan, not beside --plan" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--n 4 --layer 9", "layer: "),
        ("--n 4 --head 99", "head: "),
        ("--n 4 --head one", "--head"),
        ("--n 4 --head all 3", "head: "),
        ("--n 600", ": n: "),
        ("--n 4 --count 99", "text: "),
        ("--n 4 --workers 0", "workers: "),
        ("--n 4 --export no-such-folder/small.parquet", "--export"),
        ("--n 4 --text no-such-file.txt", "text: "),
        ("--n 4 --model bert-enormous", "bert-enormous"),
        ("--n 4 --bounds unified", "bounds: "),
        ("--n 4 --plan plan.toml", "--plan"),
        ("", "--n --plan"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_one_line(sweep, options, message):
    code, out, err = sweep(options)
    assert code == 2 and out == ""
    assert err.startswith("lab: error: ") and err.count("\n") == 1 and message in err


def test_nothing_runs_before_everything_can_be_had(sweep, tmp_path):
    code, _, err = sweep("--n 4 600", folder=tmp_path / "sweep")
    assert code == 2 and ": n: " in err and not (tmp_path / "sweep").exists()
