"""Every page of the built book, opened in a browser over http."""

import re
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

import pytest
import yaml
from checker import (
    PHONE,
    Watched,
    check_content,
    check_legible,
    check_mathematics,
    check_notebook,
    check_width,
    formulas_in,
)

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
GENERATED = {"index.html", "genindex.html", "search.html", "prf-prf.html", "py-modindex.html"}


def toc_pages() -> list[str]:
    """The pages that the table of contents promises."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    chapters = [c for part in toc.get("parts", []) for c in part["chapters"]] + toc.get(
        "chapters", []
    )
    return [toc["root"]] + [c["file"] for c in chapters]


def notebooks() -> list[str]:
    return [
        p
        for p in toc_pages()
        if "kernelspec" in (ROOT / f"{p}.md").read_text(encoding="utf8")[:400]
    ]


def test_the_pages_are_those_of_the_contents():
    built = {str(p.relative_to(HTML)) for p in HTML.rglob("*.html") if "_static" not in p.parts}
    assert built - GENERATED == {f"{page}.html" for page in toc_pages()}


def test_a_page_on_a_desktop(built_page, browser, site):
    html = (HTML / built_page).read_text(encoding="utf8")
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/{built_page}").page
        faults = watched.faults + check_mathematics(page, formulas_in(html)) + check_width(page)
        faults += check_legible(page)
        if built_page not in GENERATED:
            faults += check_content(page)
        assert page.title().strip()
    assert faults == []


def test_a_page_in_the_dark(built_page, browser, site):
    with Watched(browser, site, dark=True) as watched:
        page = watched.open(f"{site}/{built_page}").page
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert watched.faults + check_legible(page) == []


def test_a_page_on_a_phone(built_page, browser, site):
    with Watched(browser, site, viewport=PHONE) as watched:
        page = watched.open(f"{site}/{built_page}").page
        closed = check_width(page)
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert watched.faults + closed + check_width(page) == []


def test_a_page_needs_nothing_from_outside(built_page):
    """No address in the page would be loaded from elsewhere, even if a browser did not try."""
    html = (HTML / built_page).read_text(encoding="utf8")
    loaded = re.findall(
        r"<(?:script|img|iframe|source|video|audio)[^>]+src=[\"']((?:https?:)?//[^\"']+)", html
    )
    loaded += [
        t for t in re.findall(r"<link[^>]+>", html) if re.search(r"href=[\"'](?:https?:)?//", t)
    ]
    assert [t for t in loaded if 'rel="canonical"' not in t] == []


def test_links_inside_the_book_lead_somewhere(built_page):
    html = (HTML / built_page).read_text(encoding="utf8")
    broken = []
    for link in set(re.findall(r"<a[^>]+href=\"([^\"#][^\"]*|#[^\"]+)\"", html)):
        url = urlparse(urljoin(f"book:/{built_page}", unquote(link)))
        if (
            url.scheme not in ("book", "")
            or link.startswith(("mailto:", "javascript:"))
            or "://" in link
        ):
            continue
        target = (
            (HTML / built_page).parent / unquote(urlparse(link).path)
            if urlparse(link).path
            else HTML / built_page
        )
        if not target.exists():
            broken.append(link)
        elif urlparse(link).fragment and target.suffix == ".html":
            if f'id="{unquote(urlparse(link).fragment)}"' not in target.read_text(encoding="utf8"):
                broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", notebooks())
def test_a_notebook_page_offers_its_notebook(page):
    html = (HTML / f"{page}.html").read_text(encoding="utf8")
    link = re.search(r'href="((?:\.\./)+_sources/[^"]+\.ipynb)"', html)
    assert link, "no link to the .ipynb"
    assert check_notebook((HTML / f"{page}.html").parent / link[1]) == []
    assert f"{page}.md" in re.search(r'href="(https://mybinder\.org/[^"]+)"', html)[1]
    assert f"gh-pages/_sources/{page}.ipynb" in re.search(r'href="(https://colab[^"]+)"', html)[1]


def test_the_first_page_redirects(browser, site):
    with Watched(browser, site) as watched:
        watched.page.goto(f"{site}/")
        watched.page.wait_for_url("**/book/index.html")
        assert watched.page.locator("article h1").count() == 1
    assert watched.faults == []


def test_the_search_finds_something(browser, site):
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/search.html?q=attention").page
        page.wait_for_selector("#search-results li a")
    assert watched.faults == []


def test_a_folded_proof_opens_on_paper_and_by_its_link(browser, site):
    for name in notebooks():
        if "<details" in (HTML / f"{name}.html").read_text(encoding="utf8"):
            break
    else:
        pytest.skip("no page has a folded part")
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/{name}.html").page
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("article details:not([open])").count() == 0
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("article details:not([open])").count() > 0
