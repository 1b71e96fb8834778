"""The notebooks for download hold every output of the execution, and run where the package is installed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from book_build.execution import digest
from nbclient import NotebookClient
from provenance import Records, code
from test_pages import notebooks
from test_provenance import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
DOWNLOADS = ROOT / "_build" / "html" / "_sources"
QUICK = "book/how_to_run"  # seconds


def downloaded(docname: str):
    return nbformat.read(DOWNLOADS / f"{docname}.ipynb", as_version=4)


def own_cells(notebook) -> list:
    return [cell for cell in code(notebook) if "book-install" not in cell.metadata.get("tags", [])]


@pytest.fixture(scope="module")
def records() -> Records:
    return Records(
        ROOT, digest(ROOT, SETTINGS["book_cache_inputs"], SETTINGS["book_cache_libraries"])
    )


@pytest.mark.parametrize("docname", notebooks())
def test_a_notebook_holds_every_output(docname, records):
    notebook = downloaded(docname)
    nbformat.validate(notebook)
    cells, executed = own_cells(notebook), code(records[docname][1])
    assert [c.source for c in cells] == [c.source for c in executed]
    assert [c.outputs for c in cells] == [c.outputs for c in executed]
    assert any(c.outputs for c in cells)


def test_a_notebook_runs_outside_the_repository(tmp_path):
    """As after a download: only the package is there, and the first cell finds it."""
    notebook = downloaded(QUICK)
    before = [[o.get("text") for o in c.outputs] for c in own_cells(notebook)]
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    assert [[o.get("text") for o in c.outputs] for c in own_cells(notebook)] == before


def test_a_notebook_installs_the_package_where_it_is_missing(tmp_path):
    """The first cell of code, run where nothing is installed, calls pip with the repository's address."""
    first = next(c for c in code(downloaded(QUICK)) if "book-install" in c.metadata.get("tags", []))
    body = re.sub(
        r"^(\s*)%pip (.*)$", r"\1print('PIP', '''\2''')", first.source, flags=re.MULTILINE
    )
    command = [sys.executable, "-I", "-S", "-c", body]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    assert re.search(
        r'PIP install --quiet "lipcore\[book\] @ git\+https://github.com/[\w-]+/[\w-]+"',
        done.stdout,
    )
