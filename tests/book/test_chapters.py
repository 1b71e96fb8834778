"""How long a page takes is counted in the words that are read on it."""

from book_build import chapters
from docutils import nodes
from sphinx_exercise.nodes import exercise_enumerable_node, solution_node


def page(*parts: nodes.Node) -> nodes.document:
    section = nodes.section()
    section.extend(parts)
    return section


def test_words_and_formulas_count():
    words = nodes.paragraph("", "", nodes.Text("Three plain words, and "), nodes.math(text="x+y"))
    formula = nodes.math_block(text="a = b")
    assert chapters.count_words(page(words, formula)) == 4 + 1 + 10


def test_what_is_folded_or_code_does_not():
    folded = nodes.container("", nodes.paragraph(text="a long proof"), design_component="dropdown")
    cell = nodes.container("", nodes.literal_block(text="x = 1"), classes=["cell"])
    cell += nodes.figure("", nodes.caption(text="Two words"))
    assert chapters.count_words(page(folded, cell)) == 2


def test_exercises_and_solutions_do_not():
    kinds = (exercise_enumerable_node, solution_node)
    parts = [kind("", nodes.paragraph(text="Show that it holds")) for kind in kinds]
    assert chapters.count_words(page(*parts)) == 0
