"""The book to take away: PDFs and an archive of the site; ``{take-away}`` links to them.

``python -m book_build pdf``, ``… slides`` and ``… zip`` make them after a build, if they are not
there or are of other pages. They are not part of a build: without them the directive shows nothing.
A build whose pages differ removes those of the pages before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tomllib
import zipfile
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import only
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

NAME = "how-smooth-is-attention"
DECK = "slides.html"
FILES = {"pdf": f"{NAME}.pdf", "slides": f"{NAME}-slides.pdf", "zip": f"{NAME}.zip"}
WORDS = {
    "pdf": "The whole book as a PDF",
    "slides": "The slides as a PDF",
    "zip": "The whole site, to open without a network",
}
BEGIN, END = "<!-- take-away -->", "<!-- /take-away -->"
MARKED = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
NOT_ARCHIVED = (".nojekyll", ".buildinfo", FILES["zip"])
A_DATE = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive


class TakeAway(SphinxDirective):
    """Links to the PDF and the archive, where they have been made."""

    def run(self) -> list[nodes.Node]:
        """Leave a place, which is filled after the build."""
        return [nodes.raw("", f"{BEGIN}{END}", format="html")]


def mark_screen_only(app: Sphinx, doctree: nodes.document) -> None:
    """Mark what a page says to those at a screen, in ``{only} html``: paper leaves it out."""
    for part in doctree.findall(only):
        for child in part.children:
            child["classes"].append("no-print")


def linked(site: Path, page: Path, kinds=tuple(FILES)) -> str:
    """Return the text of a page with links to the editions that there are."""
    up = "../" * (len(page.relative_to(site).parts) - 1)
    items = []
    if (site / DECK).exists():
        items.append(f'<a class="reference external" href="{up}{DECK}">Figures as slides</a>')
    for kind in kinds:
        path = site / FILES[kind]
        if path.exists():
            link = (
                f'<a class="reference external" href="{up}{path.name}" download>{WORDS[kind]}</a>'
            )
            items.append(f"{link} ({path.stat().st_size / 1e6:.0f} MB)")
    listed = "".join(f"<li><p>{item}</p></li>" for item in items)
    block = f'<ul class="simple take-away">{listed}</ul>' if items else ""
    return MARKED.sub(f"{BEGIN}{block}{END}", page.read_text(encoding="utf8"))


def pages_of(site: Path) -> list[Path]:
    """List the pages of a built site."""
    return sorted(p for p in site.rglob("*.html") if "_static" not in p.relative_to(site).parts)


def write_links(site: Path) -> None:
    """Write the links of every page again."""
    for page in pages_of(site):
        page.write_text(linked(site, page), encoding="utf8")


def state(site: Path) -> str:
    """Return a digest of what the pages say, without the links to editions."""
    total = hashlib.sha256()
    for page in pages_of(site):
        found = re.search(r"<article.*</article>", page.read_text(encoding="utf8"), re.DOTALL)
        total.update(page.relative_to(site).as_posix().encode() + b"\0")
        total.update(MARKED.sub("", found[0] if found else "").encode())
    for name in ("printed.py", "printed.css", "editions.py"):
        total.update((Path(__file__).parent / name).read_bytes())
    return total.hexdigest()


def made(site: Path) -> dict[str, str]:
    """Return the digest of the pages of which each edition was made."""
    path = site.parent / "editions.json"
    return json.loads(path.read_text(encoding="utf8")) if path.exists() else {}


def fresh(site: Path, kind: str) -> bool:
    """Tell whether an edition exists and is of the present pages."""
    return (site / FILES[kind]).exists() and made(site).get(kind) == state(site)


def note(site: Path, kind: str) -> None:
    """Note of which pages an edition was made."""
    text = json.dumps({**made(site), kind: state(site)})
    (site.parent / "editions.json").write_text(text, encoding="utf8")


def archive(site: Path, root: Path) -> None:
    """Write all files of the site into one archive."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf8"))["project"]
    target = site / FILES["zip"]
    target.unlink(missing_ok=True)
    files = [p for p in sorted(site.rglob("*")) if p.is_file() and p.name not in NOT_ARCHIVED]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
        for path in files:
            name = f"{NAME}-{project['version']}/{path.relative_to(site).as_posix()}"
            info = zipfile.ZipInfo(name, A_DATE)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            of_page = path.suffix == ".html"  # the archive is not in the archive
            data = linked(site, path, ("pdf", "slides")) if of_page else path.read_bytes()
            out.writestr(info, data)


def print_book(site: Path, root: Path) -> None:
    """Print the book, and put the PDF beside the pages."""
    from .printed import make

    make(root, site, site / FILES["pdf"])


def print_deck(site: Path, root: Path) -> None:
    """Print the slides, one on each page."""
    from .printed import launched, print_slides

    with launched() as browser:
        print_slides(browser, site / DECK, site / FILES["slides"])


MAKERS = {"pdf": print_book, "slides": print_deck, "zip": archive}


def remove_stale(app: Sphinx, exception) -> None:
    """After a build, remove editions of other pages, and write the links."""
    if exception is not None or app.builder.name != "html":
        return
    site = Path(app.outdir)
    for kind, name in FILES.items():
        if not fresh(site, kind):
            (site / name).unlink(missing_ok=True)
    write_links(site)


def setup(app: Sphinx) -> None:
    """Register the directive and the hook, which comes last."""
    app.add_directive("take-away", TakeAway)
    app.connect("doctree-read", mark_screen_only)
    app.connect("build-finished", remove_stale, priority=950)


def main(arguments: list[str] | None = None) -> None:
    """Make editions of the pages in ``_build/html``, if they are not there."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("kinds", nargs="+", choices=FILES)
    root = Path.cwd()
    site = root / "_build" / "html"
    for kind in parser.parse_args(arguments).kinds:
        if not fresh(site, kind):
            MAKERS[kind](site, root)
            note(site, kind)
            write_links(site)
        path = site / FILES[kind]
        print(f"{path.relative_to(root)}: {path.stat().st_size / 1e6:.1f} MB")
