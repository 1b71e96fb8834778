"""Everything that a page loads is beside it: MathJax, the redirect page, a marker for the host."""

from __future__ import annotations

import html
import importlib.util
import shutil
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

# The component itself, its fonts, and what its menu can load (speech in English).
MATHJAX_PARTS = (
    "tex-chtml-full.js",
    "output/chtml/fonts/woff-v2",
    "a11y",
    "sre/mathmaps/base.json",
    "sre/mathmaps/en.json",
    "sre/mathmaps/nemeth.json",
)

REDIRECT = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="0; url={target}">
<link rel="canonical" href="{target}">
<link rel="icon" href="{icon}">
<title>{title}</title>
</head>
<body><p><a href="{target}">{title}</a></p></body>
</html>
"""


def mathjax_folder() -> Path:
    """Return the folder of MathJax inside the installed ``sphinx-mathjax-offline``."""
    spec = importlib.util.find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise ExtensionError(
            "sphinx-mathjax-offline is not installed: MathJax cannot be served offline"
        )
    return Path(spec.origin).parent / "static" / "mathjax"


def copy_mathjax(app: Sphinx, exception) -> None:
    """Copy the parts of MathJax that the pages use, once."""
    if exception is not None or app.builder.format != "html":
        return
    source, target = mathjax_folder(), Path(app.outdir) / "_static" / "mathjax"
    for part in MATHJAX_PARTS:
        if (target / part).exists() or not (source / part).exists():
            continue
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (source / part).is_dir() else shutil.copyfile
        copy(source / part, target / part)


def write_host_files(app: Sphinx, exception) -> None:
    """Write a complete redirect to the first page, and keep Jekyll from hiding ``_static``."""
    if exception is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    (out / ".nojekyll").touch()
    root = app.config.root_doc
    if root == "index":
        return
    icon = f"_static/{Path(app.config.html_favicon).name}" if app.config.html_favicon else ""
    page = REDIRECT.format(
        target=f"{root}.html", icon=icon, title=html.escape(app.config.html_title)
    )
    (out / "index.html").write_text(page, encoding="utf8")


def setup(app: Sphinx) -> None:
    """Register the hooks; late, so that no other extension writes over the files."""
    app.connect("build-finished", copy_mathjax, priority=900)
    app.connect("build-finished", write_host_files, priority=900)
