"""The small tables that are kept with the book, so that its pages need not measure them again."""

from pathlib import Path


def stored_file(name: str, command: str) -> Path:
    """Return the path of a table kept with the book, which ``command`` makes."""
    path = Path(__file__).parents[2] / "book" / "data" / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: '{command}' makes it")
    return path
