"""A search that finds theorems and terms by name, quotes sentences, and works from a disk.

Sphinx finds pages by their words. Beside its index the build writes ``_static/passages.js``: the places of every page
(sections, theorems, terms) with their sentences. ``search.js`` looks for names there and quotes from there; Sphinx's
own script would fetch each page, which a browser refuses to do from a disk, and quote code and TeX.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path

from lxml import etree
from lxml.html import HtmlElement, fromstring
from sphinx.application import Sphinx
from sphinx.util.index_entries import split_index_msg

from .hover import article_of, classes

SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z“])")
TEX = re.compile(r"\\[(\[](.*?)\\[)\]]", re.DOTALL)
NOT_QUOTED = {"cell_input", "highlight", "page-execution", "topic", "take-away", "citation", "live"}
TEX_WORDS = {
    r"\le": "≤", r"\ge": "≥", r"\cdot": "·", r"\times": "×", r"\to": "→", r"\in": "∈", r"\infty": "∞",
    r"\sqrt": "√", r"\lVert": "‖", r"\rVert": "‖", r"\|": "‖", r"\dots": "…", r"\approx": "≈",
    r"\alpha": "α", r"\beta": "β", r"\gamma": "γ", r"\delta": "δ", r"\kappa": "κ", r"\lambda": "λ",
    r"\mu": "μ", r"\nu": "ν", r"\sigma": "σ", r"\tau": "τ", r"\theta": "θ", r"\Gamma": "Γ",
    r"\Lip": "Lip", r"\R": "ℝ", r"\E": "𝔼",
}  # fmt: skip
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def keep_index_entries(app: Sphinx) -> list:
    """Give the search the entries of pages that were not written again: Sphinx forgets them."""
    indexer = getattr(app.builder, "indexer", None)
    if indexer is not None:
        for docname in sorted(set(app.env.found_docs) - set(indexer._index_entries)):
            found = {
                (word, anchor or "", main)
                for kind, words, anchor, main, _ in app.env.get_domain("index").entries.get(
                    docname, []
                )
                if kind == "single"
                for word in split_index_msg(kind, words)
            }
            indexer._index_entries[docname] = sorted(found)
    return []


def plain(tex: str) -> str:
    r"""Return a short formula as text, ``\sqrt n`` as √n; dots for one that needs typesetting."""
    text = re.sub(r"\\norm\{([^{}]*)\}", r"‖\1‖", tex.strip())
    text = re.sub(r"(\\(?:[A-Za-z]+|\|)) ?", lambda m: TEX_WORDS.get(m[1], m[1]), text)
    text = re.sub(r"\^(\d)", lambda m: m[1].translate(RAISED), text)
    text = re.sub(r"_(\d)", lambda m: m[1].translate(LOWERED), text)
    return "…" if re.search(r"[\\{}^&]", text) or len(text) > 40 else text


def words_of(element: HtmlElement) -> str:
    """Return what an element says, on one line."""
    copy = deepcopy(element)
    for part in [e for e in copy.iter(etree.Element) if classes(e) & {"headerlink", "eqno"}]:
        part.drop_tree()
    return " ".join(TEX.sub(lambda m: plain(m[1]), copy.text_content()).split())


def title_of(place: HtmlElement) -> HtmlElement | None:
    """Return the heading of a section or the title of a theorem; a term of the glossary is its own."""
    if place.tag == "dt":
        return place if "glossary" in classes(place.getparent()) else None
    if place.tag == "section" or "proof" in classes(place):
        return next(
            iter(place.xpath("./h1 | ./h2 | ./h3 | ./h4 | ./p[@class='admonition-title']")), None
        )
    return None


def is_place(element: HtmlElement) -> bool:
    """Tell whether a hit can lead to an element: a section, a theorem or a term, with a title."""
    return bool(element.get("id")) and title_of(element) is not None


def place_of(block: HtmlElement) -> HtmlElement | None:
    """Return where a block stands; the definition of a term belongs to the term."""
    for element in (block, *block.iterancestors()):
        if element.tag == "dd" and "glossary" in classes(element.getparent()):
            return element.getprevious()
        if is_place(element):
            return element
    return None


def is_quoted(block: HtmlElement) -> bool:
    """Tell whether a block is prose, and no block within it is."""
    around = [block, *block.iterancestors()]
    code = any(e.tag in ("pre", "table") or classes(e) & NOT_QUOTED for e in around)
    return not code and "admonition-title" not in classes(block) and not block.xpath(".//p")


def passages(article: HtmlElement) -> list[list]:
    """List ``[id, name, whether the name is searched, sentences]`` for every place of a page."""
    found: dict[str, list] = {}
    for place in filter(is_place, article.iter("section", "div", "dt")):
        named = place.tag != "section"
        found[place.get("id")] = [place.get("id"), words_of(title_of(place)), int(named), []]
    for block in filter(is_quoted, article.iter("p", "li", "dd", "figcaption")):
        place = place_of(block)
        if place is not None:
            found[place.get("id")][3] += SENTENCE_END.split(words_of(block))
    return list(found.values())


def write_passages(app: Sphinx, exception) -> None:
    """Write the places of all pages into one script, which the page of the search loads."""
    if exception is not None or app.builder.name != "html":
        return
    out, book = Path(app.outdir), {}
    for docname in sorted(app.env.found_docs):
        page = out / f"{docname}.html"
        article = article_of(page.read_text(encoding="utf8")) if page.exists() else ""
        if article:
            book[docname] = passages(fromstring(article))
    text = json.dumps(book, ensure_ascii=False, separators=(",", ":"))
    (out / "_static" / "passages.js").write_text(f"const bookPassages = {text};\n", encoding="utf8")


def load_scripts(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Load the passages and the script on the page of the search only."""
    if pagename == "search":
        app.add_js_file("passages.js")
        app.add_js_file("search.js", loading_method="defer")


def setup(app: Sphinx) -> None:
    """Register the hooks; passages are taken from written pages."""
    app.connect("html-collect-pages", keep_index_entries)
    app.connect("html-page-context", load_scripts)
    app.connect("build-finished", write_passages, priority=860)
