"""Two speeds: how long each page takes, in words, and the main path, marked on its pages and in the contents.

``main_path`` of ``_config.yml`` lists the chapters of the main path in reading order. What is folded away, exercises
and code do not count; a formula on a line of its own counts as ten words, one within a line as one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from docutils import nodes
from sphinx.addnodes import index, pending_xref
from sphinx.application import Sphinx
from sphinx_exercise.nodes import exercise_enumerable_node, exercise_node, solution_node

WORDS_A_MINUTE = 150  # of mathematical prose
WORDS_A_FORMULA = 10
NOT_READ = (
    nodes.literal_block,
    nodes.raw,
    nodes.comment,
    nodes.target,
    index,
    exercise_node,
    exercise_enumerable_node,
    solution_node,
)
MARK = "●"


def is_folded(node: nodes.Node) -> bool:
    """Say whether a part of a page is seen only by those who unfold it."""
    return isinstance(node, nodes.container) and node.get("design_component") == "dropdown"


def is_cell(node: nodes.Node) -> bool:
    """Say whether a node is a cell of code with its outputs."""
    return isinstance(node, nodes.container) and "cell" in node.get("classes", [])


def read_parts(node: nodes.Node) -> Iterator[nodes.Node]:
    """Yield what is read on a page, in order: words, and formulas whole."""
    if isinstance(node, NOT_READ) or is_folded(node):
        return
    if isinstance(node, nodes.Text | nodes.math | nodes.math_block):
        yield node
    elif is_cell(node):
        for caption in node.findall(nodes.caption):
            yield from read_parts(caption)
    elif not node.children:
        yield node
    else:
        for child in node.children:
            yield from read_parts(child)


def count_words(page: nodes.Node) -> int:
    """Return the number of words that are read without unfolding anything."""
    total = 0
    for part in read_parts(page):
        if isinstance(part, nodes.math_block):
            total += WORDS_A_FORMULA
        elif isinstance(part, nodes.math):
            total += 1
        elif isinstance(part, nodes.Text):
            total += len(re.findall(r"\S*\w\S*", part.astext()))
        elif isinstance(part, pending_xref) or "glue" in type(part).__name__.lower():
            total += 1
    return total


def minutes(words: int) -> int:
    """Return the time that so many words take, in whole minutes."""
    return max(1, math.ceil(words / WORDS_A_MINUTE))


def link(docname: str, page: str) -> pending_xref:
    """Return a reference from ``docname`` to another page, by its title."""
    target = pending_xref(
        "",
        refdomain="std",
        reftype="doc",
        reftarget=f"/{page}",
        refexplicit=False,
        refdoc=docname,
        refwarn=True,
    )
    target += nodes.inline("", page, classes=["xref", "std", "std-doc"])
    return target


def time_line(docname: str, words: int, path: list[str], is_chapter: bool) -> nodes.paragraph:
    """Return the line below a title that says how long the page takes."""
    line = nodes.paragraph(classes=["reading-time"])
    if docname in path:
        line += nodes.inline("", f"{MARK} ", classes=["path-mark"])
        line += nodes.Text(f"Main path, {path.index(docname) + 1} of {len(path)} · ")
    elif is_chapter:
        line += nodes.Text("Advanced · ")
    taken = minutes(words)
    line += nodes.Text(f"{taken} minutes" if taken > 1 else "1 minute")
    return line


def chapters(app: Sphinx) -> set[str]:
    """Return the pages that have a number."""
    parts = app.config.external_site_map.root.subtrees
    return {str(page) for part in parts if part.numbered for page in part.items}


def add_lines(app: Sphinx, doctree: nodes.document) -> None:
    """Put the time below the title of a notebook, and the way on at the end of one of the main path."""
    docname, path = app.env.docname, app.config.main_path
    section = next(doctree.findall(nodes.section), None)
    if section is None or not docname.startswith("notebooks/"):
        return
    words = count_words(section)
    place = section.first_child_matching_class(nodes.title) + 1
    section.insert(place, time_line(docname, words, path, docname in chapters(app)))
    if docname in path[:-1]:
        onward = nodes.paragraph("", f"{MARK} Next on the main path: ", classes=["path-next"])
        onward += link(docname, path[path.index(docname) + 1])
        section += onward


def mark_contents(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Mark the chapters of the main path in the contents beside every page."""
    contents = context.get("generate_toctree_html")
    if contents is None:
        return
    where = {"#" if page == pagename else context["pathto"](page) for page in app.config.main_path}

    def marked(*args, **kwargs):
        html = str(contents(*args, **kwargs))
        return re.sub(
            r'(<a class="[^"]*reference internal" href="([^"]*)">)',
            lambda found: found[1] + (SIGN if found[2] in where else ""),
            html,
        )

    context["generate_toctree_html"] = marked


SIGN = f'<span class="path-mark" role="img" aria-label="Main path:">{MARK}</span> '


def setup(app: Sphinx) -> None:
    """Register the hooks and what they read of the configuration."""
    app.add_config_value("main_path", [], "env")
    app.connect("doctree-read", add_lines)
    app.connect("html-page-context", mark_contents, priority=900)
