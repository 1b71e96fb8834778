r"""MyST becomes Markdown that any notebook viewer shows."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "book" / "_ext"))
from book_build.downloads import caption, show_pictures, solutions_last
from book_build.plain import Converter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

MACROS = {
    "R": r"\mathbb{R}",
    "norm": [r"\lVert #1 \rVert", 1],
    "inner": [r"\langle #1, #2 \rangle", 2],
}
NUMBERS = {"thm": "1.2", "eq-a": "7"}


@pytest.fixture
def convert():
    converter = Converter(
        lambda role, target: f"<{role} {target}>", lambda label: NUMBERS.get(label, ""), MACROS
    )
    return converter.convert


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        ("words", "words"),
        (r"$\R^n$", r"$\mathbb{R}^n$"),
        (r"$\norm{\norm{x}_2}$", r"$\lVert \lVert x \rVert_2 \rVert$"),
        (r"$\inner{x}{\R}$", r"$\langle x, \mathbb{R} \rangle$"),
        (r"$\norm x$", r"$\lVert x \rVert$"),
        (r"$a \\R$", r"$a \\R$"),
        (r"$\Real$", r"$\Real$"),
        ("{cite:t}`a,b`", "<cite:t a,b>"),
        ("{math}`x`", "$x$"),
        ("see [it](two.md)", "see <link it <two.md>>"),
        ("[out](https://example.org/)", "[out](https://example.org/)"),
        ("![a](b.png)", "![a](b.png)"),
        ("(here)=\n# Title", '<a id="here"></a>\n\n# Title'),
        ("a\n% comment\nb", "a\nb"),
        ("```{index} !a, !b\n```\n\nwords", "words"),
        (
            "```{live} tokens\n```",
            "*(Here the published book has a picture that can be moved with the mouse.)*",
        ),
        ("```python\n{x}`y`\n```", "```python\n{x}`y`\n```"),
        ("```{math}\n:label: eq-a\nx\n```", "$$\nx \\tag{7}\n$$"),
        ("```{math}\na \\\\\nb\n```", "$$\n\\begin{aligned}\na \\\\\nb\n\\end{aligned}\n$$"),
        ("$$x$$ (eq-a)", "$$x\\tag{7}$$"),
        ("```{prf:theorem} Big\n:label: thm\nwords\n```", "> **Theorem 1.2 (Big).**\n>\n> words"),
        ("```{prf:proof}\nwords\n```", "**Proof.**\n\nwords"),
        (
            "```{prf:proof}\n:class: dropdown\nwords\n```",
            "<details><summary><b>Proof</b></summary>\n\nwords\n\n</details>",
        ),
        (
            "```{prf:lemma}\n$a\nb$ is\n\n$$\na \\\\\nb\n$$\n\n* one\n```",
            "> **Lemma.**\n>\n> $a b$ is\n>\n> $$ \\begin{aligned} a \\\\ b \\end{aligned} $$\n>\n> * one",
        ),
        ("```{only} html\nDrag it.\n```\n\nwords", "words"),
        ("```{exercise-start} One\n:label: ex\n```", '<a id="ex"></a>\n\n**Exercise (One).**'),
        ("words\n\n```{exercise-end}\n```", "words"),
        (
            "````{dropdown} Proof\n```{math}\nx\n```\n````",
            "<details><summary><b>Proof</b></summary>\n\n$$\nx\n$$\n\n</details>",
        ),
        (":::{note}\nwords\n:::", "> **Note.**\n>\n> words"),
        ("```{admonition} Mind\nwords\n```", "> **Mind.**\n>\n> words"),
        (
            "```{solution} ex\n:class: dropdown\nwords\n```",
            "<details><summary><b>Solution of ex</b></summary>\n\nwords\n\n</details>",
        ),
        ("```{figure} a.svg\n---\nalt: A curve\n---\nWords.\n```", "![A curve](a.svg)\n\n*Words.*"),
        (
            "```{bibliography}\n```",
            "*(This part is generated: see the page in the published book.)*",
        ),
    ],
)
def test_a_construct(convert, source, plain):
    assert convert(source) == plain


def test_text_around_a_directive_stays_in_order(convert):
    assert convert("one\n\n:::{tip}\ntwo\n:::\n\nthree") == "one\n\n> **Tip.**\n>\n> two\n\nthree"


EXERCISES = """```{exercise-start} No scores
:label: ex-one
```
What is $f$?
```{exercise-end}
```

````{solution-start} ex-one
:class: dropdown
````
The mean."""
NEXT = """````{solution-end}
````

```{exercise-start} Two
:label: ex-two
```
And now?
```{exercise-end}
```

```{solution-start} ex-two
```
The same.
```{solution-end}
```

## How this page was made"""


def test_solutions_stand_at_the_end_under_the_names_of_their_exercises():
    code = [new_code_cell("mean"), new_code_cell("made")]
    cells = solutions_last(
        [new_markdown_cell(EXERCISES), code[0], new_markdown_cell(NEXT), code[1]]
    )
    converter = Converter(resolve=lambda role, target: f"[{target}]")
    read = [converter.convert(c.source) if c.cell_type == "markdown" else c.source for c in cells]
    assert read == [
        '<a id="ex-one"></a>\n\n**Exercise (No scores).**\n\nWhat is $f$?',
        '<a id="ex-two"></a>\n\n**Exercise (Two).**\n\nAnd now?',
        "## How this page was made",
        "made",
        "## Solutions",
        "### Solution of [Exercise (No scores)](#ex-one)",
        "The mean.",
        "mean",
        "### Solution of [Exercise (Two)](#ex-two)",
        "The same.",
    ]


def test_a_drawing_is_shown_where_svg_is_not_trusted():
    drawn = new_output("display_data", data={"image/svg+xml": "<svg/>", "text/plain": "<Figure>"})
    other = new_output("stream", text="1")
    metadata = {"mystnb": {"image": {"alt": 'A "line"'}}}
    cell = new_code_cell("draw()", metadata=metadata, outputs=[drawn, other])
    show_pictures(cell)
    source = "data:image/svg+xml;base64,PHN2Zy8+"
    assert cell.outputs[0].data == {
        "text/html": f'<img alt="A &quot;line&quot;" src="{source}">',
        "text/plain": "<Figure>",
    }
    assert cell.outputs[1] == other


def test_a_page_without_solutions_stays_as_it_is():
    cells = [new_markdown_cell("words"), new_code_cell("1")]
    assert [c.source for c in solutions_last(cells)] == ["words", "1"]


def test_a_figure_has_its_caption_under_it():
    figure = {"figure": {"name": "fig-a", "caption": "A *line*."}}
    cell = new_code_cell("draw()", metadata={"mystnb": figure})
    assert [c.source for c in caption(cell, {"fig-a": "1.2"}.get)] == ["*Figure 1.2.* A *line*."]
    assert caption(new_code_cell("1"), {}.get) == []


def test_a_card_keeps_its_title_and_words_and_neither_columns_nor_picture():
    card = ":::{grid-item-card} A card\n```{glue:figure} small\n:alt: A curve.\n```\nWords.\n:::"
    assert (
        Converter().convert(f"::::{{grid}} 1 1 2 2\n{card}\n::::").split()
        == "**A card** Words.".split()
    )
