"""When, with what and how long a page was executed, in a sentence at its end."""

from __future__ import annotations

import html
import platform

from sphinx.application import Sphinx

from .execution import library_versions

SHOWN = ["lipcore", "torch", "numpy"]
MORE = "book/how_to_run"  # the page with the versions of all libraries


def add_sentence(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Close each executed page with the sentence."""
    facts = app.env.metadata.get(pagename, {})
    if "executed" not in facts or not context.get("body"):
        return
    moment, seconds = facts["executed"]
    libraries = ", ".join(line.replace("==", " ") for line in library_versions(SHOWN))
    words = (
        f"Executed on {moment.day} {moment:%B %Y at %H:%M} UTC in {seconds:.0f} s, on one core, "
        f"with Python {platform.python_version()}, {libraries}."
    )
    link = ""
    if MORE in app.env.found_docs:
        address = f"{app.builder.get_relative_uri(pagename, MORE)}#versions"
        link = f' <a class="reference internal" href="{address}">All versions</a>.'
    context["body"] += f'\n<p class="page-execution">{html.escape(words)}{link}</p>\n'


def setup(app: Sphinx) -> None:
    """Register the hook."""
    app.connect("html-page-context", add_sentence, priority=700)
