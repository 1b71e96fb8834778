"""``{scoreboard}``: every claim of the book, collected from the outputs of the executed pages.

A cell whose value is a :class:`lipcore.lab.claims.Claim` leaves it in the notebook as data with a MIME type of
its own. Nothing in the table is typed by hand.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import ClassVar

import nbformat
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from lipcore.lab.claims import MIME_TYPE, STATUSES, format_ratio

from .execution import executed_notebook
from .tables import build_table

logger = logging.getLogger(__name__)

PAPER_KEY = "castin2024"  # the work that the source "paper" means
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
    """Return one record a claim, in reading order, with every page that shows it."""
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


def source_cell(source: str, docname: str) -> list[nodes.Node]:
    """Return "this book", or a citation."""
    if source == "book":
        return [nodes.Text("this book")]
    key = PAPER_KEY if source == "paper" else source
    target = pending_xref(
        refdomain="cite",
        reftype="t",
        reftarget=key,
        refdoc=docname,
        refexplicit=False,
        refwarn=True,
    )
    target += nodes.inline(key, key)
    return [target]


class FillScoreboards(SphinxPostTransform):
    """Put the tables in, before references are resolved."""

    default_priority = 7

    def run(self, **kwargs) -> None:
        """Replace every placeholder of this page."""
        for place in list(self.document.findall(scoreboard_node)):
            chosen = place["chosen"]
            records = [r for r in merge(self.env) if all(r[k] == v for k, v in chosen.items())]
            place.replace_self(self.board(records))

    def board(self, records: list[dict]) -> list[nodes.Node]:
        """Return the summary and the table."""
        if not records:
            return [nodes.paragraph(text="No executed page states a claim yet.")]
        counts = Counter(r["status"] for r in records)
        summary = ", ".join(f"{counts[s]} {s}" for s in STATUSES if counts[s])
        claims = "1 claim" if len(records) == 1 else f"{len(records)} claims"
        header = ["claim", "source", "status", "best ratio", "page"]
        table = build_table(header, [self.row(r) for r in records], ["scoreboard"])
        for row, record in zip(table.next_node(nodes.tbody).children, records, strict=True):
            row["ids"].append(f"board-{record['key']}")
        return [nodes.paragraph(text=f"{claims}: {summary}."), table]

    def row(self, record: dict) -> list[list[nodes.Node]]:
        """Return the cells of one claim."""
        statement = maths(record["statement"])
        if record["witness"]:
            witness = [nodes.Text(" Witness: "), *maths(record["witness"])]
            statement.append(nodes.inline("", "", *witness, classes=["claim-witness"]))
        status = nodes.inline(
            "", record["status"], classes=["claim-status", f"claim-{record['status']}"]
        )
        return [
            statement,
            source_cell(record["source"], self.env.docname),
            [status],
            [nodes.Text("–" if record["ratio"] is None else format_ratio(record["ratio"]))],
            self.links(record),
        ]

    def links(self, record: dict) -> list[nodes.Node]:
        """Link to the claim on every page that shows it."""
        cell: list[nodes.Node] = []
        for docname in record["pages"]:
            uri = self.app.builder.get_relative_uri(self.env.docname, docname)
            title = self.env.titles[docname].astext()
            link = nodes.reference("", title, internal=True, refuri=f"{uri}#claim-{record['key']}")
            cell += [nodes.Text(", "), link] if cell else [link]
        return cell


def setup(app: Sphinx) -> None:
    """Register the directive and the hooks."""
    app.add_config_value("book_scoreboard_page", "book/scoreboard", "html", [str])
    app.add_node(scoreboard_node)
    app.add_directive("scoreboard", Scoreboard)
    app.add_post_transform(FillScoreboards)
    app.connect("doctree-read", collect)
    app.connect("env-updated", update_boards)
