"""Read a PDF and list what is wrong with it."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pikepdf
import pypdfium2
from pikepdf import Array, Dictionary, Name

RAW = re.compile(
    r"\?\?|Math (?:input|Processing) error|\{(?:prf:|glue:|cite:|numref|eq)\w*\}`", re.I
)
LEAST = 60  # characters on a page that has something on it
A4 = (595, 842)


class Book:
    """A PDF, read once; the outline as ``(depth, title, page)``."""

    def __init__(self, path: Path):
        self.path = path
        self.pdf = pikepdf.open(path)
        text = pypdfium2.PdfDocument(path)
        texts = (page.get_textpage().get_text_bounded() for page in text)
        self.texts = [unicodedata.normalize("NFKC", words) for words in texts]
        self.numbers = {page.objgen: number for number, page in enumerate(self.pdf.pages, 1)}
        with self.pdf.open_outline() as outline:
            self.outline = list(self._walk(outline.root, 0))

    def _walk(self, items, depth: int):
        for item in items:
            yield depth, " ".join(item.title.split()), self.numbers[item.destination[0].objgen]
            yield from self._walk(item.children, depth + 1)


def check_fonts(book: Book) -> list[str]:
    """Every font is inside the file, or drawn."""
    missing = set()
    for font in book.pdf.objects:
        if not isinstance(font, Dictionary) or font.get("/Type") != Name.Font:
            continue
        inside = any(key.startswith("/FontFile") for key in font.get("/FontDescriptor", {}).keys())
        if font.Subtype not in (Name.Type0, Name.Type3) and not inside:  # the parts of Type0 follow
            missing.add(str(font.get("/BaseFont")))
    return [f"font {name} is not embedded" for name in sorted(missing)]


def links(book: Book) -> tuple[list, list[str]]:
    """Return the targets inside the file, and the addresses outside."""
    inside, outside = [], []
    for page in book.pdf.pages:
        for note in page.get("/Annots", []):
            action = note.get("/A", Dictionary())
            if note.Subtype == Name.Link and "/URI" in action:
                outside.append(str(action.URI))
            elif note.Subtype == Name.Link:
                inside.append(note.get("/Dest", action.get("/D")))
    return inside, outside


def check_links(book: Book) -> list[str]:
    """Links inside lead to a place in the file; those outside to the network, not to a folder."""
    inside, outside = links(book)
    named = {str(name) for name in book.pdf.Root.get("/Dests", Dictionary()).keys()}
    abroad = re.compile(r"https?://|mailto:")
    faults = [f"leads to a file: {link}" for link in outside if not abroad.match(link)]
    for target in inside:
        if isinstance(target, Array):
            if target[0].objgen not in book.numbers:
                faults.append(f"leads to no page: {target}")
        elif str(target) not in named:
            faults.append(f"leads nowhere: {target}")
    return faults


def check_text(book: Book) -> list[str]:
    """No page has but a line on it; all have the size of the paper."""
    faults = []
    for number, (page, text) in enumerate(zip(book.pdf.pages, book.texts, strict=True), 1):
        words = re.sub(r"^\s*\d+\s*$", "", text, flags=re.MULTILINE)
        if len("".join(words.split())) < LEAST:
            faults.append(f"page {number} is all but empty")
        width, height = (float(x) for x in page.mediabox[2:])
        if abs(width - A4[0]) > 1 or abs(height - A4[1]) > 1:
            faults.append(f"page {number} is {width:g} by {height:g}")
    return faults


def leftovers(text: str) -> list[str]:
    """Return what looks like a reference or a formula that was not resolved."""
    return RAW.findall(text)
