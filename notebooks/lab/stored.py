"""What is kept of long measurements: finished parts, to resume from, and the tables of the book."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pandas as pd


def stored_file(name: str, command: str) -> Path:
    """Return the path of a table kept with the book, which ``command`` makes."""
    path = Path(__file__).parents[2] / "book" / "data" / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: '{command}' makes it")
    return path


def kept(path: Path, make: Callable[[], object]) -> object:
    """Return what the JSON file holds; if it is missing or damaged, make that and write it."""
    try:
        return json.loads(path.read_text(encoding="utf8"))
    except (FileNotFoundError, ValueError):
        found = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    temporary.write_text(json.dumps(found), encoding="utf8")
    os.replace(temporary, path)  # whole or not at all, whatever interrupts
    return found


def short(value, digits: int = 6):
    """Round every float of lists and dictionaries to this many significant digits."""
    if isinstance(value, dict):
        return {key: short(part, digits) for key, part in value.items()}
    if isinstance(value, list):
        return [short(part, digits) for part in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def write_rows(path: Path, name: str, rows: list[dict], **made) -> None:
    """Write rows under a name, each in a line of its own, and how they were made."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    text = f'{{"made": {json.dumps(made)},\n"{name}": [\n{lines}\n]}}\n'
    path.write_text(text, encoding="utf8")


def read_rows(file: str, name: str, command: str) -> pd.DataFrame:
    """Return what the command wrote into a file of the book by :func:`write_rows`."""
    content = json.loads(stored_file(file, command).read_text(encoding="utf8"))
    table = pd.DataFrame(content[name])
    table.attrs = content["made"]
    return table
