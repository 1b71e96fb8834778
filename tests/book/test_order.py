"""The chapters stand in the order in which they are needed: no statement, proof or number leans on a later page."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = [
    chapter["file"]
    for part in yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))["parts"]
    if part.get("numbered")
    for chapter in part["chapters"]
]
LABEL = re.compile(
    r"^:label: (\S+)$|^\(([a-z0-9-]+)\)=$|\$\$ \(([a-z0-9-]+)\)|^    name: (\S+)$", re.M
)
REFERENCE = re.compile(r"\{(?:prf:ref|eq|numref|ref)\}`(?:[^`<]*<)?([a-z0-9-]+)>?`")
GLUED = re.compile(r"\{glue:[a-z]+\}\s*`?(?:\.\./)?(?:notebooks/)?(\w+)\.md::")
OPENING = re.compile(r"^(`{3,}|:{3,})\{([a-z:-]+)\}(.*)$")
STATEMENTS = {"theorem", "lemma", "proposition", "corollary", "definition"}


def source(page: str) -> str:
    return (ROOT / f"{page}.md").read_text(encoding="utf8")


def where_defined(pages: list[str], read=source) -> dict[str, int]:
    """The place in the contents of each label."""
    found = {}
    for place, page in enumerate(pages):
        for labels in LABEL.findall(read(page)):
            found.setdefault(next(filter(None, labels)), place)
    return found


def leaning_parts(text: str) -> list[str]:
    """What must rest on earlier pages alone: statements, and what is folded as a proof."""
    lines, parts = text.split("\n"), []
    for first, line in enumerate(lines):
        opening = OPENING.match(line)
        if not opening:
            continue
        fence, name, title = opening.groups()
        is_statement = name.startswith("prf:") and name.removeprefix("prf:") in STATEMENTS
        if is_statement or (name == "dropdown" and "proof" in title.lower()):
            last = next(i for i in range(first + 1, len(lines)) if lines[i].strip() == fence)
            parts.append("\n".join(lines[first : last + 1]))
    return parts


def leans(page: str, text: str, pages: list[str], defined: dict[str, int]) -> list[str]:
    """The labels and pages that come later and are needed here."""
    place = pages.index(page)
    later = [
        label
        for part in leaning_parts(text)
        for label in REFERENCE.findall(part)
        if defined.get(label, -1) > place
    ]
    names = [name.rpartition("/")[2] for name in pages]
    return later + [name for name in GLUED.findall(text) if name in names[place + 1 :]]


@pytest.mark.parametrize("page", CHAPTERS)
def test_nothing_leans_on_a_later_page(page):
    assert leans(page, source(page), CHAPTERS, where_defined(CHAPTERS)) == []


def test_a_page_that_leans_forward_is_found():
    pages = ["notebooks/one", "notebooks/two"]
    proof = "````{dropdown} Proof\nBy {prf:ref}`thm-two`.\n````\n"
    texts = {
        "notebooks/one": proof + "See {prf:ref}`thm-two`, and {glue:text}`two.md::key`.",
        "notebooks/two": "```{prf:theorem} Two\n:label: thm-two\nIt holds.\n```\n",
    }
    defined = where_defined(pages, texts.get)
    assert leans(pages[0], texts[pages[0]], pages, defined) == ["thm-two", "two"]
    assert leans(pages[1], texts[pages[0]], pages, defined) == []


#: What else may mention a chapter: code with its docstrings and comments, tests, benchmarks.
CODE = [
    path
    for folder in ("lipcore", "book/_ext", "book/_static", "tests", "benchmarks")
    for kind in ("*.py", "*.js", "*.css", "*.toml")
    for path in sorted((ROOT / folder).rglob(kind))
] + [ROOT / "Makefile"]
PAGES = sorted([*(ROOT / "notebooks").glob("*.md"), *(ROOT / "book").glob("*.md")])


def numbered_chapters(text: str) -> list[str]:
    """Mentions of a chapter by its number, also across the end of a line."""
    return re.findall(r"\b[Cc]hapters?[\s#>]+\d+", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_name_chapters_without_numbers(page):
    """A number typed into a sentence is wrong as soon as a chapter is added or moved."""
    assert numbered_chapters(page.read_text(encoding="utf8")) == []


def test_code_names_chapters_without_numbers():
    assert len(CODE) > 200
    found = {path: numbered_chapters(path.read_text(encoding="utf8")) for path in CODE}
    assert {str(path.relative_to(ROOT)): names for path, names in found.items() if names} == {}


def test_a_numbered_chapter_is_found():
    number = 7
    assert numbered_chapters(f"See chapter {number}.") and numbered_chapters(
        f"# as in Chapters\n# {number} and {number + 1}"
    )
    assert numbered_chapters("See the chapter on large radii, and its chapter-long proof.") == []
