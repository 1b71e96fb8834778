"""The dictionary of colours for readers and for style sheets: ``{colours}`` and ``colours.css``.

The style sheet gives every role as ``--colour-<role>`` (hyphens for underscores), with its value for the page as it
is, light or dark; and ``--colour-<role>-light`` and ``-dark``, which do not change.
"""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from lab.colours import GROUND, MAPS, ROLES, Role, scale

from .tables import build_table

STYLE_SHEET = "colours.css"
MODES = ("light", "dark")
MAP_LABELS = {
    "large": "map: small fades into the page, large stands out",
    "signed": "map: below and above the middle",
}
# What matplotlib's markers look like, about the middle of a swatch.
SHAPES = {
    "o": '<circle cx="36" cy="8" r="4.5"/>',
    "^": '<path d="M36 3 41 12.5H31Z"/>',
    "s": '<rect x="32" y="4" width="8" height="8"/>',
    "D": '<path d="M36 2.5 41.5 8 36 13.5 30.5 8Z"/>',
    "*": '<path d="m36 1.500 1.650 4.730 5 .1-4 3.030 1.450 4.800L36 11.300l-4.100 2.860 1.450-4.800-4-3.030 5-.1z"/>',
}


def style_sheet() -> str:
    """Return the variables of every role."""
    fixed, shown = [], {mode: [] for mode in MODES}
    for name, role in ROLES.items():
        variable = f"--colour-{name.replace('_', '-')}"
        for mode in MODES:
            fixed.append(f"{variable}-{mode}: {getattr(role, mode)};")
            shown[mode].append(f"{variable}: var({variable}-{mode});")
    return (
        "/* Made from lab.colours, the only place that names a colour. */\n"
        f":root {{ {' '.join(fixed + shown['light'])} }}\n"
        f'html[data-theme="dark"] {{ {" ".join(shown["dark"])} }}\n'
    )


def add_style_sheet(app: Sphinx) -> None:
    """Write the style sheet before Sphinx looks for it, and let every page load it."""
    if app.builder.format != "html":
        return
    path = Path(app.outdir) / "_static" / STYLE_SHEET
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(style_sheet(), encoding="utf8")
    app.add_css_file(STYLE_SHEET, priority=400)  # before those that use it


def swatch(ground: str, drawing: str) -> nodes.raw:
    """Return a small drawing on a ground."""
    svg = f'<svg viewBox="0 0 72 16" aria-hidden="true">{drawing}</svg>'
    return nodes.raw(
        "", f'<span class="swatch" style="background:{ground}">{svg}</span>', format="html"
    )


def line_drawing(role: Role, colour: str) -> str:
    """Draw the line of a role, with its dashes and its marker."""
    dashes = "" if role.dashes == "-" else " ".join(f"{2 * length:g}" for length in role.dashes[1])
    line = f'<path d="M4 8H68" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dashes}"/>'
    return line + f'<g fill="{colour}">{SHAPES[role.marker] if role.marker else ""}</g>'


def map_drawing(name: str, mode: int) -> str:
    """Draw a colour map, from small to large."""
    steps = scale(name)[::15]
    return "".join(
        f'<rect x="{4 * i}" width="4.1" height="16" fill="{step[mode]}"/>'
        for i, step in enumerate(steps)
    )


class Colours(SphinxDirective):
    """The table of all roles and maps, each as it looks on a light and on a dark page."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        rows = [
            self.row(role.label, f'colour("{name}")', [line_drawing(role, role[i]) for i in (0, 1)])
            for name, role in ROLES.items()
        ]
        rows += [
            self.row(MAP_LABELS[name], f'cmap="{name}"', [map_drawing(name, i) for i in (0, 1)])
            for name in MAPS
        ]
        return [build_table(["stands for", "light", "dark", "in code"], rows, ["colours"])]

    def row(self, label: str, code: str, drawings: list[str]) -> list[list[nodes.Node]]:
        """Return the cells of one entry."""
        shown = [
            [swatch(ground, drawing)] for ground, drawing in zip(GROUND, drawings, strict=True)
        ]
        return [[nodes.Text(label)], *shown, [nodes.literal(code, code)]]


def setup(app: Sphinx) -> None:
    """Register the directive and the hook."""
    app.add_directive("colours", Colours)
    app.connect("builder-inited", add_style_sheet)
