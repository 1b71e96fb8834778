"""What others show of a page: a description, from its first sentences, and one card for the whole book."""

from __future__ import annotations

import html
from math import exp
from pathlib import Path

from lxml.html import fromstring
from sphinx.application import Sphinx

from lab.colours import ROLES

from .search import is_quoted, words_of

CARD = "card.png"
QUESTION = (
    "Move the tokens that enter an attention\nlayer by a little. How far can its\noutput move?"
)
LONGEST = 200  # characters of a description: what search engines show


def description(body: str) -> str:
    """Return the first paragraphs of a page as one line, cut after a word."""
    paragraphs = map(words_of, filter(is_quoted, fromstring(f"<div>{body}</div>").iter("p")))
    text = ""
    for paragraph in paragraphs:
        text = f"{text} {paragraph}".strip()
        if len(text) > LONGEST / 2:
            break
    return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0].rstrip(",;:. ") + " …"


def published(repository: str) -> str:
    """Return where the pages of a repository on GitHub are published."""
    owner, name = repository.rstrip("/").split("/")[-2:]
    return f"https://{owner}.github.io/{name}"


def describe(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Put the description and the card into a page's head."""
    if doctree is None or app.builder.name != "html":
        return
    site = published(app.config.html_theme_options["repository_url"])
    facts = {
        "og:type": "article",
        "og:site_name": app.config.html_title,
        "og:title": app.env.titles[pagename].astext(),
        "og:description": description(context["body"]),
        "og:url": f"{site}/{pagename}.html",
        "og:image": f"{site}/_static/{CARD}",
        "og:image:alt": f"The name of the book and its question: {' '.join(QUESTION.split())}",
    }
    tags = [f'<meta name="description" content="{html.escape(facts["og:description"])}">']
    tags += [
        f'<meta property="{name}" content="{html.escape(fact)}">' for name, fact in facts.items()
    ]
    context["metatags"] = context.get("metatags", "") + "\n".join([*tags, ""])


def draw_card(title: str, path: Path) -> None:
    """Draw the name of the book, its question, and two ways to grow: for ever, or until e⁶ tokens."""
    # Only the first build draws it, and the import takes a second.
    from matplotlib.figure import Figure

    dark = {name: role.dark for name, role in ROLES.items()}
    figure = Figure(figsize=(12, 6.3), facecolor=dark["ground"])
    lengths, most = [2**k for k in range(13)], exp(6)
    ax = figure.add_axes((0.55, 0.12, 0.4, 0.62), facecolor=dark["ground"])
    curves = {"general": lengths, "unified": [n * most / (n + most - 1) / 2 for n in lengths]}
    for name, squares in curves.items():
        ax.loglog(lengths, squares, color=dark[name], ls=ROLES[name].dashes, lw=6)
    ax.axis("off")
    figure.text(0.06, 0.78, title, color=dark["ink"], size=44, weight="bold")
    figure.text(0.06, 0.42, QUESTION, color=dark["ink"], size=23, va="center", linespacing=1.5)
    figure.savefig(path, dpi=100)


def write_card(app: Sphinx, exception) -> None:
    """Draw the card, once."""
    path = Path(app.outdir) / "_static" / CARD
    if exception is None and app.builder.name == "html" and not path.exists():
        draw_card(app.config.html_title, path)


def setup(app: Sphinx) -> None:
    """Register the hooks."""
    app.connect("html-page-context", describe)
    app.connect("build-finished", write_card)
