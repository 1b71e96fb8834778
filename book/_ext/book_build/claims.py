"""Claims in the boxes of their theorems and on ``{scoreboard}``; checks folded under their lines.

The cells of a page leave a :class:`lab.claims.Claim` or a :class:`lab.claims.Checked` as data with
a MIME type of its own. A claim that names a theorem of its page becomes a line at the foot of that
theorem, which says its statement only if the theorem has several; one that names none becomes a box
where it stands. The scoreboard has them all, a table for each part of the book, and says what each
theorem rests on: on every theorem to which its proof refers. A proof is a dropdown whose title
begins with that word; it belongs to the last theorem before it, or to the last lemma where the
title says “Proof of the lemma”.
"""

from collections import Counter

import nbformat
from docutils import nodes
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
HEADER = ["Claim", "Status", "Closest call", "Chapter and source"]


class result_node(nodes.General, nodes.Element):
    """Stands for a claim, or for the line of a check, among the outputs of a cell."""


class fold_node(nodes.General, nodes.Element):
    """What is folded under its first child."""


class fold_title_node(nodes.General, nodes.TextElement):
    """The line that stays visible."""


class scoreboard_node(nodes.General, nodes.Element):
    """Stands for the scoreboard until every page has been read."""


class Scoreboard(SphinxDirective):
    """The tables of all claims."""

    def run(self) -> list[nodes.Node]:
        self.env.metadata[self.env.docname]["scoreboard"] = True
        return [scoreboard_node()]


# ---- what a page holds ----


def is_theorem(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Admonition) and "proof" in node.get("classes", [])


def is_proof(node: nodes.Node) -> bool:
    folded = isinstance(node, nodes.Element) and node.get("design_component") == "dropdown"
    return folded and bool(node.children) and node[0].astext().startswith("Proof")


def collect(app: Sphinx, doctree: nodes.document) -> None:
    """Note what the theorems of a page that was just read rest on, and its claims."""
    facts = app.env.metadata[app.env.docname]
    grounds = facts["grounds"] = {}
    kinds: dict[str, str] = {}
    for node in doctree.findall(nodes.Element):
        if is_theorem(node) and node.get("label"):
            kinds[node["label"]] = node["realtype"]
            grounds[node["label"]] = []
        elif is_proof(node):
            words = node[0].astext().split()
            meant = [label for label, kind in kinds.items() if kind in words] or list(kinds)
            for label in meant[-1:]:
                refs = [ref for ref in node.findall(pending_xref) if ref.get("refdomain") == "prf"]
                targets = [ref["reftarget"] for ref in refs if ref["reftarget"] != label]
                grounds[label] = list(dict.fromkeys(grounds[label] + targets))
    path = executed_notebook(app.env, app.env.docname)
    if facts.get("kernelspec") and path.exists():
        cells = nbformat.read(path, as_version=4).cells
        outputs = (output.get("data", {}) for cell in cells for output in cell.get("outputs", []))
        facts["claims"] = [dict(data[MIME_TYPE]) for data in outputs if MIME_TYPE in data]


def needs_maths(env, docname: str) -> None:
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
    line: list[nodes.Node] = []
    for part in filter(None, parts):
        line += [nodes.Text(" · "), *part] if line else part
    return line


class ShowResults(SphinxPostTransform):
    """Put claims and checks where they are read, before an output's form is chosen."""

    default_priority = 3

    def run(self, **kwargs) -> None:
        results = list(self.document.findall(result_node))
        if results:
            needs_maths(self.env, self.env.docname)
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
        logger.warning(text, location=self.env.docname)

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
            statement = maths(record["statement"])
            box += nodes.paragraph("", "", status, nodes.Text(": "), *statement)
        if record["witness"]:
            words = [nodes.Text("Witness: "), *maths(record["witness"])]
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
        node = next(iter(cell.findall(result_node)), None)
        if node is None:
            self.warn("a cell with the tag check must end with checked(…)")
            return
        title = fold_title_node("", "", nodes.Text("✓ "), *maths(node["record"]["text"]))
        take_out(node)
        cell.children = [fold_node("", title, *cell.children)]
        cell.setup_child(cell.children[0])


class CodeBelow(SphinxPostTransform):
    """Put folded code below what it draws, after myst-nb has folded it."""

    default_priority = 200

    def run(self, **kwargs) -> None:
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


def parts_of_book(env) -> dict[str, str]:
    """Return the part of the book in which each page stands, in reading order."""
    trees = env.external_site_map.root.subtrees
    return {docname: tree.caption or "The book" for tree in trees for docname in tree.files()}


def all_claims(env) -> list[dict]:
    """Return the claims in reading order, each with its page and what its theorem rests on."""
    found: dict[str, dict] = {}
    for docname in parts_of_book(env):
        grounds = env.metadata[docname].get("grounds", {})
        for item in env.metadata[docname].get("claims", []):
            if item["key"] in found:
                logger.warning("claim %r is stated twice", item["key"], location=docname)
            place = {"page": docname, "grounds": grounds.get(item["theorem"], [])}
            found[item["key"]] = {**item, **place}
    return list(found.values())


class FillScoreboards(SphinxPostTransform):
    """Put the tables in, before references are resolved."""

    default_priority = 7

    def run(self, **kwargs) -> None:
        for place in list(self.document.findall(scoreboard_node)):
            place.replace_self(self.board(all_claims(self.env)))

    def board(self, records: list[dict]) -> list[nodes.Node]:
        """Return the summary and the tables, one for each part of the book."""
        counts = Counter(r["status"] for r in records)
        summary = ", ".join(f"{counts[s]} {s}" for s in STATUSES if counts[s])
        part_of, parts = parts_of_book(self.env), {}
        for record in records:
            parts.setdefault(part_of[record["page"]], []).append(record)
        text = f"{len(records)} claims: {summary}."
        found: list[nodes.Node] = [nodes.paragraph(text=text, classes=["board-summary"])]
        for name, claims in parts.items():
            box = nodes.container(classes=["board-part"], ids=[f"part-{nodes.make_id(name)}"])
            box += [nodes.rubric(text=name), self.table(claims)]
            found.append(box)
        return found

    def table(self, records: list[dict]) -> nodes.table:
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
        statement = maths(record["statement"])
        if record["witness"]:
            witness = [nodes.Text(" Witness: "), *maths(record["witness"])]
            statement.append(nodes.inline("", "", *witness, classes=["claim-witness"]))
        classes = ["claim-status", f"claim-{record['status']}"]
        ratio = "–" if record["ratio"] is None else format_ratio(record["ratio"])
        return [
            statement,
            [nodes.inline("", record["status"], classes=classes)],
            [nodes.Text(ratio)],
            [self.link(record), *self.grounds(record)],
        ]

    def grounds(self, record: dict) -> list[nodes.Node]:
        """Return who says a claim, and what its theorem rests on."""
        here = self.env.docname
        words = source_nodes(record["source"], here)
        source = nodes.inline("", "", *words, classes=["board-source"])
        if not record["grounds"]:
            return [source]
        rests = nodes.inline("", "rests on ", classes=["board-source"])
        for place, ground in enumerate(record["grounds"]):
            rests += [nodes.Text(", ")] if place else []
            rests += reference_to("prf", "ref", ground, here)
        return [source, rests]

    def link(self, record: dict) -> nodes.reference:
        page = record["page"]
        uri = self.app.builder.get_relative_uri(self.env.docname, page)
        number = self.env.toc_secnumbers.get(page, {}).get("", ())
        title = "".join([*(f"{n}. " for n in number[:1]), self.env.titles[page].astext()])
        return nodes.reference("", title, internal=True, refuri=f"{uri}#claim-{record['key']}")


def table_row(cells: list[Cell]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def tags(opening: str, closing: str):
    """Return how to write a node as HTML: its tags."""
    return (
        lambda self, node: self.body.append(opening),
        lambda self, node: self.body.append(closing),
    )


def setup(app: Sphinx) -> None:
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
