"""Execute notebooks on all cores, with a cache that knows which modules a page imports.

jupyter-cache recognises a notebook by its code cells, so that after a change in the package the old
outputs would stand. Here every page has a *state*: a digest of the modules that it imports, itself
or through others (without docstrings and comments), of the data files and of the versions of the
libraries. It is kept with the outputs; a page whose state has changed is executed and read again.
"""

import ast
import hashlib
import os
import platform
import re
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from functools import cache
from importlib import metadata
from pathlib import Path

import grimp
import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from myst_nb.core.read import create_nb_reader
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util import logging

from .kernels import KernelManager, manager_class

logger = logging.getLogger(__name__)

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# Large arrays that come and go are taken from memory that is there, not asked of the system.
REUSED = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
BORROWED = re.compile(r"\{glue[^}]*\}`[^`]*::|^:doc: ", re.MULTILINE)  # values of another page
SHOWN = ["lipcore", "torch", "numpy"]  # the versions at the end of a page
VERSIONS = "book/how_to_run"  # the page with the versions of all libraries
# What may import or run anything: a page with it is taken to import everything.
COMPUTED = {"__import__", "eval", "exec", "get_ipython", "importlib", "runpy", "subprocess"}


def library_versions(names: list[str]) -> list[str]:
    return [f"{name}=={metadata.version(name).split('+')[0]}" for name in names]


def signature(path: Path) -> bytes:
    """Return a digest of what of a file can affect a result: of modules, the code."""
    if path.suffix != ".py":
        return hashlib.sha256(path.read_bytes()).digest()
    tree = ast.parse(path.read_text(encoding="utf8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).digest()


class States:
    """The states of pages, for the present packages, data and libraries."""

    def __init__(self, root: Path, config):
        folders = [root / package for package in config.book_packages]
        self.imports = grimp.build_graph(*(folder.name for folder in folders), cache_dir=None)
        self.signatures: dict[str, bytes] = {}
        files = {path for name in config.book_data for path in (root / name).rglob("*")}
        for folder in folders:
            for path in folder.rglob("*.py"):
                parts = path.relative_to(folder.parent).with_suffix("").parts
                self.signatures[".".join(parts).removesuffix(".__init__")] = signature(path)
            files |= {path for path in folder.rglob("*") if path.suffix not in (".py", ".pyc")}
        self.common = hashlib.sha256(repr(sys.version_info[:2]).encode())
        self.common.update(repr(library_versions(config.book_libraries)).encode())
        for path in sorted(path for path in files if path.is_file()):
            self.common.update(f"{path.relative_to(root).as_posix()}\0".encode())
            self.common.update(signature(path))

    def imported_by(self, code: str) -> set[str]:
        """Return the modules that a page imports, and those that these import."""
        try:
            nodes = list(ast.walk(ast.parse(code)))
        except SyntaxError:  # a line for IPython
            return set(self.signatures)
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                home = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                names |= {f"{home}{alias.name}" for alias in node.names}
        if COMPUTED & {name.split(".")[0] for name in names}:
            return set(self.signatures)
        found, before = self.with_folders(names), None
        while found != before:
            before = found
            found = self.with_folders(found.union(*map(self.imports.find_upstream_modules, found)))
        return found

    def with_folders(self, names: set[str]) -> set[str]:
        """Return the modules among names, and the packages that are imported with them."""
        parts = [name.split(".") for name in names]
        folders = {".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)}
        return folders & set(self.signatures)

    def of(self, code: str) -> str:
        """Return 16 hexadecimal digits that change whenever a result of the code could."""
        total = self.common.copy()
        for name in sorted(self.imported_by(code)):
            total.update(name.encode() + self.signatures[name])
        return total.hexdigest()[:16]


@cache
def states(app: Sphinx) -> States:
    return States(Path(app.srcdir), app.config)


def use_this_checkout(app: Sphinx, config) -> None:
    """Let pages import the packages of this checkout; set their threads and memory."""
    places = [str((Path(app.srcdir) / package).parent) for package in config.book_packages]
    places = list(dict.fromkeys(places))
    sys.path[:0] = places
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *([known] if known else [])])
    os.environ.update(dict.fromkeys(ONE_THREAD, "1") | REUSED)


def read_notebook(env, docname: str, text: str):
    """Return a page as ``(notebook, read_format)``, as myst-nb reads it, or None."""
    reader = create_nb_reader(env.doc2path(docname), env.myst_config, env.mystnb_config, text)
    return None if reader is None else (reader.read(text), reader.read_fmt)


@cache
def state_of(app: Sphinx, docname: str, text: str) -> str | None:
    """Return the state of a page; None if it holds no code."""
    page = read_notebook(app.env, docname, text)
    if page is None:
        return None
    return states(app).of("\n".join(c.source for c in page[0].cells if c.cell_type == "code"))


def source_of(env, docname: str) -> str:
    return Path(env.doc2path(docname)).read_text(encoding="utf8")


def outdated(app: Sphinx, env, added, changed, removed) -> list[str]:
    """List the pages whose state is not the one in which they were read."""
    return [
        docname
        for docname in env.found_docs - added - changed
        if env.metadata[docname].get("state") != state_of(app, docname, source_of(env, docname))
    ]


def mark(app: Sphinx, docname: str, source: list[str]) -> None:
    """Note the state of a page that is read; read it again if it shows another page's values."""
    app.env.metadata[docname]["state"] = state_of(app, docname, source[0])
    if BORROWED.search(source[0]):
        app.env.note_reread()


def is_cached(cache, notebook, state: str) -> bool:
    """Tell whether a notebook was executed in this state."""
    try:
        return cache.match_cache_notebook(notebook).data.get("state") == state
    except KeyError:
        return False


def uncached(app: Sphinx, cache, docnames: list[str]) -> list[tuple]:
    """List ``(docname, notebook, format, state)`` of the pages to execute, the longest first."""
    missing = []
    for docname in docnames:
        text = source_of(app.env, docname)
        page, state = read_notebook(app.env, docname, text), state_of(app, docname, text)
        if page is not None and not is_cached(cache, page[0], state):
            missing.append((docname, *page, state))
    took = dict(app.config.book_seconds)
    for record in cache.list_cache_records():
        took[Path(record.uri).stem] = record.data["execution_seconds"]
    return sorted(missing, key=lambda item: -took.get(Path(item[0]).name, 0))


def execute(notebook, path: str, settings, manager: type[KernelManager]):
    """Execute a notebook in place; return the seconds it took, and a traceback if it failed."""
    try:
        result = single_nb_execution(
            notebook,
            cwd=str(Path(path).parent),
            allow_errors=False,
            timeout=settings.execution_timeout,
            kernel_manager_class=manager,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
    except Exception:  # a kernel that died or never came, an output that is no JSON
        return 0.0, traceback.format_exc()
    return result.time, result.exc_string if result.err is not None else None


def execute_all(app: Sphinx, env, docnames: list[str]) -> None:
    """Execute the uncached pages at once, one core each, and put them into the cache."""
    settings = env.mystnb_config
    if settings.execution_mode != "cache":
        return
    cache = get_cache(settings.execution_cache_path)
    todo = uncached(app, cache, docnames)
    if not todo:
        return

    workers = min(len(todo), os.cpu_count() or 1)
    logger.info("executing %d notebook(s) on %d core(s)", len(todo), workers)
    manager = manager_class(app.config.book_preload)
    failed = []
    with ThreadPoolExecutor(workers) as pool:
        results = pool.map(
            lambda item: execute(item[1], env.doc2path(item[0]), settings, manager), todo
        )
        for item, (seconds, problem) in zip(todo, results, strict=True):
            docname, notebook, read_format, state = item
            if problem is not None:
                failed.append(docname)
                logger.error("executing %s failed\n%s", docname, problem)
                continue
            logger.info("executed %s in %.1f s", docname, seconds)
            options = {"read_data": read_format} if read_format else {}
            record = cache.add_nb_to_project(env.doc2path(docname), **options)
            data = {"execution_seconds": seconds, "state": state}
            bundle = CacheBundleIn(notebook, record.uri, data=data)
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    if failed:
        raise SphinxError(f"Notebook execution failed: {', '.join(sorted(failed))}")


def executed_notebook(env, docname: str) -> Path:
    return Path(env.mystnb_config.output_folder) / f"{docname}.ipynb"


def keep_outputs(app: Sphinx, doctree) -> None:
    """Write the outputs into the notebook that myst-nb leaves without them; note when it ran."""
    facts = app.env.metadata[app.env.docname]
    path = executed_notebook(app.env, app.env.docname)
    if not facts.get("kernelspec") or not path.exists():
        return
    cache = get_cache(app.env.mystnb_config.execution_cache_path)
    notebook = nbformat.read(path, as_version=4)
    record = cache.match_cache_notebook(notebook)
    _, notebook = cache.merge_match_into_notebook(notebook)
    nbformat.write(notebook, path)
    moment = record.created.replace(tzinfo=UTC)
    facts["executed"] = (moment, record.data["execution_seconds"])
    if moment.timestamp() < float(os.environ.get("BOOK_BUILT_AFTER") or 0):
        logger.warning("was executed before this run began", location=app.env.docname)


def add_sentence(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Close each executed page with a sentence: when, how long and with what it was executed."""
    facts = app.env.metadata.get(pagename, {})
    if "executed" not in facts or not context.get("body"):
        return
    moment, seconds = facts["executed"]
    libraries = ", ".join(line.replace("==", " ") for line in library_versions(SHOWN))
    words = (
        f"Executed on {moment.day} {moment:%B %Y at %H:%M} UTC in {seconds:.0f} s, on one core, "
        f"with Python {platform.python_version()}, {libraries}."
    )
    if VERSIONS in app.env.found_docs:
        address = f"{app.builder.get_relative_uri(pagename, VERSIONS)}#versions"
        words += f' <a class="reference internal" href="{address}">All versions</a>.'
    context["body"] += f'\n<p class="page-execution">{words}</p>\n'


def forget_after_failure(app: Sphinx, exception) -> None:
    """After a failed build, read every page again: Sphinx warns only about pages that it reads."""
    if exception is not None or app._warncount:
        (Path(app.doctreedir) / "environment.pickle").unlink(missing_ok=True)


def setup(app: Sphinx) -> None:
    app.add_config_value("book_packages", ["lipcore"], "env", [list])
    app.add_config_value("book_data", [], "env", [list])
    app.add_config_value("book_libraries", [], "env", [list])
    app.add_config_value("book_preload", [], "", [list])
    app.add_config_value("book_seconds", {}, "", [dict])
    app.connect("config-inited", use_this_checkout)
    app.connect("env-get-outdated", outdated)
    app.connect("env-before-read-docs", execute_all)
    app.connect("source-read", mark)
    app.connect("doctree-read", keep_outputs, priority=100)
    app.connect("html-page-context", add_sentence, priority=700)
    app.connect("build-finished", forget_after_failure, priority=999)
