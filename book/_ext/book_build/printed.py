"""The whole book as one PDF: the built pages in one document, printed by a headless Chromium.

The theme stays behind: the articles are put one after the other with a style sheet for paper, ids
and links are made unique so that every reference leads to a page of the same file, folded proofs
and solutions are open, and code that only draws or checks is left out. The browser prints the
whole once: the page numbers that this shows go into the table of contents, which is printed again
without the rest and takes the place of the first.
"""

import faulthandler
import os
import posixpath
import re
import shutil
import tomllib
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from urllib.parse import quote, unquote, urlparse

import pikepdf
import yaml
from bs4 import BeautifulSoup, Tag
from jinja2 import Environment, FileSystemLoader

from .hover import article_of
from .pages import published
from .typeset import head

TEMPLATES = Path(__file__).parent / "templates"
LEFT_OUT = (
    "script, style, template, canvas, iframe, button, a.headerlink, .figure-files, img.only-dark, "
    "nav.place, .d-print-none, .no-print, .toggle-button, .live, .board-filter, .take-away, .page-execution, "
    "summary svg, details.hide.above-input"  # code that only sets up or draws
)
LONGEST = 20 * 60  # seconds a browser may take to print
SCALE = 0.9  # of paper to screen
COLUMN, PAGE = round(627 / SCALE), round(948 / SCALE)  # of an A4 page, in pixels of the screen
OPTIONS = {"prefer_css_page_size": True, "print_background": True, "tagged": True}


def contents(root: Path) -> list[tuple[str, list[str]]]:
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf8"))
    parts = [(part["caption"], [c["file"] for c in part["chapters"]]) for part in toc["parts"]]
    return [("", [toc["root"]]), *parts]


def anchor(docname: str, fragment: str = "") -> str:
    page = "p-" + re.sub(r"[^a-z0-9]+", "-", docname.lower()).strip("-")
    return f"{page}--{fragment}" if fragment else page


class Reader:
    """Reads built pages; the printed document lies in a folder beside that of the pages."""

    def __init__(self, site: Path, docnames: list[str], address: str):
        self.site, self.docnames, self.address = site, docnames, address

    def chapter(self, docname: str, part: str) -> dict:
        """Return what the template prints of a page, without what only a screen needs."""
        page = article_of((self.site / f"{docname}.html").read_text(encoding="utf8"))
        article = BeautifulSoup(page.replace("✅", "✓"), "lxml").article
        strip(article)
        self.redirect(article, docname)
        for level in reversed(range(1, 6)):  # parts are the first level
            for heading in article.find_all(f"h{level}"):
                heading.name = f"h{level + 1}"
        title = article.find("h2").decode_contents()
        return {
            "name": anchor(docname),
            "part": part,
            "title": without_links(title),
            "running": text_of(title).replace("\\", "").replace('"', "'"),
            "sections": sections_of(article),
            "body": article.decode_contents(),
        }

    def redirect(self, article: Tag, docname: str) -> None:
        """Let ids, pictures and links be those of the document."""
        folder = posixpath.dirname(docname)
        for node in article.find_all(id=True):
            node["id"] = anchor(docname, node["id"])
        for image in article.find_all("img"):
            if not image["src"].startswith("data:"):
                path = posixpath.normpath(posixpath.join(folder, unquote(image["src"])))
                image["src"] = quote(f"../{self.site.name}/{path}")
            image.attrs.pop("loading", None)
        for link in article.find_all("a", href=True):
            link["href"] = self.target(link["href"], docname)
            link.attrs.pop("title", None)

    def target(self, href: str, docname: str) -> str:
        """Return where a link leads: in the document, or to the published site."""
        url = urlparse(href)
        if url.scheme or url.netloc:
            return href
        if not url.path:
            return f"#{anchor(docname, unquote(url.fragment))}"
        path = posixpath.normpath(posixpath.join(posixpath.dirname(docname), unquote(url.path)))
        page = path.removesuffix(".html")
        if path.endswith(".html") and page in self.docnames:
            return f"#{anchor(page, unquote(url.fragment))}"
        return f"{self.address}{quote(path)}" + (f"#{url.fragment}" if url.fragment else "")


def strip(article: Tag) -> None:
    for plain in article.find_all("noscript"):  # what stands for a live figure
        plain.unwrap()
    for node in article.select(LEFT_OUT):
        node.decompose()
    for check in article.select("details.check"):  # of a check, what it found
        line = check.summary.extract()
        line.name, line.attrs = "p", {"class": "check"}
        check.replace_with(line)
    for cell in article.select("div.cell"):
        if not cell.get_text(strip=True) and not cell.find(["img", "svg", "table"]):
            cell.decompose()
    for fold in article.find_all("details"):
        if fold.summary is not None:
            fold.summary.attrs, fold.summary.name = {"class": "fold-title"}, "p"
        fold.attrs = {"class": "fold", **{k: v for k, v in fold.attrs.items() if k == "id"}}
        fold.name = "div"


def text_of(markup: str) -> str:
    soup = BeautifulSoup(markup, "html.parser")
    for formula in soup.find_all("mjx-container"):
        formula.replace_with(formula["aria-label"])
    return " ".join(soup.get_text().split())


def without_links(title: str) -> str:
    """Return a title for the table of contents, where it is a link itself."""
    return re.sub(r"</?a\b[^>]*>|\sid=\"[^\"]*\"", "", title)


def sections_of(article: Tag) -> list[tuple[str, str]]:
    """Return id and title of the sections of a page, not of headings in a theorem."""
    headings = [h for h in article.find_all("h3") if h.find_parent(class_="admonition") is None]
    owners = [(h.find_parent("section"), without_links(h.decode_contents())) for h in headings]
    return [(owner["id"], title) for owner, title in owners if owner and owner.get("id")]


def document(root: Path, site: Path) -> str:
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf8"))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf8"))["project"]
    repository, today = config["repository"]["url"], date.today()
    parts = contents(root)
    docnames = [name for _, names in parts for name in names]
    reader = Reader(site, docnames, published(repository))
    chapters = [
        reader.chapter(docname, "" if place else part)
        for part, names in parts
        for place, docname in enumerate(names)
    ]
    template = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    return template.get_template("printed.html").render(
        title=config["title"],
        author=config["author"],
        static=f"../{site.name}/_static",
        style=(TEMPLATES.parent / "printed.css").read_text(encoding="utf8"),
        formulas=head(site, docnames, f"../{site.name}/_static"),
        version=project["version"],
        today=f"{today.day} {today:%B %Y}",
        repository=repository,
        chapters=chapters,
    )


def outline_pages(path: Path) -> list[int]:
    """Return the pages of the outline of a PDF, counted from one, in order."""
    with pikepdf.open(path) as pdf, pdf.open_outline() as outline:
        numbers = {page.objgen: number for number, page in enumerate(pdf.pages, 1)}

        def walk(items) -> list[int]:
            return [
                number
                for item in items
                for number in (numbers[item.destination[0].objgen], *walk(item.children))
            ]

        return walk(outline.root)


def browser_path() -> str | None:
    return os.getenv("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def launched():
    """Start a browser that may read files; the process ends where it stands still."""
    from playwright.sync_api import sync_playwright

    flags = "--no-sandbox --disable-gpu --allow-file-access-from-files --disable-dev-shm-usage"
    faulthandler.dump_traceback_later(LONGEST, exit=True)  # not every call to a browser has a limit
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=flags.split())
        yield browser
        browser.close()
    faulthandler.cancel_dump_traceback_later()


def opened(browser, source: Path, width: int, height: int):
    """Open a document as on paper, typeset."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    page.set_default_timeout(300_000)
    page.emulate_media(media="print")
    page.goto(source.as_uri(), wait_until="load")
    page.add_script_tag(path=TEMPLATES.parent / "printed.js")
    page.evaluate("bookPrint.ready()")
    return page


def print_document(browser, source: Path, target: Path) -> None:
    """Typeset and print; raise if a formula has an error or something is wider than the page."""
    page = opened(browser, source, COLUMN, 950)
    page.evaluate(f"bookPrint.fit({PAGE})")
    broken = "[...document.images].filter((e) => !e.naturalWidth).map((e) => e.src)"
    problems = page.evaluate(broken) + page.evaluate(f"bookPrint.faults({PAGE})")
    if problems:
        raise RuntimeError("the book cannot be printed:\n" + "\n".join(p[:200] for p in problems))
    sections = page.evaluate("bookPrint.sections()")
    page.pdf(path=target, scale=SCALE, outline=True, **OPTIONS)
    numbers = dict(zip(sections, outline_pages(target), strict=True))
    missing = page.evaluate("(numbers) => bookPrint.number(numbers)", numbers)
    if missing:
        raise RuntimeError(f"sections without a page: {missing}")
    contents = target.with_suffix(".contents.pdf")
    page.pdf(path=contents, scale=SCALE, outline=True, **OPTIONS)
    page.close()
    replace_first_pages(target, contents)


def print_deck(root: Path, site: Path, target: Path) -> None:
    """Print the slides, one on each page; raise if one is taller than its page."""
    with launched() as browser:
        page = opened(browser, site / "slides.html", 1280, 720)
        tall = page.evaluate("bookPrint.tallSlides()")
        if tall:
            raise RuntimeError(f"slides that do not fit their page: {', '.join(tall)}")
        page.pdf(path=target, **OPTIONS)


def replace_first_pages(path: Path, replacement: Path) -> None:
    """Put what the pages of one PDF show in the place of what the first pages of another show.

    Links, outline and tags stay: they are right as long as both show the same pieces of text.
    """
    with pikepdf.open(path, allow_overwriting_input=True) as pdf, pikepdf.open(replacement) as new:
        for old, page in zip(pdf.pages[: len(new.pages)], new.pages, strict=True):
            if marks(old) != marks(page):
                raise RuntimeError("the table of contents moved when its numbers were filled in")
            for key in ("/Contents", "/Resources"):
                old[key] = pdf.copy_foreign(new.make_indirect(page[key]))
        pdf.save(path)


def marks(page: pikepdf.Page) -> list[bytes]:
    """Return the numbers by which the tags of a PDF refer to the pieces of text on a page."""
    page.contents_coalesce()
    return re.findall(rb"/MCID (\d+)", page.Contents.read_bytes())


def finish(path: Path, author: str) -> None:
    """Write the author into the file, and pack its many little objects."""
    with pikepdf.open(path, allow_overwriting_input=True) as pdf:
        pdf.docinfo["/Author"] = author
        pdf.save(path, object_stream_mode=pikepdf.ObjectStreamMode.generate)


def print_book(root: Path, site: Path, target: Path) -> None:
    source = site.parent / "print" / "book.html"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(document(root, site), encoding="utf8")
    with launched() as browser:
        print_document(browser, source, target)
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf8"))
    finish(target, config["author"])
