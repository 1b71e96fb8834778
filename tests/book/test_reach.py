"""A page reaches the modules that its imports lead to, and the whole package where they cannot be followed."""

from pathlib import Path
from types import SimpleNamespace

import jupytext
import pytest
import yaml
from book_build import execution
from book_build.reach import Package

ROOT = Path(__file__).resolve().parents[2]

FILES = {
    "__init__": """
import importlib
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from pkg import bounds, rooms
    from pkg.core import solve
__all__ = ["bounds", "rooms", "solve"]
def __getattr__(name):
    return importlib.import_module("pkg.core")
""",
    "core": '"""Words."""\nimport numpy\ndef solve(): ...',
    "bounds/__init__": "from pkg.bounds.upper import upper\nfrom .lower import lower as least\n",
    "bounds/upper": "from pkg.core import solve\ndef upper(): ...",
    "bounds/lower": "def lower():\n    from ..core import solve\n    from . import _shared",
    "bounds/_shared": "",
    "rooms/__init__": "from pkg.rooms.red import red\nREGISTRY = {red: 1}\n",
    "rooms/red": "red = 1",
    "rooms/blue": "import pkg\nversion = pkg.__file__",
    "dynamic": "import importlib\ndef get(name): return importlib.import_module(name)",
    "everything": "from pkg import bounds\ndef all(): return vars(bounds)",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Package:
    folder = tmp_path_factory.mktemp("reach") / "pkg"
    for name, text in FILES.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf8")
    return Package(folder)


UPPER = {"bounds.upper", "core"}
LOWER = {"bounds.lower", "bounds._shared", "core"}


@pytest.mark.parametrize(
    ("code", "reached"),
    [
        ("import numpy", set()),
        ("from pkg import solve", {"core"}),
        ("import pkg\npkg.solve()", {"core"}),
        ("from pkg.core import solve", {"core"}),
        ("import pkg.core", {"core"}),
        ("import pkg.core as c", {"core"}),
        ("from pkg.bounds import upper", UPPER),
        ("from pkg.bounds import upper as u", UPPER),
        ("from pkg.bounds import least", LOWER),
        ("def later():\n    from pkg.bounds import upper", UPPER),
        ("from pkg import bounds", set()),
        ("from pkg import bounds\nbounds.upper(1)", UPPER),
        ("from pkg import bounds as b\n[b.upper(1), b.least(2)]", UPPER | LOWER),
        ("import pkg\npkg.bounds.upper(1)", UPPER),
        ("import pkg.bounds\npkg.bounds.upper(1)", UPPER),
        ("import pkg.bounds as b\nb.upper(1)", UPPER),
        ("from pkg.bounds import lower", LOWER),
        ("from pkg import bounds\nprint(bounds)", {"bounds"} | UPPER | LOWER),
        ("from pkg import bounds\ngetattr(bounds, name)", {"bounds"} | UPPER | LOWER),
        ("from pkg import bounds\nbounds.unknown", {"bounds"} | UPPER | LOWER),
        ("import pkg.everything", {"everything", "bounds"} | UPPER | LOWER),
        ("from pkg.rooms import blue", {"rooms", "rooms.red", "rooms.blue"}),
        ("from pkg.rooms import red", {"rooms", "rooms.red"}),
        ("from pkg import rooms\nrooms.REGISTRY", {"rooms", "rooms.red"}),
        ("x.eval(), re.compile('x')", set()),
    ],
)
def test_imports_are_followed(package, code, reached):
    assert package.reached_from(code) == {f"pkg.{name}" for name in reached}


@pytest.mark.parametrize(
    "code",
    [
        "from pkg import *",
        "from pkg.bounds import *",
        "from pkg import missing",
        "from pkg.bounds import missing",
        "import pkg.missing as m\nfrom pkg.missing import x",
        "import pkg\nprint(pkg)",
        "import importlib\nimportlib.import_module(name)",
        "from importlib import import_module",
        "__import__('pkg')",
        "exec(code)",
        "import subprocess",
        "%run other.py",
        "!pkg measure",
        "import pkg.dynamic",
    ],
)
def test_what_cannot_be_followed_reaches_everything(package, code):
    assert package.reached_from(code) == set(package.modules)


def test_docstrings_and_comments_do_not_matter(tmp_path, package):
    def signature(text: str) -> str:
        (tmp_path / "pkg").mkdir(exist_ok=True)
        (tmp_path / "pkg" / "core.py").write_text(text, encoding="utf8")
        return Package(tmp_path / "pkg").modules["pkg.core"].signature

    assert signature(FILES["core"]) == signature(
        "import numpy\ndef solve():\n    '''More.'''\n    ..."
    )
    assert signature(FILES["core"]) != signature("import numpy\ndef solve(): return 1")


def test_a_state_depends_on_code_that_is_reached_data_and_versions(tmp_path, monkeypatch):
    files = {"pkg/__init__.py": "", "pkg/one.py": "a = 1", "pkg/two.py": "b = 2", "data/table": "1"}
    files |= {
        "pages/lab/__init__.py": "",
        "pages/lab/three.py": "from pkg import one",
        "pages/lab/four.py": "c = 3",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    packages = ["pkg", "pages/lab"]
    config = SimpleNamespace(book_packages=packages, book_data=["data"], book_libraries=["numpy"])
    app = SimpleNamespace(srcdir=tmp_path, config=config)

    def state(code: str = "import pkg.one") -> str:
        return execution.states.__wrapped__(app).of(code)

    seen = [state()]
    further = state("from lab import three")
    assert state() == seen[0] != further
    (tmp_path / "pkg" / "two.py").write_text("b = 3")
    (tmp_path / "pages" / "lab" / "four.py").write_text("c = 4")
    assert (state(), state("from lab import three")) == (seen[0], further)
    (tmp_path / "pages" / "lab" / "three.py").write_text("from pkg import one\nd = 5")
    assert state() == seen[0] and state("from lab import three") != further
    further = state("from lab import three")
    (tmp_path / "pkg" / "one.py").write_text("a = 3")
    assert state() != seen[0] and state("from lab import three") != further
    seen.append(state())
    for name, text in (("pkg/one.py", "a = 2"), ("data/table", "2"), ("pkg/list.json", "[]")):
        (tmp_path / name).write_text(text)
        seen.append(state())
    monkeypatch.setattr(execution, "library_versions", lambda names: [f"{x} 0" for x in names])
    seen.append(state())
    assert len(set(seen)) == len(seen) == 6


def test_a_state_of_digits_alone_is_still_a_name():
    page = "---\nkernelspec: {display_name: Python 3, name: python3}\n---\n"
    marked = execution.marked(None, "page", page, "4341166441933183")
    assert (
        yaml.safe_load(marked.split("---")[1])["kernelspec"]["display_name"] == "4341166441933183"
    )


def test_no_page_of_the_book_reaches_everything():
    """Otherwise each change of the package would execute it again."""
    package = Package(ROOT / "lipcore", ROOT / "notebooks" / "lab")
    for path in sorted((ROOT / "notebooks").glob("*.md")):
        cells = jupytext.read(path, fmt="md:myst").cells
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        assert package.reached_from(code) != set(package.modules), path.stem


def test_names_at_the_top_are_followed_to_their_modules():
    package = Package(ROOT / "lipcore")
    models = "lipcore.models.modules"
    assert models not in package.reached_from("from lipcore import Attention")
    assert models in package.reached_from("from lipcore import from_module")
