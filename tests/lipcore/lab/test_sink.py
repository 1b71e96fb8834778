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
        assert len(stored[name]) == TOKENS
        kept = [stored[name][n - 1] for n in LENGTHS]
        assert found[name] == pytest.approx(kept, rel=1e-6), name
        grown = kept[-1] / kept[0]
        assert 0.75 < grown / (TOKENS / 2) ** 0.5 < 0.95, "in all a little less than √n"
    heard = [row[0] > 0.5 for row in stored["weights"][2:]]
    assert 0.7 < sum(heard) / len(heard) < 1, "most new tokens give most to the first one"
