"""A deck of slides from the book's own figures: ``slides.html`` beside the pages, written after a build.

``book/slides.toml`` names the figures and says what to say with each. Pictures, light and dark, and captions are
those of the built pages, so a slide never differs from the page it leads to.
"""

from __future__ import annotations

import html
import posixpath
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from jinja2 import Environment, FileSystemLoader
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from .printed import mathjax_settings, text_of

SOURCE = "book/slides.toml"
DECK = "slides.html"
TEMPLATES = Path(__file__).parent / "templates"


@dataclass
class Slide:
    """One figure with its words; ``pictures`` and ``caption`` are HTML."""

    title: str
    say: str
    pictures: str
    caption: str
    page: str
    number: str
    address: str


def read_slides(root: Path) -> list[dict[str, str]]:
    """Return the figures, titles and words of the deck."""
    return tomllib.loads((root / SOURCE).read_text(encoding="utf8"))["slide"]


def from_site_root(address: str, docname: str) -> str:
    """Return an address on a page as it is written beside ``index.html``."""
    if address.startswith(("data:", "http:", "https:")):
        return address
    path, hash_sign, fragment = address.partition("#")
    path = (
        posixpath.normpath(posixpath.join(posixpath.dirname(docname), path))
        if path
        else f"{docname}.html"
    )
    return path + hash_sign + fragment


def rebased(part: Tag, docname: str) -> str:
    """Return a part of a page as HTML whose addresses start at the root of the site."""
    for image in part.find_all("img"):
        image["src"] = from_site_root(image["src"], docname)
        image.attrs.pop("loading", None)
    for link in part.find_all("a", href=True):
        link["href"] = from_site_root(link["href"], docname)
    return part.decode_contents()


def slide(entry: dict[str, str], site: Path, docname: str) -> Slide:
    """Return one slide, read from the built page that has its figure."""
    page = BeautifulSoup((site / f"{docname}.html").read_text(encoding="utf8"), "lxml")
    figure = page.find(id=entry["figure"])
    pictures = figure.find_all("img", class_=["only-light", "only-dark"])
    number, caption = figure.find(class_="caption-number"), figure.find(class_="caption-text")
    box = page.new_tag("div")
    box.extend(pictures)
    for anchor in caption.find_all(class_="headerlink"):
        anchor.decompose()
    heading = page.article.find("h1")
    return Slide(
        title=entry["title"],
        say=entry["say"],
        pictures=rebased(box, docname),
        caption=rebased(caption, docname),
        page=re.sub(r"^[\d.]+ |#$", "", text_of(heading.decode_contents())),
        number=number.get_text().strip(),
        address=f"{docname}.html#{entry['figure']}",
    )


def page_of(app: Sphinx, figure: str) -> str:
    """Return the page that has a figure."""
    labels = app.env.get_domain("std").anonlabels
    if figure not in labels:
        raise ExtensionError(f"{SOURCE}: no page has the figure {figure!r}")
    return labels[figure][0]


def write_deck(app: Sphinx, exception) -> None:
    """Write the deck beside the pages."""
    root, site = Path(app.srcdir), Path(app.outdir)
    if exception is not None or app.builder.name != "html" or not (root / SOURCE).exists():
        return
    entries = read_slides(root)
    pages = [page_of(app, entry["figure"]) for entry in entries]
    slides = [slide(entry, site, page) for entry, page in zip(entries, pages, strict=True)]
    page = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True).get_template(DECK)
    settings = mathjax_settings(site, pages)
    text = page.render(slides=slides, book=html.unescape(app.config.html_title), mathjax=settings)
    (site / DECK).write_text(text, encoding="utf8")


def setup(app: Sphinx) -> None:
    """Register the hook: after the pages, before what is made of the whole site."""
    app.connect("build-finished", write_deck, priority=900)
