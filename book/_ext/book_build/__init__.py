"""The book's own Sphinx extension: what Jupyter Book leaves out, one concern a module.

========== ==========================================================================
execution  cache keyed on the package and its libraries; uncached notebooks in parallel
offline    MathJax served by the book itself; redirect page; files for the host
pages      unique ids, launch buttons that open, accessible tables
downloads  every notebook page as ``.ipynb`` with outputs, in plain Markdown
editions   links to the PDF and the archive of the site
provenance when, with what and how long each page was executed
scoreboard the table of claims, collected from the executed pages
live       the live pictures, each with its script on its own page
versions   the table of library versions the pages were executed with
hover      what a reference shows when it is hovered
finding    search by symbols' names, thumbnails, links to the repository
========== ==========================================================================

After a build, and without Sphinx: ``editions`` makes the archive, and with ``printed`` and ``packed`` the
PDF; ``releases`` lays out the folder with the pages of every version.
"""

from __future__ import annotations

from sphinx.application import Sphinx

from . import (
    downloads,
    editions,
    execution,
    finding,
    hover,
    live,
    offline,
    pages,
    provenance,
    scoreboard,
    versions,
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
        live,
        scoreboard,
        versions,
        editions,
        hover,
        finding,
    )
    for part in parts:
        part.setup(app)
    return {
        "version": __version__,
        "env_version": 3,
        "parallel_read_safe": False,
        "parallel_write_safe": True,
    }
