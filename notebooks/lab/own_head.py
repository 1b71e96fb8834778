"""The examples of the page that measures a head: ``python -m lab.own_head book/_live/head.json``."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

from lab import models
from lipcore import Attention, export_head, local_lipschitz

#: Where the examples are stored.
STORED = Path(__file__).parents[2] / "book" / "_live" / "head.json"
#: The head of MiniLM that is shown, and what it reads.
LAYER, HEAD = 2, 4
SENTENCE = "Attention is all you need, said the paper."


def minilm() -> tuple[Attention, torch.Tensor, list[str]]:
    """Return a head of MiniLM, its tokens at the sentence, and their names."""
    model = models.load("minilm", dtype=torch.float64)
    ids = model.encode(SENTENCE)
    X = model.all_hidden_states(ids[None], up_to=LAYER)[LAYER][0]
    return model.attention(LAYER).head(HEAD), X, [model.decode(token) for token in ids[:, None]]


def crowd() -> tuple[Attention, torch.Tensor, list[str]]:
    """Return a leader, which stands alone, and twelve tokens that look at it."""
    X = torch.tensor([[-1.0, 0.0]] + [[1.0, 0.0]] * 12, dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    return Attention.from_matrices(-1.5 * eye, eye), X, ["leader"] + ["crowd"] * 12


def read(file: dict) -> tuple[Attention, torch.Tensor]:
    """Return the head and the tokens of an exported file."""
    weights = {name: torch.tensor(file[name], dtype=torch.float64) for name in file if "_" in name}
    names = {"query": "W_Q", "key": "W_K", "value": "W_V", "query_bias": "b_Q"}
    parts = {name: weights[key][None] for name, key in names.items() if key in weights}
    options = {"scale": file["scale"], "causal": file["causal"]}
    return Attention(**parts, **options), torch.tensor(file["X"], dtype=torch.float64)


def exported(head: Attention, X: torch.Tensor, words: list[str]) -> dict:
    """Return what :func:`lipcore.export_head` writes, with numbers of four digits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "head.json"
        export_head(head, X, path)
        file = json.loads(
            path.read_text(encoding="utf8"), parse_float=lambda x: float(f"{float(x):.4g}")
        )
        export_head(*read(file), path, words=words)  # the bounds of the rounded head
        return json.loads(path.read_text(encoding="utf8"))


def examples() -> dict:
    """Return the two examples by their names."""
    return {"crowd": crowd(), "minilm": minilm()}


def sigma(head: Attention, X: torch.Tensor) -> float:
    """Return the local Lipschitz constant."""
    return local_lipschitz(head, X, tol=1e-8).value.item()


if __name__ == "__main__":
    found = {name: exported(*example) for name, example in examples().items()}
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    Path(sys.argv[1]).write_text(text + "\n", encoding="utf8")
