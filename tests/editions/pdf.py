"""Read a PDF and list what is wrong with it."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pypdf
from pypdf.generic import ArrayObject, IndirectObject

RAW = re.compile(
    r"\?\?|Math input error|Math Processing Error|\{(?:prf:|glue:|cite:|numref|eq)\w*\}`"
)
LEAST = 20  # characters on a page that has something on it
A4 = (595, 842)


class Book:
    """A PDF, read once."""

    def __init__(self, path: Path):
        self.path = path
        self.reader = pypdf.PdfReader(path)
        self.texts = [
            unicodedata.normalize("NFKC", page.extract_text()) for page in self.reader.pages
        ]
        self.outline = list(self._walk(self.reader.outline, 0))

    def _walk(self, items, depth):
        for item in items:
            if isinstance(item, list):
                yield from self._walk(item, depth + 1)
            else:
                yield (
                    depth,
                    " ".join(str(item.title).split()),
                    self.reader.get_destination_page_number(item) + 1,
                )


def check_fonts(book: Book) -> list[str]:
    """Every font is inside the file."""
    missing = set()
    for page in book.reader.pages:
        for font in _fonts(page.get("/Resources"), 0):
            inside = [font, *(f.get_object() for f in font.get("/DescendantFonts", []))]
            drawn = font.get("/Subtype") == "/Type3"
            files = [
                f
                for one in inside
                for f in one.get("/FontDescriptor", {})
                if f.startswith("/FontFile")
            ]
            if not drawn and not files:
                missing.add(str(font.get("/BaseFont")))
    return [f"font {name} is not embedded" for name in sorted(missing)]


def _fonts(resources, depth: int):
    if resources is None or depth > 3:
        return
    resources = resources.get_object()
    for font in resources.get("/Font", {}).values():
        yield font.get_object()
    for thing in resources.get("/XObject", {}).values():
        if thing.get_object().get("/Subtype") == "/Form":
            yield from _fonts(thing.get_object().get("/Resources"), depth + 1)


def links(book: Book) -> tuple[list, list[str]]:
    """Return the targets inside the file, and the addresses outside."""
    inside, outside = [], []
    for page in book.reader.pages:
        for note in page.get("/Annots", []):
            note = note.get_object()
            if note.get("/Subtype") != "/Link":
                continue
            action = note.get("/A", {})
            if "/URI" in action:
                outside.append(str(action["/URI"]))
            else:
                inside.append(note.get("/Dest", action.get("/D")))
    return inside, outside


def check_links(book: Book) -> list[str]:
    """Links inside lead to a place in the file; those outside to the network, not to a folder."""
    inside, outside = links(book)
    named = book.reader.named_destinations
    pages = {page.indirect_reference.idnum for page in book.reader.pages}
    faults = [
        f"leads to a file: {address}"
        for address in outside
        if not re.match(r"https?://|mailto:", address)
    ]
    for target in inside:
        if isinstance(target, IndirectObject):
            target = target.get_object()
        if isinstance(target, ArrayObject):
            if getattr(target[0], "idnum", None) not in pages:
                faults.append(f"leads to no page: {target}")
        elif str(target) not in named and str(target).lstrip("/") not in named:
            faults.append(f"leads nowhere: {target}")
    return faults


def check_text(book: Book) -> list[str]:
    """No page is empty; nothing is left of TeX, of roles, of references."""
    faults = []
    for number, (page, text) in enumerate(zip(book.reader.pages, book.texts, strict=True), 1):
        words = re.sub(r"^\s*\d+\s*$", "", text, flags=re.MULTILINE)
        if len("".join(words.split())) < LEAST:
            faults.append(f"page {number} is empty")
        if abs(page.mediabox.width - A4[0]) > 1 or abs(page.mediabox.height - A4[1]) > 1:
            faults.append(f"page {number} is {page.mediabox.width} by {page.mediabox.height}")
    return faults


def leftovers(text: str) -> list[str]:
    """Return what looks like a reference or a formula that was not resolved."""
    return RAW.findall(text)
