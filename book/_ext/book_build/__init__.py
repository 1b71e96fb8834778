"""The book's own Sphinx extension: what Jupyter Book leaves out, one concern a module.

========== ==========================================================================
reach      which modules of the package a page can reach
execution  cache keyed on what a page reaches; uncached notebooks in parallel
offline    MathJax served by the book itself; redirect page; files for the host
pages      unique ids, launch buttons that open, accessible tables
downloads  every notebook page as ``.ipynb`` with outputs, in plain Markdown
editions   links to the PDF and the archive of the site
provenance when, with what and how long each page was executed; the versions of all libraries
scoreboard the table of claims, collected from the executed pages
results    a claim in its theorem's box; a check folded under its line
figures    each figure for light and for dark pages, from one dictionary of colours
live       the live pictures, each with its script on its own page
reference  a section of the reference for each module of the package
hover      what a reference shows when it is hovered
finding    a search that keeps the words of the index, thumbnails, links to the repository
========== ==========================================================================

After a build, and without Sphinx, ``editions`` makes the archive, and with ``printed`` the PDF.
"""

from __future__ import annotations

from sphinx.application import Sphinx

from . import (
    downloads,
    editions,
    execution,
    figures,
    finding,
    hover,
    live,
    offline,
    pages,
    provenance,
    reference,
    results,
    scoreboard,
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
        figures,
        live,
        reference,
        scoreboard,
        results,
        editions,
        hover,
        finding,
    )
    for part in parts:
        part.setup(app)
    return {
        "version": __version__,
        "env_version": 5,
        "parallel_read_safe": False,
        "parallel_write_safe": True,
    }
