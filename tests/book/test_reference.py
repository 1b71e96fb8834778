"""The reference shows every public module, and building it needs little of the package."""

import re
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

from book_build import reference
from sphinx.ext.napoleon import Config, NumpyDocstring

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_has_every_public_module():
    documented = []
    for name in ("api", "api_models"):
        page = [(ROOT / "book" / f"{name}.md").read_text(encoding="utf8")]
        reference.expand(SimpleNamespace(srcdir=ROOT), f"book/{name}", page)
        documented += re.findall(r"automodule:: ((?:lipcore|lab)[.\w]*)", page[0])
    assert len(documented) == len(set(documented))
    top = {f"lipcore.{name}" for name in reference.public_modules(ROOT / "lipcore")}
    inner = {
        f"{room}.{name}".replace("/", ".")
        for place, room in (
            ("", "lipcore/bounds"),
            ("", "lipcore/models"),
            ("notebooks", "lab"),
            ("notebooks", "lab/models"),
        )
        for name in reference.public_modules(ROOT / place / room)
    } | {"lab"}
    assert set(documented) == top | inner


def test_listed_modules_come_first(tmp_path):
    for name in ("a", "b", "c", "_hidden", "d/__init__", "d/e"):
        (tmp_path / "p" / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / f"{name}.py").touch()
    page = ["# T\n\n```{modules} p\nc gone\n```\n"]
    reference.expand(SimpleNamespace(srcdir=tmp_path), "api", page)
    assert re.findall(r"automodule:: (\S+)", page[0]) == ["p.c", "p.a", "p.b", "p.d"]


def test_a_colon_in_a_first_line_ends_no_type():
    lines = ["Two colours: light, dark."]
    reference.keep_sentence(None, "data", "m.c", None, None, lines)
    told = NumpyDocstring(lines, Config(), None, "data", "m.c").lines()
    assert "Two colours: light, dark." in told and ":type:" not in "".join(told)


def test_the_fields_of_a_named_tuple_are_not_listed():
    assert reference.skip_field(None, "class", "x", namedtuple("Pair", "x y").x, False, None)
    assert reference.skip_field(None, "class", "x", property(len), False, None) is None


def test_the_extension_needs_of_the_package_only_claims_and_colours():
    """Building must not import PyTorch, and a broken package must still get a readable build log."""
    for path in (ROOT / "book" / "_ext" / "book_build").glob("*.py"):
        text = path.read_text(encoding="utf8")
        found = re.findall(r"^\s*(?:import|from) ((?:lipcore|lab)[.\w]*)", text, re.MULTILINE)
        assert set(found) <= {"lab.claims", "lab.colours"}, path.name
