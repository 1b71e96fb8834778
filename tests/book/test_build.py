"""What must stop a build stops it; what did not change is not executed again."""

import json
import re
import time
from importlib import metadata

import nbformat
import yaml
from lxml.html import HtmlElement, fromstring

from lab.colours import ROLES

CELL = "\n```{{code-cell}} python3\n{}\n```\n"

# Faults in the code of a page, one a page: (page, code, what must be said).
EXECUTION = [
    ("notebooks/one.md", "1 / 0", "ZeroDivisionError"),
    ("notebooks/two.md", "bound, truth = 1.0, 1.5\nassert truth <= bound", "AssertionError"),
    (
        "notebooks/three.md",
        "from lab.claims import claim\nclaim('x', 'y', source='book', status='proved', ratio=2.0)",
        "contradicts it",
    ),
]
# Faults that are found when pages are read or written.
READING = [
    ("notebooks/one.md", CELL.format("import warnings\nwarnings.warn('careful')"), "stderr"),
    (
        "notebooks/two.md",
        CELL.format(
            "from IPython.display import display\ndisplay({'application/x-odd': 'text'}, raw=True)"
        ),
        "skipping unknown output mime type: application/x-odd",
    ),
    (
        "notebooks/three.md",
        CELL.format(
            "from lab.claims import claim\n"
            "claim('again', 'Again.', source='book', status='checked')"
        )
        * 2,
        "claim 'again' is stated 2 times on one page",
    ),
    (
        "notebooks/two.md",
        CELL.format(
            "from lab.claims import checked, claim\n"
            "claim('lost', 'Lost.', source='book', status='checked', theorem='thm-growth')"
        ),
        "claim 'lost': there is no theorem 'thm-growth' on this page",
    ),
    (
        "notebooks/two.md",
        CELL.format(":tags: [check]\nassert 1 + 1 == 2"),
        "a cell with the tag check must end with checked",
    ),
    (
        "notebooks/two.md",
        CELL.format("checked('Seen by all.')"),
        "“Seen by all.” needs a cell with the tag check",
    ),
    ("book/index.md", "\nSee {prf:ref}`thm-missing`.\n", "thm-missing"),
    ("book/index.md", "\nSee [there](missing.md).\n", "missing.md"),
    ("book/index.md", "\nSee {eq}`eq-missing`.\n", "eq-missing"),
    ("book/index.md", "\n{cite:t}`nobody1900`\n", "nobody1900"),
    ("book/index.md", "\n```{no-such-thing}\n```\n", "no-such-thing"),
    ("tinypkg/numbers.py", "# :prf:ref:`thm-gone`", "thm-gone"),
    ("notebooks/two.md", "\n{glue:text}`nothing`\n", "nothing"),
    (
        "notebooks/two.md",
        CELL.format("fig, ax = plotting.figure()\nax.plot([1, 2], color='#ff0000');"),
        "a figure: #ff0000 is not in lab.colours",
    ),
]


def planted(faults) -> dict:
    """Return the changes that plant all these faults."""
    texts: dict[str, str] = {}
    for name, text, _ in faults:
        texts[name] = texts.get(name, "") + text
    change = {name: ("", text) for name, text in texts.items()}
    if "tinypkg/numbers.py" in change:
        change["tinypkg/numbers.py"] = ("thm-growth", "thm-gone")
    return change


def test_a_clean_book_passes_and_shows_its_pages(book):
    for page in ("book/index", "notebooks/one", "notebooks/two", "book/scoreboard", "index"):
        assert (book.html / f"{page}.html").exists()


def test_faults_in_code_fail_the_build(book):
    faults = [(name, CELL.format(code), message) for name, code, message in EXECUTION]
    with book.changed(planted(faults)):
        code, output = book.build()
    assert code != 0
    assert [message for _, _, message in faults if message not in output] == []
    assert output.count("Traceback (most recent call last)") >= len(faults)


def test_faults_on_pages_fail_the_build_and_the_next_one_too(book):
    with book.changed(planted(READING)):
        for _ in range(2):
            code, output = book.build()
            assert code != 0
            warnings = "\n".join(line for line in output.splitlines() if "WARNING" in line)
            assert [message for _, _, message in READING if message not in warnings] == []
    code, output = book.build()
    assert code == 0, output


def test_only_what_changed_is_executed(book):
    def build() -> list[str]:
        book.executed()  # by tests before this one
        code, output = book.build()
        assert code == 0, output
        return book.executed()

    def page(name: str) -> str:
        return (book.html / "notebooks" / f"{name}.html").read_text(encoding="utf8")

    change = {
        "book/index.md": ("See", "Look at"),
        "tinypkg/corners.py": ("CORNERS", '"""Corners."""\n\nCORNERS'),
        "notebooks/two.md": ("sides())", "sides(), 'more')"),
    }
    with book.changed(change):
        assert build() == ["two"], "its code changed; elsewhere only prose and a docstring did"
        assert "sides 4 more" in page("two")

    doctree = book.folder / "_build" / ".doctrees" / "notebooks" / "one.doctree"
    read = doctree.stat().st_mtime_ns
    with book.changed({"tinypkg/corners.py": ("4", "5")}):
        assert build() == ["three", "two"], "what two imports imports it; three reaches everything"
        assert "sides 5\n" in page("two")
        assert doctree.stat().st_mtime_ns == read, "one was not even read again"

    with book.changed({"tinypkg/numbers.py": ("VALUE = 1", "VALUE = 17")}):
        assert build() == ["one", "three"], "the package hands the name on"
        assert "value 17" in page("one") and "sides 4\n" in page("two")

    assert build() == [], "the old state is still in the cache"
    assert "value 1\n" in page("one")


def test_nothing_from_before_this_run_is_published(book, monkeypatch):
    with book.changed(
        {"book/index.md": ("See", "Look at"), "notebooks/one.md": ("Squares", "All")}
    ):
        monkeypatch.setenv("BOOK_BUILT_AFTER", str(time.time()))
        code, output = book.build()
    assert code != 0 and "executed before this run began" in output


def test_a_page_says_when_and_with_what_it_was_executed(book):
    page = (book.html / "notebooks" / "one.html").read_text(encoding="utf8")
    sentence = re.search(r'class="page-execution">(.*?)<', page)[1]
    numpy = metadata.version("numpy")
    assert re.match(rf"Executed on \d+ \w+ \d{{4}} at .* in \d+ s, .*numpy {numpy}\.", sentence)
    index = (book.html / "book" / "index.html").read_text(encoding="utf8")
    assert "page-execution" not in index


def test_a_figure_is_there_for_light_and_for_dark(book):
    page = (book.html / "notebooks" / "two.html").read_text(encoding="utf8")
    (box,) = re.findall(r'<div class="figure-modes[^>]*>(.*?)</div>', page, re.DOTALL)
    pictures = re.findall(r"<img [^>]*>", box)
    for mode, picture in zip(("light", "dark"), pictures, strict=True):
        assert f"only-{mode}" in picture and 'alt="a line that rises"' in picture
        assert 'loading="lazy"' in picture and re.search(r'width="\d+"', picture)
        source = re.search(r'src="\.\./([^"]*)"', picture)[1]
        text = (book.html / source).read_text(encoding="utf8")
        assert getattr(ROLES["unified"], mode) in text
    caption = page.split(box)[1].split("</figcaption>")[0]
    for address, name in re.findall(r'href="\.\./([^"]*)" download="([^"]*)"', caption):
        start = (book.html / address).read_bytes()[:5]
        assert start == {"svg": b"<?xml", "pdf": b"%PDF-"}[name.removeprefix("fig-line.")]
    assert caption.count("download=") == 3  # the SVG for light, for dark, and the PDF
    assert "application/pdf" not in (book.html / "_sources" / "notebooks" / "two.ipynb").read_text()


def test_the_figures_are_listed(book):
    page = (book.html / "book" / "index.html").read_text(encoding="utf8")
    (items,) = re.findall(r'<ul class="figure-list[^>]*>(.*?)</ul>', page, re.DOTALL)
    assert (
        '<a class="reference internal" href="../notebooks/two.html#fig-line">Fig. B.1</a>' in items
    )
    assert "A line, " in items and "n^2" in items and "It rises" not in items
    assert "mathjax" in page.lower()


def test_every_page_knows_the_dictionary_of_colours(book):
    page = (book.html / "book" / "index.html").read_text(encoding="utf8")
    assert page.count("_static/colours.css") == 1
    style = (book.html / "_static" / "colours.css").read_text(encoding="utf8")
    for name, role in ROLES.items():
        variable = f"--colour-{name.replace('_', '-')}"
        assert (
            f"{variable}-light: {role.light};" in style
            and f"{variable}-dark: {role.dark};" in style
        )
        assert f'<span class="pre">colour("{name}")</span>' in page.replace("&quot;", '"')
        assert page.count(f'stroke="{role.dark}"') >= 1 <= page.count(f'stroke="{role.light}"')
    light, dark = style.split("html[data-theme")
    assert "--colour-nudge: var(--colour-nudge-light);" in light
    assert "--colour-nudge: var(--colour-nudge-dark);" in dark


def test_a_docstring_leads_to_its_theorem(book):
    index = (book.html / "book" / "index.html").read_text(encoding="utf8")
    assert 'href="../notebooks/one.html#thm-growth">Theorem A.1</a>' in index


def test_the_repository_is_linked(book):
    index = (book.html / "book" / "index.html").read_text(encoding="utf8")
    url = yaml.safe_load(book.read("_config.yml"))["repository"]["url"]
    assert f'href="{url}/blob/main/CHANGELOG.md"' in index


def test_the_search_knows_the_index(book):
    """After builds that wrote only some pages too."""
    found = json.loads(re.search(r"\{.*\}", book.read("_build/html/searchindex.js"), re.DOTALL)[0])
    page = found["docnames"].index("notebooks/one")
    assert found["indexentries"]["growth rate"] == [[page, "index-0", True]]
    assert "‖x‖₂" in found["indexentries"]


def tree(book, page: str) -> HtmlElement:
    return fromstring((book.html / f"{page}.html").read_text(encoding="utf8"))


def test_the_scoreboard_shows_every_claim(book):
    board = (book.html / "book" / "scoreboard.html").read_text(encoding="utf8")
    assert "4 claims: 1 enclosed, 2 checked, 1 fails." in board
    assert "\\(2\\sqrt{n}\\)" in board and "0.5" in board
    assert 'href="../notebooks/one.html#claim-growth"' in board
    assert 'id="claim-growth"' in (book.html / "notebooks" / "one.html").read_text(encoding="utf8")
    assert "mathjax" in board, "its mathematics needs MathJax"


def test_the_proofs_say_what_rests_on_what(book):
    picture = next(tree(book, "book/scoreboard").iter("svg"))
    links = list(picture.iter("a"))
    assert [(link.get("href"), link.get("class")) for link in links] == [
        ("../notebooks/one.html#thm-growth", "is-enclosed"),
        ("../notebooks/two.html#thm-decay", "is-checked"),
    ], "in reading order, and none without a claim"
    assert [link.findtext("title") for link in links] == ["Growth", "√n & decay rests on: Growth."]
    assert len(list(picture.iter("path"))) == 1
    key = next(tree(book, "book/scoreboard").iterfind(".//p[@class='dependencies-key']"))
    assert key.text_content() == "Frames: enclosed, checked."
    assert [span.get("class") for span in key.iter("span")] == ["is-enclosed", "is-checked"]
    assert [t.text for t in picture.iter("text") if t.get("class") == "chapter"] == ["One", "Two"]


def test_a_claim_stands_in_the_box_of_its_theorem(book):
    page = tree(book, "notebooks/one")
    theorem = page.get_element_by_id("thm-growth")
    line = theorem.get_element_by_id("claim-growth")
    words = " ".join(line.text_content().split())
    assert words.startswith(
        "Proved here, constant enclosed · closest call seen: 0.5 · Castin et al. "
    )
    links = [link.get("href") for link in line.iter("a")]
    assert [link.split("#")[0] for link in links] == [
        "../book/bibliography.html",
        "../book/scoreboard.html",
    ]
    assert "2\\sqrt" not in page.get_element_by_id("one").text_content(), "it is not said twice"


def test_each_of_several_claims_in_one_theorem_says_what_it_is_about(book):
    theorem = tree(book, "notebooks/two").get_element_by_id("thm-decay")
    words = " ".join(theorem.text_content().split())
    assert "Checked here: It decays." in words and "Checked here: It does so backwards." in words


def test_a_claim_without_a_theorem_is_a_box(book):
    box = tree(book, "notebooks/one").get_element_by_id("claim-shrinks")
    words = " ".join(box.text_content().split())
    assert words.startswith("Fails: The norm is below \\(1\\).") and "Witness: \\(x = 3\\)" in words
    assert words.endswith("largest ratio seen: 3 · this book · scoreboard")
    assert box.getparent().tag == "section", "it stands on the page, not in the output of a cell"


def test_a_check_is_folded_under_what_it_found(book):
    (fold,) = tree(book, "notebooks/one").xpath("//details[@class='check']")
    title, code = fold
    assert title.text_content().strip() == "✓ One and one are \\(2\\)."
    assert "assert" in code.text_content() and "✓" not in code.text_content()


def test_a_notebook_with_outputs_is_offered(book):
    page = (book.html / "notebooks" / "one.html").read_text(encoding="utf8")
    link = re.search(r'href="(\.\./_sources/notebooks/one\.ipynb)"', page)[1]
    notebook = nbformat.read(book.html / "notebooks" / link, as_version=4)
    nbformat.validate(notebook)
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    assert any("value" in o.get("text", "") for o in outputs)
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    assert (
        "> **Theorem A.1 (Growth).**" in prose
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
    assert "[Theorem A.1](one.ipynb)" in prose and "(1)" in prose


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
