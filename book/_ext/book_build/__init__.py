"""The book's own Sphinx extension: what Jupyter Book leaves out, with one module for each concern.

========== ==========================================================================
execution  cache keyed on what a page imports; uncached notebooks in parallel
kernels    kernels that share one import of the libraries
offline    MathJax served by the book itself; redirect page; files for the host
pages      unique ids, launch buttons that open, accessible tables, links to the repository
provenance when, with what and how long each page was executed; the versions of all libraries
downloads  every notebook page as ``.ipynb`` with outputs, in plain Markdown (``plain``)
colours    the dictionary of colours for style sheets
figures    each figure for light and for dark pages
live       the live pictures, each with its script on its own page
reference  a section of the reference for each module of the package
citations  works named by author and year, in the text, the bibliography and on claims
claims     a claim in its theorem's box and on the scoreboard; a check folded under its line
editions   the PDF (``printed``) and the archive of the site, and links to them
slides     the deck of slides
hover      what a reference shows when it is hovered
speeds     how long each page takes, and the main path
search     theorems found by name; words in place of formulas where others link to a page
========== ==========================================================================
"""

from __future__ import annotations

import sys
from pathlib import Path

# Parts of the extension import the laboratory, which is nowhere installed.
sys.path.insert(0, str(Path(__file__).parents[3] / "notebooks"))

from importlib import import_module

from sphinx.application import Sphinx

PARTS = (
    "execution offline pages provenance downloads colours figures live reference citations claims "
    "editions hover search speeds slides"
)


def setup(app: Sphinx) -> dict:
    """Register every part of the extension."""
    for name in PARTS.split():
        import_module(f"{__name__}.{name}").setup(app)
    return {
        "version": "1.0",
        "env_version": 10,
        "parallel_read_safe": False,
        "parallel_write_safe": True,
    }
