"""Attention against loops written from the definition, and what it refuses."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from lipcore import Attention, AttentionJacobian, attention_map


def loop_attention(kwargs: dict, X: np.ndarray) -> np.ndarray:
    """f(X) for X (n, d), one number at a time, from the constructor's arguments."""
    arrays = {
        name: value.numpy() if isinstance(value, torch.Tensor) else value
        for name, value in kwargs.items()
    }
    heads, n = arrays["query"].shape[0], len(X)
    concatenated = np.zeros((n, heads * arrays["value"].shape[1]))
    for h in range(heads):
        g = h * arrays["key"].shape[0] // heads  # the key head that this query head shares
        for i in range(n):
            weights = loop_weights(arrays, X, h, g, i)
            row = sum(weights[j] * affine(arrays, "value", g, X[j]) for j in range(n))
            row = row * gates(arrays, h, X[i])
            concatenated[i, h * len(row) : (h + 1) * len(row)] = row
    if "output" not in arrays:
        return concatenated
    return concatenated @ arrays["output"].T + arrays.get("output_bias", 0.0)


def loop_weights(arrays: dict, X: np.ndarray, h: int, g: int, i: int) -> np.ndarray:
    """Row i of the weights of head h: P_ij = w_j e^{s_ij} / Σ_l w_l e^{s_il} over the visible l."""
    n, scale = len(X), arrays.get("scale", 1 / math.sqrt(arrays["query"].shape[1]))
    masses = np.zeros(n)
    for j in range(n):
        visible = not (arrays.get("causal") and j > i) and not (
            "mask" in arrays and not arrays["mask"][h, i, j]
        )
        visible = visible and abs(i - j) < arrays.get("window", n)
        if visible:
            query = turned(arrays, normed(arrays, "query", affine(arrays, "query", h, X[i])), i)
            key = turned(arrays, normed(arrays, "key", affine(arrays, "key", g, X[j])), j)
            added = arrays["bias"][h, i, j] if "bias" in arrays else 0.0
            added += arrays["log_weights"][j] if "log_weights" in arrays else 0.0
            score = scale * query @ key
            if "softcap" in arrays:
                score = arrays["softcap"] * math.tanh(score / arrays["softcap"])
            masses[j] = math.exp(score + added)
    sink = math.exp(arrays["sinks"][h]) if "sinks" in arrays else 0.0
    return masses / (masses.sum() + sink)


def affine(arrays: dict, kind: str, head: int, x: np.ndarray) -> np.ndarray:
    bias = arrays[f"{kind}_bias"][head] if f"{kind}_bias" in arrays else 0.0
    return arrays[kind][head] @ x + bias


def gates(arrays: dict, h: int, x: np.ndarray) -> np.ndarray | float:
    if "gate" not in arrays and "gate_bias" not in arrays:
        return 1.0
    moved = arrays["gate"][h] @ x if "gate" in arrays else 0.0
    return 1 / (1 + np.exp(-moved - (arrays["gate_bias"][h] if "gate_bias" in arrays else 0.0)))


def normed(arrays: dict, kind: str, vector: np.ndarray) -> np.ndarray:
    if f"{kind}_norm" not in arrays:
        return vector
    return arrays[f"{kind}_norm"](torch.from_numpy(vector)).numpy()


def turned(arrays: dict, vector: np.ndarray, position: int) -> np.ndarray:
    """Rotary positions, through complex numbers."""
    if "rotary" not in arrays:
        return vector
    half = len(vector) // 2
    numbers = (vector[:half] + 1j * vector[half:]) * np.exp(1j * position * arrays["rotary"])
    return np.concatenate([numbers.real, numbers.imag])


def test_agrees_with_loops(every_case):
    case = every_case
    expected = [loop_attention(member.kwargs, member.X.numpy()) for member in case.members]
    found = case.attention(case.X)
    assert found.shape == (*case.X.shape[:-1], case.attention.output_dim)
    np.testing.assert_allclose(
        found.reshape(-1, *found.shape[-2:]), expected, rtol=1e-12, atol=1e-12
    )


def test_weights_are_softmax_rows(case):
    P = case.attention.weights(case.X)
    assert P.shape == (*case.X.shape[:-2], case.attention.heads, case.X.shape[-2], case.X.shape[-2])
    assert bool((P >= 0).all())
    torch.testing.assert_close(P.sum(-1), torch.ones_like(P[..., 0]))


def test_sinks_take_what_rows_lack(make_case):
    """A sink is a key of its own score and value zero: without it, softmax over the others."""
    case = make_case("sinks")
    attention = case.attention
    with_key = attention.weights(case.X)
    alone = dataclasses.replace(attention, sinks=None).weights(case.X)
    torch.testing.assert_close(with_key / with_key.sum(-1, keepdim=True), alone)
    assert bool((with_key.sum(-1) < 1).all())
    none = dataclasses.replace(attention, sinks=torch.full((2,), -math.inf, dtype=torch.float64))
    torch.testing.assert_close(none(case.X), dataclasses.replace(attention, sinks=None)(case.X))


def test_padding_is_what_the_shorter_sequence_gives(make_case):
    case = make_case("padding")
    short = dataclasses.replace(case.attention, mask=None)
    found = case.attention(case.X)
    torch.testing.assert_close(found[0], short(case.X[0]))
    torch.testing.assert_close(found[1, :, :3], short(case.X[1, :, :3]))


def test_head_of_a_layer_with_tables(make_case):
    for name in ("mask per head", "bias per head", "sinks"):
        case = make_case(name)
        parts = [case.attention.head(h)(case.X) for h in range(2)]
        joined = sum(parts) if case.attention.output is not None else torch.cat(parts, dim=-1)
        torch.testing.assert_close(joined, case.attention(case.X))


def test_matrices_of_the_theory(case_with_one_matrix):
    """Scores are (A_h x_i + c_h)·x_j up to a constant in j."""
    case = case_with_one_matrix
    queries, keys, _ = case.attention.project(case.X)
    scores = queries @ keys.mT
    A, c = case.attention.score_matrices(), case.attention.score_offsets()
    X = case.X[..., None, :, :]
    expected = (X @ A.mT + c[:, None, :]) @ X.mT
    torch.testing.assert_close(
        scores - scores[..., :1], expected - expected[..., :1], rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("name", ["biases", "grouped keys", "causal"])
def test_norms_of_value_matrices(make_case, name):
    f = make_case(name).attention
    expected = torch.linalg.matrix_norm(f.value_matrices(), 2)
    torch.testing.assert_close(f.value_norms(), expected, rtol=1e-12, atol=0)


def test_heads_sum_up_through_the_projection(make_case):
    case = make_case("biases")
    parts = sum(case.attention.head(h)(case.X) for h in range(2)) + case.attention.output_bias
    torch.testing.assert_close(parts, case.attention(case.X))
    torch.testing.assert_close(case.attention.head(-1)(case.X), case.attention.head(1)(case.X))
    P = case.attention.weights(case.X)
    with_values = sum((P[h] @ case.X) @ case.attention.value_matrices()[h].mT for h in range(2))
    offset = (
        case.attention.output @ case.attention.value_bias.flatten() + case.attention.output_bias
    )
    torch.testing.assert_close(with_values + offset, case.attention(case.X))


@pytest.mark.parametrize("name", ["causal", "biases, causal", "rotary, everything", "grouped keys"])
def test_causal_rows_do_not_see_the_future(make_case, name):
    case = make_case(name)
    moved = case.X.clone()
    moved[-1] += 1.0
    before, after = case.attention(case.X), case.attention(moved)
    assert torch.equal(before[:-1], after[:-1])
    assert not torch.allclose(before[-1], after[-1])


def test_causal_is_the_prefix_map(randn):
    A, V, X = randn(3, 3), randn(2, 3), randn(6, 3)
    masked = attention_map(X, A, V, causal=True)
    for i in range(6):
        torch.testing.assert_close(masked[i], attention_map(X[: i + 1], A, V)[i])


def test_permutation_equivariance(randn, generator):
    A, V, X, order = randn(3, 3), randn(3, 3), randn(6, 3), torch.randperm(6, generator=generator)
    torch.testing.assert_close(attention_map(X[order], A, V), attention_map(X, A, V)[order])


def test_log_weights_are_multiplicities(randn):
    """A token of mass 3/4 acts as three copies of it beside one of the other."""
    A, V, X = randn(3, 3), randn(3, 3), randn(2, 3)
    weighted = Attention.from_matrices(
        A, V, log_weights=torch.tensor([3.0, 1.0], dtype=torch.float64).log()
    )
    torch.testing.assert_close(weighted(X), attention_map(X[[0, 0, 0, 1]], A, V)[[0, 3]])


def test_rotary_scores_depend_on_the_distance_only(make_case):
    attention = make_case("rotary").attention
    P = attention.weights(torch.ones(1, 4, dtype=torch.float64).expand(6, 4))  # one token repeated
    ratio = P[..., 1] / P[..., 2]
    assert not torch.allclose(ratio, ratio[..., :1])  # positions matter
    scores = P.log() - P.diagonal(dim1=-2, dim2=-1).log()[..., None]
    torch.testing.assert_close(scores[:, 1:, 1:], scores[:, :-1, :-1])


def test_to_converts_every_tensor(make_case):
    case = make_case("rotary, everything")
    single = case.attention.to(torch.float32)
    torch.testing.assert_close(
        single(case.X.float()), case.attention(case.X).float(), rtol=2e-5, atol=2e-5
    )
    masked = make_case("mask").attention.to(torch.float32)
    assert masked.mask.dtype == torch.bool and masked.query.dtype == torch.float32


def test_large_scores_saturate(randn):
    """Softmax at radius 10^6 is a maximum, not NaN."""
    X = 1e6 * randn(5, 2)
    P = Attention.from_matrices(
        torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    ).weights(X)
    assert torch.equal(P[0].argmax(-1), (X @ X.mT).argmax(-1)) and bool((P.amax(-1) == 1).all())


EYE, TOKENS = torch.eye(2), torch.zeros(3, 2)
FOUR = {"query": torch.ones(2, 2, 4), "key": torch.ones(2, 2, 4), "value": torch.ones(2, 3, 4)}
NO_KEY = torch.tensor([[True, False], [False, False]])

BAD_INPUT = {
    "A not square": (lambda: Attention.from_matrices(torch.zeros(2, 3), EYE), ValueError, "^A: "),
    "A empty": (lambda: Attention.from_matrices(torch.zeros(0, 0), EYE), ValueError, "^A: "),
    "A not finite": (lambda: Attention.from_matrices(EYE / 0, EYE), ValueError, "^A: "),
    "A a list": (lambda: Attention.from_matrices([[1.0]], EYE), TypeError, "^A: "),
    "A of integers": (lambda: Attention.from_matrices(EYE.long(), EYE), TypeError, "^A: "),
    "A in half precision": (lambda: Attention.from_matrices(EYE.half(), EYE), TypeError, "^A: "),
    "V of another dimension": (
        lambda: Attention.from_matrices(EYE, torch.ones(2, 3)),
        ValueError,
        "^V: ",
    ),
    "V of another dtype": (lambda: Attention.from_matrices(EYE, EYE.double()), TypeError, "^V is"),
    "V a vector": (lambda: Attention.from_matrices(EYE, torch.ones(2)), ValueError, "^V: "),
    "X of another dimension": (
        lambda: attention_map(torch.zeros(3, 4), EYE, EYE),
        ValueError,
        "^X: ",
    ),
    "X a vector": (lambda: attention_map(torch.zeros(2), EYE, EYE), ValueError, "^X: "),
    "X without tokens": (lambda: attention_map(torch.zeros(0, 2), EYE, EYE), ValueError, "^X: "),
    "X an empty batch": (lambda: attention_map(torch.zeros(0, 3, 2), EYE, EYE), ValueError, "^X: "),
    "X of another dtype": (lambda: attention_map(TOKENS.double(), EYE, EYE), TypeError, "^X is"),
    "X of integers": (lambda: attention_map(TOKENS.long(), EYE, EYE), TypeError, "^X: "),
    "X in half precision": (lambda: attention_map(TOKENS.bfloat16(), EYE, EYE), TypeError, "^X: "),
    "X not finite": (lambda: attention_map(TOKENS / 0, EYE, EYE), ValueError, "^X: "),
    "X whose scores overflow": (
        lambda: attention_map(TOKENS + 1e30, EYE, EYE),
        ValueError,
        "^X: .*overflow",
    ),
    "X of another length": (
        lambda: Attention.from_matrices(EYE, EYE, log_weights=torch.zeros(2))(TOKENS),
        ValueError,
        "^X: ",
    ),
    "mask without a key": (
        lambda: Attention.from_matrices(EYE, EYE, mask=NO_KEY),
        ValueError,
        "^mask",
    ),
    "mask and causal without a key": (
        lambda: Attention.from_matrices(EYE, EYE, mask=~torch.eye(2).bool(), causal=True),
        ValueError,
        "^mask",
    ),
    "log_weights without a key": (
        lambda: Attention.from_matrices(
            EYE, EYE, log_weights=torch.tensor([-math.inf, 0.0]), causal=True
        ),
        ValueError,
        "log_weights",
    ),
    "log_weights not a number": (
        lambda: Attention.from_matrices(EYE, EYE, log_weights=torch.tensor([math.nan, 0.0])),
        ValueError,
        "^log_weights: ",
    ),
    "mask of numbers": (lambda: Attention.from_matrices(EYE, EYE, mask=EYE), ValueError, "^mask: "),
    "mask not square": (
        lambda: Attention.from_matrices(EYE, EYE, mask=torch.ones(2, 3).bool())(torch.ones(2, 2)),
        ValueError,
        "^X: ",
    ),
    "mask not square, and causal": (
        lambda: Attention.from_matrices(EYE, EYE, mask=torch.ones(2, 3).bool(), causal=True),
        ValueError,
        "^mask, bias: ",
    ),
    "key of another shape": (
        lambda: Attention(**FOUR | {"key": torch.ones(2, 3, 4)}),
        ValueError,
        "^key: ",
    ),
    "key heads that do not divide": (
        lambda: Attention(
            **{name: torch.ones(h, 2, 4) for name, h in (("query", 3), ("key", 2), ("value", 2))}
        ),
        ValueError,
        "^key: ",
    ),
    "value of two dimensions": (
        lambda: Attention(**FOUR | {"value": torch.ones(3, 4)}),
        ValueError,
        "^value: ",
    ),
    "output of another shape": (
        lambda: Attention(**FOUR, output=torch.ones(4, 5)),
        ValueError,
        "^output: ",
    ),
    "output_bias alone": (
        lambda: Attention(**FOUR, output_bias=torch.ones(4)),
        ValueError,
        "^output_bias: ",
    ),
    "query_bias of another shape": (
        lambda: Attention(**FOUR, query_bias=torch.ones(2)),
        ValueError,
        "query_bias: ",
    ),
    "rotary of another length": (
        lambda: Attention(**FOUR, rotary=torch.ones(2)),
        ValueError,
        "^rotary: ",
    ),
    "no head": (lambda: Attention(*(torch.ones(0, 2, 4),) * 3), ValueError, "^query, key, value: "),
    "scale not a number": (lambda: Attention(**FOUR, scale=math.nan), ValueError, "^scale: "),
    "mask of another batch": (
        lambda: Attention.from_matrices(EYE, EYE, mask=torch.ones(3, 1, 2, 2).bool())(
            torch.ones(2, 2, 2)
        ),
        ValueError,
        "^X: ",
    ),
    "mask of another number of heads": (
        lambda: Attention.from_matrices(EYE, EYE, mask=torch.ones(2, 2, 2).bool()),
        ValueError,
        "^mask: ",
    ),
    "mask that hides a row in one sequence": (
        lambda: Attention.from_matrices(
            EYE,
            EYE,
            mask=torch.tensor([[[[True, True]]], [[[True, False]]]]),
            bias=torch.tensor([[0.0, 0.0], [-math.inf, 0.0]]),
        ),
        ValueError,
        "^mask, bias, log_weights: ",
    ),
    "bias of another number of tokens": (
        lambda: Attention.from_matrices(
            EYE, EYE, bias=torch.zeros(3, 3), log_weights=torch.zeros(2)
        ),
        ValueError,
        "^bias, log_weights: ",
    ),
    "bias of another precision": (
        lambda: Attention.from_matrices(EYE, EYE, bias=torch.zeros(2, 2).double()),
        TypeError,
        "^bias is",
    ),
    "infinite bias": (
        lambda: Attention.from_matrices(EYE, EYE, bias=torch.full((2, 2), math.inf)),
        ValueError,
        "^bias: ",
    ),
    "bias that does not fit X": (
        lambda: Attention.from_matrices(EYE, EYE, bias=torch.zeros(2, 2))(torch.ones(3, 2)),
        ValueError,
        "^X: ",
    ),
    "sinks of another number of heads": (
        lambda: Attention.from_matrices(EYE, EYE, sinks=torch.zeros(2)),
        ValueError,
        "^sinks: ",
    ),
    "softcap of zero": (
        lambda: Attention.from_matrices(EYE, EYE, softcap=0.0),
        ValueError,
        "^softcap: ",
    ),
    "norm that is none": (
        lambda: Attention.from_matrices(EYE, EYE, query_norm=3.0),
        TypeError,
        "^query_norm: ",
    ),
    "three terms of capped scores": (
        lambda: AttentionJacobian(Attention.from_matrices(EYE, EYE, softcap=1.0), torch.ones(2, 2)),
        ValueError,
        r"^attention: .*\.jacobian",
    ),
    "mask a list": (lambda: Attention(**FOUR, mask=[[True]]), TypeError, "^mask: "),
    "log_weights a list": (
        lambda: Attention(**FOUR, log_weights=[0.0]),
        TypeError,
        "^log_weights: ",
    ),
    "gate of another shape": (
        lambda: Attention(**FOUR, gate=torch.ones(2, 2, 4)),
        ValueError,
        "^gate: ",
    ),
    "gate_bias of another number of heads": (
        lambda: Attention(**FOUR, gate_bias=torch.ones(3, 1)),
        ValueError,
        "^gate_bias: ",
    ),
    "keys of other tokens than queries": (
        lambda: Attention(FOUR["query"], torch.ones(2, 2, 5), torch.ones(2, 3, 5))(
            torch.ones(3, 4)
        ),
        ValueError,
        "^X: .*use",
    ),
    "head out of range": (lambda: Attention(**FOUR).head(2), IndexError, "^index: "),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input(name):
    call, error, message = BAD_INPUT[name]
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_entry_among_many(bad):
    X = torch.tensor([[1.0, -1.0], [bad, 0.0], [-2.0, 2.0]])
    with pytest.raises(ValueError, match=r"^X: "):
        attention_map(X, EYE, EYE)


def test_compressed_is_the_same_map(every_case):
    case = every_case
    """f(X) = g(XZ)Uᵀ up to the output bias, in as few dimensions as the weights have."""
    attention, X = case.attention, case.X
    g, Z, U = attention.compressed()
    bias = (
        0 if attention.output_bias is None or g.output_bias is not None else attention.output_bias
    )
    torch.testing.assert_close(g(X @ Z) @ U.mT + bias, attention(X), rtol=1e-11, atol=1e-12)
    for frame in (Z, U):
        torch.testing.assert_close(
            frame.mT @ frame, torch.eye(frame.shape[1], dtype=X.dtype), rtol=0, atol=1e-13
        )
    rows = attention.heads * (2 * attention.query.shape[1] + attention.value.shape[1])
    rows += 0 if attention.gate is None else attention.gate[..., 0].numel()
    assert g.d == min(attention.d, rows)
    assert g.output_dim == min(attention.output_dim, attention.heads * attention.value.shape[1])


def test_nothing_to_compress(make_case):
    attention = make_case("heads projected").attention
    assert attention.compressed()[0] is attention


@pytest.mark.parametrize("causal", [True, False])
def test_log_weights_of_long_sequences_make_no_square_array(causal, monkeypatch):
    monkeypatch.setattr(torch, "ones", lambda *_, **__: pytest.fail("an n × n array"))
    Attention.from_matrices(EYE, EYE, causal=causal, log_weights=torch.zeros(30))


def test_printed_in_one_line():
    head = Attention.from_matrices(torch.eye(3), torch.ones(2, 3), causal=True)
    assert repr(head) == "Attention(1 head, 3 → 2 dimensions, causal)"
    many = Attention(*torch.ones(3, 4, 2, 8), rotary=torch.ones(1), mask=torch.eye(5).bool())
    assert repr(many) == "Attention(4 heads, 8 → 8 dimensions, mask, rotary)"
