"""One way to name a work, in the text, in the bibliography and on claims: author and year.

A work of the type ``software`` is told apart from the paper of the same authors and year: "2024, code".
"""

from __future__ import annotations

from dataclasses import dataclass
from unicodedata import normalize

from docutils import nodes
from pybtex.database import Entry
from pybtex.plugin import register_plugin
from pybtex.richtext import Text
from pybtex.style.formatting.plain import Style as PlainStyle
from pybtex.style.labels import BaseLabelStyle
from pybtex.style.template import join, node
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinxcontrib.bibtex.plugin import register_plugin as register_reference_style
from sphinxcontrib.bibtex.style.referencing import BaseReferenceStyle, GroupReferenceStyle
from sphinxcontrib.bibtex.style.template import reference

PAPER_KEY = "castin2024"  # the work that the source "paper" of a claim means


def author_year(entry: Entry) -> tuple[str, str]:
    """Return how a work is named: ``("Castin et al.", "2024")``."""
    people = entry.persons["author"]
    names = [" ".join([*p.prelast_names, *(p.last_names or p.first_names)]) for p in people]
    who = " and ".join(names) if len(names) <= 2 else f"{names[0]} et al."
    kind = ", code" if entry.type == "software" else ""
    return who, entry.fields["year"] + kind


def source_nodes(source: str, docname: str) -> list[nodes.Node]:
    """Return "this book" or, linked to the bibliography, the author and year of a claim's source."""
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


class AuthorYearLabels(BaseLabelStyle):
    """Labels of the bibliography: ``Castin et al., 2024``."""

    def format_labels(self, sorted_entries):
        """Return the label of each entry."""
        return [", ".join(author_year(entry)) for entry in sorted_entries]


class BookStyle(PlainStyle):
    """Entries of the bibliography, sorted by author and year."""

    def __init__(self, **options):
        super().__init__(**options)
        self.format_labels = AuthorYearLabels().format_labels

    def sort(self, entries):
        """Sort as a reader looks for a label: Š among the S."""
        return sorted(entries, key=lambda entry: normalize("NFKD", str(author_year(entry)).lower()))

    get_software_template = PlainStyle.get_misc_template


@node
def named(children, data, part: int):
    """Return the author (0) or the year (1) of the work that is referred to."""
    return Text(author_year(data["entry"])[part])


class InText(BaseReferenceStyle):
    """``{cite:t}``: Castin et al. (2024)."""

    def role_names(self):
        """Return the roles that this style is for."""
        return ["t"]

    def outer(self, role_name, children):
        """Join several references."""
        return join(sep=", ", last_sep=" and ")[children]

    def inner(self, role_name):
        """Return one reference."""
        return reference[join[named(0), " (", named(1), ")"]]


class InBrackets(BaseReferenceStyle):
    """``{cite:p}``: (Castin et al., 2024)."""

    def role_names(self):
        """Return the roles that this style is for."""
        return ["p"]

    def outer(self, role_name, children):
        """Join several references, in brackets."""
        return join["(", join(sep="; ")[children], ")"]

    def inner(self, role_name):
        """Return one reference."""
        return reference[join[named(0), ", ", named(1)]]


@dataclass
class BookReferences(GroupReferenceStyle):
    """The two ways in which the text refers to a work."""

    def __post_init__(self):
        self.styles.extend([InText(), InBrackets()])
        super().__post_init__()


def setup(app: Sphinx) -> None:
    """Register the two styles under the name that ``_config.yml`` uses."""
    register_plugin("pybtex.style.formatting", "book", BookStyle)
    register_reference_style("sphinxcontrib.bibtex.style.referencing", "book", BookReferences)
