"""Claims refuse evidence that contradicts them, and show themselves in three forms."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from lab.claims import CHECKED_TYPE, MIME_TYPE, Claim, checked, claim, format_ratio


def make(**changes):
    fields = dict(key="sqrt-n", statement="At most $\\sqrt{n}$.", source="paper", status="checked")
    return claim(**{**fields, **changes})


@pytest.mark.parametrize(
    "ratios",
    [
        [0.25, 0.5],
        [[0.1], [0.5, 0.2]],
        np.array([[0.5, 0.1]]),
        torch.tensor([0.5, 0.25], dtype=torch.float64),
        np.float64(0.5),
        (value for value in (0.5, 0.1)),
        0.5,
    ],
    ids=["list", "nested", "array", "tensor", "scalar", "generator", "float"],
)
def test_the_largest_of_all_ratios_counts(ratios):
    assert make(ratio=ratios).ratio == 0.5


@pytest.mark.parametrize("status", ["enclosed", "proved", "checked"])
def test_a_ratio_above_one_contradicts_the_claim(status):
    with pytest.raises(ValueError, match="contradicts"):
        make(status=status, ratio=[0.2, 1 + 2e-9])


def test_rounding_error_is_no_contradiction():
    assert make(ratio=1 + 5e-10).ratio > 1


def test_a_claim_that_fails_may_exceed_one_but_needs_a_witness():
    assert make(status="fails", ratio=3.0, witness="$n=2$").ratio == 3.0
    for witness in (None, "", "  "):
        with pytest.raises(ValueError, match="witness"):
            make(status="fails", ratio=3.0, witness=witness)


@pytest.mark.parametrize("ratio", [float("nan"), float("inf"), -0.1, [], [0.5, float("nan")]])
def test_a_ratio_that_is_no_number_is_refused(ratio):
    with pytest.raises(ValueError, match="ratio"):
        make(ratio=ratio)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": "Two Words"}, "key"),
        ({"key": ""}, "key"),
        ({"statement": " "}, "statement"),
        ({"statement": "odd $x"}, "dollar"),
        ({"source": "hearsay"}, "source"),
        ({"source": None}, "source"),
        ({"status": "true"}, "status"),
    ],
)
def test_a_field_without_meaning_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_a_work_of_the_bibliography_can_be_the_source():
    assert make(source="yudin2025").source == "yudin2025"


def test_a_claim_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().ratio = 0.1


def test_the_three_forms_agree():
    item = make(ratio=0.5, statement="$a < b$ holds.")
    bundle = item._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain", MIME_TYPE}
    assert json.loads(json.dumps(bundle[MIME_TYPE])) == dataclasses.asdict(item)
    assert "0.5" in bundle["text/plain"] and "0.5" in bundle["text/html"]
    assert r"\(a &lt; b\)" in bundle["text/html"]
    assert 'id="claim-sqrt-n"' in bundle["text/html"]


def test_html_in_words_is_shown_not_obeyed():
    assert "<script>" not in make(statement="<script>alert(1)</script>")._repr_html_()


@pytest.mark.parametrize("ratio", [0.99995, 0.999999999, 0.9994, 0.5, 0.123456])
def test_a_ratio_below_one_never_reads_as_one(ratio):
    assert float(format_ratio(ratio)) < 1


def test_the_class_itself_checks_too():
    with pytest.raises(ValueError, match="contradicts"):
        Claim("x", "y", "book", "proved", ratio=2.0)


def test_a_claim_names_its_theorem_by_label():
    assert make(theorem="thm-sqrt-n")._repr_mimebundle_()[MIME_TYPE]["theorem"] == "thm-sqrt-n"
    for label in ("Theorem 1", "thm", ""):
        with pytest.raises(ValueError, match="theorem"):
            make(theorem=label)


def test_the_forms_of_a_check_agree():
    bundle = checked("It holds for $a < b$.")._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain", CHECKED_TYPE}
    assert json.loads(json.dumps(bundle[CHECKED_TYPE])) == {"text": "It holds for $a < b$."}
    assert bundle["text/plain"] == "✓ It holds for $a < b$."
    assert r"✓ It holds for \(a &lt; b\)." in bundle["text/html"]


@pytest.mark.parametrize("text", ["", "  ", None, "odd $x"])
def test_a_check_says_something(text):
    with pytest.raises(ValueError, match="text"):
        checked(text)
