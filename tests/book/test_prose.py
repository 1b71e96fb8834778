"""No number that looks measured is typed by hand: what a page states, a cell of the page has computed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from prose import prose, typed_numbers

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "notebooks").glob("*.md"), *(ROOT / "book").glob("*.md")])

# Numbers that are chosen, not measured, and one or two in words: each with its reason.
EVERYWHERE = {"95 %": "level of intervals"}
ALLOWED = {
    "spectral_norm": {"0.999": "probability of the certificate, asked for"},
    "measures_and_transport": {"80 %": "width of a band, chosen"},
    "large_radius": {"0.95": "threshold, chosen"},
    "decoders": {"0.1": "description of a picture"},
    "encoder_in_detail": {
        "0.1": "threshold, chosen; description of a picture",
        "0.4": "the same",
        "1.4": "the same",
    },
    "growth_in_detail": {"80 %": "width of a band, chosen"},
    "zoo_of_attentions": {"ten per cent": "asked in an exercise", "Ten per cent": "the same"},
    "images_and_speech": {
        "5 %": "level of a test",
        "20 ms": "length of a frame, chosen by the model",
        "0.1": "description of a picture",
        "0.27": "the same",
        "four times as": "arithmetic of an exercise",
    },
}

PLANTED = [
    "It grows by 37 %.",
    "At most 12.5 of them.",
    "The constant is 0.87 here.",
    "It is 40 times larger.",
    "A 3-fold rise.",
    "It took 23 seconds.",
    "It is three times larger than the truth.",
    "Some thirty per cent of the tokens.",
    "```{prf:remark}\nThe slack is 1.23 there.\n```",
    "- the slack is 1.23",
    "| slack | 1.23 |",
    "```{code-cell} python3\n---\nmystnb:\n  figure:\n    caption: The slack is 1.23.\n---\n1\n```",
    "```{code-cell} python3\n---\nmystnb:\n  figure:\n    caption: |\n      Here\n      it is 1.23.\n---\n1\n```",
    "```{code-cell} python3\n---\nmystnb:\n  image: {alt: x}\n  figure:\n    caption: 'A rise by 1.23'\n---\n1\n```",
    "$x$ is 1.23 and $y$",
    "Costs \\$5, rises by 1.23, costs \\$6.",
]
HARMLESS = [
    "The factor $1.23$ and $0.5\\,x$.",
    "$$\n1.23\n$$",
    "```{math}\n1.23\n```",
    "{glue:text}`slack:.2f` times larger",
    "`x = 1.23`",
    "```python\nx = 1.23\n```",
    "```{code-cell} python3\n:tags: [hide-input]\nx = 1.23\n```",
    "Section 5.2, {cite:t}`a2024`, [here](page-1.25.md), arXiv:2312.14820, GPT-2, L2, Python 3.11",
    "At 128 tokens, ten texts, layers 0 to 5, in 2024.",
    "It happens several times.",
    ":width: 50.5 %",
]


def key(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", PAGES, ids=key)
def test_no_number_in_prose_is_typed(path):
    allowed = EVERYWHERE | ALLOWED.get(key(path), {})
    found = [
        (line, words)
        for line, words in typed_numbers(path.read_text(encoding="utf8"))
        if words not in allowed
    ]
    assert found == [], "glue it, or set it as mathematics if it is chosen"


def test_no_exception_is_left_over():
    stems = {key(path): path for path in PAGES}
    for page, words in ALLOWED.items():
        typed = {w for _, w in typed_numbers(stems[page].read_text(encoding="utf8"))}
        assert set(words) <= typed, f"{page}: no longer there"


@pytest.mark.parametrize("text", PLANTED)
def test_a_planted_number_is_found(text):
    assert typed_numbers(f"A line.\n\n{text}\n\nA line.")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_measurement_passes(text):
    assert typed_numbers(f"A line.\n\n{text}\n\nA line.") == []


def test_the_line_is_the_line():
    text = "---\na: 1\n---\n\n```{code-cell} python3\nx = 1.5\n```\n\n$$\nx\n$$\nIt is 1.5 here.\n"
    assert typed_numbers(text) == [(12, "1.5")]
    assert prose(text).count("\n") == text.count("\n")
