"""The book to take away: PDFs and an archive of the site, and ``{take-away}``, which links to them.

``python -m book_build pdf``, ``… slides`` and ``… zip`` make them after a build, if they are not there or are of other
pages. They are not part of a build: without them the directive shows nothing. A build whose
pages differ removes those of the pages before.
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


def links(site: Path, up: str, kinds=tuple(FILES)) -> str:
    """Return the list of editions, for a page that is ``up`` below the first folder."""
    items = [
        f'<li><p><a class="reference external" href="{up}{FILES[kind]}" download>{WORDS[kind]}</a> '
        f"({(site / FILES[kind]).stat().st_size / 1e6:.0f} MB)</p></li>"
        for kind in kinds
        if (site / FILES[kind]).exists()
    ]
    if (site / DECK).exists():
        deck = (
            f'<li><p><a class="reference external" href="{up}{DECK}">Figures as slides</a></p></li>'
        )
        items.insert(0, deck)
    listed = f'<ul class="simple take-away">{"".join(items)}</ul>' if items else ""
    return f"{BEGIN}{listed}{END}"


class TakeAway(SphinxDirective):
    """Links to the PDF and the archive, where they have been made."""

    def run(self) -> list[nodes.Node]:
        """Leave a place, which is filled after the build."""
        return [nodes.raw("", f"{BEGIN}{END}", format="html")]


def pages_of(site: Path) -> list[Path]:
    """List the pages of a built site."""
    return sorted(p for p in site.rglob("*.html") if "_static" not in p.relative_to(site).parts)


def write_links(site: Path) -> None:
    """Write the links of every page again."""
    for page in pages_of(site):
        text = page.read_text(encoding="utf8")
        up = "../" * (len(page.relative_to(site).parts) - 1)
        changed = MARKED.sub(lambda _, up=up: links(site, up), text)
        if changed != text:
            page.write_text(changed, encoding="utf8")


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


def archive(site: Path, root: Path) -> Path:
    """Write all files of the site into one archive."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf8"))["project"][
        "version"
    ]
    target = site / FILES["zip"]
    target.unlink(missing_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for path in sorted(
            p for p in site.rglob("*") if p.is_file() and p.name not in NOT_ARCHIVED
        ):
            name = path.relative_to(site)
            data = path.read_bytes()
            if (
                path.suffix == ".html" and BEGIN.encode() in data
            ):  # the archive is not in the archive
                here = links(site, "../" * (len(name.parts) - 1), ("pdf", "slides"))
                data = MARKED.sub(lambda _, here=here: here, data.decode("utf8")).encode("utf8")
            info = zipfile.ZipInfo(f"{NAME}-{version}/{name.as_posix()}", A_DATE)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            out.writestr(info, data)
    return target


def print_book(site: Path, root: Path) -> Path:
    """Print the book, and put the PDF beside the pages."""
    from .printed import make

    target = site / FILES["pdf"]
    target.write_bytes(make(root, site).read_bytes())
    return target


def print_deck(site: Path, root: Path) -> Path:
    """Print the slides, one on each page."""
    from .printed import launched, print_slides

    target = site / FILES["slides"]
    with launched() as browser:
        print_slides(browser, site / DECK, target)
    return target


def mark_screen_only(app: Sphinx, doctree: nodes.document) -> None:
    """Mark what a page says to those at a screen, in ``{only} html``: paper leaves it out."""
    for part in doctree.findall(only):
        for child in part.children:
            child["classes"].append("no-print")


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
    """Make the PDF or the archive of the pages in ``_build/html``, if it is not there."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("kind", choices=FILES)
    parser.add_argument("--root", type=Path, default=Path.cwd())
    chosen = parser.parse_args(arguments)
    root = chosen.root.resolve()
    site = root / "_build" / "html"
    if not fresh(site, chosen.kind):
        MAKERS[chosen.kind](site, root)
        note(site, chosen.kind)
        write_links(site)
    path = site / FILES[chosen.kind]
    print(f"{path.relative_to(root)}: {path.stat().st_size / 1e6:.1f} MB")
