"""Figures for light and dark: the dark version is made from the light one, colour by colour.

A cell draws its figure once, as SVG, in the light colours of :mod:`lab.colours`. Here each of them
is replaced by its dark value, in the pictures within the SVG as well (heat maps), and the page gets
both versions, of which the theme shows one. A colour that is not there fails the build.

Style sheets find every role in ``colours.css``: ``--colour-<role>`` (hyphens for underscores) has its
value for the page as it is, light or dark; ``--colour-<role>-light`` and ``-dark`` do not change.
"""

import base64
import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx
from sphinx.util import logging

from lab.colours import ROLES, dark_values

logger = logging.getLogger(__name__)

PAINT = re.compile(r"(\b(?:fill|stroke)(?:: *|=\"))([^;\"]+)")
EMBEDDED = re.compile(r"(data:image/png;base64,)([A-Za-z0-9+/=\s]+)")
FILLED = re.compile(r"\bfill:|\bfill-opacity: 0(?:;|$)")
SIZE = re.compile(r'<svg [^>]*?\bwidth="([\d.]+)pt" height="([\d.]+)pt"')
UNPAINTED = ("none", "transparent", "currentColor")
DRAWN = ("path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "use", "text")
NOT_DRAWN = ("defs", "clipPath", "metadata")  # except where something refers to them
ALIKE = 3  # of 255: the rounding where a picture is blended with nothing
MODES = ("light", "dark")
FAINT = 0.2  # rims of dots, less opaque than this, may be rounded further


class UnknownColourError(ValueError):
    """A figure has a colour that the dictionary does not know."""


def black_by_default(svg: str) -> bool:
    """Tell whether something is drawn without a colour: SVG fills it with black."""
    stack = [(ElementTree.fromstring(svg), False)]
    while stack:
        node, painted = stack.pop()
        tag = node.tag.rpartition("}")[2]
        painted = painted or "fill" in node.attrib or bool(FILLED.search(node.get("style", "")))
        if tag in DRAWN and not painted:
            return True
        stack += [(child, painted) for child in node if tag not in NOT_DRAWN]
    return False


def dark_picture(png: bytes) -> bytes:
    """Return a picture with the dark value of each pixel's colour, and the same transparency."""
    pixels = np.array(Image.open(io.BytesIO(png)).convert("RGBA"))
    packed, where = np.unique(pixels.view(np.uint32), return_inverse=True)  # one number a colour
    found = packed.view(np.uint8).reshape(-1, 4)
    light, dark = (
        np.array([list(bytes.fromhex(value[1:])) for value in values])
        for values in (dark_values().keys(), dark_values().values())
    )
    distance = np.abs(found[:, None, :3].astype(int) - light).max(-1)
    odd = (distance.min(-1) > ALIKE) & (found[:, 3] > 255 * FAINT)
    if odd.any():
        raise UnknownColourError(f"#{bytes(found[odd][0, :3]).hex()}, in a picture within,")
    found[:, :3] = dark[distance.argmin(-1)]
    file = io.BytesIO()
    Image.fromarray(found[where.reshape(-1)].reshape(pixels.shape)).save(file, "PNG", optimize=True)
    return file.getvalue()


def dark_version(svg: str) -> str:
    """Return a figure in its dark colours; raise if one is not in the dictionary."""
    known = dark_values()

    def paint(found: re.Match) -> str:
        value = found[2].strip().lower()
        if value in UNPAINTED or value.startswith("url("):
            return found[0]
        if value not in known:
            raise UnknownColourError(value)
        return found[1] + known[value]

    def picture(found: re.Match) -> str:
        return found[1] + base64.b64encode(dark_picture(base64.b64decode(found[2]))).decode()

    if black_by_default(svg):
        raise UnknownColourError("#000000")
    return EMBEDDED.sub(picture, PAINT.sub(paint, svg))


class version_node(nodes.image):
    """The light or the dark version of a figure, and its size."""


class figure_files_node(nodes.General, nodes.Element):
    """What a figure offers to take away: its SVG as shown."""


def show_both(app: Sphinx, doctree: nodes.document) -> None:
    """Put the dark version of each figure of an executed page beside the light one."""
    if not app.env.metadata[app.env.docname].get("kernelspec"):
        return
    for image in list(doctree.findall(nodes.image)):
        light = Path(app.srcdir) / image["uri"].lstrip("/")
        if light.suffix != ".svg" or "jupyter_execute" not in light.parts:
            continue
        figure = image.parent
        while figure is not None and not isinstance(figure, nodes.figure):
            figure = figure.parent
        name = figure["ids"][0] if figure is not None and figure["ids"] else "a figure"
        try:
            text = dark_version(light.read_text(encoding="utf8"))
        except UnknownColourError as error:
            text = "%s: %s is not in lab.colours; take a role from there"
            logger.warning(text, name, error, location=app.env.docname)
            continue
        light.with_name(f"{light.stem}-dark.svg").write_text(text, encoding="utf8")
        box = pair(image, size(text))
        image.replace_self(box)
        if figure is not None:
            figure += figure_files_node(svg=[copy["uri"].lstrip("/") for copy in box], name=name)


def size(svg: str) -> dict[str, str]:
    """Return width and height in pixels: the page keeps room for a picture that comes late."""
    points = SIZE.search(svg)
    if points is None:
        return {}
    width, height = (f"{round(float(value) * 4 / 3)}" for value in points.groups())
    return {"width": width, "height": height}


def pair(image: nodes.image, size: dict[str, str]) -> nodes.container:
    """Return both versions in a box of their own: the theme hides what follows a hidden one."""
    box = nodes.container(classes=["figure-modes"])
    for mode, ending in zip(MODES, (".svg", "-dark.svg"), strict=True):
        uri = image["uri"].removesuffix(".svg") + ending
        classes = [*image.get("classes", []), f"only-{mode}"]
        box += version_node(uri=uri, alt=image.get("alt", ""), classes=classes, size=size)
    return box


def file_name(builder, uri: str) -> str:
    return f"{builder.imgpath}/{builder.images.get(uri, Path(uri).name)}"


def write_files(self, node: figure_files_node) -> None:
    links = [
        f'<a class="only-{mode}" href="{file_name(self.builder, uri)}" '
        f'download="{node["name"]}.svg">SVG</a>'
        for mode, uri in zip(MODES, node["svg"], strict=True)
    ]
    self.body.append(f'<p class="figure-files">{" ".join(links)}</p>\n')
    raise nodes.SkipNode


def write_version(self, node: version_node) -> None:
    facts = {
        **node["size"],
        "alt": node.get("alt", ""),
        "src": file_name(self.builder, node["uri"]),
    }
    self.body.append(self.emptytag(node, "img", "\n", loading="lazy", **facts))
    raise nodes.SkipNode


def style_sheet() -> str:
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
    if app.builder.format != "html":
        return
    path = Path(app.outdir) / "_static" / "colours.css"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(style_sheet(), encoding="utf8")
    app.add_css_file("colours.css", priority=400)  # before those that use it


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", add_style_sheet)
    app.add_node(version_node, html=(write_version, None))
    app.add_node(figure_files_node, html=(write_files, None))
    app.connect("doctree-read", show_both, priority=400)
