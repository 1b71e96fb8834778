"""The cells of a page have the form that CONTRIBUTING.md describes."""

import ast
import io
import math
import re
import tokenize
from functools import cache
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.md"))

WIDTH = 76
LINES = {"visible": 15, "check": 25, "figure": 40}
KINDS = {
    (): "visible",
    ("hide-input",): "figure",
    ("remove-input",): "plumbing",
    ("check",): "check",
}
# What a reader of the code need not see.
KEPT_APART = {"glue", "claim", "checked"}
PLUMBING = KEPT_APART | {
    "colours",
    "figure",
    "use_style",
    "plt",
    "fig",
    "ax",
    "axes",
    "panel",
    "panels",
}
MODULES = re.compile(r"myst_nb|matplotlib.*|lipcore\.lab\.(claims|colours|numbers|plotting|tables)")


def kind(cell) -> str | None:
    """Return what kind of cell it is, by its tag."""
    return KINDS.get(tuple(cell.metadata.get("tags", ())))


def names(tree: ast.AST) -> set[str]:
    """Return every name that is read or written."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def imports(tree: ast.AST) -> dict[str, str]:
    """Return the names that are imported, each with its module."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(a.asname or a.name).split(".")[0]: a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: node.module for a in node.names}
    return found


def remarks(code: str) -> list[str]:
    """Return the comments that stand behind code."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return [t.string for t in tokens if t.type == tokenize.COMMENT and t.line[: t.start[1]].strip()]


def calls(tree: ast.AST, function: str) -> list[dict]:
    """Return the literal keyword arguments of every call of a function."""
    return [
        {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == function
    ]


def ends_with(tree: ast.Module, function: str) -> bool:
    """Whether the last statement is a call of a function."""
    last = tree.body[-1] if tree.body else None
    return isinstance(last, ast.Expr) and bool(calls(last, function))


# Methods of axes that return nothing to show.
QUIET = {"grid", "margins", "tick_params", "plain_ticks", "autoscale", "invert_yaxis"}


def shows_a_value(code: str, tree: ast.Module) -> bool:
    """Whether the last line of a figure shows what a method returns beside the figure."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or code.rstrip().endswith(";"):
        return False
    called = getattr(last.value, "func", None)
    return isinstance(called, ast.Attribute) and called.attr not in QUIET


def gate_faults(text: str) -> list[str]:
    """Gates of exercises and solutions that are not closed on the line after their options."""
    gates = re.finditer(r"^(`{3,})\{(?:exercise|solution)-start\}.*\n(?::.*\n)*(.*)\n", text, re.M)
    return [f"not closed: {gate[0].splitlines()[0]}" for gate in gates if gate[2] != gate[1]]


def seen_faults(code: str, tree: ast.Module, apart: set[str]) -> list[str]:
    """Faults of a cell that a reader reads: what should stand elsewhere."""
    modules = {name for name, module in imports(tree).items() if MODULES.fullmatch(module)}
    plumbing = sorted((names(tree) & apart) | modules)
    return [
        *[f"plumbing: {name}" for name in plumbing],
        *[f"a comment behind code: {remark}" for remark in remarks(code)],
    ]


def lower_medians(tree: ast.AST) -> list[str]:
    """Calls of ``.median``, which for a tensor is the lower of two middle values (groups of pandas may)."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "median":
            by = {part.attr for part in ast.walk(node.value) if isinstance(part, ast.Attribute)}
            if getattr(node.value, "id", None) != "np" and "groupby" not in by:
                found.append(f"np.median or .quantile(0.5): {ast.unparse(node)[:60]}")
    return found


def cell_faults(cell) -> list[str]:
    """Faults of one cell."""
    code, tree = cell.source, ast.parse(cell.source)
    lines, most = code.splitlines(), LINES.get(kind(cell), math.inf)
    wide = [line for line in lines if len(line) > WIDTH]
    faults = [f"{len(line)} characters: {line.strip()[:40]}" for line in wide]
    faults += lower_medians(tree)
    if len(lines) > most:
        faults.append(f"{len(lines)} lines, at most {most}")
    match kind(cell):
        case None:
            faults.append(f"tags {cell.metadata.get('tags')}: none, or one of {list(KINDS)[1:]}")
        case "visible":
            faults += seen_faults(code, tree, PLUMBING)
        case "check":
            faults += seen_faults(code, tree, PLUMBING - {"checked"})
            if not ends_with(tree, "checked"):
                faults.append("a check ends with checked(…)")
        case "figure":
            faults += [f"plumbing in a figure: {name}" for name in names(tree) & KEPT_APART]
            if "figure" not in cell.metadata.get("mystnb", {}):
                faults.append("hide-input is for figures: mystnb figure is missing")
            if shows_a_value(code, tree):
                faults.append("a figure whose last line shows a value needs ; there")
    return faults


def opening_faults(cells) -> list[str]:
    """The first cell imports what readers see in use; the second is plumbing, where there is any."""
    first, second, *_ = [*cells, None, None]
    if first is None:
        return []
    seen = (ast.parse(c.source) for c in cells if kind(c) in ("visible", "check"))
    used = set().union(*map(names, seen))
    faults = [] if kind(first) == "visible" else ["the first cell is not visible"]
    for name in imports(ast.parse(first.source)).keys() - used:
        faults.append(f"the first cell imports {name}, which no visible cell uses")
    if any(kind(c) != "visible" for c in cells) and kind(second) != "plumbing":
        faults.append("the second cell is not plumbing")
    return faults


def claim_faults(text: str, cells) -> list[str]:
    """What is proved names its theorem, and a theorem that is named is on the page."""
    labels = set(re.findall(r"\{prf:(?!ref|proof)\w+\}[^\n]*\n:label: *(\S+)", text))
    faults = []
    for claim in (c for cell in cells for c in calls(ast.parse(cell.source), "claim")):
        theorem = claim.get("theorem")
        if theorem is None and claim.get("status") in ("proved", "enclosed"):
            faults.append(f"a claim that is proved names no theorem; there are {sorted(labels)}")
        if theorem is not None and theorem not in labels:
            faults.append(f"{theorem} is no theorem of this page; there are {sorted(labels)}")
    return faults


# What a statement that belongs to no theorem says where something is held against a bound.
BOUND = re.compile(r"bound|below|less than|no \$n\$ points|\\\\le(?!ft)")


def ratio_faults(cells) -> list[str]:
    """A ratio is truth over an upper bound or a lower bound over the truth, and nothing else.

    A fitted exponent, a comparison of means or an error over its tolerance is none. Without a
    theorem the statement itself must name the bound; and no number of the page's own choice, such
    as a tolerance or a factor 0.99, may stand in the ratio (eighths, which bounds have, may).
    """
    calls = [
        (node, {k.arg: k.value for k in node.keywords})
        for cell in cells
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "claim"
    ]
    faults = []
    for call, given in calls:
        if "ratio" not in given:
            continue
        key = ast.unparse(call.args[0])
        if "theorem" not in given and not BOUND.search(ast.unparse(call.args[1])):
            faults.append(f"claim {key} has a ratio, but its statement names no bound")
        faults += [
            f"claim {key} has the number {node.value} of its own choice in its ratio"
            for node in ast.walk(given["ratio"])
            if isinstance(node, ast.Constant)
            and isinstance(node.value, float)
            and not (8 * node.value).is_integer()
        ]
    return faults


def faults_of(text: str) -> list[str]:
    """Return what keeps a page from having the form."""
    notebook = jupytext.reads(text, fmt="md:myst")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    faults = opening_faults(cells) + claim_faults(text, cells) + ratio_faults(cells)
    faults += gate_faults(text)
    for number, cell in enumerate(cells, 1):
        faults += [f"cell {number}: {fault}" for fault in cell_faults(cell)]
    return faults


@cache
def faults(page: str) -> list[str]:
    """Return the faults of a page of the book."""
    return faults_of((ROOT / "notebooks" / f"{page}.md").read_text(encoding="utf8"))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_form(page):
    assert faults(page) == []


GOOD = """---
jupytext: {text_representation: {extension: .md, format_name: myst, format_version: 0.13}}
kernelspec: {display_name: Python 3, language: python, name: python3}
---

# A page

```{code-cell} ipython3
import torch

x = torch.ones(3)
```

```{code-cell} ipython3
:tags: [remove-input]

from lipcore.lab.claims import checked, claim
```

```{prf:theorem} Ones
:label: thm-ones

One is one.
```

```{code-cell} ipython3
:tags: [check]

assert x.sum() == 3
checked("The sum is right.")
```

```{code-cell} ipython3
:tags: [remove-input]

claim("ones", "One.", source="book", status="proved", theorem="thm-ones")
```
"""
SEEN = "x = torch.ones(3)"
PLANTED = {
    "17 lines": (SEEN, SEEN + "\ny = 1" * 14),
    "characters": (SEEN, SEEN + " + torch.zeros(3)" * 5),
    "plumbing: glue": (SEEN, "glue('x', 1)"),
    "plumbing: ax": (SEEN, "ax.plot(1)"),
    "plumbing: power": (SEEN, "from lipcore.lab.numbers import power"),
    "a comment behind code": (SEEN, SEEN + "  # three"),
    "a check ends with checked": ('checked("The sum is right.")', "x"),
    "hide-input is for figures": ("[check]", "[hide-input]"),
    "needs ; there": (
        ':tags: [check]\n\nassert x.sum() == 3\nchecked("The sum is right.")',
        ":tags: [hide-input]\n\nax.set(xlabel='x')",
    ),
    "not closed": ("# A page", "```{solution-start} ex-one\n:class: dropdown\nOne.\n```"),
    "np.median or .quantile(0.5): x.median": (SEEN, SEEN + "\nx.median()"),
    "tags": ("[check]", "[check, remove-input]"),
    "names no theorem": (', theorem="thm-ones"', ""),
    "thm-one is no theorem": ('theorem="thm-ones"', 'theorem="thm-one"'),
    "the first cell is not visible": ("import torch", ":tags: [remove-input]\n\nimport torch"),
    "imports math, which no visible cell uses": ("import torch", "import math\nimport torch"),
    "its statement names no bound": (
        'status="proved", theorem="thm-ones"',
        'status="checked", ratio=x',
    ),
    "the number 0.99 of its own choice": (
        'theorem="thm-ones"',
        'theorem="thm-ones", ratio=0.99 / x',
    ),
    "the second cell is not plumbing": (":tags: [remove-input]\n", ""),
}


def test_a_good_page_passes():
    assert faults_of(GOOD) == []


@pytest.mark.parametrize("message", PLANTED)
def test_a_planted_fault_is_found(message):
    old, new = PLANTED[message]
    assert old in GOOD
    found = faults_of(GOOD.replace(old, new, 1))
    assert any(message in fault for fault in found), found
