"""The counts in the stored table of benchmarks: complete, and what counting again gives."""

from __future__ import annotations

import json

import pandas as pd
import pytest

pytest.importorskip("transformers", reason="needs lipcore[models]")

from benchmarks.cases import LENGTHS
from benchmarks.stops import POWER, count
from lipcore.lab.data import stored_file


@pytest.fixture(scope="module")
def stops():
    table = json.loads(stored_file("benchmarks.json", "make bench").read_text(encoding="utf8"))
    return pd.DataFrame(table["stops"]).pivot(index="rule", columns="n")


def test_every_rule_at_every_length(stops):
    assert stops.notna().all(axis=None) and tuple(stops["pairs"].columns) == LENGTHS
    assert len(stops) == len(POWER) + 2


def test_rules_keep_their_promise(stops):
    assert (stops["error"].loc["power iteration, oracle"] <= 1e-4).all()
    assert (stops["error"].loc["lipcore"] <= 1e-4).all()
    assert (stops["pairs"].loc["power iteration, absolute, as published"] <= 100).all()
    loose, tight = (stops["pairs"].loc[f"power iteration, relative, {x}"] for x in ("1e-4", "1e-6"))
    assert (loose < tight).all()


def test_counted_again(stops):
    for record in count(8):
        there = stops.loc[record["rule"]]
        assert record["pairs"] == pytest.approx(there["pairs", 8], rel=0.02), record
        # single precision decides the last digits of a small error
        assert record["error"] == pytest.approx(there["error", 8], rel=0.3, abs=2e-5), record
