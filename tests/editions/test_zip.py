"""The archive, unpacked and opened from a folder with the network off."""

import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from book_build import editions
from checker import Watched, check_mathematics, formulas_in

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def archive() -> Path:
    path = HTML / editions.FILES["zip"]
    assert path.exists(), "pack it first: make zip"
    return path


@pytest.fixture(scope="session")
def folder(archive, tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("offline")
    with zipfile.ZipFile(archive) as files:
        assert files.testzip() is None
        files.extractall(where)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"][
        "version"
    ]
    assert [p.name for p in where.iterdir()] == [f"{editions.NAME}-{version}"], "one folder"
    return next(where.iterdir())


class Offline(Watched):
    """A page without a network; every request but to a file is a fault, and so is one that fails."""

    def __init__(self, browser):
        super().__init__(browser, "file:///")
        self.context.set_offline(True)
        self.page.on("request", self._only_files)

    def _only_files(self, request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.faults.append(f"not a file: {request.url}")


def test_it_is_of_the_pages_that_are_there(archive):
    assert editions.fresh(HTML, "zip"), "make zip"


def test_it_holds_every_page_and_the_pdf(folder):
    def pages(where: Path) -> set[str]:
        return {
            str(p.relative_to(where))
            for p in where.rglob("*")
            if p.suffix in (".html", ".svg", ".png", ".ipynb")
        }

    assert pages(folder) == pages(HTML)
    assert (folder / editions.FILES["pdf"]).exists()
    assert not (folder / editions.FILES["zip"]).exists()
    page = (folder / "book" / "how_to_run.html").read_text(encoding="utf8")
    assert f'href="../{editions.FILES["pdf"]}"' in page and editions.FILES["zip"] not in page


CHOSEN = [
    "book/index",
    "notebooks/general_upper_bound",
    "notebooks/encoder_real_text",
    "book/scoreboard",
    "book/api",
]


@pytest.mark.parametrize("name", CHOSEN)
def test_a_page_opens_without_a_network(folder, browser, name):
    html = (folder / f"{name}.html").read_text(encoding="utf8")
    with Offline(browser) as watched:
        page = watched.open((folder / f"{name}.html").as_uri()).page
        assert watched.faults + check_mathematics(page, formulas_in(html)) == []
        assert page.evaluate("[...document.images].every((i) => !i.complete || i.naturalWidth > 0)")


def test_it_starts_with_its_index(folder, browser):
    with Offline(browser) as watched:
        watched.page.goto((folder / "index.html").as_uri())
        watched.page.wait_for_url("**/book/index.html")
        watched.page.click('a.reference.internal[href*="attention_as_a_map"] >> nth=0')
        watched.page.wait_for_url("**/notebooks/attention_as_a_map*")
    assert watched.faults == []


def test_the_search_works_from_the_folder(folder, browser):
    with Offline(browser) as watched:
        page = watched.open((folder / "search.html").as_uri() + "?q=certificate").page
        page.wait_for_selector("#search-results li a")
    # A browser lets no script fetch other files of a folder: the results come without their excerpts.
    excerpts = ("fetch", "Failed to load resource", "request failed: file:")
    assert [
        fault for fault in watched.faults if not any(words in fault for words in excerpts)
    ] == []


def test_a_page_that_needs_the_network_is_found(browser, tmp_path):
    (tmp_path / "a.html").write_text(
        '<title>a</title><img src="https://example.org/x.png" alt="x">', encoding="utf8"
    )
    with Offline(browser) as watched:
        watched.page.goto((tmp_path / "a.html").as_uri())
    assert any("not a file" in fault for fault in watched.faults)


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
    assert shown() == [f"../{editions.FILES['pdf']}"]
    (site / editions.FILES["zip"]).write_bytes(b"x")
    assert shown() == [f"../{editions.FILES['pdf']}", f"../{editions.FILES['zip']}"]
    (site / editions.FILES["pdf"]).unlink()
    assert shown() == [f"../{editions.FILES['zip']}"]
    (site / editions.DECK).write_text("<html></html>")
    assert shown() == [f"../{editions.DECK}", f"../{editions.FILES['zip']}"]


def test_an_edition_of_other_pages_is_stale(site):
    root = site.parents[1]
    editions.archive(site, root)
    editions.note(site, "zip")
    editions.write_links(site)
    assert editions.fresh(site, "zip"), "its own link changes nothing"
    first = (site / editions.FILES["zip"]).read_bytes()
    assert editions.archive(site, root).read_bytes() == first, "the same pages, the same archive"
    page = site / "book" / "a.html"
    page.write_text(page.read_text(encoding="utf8").replace("A", "B"), encoding="utf8")
    assert not editions.fresh(site, "zip")
