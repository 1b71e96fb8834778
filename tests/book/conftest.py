"""The tiny book in the folder ``tiny``, built with the real extension and the real settings."""

import contextlib
import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "book" / "_ext"
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))
TINY = Path(__file__).parent / "tiny"
collect_ignore = ["tiny"]
OWN = {"book_packages": ["tinypkg"], "book_data": ["data"], "book_preload": ["json"]}


class TinyBook:
    """A folder with a small book in it."""

    def __init__(self, folder: Path, builds: subprocess.Popen):
        self.folder = folder
        self.builds = builds
        self.html = folder / "_build" / "html"
        shutil.copytree(TINY, folder, dirs_exist_ok=True)
        shutil.copytree(ROOT / "book" / "_static", folder / "book" / "_static")
        config = copy.deepcopy(CONFIG)
        config["bibtex_bibfiles"] = ["references.bib"]
        config["sphinx"]["local_extensions"]["book_build"] = str(BUILD)
        config["sphinx"]["config"] |= OWN
        self.write("_config.yml", yaml.safe_dump(config, allow_unicode=True))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf8")

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf8")

    def build(self, **environment: str) -> tuple[int, str]:
        """Build as `make book` does; return the exit code and everything that was printed."""
        log = self.folder.with_suffix(".log")
        log.unlink(missing_ok=True)
        print(json.dumps([str(self.folder), str(log), environment]), file=self.builds.stdin)
        self.builds.stdin.flush()
        return int(self.builds.stdout.readline()), log.read_text(encoding="utf8")

    def executed(self) -> list[str]:
        """The notebooks executed since the last call."""
        log = self.folder / "notebooks" / "executed.log"
        names = sorted(log.read_text().split()) if log.exists() else []
        log.unlink(missing_ok=True)
        return names

    @contextlib.contextmanager
    def changed(self, change: dict[str, tuple[str, str]]):
        """Replace words in files for a while: ``{file: (old, new)}``; nothing as old appends."""
        before = {name: self.read(name) for name in change}
        for name, (old, new) in change.items():
            assert old in before[name]
            self.write(name, before[name].replace(old, new) if old else before[name] + new)
        try:
            yield
        finally:
            for name, text in before.items():
                self.write(name, text)


@pytest.fixture(scope="session")
def book(tmp_path_factory) -> Iterator[TinyBook]:
    """The tiny book, built once."""
    own = ["book_build.execution", "book_build.editions"]
    extensions = [*CONFIG["sphinx"]["config"]["extensions"], *own]
    command = [sys.executable, str(Path(__file__).with_name("builds.py")), *extensions]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{BUILD}", "NO_COLOR": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, env=environment) as builds:
        tiny = TinyBook(tmp_path_factory.mktemp("book"), builds)
        code, output = tiny.build()
        assert code == 0, output
        assert tiny.executed() == ["one", "three", "two"]
        yield tiny


@pytest.fixture
def state_of(tmp_path, monkeypatch):
    """The state of a page with this code, in a copy of the tiny book where a file was changed."""
    from book_build.execution import States  # a second to import

    shutil.copytree(TINY, tmp_path, dirs_exist_ok=True)
    monkeypatch.syspath_prepend(tmp_path)
    config = SimpleNamespace(**OWN, book_libraries=["numpy"])

    def state(code: str, name: str = "data/table.txt", old: str = "", new: str = "") -> str:
        path, before = tmp_path / name, (tmp_path / name).read_text()
        assert old in before
        path.write_text(before.replace(old, new))
        found = States(tmp_path, config).of(code)
        path.write_text(before)
        return found

    return state
