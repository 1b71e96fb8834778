"""The dictionary of colours for style sheets, ``colours.css``.

Every role is ``--colour-<role>`` (hyphens for underscores), with its value for the page as it is,
light or dark; ``--colour-<role>-light`` and ``-dark`` do not change.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

from lab.colours import ROLES

STYLE_SHEET = "colours.css"
MODES = ("light", "dark")


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


def setup(app: Sphinx) -> None:
    """Register the hook."""
    app.connect("builder-inited", add_style_sheet)
