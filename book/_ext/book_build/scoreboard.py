"""``{scoreboard}``: every claim of the book, collected from the outputs of the executed pages.

A cell whose value is a :class:`lab.claims.Claim` leaves it in the notebook as data with a MIME type of
its own. Nothing in the tables is typed by hand. The whole board has one table for each part of the book, and a
filter that ``board.js`` shows: without scripts the tables stand there complete.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from itertools import starmap
from typing import ClassVar

import nbformat
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from lab.claims import MIME_TYPE, STATUSES, format_ratio

from .citations import source_nodes
from .execution import executed_notebook
from .tables import build_table

logger = logging.getLogger(__name__)

MATHS = re.compile(r"\$([^$]+)\$")


class scoreboard_node(nodes.General, nodes.Element):
    """Stands for the table until every page has been read."""


class Scoreboard(SphinxDirective):
    """The table of claims; ``:source:`` and ``:status:`` choose some of them."""

    option_spec: ClassVar = {"source": directives.unchanged, "status": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Leave a place for the table."""
        self.env.metadata[self.env.docname]["scoreboard"] = True
        return [scoreboard_node(chosen=dict(self.options))]


def find_claims(notebook) -> list[dict]:
    """List the claims in the outputs of a notebook."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return [dict(o["data"][MIME_TYPE]) for o in outputs if MIME_TYPE in o.get("data", {})]


def collect(app: Sphinx, doctree: nodes.document) -> None:
    """Note the claims of a page that was just read."""
    env = app.env
    if not env.metadata[env.docname].get("kernelspec"):
        return
    path = executed_notebook(env, env.docname)
    found = find_claims(nbformat.read(path, as_version=4)) if path.exists() else []
    for key, times in Counter(item["key"] for item in found).items():
        if times > 1:
            logger.warning(
                "claim %r is stated %d times on one page", key, times, location=env.docname
            )
    env.metadata[env.docname]["claims"] = found


def update_boards(app: Sphinx, env) -> list[str]:
    """Write the scoreboards again; they need MathJax even if the prose has no formulas."""
    boards = {docname for docname in env.found_docs if "scoreboard" in env.metadata[docname]}
    for docname in boards:
        env.get_domain("math").data["has_equations"][docname] = True
    return sorted(boards)


def reading_order(env) -> list[str]:
    """List the pages in the order of the table of contents."""
    relations, docname, order = env.collect_relations(), env.config.root_doc, []
    while docname is not None and docname not in order:
        order.append(docname)
        docname = relations.get(docname, [None, None, None])[2]
    return order + sorted(set(env.found_docs) - set(order))


def merge(env) -> list[dict]:
    """Return one record for each claim, in reading order, with every page that shows it."""
    merged: dict[str, dict] = {}
    for docname in reading_order(env):
        for item in env.metadata[docname].get("claims", []):
            record = merged.setdefault(item["key"], {**item, "pages": []})
            combine(record, item, docname)
    return list(merged.values())


def combine(record: dict, item: dict, docname: str) -> None:
    """Add one more statement of a claim to its record; contradictions are warnings."""
    for field in ("statement", "source"):
        if record[field] != item[field]:
            text = "claim %r: its %s differs from that on %s"
            logger.warning(text, item["key"], field, record["pages"][0], location=docname)
    if ("fails" in (record["status"], item["status"])) and record["status"] != item["status"]:
        logger.warning("claim %r both fails and holds", item["key"], location=docname)
    record["status"] = min(record["status"], item["status"], key=STATUSES.index)
    ratios = [r for r in (record["ratio"], item["ratio"]) if r is not None]
    record["ratio"] = max(ratios, default=None)
    record["witness"] = record["witness"] or item["witness"]
    record["pages"].append(docname)


def maths(text: str) -> list[nodes.Node]:
    """Split a sentence into text and mathematics."""
    parts = MATHS.split(text)
    return [nodes.math(p, p) if i % 2 else nodes.Text(p) for i, p in enumerate(parts) if p]


def parts_of_book(env) -> dict[str, str]:
    """Return the caption of the part of the table of contents in which each page stands."""
    trees = env.external_site_map.root.subtrees
    return {docname: tree.caption or "The book" for tree in trees for docname in tree.files()}


def choice(name: str, first: str, options: list[tuple[str, str]]) -> str:
    """Return a field of the filter: a name, and what can be chosen as ``(value, words)``."""
    entries = [("", first), *options]
    lines = [f'<option value="{value}">{html.escape(words)}</option>' for value, words in entries]
    return f'<label>{name.capitalize()} <select name="{name}">{"".join(lines)}</select></label>'


def board_filter(parts: list[str], counts: Counter) -> nodes.raw:
    """Return the filter of the whole board, hidden until ``board.js`` shows it."""
    chosen_part = choice("part", "All parts", [(nodes.make_id(part), part) for part in parts])
    statuses = [(s, f"{s} ({counts[s]})") for s in STATUSES if counts[s]]
    chosen_status = choice("status", "Every status", statuses)
    shown = '<output aria-live="polite"></output>'
    form = f'<form class="board-filter" hidden>{chosen_part}{chosen_status}{shown}</form>'
    return nodes.raw("", form, format="html")


class FillScoreboards(SphinxPostTransform):
    """Put the tables in, before references are resolved."""

    default_priority = 7

    def run(self, **kwargs) -> None:
        """Replace every placeholder of this page."""
        for place in list(self.document.findall(scoreboard_node)):
            chosen = place["chosen"]
            records = [r for r in merge(self.env) if all(r[k] == v for k, v in chosen.items())]
            place.replace_self(self.board(records, whole=not chosen))

    def board(self, records: list[dict], whole: bool) -> list[nodes.Node]:
        """Return the summary and the tables: of the whole board, one for each part."""
        if not records:
            return [nodes.paragraph(text="No executed page states a claim yet.")]
        counts = Counter(r["status"] for r in records)
        summary = ", ".join(f"{counts[s]} {s}" for s in STATUSES if counts[s])
        claims = "1 claim" if len(records) == 1 else f"{len(records)} claims"
        said = nodes.paragraph(text=f"{claims}: {summary}.")
        if not whole:
            return [said, self.table(records)]
        part_of, parts = parts_of_book(self.env), {}
        for record in records:
            parts.setdefault(part_of.get(record["pages"][0], "The book"), []).append(record)
        return [said, board_filter(list(parts), counts), *starmap(self.part, parts.items())]

    def part(self, name: str, records: list[dict]) -> nodes.Node:
        """Return the claims of one part of the book."""
        heading = nodes.rubric(text=name)
        box = nodes.container("", heading, self.table(records), classes=["board-part"])
        box["ids"].append(f"part-{nodes.make_id(name)}")
        return box

    def table(self, records: list[dict]) -> nodes.table:
        """Return one table; its rows carry their status as a class."""
        header = ["Claim", "Status", "Closest call", "Chapter and source"]
        table = build_table(header, [self.row(r) for r in records], ["scoreboard"])
        for row, record in zip(table.next_node(nodes.tbody).children, records, strict=True):
            row["ids"].append(f"board-{record['key']}")
            row["classes"].append(f"is-{record['status']}")
        return table

    def row(self, record: dict) -> list[list[nodes.Node]]:
        """Return the cells of one claim."""
        statement = maths(record["statement"])
        if record["witness"]:
            witness = [nodes.Text(" Witness: "), *maths(record["witness"])]
            statement.append(nodes.inline("", "", *witness, classes=["claim-witness"]))
        classes = ["claim-status", f"claim-{record['status']}"]
        ratio = "–" if record["ratio"] is None else format_ratio(record["ratio"])
        source = source_nodes(record["source"], self.env.docname)
        return [
            statement,
            [nodes.inline("", record["status"], classes=classes)],
            [nodes.Text(ratio)],
            [*self.links(record), nodes.inline("", "", *source, classes=["board-source"])],
        ]

    def links(self, record: dict) -> list[nodes.Node]:
        """Link to the claim on every page that shows it."""
        cell: list[nodes.Node] = []
        for docname in record["pages"]:
            uri = self.app.builder.get_relative_uri(self.env.docname, docname)
            number = self.env.toc_secnumbers.get(docname, {}).get("", ())
            title = "".join([*(f"{n}. " for n in number[:1]), self.env.titles[docname].astext()])
            link = nodes.reference("", title, internal=True, refuri=f"{uri}#claim-{record['key']}")
            cell += [nodes.Text(", "), link] if cell else [link]
        return cell


def load_filter(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Load the filter's script where there is a board."""
    if "scoreboard" in app.env.metadata.get(pagename, {}):
        app.add_js_file("board.js", loading_method="defer")


def setup(app: Sphinx) -> None:
    """Register the directive and the hooks."""
    app.add_config_value("book_scoreboard_page", "book/scoreboard", "html", [str])
    app.add_node(scoreboard_node)
    app.add_directive("scoreboard", Scoreboard)
    app.add_post_transform(FillScoreboards)
    app.connect("doctree-read", collect)
    app.connect("env-updated", update_boards)
    app.connect("html-page-context", load_filter)
