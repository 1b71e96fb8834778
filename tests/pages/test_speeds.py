"""The main path is marked and can be walked; and the deck of slides."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["sphinx"]["config"]
PATH = CONFIG["main_path"]


@pytest.mark.parametrize("page", ["book/index", PATH[0], PATH[-1]])
def test_the_contents_mark_the_main_path(page, in_tex, site):
    contents = in_tex.open(f"{site}/{page}.html").page.locator(".bd-sidebar-primary")
    marks = contents.locator("a:has(.path-mark)")
    assert marks.count() == len(PATH)
    assert contents.get_by_role("img", name="Main path:").count() == len(PATH)


def test_the_main_path_can_be_walked_by_its_links(in_tex, site):
    page = in_tex.open(f"{site}/{PATH[0]}.html").page
    for onward in PATH[1:]:
        page.locator(".path-next a").click()
        page.wait_for_url(f"**/{onward}.html")
    assert page.locator(".path-next").count() == 0


def test_the_deck(desktop, site):
    page = desktop.open(f"{site}/slides.html").page
    slides = page.locator(".slide")
    assert slides.count() == 13
    assert slides.first.locator("h1").inner_text() == "How Smooth Is Attention?"
    for scheme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{scheme}'")
        shown = page.locator(f".picture img.only-{scheme}")
        assert shown.count() == 12
        sizes = shown.evaluate_all("all => all.map(i => i.naturalWidth * i.clientWidth)")
        assert min(sizes) > 0
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    for key, slide in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 12)):
        page.keyboard.press(key)
        page.wait_for_function(
            f"Math.abs(document.getElementById('slide-{slide}').getBoundingClientRect().top) < 2"
        )
    assert desktop.faults == []
