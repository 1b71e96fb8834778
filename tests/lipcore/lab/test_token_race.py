"""Searches at equal budget: what a run spends, and what a machine that runs them again finds."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="needs lipcore[book]")

from lab import models, token_race
from lab.sweep import stored as stored_sweep
from lab.token_attacks import SearchResult, evaluate
from lab.token_race import (
    BUDGET,
    ENTRANTS,
    EVERY,
    LENGTH,
    REPEATS,
    Entrant,
    plain_tokens,
    run,
    stored,
)


@pytest.fixture(scope="module")
def table():
    return stored()


@pytest.fixture(scope="module")
def model():
    return models.load("minilm")


def test_every_run_is_there(table):
    wanted = [(name, seed) for name in ENTRANTS for seed in range(REPEATS)]
    assert list(zip(table.entrant, table.seed, strict=True)) == wanted
    assert all(len(ids) == LENGTH for column in ("ids", "text") for ids in table[column])
    values = torch.tensor(table.best.tolist())
    assert values.shape == (len(wanted), 1 + (BUDGET - 1) // EVERY)
    assert (values.diff() >= 0).all() and (values > 0).all()


def test_runs_of_a_seed_share_their_text_and_their_random_sequences(table):
    for _, rows in table.groupby("seed"):
        assert len({tuple(ids) for ids in rows.text}) == 1
        best = rows.set_index("entrant").best
        shared = 1 + 63 // EVERY
        for name in ("random sequences, then random exchanges", "random sequences, then guided"):
            assert best[name][:shared] == best["random sequences"][:shared]
        assert best["guided"][0] == best["random exchanges"][0]


def test_texts_are_not_those_on_which_settings_were_chosen(table, model):
    """Where Python words its manual as it did when the table was made."""
    import platform

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


@pytest.mark.parametrize("name", ["random sequences", "random exchanges", "guided"])
def test_a_run_begins_again_as_it_did(table, model, name):
    row = table[(table.entrant == name) & (table.seed == 7)].iloc[0]
    found = run(
        model, 0, ENTRANTS[name], torch.tensor(row.text),
        allowed=plain_tokens(model), seed=7, budget=17,
    )  # fmt: skip
    assert found.history[::EVERY].tolist() == pytest.approx(row.best[:3], rel=2e-3)


def test_plain_tokens_leave_out_what_is_hard_to_write(model):
    allowed = plain_tokens(model)
    written = {w: bool(allowed[model.tokenizer.token_to_id(w)]) for w in ("the", "##s", "[")}
    assert all(written.values())
    for word in ("[CLS]", "[unused7]", "é", "王"):
        number = model.tokenizer.token_to_id(word)
        assert number is None or not allowed[number]


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
@pytest.mark.parametrize("budget", [17, 70, 161])
def test_a_run_spends_its_budget(model, spent, name, budget):
    allowed = torch.ones(model.vocab_size, dtype=torch.bool)
    found = run(
        model, 0, ENTRANTS[name], torch.arange(100, 108), allowed=allowed, seed=3, budget=budget
    )
    assert len(found.history) == budget
    assert found.value == found.history[-1] == max(map(sum, spent))
    assert sum(found.ids.tolist()) == found.value
    # the best of the random sequences is evaluated again as a start, and counted once
    again = bool(ENTRANTS[name].first and ENTRANTS[name].search)
    assert len(spent) == budget + again
    assert (found.history.diff() >= 0).all()


def test_a_search_after_random_sequences_begins_at_the_best_of_them(model, spent):
    begun = []

    def search(model, layer, ids, *, evaluations, **options):
        begun.append((ids.tolist(), evaluations))
        return SearchResult(ids, 0.0, torch.zeros(evaluations))

    allowed = torch.ones(model.vocab_size, dtype=torch.bool)
    text = torch.arange(100, 108)
    run(model, 0, Entrant(20, search), text, allowed=allowed, seed=1, budget=50)
    assert begun == [(list(max(spent, key=sum)), 31)]
    run(model, 0, Entrant(0, search), text, allowed=allowed, seed=1, budget=50)
    assert begun[1] == (text.tolist(), 50)


def test_stored_tables_are_found_or_named():
    assert len(stored_sweep()) > 0
    with pytest.raises(FileNotFoundError, match="make nothing"):
        token_race.stored_file("nothing.json", "make nothing")
