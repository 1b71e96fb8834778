"""``{figure-list}``: every numbered figure of the book, with the first sentence of its caption."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

from .scoreboard import reading_order

SENTENCE = re.compile(r"[.?!](?=\s|$)")


class figure_list_node(nodes.General, nodes.Element):
    """Stands for the list until every page has been read."""


class FigureList(SphinxDirective):
    """The list of figures."""

    def run(self) -> list[nodes.Node]:
        """Leave a place for the list."""
        self.env.metadata[self.env.docname]["figure_list"] = True
        return [figure_list_node()]


def first_sentence(caption: nodes.caption) -> list[nodes.Node]:
    """Return the words and formulas of a caption up to its first stop."""
    kept: list[nodes.Node] = []
    for part in caption.children:
        if isinstance(part, nodes.Text) and (stop := SENTENCE.search(part)):
            return [*kept, nodes.Text(part[: stop.end()])]
        kept.append(part.deepcopy())
    return kept


def update_lists(app: Sphinx, env) -> list[str]:
    """Write the list again whenever a page is; it needs MathJax for the captions."""
    lists = [name for name in sorted(env.found_docs) if "figure_list" in env.metadata[name]]
    for docname in lists:
        env.get_domain("math").data["has_equations"][docname] = True
    return lists


class FillFigureLists(SphinxPostTransform):
    """Put the list in, before references are resolved."""

    default_priority = 7

    def run(self, **kwargs) -> None:
        """Replace every placeholder of this page."""
        for place in list(self.document.findall(figure_list_node)):
            place.replace_self(
                [part for docname in reading_order(self.env) for part in self.page(docname)]
            )

    def page(self, docname: str) -> list[nodes.Node]:
        """Return the title of a page and its figures, or nothing."""
        numbers = self.env.toc_fignumbers.get(docname, {}).get("figure", {})
        figures = self.env.get_doctree(docname).findall(nodes.figure) if numbers else []
        items = [self.item(docname, figure, numbers) for figure in figures]
        if not any(items):
            return []
        title = nodes.rubric("", self.env.titles[docname].astext())
        return [title, nodes.bullet_list("", *filter(None, items), classes=["figure-list"])]

    def item(self, docname: str, figure: nodes.figure, numbers: dict) -> nodes.list_item | None:
        """Return the number of a figure, which leads to it, and its first sentence."""
        caption, label = figure.next_node(nodes.caption), next(iter(figure["ids"]), None)
        if caption is None or label not in numbers:
            return None
        number = self.config.numfig_format["figure"] % ".".join(map(str, numbers[label]))
        address = self.app.builder.get_relative_uri(self.env.docname, docname)
        link = nodes.reference("", number, internal=True, refuri=f"{address}#{label}")
        words = first_sentence(caption)
        for word in words:
            for reference in word.findall(pending_xref):
                reference["refdoc"] = self.env.docname
        return nodes.list_item("", nodes.paragraph("", "", link, nodes.Text(" "), *words))


def setup(app: Sphinx) -> None:
    """Register the directive and the hooks."""
    app.add_node(figure_list_node)
    app.add_directive("figure-list", FigureList)
    app.add_post_transform(FillFigureLists)
    app.connect("env-updated", update_lists)
