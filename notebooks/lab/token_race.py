"""Searches at equal budget, many times over: ``python -m lab.token_race FILE`` stores them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from lab import models
from lab._threads import one_thread
from lab.models.language_model import LanguageModel
from lab.models.texts import load_text, sequences
from lab.stored import read_rows, short, write_rows
from lab.token_attacks import SearchResult, guided_search, random_search, random_sequences
from lipcore.models.measure import versions

#: Tokens in a sequence, exact evaluations of a search, repeats with a text and a seed of their own.
LENGTH, BUDGET, REPEATS = 16, 161, 48
#: The settings of the searches were chosen on texts among these first tokens of the manual.
CHOSEN_ON = 1600
#: Best values are stored after each block of this many evaluations.
EVERY = 8


class Entrant(NamedTuple):
    """One way to use the budget: random sequences first, then a search from the best of them."""

    first: int
    search: Callable[..., SearchResult] | None  # from a piece of text if there were no random ones


#: The searches that are compared; the number 64 was fixed before the first run.
ENTRANTS = {
    "random sequences": Entrant(BUDGET, None),
    "random exchanges": Entrant(0, random_search),
    "guided": Entrant(0, guided_search),
    "random sequences, then random exchanges": Entrant(64, random_search),
    "random sequences, then guided": Entrant(64, guided_search),
}


def plain_tokens(model: LanguageModel) -> Tensor:
    """Return a mask of the tokens that are easy to write: no special tokens, no other alphabets."""
    words = [model.tokenizer.id_to_token(i) for i in range(model.vocab_size)]
    plain = [word.isascii() and not (word.startswith("[") and len(word) > 2) for word in words]
    return torch.tensor(plain)


def run(
    model: LanguageModel,
    layer: int,
    entrant: Entrant,
    ids: Tensor,
    *,
    allowed: Tensor,
    seed: int,
    budget: int = BUDGET,
) -> SearchResult:
    """Run one search once, with the whole budget of exact evaluations.

    Searches with the same seed evaluate the same random sequences.
    """
    options = {"allowed": allowed, "generator": torch.Generator().manual_seed(seed)}
    first = min(entrant.first, budget)
    if not first:
        return entrant.search(model, layer, ids, evaluations=budget, **options)
    found = random_sequences(model, layer, len(ids), evaluations=first, **options)
    if entrant.search is None:
        return found
    # the start was evaluated already, so that it is counted once
    later = entrant.search(model, layer, found.ids, evaluations=budget - first + 1, **options)
    return later._replace(history=torch.cat([found.history, later.history[1:]]))


def starts(model: LanguageModel) -> Tensor:
    """Return pieces of the manual on which no setting was chosen, shape (repeats, n)."""
    return sequences(model, load_text("pydoc")[:30_000], LENGTH, REPEATS, start=CHOSEN_ON)


def stored() -> pd.DataFrame:
    """Return the runs that are kept with the book, ``best`` after 1, 9, …, 161 evaluations."""
    return read_rows("searches.json", "runs", "make searches")


def main(file: Path) -> None:
    """Run the race on layer 0 of MiniLM and write it to a file."""
    model = models.load("minilm")
    allowed = plain_tokens(model)
    plan = [(name, *piece) for name in ENTRANTS for piece in enumerate(starts(model))]
    rows = []
    with one_thread():
        for name, seed, ids in tqdm(plan, unit="run"):
            found = run(model, 0, ENTRANTS[name], ids, allowed=allowed, seed=seed)
            best = short(found.history[::EVERY].tolist(), 5)
            row = {"entrant": name, "seed": seed, "text": ids.tolist(), "best": best}
            rows.append(row | {"ids": found.ids.tolist()})
    made = {"model": "minilm", "layer": 0, "text": "pydoc", "versions": versions()}
    write_rows(file, "runs", rows, **made)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
