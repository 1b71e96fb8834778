"""Check what no test and no build sees: the prose and the cells of the pages, and the files of the project.

Every finding is one line, "file:line: what is wrong and how to mend it". The last line counts the checks.
"""

import ast
import re
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jupytext
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
Findings = Iterator[tuple[int, str]]

# ---- numbers in prose ----

WORDS = "two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|fifty|hundreds?|thousands?|millions?"
MEASURED = re.compile(
    rf"""
      (?<![\w.,/:-])(?<!Python\s)(?<!Section\s)\d[\d,]*\.\d+(?![\w.]*\w)   # 0.87, 12.5
    | (?<![\w.,/-])\d[\d,.]*\s*(?:%|per\s+cent|percent\b)       # 40 %
    | (?<![\w.,/-])\d[\d,.]*(?:\s+|-)(?:times|fold)\b           # 12 times, 3-fold
    | (?<![\w.,/-])\d[\d,.]*\s+(?:seconds?|minutes?|ms|s)\b     # 23 seconds
    | \b(?:{WORDS})(?:\s+of)?\s+times\s+(?:\w+er|more|less|as|above|below)\b   # three times larger
    | \b(?:{WORDS})\s+(?:per\s+cent|percent)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)
# What is chosen and not measured, or stands in the description of a picture, which holds no mathematics.
CHOSEN = {
    "spectral_norm": {"0.999"},  # the probability of the certificate
    "measures_and_transport": {"80 %"},  # the width of a band
    "large_radius": {"0.95"},  # a threshold
    "decoders": {"0.1"},
    "growth_in_detail": {"80 %", "0.1", "0.4", "1.4"},
    "zoo_of_attentions": {"ten per cent", "Ten per cent"},  # asked in an exercise
    "images_and_speech": {"5 %", "20 ms", "0.1", "0.27", "four times as"},
}
# What is no prose, in the order in which it is taken out.
NO_PROSE = [
    re.compile(pattern, re.DOTALL | re.MULTILINE)
    for pattern in (
        r"\A---\n.*?^---$",
        r"^ *(`{3,}|:{3,}|~{3,})(?:\{(?:code-cell|code-block|code|eval-rst|math|bibliography)\}|\w)"
        r"[^\n]*\n.*?^ *\1$",
        r"^ *:[\w-]+:[^\n]*$",  # an option
        r"\{[\w:.+-]+\}(`+)[^`].*?\1",  # a role
        r"(?<!`)(`+)(?!`)(?:(?!\n\n).)*?(?<!`)\1(?!`)",
        r"\$\$.*?\$\$|(?<![\\$])\$(?!\$).*?(?<!\\)\$",
        r"\]\([^)]*\)|<https?://[^>]*>|https?://\S+",
    )
]


def prose(text: str) -> str:
    """Return the prose of a text, every line where it was."""
    for pattern in NO_PROSE:
        text = pattern.sub(lambda match: " ▯ " + "\n" * match[0].count("\n"), text)
    return text


def typed_numbers(page: "Page") -> Findings:
    """No number that looks measured is typed into prose, a caption or the description of a picture."""
    shown = [(cell.line, f"{text}\n") for cell in page.cells for text in cell.captions]
    for line, text in [(1, page.text), *shown]:
        read = prose(text)
        for match in MEASURED.finditer(read):
            words = " ".join(match[0].split())
            if words not in CHOSEN.get(page.stem, set()) | {"95 %"}:
                place = line + (read.count("\n", 0, match.start()) if line == 1 else 0)
                yield place, f"“{words}” looks measured: glue it; if it is chosen, write it in $…$"
    for match in re.finditer(r"\b[Cc]hapters?\s+\d+", page.text):
        line = page.text.count("\n", 0, match.start()) + 1
        yield line, f"“{match[0]}” is wrong as soon as a chapter moves: refer with {{doc}}"


# ---- cells ----

LINES = {(): 15, ("hide-input",): 40, ("remove-input",): 10**6, ("check",): 25}
WIDTH = 76
ON_THE_PATH, NARROW = 8, 68  # lines and characters of what a reader of the main path sees


class Cell(NamedTuple):
    """A code cell: the line of its first line of code, its tags, its captions, its code."""

    line: int
    tags: tuple[str, ...]
    captions: list[str]
    code: str
    tree: ast.Module


def main_path(root: Path) -> list[str]:
    """Return the chapters of the first numbered part of the contents."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf8"))
    part = next(part for part in toc["parts"] if part.get("numbered"))
    return [page["file"] for page in part["chapters"]]


PATH = main_path(ROOT)


class Page:
    """A page with its code cells."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.stem, self.text = name, name.rpartition("/")[2], text
        self.cells, start = [], 0
        for cell in jupytext.reads(text, fmt="md:myst").cells:
            if cell.cell_type == "code":
                start = text.index(cell.source, text.index("{code-cell}", start))
                self.cells.append(self.read(cell, text.count("\n", 0, start) + 1))

    def read(self, cell, line: int) -> Cell:
        """Read a cell whose code begins in a line."""
        shown = cell.metadata.get("mystnb", {})
        captions = [
            shown[part][name]
            for part, name in (("figure", "caption"), ("image", "alt"))
            if name in shown.get(part, {})
        ]
        tags = tuple(cell.metadata.get("tags", ()))
        return Cell(line, tags, captions, cell.source, ast.parse(cell.source))


def calls(tree: ast.AST, *names: str) -> list[ast.Call]:
    """Return the calls of functions with these names."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in names
    ]


def form(page: Page) -> Findings:
    """A cell of a chapter has one of four kinds, and what readers see of it is short."""
    chapter = page.name.startswith("notebooks/")
    for line, tags, captions, code, tree in page.cells if chapter else ():
        lines = code.strip("\n").split("\n")
        if tags not in LINES:
            yield line, f"tags {list(tags)}: use none, or one of hide-input, remove-input, check"
        elif len(lines) > LINES[tags]:
            yield line, f"{len(lines)} lines, at most {LINES[tags]}: split the cell"
        for number, text in enumerate(code.split("\n")):
            if len(text) > WIDTH:
                yield line + number, f"{len(text)} characters, at most {WIDTH}: break the line"
        if tags == ("hide-input",) and len(captions) < 2:
            yield line, "hide-input is for figures: give mystnb.figure.caption and mystnb.image.alt"
        last = [part for part in tree.body[-1:] if isinstance(part, ast.Expr)]
        if tags == ("check",) and not (last and calls(last[0], "checked")):
            yield line, "a check ends with checked(…), which says what was checked"
        if tags != ("remove-input",) and calls(tree, "glue", "claim"):
            yield line, "glue and claim stand in cells with the tag remove-input"


def story(page: Page) -> Findings:
    """A chapter begins with its question, shows words before code, and little code at a time."""
    if not page.name.startswith("notebooks/"):
        return
    below = re.split(r"^# .*\n", page.text, maxsplit=1, flags=re.M)[-1].strip()
    first = next(x for x in below.split("\n\n") if not x.startswith(("```{index}", "(")))
    if not first.rstrip("*").endswith("?") or len(first.split()) > 30 or "{doc}" in first:
        yield 1, "after the title comes the question alone: at most 30 words, no link, a “?”"
    sections = [page.text.count("\n", 0, m.start()) for m in re.finditer(r"^##+ ", page.text, re.M)]
    seen = set()
    for line, tags, _, code, _ in page.cells:
        section = sum(start < line for start in sections)
        if tags == () and not section:
            yield line, "no code is shown before the first section"
        if tags != () or page.name not in PATH:
            continue
        lines = code.strip("\n").split("\n")
        if len(lines) > ON_THE_PATH or max(map(len, lines)) > NARROW:
            yield line, f"the main path shows at most {ON_THE_PATH} lines of {NARROW} characters"
        if section in seen:
            yield line, "the main path shows one cell a section: fold the other"
        seen.add(section)


def claims(page: Page) -> Findings:
    """A claim is shown, is about a theorem of its page, and its ratio is what was observed."""
    labels = re.findall(r"\{prf:(?!ref|proof)\w+\}[^\n]*\n:label: *(\S+)", page.text)
    for cell in page.cells:
        for call in calls(cell.tree, "claim"):
            line = cell.line + call.lineno - 1
            given = {word.arg: word.value for word in call.keywords}
            theorem = getattr(given.get("theorem"), "value", None)
            if not isinstance(cell.tree.body[-1], ast.Expr) or cell.tree.body[-1].value is not call:
                yield line, "only the last expression of a cell is shown: let the claim be it"
            if not theorem and getattr(given.get("status"), "value", "") in ("proved", "enclosed"):
                yield line, "what is proved names its theorem: add theorem=…"
            if theorem and theorem not in labels:
                yield line, f"{theorem} is no theorem of this page; there are {labels}"
            for node in ast.walk(given.get("ratio", ast.Constant(1))):
                value = getattr(node, "value", None)
                if isinstance(value, float) and not (8 * value).is_integer():
                    yield line, f"{value} in a ratio is a choice of the page: compare without it"


# ---- the files of the project ----


def versions(root: Path) -> Iterator[tuple[str, str]]:
    """The version is the same everywhere, and the lock holds exact versions in the declared ranges."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf8"))["project"]
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf8"))
    for name, part in (
        ("CITATION.cff", f"version: {project['version']}\n"),
        ("CITATION.cff", f"license: {project['license']}\n"),
        ("CHANGELOG.md", f"## {project['version']}"),
        ("lipcore/__init__.py", f'__version__ = "{project["version"]}"'),
        ("_config.yml", f"url: {citation['repository-code']}\n"),
    ):
        if part not in (root / name).read_text(encoding="utf8"):
            yield name, f"“{part.strip()}” is missing, which pyproject.toml or CITATION.cff says"
    pinned = {}
    for line in (root / "requirements.lock").read_text(encoding="utf8").splitlines():
        name, equal, version = line.partition("==")
        if equal and canonicalize_name(name) not in pinned:
            pinned[canonicalize_name(name)] = version
        elif not line.startswith("#"):
            yield "requirements.lock", f"“{line}” is no exact version, or a second one: make lock"
    extras = project["optional-dependencies"]
    for requirement in map(Requirement, sum(extras.values(), project["dependencies"])):
        version = pinned.get(canonicalize_name(requirement.name))
        if requirement.name != project["name"] and version not in requirement.specifier:
            yield "requirements.lock", f"{requirement} is asked for, {version} is locked: make lock"


def contents(root: Path, pages: dict[str, Page]) -> Iterator[tuple[str, str]]:
    """Every page stands in the contents once; readers find solutions."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf8"))
    listed = [toc["root"], *(page["file"] for part in toc["parts"] for page in part["chapters"])]
    for name in sorted(set(listed) ^ set(pages) | {x for x in listed if listed.count(x) > 1}):
        yield "_toc.yml", f"{name} is listed {listed.count(name)} times: list every page once"
    for name, page in pages.items():
        title = next((x for x in page.text.splitlines() if x.startswith("# ")), "")
        if "$" in title:
            yield f"{name}.md", "a title is the window's too: write √n, not TeX"
        exercises = re.findall(r"\{exercise(?:-start)?\}.*\n:label: (\S+)", page.text)
        for label in set(exercises) - set(re.findall(r"\{solution(?:-start)?\} (\S+)", page.text)):
            yield f"{name}.md", f"{label} has no solution"


def findings(root: Path) -> dict[str, list[str]]:
    """Return the findings of every check."""
    paths = sorted([*(root / "notebooks").glob("*.md"), *(root / "book").glob("*.md")])
    names = [str(path.relative_to(root).with_suffix("")) for path in paths]
    pages = {n: Page(n, p.read_text(encoding="utf8")) for n, p in zip(names, paths, strict=True)}
    found = {
        check.__name__: [
            f"{name}.md:{line}: {what}"
            for name, page in pages.items()
            for line, what in check(page)
        ]
        for check in (typed_numbers, form, story, claims)
    }
    found["versions"] = [f"{name}:1: {what}" for name, what in versions(root)]
    found["contents"] = [f"{name}:1: {what}" for name, what in contents(root, pages)]
    return found


def main() -> int:
    """Print the findings, and how many checks passed and failed."""
    start = time.perf_counter()
    found = findings(ROOT)
    for lines in found.values():
        for line in lines:
            print(line)
    failed = sum(map(bool, found.values()))
    counts = f"{len(found) - failed} passed" + (f", {failed} failed" if failed else "")
    print(f"=== {counts} in {time.perf_counter() - start:.1f}s ===")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
