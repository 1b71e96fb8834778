"""Which modules of the package a page can reach, read from imports alone: nothing is run.

A page reaches the modules that it imports, and those that these import, wherever in a file the import stands.
A name imported from a folder is followed through its ``__init__`` to the module that defines it, so that
``from lipcore.bounds import general_upper`` does not reach every bound. What cannot be followed (``import *``,
a name that is nowhere to be found, an import by a computed name, code that is not plain Python) reaches the
whole package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

# What an ``__init__`` may define and still do nothing but pass names on.
PASSED_OVER = {"__all__", "__version__", "__getattr__", "__dir__", "_HOMES"}
EVERY_MODULE_HAS = {"__doc__", "__file__", "__name__", "__path__"}
COMPUTED = {"import_module", "__import__", "exec", "eval", "runpy"}
OTHER_PROCESSES = {"subprocess", "get_ipython"}  # on a page: they may run anything of the package


class CannotTell(Exception):
    """An import that cannot be followed."""


def strip_docstrings(tree: ast.Module) -> ast.Module:
    """Remove the docstrings of a module, its classes and its functions, in place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.body and ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return tree


def imports(tree: ast.Module, folder: str) -> Iterator[tuple[str, str, str]]:
    """List what a file imports: the module, the name in it (or none), and the name it gets here."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, "", alias.asname or alias.name.split(".")[0]
        if isinstance(node, ast.ImportFrom):
            above = ".".join(folder.split(".")[: 1 - node.level or None]) if node.level else ""
            home = ".".join(filter(None, [above, node.module]))
            yield from ((home, alias.name, alias.asname or alias.name) for alias in node.names)


def chains(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """List every ``a.b.c`` of a file as ``("a", ["b", "c"])``, and every plain name with an empty list."""
    inner = set()
    for node in ast.walk(tree):  # the whole of a.b.c comes before its parts
        attributes = []
        while isinstance(node, ast.Attribute) and node not in inner:
            attributes.insert(0, node.attr)
            inner.add(node)
            node = node.value
        if isinstance(node, ast.Name) and node not in inner:
            inner.add(node)
            yield node.id, attributes


def names_in(tree: ast.AST) -> set[str]:
    """Return the names of a file, imported ones too, without what stands behind a dot."""
    imported = {name for node in ast.walk(tree) if isinstance(node, ast.alias) for name in node.name.split(".")}
    return imported | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def defined_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement at the top of a file defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return {target.id for target in targets if isinstance(target, ast.Name)}


class Module:
    """One file of the package, without its docstrings."""

    def __init__(self, name: str, path: Path):
        self.tree = strip_docstrings(ast.parse(path.read_text(encoding="utf8")))
        self.is_folder = path.name == "__init__.py"
        self.folder = name if self.is_folder else name.rpartition(".")[0]

    @cached_property
    def signature(self) -> str:
        """What of the file can matter for a result."""
        return ast.dump(self.tree)

    @cached_property
    def defined(self) -> set[str]:
        """The names that the file itself defines."""
        return {name for statement in self.tree.body for name in defined_by(statement)}

    @cached_property
    def passed_on(self) -> dict[str, tuple[str, str]]:
        """The names that the file imports from elsewhere: ``{name: (module, its name there)}``."""
        found = imports(self.tree, self.folder)
        return {local: (home, name) for home, name, local in found if name}

    @cached_property
    def passes_on_only(self) -> bool:
        """Whether this is an ``__init__`` that only imports names for others."""
        return self.is_folder and all(
            isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass)
            or (isinstance(statement, ast.If) and names_in(statement.test) == {"TYPE_CHECKING"})
            or (defined_by(statement) and defined_by(statement) <= PASSED_OVER)
            for statement in self.tree.body
        )


class Package:
    """The modules of a package by their full names."""

    def __init__(self, folder: Path):
        self.name = folder.name
        self.modules: dict[str, Module] = {}
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            self.modules[name] = Module(name, path)

    def reached_from(self, code: str) -> set[str]:
        """Return the full names of the modules that a piece of code can reach."""
        seen: set[str] = set()
        try:
            page = ast.parse(code)
            if names_in(page) & OTHER_PROCESSES:
                raise CannotTell
            todo = self.used_by(page)
            while todo:
                name = todo.pop()
                seen.add(name)
                todo |= self.used_by_module(name) - seen
        except (SyntaxError, CannotTell):
            return set(self.modules)
        return seen

    @cache  # noqa: B019  (one package a build)
    def used_by_module(self, name: str) -> set[str]:
        """Return the modules that a module uses itself; an ``__init__`` that passes names on uses none."""
        module = self.modules[name]
        return set() if module.passes_on_only else self.used_by(module.tree, module.folder)

    def used_by(self, tree: ast.Module, folder: str = "") -> set[str]:
        """Return the modules that one file uses itself."""
        by_attribute = {attribute for _, attributes in chains(tree) for attribute in attributes}
        if names_in(tree) & COMPUTED or "import_module" in by_attribute:
            raise CannotTell
        used: set[str] = set()
        folders: dict[str, str] = {}  # names in this file that stand for folders
        for home, name, local in imports(tree, folder):
            if name:
                modules, found = self.follow(home, name)
            else:
                known = self.modules.get(home)
                modules = {home} if known and not known.passes_on_only else set()
                found = local if local == self.name else home
            used |= modules
            if found in self.modules and self.modules[found].is_folder:
                folders[local] = found
        for local, attributes in chains(tree):
            if local in folders:
                used |= self.used_through(folders[local], attributes)
        return used

    def used_through(self, folder: str, attributes: list[str]) -> set[str]:
        """Return the modules behind ``folder.a.b``; the whole folder if that is not among its names."""
        whole = {name for name in self.modules if f"{name}.".startswith(f"{folder}.")}
        if not attributes:  # it is handed on
            return whole
        try:
            modules, inner = self.follow(folder, attributes[0])
        except CannotTell:
            return whole
        return modules | self.used_through(inner, attributes[1:]) if inner else modules

    def follow(self, home: str, name: str) -> tuple[set[str], str]:
        """Return the modules that ``home.name`` stands for or comes from, and the folder it is, if it is one."""
        if home.split(".")[0] != self.name:
            return set(), ""
        if home not in self.modules:
            raise CannotTell
        module = self.modules[home]
        own = set() if module.passes_on_only else {home}
        inner = f"{home}.{name}"
        if module.passed_on.get(name, (home, name)) != (home, name):
            modules, folder = self.follow(*module.passed_on[name])
            return own | modules, folder
        if not module.is_folder or name in EVERY_MODULE_HAS:
            return own, ""
        if name in module.defined:
            return {home}, ""
        if inner not in self.modules:
            raise CannotTell
        return (own, inner) if self.modules[inner].is_folder else (own | {inner}, "")
