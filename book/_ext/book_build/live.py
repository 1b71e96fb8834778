"""Live pictures: ``{live} name`` puts ``book/_live/name.html`` on a page, with its scripts and the common style.

A part that is ``hidden`` is shown by its script: without scripts, the page is as complete without it. The scripts are
loaded in their order: what all pictures share, what those with tokens share, and the picture's own.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FOLDER = Path("book") / "_live"
SHARED = {
    "attention": ("live", "live-plane", "live-tokens"),
    "crowd": ("live", "live-chart", "live-pair"),
    "jacobian": ("live", "live-plane", "live-chart"),
    "mask": ("live", "live-plane"),
    "sink": ("live", "live-chart"),
    "teaser": ("live", "live-plane", "live-tokens"),
    "ties": ("live", "live-plane", "live-chart"),
    "two-points": ("live", "live-pair"),
}
# A line that is a comment, the indentation of others, and a comment after a line.
_FOR_READERS = re.compile(r"^\s*//.*\n|^\s+|[ \t]+// .*$", re.MULTILINE)
_NEEDLESS_BREAK = re.compile(r"(?<=[;{(,])\n")


class Live(SphinxDirective):
    """Insert a live picture."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return its markup, and remember which scripts the page needs."""
        name = self.arguments[0]
        root = Path(self.env.srcdir)
        if not (root / FOLDER / f"{name}.html").exists():
            raise self.error(f"there is no live picture {name}: {FOLDER / name}.html is missing")
        for path in (root / FOLDER).glob(f"{name}.*"):
            self.env.note_dependency(str(path))
        self.env.metadata[self.env.docname].setdefault("live", []).append(name)
        return [nodes.raw("", markup(root, name), format="html")]


def markup(root: Path, name: str) -> str:
    """Return the markup of a live picture, with the data that stand beside it in place of ``{data}``."""
    data = root / FOLDER / f"{name}.json"
    html = (root / FOLDER / f"{name}.html").read_text(encoding="utf8")
    return (
        html.replace("{data}", escape(data.read_text(encoding="utf8"))) if data.exists() else html
    )


def scripts(names: list[str]) -> list[str]:
    """Return the scripts that live pictures need, each once, in order."""
    needed = [script for name in names for script in (*SHARED[name], f"live-{name}")]
    return [f"{script}.js" for script in dict.fromkeys(needed)]


def compact(script: str) -> str:
    """Return a script without the comments, the indentation and the line breaks that only its authors need."""
    return _NEEDLESS_BREAK.sub("", _FOR_READERS.sub("", script))


def load_scripts(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Load the scripts and the style of live pictures on their own pages only."""
    names = app.env.metadata.get(pagename, {}).get("live", [])
    for script in scripts(names):
        app.add_js_file(script, loading_method="defer")
    if names:
        app.add_css_file("live.css")


def shrink_scripts(app: Sphinx, exception: Exception | None) -> None:
    """Make what a page loads small; the sources stay readable."""
    for path in (Path(app.outdir) / "_static").glob("live*.js"):
        path.write_text(compact(path.read_text(encoding="utf8")), encoding="utf8")


def setup(app: Sphinx) -> None:
    """Register the directive and the hooks."""
    app.add_directive("live", Live)
    app.connect("html-page-context", load_scripts)
    app.connect("build-finished", shrink_scripts)
