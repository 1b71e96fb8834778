"""A table of measurements, which is printed as text, shown in a notebook, or written as JSON."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

#: Columns that are always shown.
KEPT = ("layer", "sigma")
#: Number of characters in a line of the text above a table.
WIDTH = 80


@dataclass(eq=False)
class Table:
    """Rows with the same columns, from :func:`~lipcore.models.measure.measure`.

    Attributes
    ----------
    title : str
        What was measured, in one line.
    rows : list of dict
        One for each measurement. A number that is not known is None.
    complete : bool
        False if the measuring was interrupted, or is still going on.

    Notes
    -----
    Only what differs is shown: a column with one value in all of several rows is said above them.

    Examples
    --------
    >>> table = Table("two layers", [{"layer": "a", "sigma": 2.0}, {"layer": "b", "sigma": None}])
    >>> table
    two layers
    layer  sigma
    a      2
    b      -
    >>> table["sigma"]
    [2.0, None]
    >>> Table("twice", [{"layer": "a", "sigma": x, "converged": True} for x in (1.0, 2.0)])
    twice; converged: yes
    layer  sigma
    a      1
    a      2
    """

    title: str
    rows: list[dict] = field(default_factory=list)
    complete: bool = True

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict]:
        return iter(self.rows)

    def __getitem__(self, key: int | str):
        """Return a row by its number, or a column by its name."""
        return [row[key] for row in self.rows] if isinstance(key, str) else self.rows[key]

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.rows[0]) if self.rows else []

    def _shown(self) -> tuple[str, list[list[str]]]:
        """Return the title with what all rows have in common, and the cells of what differs."""
        rows = [{name: show(value) for name, value in row.items()} for row in self.rows]
        alike = {}
        if len(rows) > 1:
            cells = {name: {row[name] for row in rows} for name in self.columns}
            alike = {name: min(x) for name, x in cells.items() if len(x) == 1 and name not in KEPT}
        title = "; ".join([self.title, *(f"{name}: {x}" for name, x in alike.items() if x)])
        columns = [name for name in self.columns if name not in alike]
        return title, [columns, *([row[name] for name in columns] for row in rows)]

    def __repr__(self) -> str:
        title, cells = self._shown()
        lines = wrap(title, WIDTH, break_long_words=False, break_on_hyphens=False)
        lines += aligned(cells, str.ljust) if self.rows else []
        return "\n".join(lines if self.complete else [*lines, "interrupted: there are more"])

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        title, cells = self._shown()
        titles, *rows = [[html.escape(cell) for cell in row] for row in cells]
        lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
        head = "".join(f"<th>{name}</th>" for name in titles)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        caption = html.escape(title) + ("" if self.complete else " (interrupted)")
        return f"<table><caption>{caption}</caption><tr>{head}</tr>{body}</table>"

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a DataFrame; what is not known is NaN."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=self.columns)

    def to_json(self, path: str | os.PathLike | None = None) -> str:
        """Return the table as JSON, and write it to ``path`` if that is given."""
        content = {"title": self.title, "complete": self.complete, "rows": finite(self.rows)}
        text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text


def show(value) -> str:
    """Return a value as a cell: six digits, and ``-`` for what is not known."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple | list):
        return " × ".join(map(str, value))
    return "-" if value is None else str(value)


def finite(value):
    """Replace infinite numbers by null, since JSON has no word for infinity."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def aligned(rows: list[list[str]], justify: Callable) -> list[str]:
    """Pad the cells of each column to one width.

    Examples
    --------
    >>> aligned([["a", "long"], ["wide", "b"]], str.rjust)
    ['   a  long', 'wide     b']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(justify, row, widths)).rstrip() for row in rows]
