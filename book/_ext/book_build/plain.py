r"""Turn MyST Markdown into the plain Markdown that any notebook viewer shows.

Statements and admonitions become block quotes with a title, what is folded becomes ``<details>``;
roles become words and links. What a role refers to is asked of a ``resolve`` function.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

OPENING = re.compile(r"^\s*(?P<fence>`{3,}|:{3,}|~{3,})\{(?P<name>[\w:+-]+)\}\s*(?P<argument>.*)$")
VERBATIM = re.compile(r"^\s*(?P<fence>`{3,}|~{3,})")
OPTION = re.compile(r"^\s*:(?P<key>[\w-]+):\s*(?P<value>.*)$")
TARGET = re.compile(r"^\((?P<label>[\w:.-]+)\)=\s*$", re.MULTILINE)
ROLE = re.compile(r"\{(?P<name>[\w:.+-]+)\}(?P<ticks>`+)(?P<target>.+?)(?P=ticks)", re.DOTALL)
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s]+)\)")
DISPLAYED = re.compile(r"\$\$(?P<body>.+?)\$\$(?:[ \t]*\((?P<label>[\w:.-]+)\))?", re.DOTALL)
INLINE = re.compile(r"(?<![\\$])\$(?!\$)[^$]+(?<!\\)\$")

FOLDED = {"dropdown", "solution", "toggle"}
QUOTED = {"admonition", "note", "tip", "hint", "important", "warning", "seealso"}
GENERATED = {"bibliography", "scoreboard", "toctree", "tableofcontents", "take-away"}
CONTAINERS = {"grid", "grid-item", "tab-set", "margin", "sidebar", "div", "card", "grid-item-card"}
NOT_SHOWN = {"index", "exercise-end", "glue:figure"}  # such a picture is among the outputs
PLACE = "*(This part is generated: see the page in the published book.)*"
LIVE = "*(Here the published book has a picture that can be moved with the mouse.)*"


def definitions(macros: dict) -> str:
    """Return MathJax's macros as one formula, which shows nothing and defines them."""
    said = []
    for name, macro in macros.items():
        body, count = (macro, 0) if isinstance(macro, str) else macro
        arguments = "".join(f"#{place}" for place in range(1, count + 1))
        said.append(rf"\def\{name}{arguments}{{{body}}}")
    return f"${''.join(said)}$"


@dataclass
class Converter:
    """Convert Markdown cells.

    ``resolve(role, target)`` returns Markdown for what a role or a link refers to, ``number(label)``
    the number of a labelled theorem, exercise or equation, or an empty string.
    """

    resolve: Callable[[str, str], str] = field(default=lambda role, target: f"`{target}`")
    number: Callable[[str], str] = field(default=lambda label: "")
    exercises: dict[str, str] = field(default_factory=dict)  # by label, those converted so far

    def convert(self, text: str) -> str:
        return re.sub(r"\n{3,}", "\n\n", "\n".join(self._blocks(text.split("\n")))).strip("\n")

    def _blocks(self, lines: list[str]) -> list[str]:
        out: list[str] = []
        prose: list[str] = []
        position = 0
        while position < len(lines):
            line = lines[position]
            opening = OPENING.match(line)
            fence = opening or VERBATIM.match(line)
            if not fence:
                if not line.startswith(("% ", "+++")):
                    prose.append(line)
                position += 1
                continue
            out += [self._prose("\n".join(prose)), ""]
            prose = []
            end = closing(lines, position, fence["fence"])
            if opening:
                out += self._directive(opening, lines[position + 1 : end])
            else:
                out += lines[position : end + 1]
            position = end + 1
        return [*out, self._prose("\n".join(prose))]

    def _directive(self, opening: re.Match, body: list[str]) -> list[str]:
        options, content = split_options(body)
        name, argument = opening["name"], self._prose(opening["argument"].strip())
        label = options.get("label", "")
        if name in NOT_SHOWN or (name == "only" and argument == "html"):
            return []
        if name == "math":
            return ["", self._display("\n" + "\n".join(content) + "\n", label), ""]
        if name in ("figure", "image"):
            caption = self._prose("\n".join(content).strip())
            picture = f"![{options.get('alt', '')}]({argument})"
            return ["", picture, "", *([f"*{caption}*", ""] if caption else [])]
        if name == "live":
            return [LIVE, ""]
        if name in GENERATED:
            return [PLACE, ""]
        inner = self._blocks(content)
        heading = self._heading(name, argument, label)
        if name in FOLDED or "dropdown" in options.get("class", ""):
            if name == "solution":
                heading = f"Solution of {self.exercises.get(argument, argument)}"
            elif name in FOLDED:
                heading = argument or name.capitalize()
            summary = f"<details><summary><b>{heading}</b></summary>"
            return ["", summary, "", *inner, "", "</details>", ""]
        if name in CONTAINERS:
            title = [f"**{argument}**"] if argument and name != "grid" else []  # its are columns
            return ["", *title, "", *inner, ""]
        if name in QUOTED or (name.startswith("prf:") and name != "prf:proof"):
            return ["", *quoted([f"**{heading}.**", "", *inner]), ""]
        if name in ("exercise", "exercise-start"):
            self.exercises[label] = heading
        anchor = [f'<a id="{label}"></a>', ""] if label else []
        return ["", *anchor, f"**{heading}.**", "", *inner, ""]

    def _heading(self, name: str, argument: str, label: str) -> str:
        word = name.split(":")[-1].split("-")[0].capitalize()
        if name == "admonition":
            return argument or "Note"
        words = " ".join(filter(None, [word, self.number(label) if label else ""]))
        return f"{words} ({argument})" if argument else words

    def _prose(self, text: str) -> str:
        text = TARGET.sub(r'<a id="\g<label>"></a>\n', text)
        text = DISPLAYED.sub(lambda m: self._display(m["body"], m["label"] or ""), text)
        text = ROLE.sub(lambda m: self._role(m["name"], m["target"]), text)
        return LINK.sub(self._link, text)

    def _display(self, body: str, label: str) -> str:
        """Return displayed mathematics with its number; several lines are aligned, as by Sphinx."""
        number = self.number(label) if label else ""
        core = body.strip()
        if "\\\\" in core and not re.match(
            r"\\begin\{(align|gather|equation|multline|split)", core
        ):
            core = f"\\begin{{aligned}}\n{core}\n\\end{{aligned}}"
        tag = rf" \tag{{{number}}}" if number else ""
        space = "\n" if "\n" in body or "\n" in core else ""
        return f"$${space}{core}{tag}{space}$$"

    def _role(self, name: str, target: str) -> str:
        if name == "exercise":  # the book's own: an exercise by its name
            return f"[{self.exercises.get(target, target)}](#{target})"
        return f"${target}$" if name == "math" else self.resolve(name, target)

    def _link(self, match: re.Match) -> str:
        target = match["target"]
        if re.match(r"[a-z]+:", target) or target.lstrip("#") in self.exercises:
            return match[0]
        return self.resolve("link", f"{match['text']} <{target}>")


def quoted(lines: list[str]) -> list[str]:
    """Return a block quote; mathematics goes on one line, where ``>`` would be read as a sign."""
    text = "\n".join(lines).strip("\n")
    for pattern in (DISPLAYED, INLINE):
        text = pattern.sub(lambda match: " ".join(match[0].split()), text)
    text = re.sub(r"\n{3,}", "\n\n", text)
    return [f"> {line}".rstrip() for line in text.split("\n")]


def closing(lines: list[str], start: int, fence: str) -> int:
    """Return the index of the line that closes a fence."""
    close = re.compile(rf"^\s*{re.escape(fence[0])}{{{len(fence)},}}\s*$")
    ends = (index for index in range(start + 1, len(lines)) if close.match(lines[index]))
    return next(ends, len(lines))


def split_options(body: list[str]) -> tuple[dict[str, str], list[str]]:
    if body and body[0].strip() == "---":
        end = next(i for i, line in enumerate(body) if i and line.strip() == "---")
        pairs = (line.partition(":") for line in body[1:end])
        return {key.strip(): value.strip() for key, _, value in pairs}, body[end + 1 :]
    options: dict[str, str] = {}
    while body and (match := OPTION.match(body[0])):
        options[match["key"]] = match["value"].strip()
        body = body[1:]
    return options, body
