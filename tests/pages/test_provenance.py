"""What is published was computed by this state of the package: numbers, pictures and prints of every page.

``BOOK_BUILT_AFTER`` (seconds since 1970, set where a build starts from nothing) asks that nothing be older.
"""

import html
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from book_build.execution import digest
from provenance import GLUED, Records, check_numbers, check_pictures, check_prints, check_record
from test_pages import notebooks, toc_pages

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
SETTINGS = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["sphinx"]["config"]
STATE = digest(ROOT, SETTINGS["book_cache_inputs"], SETTINGS["book_cache_libraries"])
AFTER = float(os.environ["BOOK_BUILT_AFTER"]) if os.environ.get("BOOK_BUILT_AFTER") else None


@pytest.fixture(scope="module")
def records() -> Records:
    return Records(ROOT, STATE)


@pytest.fixture(scope="module")
def published() -> dict:
    return json.loads((HTML / "executed.json").read_text(encoding="utf8"))


def built(docname: str) -> str:
    return (HTML / f"{docname}.html").read_text(encoding="utf8")


def written(docname: str) -> str:
    return (ROOT / f"{docname}.md").read_text(encoding="utf8")


def test_every_executed_page_has_a_record(published):
    assert sorted(published) == sorted(notebooks())


@pytest.mark.parametrize("docname", notebooks())
def test_a_page_was_executed_in_this_state(docname, records, published):
    assert check_record(published[docname], docname, records, AFTER) == []
    moment = datetime.strptime(published[docname]["executed"], "%Y-%m-%dT%H:%M:%SZ")
    assert (
        f"Executed on {moment.day} {moment:%B %Y at %H:%M} UTC in {published[docname]['seconds']:.0f} s"
        in built(docname)
    )


@pytest.mark.parametrize("docname", toc_pages())
def test_the_numbers_of_a_page_are_those_of_the_execution(docname, records):
    assert check_numbers(built(docname), written(docname), docname, records) == []
    assert check_pictures(built(docname), records, notebooks()) == []


@pytest.mark.parametrize("docname", notebooks())
def test_the_outputs_of_a_page_are_those_of_the_execution(docname, records):
    assert check_prints(built(docname), docname, records) == []


# The checks find what is planted.


@pytest.fixture(scope="module")
def page(records):
    """A page with glued numbers, pictures and printed lines."""
    for docname in notebooks():
        if (
            GLUED.search(written(docname))
            and "_images/" in built(docname)
            and 'class="output stream' in built(docname)
        ):
            return docname
    raise AssertionError("no page has all three")


def test_another_number_is_found(page, records):
    text = next(m for m in built(page).split('<span class="pasted-text">')[1:]).partition(
        "</span>"
    )[0]
    changed = built(page).replace(f'"pasted-text">{text}<', '"pasted-text">123456789<', 1)
    found = check_numbers(changed, written(page), page, records)
    assert (
        f"does not show {html.unescape(text)}" in found
        and "shows 123456789, which no execution found" in found
    )


def test_a_glued_value_that_was_replaced_by_a_typed_one_is_found(page, records):
    text = next(m for m in built(page).split('<span class="pasted-text">')[1:]).partition(
        "</span>"
    )[0]
    typed = built(page).replace(f'<span class="pasted-text">{text}</span>', text, 1)
    assert check_numbers(typed, written(page), page, records)


def test_another_picture_is_found(page, records):
    start = built(page).index("_images/") + len("_images/")
    digits = built(page)[start : start + 64]
    assert check_pictures(built(page).replace(digits, "0" * 64), records, notebooks())


def test_another_print_is_found(page, records):
    before, _, after = built(page).partition('class="output stream')
    body, end, rest = after.partition("</pre>")
    changed = before + '<div class="output stream"><pre>1' + end + rest
    assert body and check_prints(changed, page, records)


def test_a_stale_record_is_found(page, records, published):
    entry = published[page]
    assert any("state" in f for f in check_record({**entry, "state": "0" * 16}, page, records))
    assert any(
        "executed at" in f
        for f in check_record({**entry, "executed": "2001-01-01T00:00:00Z"}, page, records)
    )
    assert any("values" in f for f in check_record({**entry, "glued": {}}, page, records))
    tomorrow = datetime.now(UTC).timestamp() + 86400
    assert any("before this run began" in f for f in check_record(entry, page, records, tomorrow))


def test_a_source_that_was_not_executed_is_found(page, tmp_path):
    (tmp_path / page).parent.mkdir(parents=True)
    cache = tmp_path / "_build" / ".jupyter_cache"
    cache.mkdir(parents=True)
    (cache / STATE).symlink_to(ROOT / "_build" / ".jupyter_cache" / STATE)
    changed = written(page).replace(
        "```{code-cell} ipython3\n", "```{code-cell} ipython3\nchanged = 1\n"
    )
    (tmp_path / f"{page}.md").write_text(changed, encoding="utf8")
    with pytest.raises(KeyError):
        Records(tmp_path, STATE)[page]
