"""Each check finds a planted fault, and passes a page without one."""

import json

import nbformat
import pytest
from checker import (
    PHONE,
    Watched,
    check_content,
    check_legible,
    check_mathematics,
    check_notebook,
    check_width,
    formulas_in,
    serve,
)

HEAD = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>A page</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">%s</head>"""
GOOD = (
    HEAD % ""
    + "<body><article><h1>A page</h1><p>Words, <code>$HOME \\\\frac</code>.</p></article></body></html>"
)


def page_with(body: str = "", head: str = "") -> str:
    return HEAD % head + f"<body><article><h1>A page</h1>{body}</article></body></html>"


@pytest.fixture
def faults(tmp_path, browser):
    """Write a page, open it, and list everything that the checks say."""

    def look(html: str, **how) -> list[str]:
        (tmp_path / "page.html").write_text(html, encoding="utf8")
        with serve(tmp_path) as address, Watched(browser, address, **how) as watched:
            page = watched.open(f"{address}/page.html").page
            found = check_mathematics(page, formulas_in(html)) + check_width(page)
            return watched.faults + found + check_legible(page) + check_content(page)

    return look


def test_a_good_page_has_no_fault(faults):
    assert faults(GOOD) == []
    assert faults(GOOD, viewport=PHONE, dark=True) == []


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        (page_with(head='<link rel="stylesheet" href="gone.css">'), "answered 404"),
        (page_with('<img src="http://127.0.0.2:9/x.png" alt="x">'), "another host"),
        (page_with("<script>nothing.here()</script>"), "script error"),
        (page_with("<script>console.error('bad')</script>"), "console error"),
        (page_with("<p>so $\\norm{x}$ is</p>"), "TeX in the text"),
        (page_with("<p>so \\(x\\) is</p>"), "TeX in the text"),
        (page_with("<p>so $$x^2$$ is</p>"), "TeX in the text"),
        (
            page_with(
                "<mjx-container><mjx-merror title='Undefined'>x</mjx-merror></mjx-container>"
            ),
            "TeX error",
        ),
        (
            page_with(
                "<mjx-container><mjx-mtext style='color: red'>\\oops</mjx-mtext></mjx-container>"
            ),
            "undefined",
        ),
        (page_with('<span class="math notranslate">x</span>'), "0 formulas are typeset"),
        (page_with('<div style="width: 2000px">wide</div>'), "scrolls sideways"),
        (page_with('<p style="color: #999">pale</p>'), "low contrast"),
        (page_with('<p style="opacity: .4">pale</p>'), "low contrast"),
        (page_with("<p><img src='data:image/png;base64,AA=='></p>"), "without a description"),
        (page_with("<p id='a'>x</p><p id='a'>y</p>"), "stands 2 times"),
        (page_with("<div class='cell_output'> </div>"), "an output is empty"),
        (page_with("<h1>Another</h1>"), "2 main headings"),
        (GOOD.replace("<title>A page</title>", "<title></title>"), "no title"),
    ],
)
def test_a_planted_fault_is_found(faults, html, expected):
    found = faults(html)
    assert any(expected in fault for fault in found), found


def test_a_figure_without_a_white_ground_is_found(faults):
    svg = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/%3E"
    figure = f'<figure><img alt="a curve" src="{svg}" style="STYLE"></figure>'
    white, dimmed = "background: #fff", "background: #fff; filter: brightness(.8)"
    assert faults(page_with(figure.replace("STYLE", white))) == []
    assert any("white ground" in f for f in faults(page_with(figure.replace("STYLE", ""))))
    assert any("dimmed" in f for f in faults(page_with(figure.replace("STYLE", dimmed))))


def test_what_scrolls_in_its_own_box_is_no_fault(faults):
    box = '<div style="overflow-x: auto"><div style="width: 2000px">wide</div></div>'
    assert faults(page_with(box), viewport=PHONE) == []


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
        (notebook(prose=":::{note}\nx\n:::"), "raw MyST"),
        (notebook(prose="see {cite:t}`castin2024`"), "raw MyST"),
        (notebook(prose="(label)=\nx"), "raw MyST"),
        (json.dumps({"cells": 3}), "no notebook"),
        ("not json", "no notebook"),
    ],
)
def test_a_notebook_is_checked(tmp_path, text, expected):
    path = tmp_path / "page.ipynb"
    path.write_text(text, encoding="utf8")
    found = check_notebook(path)
    assert found == [] if expected is None else any(expected in fault for fault in found), found


def test_a_missing_notebook_is_found(tmp_path):
    assert check_notebook(tmp_path / "gone.ipynb") == ["gone.ipynb is missing"]
