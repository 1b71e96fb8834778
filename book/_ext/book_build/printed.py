"""The whole book as one PDF: the built pages in one document, printed by a headless Chromium.

Made by :mod:`.editions`. The theme stays behind: the articles are put one after
the other with a style sheet for paper, ids and links are made unique so that every reference leads to
a page of the same file, folded proofs and solutions are open, and code that only draws or checks is left out.
The browser typesets the mathematics once and prints the whole once: the page numbers that this shows go into the
table of contents, which is printed again without the rest and takes the place of the first.
"""

from __future__ import annotations

import faulthandler
import html
import math
import os
import posixpath
import re
import shutil
import tomllib
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote, unquote, urlparse

import pikepdf
import yaml
from bs4 import BeautifulSoup, Tag

from .hover import article_of
from .speeds import MARK

LEFT_OUT = (
    "script, style, template, canvas, iframe, button, a.headerlink, .figure-files, img.only-dark, "
    ".d-print-none, .no-print, .toggle-button, .live, .board-filter, .take-away, .page-execution"
)
LONGEST = 20 * 60  # seconds a browser may take to print
SCALE = 0.9  # of paper to screen
COLUMN, PAGE = round(627 / SCALE), round(948 / SCALE)  # of an A4 page, in pixels of the screen
# Typeset; without the hidden MathML beside each formula, which no PDF shows and which is wider than its line.
READY = """() => MathJax.startup.promise.then(() => document.fonts.ready).then(() => {
  document.querySelectorAll('mjx-assistive-mml').forEach((e) => e.remove());
  return true;
})"""

# Wide formulas, tables and figures are made to fit the column; what is shorter than 0.4 pages is not torn.
FIT = r"""(page) => {
  const column = document.querySelector('main').clientWidth;
  const fit = (formula, need, room) => {  // MathJax has set a size already
    const own = parseFloat(formula.style.fontSize) || 100;
    if (need > room + 1) formula.style.fontSize = Math.floor(.99 * own * room / need) + '%';
  };
  document.querySelectorAll('div.math').forEach((box) => {
    const formula = box.querySelector('mjx-container'), number = box.querySelector('.eqno');
    if (!formula) return;
    const inside = formula.querySelector('mjx-math'), taken = number ? number.offsetWidth + 12 : 0;
    fit(formula, inside.getBoundingClientRect().width, box.clientWidth - taken);
  });
  document.querySelectorAll('mjx-container:not([display])').forEach((formula) => {
    const line = formula.closest('p, li, dd, td, th, figcaption, h1, h2, h3, h4') || formula.parentElement;
    fit(formula, formula.getBoundingClientRect().width, line.clientWidth);
  });
  document.querySelectorAll('main img').forEach((image) => {  // tall figures may take more of a page
    const ratio = image.naturalHeight / image.naturalWidth;
    if (ratio > 0.8) image.style.maxHeight = ratio > 1.6 ? '235mm' : '150mm';
  });
  document.querySelectorAll('main :is(td, th)').forEach((cell) => {  // numbers stay whole, digests do not
    if (/^[-−–\d.,:\s[\]]+$/.test(cell.textContent)) cell.style.whiteSpace = 'nowrap';
    if (/^\w{40,}$/.test(cell.textContent.trim())) cell.style.wordBreak = 'break-all';
  });
  document.querySelectorAll('main td code').forEach((code) => {  // a name breaks before a word
    code.innerHTML = code.innerHTML.replace(/[._(](?![^<]*>)/g, '$&<wbr>');
  });
  document.querySelectorAll('main table').forEach((table) => {
    const room = table.parentElement.clientWidth || column;
    for (let size = 100; size > 55 && table.scrollWidth > room + 1; size -= 5) table.style.fontSize = size + '%';
  });
  document.querySelectorAll('main :is(.highlight, table)').forEach((block) => {
    if (block.offsetHeight < .4 * page) block.style.breakInside = 'avoid';
  });
}"""

# What is wider or, if it cannot be torn, taller than its page after that, for the caller to refuse.
CLIPPED = """(page) => {
  const right = document.querySelector('main').getBoundingClientRect().right + 2;
  const tall = (e) => e.matches('img, svg') && e.getBoundingClientRect().height > page;
  return [...document.querySelectorAll('main :is(img, svg, table, mjx-math, pre)')].filter(
    (e) => !e.closest('mjx-assistive-mml') && (e.getBoundingClientRect().right > right || tall(e))).map(
    (e) => e.tagName.toLowerCase() + ' ' + e.textContent.trim().slice(0, 60));
}"""

# Fill in the page numbers of the table of contents, and hide all else; return what has no number.
NUMBER = """(numbers) => {
  document.querySelector('main').style.display = 'none';
  return [...document.querySelectorAll('.toc-page')].filter((e) => {
    e.textContent = numbers[e.dataset.target] ?? '?';
    return e.textContent === '?';
  }).map((e) => e.dataset.target);
}"""

# TeX that was not typeset, roles and references that were not resolved, and signs that the fonts lack,
# outside code and mathematics.
LEFT = r"""() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) {
    if (walker.currentNode.parentElement.closest('script, style, code, pre, mjx-container, dt.sig')) continue;
    const left = walker.currentNode.data.match(/\\[a-zA-Z]{2,}|\\\(|\$\$|\?\?|\{[a-z:]+\}`|\p{Emoji_Presentation}/u);
    if (left) found.push('left as it was: ' + walker.currentNode.data.trim());
  }
  return found;
}"""

ERRORS = """() => [...document.querySelectorAll('mjx-merror, [data-mjx-error]')].map((e) => e.title || e.textContent)"""


@dataclass
class Chapter:
    """One page of the book, ready to be printed."""

    docname: str
    title: str
    body: str
    sections: list[tuple[str, str]] = field(default_factory=list)  # (id, title)


def contents(root: Path) -> list[tuple[str, list[str]]]:
    """Return the parts of the book, each with the names of its pages."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf8"))
    parts = [
        (part["caption"], [c["file"] for c in part["chapters"]]) for part in toc.get("parts", [])
    ]
    loose = [c["file"] for c in toc.get("chapters", [])]
    return [("", [toc["root"]]), *([("", loose)] if loose else []), *parts]


def slug(docname: str) -> str:
    """Return the id of a page in the document."""
    return "p-" + re.sub(r"[^a-z0-9]+", "-", docname.lower()).strip("-")


def anchor(docname: str, fragment: str = "") -> str:
    """Return the id of something on a page, unique in the whole document."""
    return f"{slug(docname)}--{fragment}" if fragment else slug(docname)


class Reader:
    """Reads built pages; the folder of the printed document lies beside the folder of the pages."""

    def __init__(self, site: Path, docnames: list[str], published: str):
        self.site, self.docnames, self.published = site, set(docnames), published.rstrip("/")

    def chapter(self, docname: str) -> Chapter:
        """Return one page without what only a screen needs."""
        page = article_of((self.site / f"{docname}.html").read_text(encoding="utf8"))
        article = BeautifulSoup(page.replace("✅", "✓"), "lxml").article
        self._strip(article)
        self._unfold(article)
        self._cut(article)
        self._address(article, docname)
        self._demote(article)
        heading = article.find("h2")
        if heading is None:
            raise ValueError(f"{docname} has no title")
        sections = []
        for part in article.find_all("h3"):
            owner = part.find_parent("section")
            # not a heading inside a theorem or a solution
            if (
                owner is not None
                and owner.get("id")
                and part.find_parent(class_="admonition") is None
            ):
                sections.append((owner["id"], part.decode_contents()))
        return Chapter(docname, heading.decode_contents(), article.decode_contents(), sections)

    def _strip(self, article: Tag) -> None:
        for plain in article.find_all("noscript"):  # what stands for a live figure
            plain.unwrap()
        for node in article.select(LEFT_OUT):
            node.decompose()
        for folded in article.select("details.hide.above-input"):  # code that only sets up or draws
            folded.decompose()
        for check in article.select("details.check"):  # of a check, what it found
            line = check.summary.extract()
            line.name, line.attrs = "p", {"class": "check"}
            check.replace_with(line)
        for cell in article.select("div.cell"):
            if not cell.get_text(strip=True) and not cell.find(["img", "svg", "table"]):
                cell.decompose()

    def _unfold(self, article: Tag) -> None:
        for fold in article.find_all("details"):
            summary = fold.find("summary")
            if summary is not None:
                for icon in summary.find_all("svg"):
                    icon.decompose()
                summary.name, summary.attrs = "p", {"class": "fold-title"}
            fold.name, fold.attrs = (
                "div",
                {"class": "fold", **({"id": fold["id"]} if fold.get("id") else {})},
            )

    def _cut(self, article: Tag) -> None:
        """Cut a picture that is taller than a page into pieces, each of which begins with a chapter."""
        for picture in article.select("svg.dependencies"):
            left, _, width, height = picture["viewbox"].split()
            tops = [float(head["y"]) - 15 for head in picture.select(".chapter")]
            pieces = math.ceil(COLUMN * float(height) / float(width) / (0.9 * PAGE))
            wanted = (float(height) * k / pieces for k in range(1, pieces))
            cuts = [0.0, *(min(tops, key=lambda top: abs(top - y)) for y in wanted), float(height)]
            for top, below in pairwise(cuts):
                piece = copy(picture)
                piece["viewbox"] = f"{left} {top:g} {width} {below - top:g}"
                for node in piece.select("rect, .chapter"):
                    if not top <= float(node["y"]) < below:
                        (node.parent if node.name == "rect" else node).decompose()
                picture.insert_before(piece)
            picture.decompose()

    def _address(self, article: Tag, docname: str) -> None:
        folder = posixpath.dirname(docname)
        for node in article.find_all(id=True):
            node["id"] = anchor(docname, node["id"])
        for image in article.find_all("img"):
            if image["src"].startswith("data:"):
                continue
            path = posixpath.normpath(posixpath.join(folder, unquote(image["src"])))
            image["src"] = quote(f"../{self.site.name}/{path}")
            image.attrs.pop("loading", None)
        for link in article.find_all("a", href=True):
            link["href"] = self._target(link["href"], docname, folder)
            link.attrs.pop("title", None)

    def _target(self, href: str, docname: str, folder: str) -> str:
        url = urlparse(href)
        if url.scheme or url.netloc:
            return href
        if not url.path:
            return f"#{anchor(docname, unquote(url.fragment))}"
        path = posixpath.normpath(posixpath.join(folder, unquote(url.path)))
        page = path.removesuffix(".html")
        if path.endswith(".html") and page in self.docnames:
            return f"#{anchor(page, unquote(url.fragment))}"
        return f"{self.published}/{quote(path)}" + (f"#{url.fragment}" if url.fragment else "")

    def _demote(self, article: Tag) -> None:
        for level in reversed(range(1, 6)):  # parts are the first level
            for node in article.find_all(f"h{level}"):
                node.name = f"h{level + 1}"


def mathjax_settings(site: Path, docnames: list[str]) -> str:
    """Return the script with which the built pages configure MathJax, macros and all."""
    for docname in docnames:
        found = re.search(
            r"<script>\s*(window\.MathJax\s*=.*?)</script>",
            (site / f"{docname}.html").read_text(encoding="utf8"),
            re.DOTALL,
        )
        if found:
            return found[1]
    raise ValueError("no page configures MathJax")


def text_of(markup: str) -> str:
    """Return the text of a title, its section number and a space before it."""
    return " ".join(BeautifulSoup(markup, "html.parser").get_text().split())


def document(root: Path, site: Path, chapters: dict[str, Chapter], today: str) -> str:
    """Return the printed document, its page numbers still empty."""
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf8"))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf8"))["project"]
    title, repository = config["title"], config["repository"]["url"]
    toc, main, pages = [], [], []
    for caption, docnames in contents(root):
        if caption:
            toc.append(f'<li class="toc-part">{html.escape(caption)}</li>')
        for position, docname in enumerate(docnames):
            chapter = chapters[docname]
            name = slug(docname)
            running = text_of(chapter.title).replace("\\", "").replace('"', "'")
            pages.append(
                f'@page {name} {{ @top-left {{ content: "{running}"; }} }} .{name} {{ page: {name}; }}'
            )
            mark = f"{MARK} " if docname in config["sphinx"]["config"]["main_path"] else ""
            toc.append(entry(name, mark + chapter.title, "toc-chapter"))
            toc += [entry(target, heading, "toc-section") for target, heading in chapter.sections]
            part = f"<h1>{html.escape(caption)}</h1>" if caption and position == 0 else ""
            main.append(
                f'<section class="chapter {name}" id="{name}">{part}{chapter.body}</section>'
            )
    style = (Path(__file__).parent / "printed.css").read_text(encoding="utf8")
    link = f"../{site.name}/_static"
    return f"""<!DOCTYPE html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<title>{html.escape(title)}</title>
<meta name="author" content="{html.escape(config["author"])}">
<link rel="stylesheet" href="{link}/pygments.css">
<link rel="stylesheet" href="{link}/colours.css">
<style>{style}
{chr(10).join(pages)}</style>
<script>{mathjax_settings(site, list(chapters))}</script>
<script defer src="{link}/mathjax/tex-chtml-full.js"></script>
</head>
<body>
<header class="front">
<img class="front-logo" src="{link}/logo.svg" alt="">
<p class="front-title">{html.escape(title)}</p>
<p class="front-subtitle">An executable book on the Lipschitz constant of self-attention</p>
<p class="front-facts">Version {project["version"]}, printed on {today}<br>
<a href="{repository}">{repository.removeprefix("https://")}</a></p>
<p class="front-note">The theory is that of <i>How Smooth Is Attention?</i> by Valérie Castin, Pierre Ablin and
Gabriel Peyré (ICML 2024), derived, checked, corrected where it must be, and measured. This is a work of its own, not
by the authors of the paper. Every number, table and figure was computed when the book was built. Proofs and
solutions, folded on the screen, are open here; code that only sets up, draws or checks is left out, and is
in the notebooks. Licence: BSD-3-Clause.</p>
</header>
<nav class="contents"><h1>Contents</h1><ol>{"".join(toc)}</ol></nav>
<main>{"".join(main)}</main>
</body>
</html>
"""


def entry(target: str, title: str, kind: str) -> str:
    """Return one line of the table of contents."""
    title = re.sub(r"</?a\b[^>]*>|\sid=\"[^\"]*\"", "", title)
    return (
        f'<li class="{kind}"><a href="#{html.escape(target)}"><span class="toc-title">{title}</span>'
        f'<span class="toc-page" data-target="{html.escape(target)}">000</span></a></li>'
    )


def headings_in_order(page) -> list[str]:
    """Return, for each heading of the document, the id of the section that it opens."""
    return page.evaluate(
        """() => [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map((h) => {
             if (h.tagName === 'H1') return '';
             if (h.tagName === 'H2') return h.closest('.chapter').id;
             const section = h.closest('section'); return section ? section.id : ''; })"""
    )


def outline_pages(path: Path) -> list[tuple[str, int]]:
    """Return the titles in the outline of a PDF and their pages, counted from one, in order."""
    with pikepdf.open(path) as pdf, pdf.open_outline() as outline:
        numbers = {page.objgen: number for number, page in enumerate(pdf.pages, 1)}

        def walk(items) -> list[tuple[str, int]]:
            found = []
            for item in items:
                found.append((item.title, numbers[item.destination[0].objgen]))
                found += walk(item.children)
            return found

        return walk(outline.root)


def browser_path() -> str | None:
    """Return the browser of the system, or None for playwright's own."""
    return (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )


@contextmanager
def launched():
    """Start a browser that may read files, and end it; the process ends, too, where it stands still."""
    from playwright.sync_api import sync_playwright

    flags = [
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
        "--disable-dev-shm-usage",
    ]
    faulthandler.dump_traceback_later(LONGEST, exit=True)  # not every call to a browser has a limit
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=flags)
        yield browser
        browser.close()
    faulthandler.cancel_dump_traceback_later()


def print_document(browser, source: Path, target: Path) -> None:
    """Typeset and print; raise if a formula has an error or something is wider than the page."""
    options = {
        "prefer_css_page_size": True,
        "print_background": True,
        "outline": True,
        "tagged": True,
        "scale": SCALE,
    }
    page = browser.new_page(viewport={"width": COLUMN, "height": 950})
    page.set_default_timeout(300_000)
    page.emulate_media(media="print")
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.goto(source.as_uri(), wait_until="load")
    page.wait_for_function(READY)
    page.evaluate(FIT, PAGE)
    problems = failed + page.evaluate(ERRORS) + page.evaluate(LEFT) + page.evaluate(CLIPPED, PAGE)
    if problems:
        raise RuntimeError("the book cannot be printed:\n" + "\n".join(p[:200] for p in problems))
    sections = headings_in_order(page)
    page.pdf(path=target, **options)
    outline = outline_pages(target)
    if len(outline) != len(sections):
        raise RuntimeError(f"{len(sections)} headings, but {len(outline)} lines in the outline")
    numbers = {
        section: number for section, (_, number) in zip(sections, outline, strict=True) if section
    }
    missing = page.evaluate(NUMBER, numbers)
    if missing:
        raise RuntimeError(f"sections without a page: {missing}")
    contents = target.with_suffix(".contents.pdf")
    page.pdf(path=contents, **options)
    page.close()
    replace_first_pages(target, contents)


def print_slides(browser, source: Path, target: Path) -> None:
    """Print the deck; raise if a slide is taller than its page."""
    page = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="light")
    page.set_default_timeout(300_000)
    page.emulate_media(media="print")
    page.goto(source.as_uri(), wait_until="load")
    page.wait_for_function(READY)
    tall = page.evaluate(
        "() => [...document.querySelectorAll('.slide')].filter(s => s.scrollHeight > s.clientHeight + 1).map(s => s.id)"
    )
    if tall:
        raise RuntimeError(f"slides that do not fit their page: {', '.join(tall)}")
    page.pdf(path=target, prefer_css_page_size=True, print_background=True, tagged=True)
    page.close()


def replace_first_pages(path: Path, replacement: Path) -> None:
    """Put what the pages of one PDF show in the place of what the first pages of another show.

    Links, outline and tags stay: they are right as long as both show the same pieces of text in the same order.
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
    """Write the author into the file, and make it small: most of it are little objects that say what is a heading."""
    with pikepdf.open(path, allow_overwriting_input=True) as pdf:
        pdf.docinfo["/Author"] = author
        pdf.docinfo["/Subject"] = "The Lipschitz constant of self-attention"
        pdf.save(path, object_stream_mode=pikepdf.ObjectStreamMode.generate)


def make(root: Path, site: Path) -> Path:
    """Print the book that was built into ``site``; return the file."""
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf8"))
    docnames = [name for _, names in contents(root) for name in names]
    reader = Reader(site, docnames, published_address(config["repository"]["url"]))
    chapters = {name: reader.chapter(name) for name in docnames}
    source = site.parent / "print" / "book.html"
    source.parent.mkdir(parents=True, exist_ok=True)
    today = date.today()
    source.write_text(document(root, site, chapters, f"{today.day} {today:%B %Y}"), encoding="utf8")
    printed = source.with_name("book.pdf")
    with launched() as browser:
        print_document(browser, source, printed)
    finish(printed, config["author"])
    return printed


def published_address(repository: str) -> str:
    """Return where the pages of a repository are published."""
    owner, name = repository.rstrip("/").split("/")[-2:]
    return f"https://{owner}.github.io/{name}"
