"""Chapters say where they stand and lead on, old addresses too; and the deck of slides."""

import re

import pytest
import yaml
from lxml.html import fromstring
from test_pages import ROOT, built, toc_pages

PARTS = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))["parts"]
PATH = [page["file"] for page in next(p for p in PARTS if p.get("numbered"))["chapters"]]
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["sphinx"]["config"]


def test_every_page_leads_to_the_next_and_asks_its_question():
    order = toc_pages()[1:]
    for page, onward in zip(order, [*order[1:], None], strict=True):
        footer = fromstring(built(f"{page}.html")).find_class("prev-next-footer")[0]
        found = footer.find_class("onward")
        assert [link.get("href").rpartition("/")[2] for link in found] == (
            [f"{onward.rpartition('/')[2]}.html"] if onward else []
        )
        if onward and onward.startswith("notebooks/"):
            assert found[0].find_class("question")[0].text_content().strip().endswith("?")


def test_the_chapters_are_numbered_from_one_and_have_a_rail():
    for number, page in enumerate(PATH, 1):
        head = fromstring(built(f"{page}.html")).find_class("place")[0]
        assert f"Chapter {number} of {len(PATH)}" in head.text_content()
        rail = head.xpath(".//a/@aria-current | .//a/@href")
        assert rail.index("page") == number and len(rail) == len(PATH) + 1


def test_the_main_path_is_open_in_the_contents_and_the_rest_is_folded():
    contents = fromstring(built(f"{PATH[0]}.html")).find_class("bd-docs-nav")[0]
    folds = {fold.find("summary").text_content().strip(): fold for fold in contents.iter("details")}
    opened = [name for name, fold in folds.items() if fold.get("open") is not None]
    assert list(folds) == [part["caption"] for part in PARTS]
    assert opened == ["At a glance", "The book", "Your own model"]


@pytest.mark.parametrize("old", CONFIG["redirects"])
def test_an_old_address_leads_on(old, desktop, site):
    page = desktop.page
    page.goto(f"{site}/{old}.html")
    new = CONFIG["redirects"][old].partition("#")[0].rpartition("/")[2]
    page.wait_for_url(re.compile(re.escape(new)))
    page.wait_for_selector("h1:visible")


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
