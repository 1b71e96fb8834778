"""The notebooks for download hold every output of the execution, and run where the package is installed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from book_build.downloads import show_pictures, solutions_last
from nbclient import NotebookClient

BUILD = Path(__file__).resolve().parents[2] / "_build"
DOWNLOADS = BUILD / "html" / "_sources"
QUICK = "book/how_to_run"  # seconds


def notebooks() -> list[str]:
    toc = yaml.safe_load((BUILD.parent / "_toc.yml").read_text(encoding="utf8"))
    listed = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    return [
        name
        for name in listed
        if "kernelspec" in (BUILD.parent / f"{name}.md").read_text(encoding="utf8")
    ]


def downloaded(docname: str):
    return nbformat.read(DOWNLOADS / f"{docname}.ipynb", as_version=4)


def code(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def own_cells(notebook) -> list:
    return [cell for cell in code(notebook) if "book-install" not in cell.metadata.get("tags", [])]


@pytest.mark.parametrize("docname", notebooks())
def test_a_notebook_holds_every_output(docname):
    notebook = downloaded(docname)
    nbformat.validate(notebook)
    executed = nbformat.read(BUILD / "jupyter_execute" / f"{docname}.ipynb", as_version=4)
    executed.cells = solutions_last(executed.cells)
    cells, executed = own_cells(notebook), code(executed)
    assert [c.source for c in cells] == [c.source for c in executed]
    for cell in executed:
        show_pictures(cell)
    assert [c.outputs for c in cells] == [c.outputs for c in executed]
    assert any(c.outputs for c in cells)


@pytest.mark.parametrize("docname", notebooks())
def test_a_notebook_shows_its_figures_and_gathers_its_solutions(docname):
    source = (BUILD.parent / f"{docname}.md").read_text(encoding="utf8")
    notebook = downloaded(docname)
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    assert prose.count("### Solution of [Exercise ") == len(
        re.findall(r"^[`:]{3,}\{solution-start\}", source, re.MULTILINE)
    )
    assert len(re.findall(r"^\*Figure ", prose, re.MULTILINE)) == len(
        re.findall(r"^    name: fig-", source, re.MULTILINE)
    )
    shown = [list(output.get("data", {})) for cell in code(notebook) for output in cell.outputs]
    assert not any("image/svg+xml" in kinds for kinds in shown)
    for cell in code(notebook):
        folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        assert folded == ("hide-input" in cell.metadata.get("tags", []))


def test_a_notebook_runs_outside_the_repository(tmp_path):
    """As after a download: only the package is there, and the first cell finds it."""
    notebook = downloaded(QUICK)
    before = [[o.get("text") for o in c.outputs] for c in own_cells(notebook)]
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    assert [[o.get("text") for o in c.outputs] for c in own_cells(notebook)] == before


def test_a_notebook_installs_the_package_where_it_is_missing(tmp_path):
    """The first cell of code, run where nothing is installed, gets the repository and installs from it."""
    first = next(c for c in code(downloaded(QUICK)) if "book-install" in c.metadata.get("tags", []))
    body = re.sub(r"^(\s*)[%!](.*)$", r"\1print('''\2''')", first.source, flags=re.MULTILINE)
    command = [sys.executable, "-I", "-S", "-c", body]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    got = r"git clone --quiet --depth 1 https://github.com/[\w-]+/([\w-]+)\n"
    assert re.search(got + r'pip install --quiet "./\1\[book\]"', done.stdout)
