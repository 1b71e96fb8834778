r"""Turn MyST Markdown into the plain Markdown that any notebook viewer shows.

Statements and admonitions become block quotes with a title, what is folded becomes ``<details>``; roles become
words and links; the book's TeX macros are written out. What a role refers to is asked of a ``resolve`` function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

OPENING = re.compile(
    r"^(?P<indent>\s*)(?P<fence>`{3,}|:{3,}|~{3,})\{(?P<name>[\w:+-]+)\}\s*(?P<argument>.*)$"
)
VERBATIM = re.compile(r"^\s*(?P<fence>`{3,}|~{3,})")
OPTION = re.compile(r"^\s*:(?P<key>[\w-]+):\s*(?P<value>.*)$")
TARGET = re.compile(r"^\((?P<label>[\w:.-]+)\)=\s*$")
ROLE = re.compile(r"\{(?P<name>[\w:.+-]+)\}(?P<ticks>`+)(?P<target>.+?)(?P=ticks)", re.DOTALL)
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s]+)\)")
LABELLED = re.compile(r"\$\$[ \t]*\((?P<label>[\w:.-]+)\)[ \t]*$", re.MULTILINE)
DISPLAYED = re.compile(r"\$\$(?P<body>.+?)\$\$", re.DOTALL)
COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)

INLINE = re.compile(r"(?<![\\$])\$(?!\$)[^$]+(?<!\\)\$")

FOLDED = {"dropdown", "solution", "toggle"}
QUOTED = {"admonition", "note", "tip", "hint", "important", "warning", "seealso"}
GENERATED = {
    "bibliography",
    "scoreboard",
    "dependencies",
    "versions-table",
    "nb-exec-table",
    "toctree",
    "tableofcontents",
    "take-away",
}
CONTAINERS = {"grid", "grid-item", "tab-set", "margin", "sidebar", "div", "card", "grid-item-card"}

Resolve = Callable[[str, str], str]


@dataclass
class Converter:
    """Convert Markdown cells; ``macros`` as in MathJax's configuration.

    ``resolve(role, target)`` returns Markdown for what a role or a link refers to, ``number(label)``
    the number of a labelled theorem, exercise or equation, or an empty string.
    """

    resolve: Resolve = field(default=lambda role, target: f"`{target}`")
    number: Callable[[str], str] = field(default=lambda label: "")
    macros: dict = field(default_factory=dict)
    exercises: dict[str, str] = field(default_factory=dict)  # by label, those converted so far

    def convert(self, text: str) -> str:
        """Return plain Markdown for a whole cell."""
        return re.sub(r"\n{3,}", "\n\n", "\n".join(self._blocks(text.split("\n")))).strip("\n")

    def _blocks(self, lines: list[str]) -> list[str]:
        out: list[str] = []
        prose: list[str] = []
        position = 0

        def flush() -> None:
            if prose:
                out.extend(self._prose("\n".join(prose)).split("\n"))
                prose.clear()

        while position < len(lines):
            line = lines[position]
            opening = OPENING.match(line)
            verbatim = None if opening else VERBATIM.match(line)
            if opening or verbatim:
                flush()
                end = _closing(lines, position, (opening or verbatim)["fence"])
                if opening:
                    out.extend(self._directive(opening, lines[position + 1 : end]))
                else:
                    out.extend(lines[position : end + 1])
                position = end + 1
                continue
            if not line.startswith(("% ", "+++")):
                prose.append(line)
            position += 1
        flush()
        return out

    def _directive(self, opening: re.Match, body: list[str]) -> list[str]:
        options, content = _options(body)
        name, argument = opening["name"], self._prose(opening["argument"].strip())
        if name in ("index", "exercise-end") or (name == "only" and argument == "html"):
            return []
        if name == "math":
            return self._display("\n".join(content), options.get("label", ""))
        if name in ("figure", "image"):
            return self._figure(opening["argument"].strip(), options, content)
        if name == "live":
            return [
                "*(Here the published book has a picture that can be moved with the mouse.)*",
                "",
            ]
        if name == "glue:figure":  # the picture is among the outputs
            return [""]
        if name in GENERATED:
            return ["*(This part is generated: see the page in the published book.)*", ""]
        inner = self._blocks(content)
        label = options.get("label", "")
        heading = self._heading(name, argument, label)
        if name in FOLDED or "dropdown" in options.get("class", ""):
            if name == "solution":
                summary = f"Solution of {self.exercises.get(argument, argument)}"
            else:
                summary = (argument or name.capitalize()) if name in FOLDED else heading
            return [
                "",
                f"<details><summary><b>{summary}</b></summary>",
                "",
                *inner,
                "",
                "</details>",
                "",
            ]
        if name in CONTAINERS:
            title = [] if name == "grid" else [argument]  # of a grid, its columns
            return ["", *(f"**{words}**\n" for words in filter(None, title)), *inner, ""]
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

    def _figure(self, source: str, options: dict, content: list[str]) -> list[str]:
        caption = self._prose("\n".join(content).strip())
        picture = f"![{options.get('alt', '')}]({source})"
        return ["", picture, "", *([f"*{caption}*", ""] if caption else [])]

    def _display(self, body: str, label: str) -> list[str]:
        tag = rf" \tag{{{self.number(label)}}}" if label and self.number(label) else ""
        return ["", "$$", aligned(self.expand(body.strip())) + tag, "$$", ""]

    def _prose(self, text: str) -> str:
        text = "\n".join(_anchor(line) for line in text.split("\n"))
        text = LABELLED.sub(lambda m: self._tag(m["label"]), text)
        text = DISPLAYED.sub(lambda m: f"$${_aligned_block(m['body'])}$$", text)
        text = ROLE.sub(lambda m: self._role(m["name"], m["target"]), text)
        text = LINK.sub(self._link, text)
        return self.expand(text)

    def _tag(self, label: str) -> str:
        number = self.number(label)
        return rf"\tag{{{number}}}$$" if number else "$$"

    def _role(self, name: str, target: str) -> str:
        if name == "exercise":  # the book's own: an exercise by its name
            return f"[{self.exercises.get(target, target)}](#{target})"
        return f"${target}$" if name == "math" else self.resolve(name, target)

    def _link(self, match: re.Match) -> str:
        target = match["target"]
        if re.match(r"[a-z]+:", target) or target.lstrip("#") in self.exercises:
            return match[0]
        return self.resolve("link", f"{match['text']} <{target}>")

    def expand(self, text: str) -> str:
        """Write out the macros, those inside macros too."""
        for _ in range(4):  # macros may use macros
            expanded = self._expand_once(text)
            if expanded == text:
                return text
            text = expanded
        return text

    def _expand_once(self, text: str) -> str:
        out, position = [], 0
        while match := COMMAND.search(text, position):
            out.append(text[position : match.start()])
            macro = self.macros.get(match[1])
            position = match.end()
            if macro is None:
                out.append(match[0])
                continue
            body, count = (macro, 0) if isinstance(macro, str) else (macro[0], macro[1])
            arguments = []
            for _ in range(count):
                argument, position = _argument(text, position)
                arguments.append(argument)
            for index, argument in enumerate(arguments, 1):
                body = body.replace(f"#{index}", argument)
            joined = body[-1:].isalpha() and text[position : position + 1].isalpha()
            out.append(body + (" " if joined else ""))
        return "".join(out) + text[position:]


def quoted(lines: list[str]) -> list[str]:
    """Return a block quote; mathematics goes on one line, or viewers read the ``>`` as a sign of it."""
    text = "\n".join(lines).strip("\n")
    for pattern in (DISPLAYED, INLINE):
        text = pattern.sub(lambda match: " ".join(match[0].split()), text)
    text = re.sub(r"\n{3,}", "\n\n", text)
    return [f"> {line}".rstrip() for line in text.split("\n")]


def aligned(body: str) -> str:
    """Wrap several lines of mathematics in an environment, as Sphinx does."""
    if "\\\\" in body and not re.match(r"\\begin\{(align|gather|equation|multline|split)", body):
        return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"
    return body


def _aligned_block(body: str) -> str:
    tag = re.search(r"\\tag\{[^}]*\}\s*$", body)
    core = body[: tag.start()] if tag else body
    lines = core.strip("\n") if "\n" in core else core
    wrapped = aligned(lines.strip())
    return (f"\n{wrapped}\n" if "\n" in body or wrapped != lines.strip() else core) + (
        tag[0] if tag else ""
    )


def _anchor(line: str) -> str:
    target = TARGET.match(line)
    return f'<a id="{target["label"]}"></a>\n' if target else line


def _closing(lines: list[str], start: int, fence: str) -> int:
    """Return the index of the line that closes a fence."""
    close = re.compile(rf"^\s*{re.escape(fence[0])}{{{len(fence)},}}\s*$")
    for index in range(start + 1, len(lines)):
        if close.match(lines[index]):
            return index
    return len(lines)


def _options(body: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split a directive's body into options and content."""
    options: dict[str, str] = {}
    position = 0
    if body and body[0].strip() == "---":
        for position, line in enumerate(body[1:], 1):  # noqa: B007
            if line.strip() == "---":
                break
            key, _, value = line.partition(":")
            options[key.strip()] = value.strip()
        return options, body[position + 1 :]
    while position < len(body) and (match := OPTION.match(body[position])):
        options[match["key"]] = match["value"].strip()
        position += 1
    return options, body[position:]


def _argument(text: str, position: int) -> tuple[str, int]:
    """Read one TeX argument: a group in braces, a command, or a character."""
    while position < len(text) and text[position].isspace():
        position += 1
    if text[position : position + 1] != "{":
        match = COMMAND.match(text, position)
        end = match.end() if match else position + 1
        return text[position:end], end
    depth, index = 0, position
    while index < len(text):
        if text[index] == "\\":
            index += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        index += 1
        if depth == 0:
            return text[position + 1 : index - 1], index
    return text[position + 1 :], len(text)
