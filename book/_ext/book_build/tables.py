"""Build a docutils table from rows of inline nodes."""

from __future__ import annotations

from docutils import nodes


def build_table(header: list[str], rows: list[list[list[nodes.Node]]], classes=()) -> nodes.table:
    """Return a table; every cell of ``rows`` is a list of inline nodes."""
    group = nodes.tgroup(cols=len(header))
    group += [nodes.colspec(colwidth=100 // len(header)) for _ in header]
    head, body = nodes.thead(), nodes.tbody()
    head += _row([[nodes.Text(name)] for name in header])
    body += [_row(cells) for cells in rows]
    group += [head, body]
    table = nodes.table("", group, classes=["colwidths-auto", *classes])
    return table


def _row(cells: list[list[nodes.Node]]) -> nodes.row:
    row = nodes.row()
    row += [nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells]
    return row
