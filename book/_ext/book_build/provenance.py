"""Say of each page when, with what and how long it was executed, on the page and in ``executed.json``.

The list holds for each page the digest of the package and libraries (see :mod:`.execution`), the digest of
the page's code, when and how long it ran, and every value that was glued. ``tests/pages/test_provenance.py``
compares it, and the pages, with the records of the executions.
"""

from __future__ import annotations

import hashlib
import html
import json
import platform
from datetime import datetime
from pathlib import Path

import nbformat
from jupyter_cache import get_cache
from sphinx.application import Sphinx

from .execution import executed_notebook, library_versions

LIST = "executed.json"
SHOWN = ("torch", "numpy")  # the versions on every page; the rest is on the page about execution


def code_digest(cells: list[str]) -> str:
    """Return 16 hexadecimal digits of the sources of code cells."""
    return hashlib.sha256("\0".join(cells).encode()).hexdigest()[:16]


def glued_values(notebook) -> dict[str, str]:
    """Return what was glued, by name, as Python writes it."""
    found = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            scrap = output.get("metadata", {}).get("scrapbook", {})
            text = output.get("data", {}).get(scrap.get("mime_prefix", "") + "text/plain")
            if scrap.get("name") and text is not None:
                found[scrap["name"]] = text
    return found


def executions(env) -> dict[str, dict]:
    """Return the record of each executed page."""
    if not hasattr(env, "book_executions"):
        env.book_executions = {}
    return env.book_executions


def collect(app: Sphinx, doctree) -> None:
    """Note how a page that was just read had been executed."""
    env, settings = app.env, app.env.mystnb_config
    path = executed_notebook(env, env.docname)
    if not env.metadata[env.docname].get("kernelspec") or not path.exists():
        return
    notebook = nbformat.read(path, as_version=4)
    record = get_cache(settings.execution_cache_path).match_cache_notebook(notebook)
    executions(env)[env.docname] = {
        "state": Path(settings.execution_cache_path).name,
        "code": code_digest([c.source for c in notebook.cells if c.cell_type == "code"]),
        "executed": f"{record.created:%Y-%m-%dT%H:%M:%S}Z",
        "seconds": round(float(record.data.get("execution_seconds", 0.0)), 1),
        "glued": glued_values(notebook),
    }


def purge(app: Sphinx, env, docname: str) -> None:
    """Forget a page that is read again or gone."""
    executions(env).pop(docname, None)


def sentence(record: dict, libraries: list[str], package: str) -> str:
    """Say when, how long and with what a page was executed."""
    moment = datetime.strptime(record["executed"], "%Y-%m-%dT%H:%M:%SZ")
    versions = [v.replace("==", " ") for v in libraries if v.partition("==")[0] in SHOWN]
    python = ".".join(platform.python_version_tuple()[:2])
    return (
        f"Executed on {moment.day} {moment:%B %Y at %H:%M} UTC in {record['seconds']:.0f} s, on one core, with "
        f"{', '.join([package, f'Python {python}', *versions])}; state {record['state'][:8]}."
    )


def add_sentence(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Close each executed page with the sentence."""
    record = executions(app.env).get(pagename)
    if record is None or not context.get("body"):
        return
    package = library_versions(["lipcore"])[0].replace("==", " ").partition(":")[0]
    text = html.escape(sentence(record, library_versions(app.config.book_cache_libraries), package))
    more = "book/execution"
    link = ""
    if pagename != more and more in app.env.found_docs:
        link = f' <a class="reference internal" href="{app.builder.get_relative_uri(pagename, more)}">All versions</a>.'
    context["body"] += f'\n<p class="page-execution">{text}{link}</p>\n'


def write_list(app: Sphinx, exception) -> None:
    """Write the records of all pages beside them."""
    if exception is not None or app.builder.name != "html":
        return
    records = dict(sorted(executions(app.env).items()))
    text = json.dumps(records, indent=1, ensure_ascii=False)
    (Path(app.outdir) / LIST).write_text(text + "\n", encoding="utf8")


def setup(app: Sphinx) -> None:
    """Register the hooks; after the outputs were written into the notebooks (:mod:`.execution`)."""
    app.connect("doctree-read", collect, priority=150)
    app.connect("env-purge-doc", purge)
    app.connect("html-page-context", add_sentence, priority=700)
    app.connect("build-finished", write_list, priority=850)
