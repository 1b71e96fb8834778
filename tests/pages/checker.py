"""Open pages in a browser and list what is wrong with them.

Every check returns a list of sentences; none means the page is good. The checks know nothing about
the book, so that test_checker.py can show that each one finds a planted fault. What they ask of an
open page is in checks.js, which every page loads first.
"""

from __future__ import annotations

import functools
import http.server
import re
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

import nbformat
from book_build.printed import browser_path
from playwright.sync_api import sync_playwright

CHECKS = Path(__file__).with_name("checks.js")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
PAPER = {"width": 760, "height": 1075}  # A4 within its margins

# What does not belong in a notebook, which stands alone.
MISPLACED = {
    "a label without its text": r"\*\*(?:Solution|Exercise)\.\*\*|\*\*Solution \(.*",
    "a statement that is not quoted": r"^\*\*(?:Theorem|Proposition|Lemma|Corollary|Definition)\b.*",
    "an exercise after the solutions": r"^## Solutions\n(?:.*\n)*?(\*\*Exercise.*)",
    "it needs the page": r"^[^#\n]*(\b[Dd]rag the\b(?![^\[\n]*\])|\bPress \*|\btab key\b|\baddress of this page\b)",
    "raw MyST": r"^\s*(?:`{3,}|:{3,})\{[\w:-]+\}.*|^\([\w:-]+\)=",
}


@contextmanager
def launched():
    """A browser, for all tests of a session."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def serve(folder: Path):
    """Serve a folder over http on this machine; yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Watched:
    """A window of the browser that remembers what went wrong while its page loaded."""

    def __init__(self, browser, address: str, *, viewport=DESKTOP, dark=False):
        self.host = urlparse(address).netloc
        self.viewport = viewport
        self.scheme = "dark" if dark else "light"
        self.context = browser.new_context(viewport=viewport, color_scheme=self.scheme)
        self.context.add_init_script(path=CHECKS)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        for event in ("request", "requestfailed", "response", "console", "pageerror"):
            self.page.on(event, getattr(self, f"_on_{event}"))

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *exc) -> None:
        self.context.close()

    def _on_request(self, request) -> None:
        url = urlparse(request.url)
        if url.scheme in ("http", "https", "ws", "wss") and url.netloc != self.host:
            self.faults.append(f"request to another host: {request.url}")

    def _on_requestfailed(self, request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left before it came
            self.faults.append(f"request failed: {request.url}")

    def _on_response(self, response) -> None:
        if response.status >= 400:
            self.faults.append(f"answered {response.status}: {response.url}")

    def _on_console(self, message) -> None:
        if message.type == "error":
            self.faults.append(f"console error: {message.text}")

    def _on_pageerror(self, error) -> None:
        self.faults.append(f"script error: {error}")

    def open(self, url: str) -> Watched:
        """Load a page and wait until nothing moves any more and the mathematics is typeset."""
        self.page.goto(url, wait_until="load")
        self.page.evaluate("bookChecks.settled()")
        return self

    def renew(self) -> Watched:
        """Forget the last page, and what was changed for it: a new window costs a second."""
        self.page.goto("about:blank")
        self.page.mouse.move(0, 0)
        self.page.emulate_media(media="screen", color_scheme=self.scheme)
        self.page.set_viewport_size(self.viewport)
        self.faults.clear()
        return self


def check(page, *names: str) -> list[str]:
    """Return what checks of checks.js say of an open page."""
    return [fault for name in names for fault in page.evaluate(f"bookChecks.{name}()")]


def check_mathematics(page, html: str) -> list[str]:
    """Every formula that the source of a page holds is typeset, and none is left in TeX."""
    expected = html.count('class="math notranslate')
    return page.evaluate(f"bookChecks.mathematics({expected})")


def check_notebook(path: Path) -> list[str]:
    """A notebook for download is valid, executed, and written in plain Markdown."""
    try:
        notebook = nbformat.reads(path.read_text(encoding="utf8"), as_version=4)
        nbformat.validate(notebook)
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        nbformat.ValidationError,
    ) as e:
        return [f"{path.name} is no notebook: {e}"]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    code = [cell for cell in code if "book-install" not in cell.metadata.get("tags", [])]
    faults = [] if any(cell.outputs for cell in code) else ["no outputs"]
    faults += ["a cell was not executed" for cell in code if cell.execution_count is None][:1]
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for what, pattern in MISPLACED.items():
        faults += [f"{what}: {found}" for found in re.findall(pattern, prose, re.MULTILINE)]
    words = re.sub(r"```\w*\n.*?```|`\{[^`\n]*`", "", prose, flags=re.DOTALL)
    faults += [f"raw MyST: {role}" for role in re.findall(r"\{[a-z][\w:-]*\}`[^`\n]+`", words)]
    anchors = set(re.findall(r'<a id="([^"]+)">', prose))
    links = re.findall(r"\]\(#([^)]+)\)", prose)
    faults += [f"leads nowhere: {link}" for link in links if link not in anchors]
    return [f"{path.name}: {fault}" for fault in faults]
