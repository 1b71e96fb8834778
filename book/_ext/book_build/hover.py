"""What a reference shows when it is hovered: one small script a page, loaded by the first reader who asks.

A page opened from a disk may not fetch files, but it may load scripts. So the build writes, for every
page that others refer to, ``_static/previews/PAGE.js``, which hands its theorems, equations, figures and
terms to ``hover.js``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath

from bs4 import BeautifulSoup, Tag
from sphinx.application import Sphinx

# As in hover.js.
KINDS = "div.proof, div.exercise, div.math, figure, div.citation, div.claim, dl.glossary > dt"


def parts(element: Tag) -> list[Tag]:
    """Return what belongs to an element: a term comes with its definition."""
    definition = element.find_next_sibling("dd") if element.name == "dt" else None
    return [element, definition] if definition else [element]


def snippet(element: Tag, folder: PurePosixPath) -> str:
    """Return an element as HTML without ids and links, its pictures named from the book's root."""
    copy = BeautifulSoup("".join(str(part) for part in parts(element)), "html.parser")
    for junk in copy.select("a.headerlink, .copybtn, details, script"):
        junk.decompose()
    for tag in copy.find_all(True):
        tag.attrs.pop("id", None)
        if tag.name == "img":
            tag["src"] = "ROOT/" + normal(folder / tag["src"])
            tag.attrs.pop("loading", None)
        if tag.name == "a":
            tag.name, tag.attrs = "span", {}
    return re.sub(r"\n\s*\n", "\n", str(copy)).strip()


def normal(path: PurePosixPath) -> str:
    """Return a path without ``..``."""
    kept: list[str] = []
    for part in path.parts:
        kept = kept[:-1] if part == ".." else [*kept, part]
    return "/".join(kept)


def linked(pages: dict[str, str]) -> dict[str, set[str]]:
    """Return the ids on each page to which another page refers."""
    wanted: dict[str, set[str]] = {}
    for docname, html in pages.items():
        folder = PurePosixPath(docname).parent
        article = html[html.find("<article") : html.find("</article>")]
        for href in re.findall(r'<a class="[^"]*\binternal\b[^"]*" href="([^"]+#[^"]+)"', article):
            page, _, anchor = href.partition("#")
            target = normal(folder / page).removesuffix(".html")
            if page and target in pages:
                wanted.setdefault(target, set()).add(anchor)
    return wanted


def previews(html: str, anchors: set[str], docname: str) -> dict[str, str]:
    """Return the snippets of one page by id."""
    page = BeautifulSoup(html, "html.parser")
    found = [(e, e.get("id")) for e in page.select(KINDS)]
    return {name: snippet(e, PurePosixPath(docname).parent) for e, name in found if name in anchors}


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
