"""Jupyter saves a page as it stands: opening and saving changes nothing that nobody edited."""

from pathlib import Path

import jupytext
import nbformat
import pytest
from jupytext.config import load_jupytext_configuration_file

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in ("notebooks", "book")
    for path in (ROOT / folder).glob("*.md")
    if "kernelspec:" in path.read_text(encoding="utf8")
)
REPAIR = (
    "{page} changes when Jupyter saves it. Write every caption after `caption: >-`; then "
    "`.venv/bin/jupytext --to ipynb {page} -o - | .venv/bin/jupytext --from ipynb --to md:myst - "
    "-o {page}` writes the page as Jupyter would"
)


def saved(text: str) -> str:
    """Return a page as it is after it was opened, and saved, as a notebook."""
    config = load_jupytext_configuration_file(str(ROOT / "pyproject.toml"))
    notebook = jupytext.reads(text, fmt="md:myst", config=config)
    notebook = nbformat.reads(nbformat.writes(notebook), as_version=4)
    return jupytext.writes(notebook, fmt="md:myst", config=config)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_survives_the_round_trip(page):
    before = (ROOT / page).read_text(encoding="utf8")
    assert saved(before) == before, REPAIR.format(page=page)


def test_a_page_written_otherwise_is_found():
    page = (ROOT / PAGES[0]).read_text(encoding="utf8")
    for old, new in (("---\n\n", "---\n"), ("0.13\n", "0.13\n    jupytext_version: 1.19.6\n")):
        assert old in page and saved(page.replace(old, new, 1)) != page.replace(old, new, 1)


def test_what_a_header_asks_of_the_build_is_kept():
    page = (ROOT / PAGES[0]).read_text(encoding="utf8")
    asked = "python3\nmystnb:\n  execution_timeout: 900\norphan: true\n---\n"
    page = page.replace("python3\n---\n", asked, 1)
    assert asked in page and saved(page) == page
