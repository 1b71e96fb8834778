"""``lipcore measure``: its table, its JSON, and one line with exit code 2 for what it cannot use."""

import json
import os
import subprocess
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs lipcore[models]")

import lipcore  # noqa: E402
from lipcore.models import cli  # noqa: E402
from lipcore.models import measure as measuring  # noqa: E402
from tiny_models import tiny_model  # noqa: E402

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
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Sixty words in a file."""
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(WORDS[(7 * i) % 40] for i in range(60)), encoding="utf-8")
    return path


@pytest.fixture
def measure(folder, text, capsys):
    """Run ``lipcore measure`` on the small model: (exit code, standard output, standard error)."""

    def run(*arguments, model=folder, text=text):
        capsys.readouterr()  # the library's bars, as models were saved
        command = ["measure", str(model), "--text", str(text), "--n", "8", *arguments]
        return cli.main(command), *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def ids(text):
    words = text.read_text(encoding="utf-8").split()
    return torch.tensor([[1 + WORDS.index(word) for word in words[:8]]])


def test_json_says_what_the_library_finds(measure, folder, ids):
    code, out, err = measure("--json")
    report = json.loads(out)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    expected = lipcore.measure(model, input_ids=ids)
    assert code == 0 and err == "" and report["complete"]
    assert report["versions"] == measuring.versions()
    assert report["inputs"] == {"input_ids": [1, 8]}
    assert report["arguments"]["n"] == 8 and report["arguments"]["model"] == str(folder)
    for row, values in zip(report["rows"], expected.to_dict("records"), strict=True):
        values["shape"] = list(values["shape"])
        numbers = {
            name: pytest.approx(values[name], rel=1e-5) for name in ("sigma", "lower", "upper")
        }
        assert row == values | numbers


def test_table(measure):
    code, out, err = measure()
    lines = out.splitlines()
    assert code == 0 and err == "" and max(map(len, lines)) <= 100
    assert " ".join(lines[:2]) == (
        "attention of BertModel, σ to 0.0001 relative; probability: 0.999; converged: True; "
        "shape: (8, 16); kind: BertSelfAttention; note: without output projection"
    )
    assert lines[2].split() == ["layer", "sigma", "lower", "upper"]
    assert [line.split()[0] for line in lines[3:]] == [
        f"encoder.layer.{i}.attention.self" for i in (0, 1)
    ]
    for line in lines[3:]:
        sigma, lower, upper = map(float, line.split()[1:])
        assert lower <= sigma <= upper


def test_what_is_measured(measure):
    rows = json.loads(measure("--json", "--layers", "1", "--dtype", "float64")[1])["rows"]
    assert [row["layer"] for row in rows] == ["encoder.layer.1.attention.self"]
    by_name = measure("--json", "--layers", "encoder.layer.1.attention.self", "--dtype", "float64")
    assert json.loads(by_name[1])["rows"] == rows
    blocks = json.loads(measure("--json", "--scope", "block")[1])["rows"]
    assert [row["layer"] for row in blocks] == ["encoder.layer.0", "encoder.layer.1"]
    assert "as a map of what enters encoder.layer.0" in measure("--scope", "model")[1]
    loose = json.loads(measure("--json", "--tol", "0.1")[1])["rows"]
    assert loose[1]["upper"] - loose[1]["lower"] > rows[0]["upper"] - rows[0]["lower"]


def test_without_a_text(folder, capsys):
    assert cli.main(["measure", str(folder)]) == 0
    assert "shape: (24, 16)" in capsys.readouterr().out  # all that the model can read


def test_a_decoder_reads_the_same_text(measure, folder, tmp_path):
    tiny_model("t5").float().save_pretrained(tmp_path)
    few = tmp_path / "few.txt"
    few.write_text(" ".join(WORDS[:8]), encoding="utf-8")
    code, out, err = measure("--json", "--tokenizer", str(folder), model=tmp_path, text=few)
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["inputs"] == {"input_ids": [1, 8], "decoder_input_ids": [1, 8]}
    assert len(report["rows"]) == 3


def test_modules_without_sigma_are_warned_of(measure, monkeypatch):
    def refused(fn, X, **options):
        raise ValueError("no such\nthing")

    monkeypatch.setattr(measuring, "local_lipschitz", refused)
    code, out, err = measure()
    assert code == 0 and "note: not measured: no such thing" in " ".join(out.split())
    assert err.startswith("lipcore: warning: 2 of 2 modules have no σ") and err.count("\n") == 1


def test_interrupted_while_it_measures(measure, monkeypatch):
    real = measuring.local_lipschitz
    calls = []

    def interrupted(fn, X, **options):
        calls.append(fn)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(fn, X, **options)

    monkeypatch.setattr(measuring, "local_lipschitz", interrupted)
    code, out, err = measure()
    assert code == 130 and "encoder.layer.0" in out and "encoder.layer.1" not in out
    assert err == "lipcore: warning: interrupted: the table has 1 of 2 modules\n"
    calls[:] = [None]
    code, out, _ = measure("--json")
    report = json.loads(out)
    assert (code, report["complete"], report["rows"]) == (130, False, [])


def test_interrupted_before(measure, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_load", interrupt)
    assert measure() == (130, "", "lipcore: interrupted\n")


def test_output_that_nobody_reads(folder, text, capsys, monkeypatch):
    """``lipcore measure ... | head -0``: no error, now or when the stream is closed."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert cli.main(["measure", str(folder), "--text", str(text)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], "measure the attention layers"),
        (["measure", "--help"], "with the printed probability"),
        (["--version"], f"lipcore {lipcore.__version__}"),
    ],
)
def test_help_and_version(arguments, expected, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 0 and expected in capsys.readouterr().out


@pytest.fixture
def no_network(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


# --- bad input --------------------------------------------------------------------------------

BAD_ARGUMENTS = [
    ("--layers 2", "layers: "),
    ("--layers first", "layers: "),
    ("--scope head", "--scope"),
    ("--n 25", ": n: expected 1 to 24 tokens"),
    ("--n 0", ": n: "),
    ("--n 1.5", "--n"),
    ("--text no-such-file.txt", "no-such-file.txt"),
    ("--tol 0", "tol: "),
    ("--dtype float16", "--dtype"),
    ("--tokenizer no-such-tokenizer", "tokenizer: expected one in no-such-tokenizer"),
    ("--lenght 3", "--lenght"),
]


def assert_refused(code, out, err, message):
    assert code == 2 and out == ""
    assert err.startswith("lipcore: error: ") and err.count("\n") == 1 and "Traceback" not in err
    assert message in err


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS)
def test_bad_arguments(measure, arguments, message, no_network):
    assert_refused(*measure(*arguments.split()), message)


@pytest.mark.parametrize(
    ("content", "message"), [(b"  \n", "text: "), (b"\xff\xfe\x00\x01", "utf-8")]
)
def test_bad_files(measure, tmp_path, content, message):
    (tmp_path / "a.txt").write_bytes(content)
    assert_refused(*measure(text=tmp_path / "a.txt"), message)


def test_bad_models(measure, folder, tmp_path, no_network):
    assert_refused(*measure(model="no-such/model"), "model: expected a folder or a name of the hub")
    assert_refused(*measure(model=tmp_path), "model: ")
    bare = tmp_path / "bare"
    tiny_model("bert").float().save_pretrained(bare)
    assert_refused(*measure(model=bare), f"tokenizer: expected one in {bare}")
    assert_refused(*measure("--tokenizer", str(folder), model=bare, text=bare / "none"), "none")


def test_a_tokenizer_with_more_words_than_the_model(measure, folder, tmp_path):
    tiny_model("bert").float().save_pretrained(tmp_path)
    message = "tokenizer: expected ids below "
    assert_refused(*measure("--tokenizer", str(folder), model=tmp_path), message)


def test_weights_that_are_missing(measure, folder, tmp_path):
    """The library draws them at random, so that σ would be of no model."""
    model = transformers.AutoModel.from_pretrained(folder)
    state = {name: x for name, x in model.state_dict().items() if "layer.1.attention" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    assert_refused(*measure("--tokenizer", str(folder), model=tmp_path), "weights: expected all")


@pytest.mark.parametrize("arguments", ("", "mesure", "measure"))
def test_bad_commands(capsys, arguments):
    assert_refused(cli.main(arguments.split()), *capsys.readouterr(), "")


# --- as a process -----------------------------------------------------------------------------


def process(*arguments, options=(), **environment):
    return subprocess.run(
        [sys.executable, *options, "-m", "lipcore", *arguments],
        capture_output=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


def test_help():
    done = process("--help")
    assert done.returncode == 0 and b"measure the attention layers" in done.stdout


def test_measure_on_a_terminal_without_greek(folder, text):
    command = f"measure {folder} --n 4 --text {text}"
    done = process(*command.split(), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"") and b"BertModel, ? to 0.0001" in done.stdout
