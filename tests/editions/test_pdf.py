"""The PDF holds the whole book: chapters, theorems, figures, links that lead somewhere."""

import re
from html import unescape

import pikepdf
import pytest
import yaml
from book_build import editions, printed
from docutils import nodes
from docutils.utils import new_document
from pdf import Book, check_fonts, check_links, check_text, leftovers, links
from sphinx.addnodes import only
from test_pages import HTML, ROOT, article, toc_pages

NUMBERED = re.compile(r'<span class="caption-number">\s*(.*?)\s*</span>', re.DOTALL)
MEGABYTES = 25


@pytest.fixture(scope="session")
def book() -> Book:
    path = HTML / editions.FILES["pdf"]
    assert path.exists(), "print it first: make pdf"
    return Book(path)


def words(text: str) -> str:
    return re.sub(r"\W+", "", unescape(re.sub(r"<[^>]+>", "", text)))


def test_the_outline_has_every_part_and_every_chapter_in_order(book):
    heading = re.compile(r"<h1>(.*?)<a class=\"headerlink\"", re.DOTALL)
    titles = [words(heading.search(article(name))[1]) for name in toc_pages()]
    found = [words(title) for depth, title, _ in book.outline if depth == 1]
    assert found == titles
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    parts = [title for depth, title, _ in book.outline if depth == 0]
    assert parts == ["Contents", *(part["caption"] for part in toc["parts"])]
    numbers = [page for _, _, page in book.outline]
    assert numbers == sorted(numbers)


def test_the_contents_name_the_pages_of_the_outline(book):
    """Where the table of contents says that a chapter begins, its title stands."""
    pages = {words(title): page for depth, title, page in book.outline if depth == 1}
    contents = words("\n".join(book.texts[1 : min(pages.values()) - 1]))
    for title, page in pages.items():
        assert title in words(book.texts[page - 1]), title
        assert re.search(rf"{title[:12]}.*?{page}", contents), title


def test_every_theorem_figure_and_exercise_is_there(book):
    text = "".join("".join(book.texts).split())
    wanted = [label for name in toc_pages() for label in NUMBERED.findall(article(name))]
    assert len(wanted) > 150
    assert [label for label in wanted if "".join(label.split()) not in text] == []


def test_every_picture_is_there(book):
    """As many pictures are printed as the pages show in the light."""
    source = (HTML.parent / "print" / "book.html").read_text(encoding="utf8")
    pictures = [tag for name in toc_pages() for tag in re.findall("<img[^>]*>", article(name))]
    shown = [tag for tag in pictures if "_images/" in tag and "only-dark" not in tag]
    assert source.count("_images/") == len(shown) > 60


def test_fonts_links_pages_and_size(book):
    assert book.path.stat().st_size < MEGABYTES * 1e6
    assert check_fonts(book) + check_links(book) + check_text(book) == []
    assert len(links(book)[0]) > 500


def test_nothing_is_left_unresolved_or_said_to_those_at_a_screen(book):
    """Paper has no tokens to drag."""
    said = re.compile("arrow keys|[Pp]ress Play")
    found = [(n, leftovers(t) + said.findall(t)) for n, t in enumerate(book.texts, 1)]
    assert [fault for fault in found if fault[1]] == []


def test_title_and_author(book):
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))
    assert book.pdf.docinfo["/Title"] == config["title"]
    assert book.pdf.docinfo["/Author"] == config["author"]


# The checks find what is planted.

PAGE = "<html lang=en><head><title>T</title></head><body>%s</body></html>"
TEXT = "<h1>Title</h1><p>" + "Enough words on this page to be no empty page. " * 5


@pytest.fixture
def make(browser, tmp_path):
    def to_pdf(body: str, **options) -> Book:
        page = browser.new_page()
        page.set_content(PAGE % body)
        options = {"outline": True, "tagged": True, "format": "A4", **options}
        page.pdf(path=tmp_path / "t.pdf", **options)
        page.close()
        return Book(tmp_path / "t.pdf")

    return to_pdf


def test_planted_faults_are_found(make):
    good = make(TEXT + '<h2 id="x">Two</h2><a href="#x">there</a>')
    assert check_text(good) + check_links(good) + check_fonts(good) == []
    assert [title for _, title, _ in good.outline] == ["Title", "Two"]
    for thing in good.pdf.objects:
        if isinstance(thing, pikepdf.Dictionary) and thing.get("/Type") == "/FontDescriptor":
            for key in [k for k in thing.keys() if k.startswith("/FontFile")]:
                del thing[key]
    assert check_fonts(good)
    del good.pdf.Root.Dests["/x"]
    assert check_links(good) == ["leads nowhere: /x"]
    line = '<p style="break-before: page">A line that went over.</p>'
    assert check_text(make(TEXT + line)) == ["page 2 is all but empty"]
    assert any("page 1 is" in fault for fault in check_text(make(TEXT, format="Letter")))
    assert check_links(make(TEXT + '<a href="file:///x/y.html">y</a>'))
    assert leftovers("Theorem ??") and leftovers("see {prf:ref}`thm`")
    assert not leftovers("Theorem 5.1, is it? Yes: x = 3.")


def test_finishing_changes_nothing_but_the_size(make):
    line = "<p>some <b>words</b> <a href='#x'>here</a></p>"
    book = make("<h1>A</h1>" + line * 300 + "<h2 id=x>B √n</h2>")
    before = book.path.stat().st_size
    printed.finish(book.path, "Valérie √")
    packed = Book(book.path)
    assert packed.path.stat().st_size < before / 2
    assert packed.texts == book.texts and packed.outline == book.outline
    assert len(links(packed)[0]) == 300 and check_links(packed) == []
    assert packed.pdf.docinfo["/Author"] == "Valérie √" and packed.pdf.docinfo["/Title"] == "T"
    assert packed.pdf.Root.MarkInfo.Marked and "/StructTreeRoot" in packed.pdf.Root


FAULTS = {
    "gone.png": '<img src="gone.png">',
    "Undefined": "<mjx-container><mjx-merror title='Undefined'>x</mjx-merror></mjx-container>",
    "left as it was: so": r"<p>so \norm{x} is</p>",
    "left as it was: see": "<p>see {prf:ref}`thm`</p>",
    "left as it was: ✅": "<p>✅</p>",
    "tall": '<svg style="height: 3000px"><text>tall</text></svg>',
    "wide": '<table style="width: 3000px; table-layout: fixed"><tr><td>wide</td></tr></table>',
}


def test_a_book_with_faults_is_not_printed(browser, tmp_path):
    script = "<script>MathJax = {startup: {promise: Promise.resolve()}}</script>"
    chapter = f"<section class=chapter id=a><h2>A</h2>{''.join(FAULTS.values())}</section>"
    page = f"<html><body>{script}<main>{chapter}</main></body></html>"
    (tmp_path / "b.html").write_text(page, encoding="utf8")
    with pytest.raises(RuntimeError) as caught:
        printed.print_document(browser, tmp_path / "b.html", tmp_path / "b.pdf")
    assert [fault for fault in FAULTS if fault not in str(caught.value)] == []


def test_what_is_said_to_those_at_a_screen_is_marked():
    page = new_document("page")
    page += [only("", nodes.paragraph("", "Drag it."), expr="html"), nodes.paragraph("", "See.")]
    editions.mark_screen_only(None, page)
    assert [part["classes"] for part in page.findall(nodes.paragraph)] == [["no-print"], []]


def test_a_formula_loses_only_what_is_too_wide(browser, tmp_path):
    """MathJax has given it a size, from which the fitting starts; a fraction of a pixel counts not."""
    style = "main { width: 728px; font-size: 14px } mjx-math { display: inline-block }"
    formula = '<mjx-container style="font-size: 130%"><mjx-math style="width: {}em">'
    formulas = [formula.format(width) for width in (10, 40.02, 42)]  # of 18.2 px
    body = "".join(f"<div class=math>{text}</div>" for text in formulas)
    script = "<script>MathJax = {startup: {promise: Promise.resolve()}}</script>"
    text = f"{script}<style>{style}</style><main>{body}</main>"
    (tmp_path / "a.html").write_text(text, encoding="utf8")
    page = printed.opened(browser, tmp_path / "a.html", printed.COLUMN, 950)
    page.evaluate(f"bookPrint.fit({printed.PAGE})")
    sizes = page.eval_on_selector_all(
        "mjx-container", "all => all.map(e => parseFloat(e.style.fontSize))"
    )
    page.close()
    assert sizes[:2] == [130, 130] and 120 <= sizes[2] < 130
