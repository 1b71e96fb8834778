"""What a reader does with a page: hover, search, print, and wait for it."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from checker import PHONE, TYPESET, Watched
from test_pages import HTML, notebooks, toc_pages

MEGABYTE = 1_000_000
LOCAL = HTML.as_uri()

# On which page, and what is hovered there, and what must then be read.
HOVERED = [
    (
        "notebooks/07_mean_field",
        "a.internal[href='06_lower_bound.html#def-score-gap']",
        "Score gap",
    ),
    (
        "notebooks/05_general_upper_bound",
        "a.internal[href*='bibliography.html#']",
        "How smooth is attention",
    ),
    ("notebooks/05_general_upper_bound", "a.internal[href='#equation-eq-upper-general']", "Lip"),
    ("notebooks/09_masked_attention", "a.internal[href*='glossary.html#term']", "running means"),
    ("book/scoreboard", "a.internal[href$='#claim-upper-general']", "proved"),
]


def figure_reference() -> tuple[str, str]:
    """A page with a reference to a figure, and the reference."""
    for page in notebooks():
        html = (HTML / f"{page}.html").read_text(encoding="utf8")
        for found in re.findall(r'<a class="reference internal" href="([^"]*#fig-[^"]+)"', html):
            return page, f"a.internal[href='{found}']"
    pytest.fail("no page refers to a figure")


def hover(page, selector: str) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    page.locator(f"article {selector}").first.hover()
    page.wait_for_selector("#book-preview")
    page.evaluate(TYPESET)
    page.wait_for_timeout(300)


@pytest.mark.parametrize(("name", "selector", "words"), HOVERED)
@pytest.mark.parametrize("where", ["http", "file"])
def test_a_reference_shows_what_it_refers_to(name, selector, words, where, browser, site):
    with Watched(browser, site) as watched:
        page = watched.open(f"{site if where == 'http' else LOCAL}/{name}.html").page
        hover(page, selector)
        preview = page.locator("#book-preview")
        assert words.lower() in preview.inner_text().lower() or words in preview.text_content()
        assert r"\(" not in preview.inner_text(), "its formulas are typeset"
        assert page.locator("#book-preview mjx-merror").count() == 0
        box = preview.bounding_box()
        assert (
            box["x"] >= 0
            and box["y"] >= 0
            and box["x"] + box["width"] <= 1280
            and box["y"] + box["height"] <= 901
        )
        page.keyboard.press("Escape")
        page.wait_for_selector("#book-preview", state="detached")
    assert watched.faults == []


def test_a_reference_to_a_figure_shows_the_figure(browser, site):
    name, selector = figure_reference()
    with Watched(browser, site) as watched:
        page = watched.open(f"{LOCAL}/{name}.html").page
        hover(page, selector)
        page.wait_for_function("document.querySelector('#book-preview img').naturalWidth > 0")


def test_a_formula_in_a_preview_is_typeset(browser, site):
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/notebooks/07_mean_field.html").page
        hover(page, HOVERED[0][1])
        page.wait_for_selector("#book-preview mjx-container")


def test_the_keyboard_shows_a_preview_too_and_leaving_hides_it(browser, site):
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/notebooks/07_mean_field.html").page
        for _ in range(200):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.hash") == "#def-score-gap":
                break
        page.wait_for_selector("#book-preview")
        described = page.evaluate("document.activeElement.getAttribute('aria-describedby')")
        assert described == "book-preview"
        page.keyboard.press("Tab")
        page.wait_for_selector("#book-preview", state="detached")


def test_the_pointer_may_enter_a_preview_and_leave(browser, site):
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/notebooks/07_mean_field.html").page
        hover(page, HOVERED[0][1])
        page.locator("#book-preview").hover()
        page.wait_for_timeout(600)
        assert page.locator("#book-preview").count() == 1
        page.mouse.move(2, 2)
        page.wait_for_selector("#book-preview", state="detached")


# What is typed, and the page that must be among the first three.
SEARCHES = {
    "score gap": "notebooks/06_lower_bound",
    "g_A": "notebooks/06_lower_bound",
    "kappa": "notebooks/18_every_regime",
    "κ": "notebooks/18_every_regime",
    "radius": "notebooks/08_large_radius",
    "sigma max": "notebooks/03_spectral_norm",
    "σ_max": "notebooks/03_spectral_norm",
    "‖P‖₂": "notebooks/19_why_it_grows",
    "‖P‖₁": "notebooks/19_why_it_grows",
    "general_upper": "notebooks/05_general_upper_bound",
    "local_lipschitz": "book/api",
    "Hardy": "notebooks/09_masked_attention",
    "LayerNorm": "notebooks/11_normalisation_and_heads",
    "mass splitting": "notebooks/12_mass_splitting",
    "d_p": "notebooks/10_masked_mean_field",
    "gamma": "notebooks/06_lower_bound",
    "attention sink": "notebooks/19_why_it_grows",
    "pushforward": "notebooks/04_measures_and_transport",
}


@pytest.mark.parametrize("words", SEARCHES)
def test_the_search_finds_symbols_by_name(words, browser, site):
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/search.html?q={quote(words)}").page
        page.wait_for_selector("#search-results ul.search li a")
        page.wait_for_function(
            "/finished|found/.test(document.querySelector('#search-results').innerText)"
        )
        links = page.eval_on_selector_all(
            "#search-results ul.search > li > a",
            "a => a.slice(0, 3).map(e => e.getAttribute('href').split('#')[0])",
        )
    assert any(link.endswith(f"{SEARCHES[words]}.html") for link in links), links


PRINTED_FAULTS = """() => {
  const faults = [];
  document.querySelectorAll('article details, article .toggle-hidden').forEach((d) => {
    if (!d.getBoundingClientRect().height) return;  // not there at all, as what stands in for a script that runs
    const inside = [...d.querySelectorAll('p, pre, div.math')].find((e) => e.textContent.trim()
      && !e.closest('summary') && !e.matches('.admonition-title'));
    if (inside && !inside.getBoundingClientRect().height) faults.push(`folded: ${d.textContent.trim().slice(0, 40)}`);
  });
  const right = document.querySelector('article').getBoundingClientRect().right + 24;
  document.querySelectorAll('article mjx-math, article pre, article img, article table').forEach((e) => {
    const box = e.getBoundingClientRect(), what = `${e.tagName} ${e.textContent.trim().slice(0, 40)}`;
    if (box.width && box.right > right) faults.push(`cut off by ${Math.round(box.right - right)} px: ${what}`);
    if (e.tagName === 'PRE' && e.scrollWidth > e.clientWidth + 2) faults.push(`cut off: ${what}`);
    for (let b = e.parentElement; b && b.tagName !== 'ARTICLE'; b = b.parentElement)
      if (!['visible', ''].includes(getComputedStyle(b).overflowX) && box.right > b.getBoundingClientRect().right + 2)
        faults.push(`scrolls on paper: ${b.tagName}: ${what}`);
  });
  return [...new Set(faults)];
}"""


@pytest.mark.parametrize("page_name", notebooks())
def test_a_page_on_paper_is_open_and_nothing_is_cut_off(page_name, browser, site):
    with Watched(
        browser, site, viewport={"width": 760, "height": 1075}
    ) as watched:  # A4 within its margins
        page = watched.open(f"{site}/{page_name}.html").page
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.wait_for_timeout(200)
        assert page.evaluate(PRINTED_FAULTS) == []


def own_weight(name: str) -> int:
    """Bytes of a page and of its pictures, without what all pages share."""
    html = (HTML / f"{name}.html").read_text(encoding="utf8")
    article = html[html.find("<article") : html.find("</article>")]
    pictures = {s for s in re.findall(r'<img[^>]+src="([^":]+)"', article) if "_static" not in s}
    folder = (HTML / name).parent
    return len(html.encode()) + sum((folder / s).resolve().stat().st_size for s in pictures)


@pytest.mark.parametrize("page", toc_pages())
def test_a_page_weighs_less_than_a_megabyte(page):
    assert own_weight(page) <= MEGABYTE


FIRST_TEXT = """() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"""


def test_the_text_can_be_read_before_the_formulas_are_set(browser, site):
    """A cold browser each time; `make check` shows the table. How fast depends on the machine."""
    lines = [f"{'page':40} {'own weight':>10} {'first text':>10} {'typeset':>9}"]
    slow = []
    for name in toc_pages():
        with Watched(browser, site) as watched:
            page = watched.open(f"{site}/{name}.html").page
            first = page.evaluate(FIRST_TEXT)
            typeset = page.evaluate("performance.now()")
        lines.append(
            f"{name:40} {own_weight(name) / 1000:7.0f} kB {first:7.0f} ms {typeset:6.0f} ms"
        )
        slow += [] if first and first < typeset else [lines[-1]]
    (HTML.parent / "reading.txt").write_text("\n".join(lines) + "\n", encoding="utf8")
    assert slow == []


def test_claims_and_scoreboard_lead_to_each_other():
    board = (HTML / "book" / "scoreboard.html").read_text(encoding="utf8")
    rows = set(re.findall(r'<tr[^>]*id="board-([^"]+)"', board))
    claims = {}
    for name in notebooks():
        html = (HTML / f"{name}.html").read_text(encoding="utf8")
        claims |= {
            key: html for key in re.findall(r'<div class="claim [^>]*id="claim-([^"]+)"', html)
        }
    assert rows == set(claims) and rows
    for key, html in claims.items():
        assert f'book/scoreboard.html#board-{key}"' in html
        assert f'#claim-{key}"' in board


def test_the_scoreboard_needs_no_sideways_scrolling_on_a_phone(browser, site):
    with Watched(browser, site, viewport=PHONE) as watched:
        page = watched.open(f"{site}/book/scoreboard.html").page
        box = page.locator("table.scoreboard").first.evaluate(
            "(e) => [e.scrollWidth, e.parentElement.clientWidth]"
        )
        assert box[0] <= box[1] + 1
        assert (
            page.locator("table.scoreboard tbody tr").first.evaluate(
                "(e) => getComputedStyle(e).display"
            )
            == "block"
        )


def test_the_first_page_shows_its_findings():
    html = (HTML / "book" / "index.html").read_text(encoding="utf8")
    found = html[
        html.index('<section id="what-was-found">') : html.index('<section id="how-to-read">')
    ]
    cards = re.split(r'<div class="sd-card ', found)[1:]
    assert len(cards) == 5
    for card in cards:
        picture = re.search(r'<img[^>]*alt="([^"]{20,})"[^>]*src="\.\./(_images/[^"]+)"', card)
        assert picture and (HTML / picture[2]).exists()
        assert 'class="sd-stretched-link' in card
    assert Path(HTML / "book" / "glossary.html").exists()
