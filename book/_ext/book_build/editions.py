"""The book to take away: PDFs and an archive of the site; ``{take-away}`` links to them.

``python -m book_build.editions pdf slides zip`` makes them after a build, if they are not there. They are not
part of a build: without them the directive shows nothing. A build whose pages differ from those of
the build before removes them.
"""

import argparse
import hashlib
import re
import tomllib
import zipfile
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import only
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from .printed import print_book, print_deck

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
    return sorted(p for p in site.rglob("*.html") if "_static" not in p.relative_to(site).parts)


def write_links(site: Path) -> None:
    for page in pages_of(site):
        page.write_text(linked(site, page), encoding="utf8")


def state(site: Path) -> str:
    """Return a digest of what the pages say without the links, and of how they are printed."""
    total = hashlib.sha256()
    for page in pages_of(site):
        found = re.search(r"<article.*</article>", page.read_text(encoding="utf8"), re.DOTALL)
        total.update(page.relative_to(site).as_posix().encode() + b"\0")
        total.update(MARKED.sub("", found[0] if found else "").encode())
    for name in ("printed.py", "printed.css", "printed.js", "templates/printed.html"):
        total.update((Path(__file__).parent / name).read_bytes())
    return total.hexdigest()


def archive(root: Path, site: Path, target: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf8"))["project"]
    files = [p for p in sorted(site.rglob("*")) if p.is_file() and p.name not in NOT_ARCHIVED]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
        for path in files:
            name = f"{NAME}-{project['version']}/{path.relative_to(site).as_posix()}"
            info = zipfile.ZipInfo(name, A_DATE)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            of_page = path.suffix == ".html"  # the archive is not in the archive
            data = linked(site, path, ("pdf", "slides")) if of_page else path.read_bytes()
            out.writestr(info, data)


MAKERS = {"pdf": print_book, "slides": print_deck, "zip": archive}


def finish(app: Sphinx) -> None:
    """After a build, remove the editions of other pages, and write the links."""
    site = Path(app.outdir)
    known, now = site.parent / "editions.txt", state(site)
    if not known.exists() or known.read_text() != now:
        for name in FILES.values():
            (site / name).unlink(missing_ok=True)
    known.write_text(now)
    write_links(site)


def setup(app: Sphinx) -> None:
    app.add_directive("take-away", TakeAway)
    app.connect("doctree-read", mark_screen_only)


def main(arguments: list[str] | None = None) -> None:
    """Make editions of the pages in ``_build/html``, if they are not there."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("kinds", nargs="+", choices=FILES)
    root = Path.cwd()
    site = root / "_build" / "html"
    for kind in parser.parse_args(arguments).kinds:
        path = site / FILES[kind]
        if not path.exists():
            MAKERS[kind](root, site, path)
            write_links(site)
        print(f"{path.relative_to(root)}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
