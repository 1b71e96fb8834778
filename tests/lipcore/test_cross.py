"""Cross-attention as a map of its queries or of its memory, against dense autograd of both."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import lipcore.jacobian as module
from lipcore import Attention, local_lipschitz
from lipcore.bounds import best_upper, layer_upper, local_upper
from lipcore.bounds.local import local_terms
from lipcore.jacobian import AttentionJacobian
from lipcore.spectral import SpectralNorm

EXACT = {"rtol": 1e-12, "atol": 1e-12}
D, MEMORY, HEADS, K, P, Q = 4, 5, 3, 2, 6, 7  # head dimensions are not d/h


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


WEIGHTS = {"query": draw(HEADS, K, D), "key": draw(HEADS, K, MEMORY, seed=1),
           "value": draw(HEADS, P, MEMORY, seed=2)}  # fmt: skip
PROJECTED = WEIGHTS | {"output": draw(Q, HEADS * P, seed=3)}
BIASES = {"query_bias": draw(HEADS, K, seed=4), "key_bias": draw(HEADS, K, seed=5),
          "value_bias": draw(HEADS, P, seed=6), "output_bias": draw(Q, seed=7)}  # fmt: skip
SEEN = draw(2, HEADS, 3, 6, seed=8) > -0.5
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
    "bias and mask": (WEIGHTS, {"mask": PADDING, "bias": draw(HEADS, 3, 6, seed=9)}),
    "masses": (PROJECTED, {"log_weights": draw(6, seed=10)}),
    "sinks": (PROJECTED | BIASES, {"sinks": draw(HEADS, seed=11)}),
    "rotary": (PROJECTED | BIASES, {"rotary": ROTARY}),
    "gates": (PROJECTED | BIASES, {"gate": draw(HEADS, P, D, seed=12), "mask": PADDING}),
    "gate of a head": (WEIGHTS, {"gate": draw(HEADS, 1, D, seed=13), "gate_bias": draw(HEADS, 1)}),
    "fixed gates": (WEIGHTS, {"gate_bias": draw(HEADS, P, seed=14)}),
    "softcap": (PROJECTED, {"softcap": 0.7, "mask": SEEN}),
    "softcap, gates": (WEIGHTS, {"softcap": 0.7, "gate": draw(HEADS, 1, D, seed=15)}),
}  # fmt: skip
COVERED = [name for name in CASES if not {"sinks", "gate", "softcap"} & {*CASES[name][1]}]


def maps(name):
    """The map of the queries and its X, and the map of the memory and its X."""
    weights, options = CASES[name]
    layer = Attention(**weights, **options)
    X, memory = draw(2, 3, D, seed=20), draw(2, 6, MEMORY, seed=21)
    return (layer.cross(memory=memory), X), (layer.cross(queries=X), memory)


def both(kind, name):
    f, X = maps(name)[kind == "memory"]
    return f, X


def turned(layer, vector, position):
    if layer.rotary is None:
        return vector
    angle = position * float(layer.rotary)
    cos, sin = math.cos(angle), math.sin(angle)
    return torch.tensor([[cos, -sin], [sin, cos]], dtype=vector.dtype) @ vector


def one_after_the_other(layer, X, memory):
    """What cross-attention is, in loops over sequences, heads and queries."""
    rows = torch.zeros(*X.shape[:-1], layer.heads, layer.value.shape[1], dtype=X.dtype)
    shape = (*X.shape[:-2], layer.heads, X.shape[-2], memory.shape[-2])
    mask = torch.ones(shape, dtype=torch.bool) & (True if layer.mask is None else layer.mask)
    bias = torch.zeros(shape, dtype=X.dtype) + (0 if layer.bias is None else layer.bias)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, shape[:-1])).tolist():
        query = layer.query[h] @ X[b, i]
        query = query + (0 if layer.query_bias is None else layer.query_bias[h])
        scores = []
        for j, y in enumerate(memory[b]):
            key = layer.key[h] @ y + (0 if layer.key_bias is None else layer.key_bias[h])
            s = layer.scale * turned(layer, query, i) @ turned(layer, key, j)
            s = s if layer.softcap is None else layer.softcap * torch.tanh(s / layer.softcap)
            s = s + bias[b, h, i, j] + (0 if layer.log_weights is None else layer.log_weights[j])
            scores.append(s if mask[b, h, i, j] else torch.tensor(-math.inf, dtype=X.dtype))
        sink = torch.tensor(
            [-math.inf] if layer.sinks is None else [float(layer.sinks[h])], dtype=X.dtype
        )
        P = torch.cat([torch.stack(scores), sink]).softmax(-1)[:-1]
        values = memory[b] @ layer.value[h].mT
        values = values + (0 if layer.value_bias is None else layer.value_bias[h])
        row = P @ values
        if layer.gate is not None:
            opening = layer.gate[h] @ X[b, i] + (
                0 if layer.gate_bias is None else layer.gate_bias[h]
            )
            row = row / (1 + torch.exp(-opening))
        rows[b, i, h] = row
    rows = rows.flatten(-2)
    rows = rows if layer.output is None else rows @ layer.output.mT
    return rows if layer.output_bias is None else rows + layer.output_bias


@pytest.mark.parametrize("name", CASES)
def test_the_map_is_its_definition(name):
    (f, X), (g, memory) = maps(name)
    expected = one_after_the_other(f.attention, X, memory)
    torch.testing.assert_close(f(X), expected, **EXACT)
    torch.testing.assert_close(g(memory), expected, **EXACT)


def dense(f, X):
    """(members, rows, columns), by reverse mode of PyTorch over the whole batch."""
    J = torch.func.jacrev(f)(X)
    rows = J.shape[1:3].numel()
    J = J.reshape(len(X), rows, len(X), -1)
    members = torch.arange(len(X))
    others = J.clone()
    others[members, :, members] = 0
    assert not others.any()
    return J[members, :, members]


@pytest.mark.parametrize("kind", ("queries", "memory"))
@pytest.mark.parametrize("name", CASES)
def test_jacobian_is_that_of_autograd(name, kind):
    f, X = both(kind, name)
    J = f.jacobian(X)
    expected = dense(f, X)
    torch.testing.assert_close(J.dense(), expected, **EXACT)
    torch.testing.assert_close(J.T.dense(), expected.mT, **EXACT)
    sigma = local_lipschitz(f, X, tol=1e-10).value
    torch.testing.assert_close(sigma, torch.linalg.matrix_norm(expected, 2), rtol=1e-9, atol=0)


@pytest.mark.parametrize("kind", ("queries", "memory"))
@pytest.mark.parametrize("name", ("biases", "mask", "sinks"))
@pytest.mark.parametrize("store", (True, False))
def test_tiles_change_nothing(name, kind, store, monkeypatch):
    f, X = both(kind, name)
    whole = AttentionJacobian(f, X).dense()
    monkeypatch.setattr(module, "TILE_BYTES", 1)
    monkeypatch.setattr(module, "TILE_ROWS", 2)
    tiled = AttentionJacobian(f, X, store=store)
    torch.testing.assert_close(tiled.dense(), whole, **EXACT)
    torch.testing.assert_close(tiled.T.dense(), whole.mT, **EXACT)


def test_the_queries_move_alone():
    """Token by token: J is block diagonal, and the blocks are Σ_h W_h V_h C_i A_h."""
    f, X = both("queries", "biases")
    layer = f.attention
    P = f.weights(X)[1]
    memory = f.memory[1]
    found = f.jacobian(X).dense().reshape(2, 3, Q, 3, D)[1]
    W = layer.output.unflatten(1, (HEADS, -1))
    for i in range(3):
        mean = P[:, i] @ memory
        C = torch.einsum("hj,hjd,hje->hde", P[:, i], memory - mean[:, None], memory - mean[:, None])
        A = layer.scale * layer.key.mT @ layer.query
        block = sum(W[:, h] @ layer.value[h] @ C[h] @ A[h] for h in range(HEADS))
        torch.testing.assert_close(found[i, :, i], block, **EXACT)
        assert not found[i, :, [j for j in range(3) if j != i]].any()


def test_multihead_attention_of_pytorch():
    """Weights of nn.MultiheadAttention with a memory of another width, and padding."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(6, 2, kdim=5, vdim=5, batch_first=True, dtype=torch.float64)
    query, key, value = layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight
    parts = [w.detach().unflatten(0, (2, 3)) for w in (query, key, value)]
    biases = [b.detach() for b in layer.in_proj_bias.unflatten(0, (3, 2, 3))]
    out = {"output": layer.out_proj.weight.detach(), "output_bias": layer.out_proj.bias.detach()}
    f = Attention(*parts, *biases, **out, mask=PADDING)
    X, memory = draw(2, 3, 6), draw(2, 6, 5, seed=1)

    def run(X, memory):
        return layer(X, memory, memory, key_padding_mask=~PADDING[:, 0, 0])[0]

    torch.testing.assert_close(f.cross(memory=memory)(X), run(X, memory))
    for cross, Y, other in (
        (f.cross(memory=memory), X, lambda X: run(X, memory)),
        (f.cross(queries=X), memory, lambda memory: run(X, memory)),
    ):
        values = [local_lipschitz(g, Y, tol=1e-10).value for g in (cross, other)]
        torch.testing.assert_close(*values, rtol=1e-9, atol=0)


@pytest.mark.parametrize("kind", ("queries", "memory"))
@pytest.mark.parametrize("name", COVERED)
def test_the_local_bound_holds(name, kind):
    f, X = both(kind, name)
    truth = torch.linalg.matrix_norm(dense(f, X), 2)
    bound = local_upper(f, X)
    assert bool((truth <= bound * (1 + 1e-12)).all()) and bool((bound <= 20 * truth).all())
    absent = {"queries": (0, 2), "memory": (1,)}[kind]
    assert not local_terms(f, X)[..., absent].any()


def test_the_local_bound_of_one_query_and_head_is_sharp():
    f, X = both("queries", "one head")
    one = dataclasses.replace(f, memory=f.memory[:, :, :])
    truth = torch.linalg.matrix_norm(dense(one, X), 2)
    torch.testing.assert_close(local_upper(one, X), truth, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ("sinks", "gates", "softcap"))
def test_bounds_that_do_not_cover_it_say_so(name):
    f, X = both("queries", name)
    with pytest.raises(ValueError, match="covers"):
        local_upper(f, X)
    for bound in (best_upper, layer_upper):
        with pytest.raises(ValueError, match="local_upper"):
            bound(attention=f, n=3, radius=1.0)


@pytest.mark.parametrize("kind", ("queries", "memory"))
@pytest.mark.parametrize("name", ("biases", "gates", "sinks"))
def test_shares_sum_up(name, kind):
    f, X = both(kind, name)
    found = local_lipschitz(f, X, tol=1e-10)
    terms = found.by_term()
    torch.testing.assert_close(terms.sum(-1), found.value)
    torch.testing.assert_close(found.by_head().sum(-1), found.value)
    absent = {"queries": (0, 2), "memory": (1, 3)}[kind]
    assert not terms[..., [i for i in absent if i < terms.shape[-1]]].any()
    for i, member in enumerate(found):
        assert isinstance(member, SpectralNorm)
        torch.testing.assert_close(member.by_head(), found.by_head()[i])


def test_gradient_through_sigma():
    f, X = both("memory", "biases")
    X = X[:1].requires_grad_()
    f = dataclasses.replace(f, queries=f.queries[:1])
    found = local_lipschitz(f, X, differentiable=True)
    direction = draw(*X.shape, seed=30)
    (gradient,) = torch.autograd.grad(found.value.sum(), X)
    step = 1e-5
    moved = [local_lipschitz(f, (X + s * step * direction).detach(), tol=1e-12).value
             for s in (1, -1)]  # fmt: skip
    slope = (moved[0] - moved[1]) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum()[None], slope, rtol=1e-5, atol=1e-8)


def test_one_memory_for_all_sequences():
    f, X = both("queries", "biases")
    shared = dataclasses.replace(f, memory=f.memory[0])
    found = shared.jacobian(X).dense()
    torch.testing.assert_close(found[0], f.jacobian(X).dense()[0], **EXACT)
    torch.testing.assert_close(shared(X[0]), f(X)[0], **EXACT)
    assert repr(shared).endswith("of queries, at memory of shape (6, 5)")


LAYER = Attention(**WEIGHTS)
BAD = {
    "none": (lambda: LAYER.cross(), "^memory, queries: "),
    "both": (
        lambda: LAYER.cross(memory=draw(6, MEMORY), queries=draw(3, D)),
        "^memory, queries: "
    ),
    "causal": (
        lambda: Attention(**WEIGHTS, causal=True).cross(memory=draw(6, MEMORY)),
        "^attention: .*mask"
    ),
    "memory of another dimension": (
        lambda: LAYER.cross(memory=draw(6, D)),
        "^memory: "
    ),
    "another batch": (
        lambda: LAYER.cross(memory=draw(2, 6, MEMORY))(draw(3, 4, D)),
        "^X: "
    ),
    "mask for other queries": (
        lambda: Attention(**WEIGHTS, mask=SEEN).cross(memory=draw(2, 6, MEMORY))(draw(2, 4, D)),
        "^queries: "
    ),
    "mask for other memory": (
        lambda: Attention(**WEIGHTS, mask=PADDING).cross(queries=draw(2, 3, D))(draw(2, 5, MEMORY)),
        "^memory: "
    ),
    "masses for other memory": (
        lambda: Attention(**WEIGHTS, log_weights=draw(1)).cross(queries=draw(3, D))(draw(5, MEMORY)),
        "^memory: "
    ),
    "event_dims": (
        lambda: local_lipschitz(LAYER.cross(queries=draw(3, D)), draw(5, MEMORY), event_dims=3),
        "^event_dims, layout: "
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
