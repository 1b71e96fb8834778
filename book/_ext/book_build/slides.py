"""A deck of slides from the book's own figures: ``slides.html`` beside the pages, after a build.

``book/slides.toml`` names the figures and says what to say with each. Pictures, light and dark, and
captions are those of the built pages, so a slide never differs from the page it leads to. Addresses
on the deck are those of a page in ``notebooks``.
"""

import html
import posixpath
import re
import tomllib
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from jinja2 import Environment, FileSystemLoader
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from .printed import TEMPLATES, text_of
from .typeset import head

SOURCE = "book/slides.toml"
DECK = "slides.html"


def decoded(part: Tag, docname: str) -> str:
    """Return a part of a page as HTML, for a page beside it."""
    for image in part.find_all("img"):
        image.attrs.pop("loading", None)
    for link in part.select("a[href^='#']"):
        link["href"] = posixpath.basename(docname) + ".html" + link["href"]
    return part.decode_contents()


def slide(entry: dict[str, str], site: Path, docname: str) -> dict[str, str]:
    page = BeautifulSoup((site / f"{docname}.html").read_text(encoding="utf8"), "lxml")
    figure = page.find(id=entry["figure"])
    caption = figure.find(class_="caption-text")
    box = page.new_tag("div")
    box.extend(figure.find_all("img", class_=["only-light", "only-dark"]))
    for anchor in caption.find_all(class_="headerlink"):
        anchor.decompose()
    return {
        **entry,
        "pictures": decoded(box, docname),
        "caption": decoded(caption, docname),
        "page": re.sub(r"^[A-Z\d]+\. |#$", "", text_of(page.article.find("h1").decode_contents())),
        "number": figure.find(class_="caption-number").get_text().strip(),
        "address": f"{posixpath.basename(docname)}.html#{entry['figure']}",
    }


def finish(app: Sphinx) -> None:
    """Write the deck beside the pages."""
    source, site = Path(app.srcdir) / SOURCE, Path(app.outdir)
    if not source.exists():
        return
    entries = tomllib.loads(source.read_text(encoding="utf8"))["slide"]
    labels = app.env.get_domain("std").anonlabels
    missing = [entry["figure"] for entry in entries if entry["figure"] not in labels]
    if missing:
        raise ExtensionError(f"{SOURCE}: no page has the figures {missing}")
    pages = [labels[entry["figure"]][0] for entry in entries]
    slides = [slide(entry, site, page) for entry, page in zip(entries, pages, strict=True)]
    page = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True).get_template(DECK)
    formulas = head(site, pages, "../_static")
    text = page.render(slides=slides, book=html.unescape(app.config.html_title), formulas=formulas)
    (site / DECK).write_text(text, encoding="utf8")
