"""Live pictures: ``{live} name`` puts ``book/_live/name.html`` on a page, with scripts and style.

A part that is ``hidden`` is shown by its script: without scripts, the page is as complete without
it. The scripts are loaded in their order: what all pictures share, what those with tokens share,
and the picture's own.
"""

from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FOLDER = Path("book") / "_live"
SHARED = {
    "attention": ("live", "live-arithmetic", "live-plane", "live-tokens"),
    "calculator": ("live", "live-arithmetic", "live-bounds"),
    "crowd": ("live", "live-chart", "live-pair"),
    "head": ("live", "live-arithmetic"),
    "jacobian": ("live", "live-arithmetic", "live-plane", "live-chart"),
    "mask": ("live", "live-arithmetic", "live-plane"),
    "sink": ("live", "live-chart"),
    "teaser": ("live", "live-arithmetic", "live-plane", "live-tokens"),
    "ties": ("live", "live-arithmetic", "live-plane", "live-chart"),
    "two-points": ("live", "live-arithmetic", "live-bounds", "live-pair"),
}


class Live(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name, root = self.arguments[0], Path(self.env.srcdir)
        for path in (root / FOLDER).glob(f"{name}.*"):
            self.env.note_dependency(str(path))
        self.env.metadata[self.env.docname].setdefault("live", []).append(name)
        return [nodes.raw("", markup(root, name), format="html")]


def markup(root: Path, name: str) -> str:
    """Return the markup of a live picture; its data stand in place of ``{data}``."""
    html = (root / FOLDER / f"{name}.html").read_text(encoding="utf8")
    data = root / FOLDER / f"{name}.json"
    known = data.read_text(encoding="utf8") if data.exists() else ""
    return html.replace("{data}", escape(known))


def scripts(names: list[str]) -> list[str]:
    needed = [script for name in names for script in (*SHARED[name], f"live-{name}")]
    return [f"{script}.js" for script in dict.fromkeys(needed)]


def load_scripts(app: Sphinx, pagename, templatename, context, doctree) -> None:
    names = app.env.metadata.get(pagename, {}).get("live", [])
    for script in scripts(names):
        app.add_js_file(script, loading_method="defer")
    if names:
        app.add_css_file("live.css")


def setup(app: Sphinx) -> None:
    app.add_directive("live", Live)
    app.connect("html-page-context", load_scripts)
