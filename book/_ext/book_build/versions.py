"""``{versions-table}``: the libraries the pages were executed with."""

from __future__ import annotations

import platform
import tomllib
from importlib import metadata
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from .tables import build_table

PROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


def version(name: str) -> str:
    """Return the version of a distribution: installed, or used from this checkout; or a dash."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        project = (
            tomllib.loads(PROJECT.read_text(encoding="utf8"))["project"] if PROJECT.exists() else {}
        )
        return project["version"] if project.get("name") == name else "–"


class VersionsTable(SphinxDirective):
    """A table of the distributions named in ``book_versions``, and of Python."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        self.env.note_reread()  # an upgrade is no change in any source file
        rows = [["Python", platform.python_version()]]
        rows += [[name, version(name)] for name in self.config.book_versions]
        return [
            build_table(["library", "version"], [[[nodes.Text(c)] for c in row] for row in rows])
        ]


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_config_value("book_versions", [], "env", [list])
    app.add_directive("versions-table", VersionsTable)
