"""Sphinx's search finds theorems by name; others who link to a page see words, not formulas."""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.index_entries import split_index_msg

from .claims import is_theorem

WORDS = {
    r"\le": "≤", r"\ge": "≥", r"\cdot": "·", r"\times": "×", r"\to": "→", r"\in": "∈",
    r"\sqrt": "√", r"\lVert": "‖", r"\rVert": "‖", r"\dots": "…", r"\approx": "≈", r"\infty": "∞",
    r"\alpha": "α", r"\beta": "β", r"\gamma": "γ", r"\delta": "δ", r"\kappa": "κ", r"\mu": "μ",
    r"\sigma": "σ", r"\theta": "θ", r"\Gamma": "Γ", r"\Lip": "Lip", r"\R": "ℝ",
}  # fmt: skip
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def plain(tex: str) -> str:
    r"""Return a short formula as text, ``\sqrt n`` as √n; dots for one that needs typesetting."""
    text = re.sub(r"\\norm\{([^{}]*)\}", r"‖\1‖", tex.strip())
    text = re.sub(r"(\\[A-Za-z]+) ?", lambda m: WORDS.get(m[1], m[1]), text)
    text = re.sub(r"\^(\d)", lambda m: m[1].translate(RAISED), text)
    text = re.sub(r"_(\d)", lambda m: m[1].translate(LOWERED), text)
    return "…" if re.search(r"[\\{}^&$]", text) or len(text) > 40 else text


def name_of(theorem: nodes.Element) -> str:
    """Return the name of a theorem, its formulas as text."""
    title = theorem.next_node(nodes.title).children
    said = (plain(n.astext()) if isinstance(n, nodes.math) else n.astext() for n in title)
    return "".join(said).strip().removeprefix("(").removesuffix(")").replace("’", "'")


def note_names(app: Sphinx, doctree: nodes.document) -> None:
    """Note the theorems of a page with a name; the first part of a long name finds them, too."""
    found = app.env.metadata[app.env.docname]["names"] = []
    for theorem in filter(is_theorem, doctree.findall(nodes.Admonition)):
        name, label = name_of(theorem), theorem.get("label")
        if name and label:
            first = re.split("[,:]", name)[0]
            found += [(words, label) for words in dict.fromkeys((name, first))]


def add_names(app: Sphinx) -> list:
    """Give names, and index entries, to the search: it forgets those of pages not written again."""
    indexer = getattr(app.builder, "indexer", None)
    if indexer is None:
        return []
    for docname in sorted(app.env.found_docs):
        entries = app.env.get_domain("index").entries.get(docname, [])
        indexer._index_entries[docname] = sorted(
            (word, anchor or "", main)
            for kind, words, anchor, main, _ in entries
            if kind == "single"
            for word in split_index_msg(kind, words)
        )
        names = app.env.metadata[docname]["names"]
        named = {label for _, label in names}  # Sphinx has their titles in brackets, with TeX
        titles = [
            (t, place) for t, place in indexer._all_titles.get(docname, []) if place not in named
        ]
        indexer._all_titles[docname] = titles + names
    return []


def describe_in_words(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Let the description of a written page hold neither TeX nor the time that it takes."""
    if doctree is None:
        return
    for time in list(doctree.findall(nodes.paragraph)):
        if "reading-time" in time["classes"]:
            time.parent.remove(time)
    for formula in [*doctree.findall(nodes.math), *doctree.findall(nodes.math_block)]:
        formula.parent.replace(formula, nodes.Text(plain(formula.astext())))


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", note_names)
    app.connect("html-collect-pages", add_names)
    # before sphinxext.opengraph describes the page
    app.connect("html-page-context", describe_in_words, priority=400)
