"""Figures for light and dark: the dark version is made from the light one, by the dictionary of colours.

A cell draws its figure once, as SVG, in the light colours of :mod:`lab.colours`. Here each of them is
replaced by its dark value, in the pictures within the SVG as well, and the page gets both versions, of which the
theme shows one. A figure with a colour that the dictionary does not know fails the build.
"""

from __future__ import annotations

import base64
import io
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx
from sphinx.util import logging

from lab.colours import dark_values

logger = logging.getLogger(__name__)

PAINT = re.compile(r"(\b(?:fill|stroke)(?:: *|=\"))([^;\"]+)")
EMBEDDED = re.compile(r"(data:image/png;base64,)([A-Za-z0-9+/=\s]+)")
FILLED = re.compile(r"\bfill:|\bfill-opacity: 0(?:;|$)")
UNPAINTED = ("none", "transparent", "currentColor")
DRAWN = ("path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "use", "text")
NOT_DRAWN = ("defs", "clipPath", "metadata")  # except where something refers to them
ALIKE = 3  # of 255: the rounding where a picture is blended with nothing
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


class version_node(nodes.image):
    """The light or the dark version of a figure, and its size."""


class figure_files_node(nodes.General, nodes.Element):
    """What a figure offers to take away: its SVG as shown, and its PDF."""


def show_both(app: Sphinx, doctree: nodes.document) -> None:
    """Put the dark version of each figure of an executed page beside the light one, and its files below."""
    env = app.env
    if not env.metadata[env.docname].get("kernelspec"):
        return
    documents = {}
    for image in list(doctree.findall(nodes.image)):
        light = Path(app.srcdir) / image["uri"].lstrip("/")
        if light.suffix != ".svg" or "jupyter_execute" not in light.parts:
            continue
        try:
            text = dark_version(light.read_text(encoding="utf8"))
        except UnknownColourError as error:
            text = "%s: %s is not in lab.colours; take a role from there"
            logger.warning(text, name_of(image), error, location=env.docname)
            continue
        light.with_name(f"{light.stem}-dark.svg").write_text(text, encoding="utf8")
        document = document_beside(image)
        figure = around(image, nodes.figure)
        box = pair(image, size(text))
        image.replace_self(box)
        if figure is not None and document is not None:
            documents[f"{light.stem}.pdf"] = document["uri"].lstrip("/")
            uris = [copy["uri"].lstrip("/") for copy in box]
            figure += figure_files_node(svg=uris, pdf=f"{light.stem}.pdf", name=name_of(box))
    env.metadata[env.docname]["figure_documents"] = documents


def around(node: nodes.Node, kind: type | str) -> nodes.Element | None:
    """Return the nearest ancestor of a class, or with that part of a notebook in it."""
    while node is not None and not (
        node.get("nb_element") == kind if isinstance(kind, str) else isinstance(node, kind)
    ):
        node = node.parent
    return node


def document_beside(image: nodes.image) -> nodes.image | None:
    """Return the PDF of the same output."""
    bundle = around(image, "mime_bundle")
    found = bundle.findall(nodes.image) if bundle is not None else ()
    return next((other for other in found if other["uri"].endswith(".pdf")), None)


def name_of(node: nodes.Element) -> str:
    """Return the label of the figure that holds a node."""
    figure = around(node, nodes.figure)
    return figure["ids"][0] if figure is not None and figure["ids"] else "a figure"


def size(svg: str) -> dict[str, str]:
    """Return width and height in pixels: the page keeps room for a picture that comes late."""
    points = re.search(r'<svg [^>]*?\bwidth="([\d.]+)pt" height="([\d.]+)pt"|<svg ', svg)
    if points[1] is None:
        return {}
    return {
        name: f"{round(float(value) * 4 / 3)}"
        for name, value in zip(("width", "height"), points.groups(), strict=True)
    }


def pair(image: nodes.image, size: dict[str, str]) -> nodes.container:
    """Return both versions, in a box of their own: the theme hides what follows a hidden picture."""
    box = nodes.container(classes=["figure-modes"])
    for mode, ending in (("light", ".svg"), ("dark", "-dark.svg")):
        uri = image["uri"].removesuffix(".svg") + ending
        classes = [*image.get("classes", []), f"only-{mode}"]
        box += version_node(uri=uri, alt=image.get("alt", ""), classes=classes, size=size)
    return box


def write_files(self, node: figure_files_node) -> None:
    """Write the links to the files of a figure."""
    if self.builder.name == "html":  # not on paper
        folder = self.builder.imgpath
        names = [self.builder.images.get(uri, Path(uri).name) for uri in node["svg"]]
        links = [
            f'<a class="only-{mode}" href="{folder}/{name}" download="{node["name"]}.svg">SVG</a>'
            for mode, name in zip(("light", "dark"), names, strict=True)
        ]
        links.append(f'<a href="{folder}/{node["pdf"]}" download="{node["name"]}.pdf">PDF</a>')
        self.body.append(f'<p class="figure-files">{" ".join(links)}</p>\n')
    raise nodes.SkipNode


def write_version(self, node: version_node) -> None:
    """Write a picture that browsers fetch when it shows: never the version for the other kind of page."""
    name = self.builder.images.get(node["uri"], Path(node["uri"]).name)
    facts = {**node["size"], "alt": node.get("alt", ""), "src": f"{self.builder.imgpath}/{name}"}
    self.body.append(self.emptytag(node, "img", "\n", loading="lazy", **facts))
    raise nodes.SkipNode


def copy_documents(app: Sphinx, exception) -> None:
    """Put the PDF of each figure beside the pictures of the pages."""
    if exception is not None or app.builder.name != "html":
        return
    folder = Path(app.outdir) / app.builder.imagedir
    for facts in app.env.metadata.values():
        for name, source in facts.get("figure_documents", {}).items():
            shutil.copyfile(Path(app.srcdir) / source, folder / name)


def setup(app: Sphinx) -> None:
    """Register the hooks; the first before Sphinx collects the pictures."""
    app.add_node(version_node, html=(write_version, None))
    app.add_node(figure_files_node, html=(write_files, None))
    app.connect("doctree-read", show_both, priority=400)
    app.connect("build-finished", copy_documents)
