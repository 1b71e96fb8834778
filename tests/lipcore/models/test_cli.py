"""``lipcore measure``: its table, its JSON, and one line with exit code 2 for bad input."""

import io
import json
import os
import runpy
import shutil
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs lipcore[models]")

import lipcore  # noqa: E402
from lipcore.models import cli  # noqa: E402
from lipcore.models import measure as measuring  # noqa: E402
from tiny_models import tiny_model  # noqa: E402

N = 8
WORDS = [f"word{i}" for i in range(18)]
ATTENTION = [f"encoder.layer.{i}.attention.self" for i in (0, 1)]


def save_tokenizer(folder, words):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    vocabulary = {word: i for i, word in enumerate(["[UNK]", *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    fast.save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint of a small BERT that knows eighteen words."""
    folder = tmp_path_factory.mktemp("tiny-bert")
    tiny_model("bert").float().save_pretrained(folder)
    save_tokenizer(folder, WORDS)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(WORDS[(7 * i) % 18] for i in range(30)), encoding="utf-8")
    return path


@pytest.fixture
def measure(folder, text, capsys):
    """Run ``lipcore measure`` on the small model: (exit code, standard output, standard error)."""

    def run(*arguments, model=folder, text=text):
        capsys.readouterr()  # the library's bars, as models were saved
        command = ["measure", str(model), "--text", str(text), "--n", str(N), *arguments]
        return cli.main(command), *capsys.readouterr()

    return run


def rows_of(result):
    code, out, err = result
    assert (code, err) == (0, "")
    return json.loads(out)["rows"]


# --- what it prints ------------------------------------------------------------------------------


def test_json_says_what_the_library_finds(measure, folder):
    code, out, err = measure("--json")
    report = json.loads(out)
    ids = torch.tensor([[1 + (7 * i) % 18 for i in range(N)]])
    expected = lipcore.measure(transformers.AutoModel.from_pretrained(folder).eval(), input_ids=ids)
    assert code == 0 and err == "" and report["complete"]
    assert report["versions"] == measuring.versions()
    assert report["inputs"] == {"input_ids": [1, N]} and report["arguments"]["n"] == N
    for row, values in zip(report["rows"], expected.to_dict("records"), strict=True):
        numbers = ("sigma", "lower", "upper")
        close = {name: pytest.approx(values[name], rel=1e-5) for name in numbers}
        assert row == values | close | {"shape": [*values["shape"]]}


def test_table(measure):
    code, out, err = measure()
    lines = out.splitlines()
    assert code == 0 and err == "" and max(map(len, lines)) <= 100
    *title, head, first, second = lines
    for said in ("BertModel", "0.0001", "probability: 0.999", f"shape: ({N}, 8)"):
        assert said in " ".join(title)  # what all rows have in common
    assert head.split() == ["layer", "sigma", "lower", "upper"]
    for name, line in zip(ATTENTION, (first, second), strict=True):
        layer, *numbers = line.split()
        sigma, lower, upper = map(float, numbers)
        assert layer == name and lower <= sigma <= upper


def test_what_is_measured(measure):
    one = rows_of(measure("--json", "--layers", "1", "--dtype", "float64"))
    assert [row["layer"] for row in one] == ATTENTION[1:]
    assert rows_of(measure("--json", "--layers", ATTENTION[1], "--dtype", "float64")) == one
    blocks = rows_of(measure("--json", "--scope", "block"))
    assert [row["layer"] for row in blocks] == ["encoder.layer.0", "encoder.layer.1"]
    assert "encoder.layer.0" in rows_of(measure("--json", "--scope", "model"))[0]["varied"]
    loose = rows_of(measure("--json", "--tol", "0.1"))
    assert loose[1]["upper"] - loose[1]["lower"] > one[0]["upper"] - one[0]["lower"]


def test_without_a_text(folder, capsys):
    assert cli.main(["measure", str(folder)]) == 0
    assert "shape: (16, 8)" in capsys.readouterr().out  # all that the model can read


def test_a_decoder_reads_the_same_text(measure, folder, tmp_path):
    tiny_model("t5").float().save_pretrained(tmp_path)
    code, out, err = measure("--json", "--tokenizer", str(folder), model=tmp_path)
    report = json.loads(out)
    assert (code, err, len(report["rows"])) == (0, "", 3)
    assert report["inputs"] == {"input_ids": [1, N], "decoder_input_ids": [1, N]}


def interrupt(*args, **options):
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", [(measuring, "local_lipschitz"), (cli, "_load")])
def test_interrupted(measure, monkeypatch, place):
    monkeypatch.setattr(*place, interrupt)
    code, out, err = measure("--json")
    assert code == 130 and "interrupted" in err and err.count("\n") == 1
    assert not out or json.loads(out)["complete"] is False


def test_output_that_nobody_reads(folder, text, capsys, monkeypatch):
    """``lipcore measure ... | head -0``: no error, now or when the stream is closed."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert cli.main(["measure", str(folder), "--text", str(text)]) == 0
    assert capsys.readouterr().err == ""


HELP = {"--help": "measure", "measure --help": "probability", "--version": lipcore.__version__}


@pytest.mark.parametrize("arguments", HELP)
def test_help_and_version(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments.split())
    assert stopped.value.code == 0 and HELP[arguments] in capsys.readouterr().out


def test_as_a_module_on_a_terminal_without_greek(folder, text, monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    command = f"lipcore measure {folder} --n 4 --text {text}"
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("lipcore", run_name="__main__")
    assert stopped.value.code == 0 and b"BertModel, ? to" in terminal.buffer.getvalue()


# --- bad input -----------------------------------------------------------------------------------


@pytest.fixture
def no_network(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def assert_refused(result, named):
    code, out, err = result
    assert code == 2 and out == ""
    assert err.startswith("lipcore: error: ") and err.count("\n") == 1 and "Traceback" not in err
    assert named in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [("--layers 2", "layers: "), ("--layers first", "layers: "),
     ("--layers 0,,1", "layers: "), ("--scope head", "--scope"),
     ("--n 25", ": n: "), ("--n 0", ": n: "), ("--n 1.5", "--n"), ("--tol 0", "tol: "),
     ("--text no-such-file.txt", "no-such-file.txt"), ("--dtype float16", "--dtype"),
     ("--tokenizer no-such-tokenizer", "tokenizer: "), ("--lenght 3", "--lenght")],
)  # fmt: skip
def test_bad_arguments(measure, arguments, named, no_network):
    assert_refused(measure(*arguments.split()), named)


@pytest.mark.parametrize(("content", "named"), [(b"  \n", "text: "), (b"\xff\xfe\0\1", "utf-8")])
def test_bad_files(measure, tmp_path, content, named):
    (tmp_path / "a.txt").write_bytes(content)
    assert_refused(measure(text=tmp_path / "a.txt"), named)


def test_bad_models(measure, tmp_path, no_network):
    assert_refused(measure(model="no-such/model"), "model: ")
    assert_refused(measure(model=tmp_path), "model: ")
    tiny_model("bert").float().save_pretrained(tmp_path)
    assert_refused(measure(model=tmp_path), f"tokenizer: expected one in {tmp_path}")


def test_a_tokenizer_with_more_words_than_the_model(measure, tmp_path):
    save_tokenizer(tmp_path, [f"more{i}" for i in range(19)] + WORDS)
    assert_refused(measure("--tokenizer", str(tmp_path)), "tokenizer: ")


def test_weights_that_are_missing(measure, folder, tmp_path):
    """The library draws them at random, so that σ would be of no model."""
    model = tiny_model("bert").float()
    state = {name: x for name, x in model.state_dict().items() if "layer.1.attention" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    assert_refused(measure("--tokenizer", str(folder), model=tmp_path), "weights: ")


def test_files_that_are_cut_short(measure, folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    for length in (0, 100, 5000):
        weights.write_bytes((folder / "model.safetensors").read_bytes()[:length])
        assert_refused(measure(model=tmp_path), "model: ")


def test_a_model_of_images(measure, folder, tmp_path):
    tiny_model("vit").float().save_pretrained(tmp_path)
    assert_refused(measure("--tokenizer", str(folder), model=tmp_path), "lipcore.measure(model")


def test_nothing_measured(measure, folder, tmp_path):
    model = tiny_model("bert").float()
    model.embeddings.LayerNorm.bias.data.fill_(float("nan"))
    model.save_pretrained(tmp_path)
    code, out, err = measure("--tokenizer", str(folder), model=tmp_path)
    assert code == 1 and out.count("not measured") == 2 and err.count("\n") == 1


@pytest.mark.parametrize("arguments", ("", "mesure", "measure"))
def test_bad_commands(capsys, arguments):
    assert_refused((cli.main(arguments.split()), *capsys.readouterr()), "")
