"""The cheat sheet shows the very formulas that its check compares with their functions."""

import ast
import re
from pathlib import Path

import jupytext

PAGE = Path(__file__).resolve().parents[2] / "notebooks" / "bounds_at_a_glance.md"


def shown(text: str) -> list[tuple[str, str]]:
    """Return the formulas in the first column of the two tables, each with its function or letter."""
    found = []
    for row in re.split(r"^\* - ", text, flags=re.M):
        cell = row.split("\n  - ")[0]
        factor = re.search(r"`glance-(\w+)`", row)  # without n a function stands for two
        if factor and "lipcore.bounds." in cell:
            for formula in re.findall(r"\$(.+?)\$", cell):
                letter, equal, meant = formula.partition("=")
                found.append((letter, meant) if equal else (factor[1], formula))
    # a letter alone or the norm of V is no formula
    return [(name, tex) for name, tex in found if tex not in ("A", "S", r"\lVert V\rVert_2")]


def evaluated(text: str) -> list[tuple[str, str]]:
    """Return the formulas that the page evaluates, by function or letter."""
    found = {}
    for cell in jupytext.reads(text, fmt="md:myst").cells:
        for node in ast.parse(cell.source).body if cell.cell_type == "code" else []:
            target = getattr(node, "targets", [getattr(node, "target", None)])[0]
            if getattr(target, "id", None) == "formulas":
                found |= ast.literal_eval(node.value)
    return list(found.items())


def test_the_formulas_shown_are_those_evaluated():
    text = PAGE.read_text(encoding="utf8")
    assert sorted(shown(text)) == sorted(evaluated(text)) and len(shown(text)) > 10
    altered = text.replace(r"    $\sqrt{1+a^2}\,e^a+a$", "    $(1+a)e^a+a$")
    assert altered != text and sorted(shown(altered)) != sorted(evaluated(altered))
