"""Open pages in a browser and list what is wrong with them.

Every check returns a list of sentences; none means the page is good. The checks know nothing about the
book, so that test_checker.py can show that each one finds a planted fault.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

import nbformat

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
CONTRAST = 4.5  # WCAG AA for text
TYPESET = "() => window.MathJax?.startup?.promise ? MathJax.startup.promise.then(() => true) : true"

# What of a page's text is TeX that was not typeset: commands and delimiters outside code and mathematics.
RAW_TEX = re.compile(r"\\[a-zA-Z]{2,}|\\\(|\\\[|\$[^$\s][^$\n]*\$|\$\$")

VISIBLE_TEXT = """() => {
  const skip = 'script, style, noscript, code, pre, kbd, textarea, mjx-container, .tooltip, .highlight, .onlyprint';
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) if (!walker.currentNode.parentElement.closest(skip)) texts.push(walker.currentNode.data);
  return texts.join(' ');
}"""

SIDEWAYS = """() => {
  const width = document.documentElement.clientWidth;
  const scrolls = (e) => { for (; e; e = e.parentElement) {
    if (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(e).overflowX) && e !== document.body
        && e !== document.documentElement) return true; } return false; };
  const wide = [...document.querySelectorAll('body *')].filter((e) => {
    const box = e.getBoundingClientRect();
    return box.right > width + 1 && box.width > 0 && !scrolls(e) && getComputedStyle(e).position !== 'fixed'; });
  return {scroll: document.documentElement.scrollWidth, width,
          wide: wide.slice(0, 3).map((e) => e.tagName + ' ' + e.textContent.trim().slice(0, 50))};
}"""

# Contrast of text against the colour behind it, for a sample of every kind of text on the page.
CONTRASTS = """() => {
  const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number);
    return [m[0], m[1], m[2], m.length > 3 ? m[3] : 1]; };
  const lum = ([r, g, b]) => { const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const backdrop = (e) => { const layers = []; for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0) layers.push(c); if (c[3] === 1) break; }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]); };
  const opacity = (e) => { let o = 1; for (; e; e = e.parentElement) o *= getComputedStyle(e).opacity; return o; };
  const kinds = ['article p', 'article li', 'article h1', 'article h2', 'article a', 'figcaption', 'figcaption *',
    'article td', 'article th', 'article dt', 'article dd', 'article .admonition-title', 'article .admonition p',
    'article code', 'article pre', 'article pre span', 'article mjx-container', 'article summary',
    '.claim p', '.claim-status', '.claim-facts', '.output pre', 'p', 'li'];
  const bad = [];
  for (const kind of kinds) for (const e of [...document.querySelectorAll(kind)].slice(0, 60)) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || e.tagName === 'MJX-CONTAINER';
    const box = e.getBoundingClientRect();
    if (!own || !box.width || !box.height || opacity(e) < 0.05) continue;
    if (getComputedStyle(e).visibility === 'hidden') continue;
    const back = backdrop(e), fore = parse(getComputedStyle(e).color);
    fore[3] *= opacity(e);
    const [hi, lo] = [lum(over(fore, back)), lum(back)].sort((a, b) => b - a);
    const ratio = (hi + 0.05) / (lo + 0.05);
    if (ratio < LIMIT) bad.push(`${kind} at ${ratio.toFixed(2)}: ${e.textContent.trim().slice(0, 40)}`);
  }
  return [...new Set(bad)].slice(0, 5);
}""".replace("LIMIT", str(CONTRAST))

FIGURES = """() => [...document.querySelectorAll('article .cell_output img, article figure img')].flatMap((e) => {
  const s = getComputedStyle(e), faults = [], name = e.getAttribute('src').slice(-24);
  if (s.backgroundColor !== 'rgb(255, 255, 255)') faults.push(`figure ${name} has no white ground`);
  if (s.filter !== 'none') faults.push(`figure ${name} is dimmed`);
  if (!e.naturalWidth) faults.push(`figure ${name} is empty`);
  return faults;
})"""

ALT_TEXTS = """() => [...document.querySelectorAll('article img')].filter((e) => {
  const alt = (e.getAttribute('alt') || '').trim();
  return !alt || /\\.(svg|png|jpe?g)$/.test(alt);
}).map((e) => `picture without a description: ${e.getAttribute('src').slice(-24)}`)"""

REPEATED_IDS = """() => {
  const seen = new Map();
  document.querySelectorAll('article [id]').forEach((e) => { if (!e.closest('mjx-container, svg'))
    seen.set(e.id, (seen.get(e.id) || 0) + 1); });
  return [...seen].filter(([, n]) => n > 1).map(([id, n]) => `id ${id} stands ${n} times`);
}"""

EMPTY_OUTPUTS = """() => [...document.querySelectorAll('.cell_output')].filter((e) =>
  !e.textContent.trim() && !e.querySelector('img, svg, table, video, canvas')).map(() => 'an output is empty')"""


def chromium_path() -> str | None:
    """Return the browser of the system, or None for playwright's own."""
    return (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )


@contextmanager
def serve(folder: Path):
    """Serve a folder over http on this machine; yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Watched:
    """A browser page that remembers what went wrong while it loaded."""

    def __init__(self, browser, address: str, *, viewport=None, dark=False):
        self.host = urlparse(address).netloc
        self.context = browser.new_context(
            viewport=viewport or DESKTOP, color_scheme="dark" if dark else "light"
        )
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("request", self._on_request)
        self.page.on("requestfailed", self._on_failure)
        self.page.on("response", self._on_response)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda e: self.faults.append(f"script error: {e}"))

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *exc) -> None:
        self.context.close()

    def _on_request(self, request) -> None:
        url = urlparse(request.url)
        if url.scheme in ("http", "https", "ws", "wss") and url.netloc != self.host:
            self.faults.append(f"request to another host: {request.url}")

    def _on_failure(self, request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left before it came
            self.faults.append(f"request failed: {request.url}")

    def _on_response(self, response) -> None:
        if response.status >= 400:
            self.faults.append(f"answered {response.status}: {response.url}")

    def _on_console(self, message) -> None:
        if message.type == "error":
            self.faults.append(f"console error: {message.text}")

    def open(self, url: str) -> Watched:
        """Load a page and wait until nothing moves any more and the mathematics is typeset."""
        self.page.goto(url, wait_until="load")
        self.page.evaluate(TYPESET)
        self.page.evaluate(
            "() => document.fonts.ready.then(() => new Promise(requestAnimationFrame))"
        )
        return self


def check_mathematics(page, expected: int = 0) -> list[str]:
    """Every formula is typeset, and none is left in TeX."""
    faults = [
        f"TeX error: {t}"
        for t in page.eval_on_selector_all(
            "mjx-merror", "a => a.map(e => e.title || e.textContent)"
        )
    ]
    found = page.locator("mjx-container").count()
    if found < expected:
        faults.append(f"{found} formulas are typeset, {expected} are in the page")
    left = RAW_TEX.findall(page.evaluate(VISIBLE_TEXT))
    faults += [f"TeX in the text: {tex}" for tex in left[:5]]
    unknown = page.eval_on_selector_all(
        "mjx-mtext",
        "a => a.filter(e => getComputedStyle(e).color === 'rgb(255, 0, 0)').map(e => e.textContent)",
    )
    return faults + [f"undefined command: {text}" for text in unknown]


def check_width(page) -> list[str]:
    """Nothing makes the page scroll sideways."""
    seen = page.evaluate(SIDEWAYS)
    if seen["scroll"] > seen["width"]:
        return [f"scrolls sideways: {seen['scroll']} px in {seen['width']}: {seen['wide']}"]
    return [f"reaches outside the window: {what}" for what in seen["wide"]]


def check_legible(page) -> list[str]:
    """Text stands out from what is behind it; figures have a white ground."""
    return [f"low contrast: {x}" for x in page.evaluate(CONTRASTS)] + page.evaluate(FIGURES)


def check_content(page) -> list[str]:
    """Title, main heading, pictures with descriptions, unique ids, no empty output."""
    faults = page.evaluate(ALT_TEXTS) + page.evaluate(REPEATED_IDS) + page.evaluate(EMPTY_OUTPUTS)
    if len(page.title().strip()) < 3:
        faults.append("the page has no title")
    headings = page.locator("article h1").count()
    return faults if headings == 1 else [*faults, f"{headings} main headings"]


def formulas_in(html: str) -> int:
    """Count the formulas that the source of a page holds."""
    return len(re.findall(r'class="math notranslate', html)) + len(
        re.findall(r"\\\(.+?\\\)", _claims(html))
    )


def _claims(html: str) -> str:
    return " ".join(re.findall(r'<div class="claim .*?</div>', html, re.DOTALL))


def check_notebook(path: Path) -> list[str]:
    """A notebook for download is valid, executed, and written in plain Markdown."""
    if not path.exists():
        return [f"{path.name} is missing"]
    try:
        notebook = nbformat.reads(path.read_text(encoding="utf8"), as_version=4)
        nbformat.validate(notebook)
    except (ValueError, TypeError, AttributeError, KeyError, nbformat.ValidationError) as error:
        return [f"{path.name} is no notebook: {error}"]
    cells = [
        c
        for c in notebook.cells
        if c.cell_type == "code" and "book-install" not in c.metadata.get("tags", [])
    ]
    faults = [] if cells else [f"{path.name} has no code"]
    if cells and not any(c.outputs for c in cells):
        faults.append(f"{path.name} has no outputs")
    if any(c.execution_count is None for c in cells):
        faults.append(f"{path.name} has cells that were not executed")
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    raw = re.findall(r"^\s*(?:`{3,}|:{3,})\{[\w:-]+\}|^\([\w:-]+\)=", prose, re.MULTILINE)
    prose = re.sub(r"```\w*\n.*?```", "", prose, flags=re.DOTALL)
    raw += re.findall(r"\{[a-z][\w:-]*\}`[^`\n]+`", re.sub(r"`\{[^`\n]*`", "", prose))
    return faults + [f"{path.name} holds raw MyST: {what}" for what in raw[:3]]
