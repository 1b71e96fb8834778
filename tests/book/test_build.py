"""What must stop a build stops it; what did not change is not executed again."""

import json
import re

import nbformat
import pytest

CELL = "\n```{{code-cell}} python3\n{}\n```\n"

PLANTED = {
    "a failing cell": ("notebooks/two.md", CELL.format("1 / 0"), "ZeroDivisionError"),
    "a failing assert": (
        "notebooks/two.md",
        CELL.format("bound, truth = 1.0, 1.5\nassert truth <= bound"),
        "AssertionError",
    ),
    "a claim against its evidence": (
        "notebooks/two.md",
        CELL.format(
            "from tinypkg.claims import claim\nclaim('x', 'y', source='book', status='proved', ratio=2.0)"
        ),
        "contradicts",
    ),
    "a warning of Python": (
        "notebooks/two.md",
        CELL.format("import warnings\nwarnings.warn('careful')"),
        "stderr",
    ),
    "an unknown kind of output": (
        "notebooks/two.md",
        CELL.format(
            "from IPython.display import display\ndisplay({'application/x-odd': 'text'}, raw=True)"
        ),
        "unknown output mime type",
    ),
    "a broken reference": ("book/index.md", "\nSee {prf:ref}`thm-missing`.\n", "thm-missing"),
    "a broken link": ("book/index.md", "\nSee [there](missing.md).\n", "missing.md"),
    "a broken equation reference": ("book/index.md", "\nSee {eq}`eq-missing`.\n", "eq-missing"),
    "an unknown citation": ("book/index.md", "\nSee {cite:t}`nobody1900`.\n", "nobody1900"),
    "an unknown directive": ("book/index.md", "\n```{no-such-thing}\n```\n", "no-such-thing"),
    "a missing glued value": ("notebooks/two.md", "\n{glue:text}`nothing`\n", "nothing"),
    "two claims with one key": (
        "notebooks/one.md",
        CELL.format("claim('growth', 'Again.', source='book', status='checked')"),
        "2 times on one page",
    ),
}


def test_a_clean_book_passes_and_shows_its_pages(book):
    for page in ("book/index", "notebooks/one", "notebooks/two", "book/scoreboard", "index"):
        assert (book.html / f"{page}.html").exists()


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_fails_the_build(book, fault):
    name, text, message = PLANTED[fault]
    with book.changed(name, book.read(name) + text):
        code, output = book.build()
    assert code != 0
    assert message in output


def test_a_failed_build_fails_again_when_nothing_changed(book):
    with book.changed("book/index.md", book.read("book/index.md") + "\n{cite:t}`nobody1900`\n"):
        assert book.build()[0] != 0
        code, output = book.build()
        assert code != 0 and "nobody1900" in output
    code, output = book.build()
    assert code == 0, output


def test_only_what_changed_is_executed(book):
    assert book.build()[0] == 0
    book.executed()

    assert book.build()[0] == 0
    assert book.executed() == [], "nothing changed"

    with book.changed("book/index.md", book.read("book/index.md") + "\nMore words.\n"):
        assert book.build()[0] == 0
        assert book.executed() == [], "only prose changed"

    with book.changed("notebooks/two.md", book.read("notebooks/two.md").replace("1 + 1", "1 + 2")):
        assert book.build()[0] == 0
        assert book.executed() == ["two"], "one notebook changed"


def test_a_change_of_the_package_executes_every_page_again(book):
    assert book.build()[0] == 0
    book.executed()
    source = book.read("tinypkg/__init__.py")

    with book.changed("tinypkg/__init__.py", source.replace("A stand-in", "Another")):
        assert book.build()[0] == 0
        assert book.executed() == [], "only a docstring changed"

    with book.changed("tinypkg/__init__.py", source.replace("VALUE = 1", "VALUE = 17")):
        code, output = book.build()
        assert code == 0, output
        assert book.executed() == ["one", "two"]
        page = (book.html / "notebooks" / "one.html").read_text(encoding="utf8")
        assert "value 17" in page

    assert book.build()[0] == 0
    assert book.executed() == [], "the old state is still in the cache"
    assert "value 1\n" in (book.html / "notebooks" / "one.html").read_text(encoding="utf8")


def test_the_scoreboard_shows_a_planted_claim(book):
    board = (book.html / "book" / "scoreboard.html").read_text(encoding="utf8")
    assert "1 claim: 1 proved." in board
    assert "\\(2\\sqrt{n}\\)" in board and "0.5" in board
    assert 'href="../notebooks/one.html#claim-growth"' in board
    assert 'id="claim-growth"' in (book.html / "notebooks" / "one.html").read_text(encoding="utf8")
    assert "mathjax" in board, "its mathematics needs MathJax"


def test_a_notebook_with_outputs_is_offered(book):
    page = (book.html / "notebooks" / "one.html").read_text(encoding="utf8")
    link = re.search(r'href="(\.\./_sources/notebooks/one\.ipynb)"', page)[1]
    notebook = nbformat.read(book.html / "notebooks" / link, as_version=4)
    nbformat.validate(notebook)
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    assert any("value" in o.get("text", "") for o in outputs)
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    assert (
        "**Theorem 1 (Growth).**" in prose
        and "\\mathbb{R}" in prose
        and "Castin et al. (2024)" in prose
    )
    assert "<details><summary><b>Proof</b></summary>" in prose and "\\tag{1}" in prose
    assert "{" + "prf" not in prose and ":label:" not in prose


def test_references_between_pages_become_links_to_notebooks(book):
    notebook = json.loads(
        (book.html / "_sources" / "notebooks" / "two.ipynb").read_text(encoding="utf8")
    )
    prose = "".join(notebook["cells"][0]["source"])
    assert "[Theorem 1](one.ipynb#thm-growth)" in prose and "(1)" in prose


def test_a_page_loads_nothing_from_outside(book):
    for path in book.html.rglob("*.html"):
        html = path.read_text(encoding="utf8")
        tags = re.findall(
            r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"'](?:https?:)?//[^>]*>", html
        )
        assert tags == [], path.name
    assert (book.html / "_static" / "mathjax" / "tex-chtml-full.js").exists()


def test_the_first_page_has_a_title_and_an_icon(book):
    html = (book.html / "index.html").read_text(encoding="utf8")
    assert "<title>How Smooth Is Attention?</title>" in html
    icon = re.search(r'rel="icon" href="([^"]+)"', html)[1]
    assert (book.html / icon).exists()
