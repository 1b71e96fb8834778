"""The main path is marked and can be walked; and the deck of slides."""

import yaml
from test_pages import ROOT

CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["sphinx"]["config"]
PATH = CONFIG["main_path"]


def test_the_main_path_is_marked_and_can_be_walked_by_its_links(in_tex, site):
    page = in_tex.open(f"{site}/{PATH[0]}.html").page
    contents = page.locator(".bd-sidebar-primary")
    assert contents.locator("a:has(.path-mark)").count() == len(PATH)
    assert contents.get_by_role("img", name="Main path:").count() == len(PATH)
    for onward in PATH[1:]:
        page.locator(".path-next a").click()
        page.wait_for_url(f"**/{onward}.html")
    assert page.locator(".path-next").count() == 0


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
