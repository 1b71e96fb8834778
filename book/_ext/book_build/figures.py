"""Figures for light and dark: the dark version is made from the light one, by the dictionary of colours.

A cell draws its figure once, as SVG, in the light colours of :mod:`lipcore.lab.colours`. Here each of them is
replaced by its dark value, in the pictures within the SVG as well, and the page gets both versions, of which the
theme shows one. A figure with a colour that the dictionary does not know fails the build.
"""

from __future__ import annotations

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

from lipcore.lab.colours import dark_values

logger = logging.getLogger(__name__)

PAINT = re.compile(r"(\b(?:fill|stroke)(?:: *|=\"))([^;\"]+)")
EMBEDDED = re.compile(r"(data:image/png;base64,)([A-Za-z0-9+/=\s]+)")
UNPAINTED = ("none", "transparent", "currentColor")
DRAWN = ("path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "use", "text")
NOT_DRAWN = ("defs", "clipPath", "metadata")  # but where something refers to them
ALIKE = 3  # of 255: rounding, where a picture is blended with nothing
FAINT = 0.2  # rims of dots, less opaque than this, may be rounded further


class UnknownColourError(ValueError):
    """A figure has a colour that the dictionary does not know."""


def black_by_default(svg: str) -> bool:
    """Tell whether something is drawn without a colour: SVG fills it with black."""
    stack = [(ElementTree.fromstring(svg), False)]
    while stack:
        node, painted = stack.pop()
        tag = node.tag.rpartition("}")[2]
        painted = painted or "fill" in node.attrib or "fill:" in node.get("style", "")
        if tag in DRAWN and not painted:
            return True
        stack += [(child, painted) for child in node if tag not in NOT_DRAWN]
    return False


def dark_picture(png: bytes) -> bytes:
    """Return a picture with the dark value of each pixel's colour; what is see-through stays so."""
    pixels = np.array(Image.open(io.BytesIO(png)).convert("RGBA"))
    packed, where = np.unique(pixels.view(np.uint32), return_inverse=True)  # one number a colour
    found = packed.view(np.uint8).reshape(-1, 4)
    known = dark_values()
    light, dark = (
        np.array([[int(value[k : k + 2], 16) for k in (1, 3, 5)] for value in values])
        for values in (known.keys(), known.values())
    )
    distance = np.abs(found[:, None, :3].astype(int) - light).max(-1)
    odd = (distance.min(-1) > ALIKE) & (found[:, 3] > 255 * FAINT)
    if odd.any():
        red, green, blue, _ = found[odd][0]
        text = f"#{red:02x}{green:02x}{blue:02x}, in a picture within the figure,"
        raise UnknownColourError(text)
    found[:, :3] = dark[distance.argmin(-1)]
    file = io.BytesIO()
    Image.fromarray(found[where.reshape(-1)].reshape(pixels.shape)).save(file, "PNG", optimize=True)
    return file.getvalue()


def dark_version(svg: str) -> str:
    """Return a figure in its dark colours.

    Raises
    ------
    UnknownColourError
        If a colour is not in the dictionary.
    """
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


def show_both(app: Sphinx, doctree: nodes.document) -> None:
    """Put the dark version of each figure of an executed page beside the light one."""
    docname = app.env.docname
    if not app.env.metadata[docname].get("kernelspec"):
        return
    for image in list(doctree.findall(nodes.image)):
        path = Path(app.srcdir) / image["uri"].lstrip("/")
        if path.suffix != ".svg" or "jupyter_execute" not in path.parts:
            continue
        try:
            text = dark_version(path.read_text(encoding="utf8"))
        except UnknownColourError as error:
            if docname not in app.config.book_to_do:
                text = "%s: %s is not in lipcore.lab.colours; take a role from there"
                logger.warning(text, name_of(image), error, location=docname)
            continue
        dark = path.with_name(f"{path.stem}-dark.svg")
        dark.write_text(text, encoding="utf8")
        image.replace_self(pair(image, dark))


def name_of(image: nodes.image) -> str:
    """Return the label of the figure that holds a picture."""
    node = image
    while node is not None and not isinstance(node, nodes.figure):
        node = node.parent
    return ", ".join(node["ids"]) if node is not None and node["ids"] else "a figure"


def pair(image: nodes.image, dark: Path) -> nodes.container:
    """Return both versions, in a box of their own: the theme hides what follows a hidden picture."""
    box = nodes.container(classes=["figure-modes"])
    for mode, name in (("light", Path(image["uri"]).name), ("dark", dark.name)):
        copy = image.copy()
        copy["uri"] = str(Path(image["uri"]).with_name(name))
        copy["classes"] = [*image.get("classes", []), f"only-{mode}"]
        box += copy
    return box


def setup(app: Sphinx) -> None:
    """Register the setting and the hook, before Sphinx collects the pictures."""
    app.add_config_value("book_to_do", [], "env", [list])
    app.connect("doctree-read", show_both, priority=400)
