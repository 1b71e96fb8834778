"""Finding one's way: small pictures on the first page, links to the repository."""

from __future__ import annotations

from typing import ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)


class thumbnail_node(nodes.General, nodes.Element):
    """Stands for a small copy of a figure until every page has been read."""


class Thumbnail(SphinxDirective):
    """A small copy of a figure of an executed page: ``{thumbnail} page#figure``."""

    required_arguments = 1
    option_spec: ClassVar = {"alt": str}

    def run(self) -> list[nodes.Node]:
        """Leave a place for the picture."""
        page, _, label = self.arguments[0].partition("#")
        docname = self.env.path2doc(self.env.relfn2path(f"{page}.md", self.env.docname)[1])
        self.env.note_reread()  # the figure may change when nothing here does
        return [thumbnail_node(docname=docname, label=label, alt=self.options.get("alt", ""))]


class FillThumbnails(SphinxPostTransform):
    """Put the pictures in."""

    default_priority = 6

    def run(self, **kwargs) -> None:
        """Replace every place by the picture of its figure."""
        for place in list(self.document.findall(thumbnail_node)):
            place.replace_self(self.picture(place) or [])

    def picture(self, place: nodes.Element) -> nodes.Node | None:
        """Return a copy of a figure's picture, without its caption."""
        if place["docname"] in self.env.all_docs:
            for figure in self.env.get_doctree(place["docname"]).findall(nodes.figure):
                image = figure.next_node(nodes.image) if place["label"] in figure["ids"] else None
                if image is not None:
                    copy = image.copy()
                    copy["classes"] = ["thumbnail"]
                    copy["alt"] = place["alt"] or image.get("alt", "")
                    self.env.images.add_file(self.env.docname, image["uri"])
                    return copy
        text = "no figure %r on %s"
        logger.warning(text, place["label"], place["docname"], location=self.env.docname)
        return None


def name_repository(app: Sphinx, config) -> None:
    """Let ``{repository}`words <path>``` link to a place in the repository."""
    url = config.html_theme_options["repository_url"].rstrip("/")
    config.extlinks = {"repository": (f"{url}/%s", "%s")}


def setup(app: Sphinx) -> None:
    """Register the directive and the hooks."""
    app.connect("config-inited", name_repository)
    app.add_node(thumbnail_node)
    app.add_directive("thumbnail", Thumbnail)
    app.add_post_transform(FillThumbnails)
