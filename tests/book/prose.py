"""Find numbers in prose that look measured, and that no cell has computed.

A number that a page states comes from its execution: it is glued. What stands in mathematics, code, citations,
links and references is something else. The rest is read here, with captions and descriptions of pictures.
"""

from __future__ import annotations

import re

WORDS = "two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|fifty|hundreds?|thousands?|millions?"
MEASURED = re.compile(
    rf"""
      (?<![\w.,/:-])(?<!Python\s)(?<!Section\s)\d[\d,]*\.\d+(?![\w.]*\w)   # 0.87, 12.5: a decimal
    | (?<![\w.,/-])\d[\d,.]*\s*(?:%|per\s+cent|percent\b)       # 40 %
    | (?<![\w.,/-])\d[\d,.]*(?:\s+|-)(?:times|fold)\b           # 12 times, 3-fold
    | (?<![\w.,/-])\d[\d,.]*\s+(?:seconds?|minutes?|ms|s)\b     # 23 seconds
    | \b(?:{WORDS})(?:\s+of)?\s+times\s+(?:\w+er|more|less|as|above|below)\b   # three times larger
    | \b(?:{WORDS})\s+(?:per\s+cent|percent)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)
FENCE = re.compile(r"^(?P<fence>`{3,}|:{3,}|~{3,})(?P<info>.*)$")
CODE = re.compile(r"^\{(?:code-cell|code-block|code|eval-rst|math|bibliography)\}|^\w")
MATHS = re.compile(r"\$\$.*?\$\$|(?<![\\$])\$(?!\$).*?(?<!\\)\$", re.DOTALL)
ROLE = re.compile(r"\{[\w:.+-]+\}(`+).*?\1", re.DOTALL)
INLINE = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n\n).)*?(?<!`)\1(?!`)", re.DOTALL)
TARGET = re.compile(r"\]\([^)]*\)|<https?://[^>]*>|https?://\S+")
DESCRIBED = re.compile(r"^\s*(?:caption|alt):\s*(?P<text>.*)$")


def blank(match: re.Match) -> str:
    """Replace by as many lines, so that line numbers stay."""
    return " ▯ " + "\n" * match[0].count("\n")


def descriptions(cell: list[str]) -> list[str]:
    """Keep of a code cell's options the caption and the description, on their lines."""
    out, kept, indent = [], False, 0
    inside = bool(cell) and cell[0].strip() == "---"
    for position, line in enumerate(cell):
        if not inside or (position and line.strip() == "---"):
            inside = False
            out.append("")
            continue
        depth = len(line) - len(line.lstrip())
        found = DESCRIBED.match(line)
        if found:
            kept, indent = True, depth
            out.append(found["text"].strip("|>- "))
        else:
            kept = kept and (depth > indent or not line.strip())
            out.append(line if kept else "")
    return out


def prose(text: str) -> str:
    """Return what of a MyST page is prose, every line where it was."""
    lines = text.split("\n")
    out: list[str] = []
    position = 0
    if lines and lines[0] == "---":
        position = lines.index("---", 1) + 1
        out += [""] * position
    while position < len(lines):
        fence = FENCE.match(lines[position].strip())
        if fence and CODE.match(fence["info"].strip()):
            end = position + 1
            close = re.compile(rf"^\s*{re.escape(fence['fence'])}\s*$")
            while end < len(lines) and not close.match(lines[end]):
                end += 1
            cell = lines[position + 1 : end]
            out += (
                ["", *descriptions(cell), ""]
                if "code-cell" in fence["info"]
                else [""] * (end - position + 1)
            )
            position = end + 1
            continue
        option = re.match(r"^\s*:[\w-]+:", lines[position])
        words = (
            re.sub(r"^\{[^}]*\}", "", fence["info"].strip()) if fence else lines[position]
        )  # a directive's title
        out.append("" if option else words)
        position += 1
    joined = "\n".join(out)
    for pattern in (ROLE, INLINE, MATHS, TARGET):
        joined = pattern.sub(blank, joined)
    return joined


def typed_numbers(text: str) -> list[tuple[int, str]]:
    """Return the line and the words of every number that looks measured and stands as typed."""
    read = prose(text)
    return [
        (read.count("\n", 0, m.start()) + 1, " ".join(m[0].split()))
        for m in MEASURED.finditer(read)
    ]
