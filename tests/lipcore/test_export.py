"""The file of one head: another reader finds the same Jacobian in it, and what cannot be written is refused."""

import json
import math
from dataclasses import replace

import pytest
import torch

from lipcore import Attention, export_head

DRAW = torch.Generator().manual_seed(8)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64)


def head(**options) -> Attention:
    """A narrow head with all biases and an output projection."""
    parts = {"query": random(1, 2, 9), "key": random(1, 2, 9), "value": random(1, 3, 9)}
    parts |= {f"{name}_bias": random(1, len(parts[name][0])) for name in [*parts]}
    return Attention(**parts, output=random(5, 3), output_bias=random(5), **options)


def outputs(file: dict, X: torch.Tensor) -> torch.Tensor:
    """The map of a file, from the definition."""
    Q, K, V, b = (
        torch.tensor(file[name], dtype=torch.float64) for name in ("W_Q", "W_K", "W_V", "b_Q")
    )
    scores = file["scale"] * (X @ Q.T + b) @ (X @ K.T).T
    rows = [[-math.inf if x is None else x for x in row] for row in file.get("bias", [[0]])]
    scores = scores + torch.tensor(rows, dtype=torch.float64)
    if file["causal"]:
        scores = scores + torch.full_like(scores, -math.inf).triu(1)
    return scores.softmax(-1) @ X @ V.T


@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "bias"])
def test_the_file_has_the_jacobian_of_the_head(kind, tmp_path):
    seen = (random(6, 6) > 0) | torch.eye(6, dtype=torch.bool)
    tables = {"mask": {"mask": seen}, "bias": {"bias": random(6, 6), "mask": seen[None]}}
    layer, X = head(causal=kind == "causal", **tables.get(kind, {})), random(6, 9)
    export_head(layer, X, tmp_path / "head.json", words=["ä"] * 6)
    file = json.loads((tmp_path / "head.json").read_text(encoding="utf8"))
    Y = torch.tensor(file["X"], dtype=torch.float64)
    there = torch.func.jacrev(lambda Y: outputs(file, Y))(Y).flatten(0, 1).flatten(1)
    here = torch.func.jacrev(layer)(X).flatten(0, 1).flatten(1)
    sizes, truth = torch.linalg.svdvals(there), torch.linalg.svdvals(here)
    assert (
        torch.allclose(sizes, truth[: len(sizes)], rtol=1e-10) and truth[len(sizes) :].sum() < 1e-9
    )
    assert file["lipcore"]["sigma"] == pytest.approx(truth[0].item(), rel=1e-8)
    assert truth[0] < file["lipcore"]["upper"] < file["lipcore"]["local_upper"]
    assert file["words"] == ["ä"] * 6


def test_what_cannot_be_written_is_refused(tmp_path):
    f, X = head(), random(4, 9)
    two = Attention(*(x.repeat(2, 1, 1) for x in (f.query, f.key, f.value)))
    rotary = replace(f, rotary=torch.ones(1).double())
    for layer, tokens, said in (
        (two, X, r"layer\.head\(0\), got 2 heads"),
        (rotary, X, "rotary: measure it with local_lipschitz"),
        (f, X[None], r"one sequence \(n, d\)"),
    ):
        with pytest.raises(ValueError, match=said):
            export_head(layer, tokens, tmp_path / "head.json")
    with pytest.raises(ValueError, match="words: expected 4 names"):
        export_head(f, X, tmp_path / "head.json", words=["one"])
    assert not list(tmp_path.iterdir())
