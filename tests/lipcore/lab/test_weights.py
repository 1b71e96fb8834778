"""The command ``python -m lab.weights``, and one line with exit code 2 for what it cannot do."""

import json
import os
import sys

import pytest

pytest.importorskip("transformers", reason="needs lipcore[book]")

from lab import models
from lab.weights import main


def assert_refused(code, out, err, message):
    assert code == 2 and out == ""
    assert err.startswith("lab: error: ") and err.count("\n") == 1 and "Traceback" not in err
    assert message in err


def test_list(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for row in models.available():
        assert row["name"] in out and row["source"] in out and row["what"] in out
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == models.available()


def test_fetch(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(models, "fetch", lambda name: tmp_path / name)
    assert main(["fetch", "minilm", "gpt2", "minilm"]) == 0
    lines = [f"minilm: {tmp_path / 'minilm'}", f"gpt2: {tmp_path / 'gpt2'}"]
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "required"),
        ("fech", "fech"),
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
    code = main(["fetch", "gpt2"])
    assert_refused(code, *capsys.readouterr(), "gpt2: ")
    assert list(tmp_path.iterdir()) == []


def test_interrupted(capsys, monkeypatch):
    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "fetch", interrupt)
    assert main(["fetch", "minilm"]) == 130
    assert capsys.readouterr().err == "lab: interrupted\n"


def test_output_that_nobody_reads(capsys, monkeypatch):
    """``python -m lab.weights list | head -0``: no error, now or when the stream is closed."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["list"]) == 0
    assert capsys.readouterr().err == ""
