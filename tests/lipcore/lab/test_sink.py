"""The head of the live picture: what is stored is what the package measures."""

import json
from pathlib import Path

import pytest

from lab.sink import TOKENS, measure_sink

STORED = Path(__file__).parents[3] / "book" / "_live" / "sink.json"
LENGTHS = (2, 9, TOKENS)


@pytest.mark.slow
def test_the_stored_head_is_the_packages():
    stored, found = json.loads(STORED.read_text(encoding="utf8")), measure_sink(LENGTHS)
    assert found["words"] == stored["words"]
    for row, kept in zip(found["weights"], stored["weights"], strict=True):
        assert row == pytest.approx(kept, abs=1e-6)
    for name in ("norms", "constants"):
        kept = [stored[name][n - 1] for n in LENGTHS]
        assert found[name] == pytest.approx(kept, rel=1e-6), name
    assert len(stored["norms"]) == len(stored["constants"]) == len(stored["words"]) == TOKENS


def test_the_head_does_what_the_page_says_of_it():
    stored = json.loads(STORED.read_text(encoding="utf8"))
    heard = [row[0] > 0.5 for row in stored["weights"][2:]]
    assert 0.7 < sum(heard) / len(heard) < 1, "most new tokens give most to the first one"
    for name in ("norms", "constants"):
        grown = stored[name][-1] / stored[name][1]
        assert 0.75 < grown / (TOKENS / 2) ** 0.5 < 0.95, "in all a little less than √n"
