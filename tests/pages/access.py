"""Who cannot use a page: an audit by axe-core, and a walk with the keyboard."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import pytest

MOST_STOPS = 700  # a page with more stops of the Tab key than this has a trap, or needs shortcuts

# The contrast of texts and of links is checked by checks.js: axe takes seconds for each, and leaves half
# of the texts undecided.
AUDIT = """async () => {
  const off = {enabled: false}, rules = {'color-contrast': off, 'link-in-text-block': off};
  const options = {preload: false, resultTypes: ['violations'], rules};
  const { violations } = await bookChecks.within(axe.run(document, options), 'the audit');
  return violations.flatMap((v) => v.nodes.map((n) => `${v.id}: ${v.help}: ${n.html.slice(0, 160)}`));
}"""

# Where the focus is: what it is called, and whether a reader sees that it is there.
FOCUSED = """() => {
  const e = document.activeElement;
  if (!e || e === document.body || e === document.documentElement) return null;
  bookChecks.stopMotion();
  if (!e.dataset.stop) e.dataset.stop = window.stops = (window.stops || 0) + 1;
  const card = e.matches('.sd-stretched-link') ? e.closest('.sd-card') : e;  // such a link covers its card
  const drawn = (s) => (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0) || s.boxShadow !== 'none';
  const box = card.getBoundingClientRect(), style = getComputedStyle(card);
  const ring = e.querySelector('.live-touch');  // a token of a live picture has a ring in its place
  const ringed = ring && getComputedStyle(ring).stroke !== 'none';
  const inside = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  return {stop: e.dataset.stop, tag: e.tagName,
          name: (e.getAttribute('aria-label') || e.textContent || e.title || '').trim().slice(0, 40),
          scrolls: e.scrollWidth > e.clientWidth + 1, marked: drawn(style) || !!ringed,
          shown: inside && box.width > 0 && box.height > 0 && style.visibility !== 'hidden'};
}"""


@functools.cache
def axe_source() -> str:
    """Return axe-core, which the distribution axe-playwright-python carries."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None:
        pytest.fail("axe-playwright-python, which carries axe-core, is not installed: make env")
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf8")


def audit(page) -> list[str]:
    """List what axe-core finds on a page; formulas and listings are empty afterwards."""
    page.evaluate("bookChecks.lighten()")
    if page.evaluate("!window.axe"):
        page.evaluate(axe_source())
    return page.evaluate(AUDIT)


def walk(page) -> tuple[list[dict], dict | None]:
    """Press Tab until the focus is where it was before; return every stop, and what came after the last."""
    note = f"walked.push(({FOCUSED})())"
    page.evaluate(f"window.walked = []; addEventListener('keyup', () => {note})")
    stops: list[dict] = []
    seen: set[str] = set()
    while len(stops) <= MOST_STOPS:
        for _ in range(20):  # asked for together: a question costs as much as a key
            page.keyboard.press("Tab")
        for here in page.evaluate("walked.splice(0)"):
            if here is None or here["stop"] in seen:
                return stops, here
            seen.add(here["stop"])
            stops.append(here)
    return stops, here


def walk_faults(stops: list[dict], after: dict | None) -> list[str]:
    """The Tab key leads through the whole page and out of it, and the focus can be seen."""
    faults = []
    for part, fault in {"marked": "not visible", "shown": "out of sight"}.items():
        lost = [stop for stop in stops if not stop[part]]
        faults += [f"the focus is {fault} on {stop['tag']} {stop['name']!r}" for stop in lost]
    if after is not None and after["stop"] != stops[0]["stop"]:
        faults.append(f"the focus is caught at {after['tag']} {after['name']!r}")
    return faults
