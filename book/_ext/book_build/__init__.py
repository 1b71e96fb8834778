"""The book's own Sphinx extension: what Jupyter Book leaves out, with one module for each concern.

========== ==========================================================================
reach      which modules of our packages a page can reach
execution  cache keyed on what a page reaches; uncached notebooks in parallel
offline    MathJax served by the book itself; redirect page; files for the host
pages      unique ids, launch buttons that open, accessible tables, links to the repository
downloads  every notebook page as ``.ipynb`` with outputs, in plain Markdown
editions   links to the PDF and the archive of the site
provenance when, with what and how long each page was executed; the versions of all libraries
citations  works named by author and year, in the text, the bibliography and on claims
scoreboard the table of claims, collected from the executed pages
dependencies what rests on what, read from the proofs
figures    each figure for light and for dark pages, from one dictionary of colours
figurelist the list of figures
dictionary the dictionary of colours, as a table and for style sheets
results    a claim in its theorem's box; a check folded under its line
slides     the deck of slides
live       the live pictures, each with its script on its own page
reference  a section of the reference for each module of the package
hover      what a reference shows when it is hovered
social     a description of each page, and a card for the book, where others link to it
speeds     how long each page takes, and the main path
search     theorems and terms found by name, sentences as excerpts, from a disk too
========== ==========================================================================

After a build, and without Sphinx, ``editions`` makes the archive, and with ``printed`` the PDF.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Parts of the extension import the laboratory, which is nowhere installed.
sys.path.insert(0, str(Path(__file__).parents[3] / "notebooks"))

from sphinx.application import Sphinx

from . import (
    citations,
    dependencies,
    dictionary,
    downloads,
    editions,
    execution,
    figurelist,
    figures,
    hover,
    live,
    offline,
    pages,
    provenance,
    reference,
    results,
    scoreboard,
    search,
    slides,
    social,
    speeds,
)

__version__ = "1.0"


def setup(app: Sphinx) -> dict:
    """Register every part of the extension."""
    parts = (
        execution,
        offline,
        pages,
        provenance,
        downloads,
        dictionary,
        figures,
        figurelist,
        live,
        reference,
        citations,
        scoreboard,
        dependencies,
        results,
        editions,
        hover,
        search,
        social,
        speeds,
        slides,
    )
    for part in parts:
        part.setup(app)
    return {
        "version": __version__,
        "env_version": 9,
        "parallel_read_safe": False,
        "parallel_write_safe": True,
    }
