"""Two speeds: how long each page takes, in words, and the main path, marked on its pages.

``main_path`` of ``_config.yml`` lists the chapters of the main path in reading order. What is
folded away, exercises and code do not count; a formula on a line of its own counts as ten words,
one within a line as one.
"""

import math
import re

from docutils import nodes
from sphinx.addnodes import index, pending_xref
from sphinx.application import Sphinx
from sphinx_exercise.nodes import exercise_enumerable_node, exercise_node, solution_node

from .citations import reference_to

WORDS_A_MINUTE = 150  # of mathematical prose
WORDS_A_FORMULA = 10
EXERCISES = (exercise_node, exercise_enumerable_node, solution_node)
NOT_READ = (nodes.literal_block, nodes.raw, nodes.comment, nodes.target, index, *EXERCISES)
MARK = "●"
SIGN = f'<span class="path-mark" role="img" aria-label="Main path:">{MARK}</span> '


def count_words(node: nodes.Node) -> int:
    """Return the number of words that are read without unfolding anything."""
    if isinstance(node, NOT_READ):
        return 0
    if isinstance(node, nodes.container) and node.get("design_component") == "dropdown":
        return 0
    if isinstance(node, nodes.math_block):
        return WORDS_A_FORMULA
    if isinstance(node, nodes.math):
        return 1
    if isinstance(node, nodes.Text):
        return len(re.findall(r"\S*\w\S*", node.astext()))
    if isinstance(node, nodes.container) and "cell" in node.get("classes", []):
        return sum(map(count_words, node.findall(nodes.caption)))
    if not node.children:
        return int(isinstance(node, pending_xref) or "glue" in type(node).__name__.lower())
    return sum(map(count_words, node.children))


def add_lines(app: Sphinx, doctree: nodes.document) -> None:
    """Put the time below the title of a notebook, and the way on at the end of the main path's."""
    docname, path = app.env.docname, app.config.main_path
    section = next(doctree.findall(nodes.section), None)
    if section is None or not docname.startswith("notebooks/"):
        return
    parts = app.config.external_site_map.root.subtrees
    numbered = {str(page) for part in parts if part.numbered for page in part.items}
    line = nodes.paragraph(classes=["reading-time"])
    if docname in path:
        line += nodes.inline("", f"{MARK} ", classes=["path-mark"])
        line += nodes.Text(f"Main path, {path.index(docname) + 1} of {len(path)} · ")
    elif docname in numbered:
        line += nodes.Text("Advanced · ")
    taken = max(1, math.ceil(count_words(section) / WORDS_A_MINUTE))
    line += nodes.Text(f"{taken} minutes" if taken > 1 else "1 minute")
    section.insert(section.first_child_matching_class(nodes.title) + 1, line)
    if docname in path[:-1]:
        onward = nodes.paragraph("", f"{MARK} Next on the main path: ", classes=["path-next"])
        onward += reference_to("std", "doc", f"/{path[path.index(docname) + 1]}", docname)
        section += onward


def mark_contents(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Mark the chapters of the main path in the contents beside every page."""
    contents = context.get("generate_toctree_html")
    if contents is None:
        return
    where = {"#" if page == pagename else context["pathto"](page) for page in app.config.main_path}

    def marked(*args, **kwargs):
        return re.sub(
            r'(<a class="[^"]*reference internal" href="([^"]*)">)',
            lambda found: found[1] + (SIGN if found[2] in where else ""),
            str(contents(*args, **kwargs)),
        )

    context["generate_toctree_html"] = marked


def setup(app: Sphinx) -> None:
    app.add_config_value("main_path", [], "env")
    app.connect("doctree-read", add_lines)
    app.connect("html-page-context", mark_contents, priority=900)
