"""What stands around a chapter: its place, its question, the time it takes, and what comes next.

The chapters of the first numbered part of ``_toc.yml`` are the main path. The first paragraph of a
page of ``notebooks`` is its question; the page before shows it, too. In the time of a page what is
folded, exercises and code do not count; a displayed formula counts as ten words, another as one.
"""

import math
import re

from bs4 import BeautifulSoup
from docutils import nodes
from sphinx.addnodes import index, pending_xref
from sphinx.application import Sphinx
from sphinx_exercise.nodes import exercise_enumerable_node, exercise_node, solution_node

WORDS_A_MINUTE = 150  # of mathematical prose
WORDS_A_FORMULA = 10
NOT_READ = (nodes.literal_block, nodes.raw, nodes.comment, nodes.target, index)
NOT_READ += (exercise_node, exercise_enumerable_node, solution_node)
FOLDED = {"Play", "Further", "Appendix", "Back matter"}  # parts, in the contents beside a page


def count_words(node: nodes.Node) -> int:
    """Return the number of words that are read without unfolding anything."""
    if isinstance(node, NOT_READ):
        return 0
    if isinstance(node, nodes.container) and node.get("design_component") == "dropdown":
        return 0
    if isinstance(node, nodes.math_block | nodes.math):
        return WORDS_A_FORMULA if isinstance(node, nodes.math_block) else 1
    if isinstance(node, nodes.Text):
        return len(re.findall(r"\S*\w\S*", node.astext()))
    if isinstance(node, nodes.container) and "cell" in node.get("classes", []):
        return sum(map(count_words, node.findall(nodes.caption)))
    if not node.children:
        return int(isinstance(node, pending_xref) or "glue" in type(node).__name__.lower())
    return sum(map(count_words, node.children))


def read_chapter(app: Sphinx, doctree: nodes.document) -> None:
    """Note question, time and exercises of a page of ``notebooks``, and put the time below the question."""
    docname = app.env.docname
    section = next(doctree.findall(nodes.section), None)
    place = section and section.first_child_matching_class(nodes.paragraph)
    if place is None or not docname.startswith("notebooks/"):
        return
    minutes = max(1, math.ceil(count_words(section) / WORDS_A_MINUTE))
    time = f"{minutes} minutes" if minutes > 1 else "1 minute"
    section[place]["classes"].append("question")
    sections = {part[0].astext(): part["ids"][0] for part in section.findall(nodes.section)}
    app.env.metadata[docname]["chapter"] = {
        "time": time,
        "question": section[place].deepcopy(),
        "exercises": sections.get("Exercises"),
    }
    section.insert(place + 1, nodes.paragraph("", time, classes=["reading-time"]))


def pages_of_parts(app: Sphinx) -> dict[str, list[str]]:
    """Return the pages of each part of the book, in reading order."""
    parts = app.config.external_site_map.root.subtrees
    return {part.caption: [str(page) for page in part.items] for part in parts}


def lead(app: Sphinx, docname: str, context) -> dict:
    """Return what the link to a page says of it."""
    part, pages = next(x for x in pages_of_parts(app).items() if docname in x[1])
    letter = "".join(map(str, app.env.toc_secnumbers.get(docname, {}).get("", ())))
    place = f"Chapter {letter} of {len(pages)}" if letter.isdigit() else f"{part} {letter}".strip()
    chapter = dict(app.env.metadata[docname].get("chapter", {}))
    if chapter:
        question = app.builder.render_partial(chapter["question"])["fragment"]
        chapter["question"] = re.sub(r"</?p\b[^>]*>", "", question).strip()
    title, link = app.env.titles[docname].astext(), context["pathto"](docname)
    return {"title": title, "link": link, "place": place, "letter": letter, **chapter}


def surround(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Say above a page where in the book it stands, and below it where the book goes on."""
    parts = pages_of_parts(app).values()
    pages = [page for part in parts for page in part]
    if pagename not in pages:
        return
    here, place = lead(app, pagename, context), pages.index(pagename)
    context["before"] = [lead(app, page, context) for page in pages[:place][-1:]]
    context["onward"] = [lead(app, page, context) for page in pages[place + 1 :][:1]]
    context["exercises"] = here.get("exercises")
    if here["letter"]:
        part = next(part for part in parts if pagename in part)
        rail = [lead(app, page, context) for page in part] if here["letter"].isdigit() else []
        head = app.builder.templates.render("place.html", {"here": here, "rail": rail})
        context["body"] = context["body"].replace("<h1>", f"{head}<h1>", 1)


def fold_contents(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """In the contents beside a page the main path is open; what is further is folded."""
    contents = context.get("generate_toctree_html", str)

    def folded(*args, **kwargs):
        tree = BeautifulSoup(str(contents(*args, **kwargs)), "html.parser")
        for fold in tree.select("li.toctree-l0 > details"):
            if fold.summary.get_text(strip=True) not in FOLDED:
                fold["open"] = "open"
        return tree

    context["generate_toctree_html"] = folded


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", read_chapter)
    app.connect("html-page-context", surround, priority=700)  # after the body is repaired
    app.connect("html-page-context", fold_contents, priority=900)
