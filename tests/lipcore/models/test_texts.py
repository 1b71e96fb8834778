"""Texts, and their cutting into token sequences."""

from __future__ import annotations

import ast
import re
from types import SimpleNamespace

import pytest
import torch

from lab.models.texts import load_text, sequences


def words_model(max_positions=100):
    """A stand-in whose tokens are the numbers that the text is made of."""

    def check_length(n):
        if n > max_positions:
            raise ValueError(f"n: expected at most {max_positions} tokens, got {n}")
        return n

    return SimpleNamespace(
        encode=lambda text: torch.tensor([int(word) for word in text.split()]),
        special_tokens=lambda: ([101], [102]), check_length=check_length,
    )  # fmt: skip


class TestLoadText:
    """What the named texts are word for word is in the stored tables, as their SHA-256."""

    @pytest.mark.parametrize("name", ("pydoc", "licences"))
    def test_running_english(self, name):
        text = load_text(name)
        assert len(text.split()) > 5_000
        assert len(text.splitlines()) == len(set(text.splitlines()))
        assert not re.search(r"\*\*\*\*|====|::=|>>>|^\s*(#|//|\*)", text, re.MULTILINE)

    def test_code_is_python(self):
        text = load_text("code")
        ast.parse(text)
        assert "class ArgumentParser" in text and "def lru_cache" in text

    def test_bible(self):
        text = load_text("bible")
        assert text.startswith("In the beginning God created the heaven and the earth. And the ")
        assert 290_000 < len(text) <= 300_000 and text.endswith(".") and "[" not in text

    def test_file(self, tmp_path):
        file = tmp_path / "text.txt"
        file.write_text("One para-\ngraph of\n  two lines.\n\n \nAnother.\n", encoding="utf-8")
        assert load_text(file) == load_text(str(file)) == "One para-graph of two lines.\nAnother."

    def test_no_text(self, tmp_path):
        with pytest.raises(ValueError, match="text"):
            load_text(tmp_path / "text.txt")


class TestSequences:
    def test_consecutive_and_disjoint(self):
        pieces = sequences(words_model(), torch.arange(20), n=4, count=3, start=2)
        assert torch.equal(pieces, torch.arange(2, 14).reshape(3, 4))
        words = " ".join(map(str, range(20)))
        assert torch.equal(pieces, sequences(words_model(), words, n=4, count=3, start=2))

    def test_special_tokens_count(self):
        pieces = sequences(words_model(), torch.arange(20), n=4, count=2, special_tokens=True)
        assert pieces.tolist() == [[101, 0, 1, 102], [101, 2, 3, 102]]

    @pytest.mark.parametrize("start", (0, 1))
    def test_exact_fit_and_one_too_many(self, start):
        ids = torch.arange(12 + start)
        assert sequences(words_model(), ids, n=4, count=3, start=start).shape == (3, 4)
        with pytest.raises(ValueError, match="text"):
            sequences(words_model(), ids[:-1], n=4, count=3, start=start)

    @pytest.mark.parametrize(("change", "name"), (
        ({"n": 0}, "n: "),
        ({"n": 101}, "n: "),
        ({"n": 2, "special_tokens": True}, "n: "),
        ({"n": 21}, "text"),
        ({"count": 0}, "count"),
        ({"start": -1}, "start"),
    ))  # fmt: skip
    def test_bad_input(self, change, name):
        with pytest.raises((ValueError, TypeError), match=name):
            sequences(words_model(), **({"text": torch.arange(20), "n": 4} | change))
