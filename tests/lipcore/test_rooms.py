"""The architecture: imports lead downward, and bounds name their theorems."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "lipcore"
#: What each room may import: the core knows no models, and nothing knows the book's laboratory.
BELOW = {"core": {"core"}, "models": {"core", "models"}}
#: Rooms joined on purpose: the names that a user meets first, and the command.
JOINED = {"__init__.py", "__main__.py"}


def room(dotted: str) -> str:
    part = f"{dotted}.".split(".")[1]
    return part if part in BELOW else "core"


def imported(tree: ast.AST):
    """Yield the dotted path of everything that is imported, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_imports_lead_downward(path):
    inside = path.relative_to(PACKAGE)
    names = [*imported(ast.parse(path.read_text(encoding="utf8")))]
    assert [name for name in names if name.split(".")[0] in ("lab", "notebooks")] == []
    if str(inside) in JOINED:
        return
    allowed = BELOW[room(".".join(["lipcore", *inside.with_suffix("").parts]))]
    assert [n for n in names if n.startswith("lipcore.") and room(n) not in allowed] == []


def test_every_bound_names_its_theorem():
    bounds = importlib.import_module("lipcore.bounds")
    stated = {name: inspect.getdoc(getattr(bounds, name)) or "" for name in bounds.__all__}
    assert [name for name, text in stated.items() if ":prf:ref:`" not in text] == []
