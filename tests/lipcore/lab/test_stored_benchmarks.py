"""The counts in the stored table of benchmarks: complete, and what counting again gives."""

from __future__ import annotations

import json

import pandas as pd
import pytest

pytest.importorskip("transformers", reason="needs lipcore[book]")

from benchmarks.cases import LENGTHS
from lab.distil import POWER, count
from lab.stored import stored_file


@pytest.fixture(scope="module")
def table():
    return json.loads(stored_file("benchmarks.json", "make bench").read_text(encoding="utf8"))


@pytest.fixture(scope="module")
def stops(table):
    return pd.DataFrame(table["stops"]).pivot(index="rule", columns="n")


def test_every_rule_at_every_length_keeps_its_promise(stops):
    assert stops.notna().all(axis=None) and tuple(stops["pairs"].columns) == LENGTHS
    assert len(stops) == len(POWER) + 2
    assert (stops["error"].loc["power iteration, oracle"] <= 1e-4).all()
    assert (stops["error"].loc["lipcore"] <= 1e-4).all()
    assert (stops["pairs"].loc["power iteration, absolute, as published"] <= 100).all()
    loose, tight = (stops["pairs"].loc[f"power iteration, relative, {x}"] for x in ("1e-4", "1e-6"))
    assert (loose < tight).all()


def test_what_was_timed_ended_where_the_count_says(table, stops):
    """The same iterations on other products: the errors agree as far as single precision lets them."""
    timed = pd.DataFrame(table["rivals"]).pivot(index="method", columns="n")["error"]
    pairs = {
        "power iteration": "power iteration, absolute, as published",
        "power iteration, oracle": "power iteration, oracle",
        "lipcore": "lipcore",
        "lipcore, no certificate": "lipcore, no certificate",
    }
    for method, rule in pairs.items():
        expected = pytest.approx(stops["error"].loc[rule].tolist(), rel=0.1, abs=1e-6)
        assert timed.loc[method].tolist() == expected, method


def test_counted_again(stops):
    for record in count(8):
        there = stops.loc[record["rule"]]
        assert record["pairs"] == pytest.approx(there["pairs", 8], rel=0.02), record
        # single precision decides the last digits of a small error
        assert record["error"] == pytest.approx(there["error", 8], rel=0.3, abs=2e-5), record
