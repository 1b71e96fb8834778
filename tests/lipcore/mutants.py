"""Small changes of the functions that bound: a constant by a tenth, a term left out."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import math
import pkgutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, ModuleType

from lab import l2, rivals, rounding
from lipcore import bounds

MODULES = [
    importlib.import_module(f"lipcore.bounds.{module.name}")
    for module in pkgutil.iter_modules(bounds.__path__)
] + [l2, rivals, rounding]
#: Sums of what their arguments are the logarithms of.
_SUMS = ("add", "total", "one_plus")


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the package, or a method of one of its classes."""

    module: ModuleType
    owner: type | None
    name: str

    @property
    def value(self) -> Callable:
        return vars(self.owner or self.module)[self.name]

    @property
    def key(self) -> tuple[str, int]:
        """File and first line, as a code object has them."""
        code = _plain(self.value).__code__
        return code.co_filename, code.co_firstlineno

    def __str__(self) -> str:
        place = self.module.__name__.rpartition(".")[2]
        return ".".join([place, *([self.owner.__name__] if self.owner else []), self.name])

    @cached_property
    def tree(self) -> ast.FunctionDef:
        return ast.parse(textwrap.dedent(inspect.getsource(_plain(self.value)))).body[0]

    def changed(self, tree: ast.FunctionDef) -> Callable:
        """The function that this tree defines, where the function stands."""
        found: dict[str, Callable] = {}
        module = ast.fix_missing_locations(ast.Module([tree], []))
        exec(compile(module, self.module.__file__, "exec"), vars(self.module), found)
        return found[self.name]


@dataclass(frozen=True, eq=False)
class Mutant:
    """A function with one change: ``site`` is what is changed, ``change`` how."""

    function: Function
    site: str
    change: str
    tree: ast.FunctionDef

    def __str__(self) -> str:
        return f"{self.function}: {self.change} in `{self.site}`"

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The package with this change, in every module that has the function's name."""
        function = self.function
        true = function.value
        new = function.changed(copy.deepcopy(self.tree))
        places = [function.owner] if function.owner else [*MODULES, bounds]
        places = [place for place in places if vars(place).get(function.name) is true]
        for place in places:
            setattr(place, function.name, new)
        try:
            forget()
            yield
        finally:
            for place in places:
                setattr(place, function.name, true)
            forget()


def functions() -> list[Function]:
    """Every function and method written in ``lipcore.bounds``."""
    found = []
    for module in MODULES:
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module.__name__:
                continue
            if isinstance(value, type):
                methods = [
                    method
                    for method, body in vars(value).items()
                    if isinstance(_plain(body), FunctionType)
                    and _plain(body).__code__.co_filename == module.__file__
                ]
                found += [Function(module, value, method) for method in methods]
            elif isinstance(_plain(value), FunctionType):
                found.append(Function(module, None, name))
    return found


def forget() -> None:
    """Empty what functions have remembered."""
    for module in MODULES:
        for value in vars(module).values():
            getattr(value, "cache_clear", lambda: None)()


def reached(call: Callable[[], object]) -> set[tuple[str, int]]:
    """The keys of all functions that a call runs through."""
    forget()
    seen = set()

    def note(frame, event, argument) -> None:
        seen.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    sys.settrace(note)
    try:
        call()
    finally:
        sys.settrace(None)
    return seen


def mutants(function: Function) -> Iterator[Mutant]:
    """Each number of the body × 0.9 and ÷ 0.9, and each sum without each of its terms."""
    tree = function.tree
    for number, node in enumerate(_nodes(tree)):
        for change, replace in _changes(node):
            changed = copy.deepcopy(tree)
            replace(_nodes(changed)[number])
            yield Mutant(function, ast.unparse(node), change, changed)


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], None]]]:
    if isinstance(node, ast.Constant):
        for label, factor in (("× 0.9", 0.9), ("÷ 0.9", 1 / 0.9)):
            yield label, lambda n, f=factor: setattr(n, "value", n.value * f)
    elif isinstance(node, ast.BinOp):
        for side in ("left", "right"):
            yield f"without {ast.unparse(getattr(node, side))}", lambda n, s=side: _drop(n, s)
    elif isinstance(node, ast.AugAssign):
        yield f"without {ast.unparse(node.value)}", lambda n: _drop(n, "value")
    elif _name(node) == "one_plus":
        yield "without 1", _product_alone
        yield "without the product", lambda n: setattr(n, "args", [ast.Constant(-math.inf)])
    else:
        zero = ast.Constant(-math.inf) if _name(node) in _SUMS else None
        for i, term in enumerate(_terms(node)):
            yield f"without {ast.unparse(term)}", lambda n, i=i: _erase(_terms(n), i, zero)


def _drop(node: ast.AST, side: str) -> None:
    """Zero times an operand, so that shapes stay."""
    setattr(node, side, ast.BinOp(ast.Constant(0), ast.Mult(), getattr(node, side)))


def _product_alone(node: ast.Call) -> None:
    node.func.id = "sum"
    node.args = [ast.Tuple(node.args, ast.Load())]


def _erase(terms: list[ast.expr], i: int, zero: ast.expr | None) -> None:
    terms[i] = zero or ast.BinOp(ast.Constant(0), ast.Mult(), terms[i])


def _terms(node: ast.Call) -> list[ast.expr]:
    """The terms of a sum: arguments, or the entries of the one list."""
    listed = len(node.args) == 1 and isinstance(node.args[0], ast.List)
    return node.args[0].elts if listed else node.args


def _name(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def _nodes(tree: ast.FunctionDef) -> list[ast.AST]:
    """What may be changed in a function's body, without places in a table and keywords of shape."""
    found = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Constant):
            if type(node.value) in (int, float) and node.value != 0:
                found.append(node)
            return
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
            found.append(node)
        if isinstance(node, ast.Call) and _name(node) in (*_SUMS, "stack"):
            found.append(node)
        for field, child in ast.iter_fields(node):
            if isinstance(node, ast.Subscript) and field == "slice":
                continue
            for part in child if isinstance(child, list) else [child]:
                if isinstance(part, ast.AST) and not isinstance(part, ast.arguments):
                    visit(part)

    for statement in tree.body:
        visit(statement)
    return found


def _plain(value: object) -> object:
    """The function itself, under a cache, a property or a class method."""
    value = value.fget if isinstance(value, property) else value
    value = getattr(value, "__func__", value)
    return inspect.unwrap(value) if callable(value) else value
