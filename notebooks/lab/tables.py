"""Tables of a page, with rows of text as a person writes them and without row numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
from pandas.io.formats.style import Styler


def typeset(rows: Iterable[Mapping[str, str]], *, words: Sequence[str] = ()) -> Styler:
    """Return a table to show: columns of words to the left, columns of numbers to the right."""
    frame = pd.DataFrame(list(rows))
    left = [
        {"selector": f".col{frame.columns.get_loc(name)}", "props": "text-align: left"}
        for name in words
    ]
    styler = frame.style.hide(axis="index").set_table_attributes('class="dataframe"')
    return styler.set_table_styles(left)
