"""A line below every executed page: when it ran, with what, and for how long."""

from __future__ import annotations

import html
from datetime import datetime

from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.application import Sphinx

from .versions import version


def seconds_text(seconds: float) -> str:
    """Return a duration as a reader says it."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s" if seconds >= 1 else "less than a second"


def line(executed: dict, names: list[str], times: str) -> str:
    """Return the line; the cache keeps the time at which an execution began in UTC, without a zone."""
    when = datetime.fromtimestamp(executed["mtime"])
    libraries = ", ".join(f"{name} {version(name).split('+')[0]}" for name in names)
    more = f' <a class="reference internal" href="{html.escape(times)}">All times and versions</a>.' if times else ""
    return (
        f'\n<p class="provenance">Executed <time datetime="{when:%Y-%m-%dT%H:%MZ}">{when:%Y-%m-%d %H:%M} UTC</time> '
        f"in {seconds_text(executed['runtime'])}, with {html.escape(libraries)}.{more}</p>\n"
    )


def add_line(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Put the line at the end of an executed page."""
    if app.builder.name != "html" or pagename not in app.env.all_docs or not context.get("body"):
        return
    executed = NbMetadataCollector.get_exec_data(app.env, pagename)
    if not executed or executed.get("runtime") is None:
        return
    page = app.config.book_times_page
    times = app.builder.get_relative_uri(pagename, page) if page in app.env.all_docs else ""
    context["body"] += line(executed, app.config.book_page_versions, times)


def setup(app: Sphinx) -> None:
    """Register the settings and the hook."""
    app.add_config_value("book_page_versions", ["lipcore", "torch", "numpy"], "html", [list])
    app.add_config_value("book_times_page", "book/execution", "html", [str])
    app.connect("html-page-context", add_line, priority=650)
