"""Claims are shown in the box of their theorem, and checks are folded under the line of their result.

The cells of a page leave a :class:`lab.claims.Claim` or a :class:`lab.claims.Checked` as data with a
MIME type of its own. A claim that names a theorem of its page becomes a line at the foot of that theorem, which says
its statement only if the theorem has several; one that names none becomes a box where it stands. A cell with the tag
``check`` is folded under its line, and the code of a figure below the figure.
"""

from __future__ import annotations

from collections import Counter

from docutils import nodes
from myst_nb.core.render import NbElementRenderer
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

from lab.claims import CHECKED_TYPE, MIME_TYPE, format_ratio

from .citations import source_nodes
from .scoreboard import maths

logger = logging.getLogger(__name__)

# What a status of the scoreboard is called beside the statement.
WORDS = {
    "enclosed": "Proved here, constant enclosed",
    "proved": "Proved here",
    "checked": "Checked here",
    "fails": "Fails",
    "open": "Open",
}


class claim_node(nodes.General, nodes.Element):
    """Stands for a claim among the outputs of a cell."""


class checked_node(nodes.General, nodes.Element):
    """Stands for the line of a check among the outputs of a cell."""


class fold_node(nodes.General, nodes.Element):
    """What is folded under its first child."""


class fold_title_node(nodes.General, nodes.TextElement):
    """The line that stays visible."""


PLACES = {MIME_TYPE: claim_node, CHECKED_TYPE: checked_node}


def parts(text: str, *more: list[nodes.Node]) -> list[nodes.Node]:
    """Return a text and what follows it, with dots between."""
    line: list[nodes.Node] = [nodes.Text(text)] if text else []
    for part in filter(None, more):
        line += [nodes.Text(" · "), *part] if line else part
    return line


class ShowResults(SphinxPostTransform):
    """Put claims and checks where they are read, before an output's form is chosen."""

    default_priority = 3

    def run(self, **kwargs) -> None:
        """Show every result of this page."""
        claims = list(self.document.findall(claim_node))
        times = Counter(node["record"]["theorem"] for node in claims)
        for node in claims:
            label = node["record"]["theorem"]
            self.show_claim(node, says_all=label is not None and times[label] == 1)
        for cell in list(self.document.findall(nodes.container)):
            if "tag_check" in cell["classes"]:
                self.fold(cell)
        for node in list(self.document.findall(checked_node)):
            self.warn(f"“{node['record']['text']}” needs a cell with the tag check", node)
            take_out(node)

    def warn(self, text: str, node: nodes.Node) -> None:
        """Report what is wrong with a page, as a warning, which is an error."""
        logger.warning(text, location=self.env.docname)

    def text(self, sentence: str) -> list[nodes.Node]:
        """Return a sentence; its mathematics needs MathJax, even where the page has none."""
        if "$" in sentence:
            self.env.get_domain("math").data["has_equations"][self.env.docname] = True
        return maths(sentence)

    def show_claim(self, node: claim_node, *, says_all: bool) -> None:
        """Move a claim into its theorem, or out of its cell; say it unless the theorem says it all."""
        record, cell = node["record"], cell_of(node)
        label, key = record["theorem"], record["key"]
        box = nodes.compound(classes=["claim", f"claim-{record['status']}"], ids=[f"claim-{key}"])
        if says_all:
            line = parts("", [self.status(record)], self.facts(record))
            box += [nodes.paragraph("", "", *line), *self.witness(record)]
        else:
            box += nodes.paragraph(
                "", "", self.status(record), nodes.Text(": "), *self.text(record["statement"])
            )
            box += self.witness(record)
            box += nodes.paragraph("", "", *self.facts(record), classes=["claim-facts"])
        if label is None:
            cell.parent.insert(cell.parent.index(cell) + 1, box)
        elif theorem := next(
            (n for n in self.document.findall(is_theorem) if label in n["ids"]), None
        ):
            theorem += box
        else:
            self.warn(f"claim {key!r}: there is no theorem {label!r} on this page", node)
        take_out(node)

    def status(self, record: dict) -> nodes.Node:
        """Return what is known of a claim, in a word."""
        word = WORDS[record["status"]]
        return nodes.inline("", word, classes=["claim-status"])

    def witness(self, record: dict) -> list[nodes.Node]:
        """Return the input on which a claim fails."""
        if not record["witness"]:
            return []
        words = [nodes.Text("Witness: "), *self.text(record["witness"])]
        return [nodes.paragraph("", "", *words, classes=["claim-witness"])]

    def facts(self, record: dict) -> list[nodes.Node]:
        """Return how close a claim came to failing, who says it, and the way to the scoreboard."""
        seen = "largest ratio seen" if record["status"] == "fails" else "closest call seen"
        ratio = "" if record["ratio"] is None else f"{seen}: {format_ratio(record['ratio'])}"
        source = source_nodes(record["source"], self.env.docname)
        return parts(ratio, source, self.board(record["key"]))

    def board(self, key: str) -> list[nodes.Node]:
        """Return a link to the claim's row on the scoreboard."""
        whole = self.config.book_scoreboard_page
        if whole not in self.env.found_docs:
            return []
        uri = self.app.builder.get_relative_uri(self.env.docname, whole)
        link = nodes.reference("", "scoreboard", internal=True, refuri=f"{uri}#board-{key}")
        return [link]

    def fold(self, cell: nodes.container) -> None:
        """Fold a cell under its line."""
        node = next(iter(cell.findall(checked_node)), None)
        if node is None:
            self.warn("a cell with the tag check must end with checked(…)", cell)
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


def is_theorem(node: nodes.Node) -> bool:
    """Whether a node is a box of sphinx-proof."""
    return isinstance(node, nodes.Admonition) and "proof" in node.get("classes", [])


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


def keep_results(render_unhandled):
    """Let myst-nb keep the data of claims and checks, and still warn about any other unknown type."""

    def render(self, data):
        place = PLACES.get(data.mime_type)
        return [place(record=dict(data.content))] if place else render_unhandled(self, data)

    return render


def open_fold(self, node: fold_node) -> None:
    """Open the part that folds."""
    self.body.append('<details class="check">\n')


def close_fold(self, node: fold_node) -> None:
    """Close the part that folds."""
    self.body.append("</details>\n")


def open_title(self, node: fold_title_node) -> None:
    """Open the line that stays visible."""
    self.body.append("<summary>")


def close_title(self, node: fold_title_node) -> None:
    """Close the line that stays visible."""
    self.body.append("</summary>\n")


def setup(app: Sphinx) -> None:
    """Register the nodes and the transform."""
    if not getattr(NbElementRenderer, "keeps_results", False):
        NbElementRenderer.render_unhandled = keep_results(NbElementRenderer.render_unhandled)
        NbElementRenderer.keeps_results = True
    app.add_node(claim_node)
    app.add_node(checked_node)
    app.add_node(fold_node, html=(open_fold, close_fold))
    app.add_node(fold_title_node, html=(open_title, close_title))
    app.add_post_transform(ShowResults)
    app.add_post_transform(CodeBelow)
