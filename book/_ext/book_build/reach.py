"""Which modules of our packages a page can reach, read from its imports without running anything.

A page reaches the modules that it imports, and those that these import, wherever in a file the import stands.
A name imported from a folder is followed through its ``__init__`` to the module that defines it, so that
``from lipcore.bounds import general_upper`` does not reach every bound. What cannot be followed (``import *``,
a name that is nowhere to be found, an import by a computed name, code that is not plain Python) reaches the
whole of them.
"""

from __future__ import annotations

import ast
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


class Uses:
    """What a file imports and which names it uses."""

    def __init__(self, tree: ast.Module, folder: str = ""):
        self.imports: list[tuple[str, str, str]] = []  # (module, name in it or "", name here)
        self.chains: list[tuple[str, list[str]]] = []  # ("a", ["b", "c"]) for a.b.c
        self.names: set[str] = set()  # what stands in the file, imported or used
        inner: set[ast.AST] = set()
        for node in ast.walk(tree):  # the whole of a.b.c comes before its parts
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._add_import(node, folder)
            elif isinstance(node, ast.Attribute | ast.Name) and node not in inner:
                attributes: list[str] = []
                while isinstance(node, ast.Attribute):
                    attributes.insert(0, node.attr)
                    node = node.value
                    inner.add(node)
                if isinstance(node, ast.Name):
                    self.chains.append((node.id, attributes))
                    self.names.add(node.id)

    def _add_import(self, node: ast.Import | ast.ImportFrom, folder: str) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                self.imports.append((alias.name, "", local))
                self.names |= set(alias.name.split("."))
            return
        above = ".".join(folder.split(".")[: 1 - node.level or None]) if node.level else ""
        home = ".".join(filter(None, [above, node.module]))
        for alias in node.names:
            self.imports.append((home, alias.name, alias.asname or alias.name))
            self.names.add(alias.name)

    @property
    def computed(self) -> bool:
        """Whether something may be imported or run by a name that is computed."""
        by_attribute = any("import_module" in attributes for _, attributes in self.chains)
        return by_attribute or bool(self.names & COMPUTED)


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
    def uses(self) -> Uses:
        """What the file imports and which names it uses."""
        return Uses(self.tree, self.folder)

    @cached_property
    def signature(self) -> str:
        """What of the file can affect a result."""
        return ast.dump(self.tree)

    @cached_property
    def defined(self) -> set[str]:
        """The names that the file itself defines."""
        return {name for statement in self.tree.body for name in defined_by(statement)}

    @cached_property
    def passed_on(self) -> dict[str, tuple[str, str]]:
        """The names that the file imports from elsewhere: ``{name: (module, its name there)}``."""
        return {local: (home, name) for home, name, local in self.uses.imports if name}

    @cached_property
    def passes_on_only(self) -> bool:
        """Whether this is an ``__init__`` that only imports names for others."""
        return self.is_folder and all(
            isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass)
            or (isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING")
            or (defined_by(statement) and defined_by(statement) <= PASSED_OVER)
            for statement in self.tree.body
        )


class Package:
    """The modules of one package, or of several, by their full names."""

    def __init__(self, *folders: Path):
        self.names = {folder.name for folder in folders}
        self.modules: dict[str, Module] = {}
        for folder in folders:
            for path in sorted(folder.rglob("*.py")):
                parts = path.relative_to(folder.parent).with_suffix("").parts
                name = ".".join(parts).removesuffix(".__init__")
                self.modules[name] = Module(name, path)

    def reached_from(self, code: str) -> set[str]:
        """Return the full names of the modules that a piece of code can reach."""
        seen: set[str] = set()
        try:
            page = Uses(ast.parse(code))
            if page.names & OTHER_PROCESSES:
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
        return set() if module.passes_on_only else self.used_by(module.uses)

    def used_by(self, uses: Uses) -> set[str]:
        """Return the modules behind what one file imports, a module or a page."""
        if uses.computed:
            raise CannotTell
        used: set[str] = set()
        folders: dict[str, str] = {}  # names in this file that stand for folders
        for home, name, local in uses.imports:
            if name:
                modules, found = self.follow(home, name)
            else:
                known = self.modules.get(home)
                modules = {home} if known and not known.passes_on_only else set()
                found = local if local in self.names else home
            used |= modules
            if found in self.modules and self.modules[found].is_folder:
                folders[local] = found
        for local, attributes in uses.chains:
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
        if home.split(".")[0] not in self.names:
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
