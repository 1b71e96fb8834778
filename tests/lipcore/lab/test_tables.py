"""A table shows its rows as they were written, words to the left."""

import pytest

pytest.importorskip("pandas")
from lab.tables import typeset

ROWS = [{"layer": "first", "norm": "1.2"}, {"layer": "second", "norm": "−3×10⁴"}]


def test_words_and_numbers_are_aligned():
    html = typeset(ROWS, words=["layer"]).to_html()
    style, body = html.split("</style>")
    assert ".col0 {\n  text-align: left;" in style and ".col1" not in style
    assert 'class="dataframe"' in body and "−3×10⁴" in body
    assert body.count("<tr") == 3 and body.count("<th ") == 2  # no column of row numbers


def test_a_column_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"^words: "):
        typeset(ROWS, words=["name"])
