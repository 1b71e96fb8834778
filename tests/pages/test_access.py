"""A page for everyone: the keyboard alone, and axe-core on a phone; test_pages.py asks axe of every page."""

import pytest
from access import audit, walk, walk_faults

CHAPTER = "notebooks/general_upper_bound.html"
WALKED = ["book/index.html", CHAPTER, "search.html"]
REACHED = ["BUTTON Search", "A 1. Attention as a map", "SUMMARY Further", "SUMMARY Proof", "A Next"]


def test_the_landing_page_on_a_phone_has_no_violation(phone, site):
    page = phone.open(f"{site}/book/index.html").page
    page.evaluate("bookChecks.openAll()")
    assert audit(page) == []


@pytest.mark.parametrize("name", WALKED)
def test_the_keyboard_leads_through_a_page(name, desktop, site):
    page = desktop.open(f"{site}/{name}").page
    stops, after = walk(page)
    assert walk_faults(stops, after) == []
    formulas = [s for s in stops if "MJX" in s["tag"] and not s["scrolls"]]
    assert formulas == [], "a formula is a stop only if it scrolls"
    if name == CHAPTER:
        names = " ".join(" ".join(f"{s['tag']} {s['name']} |" for s in stops).split())
        assert [stop for stop in REACHED if stop not in names] == [], names


def test_the_keyboard_leads_through_a_page_on_a_phone(phone, site):
    page = phone.open(f"{site}/{CHAPTER}").page
    assert walk_faults(*walk(page)) == []


def test_a_chapter_is_read_with_keys_alone(desktop, site):
    page = desktop.open(f"{site}/{CHAPTER}").page
    press = page.keyboard.press

    press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to main content"
    press("Enter")
    press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")

    proof = page.locator("article details:not(.toggle-details)").first
    for key in ("Enter", "Space"):
        proof.locator("summary").focus()
        press(key)
        assert proof.evaluate("(d) => d.open"), f"{key} opens a proof"
        press(key)
        assert not proof.evaluate("(d) => d.open"), f"{key} closes a proof"

    solution = page.locator("article .solution").first
    solution.locator(".toggle-button").focus()
    press("Enter")
    assert solution.evaluate("(e) => !e.classList.contains('toggle-hidden')")

    press("Control+k")
    assert page.evaluate("document.activeElement.name") == "q"
    press("Escape")
    assert not page.evaluate("document.querySelector('#pst-search-dialog').open")
    assert desktop.faults == []
