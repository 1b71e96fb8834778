"""The project's files agree with one another."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import namedtuple
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace

import jupytext
import pytest
import yaml
from book_build import reference
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from sphinx.ext.napoleon import Config, NumpyDocstring

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
LOCK_LINES = [
    x for x in (ROOT / "requirements.lock").read_text().splitlines() if x and not x.startswith("#")
]
LOCK = {
    canonicalize_name(name): version for name, _, version in (x.partition("==") for x in LOCK_LINES)
}


def ranges() -> list[Requirement]:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    found = [Requirement(text) for group in groups for text in group]
    return [r for r in found if r.name != PROJECT["name"]]


def yml(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf8"))


def test_the_lock_holds_exact_versions_only():
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.!]*", line) for line in LOCK_LINES)
    assert len(LOCK) == len(LOCK_LINES), "a package stands twice"
    assert canonicalize_name(PROJECT["name"]) not in LOCK


@pytest.mark.parametrize("requirement", ranges(), ids=str)
def test_the_lock_lies_in_every_range(requirement):
    assert requirement.specifier.contains(LOCK[canonicalize_name(requirement.name)])


def test_the_package_alone_is_light():
    assert {Requirement(r).name for r in PROJECT["dependencies"]} == {
        "numpy",
        "scipy",
        "torch",
        "tqdm",
    }


def extra(name: str) -> set[str]:
    """The packages of an extra, with those of the extras that it names, and of the package alone."""
    found = {Requirement(text) for text in PROJECT["dependencies"]}
    names = [name]
    while names:
        for text in PROJECT["optional-dependencies"][names.pop()]:
            requirement = Requirement(text)
            found.add(requirement)
            names += requirement.extras if requirement.name == PROJECT["name"] else ()
    return {canonicalize_name(requirement.name) for requirement in found}


def test_a_downloaded_notebook_finds_what_it_imports():
    """Where nothing else is installed, its first cell installs the package with this extra."""
    imported = {
        name
        for page in [*(ROOT / "notebooks").glob("*.md"), ROOT / "book" / "how_to_run.md"]
        for name in re.findall(r"^(?:from|import) (\w+)", code_of(page), re.MULTILINE)
    }
    known = packages_distributions()
    needed = {canonicalize_name(known[name][0]) for name in imported - set(sys.stdlib_module_names)}
    assert needed and needed <= extra("book")


def code_of(page: Path) -> str:
    notebook = jupytext.read(page, fmt="md:myst")
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")


def test_without_make_and_with_conda_the_same_is_done_as_by_make_lab():
    page = (ROOT / "book" / "how_to_run.md").read_text(encoding="utf8")
    recipe = (ROOT / "Makefile").read_text(encoding="utf8")
    blocks = re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    by_hand = [block for block in blocks if "jupyter lab" in block]
    assert len(by_hand) == 2
    for command in (
        "--LabApp.default_url=/lab/tree/notebooks",
        "set-default-viewer markdown",
        "lipcore fetch minilm smollm2 bible vit whisper photos speech",
    ):
        assert command in recipe and all(command in block for block in by_hand)


def test_conda_installs_the_lock_on_the_same_python():
    dependencies = yml("environment.yml")["dependencies"]
    pip = next(d["pip"] for d in dependencies if isinstance(d, dict))
    assert "-r requirements.lock" in pip and "-e ." in pip
    python = next(
        d.split("=")[1] for d in dependencies if isinstance(d, str) and d.startswith("python=")
    )
    assert SpecifierSet(PROJECT["requires-python"]).contains(python)
    exact = [d for d in dependencies if isinstance(d, str) and "==" in d]
    assert exact == [], "versions stand in the lock, in one place"


def test_jupyter_book_stays_below_two():
    assert SpecifierSet("<2").contains(LOCK["jupyter-book"])
    ignored = [i for u in yml(".github/dependabot.yml")["updates"] for i in u.get("ignore", [])]
    assert {"dependency-name": "jupyter-book", "versions": [">=2"]} in ignored


def test_the_version_is_the_same_everywhere():
    init = ast.parse((ROOT / "lipcore" / "__init__.py").read_text(encoding="utf8"))
    versions = [
        n.value.value
        for n in init.body
        if isinstance(n, ast.Assign) and n.targets[0].id == "__version__"
    ]
    assert versions == [PROJECT["version"]] == [yml("CITATION.cff")["version"]]
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf8")


def toc_files() -> list[str]:
    toc = yml("_toc.yml")
    return [toc["root"]] + [c["file"] for part in toc["parts"] for c in part["chapters"]]


def chapters() -> list[str]:
    """The pages that have a number."""
    parts = [part for part in yml("_toc.yml")["parts"] if part.get("numbered")]
    return [chapter["file"] for part in parts for chapter in part["chapters"]]


def test_every_page_is_in_the_contents_once():
    listed = toc_files()
    assert len(listed) == len(set(listed))
    pages = {f"notebooks/{p.stem}" for p in (ROOT / "notebooks").glob("*.md")}
    pages |= {f"book/{p.stem}" for p in (ROOT / "book").glob("*.md")}
    assert set(listed) == pages


@pytest.mark.parametrize("page", [f for f in toc_files() if f.startswith("notebooks/")])
def test_a_chapter_is_a_myst_notebook(page):
    text = (ROOT / f"{page}.md").read_text(encoding="utf8")
    head = yaml.safe_load(text.split("---")[1])
    assert head["jupytext"]["text_representation"]["format_name"] == "myst", (
        "so that Jupyter opens it as a notebook"
    )
    assert head["kernelspec"]["name"] == "python3"
    title = next(line for line in text.split("---", 2)[2].splitlines() if line.startswith("# "))
    assert "$" not in title, "a title is also the window's: write √n, not TeX"
    assert "```{code-cell}" in text, "a chapter executes something"


@pytest.mark.parametrize("page", [f for f in toc_files() if f.startswith("notebooks/")])
def test_a_chapter_asks_says_what_it_needs_sums_up_and_sets_exercises(page):
    """Pages that only show something, without statements, need not ask or set exercises."""
    text = (ROOT / f"{page}.md").read_text(encoding="utf8")
    if not re.search(r"^[`:]{3,}\{exercise", text, re.MULTILINE) and page not in chapters():
        pytest.skip("no chapter")
    opening = re.split(
        r"^```\{code-cell\}|^## ", text.split("\n# ", 1)[1], maxsplit=1, flags=re.MULTILINE
    )[0]
    assert "?" in opening, "it opens with its question"
    assert re.search(r"^\*\*Needs:\*\* .*\S", opening, re.MULTILINE), (
        "it says, with links, what it needs"
    )
    assert (
        page.endswith("attention_as_a_map")
        or "{doc}`" in re.search(r"^\*\*Needs:.*", opening, re.MULTILINE)[0]
    )
    assert re.search(r"^(## |[`:]{3,}\{admonition\} )What to remember$", text, re.MULTILINE), (
        "it sums up"
    )
    exercises = set(
        re.findall(r"^[`:]{3,}\{exercise(?:-start)?\}.*\n:label: (\S+)", text, re.MULTILINE)
    )
    solutions = set(re.findall(r"^[`:]{3,}\{solution(?:-start)?\} (\S+)", text, re.MULTILINE))
    assert len(exercises) >= 3, "at least three exercises"
    assert exercises <= solutions, "each with its solution"


@pytest.mark.parametrize("page", [f for f in toc_files() if f.startswith("notebooks/")])
def test_every_figure_has_a_caption_and_a_description(page):
    text = (ROOT / f"{page}.md").read_text(encoding="utf8")
    heads = re.findall(r"^```\{code-cell\}[^\n]*\n---\n(.*?)^---\n", text, re.DOTALL | re.MULTILINE)
    figures = [yaml.safe_load(h)["mystnb"] for h in heads if "mystnb" in yaml.safe_load(h)]
    for each in figures:
        if "figure" in each:
            assert len(each["figure"]["caption"]) > 20 and len(each["image"]["alt"]) > 20, each[
                "figure"
            ]["name"]


def test_titles_in_the_bibliography_are_text():
    """The bibliography styles do not typeset TeX."""
    assert "$" not in (ROOT / "book" / "references.bib").read_text(encoding="utf8")


def test_the_reference_has_every_public_module():
    documented = []
    for name in ("api", "api_models"):
        page = [(ROOT / "book" / f"{name}.md").read_text(encoding="utf8")]
        reference.expand(SimpleNamespace(srcdir=ROOT), f"book/{name}", page)
        documented += re.findall(r"automodule:: (lipcore[.\w]*)", page[0])
    assert len(documented) == len(set(documented))
    top = {f"lipcore.{name}" for name in reference.public_modules(ROOT / "lipcore")}
    inner = {
        f"lipcore.{room}.{name}"
        for room in ("bounds", "models", "lab")
        for name in reference.public_modules(ROOT / "lipcore" / room)
    }
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


def test_the_repository_is_named_alike_everywhere():
    url = yml("_config.yml")["repository"]["url"]
    assert yml("CITATION.cff")["repository-code"] == url


def test_the_extension_needs_of_the_package_only_claims_and_colours():
    """Building must not import PyTorch, and a broken package must still get a readable build log."""
    for path in (ROOT / "book" / "_ext" / "book_build").glob("*.py"):
        text = path.read_text(encoding="utf8")
        found = re.findall(r"^\s*(?:import|from) (lipcore[.\w]*)", text, re.MULTILINE)
        assert set(found) <= {"lipcore.lab.claims", "lipcore.lab.colours"}, path.name


def test_make_help_lists_the_targets():
    text = subprocess.run(
        ["make", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True
    ).stdout
    assert {"make env", "make book", "make test", "make check", "make clean"} <= set(
        re.findall(r"make \w+", text)
    )
