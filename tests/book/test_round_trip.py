"""Jupyter saves a page as it stands: opening and saving changes nothing that nobody edited."""

from pathlib import Path

import jupytext
import nbformat
import pytest
from jupytext.config import load_jupytext_configuration_file

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for folder in ("notebooks", "book")
    for path in (ROOT / folder).glob("*.md")
    if "kernelspec:" in path.read_text(encoding="utf8")
)
REPAIR = (
    "{page} changes when Jupyter saves it. Write every caption after `caption: >-` (or on one line); then "
    "`.venv/bin/jupytext --to ipynb {page} -o - | "
    ".venv/bin/jupytext --from ipynb --to md:myst - -o {page}` writes the page as Jupyter would"
)


def saved(text: str) -> str:
    """Return a page as it is after it was opened, and saved, as a notebook."""
    config = load_jupytext_configuration_file(str(ROOT / "pyproject.toml"))
    notebook = jupytext.reads(text, fmt="md:myst", config=config)
    notebook = nbformat.reads(nbformat.writes(notebook), as_version=4)
    return jupytext.writes(notebook, fmt="md:myst", config=config)


@pytest.mark.parametrize("page", [str(path.relative_to(ROOT)) for path in PAGES])
def test_a_page_survives_the_round_trip(page):
    before = (ROOT / page).read_text(encoding="utf8")
    assert saved(before) == before, REPAIR.format(page=page)


PAGE = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
    format_version: 0.13
kernelspec:
  display_name: Python 3 (ipykernel)
  language: python
  name: python3
---

# A page

```{code-cell} ipython3
---
mystnb:
  figure:
    caption: A line
    name: fig-line
tags: [hide-input]
---
1
```

```{code-cell} ipython3
:tags: [check]

1
```
"""


def test_a_page_may_be_written_so():
    assert saved(PAGE) == PAGE


@pytest.mark.parametrize(
    ("part", "otherwise"),
    [
        (":tags: [check]\n\n", ":tags: [check]\n"),
        ("caption: A line", "caption: |\n      A line"),
        ("caption: A line", 'caption: "A line"'),
        ("    caption: A line\n    name: fig-line\n", "    name: fig-line\n    caption: A line\n"),
        ("(ipykernel)", "(ipykernel)\n  argv: python"),
        ("0.13\n", "0.13\n    jupytext_version: 1.19.6\n"),
        ("```\n", "```\n\n\n"),
    ],
)
def test_other_ways_to_write_the_same_are_found(part, otherwise):
    page = PAGE.replace(part, otherwise, 1)
    assert page != PAGE and saved(page) != page
