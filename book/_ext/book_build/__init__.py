"""The book's own Sphinx extension: what Jupyter Book leaves out, with one module for each concern.

========== ==========================================================================
execution  cache keyed on what a page imports; uncached notebooks in parallel; when each ran
kernels    kernels that share one import of the libraries
pages      unique ids, launch buttons that open, accessible tables
downloads  every notebook page as ``.ipynb`` with outputs, in plain Markdown (``plain``)
figures    each figure for light and for dark pages; colours for style sheets
live       the live pictures, each with its script on its own page
reference  a section of the reference for each module of the package
citations  works named by author and year, in the text, the bibliography and on claims
claims     a claim in its theorem's box and on the scoreboard; a check folded under its line
editions   the PDF (``printed``) and the archive of the site, and links to them
slides     the deck of slides
typeset    formulas, typeset by the build
hover      what a reference shows when it is hovered
chapters   the place of a page, its question and time, and what comes next
search     theorems found by name; words in place of formulas where others link to a page
========== ==========================================================================
"""

import sys
from pathlib import Path

# Parts of the extension import the laboratory, which is nowhere installed.
sys.path.insert(0, str(Path(__file__).parents[3] / "notebooks"))

from importlib import import_module

from sphinx.application import Sphinx

READING = "execution pages figures live reference citations claims editions search chapters"
AFTERWARDS = "pages typeset downloads hover slides editions"  # in this order


def finish(app: Sphinx, exception) -> None:
    """Make what is made of the written pages."""
    if exception is None and app.builder.name == "html":
        for name in AFTERWARDS.split():
            import_module(f".{name}", __name__).finish(app)


def setup(app: Sphinx) -> dict:
    for name in READING.split():
        import_module(f".{name}", __name__).setup(app)
    app.connect("build-finished", finish, priority=900)
    safe = {"parallel_read_safe": False, "parallel_write_safe": True}
    return {"version": "1.0", "env_version": 11, **safe}
