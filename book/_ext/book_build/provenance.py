"""When, with what and how long the pages were executed, in a sentence on each, and ``{versions-table}``."""

from __future__ import annotations

import html
import platform

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from .execution import library_versions
from .tables import build_table

SHOWN = ["lipcore", "torch", "numpy"]  # on every page; the rest is on the page about execution
MORE = "book/execution"


def versions(names: list[str]) -> list[list[str]]:
    """Return Python and the libraries, each with its version."""
    python = ["Python", platform.python_version()]
    return [python, *(line.replace(": ", "==").split("==") for line in library_versions(names))]


def add_sentence(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Close each executed page with the sentence."""
    facts = app.env.metadata.get(pagename, {})
    if "executed" not in facts or not context.get("body"):
        return
    moment, seconds = facts["executed"]
    libraries = ", ".join(" ".join(pair) for pair in versions(SHOWN))
    words = (
        f"Executed on {moment.day} {moment:%B %Y at %H:%M} UTC in {seconds:.0f} s, on one core, "
        f"with {libraries}."
    )
    link = ""
    if pagename != MORE and MORE in app.env.found_docs:
        address = app.builder.get_relative_uri(pagename, MORE)
        link = f' <a class="reference internal" href="{address}">All versions</a>.'
    context["body"] += f'\n<p class="page-execution">{html.escape(words)}{link}</p>\n'


class VersionsTable(SphinxDirective):
    """A table of the distributions named in ``book_versions``, and of Python."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        self.env.note_reread()  # an upgrade is no change in any source file
        rows = [[[nodes.Text(cell)] for cell in row] for row in versions(self.config.book_versions)]
        return [build_table(["library", "version"], rows)]


def setup(app: Sphinx) -> None:
    """Register the setting, the directive and the hook."""
    app.add_config_value("book_versions", [], "env", [list])
    app.add_directive("versions-table", VersionsTable)
    app.connect("html-page-context", add_sentence, priority=700)
