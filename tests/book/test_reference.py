"""The reference shows every public module, and building it needs little of the package."""

import re
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

from book_build import reference
from sphinx.ext.napoleon import Config, NumpyDocstring

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ["lipcore/bounds", "lipcore/models", "notebooks/lab", "notebooks/lab/models"]


def documented(name: str, text: str) -> list[str]:
    page = [text]
    reference.expand(SimpleNamespace(srcdir=ROOT), name, page)
    return re.findall(r"automodule:: ((?:lipcore|lab)[.\w]*)", page[0])


def test_the_reference_has_every_public_module():
    pages = [ROOT / "book" / f"{name}.md" for name in ("api", "api_models")]
    found = [name for p in pages for name in documented(p.stem, p.read_text(encoding="utf8"))]
    wanted = {f"lipcore.{name}" for name in reference.public_modules(ROOT / "lipcore")} | {"lab"}
    for room in ROOMS:
        package = room.removeprefix("notebooks/").replace("/", ".")
        wanted |= {f"{package}.{name}" for name in reference.public_modules(ROOT / room)}
    assert len(found) == len(set(found)) and set(found) == wanted


def test_listed_modules_come_first():
    found = documented("api", "# T\n\n```{modules} lipcore.models\nmeasure gone\n```\n")
    assert found[0] == "lipcore.models.measure" and found[1:] == sorted(found[1:])


def test_a_colon_in_a_first_line_ends_no_type():
    lines = ["Two colours: light, dark."]
    reference.keep_sentence(None, "data", "m.c", None, None, lines)
    told = NumpyDocstring(lines, Config(), None, "data", "m.c").lines()
    assert "Two colours: light, dark." in told and ":type:" not in "".join(told)


def test_the_fields_of_a_named_tuple_are_not_listed():
    assert reference.skip_field(None, "class", "x", namedtuple("Pair", "x y").x, False, None)
    assert reference.skip_field(None, "class", "x", property(len), False, None) is None


def test_the_extension_needs_of_the_package_only_claims_and_colours():
    """Building must not import PyTorch, and a broken package must still get a readable log."""
    for path in (ROOT / "book" / "_ext" / "book_build").glob("*.py"):
        text = path.read_text(encoding="utf8")
        found = re.findall(r"^\s*(?:import|from) ((?:lipcore|lab)[.\w]*)", text, re.MULTILINE)
        assert set(found) <= {"lab.claims", "lab.colours"}, path.name
