"""The notebooks for download hold every output, and run where the package is installed."""

import re
import subprocess
import sys

import nbformat
import pytest
from book_build.downloads import show_pictures, solutions_last
from nbclient import NotebookClient
from test_pages import HTML, notebooks, source

QUICK = "book/how_to_run"  # seconds


def downloaded(docname: str):
    return nbformat.read(HTML / "_sources" / f"{docname}.ipynb", as_version=4)


def code(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell) -> str:
    """Return what a cell printed; it may come in pieces."""
    return "".join(output.get("text", "") for output in cell.outputs)


def is_install(cell) -> bool:
    return "book-install" in cell.metadata.get("tags", [])


@pytest.mark.parametrize("docname", notebooks())
def test_a_notebook_holds_every_output_caption_and_solution(docname):
    notebook = downloaded(docname)
    executed = nbformat.read(HTML.parent / "jupyter_execute" / f"{docname}.ipynb", as_version=4)
    executed.cells = solutions_last(executed.cells)
    cells = [cell for cell in code(notebook) if not is_install(cell)]
    for cell in code(executed):
        show_pictures(cell)
    assert [(c.source, c.outputs) for c in cells] == [(c.source, c.outputs) for c in code(executed)]
    kinds = {kind for cell in cells for output in cell.outputs for kind in output.get("data", {})}
    assert "image/svg+xml" not in kinds
    for cell in cells:
        folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        assert folded == ("hide-input" in cell.metadata.get("tags", []))
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    for shown, written in (
        (r"^### Solution of \[Exercise ", r"^[`:]{3,}\{solution-start\}"),
        (r"^\*Figure ", r"^    name: fig-"),
    ):
        expected = len(re.findall(written, source(docname), re.M))
        assert len(re.findall(shown, prose, re.M)) == expected


def test_a_notebook_runs_outside_the_repository(tmp_path):
    """As after a download: only the package is there, and the first cell finds it."""
    notebook = downloaded(QUICK)
    before = [printed(cell) for cell in code(notebook)[1:]]
    place = {"metadata": {"path": tmp_path}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=place).execute()
    assert [printed(cell) for cell in code(notebook)[1:]] == before


def test_a_notebook_installs_the_package_where_it_is_missing(tmp_path):
    """The first cell of code, run where nothing is installed, gets the repository."""
    first = code(downloaded(QUICK))[0]
    assert is_install(first)
    body = re.sub(r"^(\s*)[%!](.*)$", r"\1print('''\2''')", first.source, flags=re.MULTILINE)
    command = [sys.executable, "-I", "-S", "-c", body]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    got = r"git clone --quiet --depth 1 https://github.com/[\w-]+/([\w-]+)\n"
    assert re.search(got + r'pip install --quiet "./\1\[book\]"', done.stdout)
