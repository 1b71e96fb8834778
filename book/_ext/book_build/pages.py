"""Small repairs: unique ids, buttons that open what they promise, roles."""

import os
import re
from pathlib import Path
from urllib.parse import quote

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

REPEATED_IDS = ("proof-content", "proof", "solution-content", "exercise-content")
PUBLISHED_BRANCH = "gh-pages"  # where the built pages, and the notebooks beside them, are published
# An empty header of a pandas table names nothing; docutils gives roles to a bibliography that it
# has not; a label hides what a button says.
REPAIRS = (
    (r"<th>\s*</th>", "<td></td>"),
    ('<div role="list" class="citation-list">', '<div class="citation-list">'),
    (r' role="doc-(biblioentry|backlink)"', ""),
    ('<summary aria-label="Toggle hidden content">', "<summary>"),
)


def published(repository: str) -> str:
    """Return where the pages of a repository are published."""
    owner, name = repository.rstrip("/").split("/")[-2:]
    return f"https://{owner}.github.io/{name}/"


def set_up(app: Sphinx, config) -> None:
    """Use the templates beside this module; let ``{repository}`words <path>``` link there."""
    config.templates_path = [str(Path(__file__).parent / "templates"), *config.templates_path]
    url = config.html_theme_options["repository_url"].rstrip("/")
    config.extlinks = {"repository": (f"{url}/%s", "%s")}
    config.ogp_site_url = published(url)
    config.html_search_scorer = str(Path(__file__).with_name("scorer.js"))


def unique_ids(app: Sphinx, doctree: nodes.document) -> None:
    """Number the ids that sphinx-proof and sphinx-exercise repeat on a page."""
    seen: dict[str, int] = {}
    for node in doctree.findall(nodes.Element):
        for position, name in enumerate(node.get("ids", [])):
            if name in REPEATED_IDS:
                seen[name] = seen.get(name, 0) + 1
                node["ids"][position] = f"{name}-{seen[name]}"


def repair_page(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Repair the HTML; send Colab to the published ``.ipynb``: it cannot open the MyST source."""
    if body := context.get("body"):
        for pattern, replacement in REPAIRS:
            body = re.sub(pattern, replacement, body)
        context["body"] = body
    repository = app.config.html_theme_options.get("repository_url", "").rstrip("/")
    owner_and_name = "/".join(repository.split("/")[-2:])
    path = f"blob/{PUBLISHED_BRANCH}/_sources/{quote(pagename)}.ipynb"
    for group in context.get("header_buttons", []):
        for button in group.get("buttons", []) if isinstance(group.get("buttons"), list) else []:
            if button.get("text") == "Colab":
                button["url"] = f"https://colab.research.google.com/github/{owner_and_name}/{path}"


def public_names(app: Sphinx, env, node, contnode):
    """Let ``lipcore.name`` or ``name`` refer to the module where it is documented."""
    package, _, name = node.get("reftarget", "").rpartition(".")
    root = package.split(".")[0] or "lipcore"
    if node.get("refdomain") != "py" or root not in ("lipcore", "lab"):
        return None
    objects = env.get_domain("py").objects
    homes = [k for k in objects if k.startswith(f"{root}.") and k.endswith(f".{name}")]
    if len(homes) != 1:
        return None
    home = objects[homes[0]]
    return make_refnode(app.builder, node["refdoc"], home.docname, home.node_id, contnode, homes[0])


def shapes_are_no_emphasis(app: Sphinx, what, name, obj, options, lines: list[str]) -> None:
    """Let docstrings write shapes as ``(*batch, n, d)``."""
    lines[:] = [re.sub(r"(?<=[(\s])\*(?=\w+[,)])", r"\\*", line) for line in lines]


def write_on_all_cores(app: Sphinx, env) -> None:
    """Write pages in parallel; they are read one after the other."""
    app.parallel = os.cpu_count() or 1


def finish(app: Sphinx) -> None:
    """Keep Jekyll from hiding ``_static``."""
    (Path(app.outdir) / ".nojekyll").touch()


def setup(app: Sphinx) -> None:
    app.connect("config-inited", set_up)
    app.connect("doctree-read", unique_ids)
    app.connect("env-updated", write_on_all_cores)
    app.connect("missing-reference", public_names)
    app.connect("autodoc-process-docstring", shapes_are_no_emphasis, priority=100)  # as napoleon
    app.connect("html-page-context", repair_page, priority=600)  # after the theme made its buttons
