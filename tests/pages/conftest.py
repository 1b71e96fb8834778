"""The built book, served, and one browser for all the checks."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from checker import FLAGS, PHONE, Watched, chromium_path, serve

HTML = Path(__file__).resolve().parents[2] / "_build" / "html"


def pytest_generate_tests(metafunc):
    """Run a test once for each page of the built book."""
    if "built_page" in metafunc.fixturenames:
        pages = sorted(
            str(p.relative_to(HTML)) for p in HTML.rglob("*.html") if "_static" not in p.parts
        )
        pages = [page for page in pages if page != "index.html"]  # the redirect has its own test
        metafunc.parametrize(
            "built_page", pages or [pytest.param("none", id="the book is not built")]
        )


def listen(context, errors: list[str]) -> None:
    """Note what scripts do wrong on the pages of a window."""
    context.on("weberror", lambda e: errors.append(f"script error: {e.error}"))
    context.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)


@pytest.fixture(scope="session")
def errors() -> list[str]:
    """What scripts did wrong, on any page."""
    return []


@pytest.fixture
def no_errors(browser, errors):
    """Scripts do nothing wrong during a test, on any page."""
    errors.clear()
    yield
    for page in [page for context in browser.contexts for page in context.pages]:
        page.evaluate("0")  # what it says comes after what was noted before
    assert errors == []


@pytest.fixture(scope="session")
def browser(errors):
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        chromium.on("context", lambda context: listen(context, errors))
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def site():
    assert (HTML / "index.html").exists(), "build the book first: make book"
    with serve(HTML) as address:
        yield address


@pytest.fixture(scope="session")
def windows(browser, site):
    """One window of each kind, for all tests: a new one costs a second."""
    kinds = {"desktop": {}, "phone": {"viewport": PHONE}, "in_tex": {"formulas": False}}
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Watched(browser, site, **kind))
            for name, kind in kinds.items()
        }


@pytest.fixture
def desktop(windows):
    return windows["desktop"].renew()


@pytest.fixture
def phone(windows):
    return windows["phone"].renew()


@pytest.fixture
def in_tex(windows):
    """A desktop for tests that no formula concerns: typesetting is what takes long."""
    return windows["in_tex"].renew()
