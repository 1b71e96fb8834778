r"""MyST becomes Markdown that any notebook viewer shows."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "book" / "_ext"))
from book_build.plain import Converter

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
        ("```{prf:theorem} Big\n:label: thm\nwords\n```", "**Theorem 1.2 (Big).**\n\nwords"),
        (
            "````{dropdown} Proof\n```{math}\nx\n```\n````",
            "<details><summary><b>Proof</b></summary>\n\n$$\nx\n$$\n\n</details>",
        ),
        (":::{note}\nwords\n:::", "**Note.**\n\nwords"),
        ("```{admonition} Mind\nwords\n```", "**Mind.**\n\nwords"),
        (
            "```{solution} ex\n:class: dropdown\nwords\n```",
            "<details><summary><b>Solution</b></summary>\n\nwords\n\n</details>",
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
    assert convert("one\n\n:::{tip}\ntwo\n:::\n\nthree") == "one\n\n**Tip.**\n\ntwo\n\nthree"
