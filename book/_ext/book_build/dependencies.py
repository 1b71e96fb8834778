"""``{dependencies}``: what rests on what, read from the proofs and drawn when the book is built.

A proof is a dropdown whose title begins with that word; it belongs to the last theorem before it, or to the last lemma
where the title says “Proof of the lemma”. It rests on every theorem that it refers to. The picture shows the theorems
that have claims and rest on another such theorem, or carry one: a row for each chapter, a line for each reference.
"""

from __future__ import annotations

import html
import textwrap
from math import copysign
from statistics import fmean

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

from lab.claims import STATUSES

from .scoreboard import reading_order
from .search import plain

# Pixels of the picture: its width, a box, the room between two boxes in a row, a line of a name.
WIDTH, BOX_WIDTH, BOX_HEIGHT, GAP, LINE = 700, 110, 46, 8, 13
IN_A_ROW = (WIDTH + GAP) // (BOX_WIDTH + GAP)
HEADING, BETWEEN = 24, 20  # above the boxes of a chapter, and below them
LETTERS = 18  # how many fit into a line of a name
DOT = 3  # radius

Corner = tuple[float, float]


class dependencies_node(nodes.General, nodes.Element):
    """Stands for the picture until every page has been read."""


class Dependencies(SphinxDirective):
    """The picture of what rests on what."""

    def run(self) -> list[nodes.Node]:
        """Leave a place for the picture."""
        self.env.metadata[self.env.docname]["dependencies"] = True
        return [dependencies_node()]


def references(node: nodes.Element) -> list[str]:
    """List the theorems that a part of a page refers to."""
    found = node.findall(pending_xref)
    return [ref["reftarget"] for ref in found if ref.get("refdomain") == "prf"]


def is_proof(node: nodes.Node) -> bool:
    """Whether a node is a dropdown that holds a proof."""
    folded = isinstance(node, nodes.Element) and node.get("design_component") == "dropdown"
    return folded and bool(node.children) and node[0].astext().startswith("Proof")


def name_of(theorem: nodes.Element) -> str:
    """Return the name of a theorem, its formulas as text."""
    title = theorem.next_node(nodes.title).children
    said = (plain(n.astext()) if isinstance(n, nodes.math) else n.astext() for n in title)
    return "".join(said).strip().removeprefix("(").removesuffix(")")


def theorems_of(doctree: nodes.document) -> dict[str, dict]:
    """Return name and grounds of each labelled theorem of a page."""
    found: dict[str, dict] = {}
    for node in doctree.findall(nodes.Element):
        if "label" in node and "proof" in node.get("classes", []):
            facts = {"name": name_of(node), "kind": node["realtype"], "grounds": []}
            found[node["label"]] = facts
        elif is_proof(node):
            title = node[0].astext().split()
            named = [facts for facts in found.values() if facts["kind"] in title]
            for facts in (named or list(found.values()))[-1:]:
                facts["grounds"] += references(node)
    return found


def collect(app: Sphinx, doctree: nodes.document) -> None:
    """Note the theorems of a page that was just read."""
    app.env.metadata[app.env.docname]["theorems"] = theorems_of(doctree)


def update_pictures(app: Sphinx, env) -> list[str]:
    """Draw the picture again whenever a page has changed."""
    return sorted(name for name in env.found_docs if "dependencies" in env.metadata[name])


def graph(env) -> dict[str, dict]:
    """Return the theorems of the picture, in reading order: name, page, status, grounds."""
    found = {}
    for page in reading_order(env):
        facts = env.metadata[page]
        status: dict[str, str] = {}
        for claim in facts.get("claims", []):
            known = status.get(claim["theorem"], STATUSES[-1])
            status[claim["theorem"]] = min(known, claim["status"], key=STATUSES.index)
        for label, record in facts.get("theorems", {}).items():
            if label in status:
                found[label] = {**record, "page": page, "status": status[label]}
    for label, record in found.items():
        grounds = dict.fromkeys(record["grounds"])
        record["grounds"] = [ground for ground in grounds if ground in found and ground != label]
    carrying = {ground for record in found.values() for ground in record["grounds"]}
    return {k: record for k, record in found.items() if record["grounds"] or k in carrying}


def layout(theorems: dict[str, dict]) -> tuple[dict[str, Corner], dict[str, float]]:
    """Return the upper left corner of each theorem's box, and the top of each chapter."""
    chapters: dict[str, list[str]] = {}
    for label, record in theorems.items():
        chapters.setdefault(record["page"], []).append(label)
    corners: dict[str, Corner] = {}
    tops, top = {}, 0.0
    for page, labels in chapters.items():
        tops[page] = top
        top += HEADING
        for start in range(0, len(labels), IN_A_ROW):
            row = labels[start : start + IN_A_ROW]
            left = (WIDTH - len(row) * (BOX_WIDTH + GAP) + GAP) / 2
            placed = {label: pull(theorems[label], corners) for label in row}
            for label in sorted(row, key=placed.get):
                corners[label] = (left, top)
                left += BOX_WIDTH + GAP
            top += BOX_HEIGHT + BETWEEN
    return corners, tops


def pull(record: dict, corners: dict[str, Corner]) -> float:
    """Return how far to the right a theorem is best placed, by where its grounds above are."""
    above = [corners[ground][0] for ground in record["grounds"] if ground in corners]
    return fmean(above) if above else WIDTH / 2


def curve(ground: Corner, theorem: Corner) -> str:
    """Draw a line between two boxes, below both if they stand in one row; a dot ends it at the theorem."""
    (x, y), (u, v) = ((left + BOX_WIDTH / 2, top) for left, top in (ground, theorem))
    start, end = (y + BOX_HEIGHT if y <= v else y), (v if y < v else v + BOX_HEIGHT)
    bend = (end - start) / 2
    bends = (bend, -bend) if bend else (10 + BETWEEN * abs(x - u) / WIDTH,) * 2
    middle = f"{x:.0f} {start + bends[0]:.0f} {u:.0f} {end + bends[1]:.0f}"
    line = f'<path d="M{x:.0f} {start:.0f}C{middle} {u:.0f} {end:.0f}"/>'
    return line + f'<circle cx="{u:.0f}" cy="{end + copysign(DOT, bends[1]):.0f}" r="{DOT}"/>'


def box(record: dict, corner: Corner, uri: str, rests: str) -> str:
    """Draw a theorem: its name in a box that leads to it."""
    (x, y), lines = corner, textwrap.wrap(record["name"], LETTERS, max_lines=3, placeholder=" …")
    first = y + (BOX_HEIGHT - LINE * (len(lines) - 1)) / 2 + 4
    words = "".join(
        f'<tspan x="{x + BOX_WIDTH / 2:.0f}" y="{first + LINE * i:.1f}">{html.escape(line)}</tspan>'
        for i, line in enumerate(lines)
    )
    return (
        f'<a href="{html.escape(uri)}" class="is-{record["status"]}"><title>{html.escape(rests)}</title>'
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5"/>'
        f"<text>{words}</text></a>"
    )


def key(theorems: dict[str, dict]) -> str:
    """Say what the frames of the boxes mean, for the statuses that there are."""
    there = {record["status"] for record in theorems.values()}
    frames = [f'<span class="is-{s}">{s}</span>' for s in STATUSES if s in there]
    return f'<p class="dependencies-key">Frames: {", ".join(frames)}.</p>'


class DrawDependencies(SphinxPostTransform):
    """Put the picture in."""

    default_priority = 7

    def run(self, **kwargs) -> None:
        """Replace every placeholder of this page."""
        for node in list(self.document.findall(dependencies_node)):
            theorems = graph(self.env)
            if theorems:
                node.replace_self(nodes.raw("", self.picture(theorems), format="html"))
            else:
                node.replace_self(nodes.paragraph(text="No proof refers to another theorem yet."))

    def picture(self, theorems: dict[str, dict]) -> str:
        """Return the picture as SVG: lines first, so that boxes and words lie on them."""
        corners, tops = layout(theorems)
        pairs = [
            (ground, label) for label, record in theorems.items() for ground in record["grounds"]
        ]
        lines = [curve(corners[ground], corners[label]) for ground, label in pairs]
        boxes = [box(theorems[k], corners[k], *self.words(k, theorems)) for k in theorems]
        heads = [
            f'<text class="chapter" y="{top + 15:.0f}">{html.escape(self.chapter(page))}</text>'
            for page, top in tops.items()
        ]
        height = max(y for _, y in corners.values()) + BOX_HEIGHT + BETWEEN
        return (
            f'{key(theorems)}<svg class="dependencies" viewBox="-1 0 {WIDTH + 2} {height:.0f}" role="group" '
            f'aria-label="What rests on what"><g class="lines">{"".join(lines)}</g>'
            f"{''.join(boxes + heads)}</svg>"
        )

    def chapter(self, page: str) -> str:
        """Return the number and the title of a chapter."""
        number = self.env.toc_secnumbers.get(page, {}).get("", ())[:1]
        return "".join([*(f"{n}. " for n in number), self.env.titles[page].astext()])

    def words(self, label: str, theorems: dict[str, dict]) -> tuple[str, str]:
        """Return where a theorem stands, and in a sentence what it rests on."""
        record = theorems[label]
        uri = self.app.builder.get_relative_uri(self.env.docname, record["page"])
        named = ", ".join(theorems[ground]["name"] for ground in record["grounds"])
        rests = f"{record['name']} rests on: {named}." if named else record["name"]
        return f"{uri}#{label}", rests


def setup(app: Sphinx) -> None:
    """Register the directive and the hooks."""
    app.add_node(dependencies_node)
    app.add_directive("dependencies", Dependencies)
    app.add_post_transform(DrawDependencies)
    app.connect("doctree-read", collect)
    app.connect("env-updated", update_pictures)
