"""The reference: ```` ```{modules} package ```` becomes a section for each public module of a package.

The modules that the directive lists come first, in that order, and the others after them: a module that is
added is documented without a change of the page.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

PLACE = re.compile(r"^```\{modules\} (?P<package>[\w.]+)\n(?P<first>[^`]*)```$", re.MULTILINE)
SECTION = """### `{name}`

```{{eval-rst}}
.. automodule:: {name}
   :members:
```
"""


def public_modules(folder: Path) -> list[str]:
    """List the modules and folders of modules in a folder, without those that begin with an underscore."""
    modules = [path.stem for path in folder.glob("*.py")]
    folders = [path.parent.name for path in folder.glob("*/__init__.py")]
    return sorted(name for name in modules + folders if not name.startswith("_"))


def sections(root: Path, package: str, first: list[str]) -> str:
    """Return the sections of the modules of a package, those of ``first`` before the others."""
    names = public_modules(root.joinpath(*package.split(".")))
    names.sort(key=lambda name: first.index(name) if name in first else len(first))
    return "\n".join(SECTION.format(name=f"{package}.{name}") for name in names)


def expand(app: Sphinx, docname: str, source: list[str]) -> None:
    """Write the sections in place of the directive."""
    root = Path(app.srcdir)
    source[0] = PLACE.sub(
        lambda place: sections(root, place["package"], place["first"].split()), source[0]
    )


def setup(app: Sphinx) -> None:
    """Register the hook."""
    app.connect("source-read", expand)
