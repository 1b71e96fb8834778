"""The book's own Sphinx extension: what Jupyter Book leaves out, one concern a module.

========== ==========================================================================
execution  cache keyed on the package and its libraries; uncached notebooks in parallel
offline    MathJax served by the book itself; redirect page; files for the host
pages      unique ids, launch buttons that open, accessible tables
downloads  every notebook page as ``.ipynb`` with outputs, in plain Markdown
scoreboard the table of claims, collected from the executed pages
versions   the table of library versions the pages were executed with
provenance below each page: when it ran, with what, for how long
hover      what a reference shows when it is hovered
finding    search by symbols' names, thumbnails, links to the repository
========== ==========================================================================
"""

from __future__ import annotations

from sphinx.application import Sphinx

from . import downloads, execution, finding, hover, offline, pages, provenance, scoreboard, versions

__version__ = "1.0"


def setup(app: Sphinx) -> dict:
    """Register every part of the extension."""
    for part in (execution, offline, pages, downloads, scoreboard, versions, provenance, hover, finding):
        part.setup(app)
    return {"version": __version__, "parallel_read_safe": False, "parallel_write_safe": True}
