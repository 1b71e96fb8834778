"""What a reference shows when it is hovered: one small script for each page, loaded on first use.

A page opened from a disk may not fetch files, but it may load scripts. So the build writes, for every
page that others refer to, ``_static/previews/PAGE.js``, which hands its theorems, equations, figures and
terms to ``hover.js``.
"""

from __future__ import annotations

import json
import posixpath
import re
from copy import deepcopy
from pathlib import Path

from lxml import etree
from lxml.html import HtmlElement, fromstring, tostring
from sphinx.application import Sphinx

# As in hover.js: what can be shown.
BOXES = {"proof", "exercise", "math", "citation", "claim"}
JUNK = {"headerlink", "copybtn", "figure-files"}


def classes(element: HtmlElement) -> set[str]:
    """Return the classes of an element."""
    return set((element.get("class") or "").split())


def parts(element: HtmlElement) -> list[HtmlElement]:
    """Return what is shown: a term with its definition, a claim with its theorem, or nothing."""
    if element.tag == "dt" and "glossary" in classes(element.getparent()):
        return [element, element.getnext()]
    if "claim" in classes(element) and "proof" in classes(element.getparent()):
        return [element.getparent()]
    shown = element.tag == "figure" or (element.tag == "div" and classes(element) & BOXES)
    return [element] if shown else []


def snippet(elements: list[HtmlElement], folder: str) -> str:
    """Return elements as HTML without ids and links, their pictures named from the book's root."""
    copies = [deepcopy(element) for element in elements]
    for tag in [tag for part in copies for tag in part.iter(etree.Element)]:
        tag.attrib.pop("id", None)
        if tag.tag in ("details", "script") or classes(tag) & JUNK:
            tag.drop_tree()
        elif tag.tag == "img":
            tag.set("src", "ROOT/" + posixpath.normpath(posixpath.join(folder, tag.get("src"))))
            tag.attrib.pop("loading", None)
        elif tag.tag == "a":
            tag.tag = "span"
            tag.attrib.clear()
    text = "".join(tostring(part, encoding="unicode", with_tail=False) for part in copies)
    return re.sub(r"\n\s*\n", "\n", text).strip()


def article_of(html: str) -> str:
    """Return the part of a page that is its own."""
    return html[html.find("<article") : html.find("</article>")]


def linked(pages: dict[str, str]) -> dict[str, set[str]]:
    """Return the ids on each page to which another page refers."""
    wanted: dict[str, set[str]] = {}
    for docname, html in pages.items():
        folder = posixpath.dirname(docname)
        pattern = r'<a class="[^"]*\binternal\b[^"]*" href="([^"]+#[^"]+)"'
        for href in re.findall(pattern, article_of(html)):
            page, _, anchor = href.partition("#")
            target = posixpath.normpath(posixpath.join(folder, page)).removesuffix(".html")
            if page and target in pages:
                wanted.setdefault(target, set()).add(anchor)
    return wanted


def previews(html: str, anchors: set[str], docname: str) -> dict[str, str]:
    """Return the snippets of one page by id."""
    article = fromstring(article_of(html))
    found = {name: article.get_element_by_id(name, None) for name in sorted(anchors)}
    shown = {name: parts(element) for name, element in found.items() if element is not None}
    folder = posixpath.dirname(docname)
    return {name: snippet(elements, folder) for name, elements in shown.items() if elements}


def write_previews(app: Sphinx, exception) -> None:
    """Write the scripts beside the pages."""
    if exception is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    paths = {docname: out / f"{docname}.html" for docname in sorted(app.env.all_docs)}
    pages = {
        docname: path.read_text(encoding="utf8") for docname, path in paths.items() if path.exists()
    }
    folder = out / "_static" / "previews"
    folder.mkdir(parents=True, exist_ok=True)
    for docname, anchors in sorted(linked(pages).items()):
        found = previews(pages[docname], anchors, docname)
        if found:
            text = json.dumps(found, ensure_ascii=False, sort_keys=True).replace("</", "<\\/")
            name = docname.replace("/", "-")
            (folder / f"{name}.js").write_text(
                f"bookPreviews({json.dumps(docname)}, {text});\n", encoding="utf8"
            )


def setup(app: Sphinx) -> None:
    """Register the hook, after every page is written."""
    app.connect("build-finished", write_previews, priority=850)
