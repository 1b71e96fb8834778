r"""MyST becomes Markdown that any notebook viewer shows."""

import pytest
from book_build.downloads import caption, show_pictures, solutions_last
from book_build.plain import Converter, definitions
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

NUMBERS = {"thm": "1.2", "eq-a": "7"}
FOLDED = "<details><summary><b>{}</b></summary>\n\n{}\n\n</details>"
LEMMA = "```{prf:lemma}\n$a\nb$ is\n\n$$\na \\\\\nb\n$$\n\n* one\n```"
CARD = ":::{grid-item-card} A card\n```{glue:figure} small\n:alt: A curve.\n```\nWords.\n:::"


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        (r"$\R^n$", r"$\R^n$"),
        ("{cite:t}`a,b`", "<cite:t a,b>"),
        ("{math}`x`", "$x$"),
        ("see [it](two.md)", "see <link it <two.md>>"),
        ("[out](https://example.org/)", "[out](https://example.org/)"),
        ("![a](b.png)", "![a](b.png)"),
        ("(here)=\n# Title", '<a id="here"></a>\n\n# Title'),
        ("a\n% comment\nb", "a\nb"),
        ("```{index} !a, !b\n```\n\nwords", "words"),
        ("```python\n{x}`y`\n```", "```python\n{x}`y`\n```"),
        ("```{math}\n:label: eq-a\nx\n```", "$$\nx \\tag{7}\n$$"),
        ("```{math}\na \\\\\nb\n```", "$$\n\\begin{aligned}\na \\\\\nb\n\\end{aligned}\n$$"),
        ("$$x$$ (eq-a)", "$$x \\tag{7}$$"),
        ("```{prf:theorem} Big\n:label: thm\nwords\n```", "> **Theorem 1.2 (Big).**\n>\n> words"),
        ("```{prf:proof}\nwords\n```", "**Proof.**\n\nwords"),
        ("```{prf:proof}\n:class: dropdown\nwords\n```", FOLDED.format("Proof", "words")),
        (
            LEMMA,
            "> **Lemma.**\n>\n> $a b$ is\n>\n> $$ \\begin{aligned} a \\\\ b \\end{aligned} $$\n>\n> * one",
        ),
        ("```{only} html\nDrag it.\n```\n\nwords", "words"),
        ("```{exercise-start} One\n:label: ex\n```", '<a id="ex"></a>\n\n**Exercise (One).**'),
        ("words\n\n```{exercise-end}\n```", "words"),
        ("````{dropdown} Proof\n```{math}\nx\n```\n````", FOLDED.format("Proof", "$$\nx\n$$")),
        ("one\n\n:::{tip}\ntwo\n:::\n\nthree", "one\n\n> **Tip.**\n>\n> two\n\nthree"),
        ("```{admonition} Mind\nwords\n```", "> **Mind.**\n>\n> words"),
        (
            "```{solution} ex\n:class: dropdown\nwords\n```",
            FOLDED.format("Solution of ex", "words"),
        ),
        ("```{figure} a.svg\n---\nalt: A curve\n---\nWords.\n```", "![A curve](a.svg)\n\n*Words.*"),
        (f"::::{{grid}} 1 1 2 2\n{CARD}\n::::", "**A card**\n\nWords."),
    ],
)
def test_a_construct(source, plain):
    converter = Converter(lambda role, target: f"<{role} {target}>", lambda x: NUMBERS.get(x, ""))
    assert converter.convert(source) == plain


def test_macros_are_defined_in_one_formula():
    macros = {"R": r"\mathbb{R}", "norm": [r"\lVert #1 \rVert", 1]}
    assert definitions(macros) == r"$\def\R{\mathbb{R}}\def\norm#1{\lVert #1 \rVert}$"


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
        "## How this page was made",
        "made",
        "## Solutions",
        "### Solution of [Exercise (No scores)](#ex-one)",
        "The mean.",
        "mean",
    ]


def test_a_drawing_is_shown_where_svg_is_not_trusted():
    drawn = new_output("display_data", data={"image/svg+xml": "<svg/>", "text/plain": "<Figure>"})
    metadata = {"mystnb": {"image": {"alt": 'A "line"'}}}
    cell = new_code_cell("draw()", metadata=metadata, outputs=[drawn])
    show_pictures(cell)
    source = "data:image/svg+xml;base64,PHN2Zy8+"
    assert cell.outputs[0].data == {
        "text/html": f'<img alt="A &quot;line&quot;" src="{source}">',
        "text/plain": "<Figure>",
    }


def test_a_figure_has_its_caption_under_it():
    figure = {"figure": {"name": "fig-a", "caption": "A *line*."}}
    cell = new_code_cell("draw()", metadata={"mystnb": figure})
    assert [c.source for c in caption(cell, {"fig-a": "1.2"}.get)] == ["*Figure 1.2.* A *line*."]
    assert caption(new_code_cell("1"), {}.get) == []
