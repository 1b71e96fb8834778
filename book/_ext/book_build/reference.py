"""The reference: ```` ```{modules} package ```` becomes a section for each public module.

The modules that the directive lists come first, in that order, and the others after them: a module
that is added is documented without a change of the page.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

PLACE = re.compile(r"^```\{modules\} (?P<package>[\w.]+)\n(?P<first>[^`]*)```$", re.MULTILINE)
SECTION = """### `{name}`

```{{eval-rst}}
.. automodule:: {name}
{members}
```
"""


def public_modules(folder: Path) -> list[str]:
    """List the modules and folders of modules in a folder that begin with no underscore."""
    modules = [path.stem for path in folder.glob("*.py")]
    folders = [path.parent.name for path in folder.glob("*/__init__.py")]
    return sorted(name for name in modules + folders if not name.startswith("_"))


def expand(app: Sphinx, docname: str, source: list[str]) -> None:
    """Write the sections in place of the directive; a package with its own is not shown twice."""
    root = Path(app.srcdir)
    apart = {place["package"] for place in PLACE.finditer(source[0])}

    def sections(place: re.Match) -> str:
        package, first = place["package"], place["first"].split()
        folders = (root.joinpath(above, *package.split(".")) for above in ("", "notebooks"))
        names = public_modules(next(folder for folder in folders if folder.is_dir()))
        names.sort(key=lambda name: first.index(name) if name in first else len(first))
        full = [f"{package}.{name}" for name in names]
        shown = [(name, "" if name in apart else "   :members:") for name in full]
        return "\n".join(SECTION.format(name=name, members=members) for name, members in shown)

    source[0] = PLACE.sub(sections, source[0])


def keep_sentence(app: Sphinx, what: str, name: str, obj, options, lines: list[str]) -> None:
    """Keep napoleon from reading what stands before a colon in the first line as a type."""
    if what in ("attribute", "data", "property"):
        lines.insert(0, "\\ ")


def skip_field(app: Sphinx, what: str, name: str, obj, skip: bool, options) -> bool | None:
    """Leave out the fields of a named tuple, which the text of its class explains."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def unlink_words(app: Sphinx, doctree: nodes.document) -> None:
    """Let no plain word in a type, as the "shape" of a tensor, lead to something of that name."""
    for reference in list(doctree.findall(pending_xref)):
        if reference.get("refspecific") and reference["reftarget"].islower():
            reference.replace_self(reference.children)


def setup(app: Sphinx) -> None:
    app.connect("source-read", expand)
    app.connect("autodoc-process-docstring", keep_sentence, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip_field)
    app.connect("doctree-read", unlink_words)
