"""One way to name a work, in the text, in the bibliography and on claims: author and year.

A work of the type ``software`` is told apart from the paper of the same authors and year:
"2024, code".
"""

from dataclasses import dataclass
from unicodedata import normalize

from docutils import nodes
from pybtex.database import Entry
from pybtex.plugin import register_plugin
from pybtex.richtext import Text
from pybtex.style.formatting.plain import Style as PlainStyle
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


def reference_to(domain: str, role: str, target: str, docname: str) -> pending_xref:
    """Return a reference from a page, which Sphinx resolves later."""
    options = {"refdomain": domain, "reftype": role, "reftarget": target, "refdoc": docname}
    words = nodes.inline("", target, classes=["xref", domain, f"{domain}-{role}"])
    return pending_xref("", words, **options, refexplicit=False, refwarn=True)


def source_nodes(source: str, docname: str) -> list[nodes.Node]:
    """Return "this book" or, linked to the bibliography, the author and year of a source."""
    if source == "book":
        return [nodes.Text("this book")]
    key = PAPER_KEY if source == "paper" else source
    return [reference_to("cite", "t", key, docname)]


class BookStyle(PlainStyle):
    """Entries of the bibliography, sorted and labelled by author and year."""

    get_software_template = PlainStyle.get_misc_template

    def __init__(self, **options):
        super().__init__(**options)
        self.format_labels = lambda entries: [", ".join(author_year(entry)) for entry in entries]

    def sort(self, entries):
        return sorted(entries, key=lambda entry: normalize("NFKD", str(author_year(entry)).lower()))


@node
def named(children, data, part: int):
    return Text(author_year(data["entry"])[part])


class ByAuthorAndYear(BaseReferenceStyle):
    """``{cite:t}``: Castin et al. (2024); ``{cite:p}``: (Castin et al., 2024)."""

    def role_names(self):
        return ["t", "p"]

    def outer(self, role_name, children):
        if role_name == "t":
            return join(sep=", ", last_sep=" and ")[children]
        return join["(", join(sep="; ")[children], ")"]

    def inner(self, role_name):
        before, after = (" (", ")") if role_name == "t" else (", ", "")
        return reference[join[named(0), before, named(1), after]]


@dataclass
class BookReferences(GroupReferenceStyle):
    """How the text refers to a work."""

    def __post_init__(self):
        self.styles.append(ByAuthorAndYear())
        super().__post_init__()


def setup(app: Sphinx) -> None:
    register_plugin("pybtex.style.formatting", "book", BookStyle)
    register_reference_style("sphinxcontrib.bibtex.style.referencing", "book", BookReferences)
