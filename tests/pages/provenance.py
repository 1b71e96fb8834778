"""Compare what a page shows with the record of its execution.

The record is the notebook in the cache of this state of package and libraries; a page is the built HTML. Nothing is
taken from the build itself but the digest that names the state.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import html
import os
import posixpath
import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import jupytext
from jupyter_cache import get_cache

GLUED = re.compile(r"\{glue:text\}`(?P<target>[^`]+)`")
SHOWN = re.compile(r'<span class="pasted-text">(?P<text>.*?)</span>', re.DOTALL)
PICTURE = re.compile(r"_images/(?P<digest>[0-9a-f]{64})\.(?P<kind>svg|png)")


@dataclass
class Records:
    """The executed notebooks of one state, found by the page's source."""

    root: Path
    state: str

    def __post_init__(self):
        self.cache = get_cache(str(self.root / "_build" / ".jupyter_cache" / self.state))
        self.known: dict[str, tuple] = {}

    def __getitem__(self, docname: str) -> tuple:
        """Return the record of the execution and the executed notebook of a page, or raise KeyError."""
        if docname not in self.known:
            source = jupytext.read(self.root / f"{docname}.md", fmt="md:myst")
            found = self.cache.match_cache_notebook(source)
            self.known[docname] = (found, self.cache.get_cache_bundle(found.pk).nb, source)
        return self.known[docname]

    def glued(self, docname: str) -> dict[str, str]:
        """Return the values that the page's execution glued, as Python writes them."""
        values = {}
        for output in outputs(self[docname][1]):
            scrap = output.get("metadata", {}).get("scrapbook")
            if scrap:
                values[scrap["name"]] = output["data"].get(scrap["mime_prefix"] + "text/plain", "")
        return values


def outputs(notebook) -> list:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def expected_text(target: str, docname: str, records: Records) -> str:
    """Return what ``{glue:text}`` must show."""
    page, _, name = target.rpartition("::")
    name, _, form = name.partition(":")
    home = (
        posixpath.normpath(posixpath.join(posixpath.dirname(docname), page)).removesuffix(".md")
        if page
        else docname
    )
    value = records.glued(home)[name]
    try:
        value = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    return format(value, form) if form else str(value)


def check_numbers(page: str, source: str, docname: str, records: Records) -> list[str]:
    """Every glued number on the page is the one that the execution found."""
    wanted = Counter(expected_text(target, docname, records) for target in GLUED.findall(source))
    shown = Counter(html.unescape(text) for text in SHOWN.findall(page))
    return [f"shows {text}, which no execution found" for text in shown - wanted] + [
        f"does not show {text}" for text in wanted - shown
    ]


def check_pictures(page: str, records: Records, docnames: list[str]) -> list[str]:
    """Every computed picture on the page is, bit by bit, an output of an execution."""
    made = set()
    for docname in docnames:
        for output in outputs(records[docname][1]):
            for kind, data in output.get("data", {}).items():
                if kind.endswith("image/svg+xml"):  # as myst-nb names the file
                    made.add(
                        hashlib.sha256(os.linesep.join(data.splitlines()).encode()).hexdigest()
                    )
                elif kind.endswith("image/png"):
                    made.add(hashlib.sha256(base64.b64decode(data)).hexdigest())
    return [
        f"picture {m['digest'][:12]} is no output"
        for m in PICTURE.finditer(page)
        if m["digest"] not in made
    ]


def check_prints(page: str, docname: str, records: Records) -> list[str]:
    """What the execution printed or returned stands on the page."""
    text = squeezed(html.unescape(re.sub(r"<[^>]+>", "", page)))
    missing = []
    _, executed, source = records[docname]
    for cell, tags in zip(
        code(executed), (c.metadata.get("tags", []) for c in code(source)), strict=True
    ):
        if {"remove-output", "remove-cell"} & set(tags):
            continue
        for output in cell.outputs:
            printed = output.get("text", "") if output.output_type == "stream" else plain(output)
            missing += [line for line in printed.splitlines() if squeezed(line) not in text]
    return [f"does not show the output {line.strip()[:60]!r}" for line in missing]


def plain(output) -> str:
    """Return the text of a result that is shown as text, and nothing for the others."""
    data = output.get("data", {})
    shown_otherwise = any(
        kind in data for kind in ("text/html", "image/svg+xml", "image/png", "text/markdown")
    )
    return "" if shown_otherwise else data.get("text/plain", "")


def code(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def check_record(
    entry: dict, docname: str, records: Records, after: float | None = None
) -> list[str]:
    """The published record is that of the execution, in this state, of this source; and not older than allowed."""
    found, executed, source = records[docname]
    faults = []
    if entry.get("state") != records.state:
        faults.append(f"was executed in state {entry.get('state')}, not {records.state}")
    if [c.source for c in code(executed)] != [c.source for c in code(source)]:
        faults.append("other code was executed")
    moment = found.created.replace(tzinfo=UTC)
    if entry.get("executed") != f"{moment:%Y-%m-%dT%H:%M:%S}Z":
        faults.append(f"was not executed at {entry.get('executed')}")
    if entry.get("glued") != records.glued(docname):
        faults.append("the published values are not those of the execution")
    if after is not None and moment.timestamp() < after:
        begun = datetime.fromtimestamp(after, UTC)
        faults.append(
            f"was executed at {moment:%H:%M:%S}, before this run began ({begun:%H:%M:%S})"
        )
    return faults
