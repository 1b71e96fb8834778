"""Claims refuse evidence that contradicts them, and show themselves in three forms."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from lab.claims import CHECKED_TYPE, MIME_TYPE, Claim, checked, claim


def make(**changes):
    fields = dict(key="sqrt-n", statement="At most $\\sqrt{n}$.", source="paper", status="checked")
    return claim(**{**fields, **changes})


def test_the_largest_of_all_ratios_counts():
    generator = (value for value in (0.5, 0.1))
    for ratios in ([[0.1], [0.5, 0.2]], np.array([[0.5, 0.1]]), torch.tensor(0.5), generator):
        assert make(ratio=ratios).ratio == 0.5


@pytest.mark.parametrize("status", ["enclosed", "proved", "checked"])
def test_a_ratio_above_one_contradicts_the_claim(status):
    assert make(status=status, ratio=1 + 5e-10).ratio > 1  # rounding
    with pytest.raises(ValueError, match=r"^ratio: "):
        make(status=status, ratio=[0.2, 1 + 2e-9])
    with pytest.raises(ValueError, match=r"^ratio: "):
        Claim("x", "y", "book", status, ratio=2.0)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("key", ["Two Words", "", None]),
        ("statement", [" ", "odd $x", None]),
        ("source", ["hearsay", None]),
        ("status", ["true"]),
        ("theorem", ["Theorem 1", "thm", ""]),
        ("ratio", [math.nan, math.inf, -0.1, [], [0.5, math.nan]]),
    ],
)
def test_a_field_without_meaning_is_named(name, values):
    for value in values:
        with pytest.raises(ValueError, match=f"^{name}: "):
            make(**{name: value})


def test_a_claim_that_fails_may_exceed_one_but_needs_a_witness():
    assert make(status="fails", ratio=3.0, witness="$n=2$").ratio == 3.0
    for witness in (None, "", "  "):
        with pytest.raises(ValueError, match=r"^witness: "):
            make(status="fails", ratio=3.0, witness=witness)


def test_the_three_forms_agree():
    item = make(ratio=0.5, statement="$a < b$ <b>", source="yudin2025", theorem="thm-sqrt-n")
    bundle = item._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain", MIME_TYPE}
    assert json.loads(json.dumps(bundle[MIME_TYPE])) == dataclasses.asdict(item)
    assert "0.5" in bundle["text/plain"] and "0.5" in bundle["text/html"]
    assert r"\(a &lt; b\) &lt;b&gt;" in bundle["text/html"]
    assert 'id="claim-sqrt-n"' in bundle["text/html"]


def test_the_forms_of_a_check_agree():
    bundle = checked("It holds for $a < b$.")._repr_mimebundle_()
    assert json.loads(json.dumps(bundle[CHECKED_TYPE])) == {"text": "It holds for $a < b$."}
    assert bundle["text/plain"] == "✓ It holds for $a < b$."
    assert r"✓ It holds for \(a &lt; b\)." in bundle["text/html"]
    for text in ("", "  ", None, "odd $x"):
        with pytest.raises(ValueError, match=r"^text: "):
            checked(text)
