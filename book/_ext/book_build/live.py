"""Live pictures: ``{live} name`` puts ``book/_live/name.html`` on a page, with its script and the common style.

The part is hidden until the script ``live-name.js`` shows it: without scripts, the page is as complete without it.
"""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FOLDER = Path("book") / "_live"


class Live(SphinxDirective):
    """Insert a live picture."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return its markup, and remember which script the page needs."""
        name = self.arguments[0]
        path = Path(self.env.srcdir) / FOLDER / f"{name}.html"
        if not path.exists():
            raise self.error(f"there is no live picture {name}: {FOLDER / path.name} is missing")
        self.env.note_dependency(str(path))
        self.env.metadata[self.env.docname].setdefault("live", []).append(name)
        return [nodes.raw("", path.read_text(encoding="utf8"), format="html")]


def load_scripts(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Load a live picture's script and style on its own page only."""
    names = app.env.metadata.get(pagename, {}).get("live", [])
    for name in names:
        app.add_js_file(f"live-{name}.js", loading_method="defer")
    if names:
        app.add_css_file("live.css")


def setup(app: Sphinx) -> None:
    """Register the directive and the hook."""
    app.add_directive("live", Live)
    app.connect("html-page-context", load_scripts)
