"""Lay out the published folder: the newest pages at its top, each release below ``vX.Y.Z/``.

``python -m book_build.releases SITE FOLDER [--release vX.Y.Z]`` puts a built site into a copy of the branch
``gh-pages``: at the top (from the main branch), or as a release. What was there of the same version goes;
other releases stay. ``stable/`` leads to the newest release, page by page. ``versions.html`` lists all, and every
page has a line that says which version it is of, and whether there is a newer one. None of it needs a script, or
a list to fetch.
"""

from __future__ import annotations

import argparse
import html
import re
import shutil
from pathlib import Path, PurePosixPath

TAG = re.compile(r"v(\d+)\.(\d+)\.(\d+)")
STABLE, LIST = "stable", "versions.html"
KEPT = (".git", "CNAME")
BEGIN, END = "<!-- version -->", "<!-- /version -->"
MARKED = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
STYLE = "margin: 0; padding: .3rem 1rem; text-align: center; font-size: .9rem;"
OLD = f"{STYLE} background: #fff3cd; color: #4d3800;"
OLD_LINK = ' style="color: #5c3200; text-decoration: underline"'

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{head}<title>{title}</title>
</head>
<body>{body}</body>
</html>
"""


def order(tag: str) -> tuple[int, ...]:
    """Return the numbers of a tag, to compare releases by."""
    found = TAG.fullmatch(tag)
    if found is None:
        raise ValueError(f"{tag} is no release: vX.Y.Z is asked for")
    return tuple(map(int, found.groups()))


def releases(folder: Path) -> list[str]:
    """List the releases in a folder, the newest first."""
    found = [p.name for p in folder.iterdir() if p.is_dir() and TAG.fullmatch(p.name)]
    return sorted(found, key=order, reverse=True)


def pages(folder: Path) -> list[PurePosixPath]:
    """List the pages of one version, without those of releases below it."""
    found = (PurePosixPath(p.relative_to(folder).as_posix()) for p in folder.rglob("*.html"))
    return sorted(
        p
        for p in found
        if not TAG.fullmatch(p.parts[0]) and p.parts[0] not in (STABLE, "_static", LIST)
    )


def put(site: Path, folder: Path, release: str | None = None) -> None:
    """Put a built site at the top of the folder, or below it as a release."""
    if not (site / "index.html").exists():
        raise FileNotFoundError(f"{site} holds no pages")
    folder.mkdir(parents=True, exist_ok=True)
    if release is None:
        for old in folder.iterdir():
            if old.name in (*KEPT, STABLE, LIST) or TAG.fullmatch(old.name):
                continue
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        shutil.copytree(site, folder, dirs_exist_ok=True)
    else:
        order(release)
        if (folder / release).exists():
            shutil.rmtree(folder / release)
        shutil.copytree(site, folder / release)
        if not (folder / "index.html").exists():  # nothing published from the main branch yet
            shutil.copytree(site, folder, dirs_exist_ok=True)
    (folder / ".nojekyll").touch()
    arrange(folder)


def arrange(folder: Path) -> None:
    """Write what depends on all versions: the list, ``stable/``, and the line on every page."""
    found = releases(folder)
    write_list(folder, found)
    if (folder / STABLE).exists():
        shutil.rmtree(folder / STABLE)
    if found:
        write_stable(folder, found[0])
    for release in [None, *found]:
        top = folder / release if release else folder
        for page in pages(top):
            write_line(top, page, release, found)


def redirect(target: str) -> str:
    """Return a page that leads on at once, with the place on the page where a browser can."""
    target = html.escape(target)
    head = f'<meta http-equiv="refresh" content="0; url={target}">\n<link rel="canonical" href="{target}">\n'
    script = f'<script>location.replace("{target}" + location.search + location.hash)</script>'
    return PAGE.format(
        head=head,
        title="How Smooth Is Attention?",
        body=f'<p><a href="{target}">On</a></p>{script}',
    )


def write_stable(folder: Path, newest: str) -> None:
    """Let every address below ``stable/`` lead to the same page of the newest release."""
    for page in pages(folder / newest):
        path = folder / STABLE / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(redirect("../" * len(page.parts) + f"{newest}/{page}"), encoding="utf8")


def write_list(folder: Path, found: list[str]) -> None:
    """Write the page that lists all versions."""
    items = ['<li><a href="index.html">development</a>: the newest state of the main branch</li>']
    for position, release in enumerate(found):
        note = (
            f': the newest release, also at <a href="{STABLE}/index.html">{STABLE}/</a>'
            if position == 0
            else ""
        )
        items.append(f'<li><a href="{release}/index.html">{release}</a>{note}</li>')
    body = f"<h1>How Smooth Is Attention?</h1><p>The versions of the book:</p><ul>{''.join(items)}</ul>"
    (folder / LIST).write_text(
        PAGE.format(head="", title="Versions of the book", body=body), encoding="utf8"
    )


def line(page: PurePosixPath, release: str | None, found: list[str], newest_has_page: bool) -> str:
    """Say which version a page is of, and where the others are."""
    up = "../" * (len(page.parts) - 1 + (release is not None))
    which = f"Version {release}" if release else "Development version"
    links = [f'<a href="{up}{LIST}"LINK>all versions</a>']
    style = STYLE
    if found and release != found[0]:
        there = page if newest_has_page else "index.html"
        word = "newest release" if release else "release"
        links.insert(0, f'<a href="{up}{found[0]}/{there}"LINK>{word}: {found[0]}</a>')
        style = OLD if release else STYLE
    text = f'<p class="book-version" role="note" style="{style}">{which} · {" · ".join(links)}</p>'
    return text.replace("LINK", OLD_LINK if style == OLD else "")


def write_line(top: Path, page: PurePosixPath, release: str | None, found: list[str]) -> None:
    """Write the line at the head of a page, or again if it is there."""
    path = top / page
    text = MARKED.sub("", path.read_text(encoding="utf8"))
    newest = (top.parent if release else top) / found[0] / page if found else None
    shown = BEGIN + line(page, release, found, newest is not None and newest.exists()) + END
    changed, times = re.subn(r"(<main\b[^>]*>)", lambda m: m[1] + shown, text, count=1)
    path.write_text(changed if times else text, encoding="utf8")


def main(arguments: list[str] | None = None) -> None:
    """Put a built site into a copy of the published folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("site", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--release", metavar="vX.Y.Z")
    chosen = parser.parse_args(arguments)
    put(chosen.site, chosen.folder, chosen.release)
    print(f"{chosen.folder}: {', '.join(['development', *releases(chosen.folder)])}")


if __name__ == "__main__":
    main()
