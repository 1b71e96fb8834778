"""What a reference shows when it is hovered: one script for each page, loaded on first use.

A page opened from a disk may not fetch files, but it may load scripts. So the build writes, for
every page to which others refer, ``_static/previews/PAGE.js``, which hands its theorems, equations,
figures and terms to ``hover.js``.
"""

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
    """Return elements as HTML without ids and links, pictures named from the book's root."""
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
    return html[html.find("<article") : html.find("</article>")]


def linked(articles: dict[str, str]) -> dict[str, set[str]]:
    """Return the ids on each page to which another page refers."""
    wanted: dict[str, set[str]] = {}
    for docname, html in articles.items():
        folder = posixpath.dirname(docname)
        pattern = r'<a class="[^"]*\binternal\b[^"]*" href="([^"#]+)#([^"]+)"'
        for page, anchor in re.findall(pattern, html):
            target = posixpath.normpath(posixpath.join(folder, page)).removesuffix(".html")
            if target in articles:
                wanted.setdefault(target, set()).add(anchor)
    return wanted


def finish(app: Sphinx) -> None:
    """Write the scripts beside the pages."""
    out = Path(app.outdir)
    articles = {
        docname: article_of((out / f"{docname}.html").read_text(encoding="utf8"))
        for docname in sorted(app.env.all_docs)
    }
    folder = out / "_static" / "previews"
    folder.mkdir(parents=True, exist_ok=True)
    for docname, anchors in linked(articles).items():
        tree, found = fromstring(articles[docname]), {}
        for name in anchors:
            element = tree.get_element_by_id(name, None)
            if element is not None and parts(element):
                found[name] = snippet(parts(element), posixpath.dirname(docname))
        text = json.dumps(found, ensure_ascii=False, sort_keys=True).replace("</", "<\\/")
        script = f"bookPreviews({json.dumps(docname)}, {text});\n"
        (folder / f"{docname.replace('/', '-')}.js").write_text(script, encoding="utf8")
