"""Each check finds a planted fault, and passes a page without one."""

import json

import nbformat
import pytest
from access import audit, walk, walk_faults
from checker import PAPER, PHONE, Watched, check, check_mathematics, check_notebook, serve

HEAD = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>TITLE</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,"></head>"""
SVG = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/%3E"


def page_with(body: str, title: str = "A page") -> str:
    head = HEAD.replace("TITLE", title)
    return f"{head}<body><main><article><h1>A page</h1>{body}</article></main></body></html>"


def figure(style: str, src: str = SVG, alt: str = "a curve") -> str:
    return f'<figure><img alt="{alt}" src="{src}" style="{style}"></figure>'


@pytest.fixture(scope="module")
def look(tmp_path_factory, browser):
    """Open a page that is written for this, and ask for its faults."""
    folder = tmp_path_factory.mktemp("planted")
    with serve(folder) as address, Watched(browser, address) as watched:

        def open_and_ask(html: str, ask, *, viewport=watched.viewport) -> list[str]:
            name = f"{len(list(folder.iterdir()))}.html"  # not one that the browser keeps
            (folder / name).write_text(html, encoding="utf8")
            watched.renew().page.set_viewport_size(viewport)
            found = ask(watched.open(f"{address}/{name}").page)
            return watched.faults + found

        yield open_and_ask


def everything(page) -> list[str]:
    """What all checks say of a page, as it is opened on a desktop."""
    found = check_mathematics(page, page.content()) + check(page, "width", "content")
    found += check(page, "formulas", "scrollingFormulas")
    page.evaluate("bookChecks.openAll()")
    return found + check(page, "contrast", "links", "figures", "code") + audit(page)


def on_paper(page) -> list[str]:
    page.set_viewport_size(PAPER)
    page.emulate_media(media="print")
    return check(page, "paper")


GOOD = """<p>Words, <code>$HOME \\\\frac</code>, and <a href="#x">a link</a>.</p>
<figure><img alt="a curve" src="SVG" style="background: #fff"></figure>
<div style="overflow-x: auto" tabindex="0"><div style="width: 2000px">wide in its own box</div></div>
<div class="cell"><div class="cell_output"><div class="highlight"><pre tabindex="0"
 style="width: 99px; overflow-x: auto">a
long line that is printed</pre></div></div></div>
<div class="cell"><div class="cell_input"><div class="highlight"><pre>y = torch.cat(x)</pre></div></div>
<details class="hide"><summary>Show</summary>
<div class="cell_input"><div class="highlight"><pre>plt.plot()</pre></div></div></details>
<details class="check"><summary>✓</summary>
<div class="cell_input"><div class="highlight"><pre>checked()</pre></div></div></details></div>
<details><summary>more</summary><p>words</p></details> <button>two</button>""".replace("SVG", SVG)


def test_a_good_page_has_no_fault(look):
    assert look(page_with(GOOD), everything) == []
    assert look(page_with(GOOD), everything, viewport=PHONE) == []
    assert look(page_with(GOOD), lambda page: walk_faults(*walk(page))) == []


# What is said of a fault, and the fault.  All of them stand on one page.
PLANTED = {
    "the page has no title": "",
    "answered 404": '<link rel="stylesheet" href="gone.css">',
    "request to another host: http://127.0.0.2:9/x.png": '<img src="http://127.0.0.2:9/x.png" alt="x">',
    "script error: nothing is not defined": "<script>nothing.here()</script>",
    "console error: bad": "<script>console.error('bad')</script>",
    "TeX in the text: \\norm": "<p>so \\norm{x} is</p>",
    "TeX in the text: $y$": "<p>so $y$ is</p>",
    "TeX error: Undefined": "<mjx-container><mjx-merror title='Undefined'>x</mjx-merror></mjx-container>",
    "undefined command: \\oops": "<mjx-container><mjx-mtext style='color: #f00'>\\oops</mjx-mtext></mjx-container>",
    "formulas are typeset, 9 are": '<span class="math notranslate">x</span>' * 9,
    "scrolls sideways": '<div style="width: 2000px">wide</div>',
    "p “faded”": '<p style="opacity: .4">faded</p>',
    "p “on a dark ground”": '<div style="background: #456"><p>on a dark ground</p></div>',
    "p “pale in a fold”": "<details><summary>more</summary><p style='color: #9a9'>pale in a fold</p></details>",
    "link like the words around it: a “hidden”": "<p>words <a href='#x' style='color: #333; text-decoration: none'>"
    "hidden</a></p>",
    "mjx-math “x+1”": "<mjx-container><mjx-math style='color: #a99'>x+1</mjx-math></mjx-container>",
    "picture without a description": figure("background: #fff", alt=""),
    "height='9'/%3E has no white ground": figure(""),
    "height='9'/%3E has a ground of its own": figure("background: #fff").replace(
        "<img", "<img class='only-light'"
    ),
    "height='9'/%3E is dimmed": figure("background: #fff; filter: brightness(.8)"),
    "AA== is empty": figure("background: #fff", src="data:image/png;base64,AA=="),
    "id twice stands 2 times": "<p id='twice'>x</p><p id='twice'>y</p>",
    "an output is empty": "<div class='cell_output'> </div>",
    "2 main headings": "<h1>Another</h1>",
    "formula cut off: long": "<div class='bd-article'><p style='width: 9px'><mjx-container aria-label='long'>"
    "<mjx-math><i>long</i></mjx-math></mjx-container></p></div>",
    "a stop begins a line: long": "<p class='bd-article'><span class='together'><mjx-container aria-label='long'>"
    "<mjx-math><i>long</i></mjx-math></mjx-container><br>.</span></p>",
    "formula scrolls: wide": "<div class='bd-article'><mjx-container aria-label='wide' display='true' tabindex='0' "
    "style='display: block; width: 9px; overflow-x: auto'><mjx-math>wide</mjx-math></mjx-container></div>",
    "code overflows: pre “folded": "<details class='check'><summary>✓</summary><div class='highlight'>"
    f"<pre tabindex='0' style='width: 99px; overflow-x: auto'>folded = {'long ' * 9}</pre></div></details>",
    "plumbing: claim( in pre “see it": "<div class='cell_input'><div class='highlight'>"
    "<pre>see it; claim('x')</pre></div></div>",
    "image-alt: ": f"<img src='{SVG}'>",
    "scrollable-region-focusable: ": "<div class='highlight'><pre style='width: 99px; overflow-x: auto'>"
    f"{'a listing ' * 20}</pre></div>",
}


def test_every_planted_fault_is_found(look):
    found = "\n".join(look(page_with("\n".join(PLANTED.values()), title=""), everything))
    assert [fault for fault in PLANTED if fault not in found] == [], found


def test_a_fault_that_only_the_dark_shows_is_found(look):
    style = "<style>@media (prefers-color-scheme: dark) { p { color: #888 } }</style>"

    def in_the_dark(page):
        assert check(page, "contrast") == []
        page.emulate_media(color_scheme="dark")
        return check(page, "contrast")

    assert "low contrast" in str(look(page_with(f"{style}<p>words</p>"), in_the_dark))


def test_what_is_folded_or_cut_off_on_paper_is_found(look):
    folded = "<details><summary>Proof</summary><p>its words</p></details>"
    wide = f"<pre style='width: 2000px'>{'wide ' * 200}</pre>"
    box = "<div style='overflow-x: auto'><table><tr><td style='min-width: 1500px'>x</td></tr></table></div>"
    faults = look(page_with(folded + wide + box), on_paper)
    for expected in ("folded on paper: details", "px on paper: pre", "scrolls on paper: table"):
        assert any(expected in fault for fault in faults), faults
    assert look(page_with(folded.replace("<details", "<details open")), on_paper) == []


KEYBOARD = """<style>#unmarked:focus-visible { outline: none }</style><a href="#0">good</a>
<a href="#1" id="unmarked">unmarked</a> <a href="#2" style="position: absolute; left: -9999px">away</a>
<input aria-label="trap" onkeydown="if (event.key === 'Tab') event.preventDefault()"> <a href="#3">never</a>"""


def test_planted_faults_of_the_keyboard_are_found(look):
    assert look(page_with(KEYBOARD), lambda page: walk_faults(*walk(page))) == [
        "the focus is not visible on A 'unmarked'",
        "the focus is out of sight on A 'away'",
        "the focus is caught at INPUT 'trap'",
    ]


def notebook(**changes) -> str:
    cell = nbformat.v4.new_code_cell(
        "1", execution_count=1, outputs=[nbformat.v4.new_output("stream", text="1")]
    )
    cell.update(changes.get("code", {}))
    prose = nbformat.v4.new_markdown_cell(changes.get("prose", "# Words, `{eq}` and $x$"))
    return nbformat.writes(nbformat.v4.new_notebook(cells=[prose, cell]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (notebook(), None),
        (notebook(code={"outputs": []}), "no outputs"),
        (notebook(code={"execution_count": None}), "not executed"),
        (notebook(prose="```{prf:theorem} T\nx\n```"), "raw MyST"),
        (notebook(prose="see {cite:t}`castin2024`"), "raw MyST"),
        (notebook(prose="**Solution.**"), "without its text"),
        (notebook(prose="**Theorem 1.2.** $x$"), "not quoted"),
        (notebook(prose="> **Theorem 1.2.** $x$"), None),
        (notebook(prose="## Solutions\n\nOne.\n\n**Exercise 2**"), "after the solutions"),
        (notebook(prose="Drag the tokens."), "needs the page"),
        (notebook(prose="See [1](#thm-one)."), "nowhere"),
        (notebook(prose='<a id="ex-one"></a> See [1](#ex-one).'), None),
        (json.dumps({"cells": 3}), "no notebook"),
    ],
)
def test_a_notebook_is_checked(tmp_path, text, expected):
    path = tmp_path / "page.ipynb"
    path.write_text(text, encoding="utf8")
    found = check_notebook(path)
    assert found == [] if expected is None else any(expected in fault for fault in found), found
