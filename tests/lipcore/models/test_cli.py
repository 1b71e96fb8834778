"""The command line: its tables, its JSON, and one line with exit code 2 for input that cannot be used."""

import json
import math
import os
import subprocess
import sys
import time

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs lipcore[models]")

import lipcore  # noqa: E402
from lipcore import models  # noqa: E402
from lipcore.bounds import best_upper, layer_upper, local_upper  # noqa: E402
from lipcore.models import texts  # noqa: E402
from lipcore.models.cli import main  # noqa: E402

WORDS = [f"word{i}" for i in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint of a small BERT that knows forty words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    folder = tmp_path_factory.mktemp("tiny-bert")
    config = transformers.BertConfig(
        vocab_size=41,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=24,
    )
    model, generator = transformers.BertModel(config), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.1, 0.3, generator=generator)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(
        WordLevel({"[UNK]": 0} | {word: i + 1 for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Sixty words in a file."""
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(WORDS[(7 * i) % 40] for i in range(60)), encoding="utf-8")
    return path


@pytest.fixture
def measure(folder, text, capsys):
    """Run ``lipcore measure`` on the small model, and return (exit code, standard output, standard error)."""

    def run(*arguments, model=folder, layer="1", text=text, n="8", count="3"):
        code = main(
            [
                "measure",
                "--model",
                str(model),
                "--layer",
                layer,
                "--text",
                str(text),
                "--n",
                n,
                "--count",
                count,
                *arguments,
            ]
        )
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def tokens(folder, text):
    model = models.load(folder)
    return model, model.hidden_states(
        1, texts.sequences(model, texts.load_text(text), n=8, count=3)
    )


def test_json_says_what_the_library_finds(measure, tokens):
    code, out, err = measure("--json", "--seed", "4")
    report, (model, X) = json.loads(out), tokens
    assert code == 0 and err == ""
    attention = model.attention(1)
    expected = lipcore.local_lipschitz(attention, X, generator=torch.Generator().manual_seed(4))
    local = local_upper(attention, X)
    for i, row in enumerate(report["results"]):
        for key, name in (
            ("sigma", "value"),
            ("lower", "lower"),
            ("upper", "upper"),
            ("residual", "residual"),
        ):
            assert row[key] == pytest.approx(getattr(expected, name)[i].item(), rel=1e-6, abs=1e-9)
        assert row["iterations"] == expected.iterations[i] and row["converged"]
        radius = X[i].norm(dim=-1).max().item()
        assert row["radius"] == pytest.approx(radius)
        assert row["bounds"]["local"] == pytest.approx(local[i].item(), rel=1e-6)
        ball = {"n": 8, "radius": radius}
        assert row["bounds"]["best"] == pytest.approx(
            best_upper(attention=attention, **ball), rel=1e-5
        )
        assert row["bounds"]["general"] == pytest.approx(layer_upper(attention, **ball), rel=1e-5)
        assert row["lower"] <= row["sigma"] <= row["upper"] and row["ratios"]["local"] >= 1
        for form, bound in row["bounds"].items():
            assert row["ratios"][form] == pytest.approx(bound / row["sigma"])
            assert row["log_bounds"][form] == pytest.approx(math.log(bound))
    assert report["median"]["sigma"] == pytest.approx(expected.value.median().item())


def test_json_says_how_to_repeat_it(measure, folder, text):
    report = json.loads(measure("--json")[1])
    assert (
        report["versions"]["lipcore"] == lipcore.__version__
        and report["versions"]["torch"] == torch.__version__
    )
    assert report["model"] == {
        "name": folder.name,
        "sha256": "",
        "architecture": "BERT",
        "d": 16,
        "causal": False,
    }
    assert report["seeds"] == {"start_vector": 0, "weights": None}
    assert report["certificate"] == {"kind": "probable", "probability": 0.999}
    for key, value in (
        ("layer", 1),
        ("head", None),
        ("heads", 4),
        ("n", 8),
        ("count", 3),
        ("start", 0),
        ("tol", 1e-4),
        ("dtype", "float32"),
        ("text", str(text)),
    ):
        assert report[key] == value
    assert json.loads(measure("--json")[1]) == report


def test_table(measure):
    code, out, err = measure()
    lines = out.splitlines()
    assert (
        code == 0 and err == "" and max(map(len, lines[1:])) < 130
    )  # the first names the text, at any path
    assert "layer 1, 4 heads; n = 8, 3 sequences" in lines[0] and "float32" in lines[0]
    assert "with probability 0.999" in lines[1]
    titles = [
        "sequence",
        "σ",
        "lower",
        "upper",
        "iterations",
        "local",
        "local/σ",
        "best",
        "best/σ",
        "general",
        "general/σ",
    ]
    assert lines[3].split() == titles
    rows = [line.split() for line in lines[4:]]
    assert [row[0] for row in rows] == ["0", "1", "2", "median"] and all(
        len(row) == len(titles) for row in rows
    )
    for row in rows:
        _, sigma, lower, upper, _, local, ratio, best, _, general, _ = map(float, [0, *row[1:]])
        assert lower <= sigma <= upper <= local <= best <= general
        assert ratio == pytest.approx(local / sigma, rel=0.02)


def test_certificate_that_always_holds(measure):
    code, out, _ = measure("--certificate", "always", "--json")
    report = json.loads(out)
    assert code == 0 and report["certificate"] == {"kind": "always", "probability": 1.0}
    assert all(row["upper"] == pytest.approx(row["bounds"]["local"]) for row in report["results"])
    assert "holds always" in measure("--certificate", "always")[1]


def test_one_head(measure, tokens):
    report = json.loads(measure("--json", "--head", "2")[1])
    expected = lipcore.local_lipschitz(tokens[0].attention(1).head(2), tokens[1])
    assert report["head"] == 2 and report["heads"] == 1
    assert [row["sigma"] for row in report["results"]] == pytest.approx(
        expected.value.tolist(), rel=1e-6
    )
    assert "head 2 alone" in measure("--head", "2")[1]


def test_tolerance_and_precision(measure):
    loose, tight = (
        json.loads(measure("--json", "--dtype", "float64", "--tol", tol)[1])
        for tol in ("0.1", "1e-12")
    )
    assert tight["dtype"] == "float64"
    for one, other in zip(loose["results"], tight["results"], strict=True):
        assert one["iterations"] < other["iterations"] and one["sigma"] <= other["sigma"] * (
            1 + 1e-12
        )
        assert other["upper"] / other["lower"] < 1 + 1e-5


def test_start_moves_along_the_text(measure):
    whole = json.loads(measure("--json")[1])["results"]
    moved = json.loads(measure("--json", "--start", "8", count="2")[1])["results"]
    assert [row["sigma"] for row in moved] == pytest.approx(
        [row["sigma"] for row in whole[1:]], rel=1e-5
    )


def test_numbers_past_the_range_become_null(measure, monkeypatch):
    """JSON has no infinity: the logarithm says how large."""
    monkeypatch.setattr("lipcore.bounds.best_upper", lambda *args, **options: 1e4)
    row = json.loads(measure("--json")[1])["results"][0]
    assert (
        row["bounds"]["best"] is None
        and row["ratios"]["best"] is None
        and row["log_bounds"]["best"] == 1e4
    )
    assert " inf " in measure()[1]


def test_models(capsys):
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    for row in models.available():
        assert row["name"] in out and row["source"] in out
    assert main(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == models.available()


def test_fetch(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(models, "fetch", lambda name: tmp_path / name)
    assert main(["fetch", "minilm", "gpt2", "minilm"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"minilm: {tmp_path / 'minilm'}",
        f"gpt2: {tmp_path / 'gpt2'}",
    ]


# --- bad input ----------------------------------------------------------------------------------------------

BAD_ARGUMENTS = {
    "layer out of range": (["--layer", "2"], "layer: expected 0 to 1"),
    "layer negative": (["--layer", "-1"], "layer: expected at least 0, got -1"),
    "layer not a number": (["--layer", "first"], "--layer: invalid int value: 'first'"),
    "head out of range": (["--head", "4"], "head: expected 0 to 3"),
    "head negative": (["--head", "-1"], "head: expected 0 to 3"),
    "n beyond the positions": (["--n", "25"], "n: expected at most 24 tokens"),
    "n zero": (["--n", "0"], "n: expected at least 1, got 0"),
    "n fractional": (["--n", "1.5"], "--n: invalid int value"),
    "count zero": (["--count", "0"], "count: expected at least 1, got 0"),
    "start negative": (["--start", "-3"], "start: expected at least 0, got -3"),
    "start past the end": (
        ["--start", "50"],
        "text: expected at least 3 × 8 from token 50 tokens, it has 60",
    ),
    "text too short": (["--count", "10"], "text: expected at least 10 × 8 tokens, it has 60"),
    "text missing": (
        ["--text", "no-such-file.txt"],
        "text: expected one of pydoc, licences, alice, ag_news, or a text file",
    ),
    "tol zero": (["--tol", "0"], "tol: expected a number more than 0 and at most 1, got 0"),
    "tol large": (["--tol", "3"], "tol: expected a number more than 0 and at most 1, got 3"),
    "tol not a number": (["--tol", "nan"], "tol: expected a finite number"),
    "seed negative": (["--seed", "-1"], "seed: expected a whole number from 0"),
    "dtype": (["--dtype", "float16"], "--dtype: invalid choice: 'float16'"),
    "certificate": (["--certificate", "never"], "--certificate: invalid choice: 'never'"),
    "model": (["--model", "no-such-model"], "name: expected one of minilm"),
    "option": (["--lenght", "3"], "unrecognized arguments: --lenght 3"),
}


def assert_refused(code, out, err, message):
    assert code == 2 and out == ""
    assert err.startswith("lipcore: error: ") and err.count("\n") == 1 and "Traceback" not in err
    assert message in err


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments(measure, name):
    arguments, message = BAD_ARGUMENTS[name]
    assert_refused(*measure(*arguments), message)


BAD_FILES = {"empty": (b"  \n", "is empty"), "not text": (b"\xff\xfe\x00\x01", "UTF-8")}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(measure, tmp_path, name):
    content, message = BAD_FILES[name]
    (tmp_path / "a.txt").write_bytes(content)
    assert_refused(*measure(text=tmp_path / "a.txt"), message)


def test_folder_without_a_checkpoint(measure, tmp_path):
    assert_refused(*measure(model=tmp_path), "config.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required"),
        (["mesure"], "invalid choice: 'mesure'"),
        (["measure"], "required: --layer"),
        (["fetch"], "required: NAME"),
        (["fetch", "no-such-model"], "name: expected one of minilm"),
        (["fetch", "bert-random"], "nothing to fetch"),
    ],
)
def test_bad_commands(capsys, arguments, message):
    code = main(arguments)
    assert_refused(code, *capsys.readouterr(), message)


def test_hub_that_cannot_be_reached(capsys, monkeypatch, tmp_path):
    def unreachable(source, staging):
        raise ConnectionError("no answer\nfrom the hub")

    monkeypatch.setenv("LIPCORE_CACHE", str(tmp_path))
    monkeypatch.setattr(models.sources, "_from_hub", unreachable)
    code = main(["measure", "--model", "gpt2", "--layer", "0"])
    assert_refused(
        code,
        *capsys.readouterr(),
        "gpt2: the weights could not be fetched (no answer from the hub)",
    )
    assert list(tmp_path.iterdir()) == []


def test_interrupted(capsys, monkeypatch):
    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "fetch", interrupt)
    assert main(["fetch", "minilm"]) == 130
    assert capsys.readouterr().err == "lipcore: interrupted\n"


# --- as a process -------------------------------------------------------------------------------------------


def process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "lipcore", *arguments],
        capture_output=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


def test_help_is_fast():
    """Nothing heavy is imported: best of three, for machines that do other things."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = process("--help")
        seconds.append(time.perf_counter() - start)
    assert done.returncode == 0 and b"measure one attention layer" in done.stdout
    assert min(seconds) < 1


def test_help_explains_the_bounds():
    done = process("measure", "--help", PYTHONIOENCODING="utf-8")
    assert done.returncode == 0 and "Castin, Ablin & Peyré 2024" in done.stdout.decode()


def test_version():
    assert process("--version").stdout.decode().strip() == f"lipcore {lipcore.__version__}"


def test_terminal_without_greek(folder, text):
    done = process(
        "measure",
        "--model",
        str(folder),
        "--layer",
        "0",
        "--n",
        "4",
        "--count",
        "1",
        "--text",
        str(text),
        PYTHONIOENCODING="ascii",
    )
    assert done.returncode == 0 and b"?: local Lipschitz constant" in done.stdout


def test_exit_code_of_the_process():
    done = process("measure", "--layer", "0", "--tol", "-1")
    assert (
        done.returncode == 2
        and done.stderr.decode().startswith("lipcore: error: tol: ")
        and done.stdout == b""
    )


def test_reader_that_stops_early():
    """``lipcore models | head -0``: no traceback."""
    run = subprocess.Popen(
        [sys.executable, "-m", "lipcore", "models"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    run.stdout.close()
    with run.stderr:
        assert run.stderr.read() == b"" and run.wait(timeout=120) == 0


# --- sweep ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_sweep(folder, text, capsys, tmp_path):
    """Run ``lipcore sweep`` on the small model, and return (exit code, standard output, standard error)."""

    def run(*options, lengths=("4", "8")):
        given = [
            "sweep",
            "--model",
            str(folder),
            "--text",
            str(text),
            "--folder",
            str(tmp_path),
            "--quiet",
        ]
        code = main([*given, "--count", "2", "--n", *lengths, *options])
        return code, *capsys.readouterr()

    return run


def test_sweep_writes_the_table_that_measure_prints(run_sweep, measure, tmp_path):
    pd = pytest.importorskip("pandas")
    code, out, err = run_sweep()
    assert code == 0 and err == "" and "8 rows from 4 cells" in out
    table = pd.read_parquet(tmp_path / "table.parquet")
    _, printed, _ = measure("--count", "2", "--json")
    sigmas = [row["sigma"] for row in json.loads(printed)["results"]]
    assert table[(table.layer == 1) & (table.n == 8)].sigma.tolist() == pytest.approx(
        sigmas, rel=1e-4
    )


def test_sweep_of_heads_on_two_workers(run_sweep):
    code, out, _ = run_sweep("--layer", "0", "--head", "0", "3", "--workers", "2", lengths=("4",))
    assert code == 0 and "4 rows from 2 cells" in out


def test_sweep_of_all_heads(run_sweep):
    code, out, _ = run_sweep("--layer", "0", "--head", "all", lengths=("4",))
    assert code == 0 and "8 rows from 4 cells" in out


@pytest.fixture
def plan(folder, text, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(f"""
        texts = ["{text}"]
        count = 2
        [[grid]]
        models = ["{folder}"]
        lengths = [4, 8]
        [[grid]]
        models = ["{folder}"]
        layers = [0]
        heads = "all"
        lengths = [4]
    """)
    return path


def test_sweep_by_plan_with_export(plan, capsys, tmp_path):
    pd = pytest.importorskip("pandas")
    small = tmp_path / "small.parquet"
    command = [
        "sweep",
        "--plan",
        str(plan),
        "--folder",
        str(tmp_path / "sweep"),
        "--export",
        str(small),
    ]
    assert main([*command, "--quiet"]) == 0
    assert "16 rows from 8 cells" in capsys.readouterr().out
    table, whole = pd.read_parquet(small), pd.read_parquet(tmp_path / "sweep" / "table.parquet")
    assert table.attrs["command"] == f"lipcore {' '.join(command)}"
    assert {"lipcore", "python", "torch"} <= set(table.attrs["versions"])
    assert table.attrs["seconds"] == round(whole.attrs["seconds"], 1) and whole.attrs["seconds"] > 0
    assert [len(digest) for digest in table.attrs["texts"].values()] == [64] and table.attrs[
        "weights"
    ] == {}
    assert table.sigma.tolist() == pytest.approx(whole.sigma.tolist(), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layer", "0"], "--layer: expected in the plan"),
        (["--count", "3"], "--count: expected in the plan"),
        (["--local"], "--local: expected in the plan"),
    ],
)
def test_sweep_refuses_options_beside_a_plan(plan, capsys, tmp_path, options, message):
    code = main(["sweep", "--plan", str(plan), "--folder", str(tmp_path), "--quiet", *options])
    out, err = capsys.readouterr()
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


def test_sweep_refuses_a_plan_beyond_the_model(plan, capsys, tmp_path):
    plan.write_text(plan.read_text().replace("[4, 8]", "[4, 800]"))
    code = main(["sweep", "--plan", str(plan), "--folder", str(tmp_path / "sweep"), "--quiet"])
    out, err = capsys.readouterr()
    assert (
        code == 2
        and out == ""
        and "n: expected at most" in err
        and not (tmp_path / "sweep").exists()
    )


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--layer", "9"], "layer"),
        (["--head", "9"], "index"),
        (["--n", "400"], "n"),
        (["--count", "99"], "text"),
        (["--workers", "0"], "workers"),
        (["--export", "no-such-folder/small.parquet"], "--export"),
        (["--text", "no-such-file.txt"], "text"),
        (["--model", "bert-enormous"], "bert-enormous"),
    ],
)
def test_sweep_refuses_in_one_line(run_sweep, options, word):
    code, out, err = run_sweep(*options)
    assert (
        code == 2
        and out == ""
        and err.startswith("lipcore: error: ")
        and err.count("\n") == 1
        and word in err
    )
