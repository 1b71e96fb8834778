"""A head that attends to the first token: ``python -m lab.sink book/_live/sink.json`` measures it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from lab import models
from lab.models.texts import load_text
from lipcore.lipschitz import local_lipschitz

#: The head of SmolLM2 that is shown.
LAYER, HEAD = 18, 3
#: How much of the King James Bible it reads: two sentences and a half.
TOKENS = 44


def measure_sink(lengths: Sequence[int] = range(1, TOKENS + 1)) -> dict:
    """Return what one head does with the first tokens of a text, in double precision."""
    model = models.load("smollm2", dtype=torch.float64)
    ids = model.encode(load_text("bible")[:1000])[:TOKENS]
    X = model.all_hidden_states(ids[None], up_to=LAYER)[LAYER][0]
    head = model.attention(LAYER).head(HEAD)
    P = head.weights(X)[0]
    return {  # at a smaller length the weights are a corner: the model reads from left to right
        "words": [model.decode(token) for token in ids[:, None]],
        "weights": [[round(w, 8) for w in row[: i + 1]] for i, row in enumerate(P.tolist())],
        "norms": [torch.linalg.matrix_norm(P[:n, :n], 2).item() for n in lengths],
        "constants": [local_lipschitz(head, X[:n], tol=1e-9).value.item() for n in lengths],
    }


if __name__ == "__main__":
    found = json.dumps(measure_sink(), ensure_ascii=False, separators=(",", ":"))
    Path(sys.argv[1]).write_text(found + "\n", encoding="utf8")
