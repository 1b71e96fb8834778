"""The built book, served, and one browser for all the checks."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from checker import PHONE, Watched, launched, serve

HTML = Path(__file__).resolve().parents[2] / "_build" / "html"


@pytest.fixture(scope="session")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture(scope="session")
def site():
    assert (HTML / "index.html").exists(), "build the book first: make book"
    with serve(HTML) as address:
        yield address


@pytest.fixture(scope="session")
def windows(browser, site):
    """One window of each kind, for all tests: a new one costs a second."""
    kinds = {"desktop": {}, "phone": {"viewport": PHONE}}
    return {name: Watched(browser, site, **kind) for name, kind in kinds.items()}


@pytest.fixture
def desktop(windows):
    return windows["desktop"].renew()


@pytest.fixture
def phone(windows):
    return windows["phone"].renew()
