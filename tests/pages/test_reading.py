"""What a reader does with a page: hover over a reference, search, look for a claim, read a number."""

import re
from urllib.parse import quote

import pytest
from checker import DESKTOP, Watched
from lxml.html import fromstring
from test_pages import HTML, article, built, notebooks, toc_pages

LOCAL = HTML.as_uri()  # previews work from a folder too; over http, see the last of their tests
PREVIEW = "#book-preview"
SCORE_GAP = "a.internal[href='score_gap.html#def-score-gap']"

# What on a page is no prose.
NO_PROSE = ".//pre | .//code | .//script | .//*[contains(@class, 'math')]"
NO_PROSE += " | .//dl[contains(@class, 'py')]"

# On which page what is hovered, and what must then be read.
HOVERED = {
    "notebooks/general_upper_bound": {
        "a.internal[href*='bibliography.html#']": "How smooth is attention",
        "a.internal[href='#equation-eq-upper-general']": "Lip",
    },
    "notebooks/masked_attention": {"a.internal[href*='glossary.html#term']": "running means"},
    "book/scoreboard": {
        "a.internal[href$='#claim-upper-general']": "proved",
        ".board-source a.internal[href$='#thm-lip-local']": "largest local constant",
    },
}


def hover(page, selector: str):
    """Point at a reference; return what is shown, when its formulas are typeset."""
    page.locator(f"article {selector}").first.hover()
    page.wait_for_selector(PREVIEW)
    page.evaluate("bookChecks.settled()")
    page.wait_for_timeout(300)
    return page.locator(PREVIEW)


def shown_faults(preview, words: str) -> list[str]:
    """A preview holds what is expected, typeset, and lies in the window."""
    text, box = preview.inner_text(), preview.bounding_box()
    labels = preview.locator("mjx-container").evaluate_all("all => all.map(e => e.ariaLabel)")
    said = " ".join([text, preview.text_content(), *labels]).lower()
    faults = [] if words.lower() in said else [text]
    if r"\(" in text or preview.locator("mjx-merror").count():
        faults.append("its formulas are not typeset")
    ends = (box["x"] + box["width"], box["y"] + box["height"])
    if min(box["x"], box["y"]) < 0 or ends[0] > DESKTOP["width"] or ends[1] > 901:
        faults.append("it leaves the window")
    return faults


@pytest.mark.parametrize("name", HOVERED)
def test_a_reference_shows_what_it_refers_to(name, desktop):
    page = desktop.open(f"{LOCAL}/{name}.html").page
    page.evaluate("bookChecks.openAll()")
    for selector, words in HOVERED[name].items():
        assert shown_faults(hover(page, selector), words) == []
        page.keyboard.press("Escape")
        page.wait_for_selector(PREVIEW, state="detached")
    assert desktop.faults == []


def test_a_reference_to_a_figure_shows_the_figure(desktop):
    pattern = re.compile(r'<a class="reference internal" href="([^"]*#fig-[^"]+)"')
    found = {page: pattern.search(built(f"{page}.html")) for page in notebooks()}
    name, match = next((page, match) for page, match in found.items() if match)
    page = desktop.open(f"{LOCAL}/{name}.html").page
    page.evaluate("bookChecks.openAll()")
    hover(page, f"a.internal[href='{match[1]}']")
    page.wait_for_function("document.querySelector('#book-preview img').naturalWidth > 0")


def with_figures() -> str:
    """A page whose figures are drawn for light and for dark; one with a live picture hides some."""
    drawn = (page for page in notebooks() if "only-dark" in article(page))
    return next(page for page in drawn if 'class="live' not in article(page))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_figure_is_enlarged_by_key_and_by_pointer(scheme, browser, site):
    with Watched(browser, site, dark=scheme == "dark") as watched:
        page = watched.open(f"{site}/{with_figures()}.html").page
        page.evaluate("bookChecks.openAll()")
        figure = page.locator("article figure:has(.figure-modes)").first
        picture = figure.locator(f"img.only-{scheme}")
        assert picture.is_visible() and figure.locator("img:visible").count() == 1
        before = picture.bounding_box()["width"]
        button = figure.get_by_role("button", name="Enlarge")
        for ask in (lambda: (button.focus(), page.keyboard.press("Enter")), picture.click):
            ask()
            sheet = page.locator(f"dialog.figure-sheet img.only-{scheme}")
            assert sheet.bounding_box()["width"] > before
            page.keyboard.press("Escape")
            page.wait_for_selector("dialog.figure-sheet", state="detached")
        fetched = page.evaluate("performance.getEntriesByType('resource').map((r) => r.name)")
        hidden = figure.locator(f"img:not(.only-{scheme})").get_attribute("src").rsplit("/", 1)[1]
        assert not [name for name in fetched if name.endswith(hidden)], "nobody sees it"
        assert watched.faults == []


def test_a_preview_comes_and_goes_with_pointer_and_keyboard(desktop, site):
    page = desktop.open(f"{site}/notebooks/mean_field.html").page
    page.evaluate("bookChecks.openAll()")
    preview = hover(page, SCORE_GAP)
    assert shown_faults(preview, "Score gap") == []
    assert preview.locator("mjx-container").count()
    preview.hover()
    page.wait_for_timeout(600)
    assert preview.count() == 1, "the pointer may enter it"
    page.mouse.move(2, 2)
    page.wait_for_selector(PREVIEW, state="detached")

    page.locator(f"article {SCORE_GAP}").first.focus()
    page.wait_for_selector(PREVIEW)
    described = page.evaluate("document.activeElement.getAttribute('aria-describedby')")
    assert f"#{described}" == PREVIEW
    page.keyboard.press("Tab")  # perhaps to another reference
    page.wait_for_function(f"!document.querySelector('{PREVIEW}')?.innerText.includes('Score gap')")
    assert desktop.faults == []


# What is typed, and the page, or the place on it, that must be among the first three.
SEARCHES = {
    "g_A": "notebooks/score_gap.html",
    "kappa": "notebooks/matching_bounds.html",
    "κ": "notebooks/matching_bounds.html",
    "σ_max": "notebooks/spectral_norm.html",
    "‖P‖₂": "notebooks/why_it_grows.html",
    "general_upper": "notebooks/general_upper_bound.html",
    "local_lipschitz": "book/api.html",
    "LayerNorm": "notebooks/normalisation_and_heads.html",
    "d_p": "notebooks/masks_further.html",
    "pushforward": "notebooks/measures_and_transport.html",
    "Torn queries": "notebooks/matching_bounds.html#thm-torn",
    "Hardy's inequality": "notebooks/masked_attention.html#thm-masked-hardy",
    "Wasserstein": "notebooks/measures_and_transport.html#def-wasserstein",
    "attention sink": "book/glossary.html#term-attention-sink",
    "cheat sheet": "book/notation.html",
}


@pytest.mark.parametrize("words", SEARCHES)
def test_the_search_finds_pages_and_from_a_disk_places(words, desktop, site):
    page, address = desktop.page, LOCAL if "#" in SEARCHES[words] else site
    page.goto(f"{address}/search.html?q={quote(words)}")
    page.wait_for_function(
        "/found|did not match/.test(document.getElementById('search-results').innerText)"
    )
    found = page.locator("#search-results ul.search > li > a").all()[:3]
    links = [re.sub("^([.]+/)+", "", link.get_attribute("href")) for link in found]
    assert any(link.startswith(SEARCHES[words]) for link in links), links
    assert desktop.faults == []


def test_the_scoreboard_is_filtered_by_part_and_status(desktop, site):
    page = desktop.open(f"{site}/book/scoreboard.html").page
    rows = page.locator("table.scoreboard tbody tr")
    everything, visible = rows.count(), page.locator("table.scoreboard tbody tr:visible")
    assert visible.count() == everything
    page.select_option(".board-filter [name=part]", label="Further")
    assert 0 < visible.count() < everything
    assert page.locator(".board-part:visible .rubric").all_inner_texts() == ["Further"]
    page.select_option(".board-filter [name=part]", label="All parts")
    page.select_option(".board-filter [name=status]", "open")
    statuses = page.locator("table.scoreboard tbody tr:visible .claim-status").all_inner_texts()
    assert set(statuses) == {"open"}
    assert f"{len(statuses)} of {everything} claims" in page.locator(".board-filter").inner_text()
    page.evaluate("location.hash = document.querySelector('tr.is-proved').id")
    page.wait_for_selector("tr.is-proved:target", state="visible")
    assert desktop.faults == []


def test_the_scoreboard_fits_a_phone_and_a_desktop_and_breaks_no_word(phone, site):
    page = phone.open(f"{site}/book/scoreboard.html").page
    table = page.locator("table.scoreboard").first
    wide, room = table.evaluate("(e) => [e.scrollWidth, e.parentElement.clientWidth]")
    assert wide <= room + 1
    row = table.locator("tbody tr").first
    assert row.evaluate("(e) => getComputedStyle(e).display") == "block"

    page.set_viewport_size(DESKTOP)
    page.evaluate("bookChecks.drawn()")
    for table in page.locator("table.scoreboard").all():
        wide, room = table.evaluate("(e) => [e.scrollWidth, e.parentElement.clientWidth]")
        assert wide <= room + 1
    broken = page.eval_on_selector_all(
        "table.scoreboard td a, table.scoreboard th",
        r"""(cells) => cells.flatMap((cell) => {
          const range = document.createRange(), node = document.createTreeWalker(cell, 4).nextNode();
          return [...node.data.matchAll(/[^\s-]{2,}/g)].filter((m) => {
            range.setStart(node, m.index);
            range.setEnd(node, m.index + m[0].length);
            return new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1;
          }).map((m) => m[0]);
        })""",
    )
    assert broken == []


@pytest.mark.parametrize("name", toc_pages())
def test_a_page_describes_itself(name):
    html = built(f"{name}.html")
    said = re.search(r'<meta name="description" content="([^"]*)" />', html)[1]
    assert 40 <= len(said) <= 210 and not re.search(r"[\\$]", said), said
    assert f'<meta property="og:description" content="{said}" />' in html
    card = re.search(r'<meta property="og:image" content="https://[^"]+/(_static/[^"]+)" />', html)
    assert (HTML / card[1]).stat().st_size < 100_000


# A number with a hyphen for its sign, a computer's power of ten, a power written with a caret.
UNSET = re.compile(r"(?<![\w–-])-\d|\d[eE][+-]\d\d|\w\^[\d({]")


@pytest.mark.parametrize("name", sorted(toc_pages()))
def test_numbers_are_typeset(name):
    own = fromstring(article(name))
    for part in own.xpath(NO_PROSE):
        part.drop_tree()
    text = own.text_content()
    found = [text[max(0, m.start() - 30) : m.end() + 10] for m in UNSET.finditer(text)]
    assert found == []
