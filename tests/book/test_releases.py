"""The published folder keeps every release, and every page finds the others."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urljoin, urlparse

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "book" / "_ext"))
from book_build import downloads, pages, releases

ROOT = Path(__file__).resolve().parents[2]
PAGE = (
    '<html><body><header>x</header><main id="m"><article><h1>{}</h1></article></main></body></html>'
)


def site(folder: Path, words: str, pages=("book/a", "notebooks/b")) -> Path:
    for page in pages:
        path = folder / f"{page}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGE.format(words), encoding="utf8")
    (folder / "index.html").write_text('<a href="book/a.html">on</a>', encoding="utf8")
    (folder / "_static").mkdir(exist_ok=True)
    (folder / "_static" / "own.html").write_text("x")
    return folder


@pytest.fixture
def published(tmp_path) -> Path:
    folder = tmp_path / "pages"
    (folder / ".git").mkdir(parents=True)
    (folder / "gone.html").write_text("from an older build")
    releases.put(site(tmp_path / "one", "one"), folder, "v0.9.0")
    releases.put(site(tmp_path / "two", "two", ("book/a", "notebooks/c")), folder, "v0.10.0")
    releases.put(site(tmp_path / "three", "three"), folder)
    return folder


def links(folder: Path, page: str) -> list[str]:
    """Where the links of the version line lead, from the top of the folder."""
    text = releases.MARKED.search((folder / page).read_text(encoding="utf8"))[0]
    found = [
        urlparse(urljoin(f"http://h/{page}", a)).path.lstrip("/")
        for a in re.findall(r'href="([^"]+)"', text)
    ]
    assert all((folder / f).exists() for f in found), found
    return found


def test_each_version_is_where_it_belongs(published):
    assert releases.releases(published) == ["v0.10.0", "v0.9.0"], "ten comes after nine"
    for page, words in [
        ("book/a.html", "three"),
        ("v0.9.0/book/a.html", "one"),
        ("v0.10.0/book/a.html", "two"),
    ]:
        assert f"<h1>{words}</h1>" in (published / page).read_text(encoding="utf8")
    assert (published / ".git").exists() and (published / ".nojekyll").exists()
    assert not (published / "gone.html").exists()


def test_every_page_leads_to_the_newest_release(published):
    assert links(published, "book/a.html") == ["v0.10.0/book/a.html", "versions.html"]
    assert links(published, "v0.9.0/book/a.html") == ["v0.10.0/book/a.html", "versions.html"]
    assert links(published, "v0.9.0/notebooks/b.html") == ["v0.10.0/index.html", "versions.html"], (
        "the page is gone"
    )
    assert links(published, "v0.10.0/book/a.html") == ["versions.html"]
    line = releases.MARKED.search((published / "v0.9.0/book/a.html").read_text(encoding="utf8"))[0]
    assert "Version v0.9.0" in line and "newest release: v0.10.0" in line


def test_stable_leads_to_the_newest_release(published):
    for page in ("book/a.html", "index.html"):
        target = re.search(
            r'rel="canonical" href="([^"]+)"',
            (published / "stable" / page).read_text(encoding="utf8"),
        )[1]
        assert ((published / "stable" / page).parent / target).resolve() == (
            published / "v0.10.0" / page
        ).resolve()
    assert not (published / "stable" / "notebooks" / "b.html").exists()


def test_the_list_names_all(published):
    text = (published / "versions.html").read_text(encoding="utf8")
    assert re.findall(r'href="([^"]+)"', text) == [
        "index.html",
        "v0.10.0/index.html",
        "stable/index.html",
        "v0.9.0/index.html",
    ]


def test_doing_it_again_changes_nothing(published, tmp_path):
    def everything() -> dict:
        return {p: p.read_bytes() for p in published.rglob("*") if p.is_file()}

    before = everything()
    releases.arrange(published)
    releases.put(tmp_path / "three", published)
    releases.put(tmp_path / "one", published, "v0.9.0")
    assert everything() == before


def test_a_release_again_replaces_its_pages(published, tmp_path):
    releases.put(site(tmp_path / "again", "again", ("book/a",)), published, "v0.10.0")
    assert "again" in (published / "v0.10.0/book/a.html").read_text(encoding="utf8")
    assert not (published / "v0.10.0/notebooks/c.html").exists()
    assert "three" in (published / "book/a.html").read_text(encoding="utf8")


def test_the_first_release_fills_an_empty_folder(tmp_path):
    releases.put(site(tmp_path / "one", "one"), tmp_path / "pages", "v1.0.0")
    assert (tmp_path / "pages" / "book" / "a.html").exists()


@pytest.mark.parametrize("tag", ["1.0.0", "v1.0", "v1.0.0rc1", "main", "../v1.0.0"])
def test_another_name_is_no_release(tmp_path, tag):
    with pytest.raises(ValueError, match="no release"):
        releases.put(site(tmp_path / "one", "one"), tmp_path / "pages", tag)


def test_an_empty_site_is_refused(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(FileNotFoundError):
        releases.put(tmp_path / "none", tmp_path / "pages")


@pytest.mark.skipif(
    shutil.which("git") is None or sys.platform == "win32", reason="needs git and bash"
)
def test_publishing_keeps_the_releases_and_no_history(tmp_path):
    remote = tmp_path / "remote.git"
    subprocess.run(["git", "init", "-q", "--bare", str(remote)], check=True)

    def publish(words: str, *release: str) -> None:
        command = [
            str(ROOT / ".ci" / "publish"),
            str(site(tmp_path / words, words)),
            str(remote),
            *release,
        ]
        subprocess.run(
            command, check=True, capture_output=True, env={**os.environ, "PYTHON": sys.executable}
        )

    publish("one", "v1.0.0")
    publish("two")
    publish("three", "v1.1.0")
    publish("four")
    clone = tmp_path / "clone"
    subprocess.run(
        ["git", "clone", "-q", "--branch", "gh-pages", str(remote), str(clone)], check=True
    )
    for page, words in [
        ("book/a.html", "four"),
        ("v1.0.0/book/a.html", "one"),
        ("v1.1.0/book/a.html", "three"),
    ]:
        assert f"<h1>{words}</h1>" in (clone / page).read_text(encoding="utf8")
    assert links(clone, "v1.0.0/book/a.html")[0] == "v1.1.0/book/a.html"
    log = subprocess.run(
        ["git", "-C", str(clone), "log", "--oneline"], check=True, capture_output=True, text=True
    )
    assert len(log.stdout.splitlines()) == 1


@pytest.mark.parametrize(("tag", "folder", "at"), [("", "", ""), ("v1.2.0", "v1.2.0/", "@v1.2.0")])
def test_the_buttons_of_a_release_open_its_own_files(monkeypatch, tag, folder, at):
    monkeypatch.setenv("BOOK_RELEASE", tag)
    address = "https://example.org/o/n"
    options = {"repository_url": address, "repository_branch": "main"}
    config = SimpleNamespace(html_theme_options=options, html_title="T")
    downloads.name_release(None, config)
    assert options["repository_branch"] == (tag or "main")
    assert pages.colab_url(address, "notebooks/a").endswith(
        f"/o/n/blob/gh-pages/{folder}_sources/notebooks/a.ipynb"
    )
    note, install = downloads.opening_cells(SimpleNamespace(config=config), "notebooks/a")
    assert (
        f'git+{address}{at}"' in install.source
        and f"/blob/{tag or 'main'}/notebooks/a.md" in note.source
    )
