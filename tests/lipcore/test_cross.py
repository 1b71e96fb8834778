"""Cross-attention as a map of its queries or of its memory, against loops and dense autograd."""

import dataclasses

import numpy as np
import pytest
import torch

import lipcore.jacobian as module
from lipcore import Attention, local_lipschitz
from lipcore.bounds import best_upper, layer_upper, local_upper
from lipcore.bounds.local import local_terms
from lipcore.jacobian import AttentionJacobian
from loops import alone, loop_attention
from seeded import drawn

EXACT = {"rtol": 1e-12, "atol": 1e-12}
D, MEMORY, HEADS, K, P, Q = 4, 5, 3, 2, 6, 7  # head dimensions are not d/h


WEIGHTS = {"query": drawn(HEADS, K, D), "key": drawn(HEADS, K, MEMORY, seed=1),
           "value": drawn(HEADS, P, MEMORY, seed=2)}  # fmt: skip
PROJECTED = WEIGHTS | {"output": drawn(Q, HEADS * P, seed=3)}
BIASES = {"query_bias": drawn(HEADS, K, seed=4), "key_bias": drawn(HEADS, K, seed=5),
          "value_bias": drawn(HEADS, P, seed=6), "output_bias": drawn(Q, seed=7)}  # fmt: skip
SEEN = drawn(2, HEADS, 3, 6, seed=8) > -0.5
SEEN[..., 0] = True
PADDING = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])[:, None, None, :]
ROTARY = torch.tensor([0.3], dtype=torch.float64)
CASES = {
    "heads concatenated": (WEIGHTS, {}),
    "biases": (PROJECTED | BIASES, {"scale": 0.4}),
    "one head": ({name: x[:1] for name, x in WEIGHTS.items()}, {}),
    "shared keys": (PROJECTED | {name: WEIGHTS[name][:1] for name in ("key", "value")}, {}),
    "mask": (PROJECTED, {"mask": SEEN}),
    "padding": (PROJECTED | BIASES, {"mask": PADDING}),
    "bias and mask": (WEIGHTS, {"mask": PADDING, "bias": drawn(HEADS, 3, 6, seed=9)}),
    "masses": (PROJECTED, {"log_weights": drawn(6, seed=10)}),
    "sinks": (PROJECTED | BIASES, {"sinks": drawn(HEADS, seed=11)}),
    "rotary": (PROJECTED | BIASES, {"rotary": ROTARY}),
    "gates": (PROJECTED | BIASES, {"gate": drawn(HEADS, P, D, seed=12), "mask": PADDING}),
    "gate of a head": (
        WEIGHTS, {"gate": drawn(HEADS, 1, D, seed=13), "gate_bias": drawn(HEADS, 1)}),
    "fixed gates": (WEIGHTS, {"gate_bias": drawn(HEADS, P, seed=14)}),
    "softcap": (PROJECTED, {"softcap": 0.7, "mask": SEEN}),
    "softcap, gates": (WEIGHTS, {"softcap": 0.7, "gate": drawn(HEADS, 1, D, seed=15)}),
}  # fmt: skip
COVERED = [name for name in CASES if not {"sinks", "gate", "softcap"} & {*CASES[name][1]}]
KIND = pytest.mark.parametrize("kind", ("queries", "memory"))


def make(kind, name):
    """The map of the queries or of the memory, and its tokens."""
    weights, options = CASES[name]
    layer = Attention(**weights, **options)
    X, memory = drawn(2, 3, D, seed=20), drawn(2, 6, MEMORY, seed=21)
    return (
        (layer.cross(memory=memory), X) if kind == "queries" else (layer.cross(queries=X), memory)
    )


def dense(f, X):
    """(members, rows, columns), by reverse mode of PyTorch over the whole batch."""
    J = torch.func.jacrev(f)(X)
    J = J.reshape(len(X), J.shape[1:3].numel(), len(X), -1)
    members = torch.arange(len(X))
    own = J[members, :, members].clone()
    J[members, :, members] = 0
    assert not J.any()
    return own


@pytest.mark.parametrize("name", CASES)
def test_the_map_is_its_definition(name):
    (f, X), (g, memory) = make("queries", name), make("memory", name)
    weights, options = CASES[name]
    for i in range(2):
        kwargs = alone(weights | options, (2, f.heads, 3, 6), i)
        expected = loop_attention(kwargs, X[i].numpy(), memory[i].numpy())
        np.testing.assert_allclose(f(X)[i], expected, **EXACT)
        np.testing.assert_allclose(g(memory)[i], expected, **EXACT)


@KIND
@pytest.mark.parametrize("name", CASES)
def test_jacobian_is_that_of_autograd(name, kind):
    f, X = make(kind, name)
    J, expected = f.jacobian(X), dense(f, X)
    torch.testing.assert_close(J.dense(), expected, **EXACT)
    torch.testing.assert_close(J.T.dense(), expected.mT, **EXACT)
    found = local_lipschitz(f, X, tol=1e-10)
    truth = torch.linalg.matrix_norm(expected, 2)
    torch.testing.assert_close(found.value, truth, rtol=1e-9, atol=0)
    terms = found.by_term()
    torch.testing.assert_close(terms.sum(-1), found.value)
    torch.testing.assert_close(found.by_head().sum(-1), found.value)
    still = [0, 2] if kind == "queries" else [1]  # terms of what does not move
    assert not terms[..., still].any()
    for i, member in enumerate(found):
        torch.testing.assert_close(member.by_head(), found.by_head()[i])
    if name in COVERED:
        bound = local_upper(f, X)
        assert bool((truth <= bound * (1 + 1e-12)).all()) and bool((bound <= 20 * truth).all())
        assert not local_terms(f, X)[..., still].any()


@KIND
@pytest.mark.parametrize("name", ("biases", "mask", "sinks"))
@pytest.mark.parametrize("store", (True, False))
def test_tiles_change_nothing(name, kind, store, monkeypatch):
    f, X = make(kind, name)
    whole = AttentionJacobian(f, X).dense()
    monkeypatch.setattr(module, "TILE_BYTES", 1)
    monkeypatch.setattr(module, "TILE_ROWS", 2)
    tiled = AttentionJacobian(f, X, store=store)
    torch.testing.assert_close(tiled.dense(), whole, **EXACT)
    torch.testing.assert_close(tiled.T.dense(), whole.mT, **EXACT)


def test_the_local_bound_of_one_head_is_sharp():
    f, X = make("queries", "one head")
    truth = torch.linalg.matrix_norm(dense(f, X), 2)
    torch.testing.assert_close(local_upper(f, X), truth, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ("sinks", "gates", "softcap"))
def test_bounds_that_do_not_cover_it_say_so(name):
    f, X = make("queries", name)
    with pytest.raises(ValueError, match="covers"):
        local_upper(f, X)
    for bound in (best_upper, layer_upper):
        with pytest.raises(ValueError, match="local_upper"):
            bound(attention=f, n=3, radius=1.0)


def test_one_memory_for_all_sequences():
    f, X = make("queries", "biases")
    shared = dataclasses.replace(f, memory=f.memory[0])
    torch.testing.assert_close(shared.jacobian(X).dense()[0], f.jacobian(X).dense()[0], **EXACT)
    torch.testing.assert_close(shared(X[0]), f(X)[0], **EXACT)
    assert repr(shared).endswith("of queries, at memory of shape (6, 5)")


LAYER, X, Y = Attention(**WEIGHTS), drawn(2, 3, D), drawn(2, 6, MEMORY)
BAD = [
    ("memory, queries", lambda: LAYER.cross()),
    ("memory, queries", lambda: LAYER.cross(memory=Y, queries=X)),
    ("attention", lambda: Attention(**WEIGHTS, causal=True).cross(memory=Y)),
    ("memory", lambda: LAYER.cross(memory=X)),
    ("X", lambda: LAYER.cross(memory=Y)(drawn(3, 4, D))),
    ("queries", lambda: Attention(**WEIGHTS, mask=SEEN).cross(memory=Y)(drawn(2, 4, D))),
    ("memory", lambda: Attention(**WEIGHTS, mask=PADDING).cross(queries=X)(drawn(2, 5, MEMORY))),
    ("memory", lambda: Attention(**WEIGHTS, log_weights=drawn(1)).cross(queries=X)(Y)),
    ("event_dims, layout", lambda: local_lipschitz(LAYER.cross(queries=X), Y, event_dims=3)),
]


@pytest.mark.parametrize(("named", "call"), BAD)
def test_bad_input(named, call):
    with pytest.raises(ValueError, match=f"^{named}: "):
        call()
