"""Execute notebooks: a cache that knows the package, and all cores for what is not cached.

jupyter-cache recognises a notebook by its code cells alone, so that after a change in the
package the old outputs would stand. Here the cache's *path* carries a digest of the package and
of the libraries: Sphinx sees a changed setting and reads every page again, from an empty cache.
Docstrings and comments are not in the digest.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import sys
import tempfile
import traceback
import uuid
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from jupyter_client.localinterfaces import localhost
from jupyter_client.manager import AsyncKernelManager
from myst_nb.core.read import create_nb_reader
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util import logging
from traitlets import default

logger = logging.getLogger(__name__)

KEPT_CACHES = 4  # digests kept: reverting an edit costs nothing
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class KernelManager(AsyncKernelManager):
    """Talk to kernels over local sockets, where there are any: two started at once may pick one port."""

    @default("transport")
    def _transport_default(self) -> str:
        return "ipc" if os.name == "posix" else "tcp"

    @default("ip")
    def _ip_default(self) -> str:
        own = Path(tempfile.gettempdir()) / f"book-kernel-{uuid.uuid4().hex[:12]}"
        return str(own) if self.transport == "ipc" else localhost()


class ExecutionFailed(SphinxError):
    """A notebook raised; its traceback has been printed."""

    category = "Notebook execution failed"


def strip_docstrings(tree: ast.AST) -> ast.AST:
    """Remove the docstrings of a module, its classes and its functions, in place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.body and ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return tree


def file_signature(path: Path) -> bytes:
    """Return what of a file matters for a result: a module's syntax tree, another file's bytes."""
    if path.suffix != ".py":
        return path.read_bytes()
    return ast.dump(strip_docstrings(ast.parse(path.read_text(encoding="utf8")))).encode()


def input_files(root: Path, inputs: list[str]) -> list[Path]:
    """List the files under ``inputs`` (files or folders, relative to ``root``), in a fixed order."""
    files: set[Path] = set()
    for name in inputs:
        path = root / name
        files.update(path.rglob("*") if path.is_dir() else [path])
    return sorted(
        p for p in files if p.is_file() and "__pycache__" not in p.parts and p.suffix != ".pyc"
    )


def library_versions(names: list[str]) -> list[str]:
    """Return ``name==version`` of each library, without build tags such as ``+cpu``."""
    found = []
    for name in names:
        try:
            found.append(f"{name}=={metadata.version(name).split('+')[0]}")
        except metadata.PackageNotFoundError:
            found.append(f"{name}: absent")
    return found


def digest(root: Path, inputs: list[str], libraries: list[str]) -> str:
    """Return 16 hexadecimal digits that change whenever a result could."""
    total = hashlib.sha256()
    for line in [
        f"python {sys.version_info[0]}.{sys.version_info[1]}",
        *library_versions(libraries),
    ]:
        total.update(line.encode() + b"\n")
    for path in input_files(root, inputs):
        total.update(path.relative_to(root).as_posix().encode() + b"\0")
        total.update(hashlib.sha256(file_signature(path)).digest())
    return total.hexdigest()[:16]


def choose_cache(app: Sphinx, config) -> None:
    """Point myst-nb at the cache of this state of the package; let notebooks import this checkout."""
    root = Path(app.srcdir)
    caches = Path(app.outdir).parent / ".jupyter_cache"
    path = caches / digest(root, config.book_cache_inputs, config.book_cache_libraries)
    config.nb_execution_cache_path = str(path)
    path.mkdir(parents=True, exist_ok=True)
    os.utime(path)
    newest_first = sorted(
        (p for p in caches.iterdir() if p.is_dir()), key=lambda p: -p.stat().st_mtime
    )
    for old in newest_first[KEPT_CACHES:]:
        shutil.rmtree(old)
    # An installed copy of the package must not shadow the one beside the notebooks.
    sys.path.insert(0, str(root))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(root), os.environ.get("PYTHONPATH")])
    )
    for name in ONE_THREAD:
        os.environ[name] = "1"


def read_notebook(app: Sphinx, docname: str):
    """Return a page as ``(notebook, read_format)``, as myst-nb will read it, or None."""
    path = app.env.doc2path(docname)
    text = Path(path).read_text(encoding="utf8")
    reader = create_nb_reader(path, app.env.myst_config, app.env.mystnb_config, text)
    return None if reader is None else (reader.read(text), reader.read_fmt)


def uncached(app: Sphinx, cache, docnames: list[str]) -> list[tuple]:
    """List ``(docname, notebook, format)`` of the pages to execute, probably slowest first."""
    missing = []
    for docname in sorted(docnames, reverse=True):  # later chapters measure whole models
        page = read_notebook(app, docname)
        if page is None:
            continue
        try:
            cache.match_cache_notebook(page[0])
        except KeyError:
            missing.append((docname, *page))
    return missing


def execute(notebook, path: str, settings) -> tuple[float, str | None]:
    """Execute a notebook in place; return the seconds it took, and a traceback if it failed."""
    try:
        result = single_nb_execution(
            notebook,
            cwd=str(Path(path).parent),
            allow_errors=False,
            timeout=settings.execution_timeout,
            kernel_manager_class=KernelManager,
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
    failed = []
    with ThreadPoolExecutor(workers) as pool:
        results = pool.map(lambda item: execute(item[1], env.doc2path(item[0]), settings), todo)
        for (docname, notebook, read_format), (seconds, problem) in zip(todo, results, strict=True):
            if problem is not None:
                failed.append(docname)
                logger.error("executing %s failed\n%s", docname, problem)
                continue
            logger.info("executed %s in %.1f s", docname, seconds)
            store(cache, env.doc2path(docname), notebook, read_format, seconds)
    if failed:
        raise ExecutionFailed(", ".join(sorted(failed)))


def store(cache, path: str, notebook, read_format, seconds: float) -> None:
    """Put an executed notebook into the cache, as myst-nb would."""
    record = cache.add_nb_to_project(path, **({"read_data": read_format} if read_format else {}))
    bundle = CacheBundleIn(notebook, record.uri, data={"execution_seconds": seconds})
    cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def executed_notebook(env, docname: str) -> Path:
    """Return where the executed notebook of a page lies."""
    return Path(env.mystnb_config.output_folder) / f"{docname}.ipynb"


def keep_outputs(app: Sphinx, doctree) -> None:
    """Write the outputs into the notebook that myst-nb leaves: from a cache it leaves them out."""
    path = executed_notebook(app.env, app.env.docname)
    if not app.env.metadata[app.env.docname].get("kernelspec") or not path.exists():
        return
    cache = get_cache(app.env.mystnb_config.execution_cache_path)
    _, notebook = cache.merge_match_into_notebook(nbformat.read(path, as_version=4))
    nbformat.write(notebook, path)


def forget_after_failure(app: Sphinx, exception) -> None:
    """After a failed build, read every page again next time.

    Sphinx warns about a page only when it reads it; otherwise the next build, with nothing
    changed, would pass.
    """
    if exception is not None or app._warncount:
        (Path(app.doctreedir) / "environment.pickle").unlink(missing_ok=True)


def setup(app: Sphinx) -> None:
    """Register the settings and the hooks."""
    app.add_config_value("book_cache_inputs", [], "env", [list])
    app.add_config_value("book_cache_libraries", [], "env", [list])
    app.connect("config-inited", choose_cache, priority=100)
    app.connect("env-before-read-docs", execute_all)
    app.connect("doctree-read", keep_outputs, priority=100)
    app.connect("build-finished", forget_after_failure, priority=999)
