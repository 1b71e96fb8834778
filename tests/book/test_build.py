"""What must stop a build stops it; what did not change is not executed again."""

import json
import re
import time
from importlib import metadata

import nbformat
import pytest
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
        "contradicts",
    ),
]
AGAIN = "from lab.claims import claim\nclaim('again', 'Again.', source='book', status='checked')"
LOST = (
    "from lab.claims import checked, claim\n"
    "claim('lost', 'Lost.', source='book', status='checked', theorem='thm-growth')"
)
ODD = "from IPython.display import display\ndisplay({'application/x-odd': 'text'}, raw=True)"
RED = "fig, ax = plotting.figure()\nax.plot([1, 2], color='#ff0000');"
# Faults that are found when pages are read or written.
READING = [
    ("notebooks/one.md", CELL.format("import warnings\nwarnings.warn('careful')"), "stderr"),
    ("notebooks/two.md", CELL.format(ODD), "application/x-odd"),
    ("notebooks/three.md", CELL.format(AGAIN) * 2, "'again' is stated twice"),
    ("notebooks/two.md", CELL.format(LOST), "'lost': there is no theorem 'thm-growth'"),
    ("notebooks/two.md", CELL.format(":tags: [check]\nassert 1 + 1 == 2"), "must end with checked"),
    ("notebooks/two.md", CELL.format("checked('Seen by all.')"), "“Seen by all.” needs a cell"),
    ("book/index.md", "\nSee {prf:ref}`thm-missing`.\n", "thm-missing"),
    ("book/index.md", "\nSee [there](missing.md).\n", "missing.md"),
    ("book/index.md", "\nSee {eq}`eq-missing`.\n", "eq-missing"),
    ("book/index.md", "\n{cite:t}`nobody1900`\n", "nobody1900"),
    ("book/index.md", "\n```{no-such-thing}\n```\n", "no-such-thing"),
    ("tinypkg/numbers.py", "# :prf:ref:`thm-gone`", "thm-gone"),
    ("notebooks/two.md", "\n{glue:text}`nothing`\n", "nothing"),
    ("notebooks/two.md", CELL.format(RED), "a figure: #ff0000 is not in lab.colours"),
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


def html(book, page: str) -> str:
    return book.read(f"_build/html/{page}.html")


def tree(book, page: str) -> HtmlElement:
    return fromstring(html(book, page))


def words(element: HtmlElement) -> str:
    for formula in element.iter("mjx-container"):
        formula.text = rf"\({formula.get('aria-label')}\)"
    return " ".join(element.text_content().split())


IMPORTS = {"VALUE": "from tinypkg import VALUE", "shapes": "from tinypkg import shapes"}
IMPORTS["anything"] = "import importlib"


@pytest.mark.parametrize(
    ("change", "concerned"),
    [
        (("tinypkg/corners.py", "4", "5"), ["shapes", "anything"]),
        (("tinypkg/numbers.py", "= 1", "= 2"), ["VALUE", "shapes", "anything"]),
        (("tinypkg/numbers.py", "Numbers", "Some"), []),
        (("data/table.txt", "1", "2"), ["VALUE", "shapes", "anything"]),
    ],
)
def test_a_change_concerns_the_pages_that_import_or_may_read_it(state_of, change, concerned):
    states = {name: (state_of(code), state_of(code, *change)) for name, code in IMPORTS.items()}
    assert [name for name, (before, after) in states.items() if before != after] == concerned


def test_only_what_changed_is_executed(book):
    """The code of a module that two imports, and that three may; elsewhere prose, a docstring."""
    doctree = book.folder / "_build" / ".doctrees" / "notebooks" / "one.doctree"
    read = doctree.stat().st_mtime_ns
    change = {
        "book/index.md": ("See", "Look at"),
        "tinypkg/corners.py": ("4", "5"),
        "tinypkg/numbers.py": ("Numbers", "Some"),
    }
    with book.changed(change):
        code, output = book.build()
    assert code == 0, output
    assert book.executed() == ["three", "two"]
    assert "sides 5\n" in html(book, "notebooks/two") and "Look at" in html(book, "book/index")
    assert doctree.stat().st_mtime_ns == read, "one was not even read again"


def test_a_page_says_when_and_with_what_it_was_executed(book):
    sentence = re.search(r'class="page-execution">(.*?)<', html(book, "notebooks/one"))[1]
    numpy = metadata.version("numpy")
    assert re.match(rf"Executed on \d+ \w+ \d{{4}} at .* in \d+ s, .*numpy {numpy}\.", sentence)
    assert "page-execution" not in html(book, "book/index")


def test_a_figure_is_there_for_light_and_for_dark(book):
    page = html(book, "notebooks/two")
    (box,) = re.findall(r'<div class="figure-modes[^>]*>(.*?)</div>', page, re.DOTALL)
    pictures = re.findall(r"<img [^>]*>", box)
    for mode, picture in zip(("light", "dark"), pictures, strict=True):
        assert f"only-{mode}" in picture and 'alt="a line that rises"' in picture
        assert 'loading="lazy"' in picture and re.search(r'width="\d+"', picture)
        source = re.search(r'src="\.\./([^"]*)"', picture)[1]
        assert getattr(ROLES["unified"], mode) in (book.html / source).read_text(encoding="utf8")
    caption = page.split(box)[1].split("</figcaption>")[0]
    files = re.findall(r'href="\.\./([^"]*)" download="fig-line.svg"', caption)
    assert len(files) == 2 and all((book.html / address).exists() for address in files)


def test_every_page_knows_the_dictionary_of_colours(book):
    assert html(book, "book/index").count("_static/colours.css") == 1
    style = (book.html / "_static" / "colours.css").read_text(encoding="utf8")
    light, dark = style.split("html[data-theme")
    for name, role in ROLES.items():
        variable = f"--colour-{name.replace('_', '-')}"
        assert f"{variable}-light: {role.light};" in style
        assert f"{variable}-dark: {role.dark};" in style
        assert f"{variable}: var({variable}-light);" in light
        assert f"{variable}: var({variable}-dark);" in dark


def test_docstrings_lead_to_theorems_and_words_to_the_repository(book):
    index = html(book, "book/index")
    assert 'href="../notebooks/one.html#thm-growth">Theorem 1.1</a>' in index
    url = yaml.safe_load(book.read("_config.yml"))["repository"]["url"]
    assert f'href="{url}/blob/main/CHANGELOG.md"' in index


def test_the_search_knows_theorems_and_the_index(book):
    """After builds that wrote only some pages too."""
    found = json.loads(re.search(r"\{.*\}", book.read("_build/html/searchindex.js"), re.DOTALL)[0])
    page = found["docnames"].index("notebooks/one")
    assert found["alltitles"]["Growth"] == [[page, "thm-growth"]]
    assert " (Growth)" not in found["alltitles"]
    assert found["indexentries"]["growth rate"] == [[page, "index-0", True]]
    assert "score: (" in book.read("_build/html/_static/language_data.js")
    assert "‖x‖₂" in found["indexentries"] and "√n & decay" in found["alltitles"]


def test_the_scoreboard_shows_every_claim_and_what_it_rests_on(book):
    board = tree(book, "book/scoreboard")
    assert "4 claims: 1 enclosed, 2 checked, 1 fails." in words(board)
    rows = {row.get("id"): row for row in board.iter("tr") if row.get("id")}
    assert list(rows) == [f"board-{key}" for key in ("growth", "shrinks", "decay", "backwards")]
    growth, decay = rows["board-growth"], rows["board-decay"]
    assert "\\(2\\sqrt{n}\\)" in words(growth) and "0.5" in words(growth)
    links = [link.get("href") for link in growth.iter("a")]
    assert links[0] == "../notebooks/one.html#claim-growth" and len(links) == 2
    grounds = [link.get("href") for link in decay[3].iter("a")][1:]
    assert grounds == ["../notebooks/one.html#thm-growth", "../notebooks/two.html#lem-unclaimed"]
    assert "this book" in words(decay[3]) and "rests on Theorem 1.1, Lemma " in words(decay[3])


def test_a_claim_stands_in_the_box_of_its_theorem(book):
    page = tree(book, "notebooks/one")
    line = page.get_element_by_id("thm-growth").get_element_by_id("claim-growth")
    said = "Proved here, constant enclosed · closest call seen: 0.5 · Castin et al. "
    assert words(line).startswith(said)
    links = [link.get("href").split("#")[0] for link in line.iter("a")]
    assert links == ["../book/bibliography.html", "../book/scoreboard.html"]
    assert "2\\sqrt" not in page.get_element_by_id("one").text_content(), "it is not said twice"


def test_each_of_several_claims_in_one_theorem_says_what_it_is_about(book):
    theorem = words(tree(book, "notebooks/two").get_element_by_id("thm-decay"))
    assert "Checked here: It decays." in theorem
    assert "Checked here: It does so backwards." in theorem


def test_a_claim_without_a_theorem_is_a_box(book):
    box = tree(book, "notebooks/one").get_element_by_id("claim-shrinks")
    assert words(box).startswith("Fails: The norm is below \\(1\\).")
    assert "Witness: \\(x = 3\\)" in words(box)
    assert words(box).endswith("largest ratio seen: 3 · this book · scoreboard")
    assert box.getparent().tag == "section", "it stands on the page, not in the output of a cell"


def test_a_check_is_folded_under_what_it_found(book):
    (fold,) = tree(book, "notebooks/one").xpath("//details[@class='check']")
    title, code = fold
    assert words(title) == "✓ One and one are \\(2\\)."
    assert "assert" in code.text_content() and "✓" not in code.text_content()


def prose_of(book, page: str) -> str:
    notebook = nbformat.read(book.html / "_sources" / f"{page}.ipynb", as_version=4)
    nbformat.validate(notebook)
    return "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


def test_a_notebook_is_offered_in_plain_markdown(book):
    assert 'href="../_sources/notebooks/one.ipynb"' in html(book, "notebooks/one")
    assert "value 1" in book.read("_build/html/_sources/notebooks/one.ipynb")
    prose = prose_of(book, "notebooks/one")
    for part in (
        r"\def\R{\mathbb{R}}",
        r"\def\inner#1#2{",
        "> **Theorem 1.1 (Growth).**",
        "Castin et al. (2024)",
        "<details><summary><b>Proof</b></summary>",
        "\\tag{1}",
    ):
        assert part in prose
    assert "{" + "prf" not in prose and ":label:" not in prose
    prose = prose_of(book, "notebooks/two")
    assert "[Theorem 1.1](one.ipynb)" in prose and "(1)" in prose


def test_a_page_loads_nothing_from_outside(book):
    loaded = r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"'](?:https?:)?//[^>]*>"
    for path in book.html.rglob("*.html"):
        assert re.findall(loaded, path.read_text(encoding="utf8")) == [], path.name
    assert "/mathjax/" not in html(book, "book/scoreboard"), "formulas are typeset by the build"
    fonts = re.findall(r"url\(\"([^\"]+)", book.read("_build/html/_static/formulas.css"))
    assert fonts and all((book.html / "_static" / font).exists() for font in fonts)


@pytest.mark.parametrize("part", ["<title>How Smooth Is Attention?</title>", "url=book/index.html"])
def test_the_first_page_leads_on(book, part):
    assert part in html(book, "index")


# These two leave pages with faults, so that they come last.


def test_faults_in_code_fail_the_build(book):
    faults = [(name, CELL.format(code), message) for name, code, message in EXECUTION]
    with book.changed(planted(faults)):
        code, output = book.build()
    assert code != 0
    assert [message for _, _, message in faults if message not in output] == []
    assert output.count("Traceback (most recent call last)") >= len(faults)


def test_faults_on_pages_fail_the_build_and_the_next_one_too(book):
    """And the next one says that it executes nothing anew, where this is asked for."""
    expected = [message for _, _, message in READING]
    with book.changed(planted(READING)):
        for late in ([], ["executed before this run began"]):
            code, output = book.build(BOOK_BUILT_AFTER=str(time.time() * len(late)))
            assert code != 0
            warnings = "\n".join(line for line in output.splitlines() if "WARNING" in line)
            assert [message for message in expected + late if message not in warnings] == []
            assert late or "before this run" not in warnings
