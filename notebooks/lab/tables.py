"""Tables of a page, with rows of text as a person writes them and without row numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

__all__ = ["typeset"]


def typeset(rows: Iterable[Mapping[str, str]], *, words: Sequence[str] = ()) -> Styler:
    """Return a table to show: columns of words to the left, columns of numbers to the right.

    Parameters
    ----------
    rows : iterable of mappings
        For each row the text of every column; :mod:`lab.numbers` writes numbers.
    words : sequence of str, optional
        Columns of words.

    Returns
    -------
    Styler
        A Styler of pandas, which a notebook shows as a table.

    Raises
    ------
    ValueError
        If ``words`` names a column that does not exist.

    Examples
    --------
    >>> table = typeset([{"layer": "first", "norm": "1.2"}], words=["layer"])
    >>> print(table.to_string())
    layer norm
    first 1.2
    <BLANKLINE>
    """
    import pandas as pd

    frame = pd.DataFrame(list(rows))
    for name in words:
        if name not in frame.columns:
            known = ", ".join(map(str, frame.columns))
            raise ValueError(f"words: no column {name!r}; there are {known}")
    left = [
        {"selector": f".col{frame.columns.get_loc(name)}", "props": "text-align: left"}
        for name in words
    ]
    styler = frame.style.hide(axis="index").set_table_attributes('class="dataframe"')
    return styler.set_table_styles(left)
