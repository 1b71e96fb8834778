"""A browser for the PDF and the archive."""

import sys
from pathlib import Path

import pytest
from checker import launched

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def browser():
    with launched() as browser:
        yield browser
