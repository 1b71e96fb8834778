"""Every page for everyone: an accessibility audit in light and dark, and the keyboard alone."""

import re

import pytest
from access import audit, axe_source, serious, walk, walk_faults
from checker import PHONE, Watched, serve
from test_checker import page_with

CHAPTER = "notebooks/05_general_upper_bound.html"


def test_axe_is_recent():
    version = re.search(r"axe v(\d+)\.(\d+)", axe_source())
    assert (int(version[1]), int(version[2])) >= (4, 10)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_has_no_serious_violation(built_page, dark, browser, site, record_property):
    with Watched(browser, site, dark=dark) as watched:
        found = audit(watched.open(f"{site}/{built_page}").page)
    record_property("violations", str([(v["rule"], v["impact"]) for v in found]))
    assert serious(found) == []
    assert [v for v in found if v["impact"] == "moderate"] == []


def test_the_landing_page_on_a_phone_has_no_serious_violation(browser, site):
    with Watched(browser, site, viewport=PHONE) as watched:
        assert serious(audit(watched.open(f"{site}/book/index.html").page)) == []


@pytest.fixture
def planted(tmp_path, browser):
    """Open a page with a planted fault."""

    def look(body, check):
        (tmp_path / "page.html").write_text(page_with(body), encoding="utf8")
        with serve(tmp_path) as address, Watched(browser, address) as watched:
            return check(watched.open(f"{address}/page.html").page)

    return look


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("<img src='data:image/png;base64,AA=='>", "image-alt"),
        ("<p style='color: #aaa'>pale</p>", "color-contrast"),
        ("<button></button>", "button-name"),
        ("<a href='#x'></a>", "link-name"),
        ("<div role='list'><a href='#x'>x</a></div>", "aria-required-children"),
        (
            "<details><summary>more</summary><p style='color: #aaa'>pale</p></details>",
            "color-contrast",
        ),
    ],
)
def test_a_planted_violation_is_found(planted, body, rule):
    found = planted(body, audit)
    assert any(fault.startswith(rule) for fault in serious(found)), found


def test_a_page_without_fault_has_no_serious_violation(planted):
    assert serious(planted("<p>Words, and <a href='#x'>a link</a>.</p>", audit)) == []


TRAP = """<a href="#1">one</a> <input id="trap" onkeydown="if (event.key === 'Tab') event.preventDefault()">
<a href="#2">two</a>"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<style>:focus-visible { outline: none }</style><a href='#1'>one</a>", "not visible"),
        ("<a href='#1' style='position: absolute; left: -9999px'>one</a>", "out of sight"),
        (TRAP, "caught"),
    ],
)
def test_a_planted_fault_of_the_keyboard_is_found(planted, body, expected):
    assert any(expected in fault for fault in planted(body, walk_faults))


def test_the_keyboard_leads_through_an_unspoilt_page(planted):
    assert planted("<a href='#1'>one</a> <button>two</button>", walk_faults) == []


@pytest.mark.parametrize(
    "name", ["book/index.html", CHAPTER, "book/scoreboard.html", "search.html"]
)
@pytest.mark.parametrize("view", [None, PHONE], ids=["desktop", "phone"])
def test_the_keyboard_leads_through_a_page(name, view, browser, site):
    with Watched(browser, site, viewport=view) as watched:
        assert walk_faults(watched.open(f"{site}/{name}").page) == []


def test_the_first_stop_skips_to_the_text(browser, site):
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/{CHAPTER}").page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to main content"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.querySelector('main').contains(document.activeElement)")


def test_the_keyboard_reaches_search_contents_and_proofs(browser, site):
    with Watched(browser, site) as watched:
        stops = walk(watched.open(f"{site}/{CHAPTER}").page)
    names = " | ".join(f"{s['tag']} {s['name']}" for s in stops)
    for expected in (
        "BUTTON Search",
        "A 1. Attention as a map",
        "SUMMARY Proof",
        "A next",
        "A Scoreboard",
    ):
        assert expected in " ".join(names.split()), names
    formulas = [s for s in stops if "MJX" in s["tag"] and not s["scrolls"]]
    assert formulas == [], "a formula is a stop only if it scrolls"


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_proof_opens_and_closes_with_a_key(key, browser, site):
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/{CHAPTER}").page
        proof = page.locator("article details:not(.toggle-details)").first
        proof.locator("summary").focus()
        page.keyboard.press(key)
        assert proof.evaluate("(d) => d.open")
        page.keyboard.press(key)
        assert not proof.evaluate("(d) => d.open")


def test_a_solution_opens_with_a_key(browser, site):
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/{CHAPTER}").page
        button = page.locator("article .solution .toggle-button").first
        assert button.count() == 1, "a folded solution has a button"
        button.focus()
        page.keyboard.press("Enter")
        assert page.locator("article .solution").first.evaluate(
            "(e) => !e.classList.contains('toggle-hidden')"
        )


def test_the_search_opens_and_closes_with_keys(browser, site):
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/{CHAPTER}").page
        page.keyboard.press("Control+k")
        assert page.evaluate("document.activeElement.name") == "q"
        page.keyboard.press("Escape")
        assert not page.evaluate("document.querySelector('#pst-search-dialog').open")
