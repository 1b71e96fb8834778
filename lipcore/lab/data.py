"""The small tables that are kept with the book, so that its pages need not measure them again."""

from __future__ import annotations

import sys
from pathlib import Path

import lipcore


def stored_file(name: str, command: str) -> Path:
    """Return the path of a table kept with the book, in the repository or the installed package.

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
        If neither the repository nor the installed package has it.

    Examples
    --------
    >>> stored_file("sweep.parquet", "make sweep").name
    'sweep.parquet'
    """
    repository = Path(lipcore.__file__).parents[1] / "book" / "data"
    installed = Path(sys.prefix) / "share" / "lipcore"
    for place in (repository, installed):
        if (place / name).is_file():
            return place / name
    raise FileNotFoundError(
        f"{name} is neither in {repository} nor in {installed}: '{command}' makes it"
    )
