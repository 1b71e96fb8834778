"""The architecture: three rooms, one direction, plain lines, and statements that name their theorems."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lipcore"
#: What everything else is built on, docstrings included: one evening to read.
SPINE = ("_checks.py", "attention.py", "jacobian.py", "spectral.py")
MOST_LINES = 1300
WIDTH = 100
#: Optional or slow to import: these may be imported where they are used.
HEAVY = {
    "IPython", "PIL", "accelerate", "datasets", "gguf", "huggingface_hub", "joblib", "matplotlib",
    "matplotlib_inline", "nltk", "onnx", "ot", "pandas", "pooch", "pyarrow", "safetensors", "tokenizers",
    "torch", "transformers",
}  # fmt: skip
#: The command lines answer ``--help`` before PyTorch is loaded.
COMMAND_LINES = {"lipcore.__main__", "lipcore.models.cli", "lipcore.lab.cli"}
#: The one import against the direction, on a call: ``Attention.from_module`` is where one looks for it.
ON_CALL = ("lipcore.attention", "lipcore.models.modules")
LABEL = re.compile(r":prf:ref:`(?:[^`<]*<)?([\w-]+)>?`")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def sources() -> dict[str, ast.Module]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return {module_name(path): ast.parse(path.read_text(encoding="utf8")) for path in paths}


def room(module: str) -> str:
    part = (module + ".").split(".")[1]
    if module in ("lipcore", "lipcore.__main__"):
        return "top"
    return part if part in ("models", "lab") else "core"


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports(tree: ast.AST, *, inside_functions: bool = True) -> list[tuple[str, str | None, int]]:
    """List (module, name, line) of what a module imports when it runs; name is None for a module."""
    found = []
    stack = [tree]
    while stack:
        node = stack.pop()
        if is_for_types(node):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not inside_functions:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, None, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            found += [(node.module, alias.name, node.lineno) for alias in node.names]
        stack.extend(ast.iter_child_nodes(node))
    return found


def targets(module: str, name: str | None) -> str:
    """Return the module that an import statement loads."""
    whole = f"{module}.{name}"
    return whole if name is not None and whole in sources() else module


def edges(*, inside_functions: bool) -> dict[str, set[str]]:
    graph = {}
    for module, tree in sources().items():
        found = {
            targets(source, name)
            for source, name, _ in imports(tree, inside_functions=inside_functions)
        }
        graph[module] = {target for target in found if target in sources()} - {module}
    source, target = ON_CALL
    assert (target in graph[source]) == inside_functions, "the exception is needed, and lazy"
    graph[source].discard(target)
    return graph


def test_core_knows_no_models_and_models_know_no_lab():
    allowed = {
        "core": {"core"},
        "models": {"core", "models"},
        "lab": {"core", "models", "lab"},
        "top": {"core", "models", "lab", "top"},
    }
    wrong = [
        f"{module} imports {target}"
        for module, found in edges(inside_functions=True).items()
        for target in found - {"lipcore"}
        if room(target) not in allowed[room(module)]
    ]
    assert wrong == []


def test_no_circle_of_imports():
    graph = edges(inside_functions=True)
    graph.pop("lipcore")  # its names are loaded on first use
    graph.pop("lipcore.__main__")
    finished: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            pytest.fail(" → ".join([*path[path.index(module) :], module]))
        if module in finished:
            return
        for target in sorted(graph.get(module, ())):
            visit(target, (*path, module))
        finished.add(module)

    for module in graph:
        visit(module, ())


def test_imports_stand_at_the_top_unless_what_they_bring_is_heavy():
    wrong = []
    for module, tree in sources().items():
        if module in COMMAND_LINES or module == "lipcore":
            continue
        at_top = {line for *_, line in imports(tree, inside_functions=False)}
        for source, _, line in imports(tree):
            if (module, source) == ON_CALL:
                continue
            if line not in at_top and source.split(".")[0] not in HEAVY:
                wrong.append(f"{module}:{line} imports {source} inside a function")
    assert wrong == []


def aliases(tree: ast.AST) -> dict[str, str]:
    """Return the names under which a module knows other modules of the package."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                target = f"{node.module}.{alias.name}"
                if target in sources():
                    known[alias.asname or alias.name] = target
    return known


def is_private(name: str | None) -> bool:
    return name is not None and name.startswith("_") and not name.startswith("__")


def test_no_module_reaches_into_another():
    wrong = []
    for module, tree in sources().items():
        for source, name, line in imports(tree):
            if (
                source.startswith("lipcore")
                and is_private(name)
                and f"{source}.{name}" not in sources()
            ):
                wrong.append(f"{module}:{line} imports {name} of {source}")
        known = aliases(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in known and is_private(node.attr):
                    wrong.append(f"{module}:{node.lineno} uses {known[node.value.id]}.{node.attr}")
    assert wrong == []


def test_the_spine_can_be_read_in_an_evening():
    lines = {name: len((PACKAGE / name).read_text(encoding="utf8").splitlines())
             for name in SPINE}  # fmt: skip
    assert sum(lines.values()) <= MOST_LINES, lines


def test_lines_are_short():
    long = [
        f"{path.relative_to(ROOT)}:{number} has {len(line)} characters"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), 1)
        if len(line) > WIDTH
    ]
    assert long == []


def is_swap(target: ast.Tuple, value: ast.Tuple) -> bool:
    return {ast.unparse(e) for e in target.elts} == {ast.unparse(e) for e in value.elts}


def is_shape(value: ast.Tuple) -> bool:
    """Sizes may be read off together: every entry is a shape, or a number taken from one."""
    return all(
        "shape" in ast.unparse(entry) or "len(" in ast.unparse(entry) for entry in value.elts
    )


def test_one_thought_a_line():
    """No ``a, b = x, y`` but for swaps and shapes."""
    wrong = [
        f"{module}:{node.lineno} {ast.unparse(node)[:60]}"
        for module, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        for target in node.targets
        if isinstance(target, ast.Tuple)
        if not is_swap(target, node.value) and not is_shape(node.value)
    ]
    assert wrong == []


@functools.cache
def labels() -> set[str]:
    """Return the labels of theorems, definitions and exercises in the book."""
    pages = [*(ROOT / "notebooks").glob("*.md"), *(ROOT / "book").glob("*.md")]
    texts = [page.read_text(encoding="utf8") for page in pages]
    return {
        label for text in texts for label in re.findall(r"^:label: ([\w-]+)$", text, re.MULTILINE)
    }


def docstrings() -> list[tuple[str, str]]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    return [
        (f"{module}:{getattr(node, 'name', '')}", ast.get_docstring(node) or "")
        for module, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    ]


def test_every_label_in_a_docstring_stands_in_the_book():
    named = {(place, label) for place, text in docstrings() for label in LABEL.findall(text)}
    assert len(named) > 40
    assert [(place, label) for place, label in sorted(named) if label not in labels()] == []


#: Public names of ``lipcore.bounds`` that state nothing: tools for the statements around them.
TOOLS = {"Normalisation", "normalise"}


def statements() -> list[str]:
    bounds = importlib.import_module("lipcore.bounds")
    return sorted(set(bounds.__all__) - TOOLS)


@pytest.mark.parametrize("name", statements())
def test_every_statement_names_its_theorem(name):
    stated = getattr(importlib.import_module("lipcore.bounds"), name)
    assert LABEL.findall(inspect.getdoc(stated) or ""), f"{name} names no theorem of the book"


def test_every_statement_of_measures_and_inputs_names_its_theorem():
    missing = []
    for package in ("lipcore.measures", "lipcore.adversarial"):
        module = importlib.import_module(package)
        text = " ".join(inspect.getdoc(getattr(module, name)) or "" for name in module.__all__)
        if not LABEL.findall(text):
            missing.append(package)
    assert missing == []


def test_nothing_refers_to_notes_that_are_not_in_the_book():
    files = [p for folder in ("lipcore", "tests", "notebooks", "book", "benchmarks")
             for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md")]  # fmt: skip
    phrase = "theory " + "§"
    assert [str(p) for p in files if phrase in p.read_text(encoding="utf8")] == []


def test_docstrings_do_not_send_the_reader_from_one_to_the_next():
    """A section that only says “As in …” stands at most once in a module."""
    sent = {}
    for place, text in docstrings():
        found = re.findall(r"^\s+As (?:in )?:(?:func|class|meth):", text, re.MULTILINE)
        module = place.split(":")[0]
        sent[module] = sent.get(module, 0) + len(found)
    assert {module: count for module, count in sent.items() if count > 1} == {}
