"""Formulas on a narrow screen: none is cut off, few are so wide that they scroll, and widening the window undoes it."""

import pytest
from checker import DESKTOP, PHONE, TYPESET, Watched, check_width

PAGES = [
    "notebooks/05_general_upper_bound",
    "notebooks/07_mean_field",
    "notebooks/rivals",
    "book/scoreboard",
]
OPEN = "() => document.querySelectorAll('details').forEach((d) => { d.open = true; })"
SETTLED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 300)))"

# Formulas of sentences that reach beyond their line, though they do not say that they scroll.
CUT = """() => [...document.querySelectorAll('.bd-article mjx-container:not([display="true"], .wide)')].filter((m) => {
  const line = m.closest('p, li, dd, td, th, figcaption') || m.parentElement;
  const right = Math.max(...[...m.querySelectorAll('mjx-math > *')].map((e) => e.getBoundingClientRect().right));
  return line.clientWidth && right > line.getBoundingClientRect().right + 1;
}).map((m) => m.querySelector('mjx-assistive-mml').textContent)"""

SCROLLING = """() => [...document.querySelectorAll('.bd-article mjx-container[display="true"]')]
  .filter((m) => m.scrollWidth > m.clientWidth + 1 && !m.querySelector('mjx-mtable'))
  .map((m) => m.querySelector('mjx-assistive-mml').textContent)"""

# A stop that begins a line, after a formula that ended the line before.
STRAYS = """() => [...document.querySelectorAll('.bd-article .together')].filter((t) => {
  const stop = t.lastChild, end = [...t.querySelectorAll('mjx-math > *')].at(-1);
  if (stop.nodeType !== 3 || !stop.data || !end || !t.getClientRects().length) return false;
  const range = document.createRange();
  range.selectNodeContents(stop);
  return range.getBoundingClientRect().left < end.getBoundingClientRect().right - 2;
}).map((t) => t.textContent)"""

BROKEN = "() => document.querySelectorAll('.bd-article mjx-container.broken').length"


@pytest.mark.parametrize("name", PAGES)
def test_no_formula_is_cut_off_on_a_phone(browser, site, name):
    with Watched(browser, site, viewport=PHONE) as watched:
        page = watched.open(f"{site}/{name}.html").page
        page.evaluate(OPEN)
        page.evaluate(SETTLED)
        assert page.evaluate(BROKEN) > 0, "this page has no long formula: choose another"
        assert page.evaluate(CUT) == []
        assert page.evaluate(SCROLLING) == []
        assert page.evaluate(STRAYS) == []
        assert check_width(page) == []
    assert watched.faults == []


def test_a_wider_window_joins_them_again(browser, site):
    with Watched(browser, site, viewport=PHONE) as watched:
        page = watched.open(f"{site}/{PAGES[0]}.html").page
        page.evaluate(OPEN)
        page.evaluate(SETTLED)
        page.set_viewport_size(DESKTOP)
        page.evaluate(TYPESET)
        page.evaluate(SETTLED)
        assert page.evaluate(BROKEN) == 0
        assert page.locator(".formula-break, .formula-may-break, .formula-gap").count() == 0
    assert watched.faults == []
