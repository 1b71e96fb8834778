"""The small tables that are kept with the book, so that its pages need not measure them again."""

from __future__ import annotations

from pathlib import Path


def stored_file(name: str, command: str) -> Path:
    """Return the path of a table kept with the book.

    Parameters
    ----------
    name : str
        The name of the file in ``book/data``.
    command : str
        The command that makes it, for the message if it is missing.

    Returns
    -------
    Path

    Raises
    ------
    FileNotFoundError
        If it was not made yet.

    Examples
    --------
    >>> stored_file("sweep.parquet", "make sweep").name
    'sweep.parquet'
    """
    path = Path(__file__).parents[2] / "book" / "data" / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: '{command}' makes it")
    return path
