"""The main path is marked and can be walked; and the deck of slides."""

import re

import yaml
from test_pages import ROOT, built

CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["sphinx"]["config"]
PATH = CONFIG["main_path"]


def test_the_main_path_is_marked_and_leads_from_page_to_page():
    for page, onward in zip(PATH, [*PATH[1:], None], strict=True):
        html = built(f"{page}.html")
        assert html.count('aria-label="Main path:"') == len(PATH)
        links = re.findall(r'<p class="path-next">.*?href="([^"]+)\.html"', html, re.DOTALL)
        assert links == ([onward.removeprefix("notebooks/")] if onward else [])


def test_the_deck(desktop, site):
    page = desktop.open(f"{site}/slides.html").page
    assert page.locator(".slide").count() == 13
    for scheme in ("dark", "light"):
        page.evaluate(f"document.documentElement.dataset.theme = '{scheme}'")
        shown = page.locator(f".picture img.only-{scheme}")
        sizes = shown.evaluate_all("all => all.map(i => i.naturalWidth * i.clientWidth)")
        assert len(sizes) == 12 and min(sizes) > 0
    for key, slide in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 12)):
        page.keyboard.press(key)
        page.wait_for_function(
            f"Math.abs(document.getElementById('slide-{slide}').getBoundingClientRect().top) < 2"
        )
    assert desktop.faults == []
