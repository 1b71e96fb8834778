"""Every page of the built book, opened in a browser over http: on a phone and on a desktop."""

import functools
import gzip
import re
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

import pytest
import yaml
from access import audit
from checker import DESKTOP, Watched, check, check_mathematics, check_notebook

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
GENERATED = {"index.html", "slides.html", "genindex.html", "search.html", "py-modindex.html"}
MEGABYTE = 2**20
# Pages with long formulas; all of these can be broken into lines that a phone is wide enough for.
LONG_FORMULAS = {f"notebooks/{x}.html" for x in ("general_upper_bound", "mean_field", "rivals")}
LONG_FORMULAS |= {"book/scoreboard.html"}


def toc_pages() -> list[str]:
    """The pages that the table of contents promises."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    return [toc["root"]] + [page["file"] for part in toc["parts"] for page in part["chapters"]]


def notebooks() -> list[str]:
    """The pages that are executed."""
    return [p for p in toc_pages() if "kernelspec" in source(p)[:400]]


def source(name: str) -> str:
    return (ROOT / f"{name}.md").read_text(encoding="utf8")


@functools.cache
def built(page: str) -> str:
    return (HTML / page).read_text(encoding="utf8")


def article(page: str) -> str:
    html = built(f"{page}.html")
    return html[html.find("<article") : html.find("</article>")]


EVERY_PAGE = [*(f"{page}.html" for page in toc_pages()), *sorted(GENERATED - {"index.html"})]


def test_the_pages_are_those_of_the_contents():
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))
    leading_on = {f"{page}.html" for page in ("index", *config["sphinx"]["config"]["redirects"])}
    pages = {str(p.relative_to(HTML)) for p in HTML.rglob("*.html") if "_static" not in p.parts}
    assert pages - leading_on == set(EVERY_PAGE)


def phone_faults(page, name: str) -> list[str]:
    """What is wrong on a phone, folded and unfolded."""
    faults = check(page, "width")
    page.evaluate("bookChecks.beforePrint()")  # the page opens what is folded
    faults += check(page, "width", "formulas", "code")
    if name in LONG_FORMULAS:
        assert page.locator(".bd-article mjx-container.broken").count(), "has no long formula"
        faults += check(page, "scrollingFormulas")
    return faults


def desktop_faults(page, name: str) -> list[str]:
    """What is wrong on a wide window, unfolded, in the light and in the dark."""
    page.evaluate("bookChecks.boxSeenFormulas()")
    page.set_viewport_size(DESKTOP)
    page.evaluate("bookChecks.drawn()")
    faults = check(page, "width", "code") + ([] if name in GENERATED else check(page, "content"))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_selector(f"html[data-theme={scheme}]")
        faults += [f"{scheme}: {x}" for x in check(page, "contrast", "links", "figures")]
    return faults


@pytest.mark.parametrize("built_page", EVERY_PAGE)
def test_a_page(built_page, phone, site):
    """Opened on a phone and widened to a desktop: loading a page is what takes long."""
    page = phone.open(f"{site}/{built_page}").page
    faults = check_mathematics(page, built(built_page))
    faults += [f"phone: {x}" for x in phone_faults(page, built_page)]
    faults += [f"desktop: {x}" for x in desktop_faults(page, built_page)]
    # Last, since it empties formulas and listings; what it asks does not depend on colours.
    faults += audit(page) + phone.faults
    assert not faults, "\n".join(faults)


def test_a_page_that_opens_in_the_dark(browser, site):
    with Watched(browser, site, dark=True) as watched:
        page = watched.open(f"{site}/book/index.html").page
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.evaluate("bookChecks.openAll()")
        assert watched.faults + check(page, "contrast", "links", "figures") == []


def test_a_wider_window_joins_formulas_again_and_paper_unfolds(phone, site):
    page = phone.open(f"{site}/{min(LONG_FORMULAS)}").page
    assert page.locator(".bd-article mjx-container.broken").count()
    closed = page.locator("article details:not([open])").count()
    page.set_viewport_size(DESKTOP)
    page.wait_for_function("!document.querySelector('.bd-article mjx-container.broken')")
    assert page.locator(".formula-break, .formula-may-break, .formula-gap").count() == 0
    page.evaluate("bookChecks.beforePrint()")
    page.emulate_media(media="print")
    assert check(page, "paper") == []
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("article details:not([open])").count() == closed
    assert phone.faults == []


def leads_somewhere(link: str, page: str) -> bool:
    """Whether the file of a link inside the book exists, and holds the place that it names."""
    folder = "notebooks/" if page == "slides.html" else ""  # its base
    url = urlparse(unquote(urljoin(f"http://book/{folder}{page}", link)))
    target = HTML / url.path.lstrip("/")
    if not url.fragment or target.suffix != ".html" or not target.exists():
        return target.exists()
    return f'id="{url.fragment}"' in built(str(target.relative_to(HTML)))


@pytest.mark.parametrize("built_page", EVERY_PAGE)
def test_links_inside_the_book_lead_somewhere(built_page):
    links = set(re.findall(r"<a[^>]+href=\"([^\"#][^\"]*|#[^\"]+)\"", built(built_page)))
    inside = {link for link in links if not re.match(r"[a-z]+:", link)}
    assert [link for link in inside if not leads_somewhere(link, built_page)] == []


@pytest.mark.parametrize("page", notebooks())
def test_a_notebook_page_offers_its_notebook(page):
    html = built(f"{page}.html")
    link = re.search(r'href="((?:\.\./)+_sources/[^"]+\.ipynb)"', html)
    assert link, "no link to the .ipynb"
    assert check_notebook((HTML / f"{page}.html").parent / link[1]) == []
    assert f"{page}.md" in re.search(r'href="(https://mybinder\.org/[^"]+)"', html)[1]
    assert f"gh-pages/_sources/{page}.ipynb" in re.search(r'href="(https://colab[^"]+)"', html)[1]


@pytest.mark.parametrize("page", toc_pages())
def test_a_page_weighs_less_than_a_megabyte(page):
    """With its pictures, in the light, but without what all pages share."""
    pictures = set(re.findall(r'<img[^>]+src="([^":]+)"', article(page)))
    shown = [p for p in pictures if "_static" not in p and not p.endswith("-dark.svg")]
    folder = (HTML / page).parent
    sizes = [(folder / picture).resolve().stat().st_size for picture in shown]
    text = len(gzip.compress(built(f"{page}.html").encode()))  # as it is sent
    assert text <= 400_000 and text + sum(sizes) <= MEGABYTE
