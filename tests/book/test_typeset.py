"""Formulas are typeset by the build, page by page; without Node a page typesets itself."""

from types import SimpleNamespace

import pytest
from book_build import typeset
from sphinx.errors import ExtensionError

SCRIPTS = "<script>window.MathJax = {}</script><script defer src='_static/mathjax/tex-chtml-full.js'></script>"
PAGE = "<html><head>{}</head><body>{}</body></html>"
LONG = (
    r'<div class="math notranslate"><span class="eqno">(1)</span>\[\norm{x} &lt; \sum_j 1\]</div>'
)


@pytest.fixture
def app(tmp_path):
    (tmp_path / "html" / "part").mkdir(parents=True)
    macros = {"norm": [r"\left\lVert #1 \right\rVert", 1]}
    config = SimpleNamespace(mathjax3_config={"tex": {"macros": macros}})
    return SimpleNamespace(outdir=tmp_path / "html", doctreedir=tmp_path, config=config)


def build(app, name: str, body: str) -> tuple[str, str]:
    path = app.outdir / name
    path.write_text(PAGE.format(SCRIPTS, body), encoding="utf8")
    typeset.finish(app)
    return path.read_text(encoding="utf8"), (app.outdir / typeset.SHEET).read_text(encoding="utf8")


def test_a_page_needs_no_script_and_another_adds_to_the_style(app):
    page, style = build(app, "one.html", LONG)
    assert "MathJax =" not in page and "tex-chtml" not in page and r"\[" not in page
    assert r'aria-label="\norm{x} &lt; \sum_j 1"' in page and "(1)</span><mjx-container" in page
    assert 'href="_static/formulas.css"' in page and "mjx-c2211.TEX-S2" in style  # the large sum
    other, more = build(app, "part/two.html", r'<span class="math">\(\{\alpha\}\)</span>')
    assert 'href="../_static/formulas.css"' in other and "MathJax =" not in other
    assert "mjx-c2211.TEX-S2" in more and "mjx-c1D6FC" in more and "mjx-c7B" in more
    assert (app.outdir / "one.html").read_text(encoding="utf8") == page


def test_a_formula_that_makes_no_sense_stops_the_build(app):
    with pytest.raises(ExtensionError, match="nonsense"):
        build(app, "one.html", r'<span class="math">\(\nonsense\)</span>')


def test_without_node_a_page_typesets_itself(app, monkeypatch):
    monkeypatch.setattr(typeset, "node", lambda: None)
    (app.outdir / "one.html").write_text(PAGE.format(SCRIPTS, LONG), encoding="utf8")
    typeset.finish(app)
    assert (app.outdir / "one.html").read_text(encoding="utf8") == PAGE.format(SCRIPTS, LONG)
    assert (app.outdir / "_static" / "mathjax" / "tex-chtml-full.js").exists()
    assert "window.MathJax" in typeset.head(app.outdir, ["one"], "_static")
