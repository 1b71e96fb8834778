"""The archive, unpacked and opened from a folder with the network off."""

import re
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from book_build import editions
from checker import Watched, check_mathematics
from test_pages import HTML, ROOT

KINDS = (".html", ".svg", ".png", ".ipynb")


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    path = HTML / editions.FILES["zip"]
    assert path.exists(), "pack it first: make zip"
    where = tmp_path_factory.mktemp("offline")
    with zipfile.ZipFile(path) as files:
        files.extractall(where)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    assert [p.name for p in where.iterdir()] == [f"{editions.NAME}-{project['version']}"]
    return next(where.iterdir())


@pytest.fixture
def offline(browser):
    """A window without a network; a request to a host is a fault, and so is one that fails."""
    with Watched(browser, "file:///") as watched:
        watched.context.set_offline(True)
        yield watched


def test_it_holds_every_page_and_the_pdf(folder):
    def pages(where: Path) -> set[Path]:
        return {p.relative_to(where) for p in where.rglob("*") if p.suffix in KINDS}

    assert pages(folder) == pages(HTML)
    assert (folder / editions.FILES["pdf"]).exists()
    assert not (folder / editions.FILES["zip"]).exists()
    page = (folder / "book" / "how_to_run.html").read_text(encoding="utf8")
    assert f'href="../{editions.FILES["pdf"]}"' in page and editions.FILES["zip"] not in page


CHOSEN = ["notebooks/encoder_real_text", "book/scoreboard", "book/api"]


def test_it_opens_without_a_network_and_can_be_searched(folder, offline):
    page = offline.page
    page.goto((folder / "index.html").as_uri())
    page.wait_for_url("**/book/index.html")
    page.click('a.reference.internal[href*="attention_as_a_map"] >> nth=0')
    page.wait_for_url("**/notebooks/attention_as_a_map*")
    page.goto((folder / "search.html").as_uri() + "?q=certificate")
    page.wait_for_selector("#search-results li a")
    for name in CHOSEN:
        html = (folder / f"{name}.html").read_text(encoding="utf8")
        offline.open((folder / f"{name}.html").as_uri())
        assert check_mathematics(page, html) == []
        broken = "[...document.images].filter((i) => i.complete && !i.naturalWidth)"
        assert page.evaluate(f"{broken}.length") == 0
    assert offline.faults == []


def test_a_page_that_needs_the_network_is_found(offline, tmp_path):
    page = '<title>a</title><img src="https://example.org/x.png" alt="x">'
    (tmp_path / "a.html").write_text(page, encoding="utf8")
    offline.page.goto((tmp_path / "a.html").as_uri())
    assert "request to another host: https://example.org/x.png" in offline.faults


# The links to both, in pages that have a place for them.


@pytest.fixture
def site(tmp_path) -> Path:
    pages = tmp_path / "_build" / "html"
    (pages / "book").mkdir(parents=True)
    text = f"<article><h1>A</h1>{editions.BEGIN}{editions.END}</article>"
    (pages / "book" / "a.html").write_text(text, encoding="utf8")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    return pages


def test_links_come_and_go_with_the_files(site):
    def shown() -> list[str]:
        editions.write_links(site)
        return re.findall(r'href="([^"]+)"', (site / "book" / "a.html").read_text(encoding="utf8"))

    assert shown() == []
    (site / editions.FILES["pdf"]).write_bytes(b"x")
    (site / editions.FILES["zip"]).write_bytes(b"x")
    assert shown() == [f"../{editions.FILES['pdf']}", f"../{editions.FILES['zip']}"]
    (site / editions.FILES["pdf"]).unlink()
    (site / editions.DECK).write_text("<html></html>")
    assert shown() == [f"../{editions.DECK}", f"../{editions.FILES['zip']}"]


def test_an_edition_of_other_pages_is_removed(site):
    app, target = SimpleNamespace(outdir=site), site / editions.FILES["zip"]
    editions.finish(app)
    editions.archive(site.parents[1], site, target)
    first = target.read_bytes()
    editions.finish(app)
    assert target.exists(), "its own link changes nothing"
    editions.archive(site.parents[1], site, target)
    assert target.read_bytes() == first, "the same pages, the same archive"
    page = site / "book" / "a.html"
    page.write_text(page.read_text(encoding="utf8").replace("A", "B"), encoding="utf8")
    editions.finish(app)
    assert not target.exists()
