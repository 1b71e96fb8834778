"""What stands around a chapter: its place, its question, the time it takes, and what comes next.

The chapters of the first numbered part of ``_toc.yml`` are the main path. The first paragraph of a
page of ``notebooks`` is its question; the page before shows it, too. In the time that a page takes,
what is folded away, exercises and code do not count; a formula on a line of its own counts as ten
words, one within a line as one.
"""

import math
import re

from docutils import nodes
from sphinx.addnodes import index, pending_xref
from sphinx.application import Sphinx
from sphinx_exercise.nodes import exercise_enumerable_node, exercise_node, solution_node

WORDS_A_MINUTE = 150  # of mathematical prose
WORDS_A_FORMULA = 10
EXERCISES = (exercise_node, exercise_enumerable_node, solution_node)
NOT_READ = (nodes.literal_block, nodes.raw, nodes.comment, nodes.target, index, *EXERCISES)
FOLDED = {"Play", "Further", "Appendix", "Back matter"}  # parts, in the contents beside a page


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


def read_chapter(app: Sphinx, doctree: nodes.document) -> None:
    """Note question, time and exercises of a page of ``notebooks``, and put the time below the question."""
    docname = app.env.docname
    section = next(doctree.findall(nodes.section), None)
    if section is None or not docname.startswith("notebooks/"):
        return
    minutes = max(1, math.ceil(count_words(section) / WORDS_A_MINUTE))
    time = f"{minutes} minutes" if minutes > 1 else "1 minute"
    place = section.first_child_matching_class(nodes.paragraph)
    question = section[place]
    question["classes"].append("question")
    section.insert(place + 1, nodes.paragraph("", time, classes=["reading-time"]))
    exercises = next(
        (s["ids"][0] for s in section.findall(nodes.section) if s[0].astext() == "Exercises"), None
    )
    app.env.metadata[docname]["chapter"] = {
        "time": time,
        "question": question.deepcopy(),
        "exercises": exercises,
    }


def places(app: Sphinx) -> dict[str, tuple[str, int, int]]:
    """Return part, number and the part's number of pages of each page, in reading order."""
    parts = app.config.external_site_map.root.subtrees
    return {
        str(page): (part.caption, number, len(part.items))
        for part in parts
        for number, page in enumerate(part.items, 1)
    }


def lead(app: Sphinx, docname: str, context) -> dict:
    """Return what the link to a page says of it."""
    numbers, chapter = app.env.toc_secnumbers, app.env.metadata[docname].get("chapter")
    part, number, of = places(app)[docname]
    letter = ".".join(map(str, numbers.get(docname, {}).get("", ())))
    place = f"Chapter {number} of {of}" if letter.isdigit() else f"{part} {letter}".strip()
    found = {
        "link": context["pathto"](docname),
        "title": app.env.titles[docname].astext(),
        "place": place,
        "letter": letter,
    }
    if chapter:
        question = app.builder.render_partial(chapter["question"])["fragment"]
        found |= {
            "question": question.removeprefix('<p class="question">').removesuffix("</p>\n"),
            "time": chapter["time"],
        }
    return found


def surround(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Say above a page where in the book it stands, and below it where the book goes on."""
    order = places(app)
    if pagename not in order:
        return
    docnames = list(order)
    here, position = lead(app, pagename, context), docnames.index(pagename)
    path = [name for name in docnames if order[name][0] == order[pagename][0]]
    rail = [lead(app, name, context) for name in path] if here["letter"].isdigit() else []
    chapter = app.env.metadata[pagename].get("chapter") or {}
    context |= {
        "before": lead(app, docnames[position - 1], context) if position else None,
        "onward": lead(app, docnames[position + 1], context)
        if position + 1 < len(docnames)
        else None,
        "exercises": chapter.get("exercises"),
    }
    if here["letter"]:
        head = app.builder.templates.render("place.html", {"here": here, "rail": rail})
        context["body"] = context["body"].replace("<h1>", f"{head}<h1>", 1)


def fold_contents(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """In the contents beside a page the main path is open; what is further is folded."""
    contents = context.get("generate_toctree_html")
    if contents is None:
        return

    def folded(*args, **kwargs):
        tree = contents(*args, **kwargs)
        for fold in getattr(tree, "select", lambda _: ())("li.toctree-l0 > details"):
            if fold.find("p", class_="caption").get_text(strip=True) not in FOLDED:
                fold["open"] = "open"
        return tree

    context["generate_toctree_html"] = folded


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", read_chapter)
    app.connect("html-page-context", surround, priority=700)  # after the body is repaired
    app.connect("html-page-context", fold_contents, priority=900)
