"""The command line: its tables, its JSON, and one line with exit code 2 for input it cannot use."""

import json
import os
import re
import resource
import subprocess
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs lipcore[models]")

import lipcore  # noqa: E402
from lab import measure_layer as measuring  # noqa: E402
from lab import models  # noqa: E402
from lab.__main__ import main  # noqa: E402
from lab.models import texts  # noqa: E402
from lipcore.models.measure import versions  # noqa: E402

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
    model = transformers.BertModel(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.1, 0.3, generator=generator)
    model.save_pretrained(folder)
    vocabulary = {word: i for i, word in enumerate(["[UNK]", *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
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
    """Run ``python -m lab measure`` on the small model: (exit code, standard output, standard error)."""

    def run(*arguments, model=folder, text=text, count=3):
        command = f"measure --model {model} --layer 1 --text {text} --n 8 --count {count}"
        return main([*command.split(), *arguments]), *capsys.readouterr()

    return run


@pytest.fixture
def results(measure):
    """Rows of the JSON that ``python -m lab measure`` prints."""
    return lambda *arguments, **options: json.loads(measure("--json", *arguments, **options)[1])[
        "results"
    ]


@pytest.fixture(scope="module")
def tokens(folder, text):
    model = models.load(folder)
    ids = texts.sequences(model, texts.load_text(text), n=8, count=3)
    return model, model.hidden_states(1, ids)


def sigmas(rows):
    return [row["sigma"] for row in rows]


def test_json_says_what_the_library_finds(measure, tokens):
    code, out, err = measure("--json", "--seed", "4")
    report = json.loads(out)
    model, X = tokens
    generator = torch.Generator().manual_seed(4)
    expected = measuring.measure_layer(model.attention(1), X, generator=generator)
    assert code == 0 and err == ""
    for row, values in zip(report["results"], expected, strict=True):
        ratios = row.pop("ratios")
        assert row == pytest.approx(values, rel=1e-6, abs=1e-9)
        assert ratios == pytest.approx(
            {name: values[name] / values["sigma"] for name in measuring.BOUNDS}, rel=1e-6
        )
    middle = sorted(sigmas(expected))[1]
    assert report["median"]["sigma"] == pytest.approx(middle)


def test_json_says_how_to_repeat_it(measure, folder, text):
    report = json.loads(measure("--json")[1])
    assert report["versions"] == versions()
    assert report["model"] == {
        "name": folder.name,
        "sha256": "",
        "architecture": "BERT",
        "d": 16,
        "causal": False,
    }
    assert report["seeds"] == {"start_vector": 0, "weights": None}
    assert report["certificate"] == {"kind": "probable", "probability": 0.999}
    expected = {"layer": 1, "head": None, "heads": 4, "n": 8, "count": 3, "start": 0, "tol": 1e-4}
    expected |= {"dtype": "float32", "text": str(text)}
    assert {key: report[key] for key in expected} == expected
    assert json.loads(measure("--json")[1]) == report


def test_table(measure):
    code, out, err = measure()
    lines = out.splitlines()
    assert code == 0 and err == ""
    assert max(map(len, lines[1:])) < 130  # the first names the text, at any path
    assert "layer 1, 4 heads; n = 8, 3 sequences" in lines[0] and "float32" in lines[0]
    assert "with probability 0.999" in lines[1]
    titles = "sequence σ lower upper iterations local local/σ best best/σ general general/σ"
    assert lines[3].split() == titles.split()
    rows = [line.split() for line in lines[4:]]
    assert [row[0] for row in rows] == ["0", "1", "2", "median"]
    for row in rows:
        sigma, lower, upper, _, local, ratio, best, _, general, _ = map(float, row[1:])
        assert lower <= sigma <= upper <= local and best <= general
        assert ratio == pytest.approx(local / sigma, rel=0.02)


def test_certificate_that_always_holds(measure):
    code, out, _ = measure("--certificate", "always", "--json")
    report = json.loads(out)
    assert code == 0 and report["certificate"] == {"kind": "always", "probability": 1.0}
    assert all(row["upper"] == row["local"] for row in report["results"])
    assert "holds always" in measure("--certificate", "always")[1]


def test_one_head(measure, tokens):
    model, X = tokens
    report = json.loads(measure("--json", "--head", "2")[1])
    expected = lipcore.local_lipschitz(model.attention(1, head=2), X)
    assert report["head"] == 2 and report["heads"] == 1
    assert sigmas(report["results"]) == pytest.approx(expected.value.tolist(), rel=1e-6)
    assert "head 2 alone" in measure("--head", "2")[1]


def test_tolerance_and_precision(results):
    loose = results("--dtype", "float64", "--tol", "0.1")
    tight = results("--dtype", "float64", "--tol", "1e-12")
    for one, other in zip(loose, tight, strict=True):
        assert one["iterations"] < other["iterations"]
        assert other["upper"] / other["lower"] < 1 + 1e-5  # float32 does not get there


def test_start_moves_along_the_text(results):
    moved = results("--start", "8", count=2)
    assert sigmas(moved) == pytest.approx(sigmas(results()[1:]), rel=1e-5)


def test_numbers_past_the_range_become_null(measure, results, monkeypatch):
    """JSON has no infinity: the logarithm says how large the bound is."""
    monkeypatch.setattr(measuring, "best_upper", lambda **options: 1e4)
    row = results()[0]
    assert row["best"] is None and row["ratios"]["best"] is None and row["log_best"] == 1e4
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
    lines = [f"minilm: {tmp_path / 'minilm'}", f"gpt2: {tmp_path / 'gpt2'}"]
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], "measure many layers and lengths"),
        (["measure", "--help"], "Castin, Ablin & Peyré 2024"),
        (["sweep", "--help"], "takes up where it was stopped"),
        (["--version"], f"lipcore {lipcore.__version__}"),
    ],
)
def test_help_and_version(arguments, expected, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0 and expected in capsys.readouterr().out


# --- bad input --------------------------------------------------------------------------------

BAD_ARGUMENTS = [
    ("--layer 2", "layer: "),
    ("--layer first", "--layer"),
    ("--head 4", "head: "),
    ("--n 25", ": n: "),
    ("--n 0", ": n: "),
    ("--n 1.5", "--n"),
    ("--count 0", "count: "),
    ("--start -3", "start: "),
    ("--start 50", "text: "),
    ("--count 10", "text: "),
    ("--text no-such-file.txt", "text: "),
    ("--tol 0", "tol: "),
    ("--seed -1", "seed: "),
    ("--dtype float16", "--dtype"),
    ("--certificate never", "--certificate"),
    ("--model no-such-model", "name: "),
    ("--lenght 3", "--lenght"),
]


def assert_refused(code, out, err, message):
    assert code == 2 and out == ""
    assert err.startswith("lab: error: ") and err.count("\n") == 1 and "Traceback" not in err
    assert message in err


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS)
def test_bad_arguments(measure, arguments, message):
    assert_refused(*measure(*arguments.split()), message)


@pytest.mark.parametrize(
    ("content", "message"), [(b"  \n", "is empty"), (b"\xff\xfe\x00\x01", "UTF-8")]
)
def test_bad_files(measure, tmp_path, content, message):
    (tmp_path / "a.txt").write_bytes(content)
    assert_refused(*measure(text=tmp_path / "a.txt"), message)


def test_folder_without_a_checkpoint(measure, tmp_path):
    assert_refused(*measure(model=tmp_path), "config.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "required"),
        ("mesure", "mesure"),
        ("measure --model no-such-model", "name: "),
        ("fetch", "NAME"),
        ("fetch no-such-model", "name: "),
        ("fetch bert-random", "nothing to fetch"),
    ],
)
def test_bad_commands(capsys, arguments, message):
    code = main(arguments.split())
    assert_refused(code, *capsys.readouterr(), message)


def test_hub_that_cannot_be_reached(capsys, monkeypatch, tmp_path):
    def unreachable(repository, revision):
        raise ConnectionError("no answer\nfrom the hub")

    monkeypatch.setenv("LIPCORE_CACHE", str(tmp_path))
    monkeypatch.setattr(models.sources, "_from_hub", unreachable)
    code = main(["measure", "--model", "gpt2", "--layer", "0"])
    message = "gpt2: "
    assert_refused(code, *capsys.readouterr(), message)
    assert list(tmp_path.iterdir()) == []


def test_interrupted(capsys, monkeypatch):
    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "fetch", interrupt)
    assert main(["fetch", "minilm"]) == 130
    assert capsys.readouterr().err == "lab: interrupted\n"


def test_output_that_nobody_reads(capsys, monkeypatch):
    """``python -m lab models | head -0``: no error, now or when the stream is closed."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["models"]) == 0
    assert capsys.readouterr().err == ""


# --- as a process -----------------------------------------------------------------------------


def process(*arguments, options=(), **environment):
    return subprocess.run(
        [sys.executable, *options, "-m", "lab", *arguments],
        capture_output=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


def test_help_is_fast():
    """It takes a fraction of a second of one core, and none of the packages that are heavy."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = process("--help", options=("-X", "importtime"))
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert done.returncode == 0 and b"measure attention layers" in done.stdout
    assert b"lab.commands" in done.stderr and seconds < 1
    assert not re.search(rb"\b(torch|numpy|transformers|pandas)\b", done.stderr)


def test_measure_on_a_terminal_without_greek(folder, text):
    command = f"measure --model {folder} --layer 0 --n 4 --count 1 --text {text}"
    done = process(*command.split(), PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and b"?: local Lipschitz constant" in done.stdout
