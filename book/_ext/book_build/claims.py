"""Claims in the boxes of their theorems and on ``{scoreboard}``; checks folded under their lines.

The cells of a page leave a :class:`lab.claims.Claim` or a :class:`lab.claims.Checked` as data with
a MIME type of its own. A claim that names a theorem of its page becomes a line at the foot of that
theorem, which says its statement only if the theorem has several; one that names none becomes a box
where it stands. The scoreboard has them all, a table for each part of the book, and says what each
theorem rests on: on every theorem to which its proof refers. A proof is a dropdown whose title
begins with that word; it belongs to the last theorem before it, or to the last lemma where the
title says “Proof of the lemma”.
"""

from __future__ import annotations

from collections import Counter
from itertools import starmap
from typing import ClassVar

import nbformat
from docutils import nodes
from docutils.parsers.rst import directives
from myst_nb.core.render import NbElementRenderer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from lab.claims import CHECKED_TYPE, MIME_TYPE, STATUSES, format_ratio

from .citations import reference_to, source_nodes
from .execution import executed_notebook

logger = logging.getLogger(__name__)

BOARD = "book/scoreboard"
# What a status of the scoreboard is called beside the statement.
WORDS = {
    "enclosed": "Proved here, constant enclosed",
    "proved": "Proved here",
    "checked": "Checked here",
    "fails": "Fails",
    "open": "Open",
}
Cell = list[nodes.Node]
HEADER = ["Claim", "Status", "Closest call", "Rests on", "Chapter and source"]


class result_node(nodes.General, nodes.Element):
    """Stands for a claim, or for the line of a check, among the outputs of a cell."""


class fold_node(nodes.General, nodes.Element):
    """What is folded under its first child."""


class fold_title_node(nodes.General, nodes.TextElement):
    """The line that stays visible."""


class scoreboard_node(nodes.General, nodes.Element):
    """Stands for the scoreboard until every page has been read."""


class Scoreboard(SphinxDirective):
    """The tables of all claims, or one table of those with a status."""

    option_spec: ClassVar = {"status": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Leave a place for the tables."""
        self.env.metadata[self.env.docname]["scoreboard"] = True
        return [scoreboard_node(status=self.options.get("status"))]


# ---- what a page holds ----


def is_theorem(node: nodes.Node) -> bool:
    """Whether a node is a box of sphinx-proof."""
    return isinstance(node, nodes.Admonition) and "proof" in node.get("classes", [])


def is_proof(node: nodes.Node) -> bool:
    """Whether a node is a dropdown that holds a proof."""
    folded = isinstance(node, nodes.Element) and node.get("design_component") == "dropdown"
    return folded and bool(node.children) and node[0].astext().startswith("Proof")


def theorems_of(doctree: nodes.document) -> dict[str, dict]:
    """Return kind and grounds of each labelled theorem of a page."""
    found: dict[str, dict] = {}
    for node in doctree.findall(nodes.Element):
        if is_theorem(node) and node.get("label"):
            found[node["label"]] = {"kind": node["realtype"], "grounds": []}
        elif is_proof(node):
            words = node[0].astext().split()
            meant = [record for record in found.values() if record["kind"] in words]
            for record in (meant or list(found.values()))[-1:]:
                record["grounds"] += [
                    ref["reftarget"]
                    for ref in node.findall(pending_xref)
                    if ref.get("refdomain") == "prf"
                ]
    return found


def collect(app: Sphinx, doctree: nodes.document) -> None:
    """Note the claims of a page that was just read, and what its theorems rest on."""
    facts = app.env.metadata[app.env.docname]
    facts["grounds"] = {
        label: [ground for ground in dict.fromkeys(record["grounds"]) if ground != label]
        for label, record in theorems_of(doctree).items()
    }
    path = executed_notebook(app.env, app.env.docname)
    if not facts.get("kernelspec") or not path.exists():
        return
    cells = nbformat.read(path, as_version=4).cells
    outputs = (output.get("data", {}) for cell in cells for output in cell.get("outputs", []))
    facts["claims"] = [dict(data[MIME_TYPE]) for data in outputs if MIME_TYPE in data]
    for key, times in Counter(item["key"] for item in facts["claims"]).items():
        if times > 1:
            text = "claim %r is stated %d times on one page"
            logger.warning(text, key, times, location=app.env.docname)


def needs_maths(env, docname: str) -> None:
    """Let a page load MathJax, even if its own source has no formula."""
    env.get_domain("math").data["has_equations"][docname] = True


def maths(text: str) -> list[nodes.Node]:
    """Split a sentence into text and mathematics."""
    parts = enumerate(text.split("$"))
    return [nodes.math(p, p) if i % 2 else nodes.Text(p) for i, p in parts if p]


# ---- on the page ----


def keep_results(render_unhandled):
    """Let myst-nb keep the data of claims and checks, and still warn about other unknown types."""

    def render(self, data):
        if data.mime_type not in (MIME_TYPE, CHECKED_TYPE):
            return render_unhandled(self, data)
        return [result_node(record=dict(data.content), claims=data.mime_type == MIME_TYPE)]

    return render


def cell_of(node: nodes.Node) -> nodes.Node:
    """Return the cell among whose outputs a node stands."""
    while node.get("nb_element") != "cell_code":
        node = node.parent
    return node


def take_out(node: nodes.Node) -> None:
    """Remove an output in all its forms, and the cell if nothing is left of it."""
    while node.get("nb_element") != "mime_bundle":
        node = node.parent
    parent = node.parent
    parent.remove(node)
    while not parent.children and isinstance(parent, nodes.container):
        parent, empty = parent.parent, parent
        parent.remove(empty)


def dotted(*parts: list[nodes.Node]) -> list[nodes.Node]:
    """Return the parts that there are, with dots between."""
    line: list[nodes.Node] = []
    for part in filter(None, parts):
        line += [nodes.Text(" · "), *part] if line else part
    return line


class ShowResults(SphinxPostTransform):
    """Put claims and checks where they are read, before an output's form is chosen."""

    default_priority = 3

    def run(self, **kwargs) -> None:
        """Show every result of this page."""
        results = list(self.document.findall(result_node))
        claims = [node for node in results if node["claims"]]
        times = Counter(node["record"]["theorem"] for node in claims)
        for node in claims:
            label = node["record"]["theorem"]
            self.show_claim(node, says_all=label is not None and times[label] == 1)
        for cell in list(self.document.findall(nodes.container)):
            if "tag_check" in cell["classes"]:
                self.fold(cell)
        for node in list(self.document.findall(result_node)):
            self.warn(f"“{node['record']['text']}” needs a cell with the tag check")
            take_out(node)

    def warn(self, text: str) -> None:
        """Report what is wrong with a page."""
        logger.warning(text, location=self.env.docname)

    def text(self, sentence: str) -> list[nodes.Node]:
        """Return a sentence with its mathematics."""
        if "$" in sentence:
            needs_maths(self.env, self.env.docname)
        return maths(sentence)

    def show_claim(self, node: result_node, *, says_all: bool) -> None:
        """Move a claim into its theorem, or out of its cell; say it unless the theorem does."""
        record, cell = node["record"], cell_of(node)
        label, key = record["theorem"], record["key"]
        box = nodes.compound(classes=["claim", f"claim-{record['status']}"], ids=[f"claim-{key}"])
        status = nodes.inline("", WORDS[record["status"]], classes=["claim-status"])
        facts = self.facts(record)
        if says_all:
            box += nodes.paragraph("", "", *dotted([status], facts))
        else:
            statement = self.text(record["statement"])
            box += nodes.paragraph("", "", status, nodes.Text(": "), *statement)
        if record["witness"]:
            words = [nodes.Text("Witness: "), *self.text(record["witness"])]
            box += nodes.paragraph("", "", *words, classes=["claim-witness"])
        if not says_all:
            box += nodes.paragraph("", "", *facts, classes=["claim-facts"])
        theorems = (part for part in self.document.findall(is_theorem) if label in part["ids"])
        if label is None:
            cell.parent.insert(cell.parent.index(cell) + 1, box)
        elif theorem := next(theorems, None):
            theorem += box
        else:
            self.warn(f"claim {key!r}: there is no theorem {label!r} on this page")
        take_out(node)

    def facts(self, record: dict) -> list[nodes.Node]:
        """Return how close a claim came to failing, who says it, and the way to its row."""
        ratio, board = [], []
        if record["ratio"] is not None:
            seen = "largest ratio seen" if record["status"] == "fails" else "closest call seen"
            ratio = [nodes.Text(f"{seen}: {format_ratio(record['ratio'])}")]
        if BOARD in self.env.found_docs:
            uri = self.app.builder.get_relative_uri(self.env.docname, BOARD)
            address = f"{uri}#board-{record['key']}"
            board = [nodes.reference("", "scoreboard", internal=True, refuri=address)]
        return dotted(ratio, source_nodes(record["source"], self.env.docname), board)

    def fold(self, cell: nodes.container) -> None:
        """Fold a cell under its line."""
        node = next(iter(cell.findall(result_node)), None)
        if node is None:
            self.warn("a cell with the tag check must end with checked(…)")
            return
        title = fold_title_node("", "", nodes.Text("✓ "), *self.text(node["record"]["text"]))
        take_out(node)
        cell.children = [fold_node("", title, *cell.children)]
        cell.setup_child(cell.children[0])


class CodeBelow(SphinxPostTransform):
    """Put folded code below what it draws, after myst-nb has folded it."""

    default_priority = 200

    def run(self, **kwargs) -> None:
        """Swap code and output of each cell whose code is folded."""
        for cell in self.document.findall(nodes.container):
            if cell.get("hide_mode") == "input" and len(cell.children) == 2:
                cell.children.reverse()


# ---- the scoreboard ----


def update_boards(app: Sphinx, env) -> list[str]:
    """Write the scoreboard again whenever a page has changed."""
    boards = [docname for docname in env.found_docs if "scoreboard" in env.metadata[docname]]
    for docname in boards:
        needs_maths(env, docname)
    return sorted(boards)


def reading_order(env) -> list[str]:
    """List the pages in the order of the table of contents."""
    relations, docname, order = env.collect_relations(), env.config.root_doc, []
    while docname is not None:
        order.append(docname)
        docname = relations.get(docname, [None, None, None])[2]
    return order


def merge(env) -> list[dict]:
    """Return one record for each claim, in reading order, with every page that shows it."""
    merged: dict[str, dict] = {}
    for docname in reading_order(env):
        grounds = env.metadata[docname].get("grounds", {})
        for item in env.metadata[docname].get("claims", []):
            fresh = {**item, "pages": [], "grounds": grounds.get(item["theorem"], [])}
            combine(merged.setdefault(item["key"], fresh), item, docname)
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


class FillScoreboards(SphinxPostTransform):
    """Put the tables in, before references are resolved."""

    default_priority = 7

    def run(self, **kwargs) -> None:
        """Replace every placeholder of this page."""
        for place in list(self.document.findall(scoreboard_node)):
            status = place["status"]
            records = [r for r in merge(self.env) if status in (None, r["status"])]
            place.replace_self([self.table(records)] if status else self.board(records))

    def board(self, records: list[dict]) -> list[nodes.Node]:
        """Return the summary and the tables, one for each part of the book."""
        counts = Counter(r["status"] for r in records)
        summary = ", ".join(f"{counts[s]} {s}" for s in STATUSES if counts[s])
        trees = self.env.external_site_map.root.subtrees
        part_of = {
            docname: tree.caption or "The book" for tree in trees for docname in tree.files()
        }
        parts: dict[str, list[dict]] = {}
        for record in records:
            parts.setdefault(part_of.get(record["pages"][0], "The book"), []).append(record)
        said = nodes.paragraph(text=f"{len(records)} claims: {summary}.", classes=["board-summary"])
        return [said, *starmap(self.part, parts.items())]

    def part(self, name: str, records: list[dict]) -> nodes.Node:
        """Return the claims of one part of the book."""
        box = nodes.container(classes=["board-part"], ids=[f"part-{nodes.make_id(name)}"])
        box += [nodes.rubric(text=name), self.table(records)]
        return box

    def table(self, records: list[dict]) -> nodes.table:
        """Return one table; its rows carry their status as a class."""
        head = nodes.thead("", table_row([[nodes.Text(name)] for name in HEADER]))
        body = nodes.tbody()
        for record in records:
            row = table_row(self.row(record))
            row["ids"].append(f"board-{record['key']}")
            row["classes"].append(f"is-{record['status']}")
            body += row
        columns = [nodes.colspec(colwidth=20) for _ in HEADER]
        group = nodes.tgroup("", *columns, head, body, cols=len(HEADER))
        return nodes.table("", group, classes=["colwidths-auto", "scoreboard"])

    def row(self, record: dict) -> list[Cell]:
        """Return the cells of one claim."""
        statement = maths(record["statement"])
        if record["witness"]:
            witness = [nodes.Text(" Witness: "), *maths(record["witness"])]
            statement.append(nodes.inline("", "", *witness, classes=["claim-witness"]))
        classes = ["claim-status", f"claim-{record['status']}"]
        ratio = "–" if record["ratio"] is None else format_ratio(record["ratio"])
        here = self.env.docname
        grounds = [[reference_to("prf", "ref", ground, here)] for ground in record["grounds"]]
        source = nodes.inline(
            "", "", *source_nodes(record["source"], here), classes=["board-source"]
        )
        return [
            statement,
            [nodes.inline("", record["status"], classes=classes)],
            [nodes.Text(ratio)],
            listed(grounds),
            [*listed([[self.link(record, page)] for page in record["pages"]]), source],
        ]

    def link(self, record: dict, page: str) -> nodes.reference:
        """Link to the claim on a page that shows it."""
        uri = self.app.builder.get_relative_uri(self.env.docname, page)
        number = self.env.toc_secnumbers.get(page, {}).get("", ())
        title = "".join([*(f"{n}. " for n in number[:1]), self.env.titles[page].astext()])
        return nodes.reference("", title, internal=True, refuri=f"{uri}#claim-{record['key']}")


def table_row(cells: list[Cell]) -> nodes.row:
    """Return a row of a table."""
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def listed(parts: list[Cell]) -> Cell:
    """Join parts by commas."""
    return [node for part in parts for node in (nodes.Text(", "), *part)][1:]


def load_filter(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Load the filter's script where there is a board."""
    if "scoreboard" in app.env.metadata.get(pagename, {}):
        app.add_js_file("board.js", loading_method="defer")


def tags(opening: str, closing: str):
    """Return how to write a node as HTML: its tags."""
    return (
        lambda self, node: self.body.append(opening),
        lambda self, node: self.body.append(closing),
    )


def setup(app: Sphinx) -> None:
    """Register the directive, the nodes and the transforms."""
    if not getattr(NbElementRenderer, "keeps_results", False):
        NbElementRenderer.render_unhandled = keep_results(NbElementRenderer.render_unhandled)
        NbElementRenderer.keeps_results = True
    app.add_node(result_node)
    app.add_node(scoreboard_node)
    app.add_node(fold_node, html=tags('<details class="check">\n', "</details>\n"))
    app.add_node(fold_title_node, html=tags("<summary>", "</summary>\n"))
    app.add_directive("scoreboard", Scoreboard)
    for transform in (ShowResults, CodeBelow, FillScoreboards):
        app.add_post_transform(transform)
    app.connect("doctree-read", collect)
    app.connect("env-updated", update_boards)
    app.connect("html-page-context", load_filter)
