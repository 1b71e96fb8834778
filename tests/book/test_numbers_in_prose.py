"""A number behind "at most" is rounded up, and one behind "at least" down: no sentence is false in its last digit."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    path.stem: path for path in [*(ROOT / "notebooks").glob("*.md"), *(ROOT / "book").glob("*.md")]
}

WRITERS = {"decimal", "percent", "power"}
# What stands directly before a limit, and the side to which it is rounded. A negation turns the second kind.
LIMITS = {
    "up": re.compile(r"\b(?:at most|up to|within|no further than|get(?:s|ting)? past)$"),
    "down": re.compile(r"\bat least$"),
}
COMPARED = {
    "down": re.compile(r"\b(?:(?:more|wider|larger|longer|higher|greater) than|above|exceeds?)$"),
    "up": re.compile(r"\b(?:(?:less|fewer|smaller|shorter|lower) than|below)$"),
}
OTHER = {"up": "down", "down": "up"}
NEGATION = re.compile(r"\b(?:no|none|never|not|nor|nothing|nowhere|neither)\b", re.IGNORECASE)
AGREEMENT = re.compile(
    r"\b(?:agrees?|the same)\b[^.;]* to$|\b(?:holds|right) to$|\brelative error of$", re.IGNORECASE
)
# What may stand between.
FILLING = re.compile(r"\s(?:a factor of|a relative error of|the constant|only)$")
# What stands directly behind a limit.
BEHIND = {
    "up": re.compile(r"[\s\w]{0,40}\sat most\s*[.,;:(]|\sor less\b"),
    "down": re.compile(r"(?:\s\w+)?\sor more\b"),
}
CELL = re.compile(r"^```\{code-cell\}.*\n(?P<code>(?:.*\n)*?)```$", re.MULTILINE)
OPTIONS = re.compile(r"\A---\n(?:.*\n)*?---\n|^:[\w-]+:.*$", re.MULTILINE)
GLUED = r"\{glue:text\}`(?P<%s>[^`]*)`"
# The ends of a range: said to be, or named so.
RANGES = (
    re.compile(
        r"\b(?:lies?|stays?|vary|varies|exponents?|slopes)\sbetween\s"
        + GLUED % "low"
        + r"\sand\s"
        + GLUED % "high"
    ),
    re.compile(
        r"\{glue:text\}`(?P<low>(?P<name>[^`]*)low(?:_\w+)?(?::[^`]*)?)`[^`.]{0,20}"
        r"\{glue:text\}`(?P<high>(?P=name)high(?:_\w+)?(?::[^`]*)?)`"
    ),
)

SETTING = "a setting, exact as it is written"
EXCEPTIONS = {
    "images_and_speech": {"images-allowed": SETTING, "images-allowed-most": SETTING},
    "in_training": {"training-accuracy": SETTING},
    "why_it_grows": {"19-slack": SETTING},
}


def side_of(before: str, after: str = "") -> str | None:
    """Return the side to which a number is rounded that stands between these words, if it is a limit."""
    words = FILLING.sub("", " ".join(before.split()))
    sentence = re.split(r"[.:;]\s", words)[-1]
    for side, pattern in LIMITS.items():
        if pattern.search(sentence):
            return side
    for side, pattern in COMPARED.items():
        if pattern.search(sentence):
            return OTHER[side] if NEGATION.search(sentence) else side
    for side, pattern in BEHIND.items():
        if pattern.match(after.partition("▯")[0]):
            return side
    return None


def glued_limits(prose: str) -> dict[str, str]:
    """Return the key of every glued number that is a limit, with its side."""
    found = {}
    for match in re.finditer(GLUED % "key", prose):
        start = prose.rfind("\n\n", 0, match.start()) + 1
        behind = re.sub(GLUED % "next", "▯", prose[match.end() :].split("\n\n")[0])
        side = side_of(prose[start : match.start()], behind)
        if side:
            found[match["key"]] = side
    for match in (match for pattern in RANGES for match in pattern.finditer(prose)):
        found |= {match["low"]: "down", match["high"]: "up"}
    return found


def name_of(node: ast.AST) -> str | None:
    """Return the name of the function that is called."""
    return getattr(node.func, "id", None) if isinstance(node, ast.Call) else None


def glued_as(key: str, cells: list[ast.Module]) -> list[ast.expr]:
    """Return what a page may have glued under a key, as expressions."""
    found, framed = [], []
    for cell in cells:
        nodes = list(ast.walk(cell))
        assigned = {
            node.targets[0].id: node.value
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        frames = {("", "")}
        for call in (node for node in nodes if name_of(node) == "glue"):
            named, value = call.args[:2]
            if isinstance(named, ast.JoinedStr):
                ends = [
                    part.value if isinstance(part, ast.Constant) else None for part in named.values
                ]
                frames.add((ends[0] or "", (ends[-1] or "") if len(ends) > 1 else ""))
                pattern = "".join(".*" if end is None else re.escape(end) for end in ends)
                fits = re.fullmatch(pattern, key)
            else:
                fits = isinstance(named, ast.Constant) and named.value == key
            value = assigned.get(value.id) if isinstance(value, ast.Name) else value
            if fits and value is not None:
                (framed if isinstance(named, ast.JoinedStr) else found).append(value)
        for node in nodes:
            for item, value in (
                zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
            ):
                if (
                    isinstance(item, ast.Constant)
                    and any(key == first + str(item.value) + last for first, last in frames)
                    and not isinstance(value, ast.Name)
                ):  # such is written where it is glued
                    found.append(value)
    return found or framed


def state(value: ast.expr, side: str) -> str:
    """Return whether an expression is rounded to a side, is a whole number anyway, or is wrong."""
    called = name_of(value)
    if called in WRITERS:
        given = {k.arg: getattr(k.value, "value", None) for k in value.keywords}
        if all(isinstance(argument, ast.Constant) for argument in value.args):
            return "exact"
        return "rounded" if given.get("rounding") == side else "wrong"
    if called == "count":
        return "wrong" if any(name_of(node) == "round" for node in ast.walk(value)) else "exact"
    rounded = {"up": "ceil", "down": "floor"}[side]
    used = {node.attr for node in ast.walk(value) if isinstance(node, ast.Attribute)}
    return "exact" if rounded in used else "wrong"


def parts_of(node: ast.expr) -> list[str | ast.expr]:
    """Return what a sentence is put together from: words and expressions."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return parts_of(node.left) + parts_of(node.right)
    if isinstance(node, ast.JoinedStr):
        return [part for value in node.values for part in parts_of(value)]
    if isinstance(node, ast.FormattedValue) and node.format_spec is None:
        return [node.value]
    return (
        [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else [node]
    )


def said_limits(cells: list[ast.Module]) -> list[tuple[str, str]]:
    """Return every limit in the sentences of checks and claims, with the state of its expression."""
    found = []
    calls = (
        node for cell in cells for node in ast.walk(cell) if name_of(node) in ("checked", "claim")
    )
    for sentence in (a for call in calls for a in [*call.args, *(k.value for k in call.keywords)]):
        parts = parts_of(sentence)
        for place, part in enumerate(parts):
            before = "".join(p if isinstance(p, str) else "▯" for p in parts[:place])
            after = "".join(p if isinstance(p, str) else "▯" for p in parts[place + 1 :])
            written = name_of(part) in WRITERS
            shortened = isinstance(part, ast.FormattedValue) and any(
                str(form.value).endswith(("f", "e", "g", "%")) for form in part.format_spec.values
            )
            if not (written or shortened):
                continue
            side = side_of(before, after)
            if side is None and AGREEMENT.search(before.rstrip()):
                side = "up"
            if side:
                found.append((before[-50:], state(part, side) if written else "wrong"))
    return found


@cache
def read(text: str) -> tuple[str, list[ast.Module]]:
    """Return the prose of a page and its code cells."""
    prose = CELL.sub("\n", text)
    code = [OPTIONS.sub("", match["code"]) for match in CELL.finditer(text)]
    return prose, [ast.parse(source) for source in code]


def states(page: str, change=lambda text: text) -> list[tuple[str, str]]:
    """Return every limit that a page states, with the state of its expression, after a change of pages."""
    prose, cells = read(change(PAGES[page].read_text(encoding="utf8")))
    found = said_limits(cells)
    for role, side in glued_limits(prose).items():
        home, _, key = re.sub(r":[,.\w]+$", "", role).rpartition("::")
        stem = Path(home).stem if home else page
        if key in EXCEPTIONS.get(stem, {}):
            continue
        values = glued_as(key, read(change(PAGES[stem].read_text(encoding="utf8")))[1])
        judged = {state(value, side) for value in values}
        best = next((word for word in ("rounded", "exact") if word in judged), "wrong")
        found.append((key, best))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_limit_is_rounded_to_its_side(page):
    assert [what for what, how in states(page) if how == "wrong"] == []


def test_no_exception_is_left_over():
    for page, keys in EXCEPTIONS.items():
        prose, _ = read(PAGES[page].read_text(encoding="utf8"))
        assert set(keys) <= set(glued_limits(prose)), page


@pytest.fixture(scope="module")
def everywhere():
    """Every limit of the book with its state, as the pages stand and without their roundings."""
    as_it_is, without = [], []
    for page in PAGES:
        as_it_is += states(page)
        without += states(page, lambda text: re.sub(r""",\s+rounding=["']\w+["']""", "", text))
    return as_it_is, without


def test_each_of_the_many_limits_turns_red_without_its_rounding(everywhere):
    as_it_is, without = everywhere
    assert sum(how == "rounded" for _, how in as_it_is) > 150
    assert len(as_it_is) == len(without)
    for (what, how), (_, then) in zip(as_it_is, without, strict=True):
        assert then == ("wrong" if how == "rounded" else how), what


def test_the_other_side_is_red():
    sides = {"up": "down", "down": "up"}
    turned = re.compile(r"(?<=rounding=\")(?:up|down)(?=\")")
    found = states("lower_bound", lambda text: turned.sub(lambda m: sides[m[0]], text))
    assert [how for _, how in found].count("wrong") >= 2


@pytest.mark.parametrize(
    ("before", "after", "side"),
    [
        ("It gives at least", " of it.", "down"),
        ("It is at most", " here.", "up"),
        ("It changes by a factor of at most", ".", "up"),
        ("A factor of up to", ".", "up"),
        ("It reaches more than", " of it.", "down"),
        ("None of the layers has a slope above", ".", "up"),
        ("No exponent moves by more than", ".", "up"),
        ("It is never less than", " of it.", "down"),
        ("It is nowhere below", ".", "down"),
        ("None is red. The slope is above", ".", "down"),
        ("They hold up to a relative error of", ".", "up"),
        ("They give it", " of their attention at most.", "up"),
        ("It is off by", " on average, and at most twice that.", None),
        ("It divides by", " or more.", "down"),
        ("It takes", " times as long, at most", None),
        ("On average it is about", " times as long.", None),
        ("It rises from one to", " at the end.", None),
    ],
)
def test_the_words_around_a_number_tell_its_side(before, after, side):
    assert side_of(before, after) == side


@pytest.mark.parametrize(
    ("prose", "ends"),
    [
        ("It is {glue:text}`a-low` to {glue:text}`a-high` times that.", ("a-low", "a-high")),
        (
            "It runs from {glue:text}`a_low_8:s` to {glue:text}`a_high_8:s`.",
            ("a_low_8:s", "a_high_8:s"),
        ),
        ("It lies between {glue:text}`first` and {glue:text}`last`.", ("first", "last")),
        ("It rises from {glue:text}`first` to {glue:text}`last`.", ()),
        ("It is {glue:text}`a-low` here. There it is {glue:text}`a-high`.", ()),
    ],
)
def test_the_ends_of_a_range_are_found(prose, ends):
    assert glued_limits(prose) == ({} if not ends else {ends[0]: "down", ends[1]: "up"})


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('checked("It is at most " + decimal(x) + ".")', ["wrong"]),
        ('checked("It is at most " + decimal(x, rounding="up") + ".")', ["rounded"]),
        ('checked("It is at most " + decimal(x, rounding="down") + ".")', ["wrong"]),
        ('checked(f"It is at least {percent(x)} of it.")', ["wrong"]),
        ("checked(f\"It is at least {percent(x, rounding='down')} of it.\")", ["rounded"]),
        ('checked(f"It is {x:.2f} at most.")', ["wrong"]),
        ('checked(f"In {n:,} cases it is at most " + power(x) + ".")', ["wrong"]),
        ('checked("The two agree to " + power(x) + ".")', ["wrong"]),
        ('claim("key", "On ten texts at least " + decimal(x) + ".")', ["wrong"]),
        ('checked("It is " + decimal(x) + " on average.")', []),
    ],
)
def test_a_sentence_of_a_cell_is_read(code, found):
    assert [how for _, how in said_limits([ast.parse(code)])] == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('glue("a-b", decimal(x, rounding="up"))', ["rounded"]),
        ('glue("a-b", decimal(x))', ["wrong"]),
        ('words = decimal(x)\nglue("a-b", words)', ["wrong"]),
        ('for k, v in {"a-b": power(x)}.items():\n    glue(k, v)', ["wrong"]),
        ('for k, v in {"b": power(x, rounding="up")}.items():\n    glue(f"a-{k}", v)', ["rounded"]),
        ('glue("a-b", count(round(x)))', ["wrong"]),
        ('glue("a-b", count(len(x)))', ["exact"]),
        ('glue("a-b", math.ceil(10 * x) / 10)', ["exact"]),
        ('glue("a-b", math.floor(10 * x) / 10)', ["wrong"]),
        ('glue("other", decimal(x))', []),
    ],
)
def test_what_is_glued_under_a_key_is_found(code, found):
    values = glued_as("a-b", [ast.parse(code)])
    assert [state(value, "up") for value in values if not isinstance(value, ast.Name)] == found
