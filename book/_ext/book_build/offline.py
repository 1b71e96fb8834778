"""Everything that a page loads is beside it: MathJax; and a marker for the host."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from sphinx.application import Sphinx

# The component itself, its fonts, and what its menu can load (speech in English).
MATHJAX_PARTS = (
    "tex-chtml-full.js",
    "output/chtml/fonts/woff-v2",
    "a11y",
    "sre/mathmaps/base.json",
    "sre/mathmaps/en.json",
    "sre/mathmaps/nemeth.json",
)


def copy_mathjax(out: Path) -> None:
    """Copy the parts of MathJax that the pages use, once."""
    package = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent
    source, target = package / "static" / "mathjax", out / "_static" / "mathjax"
    for part in MATHJAX_PARTS:
        if (target / part).exists():
            continue
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (source / part).is_dir() else shutil.copyfile
        copy(source / part, target / part)


def write_files(app: Sphinx, exception) -> None:
    """Write MathJax, and keep Jekyll from hiding ``_static``."""
    if exception is not None or app.builder.name != "html":
        return
    copy_mathjax(Path(app.outdir))
    (Path(app.outdir) / ".nojekyll").touch()


def setup(app: Sphinx) -> None:
    """Register the hook."""
    app.connect("build-finished", write_files, priority=900)
