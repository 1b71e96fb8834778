"""The PDF holds the whole book: chapters, theorems, figures, links that lead somewhere, nothing broken."""

import re
import sys
from html import unescape
from pathlib import Path

import pikepdf
import pytest
import yaml
from book_build import editions, printed
from docutils import nodes
from docutils.utils import new_document
from sphinx.addnodes import only

sys.path.insert(0, str(Path(__file__).parent))
from pdf import Book, check_fonts, check_links, check_text, leftovers, links

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
NUMBERED = re.compile(r'<span class="caption-number">\s*(.*?)\s*</span>', re.DOTALL)
MEGABYTES = 25


@pytest.fixture(scope="session")
def book() -> Book:
    path = HTML / editions.FILES["pdf"]
    assert path.exists(), "print it first: make pdf"
    return Book(path)


def articles() -> dict[str, str]:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    names = [toc["root"], *(c["file"] for part in toc["parts"] for c in part["chapters"])]
    pages = {name: (HTML / f"{name}.html").read_text(encoding="utf8") for name in names}
    return {
        name: page[page.index("<article") : page.index("</article>")]
        for name, page in pages.items()
    }


def words(text: str) -> str:
    return re.sub(r"\W+", "", unescape(re.sub(r"<[^>]+>", "", text)))


def test_it_is_of_the_pages_that_are_there(book):
    assert editions.fresh(HTML, "pdf"), "make pdf"


def test_it_is_not_too_large(book):
    assert book.path.stat().st_size < MEGABYTES * 1e6


def test_the_outline_has_every_chapter_in_order(book):
    titles = [
        words(re.search(r"<h1>(.*?)<a class=\"headerlink\"", page, re.DOTALL)[1])
        for page in articles().values()
    ]
    outline = [words(title) for _, title, _ in book.outline]
    found = [outline.index(title) for title in titles if title in outline]
    assert len(found) == len(titles), [t for t in titles if t not in outline]
    assert found == sorted(found)
    numbers = [page for _, _, page in book.outline]
    assert numbers == sorted(numbers)


def test_the_outline_has_every_part(book):
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    parts = [title for depth, title, _ in book.outline if depth == 0]
    assert [part["caption"] for part in toc["parts"]] == [p for p in parts if p != "Contents"][
        -len(toc["parts"]) :
    ]


def test_the_contents_name_the_pages_of_the_outline(book):
    """Where the table of contents says that a chapter begins, its title stands."""
    pages = {words(title): page for depth, title, page in book.outline if depth == 1}
    contents = "\n".join(book.texts[1 : min(pages.values()) - 1])
    assert len(pages) > 20
    for title, page in pages.items():
        assert title in words(book.texts[page - 1]), title
        assert re.search(rf"{title[:12]}.*?{page}", words(contents)), title


def test_every_theorem_figure_and_exercise_is_there(book):
    text = "".join("".join(book.texts).split())
    wanted = [label for page in articles().values() for label in NUMBERED.findall(page)]
    assert len(wanted) > 150
    missing = [label for label in wanted if "".join(label.split()) not in text]
    assert missing == []


def test_every_picture_is_there(book):
    """As many pictures are printed as the pages show in the light."""
    source = (HTML.parent / "print" / "book.html").read_text(encoding="utf8")
    pictures = [tag for page in articles().values() for tag in re.findall("<img[^>]*>", page)]
    shown = [tag for tag in pictures if "_images/" in tag and "only-dark" not in tag]
    assert source.count("_images/") == len(shown) > 100


def test_fonts_links_and_pages(book):
    assert check_fonts(book) == []
    assert check_links(book) == []
    assert check_text(book) == []
    assert len(links(book)[0]) > 500


def test_nothing_is_left_unresolved(book):
    assert [
        (number, left) for number, text in enumerate(book.texts, 1) if (left := leftovers(text))
    ] == []


def test_nothing_is_said_to_those_at_a_screen(book):
    """Paper has no tokens to drag."""
    said = re.compile("arrow keys|[Pp]ress Play")
    assert [n for n, text in enumerate(book.texts, 1) if said.search(text)] == []


def test_title_and_author(book):
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))
    assert book.pdf.docinfo["/Title"] == config["title"]
    assert book.pdf.docinfo["/Author"] == config["author"]


# The checks find what is planted.

PAGE = "<html lang=en><head><title>T</title></head><body>%s</body></html>"


@pytest.fixture
def make(browser, tmp_path):
    def to_pdf(body: str, **options) -> Book:
        page = browser.new_page()
        page.set_content(PAGE % body)
        page.pdf(
            path=tmp_path / "t.pdf", **{"outline": True, "tagged": True, "format": "A4", **options}
        )
        page.close()
        return Book(tmp_path / "t.pdf")

    return to_pdf


def test_planted_faults_are_found(make):
    text = "<h1>Title</h1><p>" + "Enough words on this page to be no empty page. " * 5
    good = make(text + '<h2 id="x">Two</h2><a href="#x">there</a>')
    assert check_text(good) + check_links(good) + check_fonts(good) == []
    assert [title for _, title, _ in good.outline] == ["Title", "Two"]
    line = '<p style="break-before: page">A line that went over.</p>'
    assert check_text(make(text + line)) == ["page 2 is all but empty"]
    assert any("page 1 is" in fault for fault in check_text(make(text, format="Letter")))
    assert check_links(make(text + '<a href="file:///x/y.html">y</a>'))


def test_what_is_left_is_found():
    assert (
        leftovers("Theorem ??")
        and leftovers("see {prf:ref}`thm`")
        and leftovers("Math input error")
    )
    assert not leftovers("Theorem 5.1, is it? Yes: x = 3.")


def test_a_font_outside_the_file_is_found(make):
    book = make("<h1>Title</h1>")
    for thing in book.pdf.objects:
        if isinstance(thing, pikepdf.Dictionary) and thing.get("/Type") == "/FontDescriptor":
            for key in [k for k in thing.keys() if k.startswith("/FontFile")]:
                del thing[key]
    assert check_fonts(book)


def test_a_link_to_nowhere_is_found(make):
    book = make('<h1>Title</h1><a href="#x">there</a><h2 id="x">Two</h2>')
    del book.pdf.Root.Dests["/x"]
    assert check_links(book) == ["leads nowhere: /x"]


def test_finishing_changes_nothing_but_the_size(make):
    book = make(
        "<h1>A</h1>" + "<p>some <b>words</b> <a href='#x'>here</a></p>" * 300 + "<h2 id=x>B √n</h2>"
    )
    before = book.path.stat().st_size
    printed.finish(book.path, "Valérie √")
    packed = Book(book.path)
    assert packed.path.stat().st_size < before / 2
    assert packed.texts == book.texts and packed.outline == book.outline
    assert len(links(packed)[0]) == len(links(book)[0]) == 300 and check_links(packed) == []
    assert packed.pdf.docinfo["/Author"] == "Valérie √" and packed.pdf.docinfo["/Title"] == "T"
    assert packed.pdf.Root.MarkInfo.Marked and "/StructTreeRoot" in packed.pdf.Root


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<img src="gone.png">', "gone.png"),
        (
            "<mjx-merror title='Undefined control sequence'>x</mjx-merror>",
            "Undefined control sequence",
        ),
        (r"<p>so \norm{x} is</p>", "left as it was: so"),
        ("<p>see Theorem ??</p>", "left as it was: see"),
        ("<p>see {prf:ref}`thm`</p>", "left as it was: see"),
        ("<p>✅</p>", "left as it was: ✅"),
        ('<svg style="height: 3000px"><text>tall</text></svg>', "tall"),
        (
            '<table style="width: 3000px; table-layout: fixed"><tr><td>wide</td></tr></table>',
            "wide",
        ),
    ],
)
def test_a_book_with_a_fault_is_not_printed(browser, tmp_path, body, fault):
    script = "<script>window.MathJax = {startup: {promise: Promise.resolve()}}</script>"
    page = f"<html><body>{script}<main><section class=chapter id=a><h2>A</h2>{body}</section></main></body></html>"
    (tmp_path / "b.html").write_text(page, encoding="utf8")
    with pytest.raises(RuntimeError, match=fault):
        printed.print_document(browser, tmp_path / "b.html", tmp_path / "b.pdf")


def test_what_is_said_to_those_at_a_screen_is_marked():
    page = new_document("page")
    page += [only("", nodes.paragraph("", "Drag it."), expr="html"), nodes.paragraph("", "See.")]
    editions.mark_screen_only(None, page)
    assert [part["classes"] for part in page.findall(nodes.paragraph)] == [["no-print"], []]


def test_a_formula_loses_only_what_is_too_wide(browser):
    """MathJax has given it a size, from which the fitting starts; a fraction of a pixel does not count."""
    style = "main { width: 728px; font-size: 14px } mjx-math { display: inline-block }"
    formula = (
        '<div class=math><mjx-container style="font-size: 130%"><mjx-math style="width: {}em">'
    )
    body = "".join(formula.format(width) + "</div>" for width in (10, 40.02, 42))  # of 18.2 px
    page = browser.new_page()
    page.set_content(f"<style>{style}</style><main>{body}</main>")
    page.evaluate(printed.FIT, printed.PAGE)
    sizes = page.eval_on_selector_all(
        "mjx-container", "all => all.map(e => parseFloat(e.style.fontSize))"
    )
    page.close()
    assert sizes[:2] == [130, 130] and 120 <= sizes[2] < 130
