"""Offer every notebook page as ``.ipynb``: executed, with outputs, in Markdown that viewers show."""

import ast
import base64
import json
import posixpath
import re
from collections.abc import Callable
from html import escape
from pathlib import Path

import nbformat
from sphinx.application import Sphinx

from .citations import author_year
from .execution import executed_notebook
from .plain import Converter, definitions

EXPLICIT = re.compile(r"^(?P<text>.*?)\s*<(?P<target>[^>]+)>$", re.DOTALL)
SOLUTION = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{solution-(?P<edge>start|end)\}[ \t]*(?P<label>\S*)[ \t]*\n"
    r"(?:.*\n)*?(?P=fence)[ \t]*$",
    re.MULTILINE,
)
INSTALL = """# Outside a copy of the book's repository: get one, with what this page imports.
import importlib.util
import sys
from pathlib import Path

checkout = Path("{folder}").resolve()
if importlib.util.find_spec("lab") is None:
    if not checkout.is_dir():
        !git clone --quiet --depth 1 {repository}
    %pip install --quiet "./{folder}[book]"
    sys.path += [str(checkout / "notebooks")]"""


class References:
    """Answers what the roles on one page refer to, from Sphinx's own tables."""

    def __init__(self, app: Sphinx, docname: str):
        self.env, self.docname = app.env, docname
        self.bibliography = self.env.get_domain("cite").bibdata.data.entries
        self.exercises = getattr(self.env, "sphinx_exercise_registry", {})
        self.theorems = getattr(self.env, "proof_list", {})
        numbers = self.env.toc_fignumbers.values()
        self.figures = {label for page in numbers for label in page.get("figure", {})}

    def number(self, label: str) -> str:
        equation = self.env.get_domain("math").equations.get(label)
        if equation:
            return str(equation[1])
        for kinds in self.env.toc_fignumbers.values():
            for numbers in kinds.values():
                if label in numbers:
                    return ".".join(map(str, numbers[label]))
        return ""

    def resolve(self, role: str, target: str) -> str:
        explicit = EXPLICIT.match(target)
        text, name = (explicit["text"], explicit["target"]) if explicit else ("", target)
        label = name.partition("#")[2] or name
        if role.startswith("cite"):
            return self.citation(role, name)
        if role.startswith("glue"):
            return self.glued(name)
        if role == "eq":
            return f"({self.number(name) or name})"
        if label in self.theorems:
            theorem = self.theorems[label]
            words = f"{theorem['realtype'].capitalize()} {self.number(label)}"
            return self.to(text or words, theorem["docname"])
        if label in self.exercises:
            words = text or f"Exercise {self.number(label)}"
            return self.to(words, self.exercises[label]["docname"], f"#{label}")
        if name in self.figures:
            return (text or "Figure %s").replace("%s", self.number(name))
        if role in ("ref", "numref", "doc", "link"):
            return self.link(role, text, name)
        return text if explicit else f"`{name.lstrip('~!')}`"

    def citation(self, role: str, keys: str) -> str:
        cited = [author_year(self.bibliography[key.strip()]) for key in keys.split(",")]
        if role == "cite:t":
            return ", ".join(f"{who} ({year})" for who, year in cited)
        return "(" + "; ".join(f"{who}, {year}" for who, year in cited) + ")"

    def link(self, role: str, text: str, name: str) -> str:
        labels, titles = self.env.get_domain("std").labels, self.env.titles
        page, _, anchor = name.partition("#")
        docname = self.page(page) if page else self.docname
        label = anchor or name
        if label in labels:
            docname, _, title = labels[label]
            return self.to(text or title, docname, f"#{label}")
        if docname not in titles:
            return f"[{text or name}]({name})" if role == "link" else text or name
        return self.to(text or titles[docname].astext(), docname, f"#{anchor}" if anchor else "")

    def page(self, path: str) -> str:
        folder = "" if path.startswith("/") else posixpath.dirname(self.docname)
        path = posixpath.normpath(posixpath.join(folder, path.lstrip("/")))
        return re.sub(r"\.(md|ipynb|html)$", "", path)

    def to(self, text: str, docname: str, anchor: str = "") -> str:
        """Link to a place on this page, to a sibling notebook, or to a page of the book."""
        if docname == self.docname:
            return f"[{text}]({anchor})" if anchor else text
        folder = posixpath.dirname(f"_sources/{self.docname}")
        executed = self.env.metadata[docname].get("kernelspec")
        file = f"_sources/{docname}.ipynb" if executed else f"{docname}.html"
        return f"[{text}]({posixpath.relpath(file, folder)}{anchor})"

    def glued(self, target: str) -> str:
        page, _, name = target.rpartition("::")
        name, _, form = name.partition(":")
        docname = self.page(page) if page else self.docname
        path = executed_notebook(self.env, docname).with_suffix(".glue.json")
        data = json.loads(path.read_text(encoding="utf8")).get(name, {}) if path.exists() else {}
        plain = data.get("data", {}).get("text/plain", f"`{name}`")
        try:
            value = ast.literal_eval(plain)
            return format(value, form) if form else str(value)
        except (ValueError, SyntaxError):
            return plain


def opening_cells(app: Sphinx, docname: str) -> list:
    """Say where the notebook comes from, and get the book's repository where it is missing."""
    repository = app.config.html_theme_options.get("repository_url", "").rstrip("/")
    note = (
        f"*A page of “{app.config.html_title}”, executed when the book was built. "
        f"Source: [`{docname}.md`]({repository}/blob/main/{docname}.md).*"
    )
    install = INSTALL.format(repository=repository, folder=repository.rsplit("/", 1)[-1])
    return [
        nbformat.v4.new_markdown_cell(note, id="book-source"),
        nbformat.v4.new_code_cell(install, id="book-install", metadata={"tags": ["book-install"]}),
    ]


def solutions_last(cells: list) -> list:
    """Gather the solutions under one heading at the end, each under the name of its exercise."""
    body, solutions = [], []
    label = ""  # of the exercise whose solution is being read
    for cell in cells:
        if cell.cell_type != "markdown":
            (solutions if label else body).append(cell)
            continue
        position = 0
        for mark in [*SOLUTION.finditer(cell.source), None]:
            piece = cell.source[position : mark.start() if mark else None].strip("\n")
            if piece:
                (solutions if label else body).append(nbformat.v4.new_markdown_cell(piece))
            if mark:
                position, label = mark.end(), mark["label"] if mark["edge"] == "start" else ""
                if label:
                    title = f"### Solution of {{exercise}}`{label}`"
                    solutions.append(nbformat.v4.new_markdown_cell(title))
    if solutions:
        body.append(nbformat.v4.new_markdown_cell("## Solutions"))
    return body + solutions


def caption(cell, number: Callable[[str], str]) -> list:
    figure = cell.metadata.get("mystnb", {}).get("figure", {})
    if not figure:
        return []
    words = f"*Figure {number(figure.get('name', ''))}".rstrip() + f".* {figure['caption']}"
    return [nbformat.v4.new_markdown_cell(words)]


def show_pictures(cell) -> None:
    """Put drawings into HTML: Jupyter shows no SVG in a notebook from elsewhere."""
    alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
    for output in cell.outputs:
        output.get("data", {}).pop("application/pdf", None)
        svg = output.get("data", {}).pop("image/svg+xml", None)
        if svg is not None:
            address = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
            output["data"]["text/html"] = f'<img alt="{escape(alt)}" src="{address}">'


def convert(app: Sphinx, docname: str) -> nbformat.NotebookNode:
    notebook = nbformat.read(executed_notebook(app.env, docname), as_version=4)
    references = References(app, docname)
    converter = Converter(references.resolve, references.number)
    cells = [
        each
        for cell in solutions_last(notebook.cells)
        for each in (cell, *caption(cell, references.number))
    ]
    for index, cell in enumerate(cells):
        cell["id"] = f"cell-{index}"
        if cell.cell_type == "markdown":
            cell.source = converter.convert(cell.source)
            continue
        show_pictures(cell)
        if "hide-input" in cell.metadata.get("tags", []):
            cell.metadata["jupyter"] = {"source_hidden": True}
    cells = [cell for cell in cells if cell.source]
    macros = app.config.mathjax3_config["tex"]["macros"]
    cells[0].source = f"{definitions(macros)}\n\n{cells[0].source}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook.cells = [cells[0], *opening_cells(app, docname), *cells[1:]]
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    nbformat.validate(notebook)
    return notebook


def finish(app: Sphinx) -> None:
    """Write the notebooks where the theme's download button points."""
    for docname in sorted(app.env.found_docs):
        if not app.env.metadata[docname].get("kernelspec"):
            continue
        target = Path(app.outdir) / "_sources" / f"{docname}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(convert(app, docname), target)
