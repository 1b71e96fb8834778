"""Searches at equal budget: what a run spends, and what a machine that runs them again finds."""

from __future__ import annotations

import platform

import pytest
import torch

pytest.importorskip("transformers", reason="needs lipcore[book]")

from lab import models, token_race
from lab.token_attacks import evaluate
from lab.token_race import BUDGET, ENTRANTS, EVERY, LENGTH, REPEATS, plain_tokens, run


@pytest.fixture(scope="module")
def table():
    return token_race.stored()


@pytest.fixture(scope="module")
def model():
    return models.load("minilm")


def test_every_run_is_there_and_runs_of_a_seed_share_what_they_should(table):
    wanted = [(name, seed) for name in ENTRANTS for seed in range(REPEATS)]
    assert list(zip(table.entrant, table.seed, strict=True)) == wanted
    assert all(len(ids) == LENGTH for column in ("ids", "text") for ids in table[column])
    values = torch.tensor(table.best.tolist())
    assert values.shape == (len(wanted), 1 + (BUDGET - 1) // EVERY)
    assert (values.diff() >= 0).all() and (values > 0).all()
    shared = 1 + 63 // EVERY
    for _, rows in table.groupby("seed"):
        assert len({tuple(ids) for ids in rows.text}) == 1
        best = rows.set_index("entrant").best
        for name in ("random sequences, then random exchanges", "random sequences, then guided"):
            assert best[name][:shared] == best["random sequences"][:shared]
        assert best["guided"][0] == best["random exchanges"][0]


def test_texts_are_not_those_on_which_settings_were_chosen(table, model):
    """Where Python words its manual as it did when the table was made."""
    if platform.python_version() != table.attrs["versions"]["python"]:
        pytest.skip("another version of Python words the manual in another way")
    pieces = token_race.starts(model)
    assert pieces.tolist() == table.text[:REPEATS].tolist()
    chosen_on = model.encode(token_race.load_text("pydoc")[:30_000])[: token_race.CHOSEN_ON]
    assert not any(torch.equal(a, b) for a in chosen_on.split(LENGTH) for b in pieces)


def test_sequences_have_the_stored_constants_and_allowed_tokens(table, model):
    """One run in six."""
    some = table.iloc[::6]
    ids = torch.tensor(some.ids.tolist())
    values = evaluate(model, 0, ids)
    assert values.tolist() == pytest.approx([best[-1] for best in some.best], rel=2e-3)
    new = ids != torch.tensor(some.text.tolist())
    assert plain_tokens(model)[ids[new]].all()


@pytest.mark.parametrize("name", ["random sequences", "guided"])
def test_a_run_begins_again_as_it_did(table, model, name):
    row = table[(table.entrant == name) & (table.seed == 7)].iloc[0]
    options = {"allowed": plain_tokens(model), "seed": 7, "budget": 17}
    found = run(model, 0, ENTRANTS[name], torch.tensor(row.text), **options)
    assert found.history[::EVERY].tolist() == pytest.approx(row.best[:3], rel=2e-3)


def test_plain_tokens_leave_out_what_is_hard_to_write(model):
    allowed = plain_tokens(model)
    for word, plain in {"the": 1, "##s": 1, "[": 1, "[CLS]": 0, "[unused7]": 0, "é": 0}.items():
        number = model.tokenizer.token_to_id(word)
        assert number is None or allowed[number] == plain, word


@pytest.fixture
def spent(monkeypatch):
    """Count what is evaluated, in place of evaluating it: a sequence is worth its sum."""
    seen = []

    def cheap(model, layer, ids, attention=None):
        rows = ids.reshape(-1, ids.shape[-1])
        seen.extend(map(tuple, rows.tolist()))
        return rows.double().sum(1)

    monkeypatch.setattr("lab.token_attacks.evaluate", cheap)
    return seen


@pytest.mark.parametrize("name", [name for name in ENTRANTS if "guided" not in name])
def test_a_run_spends_its_budget(model, spent, name):
    options = {"allowed": plain_tokens(model), "seed": 3, "budget": 70}
    text = torch.arange(100, 108)
    found = run(model, 0, ENTRANTS[name], text, **options)
    assert len(found.history) == 70 and (found.history.diff() >= 0).all()
    assert found.value == found.history[-1] == max(map(sum, spent)) == sum(found.ids.tolist())
    first, search = ENTRANTS[name]
    assert (spent[0] == tuple(text.tolist())) == (first == 0)
    if first and search:  # begins at the best of the random ones, which is counted once
        assert len(spent) == 71 and spent[64] == max(spent[:64], key=sum)


def test_one_command_makes_the_file_in_its_form(table, spent, monkeypatch, tmp_path):
    monkeypatch.setattr(token_race, "REPEATS", 2)
    names = ("random sequences", "random exchanges")
    monkeypatch.setattr(token_race, "ENTRANTS", {name: ENTRANTS[name] for name in names})
    file = tmp_path / "searches.json"
    token_race.main(file)
    monkeypatch.setattr("lab.stored.stored_file", lambda *_: file)
    made = token_race.stored()
    assert made.attrs.keys() == table.attrs.keys() and [*made.columns] == [*table.columns]
    assert made.seed.tolist() == [0, 1, 0, 1] and {*made.entrant} == {*names}
    assert {*made.best.map(len)} == {*table.best.map(len)}
