"""Attention against loops written from the definition, and what it refuses."""

import math

import numpy as np
import pytest
import torch

from lipcore import Attention, AttentionJacobian
from loops import loop_attention

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def test_agrees_with_loops(every_case):
    case = every_case
    expected = [loop_attention(member.kwargs, member.X.numpy()) for member in case.members]
    found = case.attention(case.X)
    assert found.shape == (*case.X.shape[:-1], case.attention.output_dim)
    np.testing.assert_allclose(found.reshape(-1, *found.shape[-2:]), expected, **CLOSE)


def test_weights_are_softmax_rows(case):
    P = case.attention.weights(case.X)
    assert P.shape == (*case.X.shape[:-2], case.attention.heads, *[case.X.shape[-2]] * 2)
    assert bool((P >= 0).all())
    torch.testing.assert_close(P.sum(-1), torch.ones_like(P[..., 0]))


def test_heads_sum_up_to_the_layer(every_case):
    """Through the projection, or next to one another; with values and gates of their own."""
    f, X = every_case.attention, every_case.X
    heads = [f.head(h)(X) for h in range(f.heads)]
    joined = torch.cat(heads, dim=-1) if f.output is None else sum(heads)
    torch.testing.assert_close(joined + (0 if f.output_bias is None else f.output_bias), f(X))
    assert torch.equal(f.head(-1)(X), heads[-1])
    norms = torch.linalg.matrix_norm(f.value_matrices(), 2)
    torch.testing.assert_close(f.value_norms(), norms, rtol=1e-12, atol=0)


def test_matrices_of_the_theory(case_with_one_matrix):
    """Scores are (A_h x_i + c_h)·x_j up to a constant in j."""
    f, X = case_with_one_matrix.attention, case_with_one_matrix.X
    queries, keys, _ = f.project(X)
    scores = queries @ keys.mT
    X = X[..., None, :, :]
    expected = (X @ f.score_matrices().mT + f.score_offsets()[:, None, :]) @ X.mT
    torch.testing.assert_close(scores - scores[..., :1], expected - expected[..., :1], **CLOSE)


def test_compressed_is_the_same_map(every_case):
    """f(X) = g(XZ)Uᵀ up to the output bias, in as few dimensions as the weights have."""
    f, X = every_case.attention, every_case.X
    g, Z, U = f.compressed()
    bias = 0 if f.output_bias is None or g.output_bias is not None else f.output_bias
    torch.testing.assert_close(g(X @ Z) @ U.mT + bias, f(X), rtol=1e-11, atol=1e-12)
    for frame in (Z, U):
        eye = torch.eye(frame.shape[1], dtype=X.dtype)
        torch.testing.assert_close(frame.mT @ frame, eye, rtol=0, atol=1e-13)
    rows = f.heads * (2 * f.query.shape[1] + f.value.shape[1])
    rows += 0 if f.gate is None else f.gate[..., 0].numel()
    assert g.d == min(f.d, rows)
    assert g.output_dim == min(f.output_dim, f.heads * f.value.shape[1])
    assert (g is f) == (g.d == f.d and g.output_dim == f.output_dim)


def test_to_converts_every_tensor(case):
    f, X = case.attention, case.X
    single = f.to(torch.float32)
    assert f.mask is None or single.mask.dtype == torch.bool
    assert single.query.dtype == torch.float32 and f.query.dtype == torch.float64
    torch.testing.assert_close(single(X.float()), f(X).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [True, False])
def test_log_weights_of_long_sequences_make_no_square_array(causal, monkeypatch):
    monkeypatch.setattr(torch, "ones", lambda *_, **__: pytest.fail("an n × n array"))
    layer(causal=causal, log_weights=torch.zeros(30))


def test_printed_in_one_line():
    assert repr(layer(causal=True)) == "Attention(1 head, 2 → 2 dimensions, causal)"
    many = Attention(*torch.ones(3, 4, 2, 8), rotary=torch.ones(1), mask=torch.eye(5).bool())
    assert repr(many) == "Attention(4 heads, 8 → 8 dimensions, mask, rotary)"


EYE, TOKENS = torch.eye(2), torch.zeros(3, 2)
FOUR = {"query": torch.ones(2, 2, 4), "key": torch.ones(2, 2, 4), "value": torch.ones(2, 3, 4)}
THREE_HEADS = {"query": torch.ones(3, 2, 4), "key": torch.ones(2, 2, 4)}
OTHER_KEYS = {"key": torch.ones(2, 2, 5), "value": torch.ones(2, 3, 5)}


def layer(A=EYE, V=EYE, **options):
    return Attention.from_matrices(A, V, **options)


def heads(**options):
    return Attention(**FOUR | options)


def bools(*rows):
    return torch.tensor(rows).bool()


HIDING = torch.tensor([[0.0, 0.0], [-math.inf, 0.0]])
#: The name of the argument that the error names, and what raises it.
BAD_INPUT = [
    ("A", lambda: layer(torch.zeros(2, 3))),
    ("A", lambda: layer(torch.zeros(0, 0))),
    ("A", lambda: layer(EYE / 0)),
    ("A", lambda: layer([[1.0]])),
    ("A", lambda: layer(EYE.long())),
    ("A", lambda: layer(EYE.half())),
    ("V", lambda: layer(EYE, torch.ones(2, 3))),
    ("V", lambda: layer(EYE, EYE.double())),
    ("V", lambda: layer(EYE, torch.ones(2))),
    ("X", lambda: layer()(torch.zeros(3, 4))),
    ("X", lambda: layer()(torch.zeros(2))),
    ("X", lambda: layer()(torch.zeros(0, 2))),
    ("X", lambda: layer()(torch.zeros(0, 3, 2))),
    ("X", lambda: layer()(TOKENS.double())),
    ("X", lambda: layer()(TOKENS.long())),
    ("X", lambda: layer()(TOKENS.bfloat16())),
    ("X", lambda: layer()(TOKENS / 0)),
    ("X", lambda: layer()(torch.tensor([[1.0, -1.0], [-math.inf, 0.0], [-2.0, 2.0]]))),
    ("X", lambda: layer()(TOKENS + 1e30)),  # scores overflow
    ("X", lambda: layer(log_weights=torch.zeros(2))(TOKENS)),
    ("X", lambda: layer(mask=torch.ones(2, 3).bool())(torch.ones(2, 2))),
    ("X", lambda: layer(mask=torch.ones(3, 1, 2, 2).bool())(torch.ones(2, 2, 2))),
    ("X", lambda: layer(bias=torch.zeros(2, 2))(TOKENS)),
    ("X", lambda: heads(**OTHER_KEYS)(torch.ones(3, 4))),
    ("X", lambda: layer().jacobian([1.0])),
    ("mask", lambda: layer(mask=bools([1, 0], [0, 0]))),  # a row without a key
    ("mask", lambda: layer(mask=~torch.eye(2).bool(), causal=True)),
    ("mask", lambda: layer(mask=EYE)),
    ("mask", lambda: layer(mask=torch.ones(2, 3).bool(), causal=True)),
    ("mask", lambda: layer(mask=torch.ones(2, 2, 2).bool())),
    ("mask", lambda: heads(mask=[[True]])),
    ("mask", lambda: layer(mask=bools([[[1, 1]]], [[[1, 0]]]), bias=HIDING)),
    ("mask, bias, log_weights", lambda: layer(log_weights=HIDING[1], causal=True)),
    ("log_weights", lambda: layer(log_weights=torch.tensor([math.nan, 0.0]))),
    ("log_weights", lambda: heads(log_weights=[0.0])),
    ("bias, log_weights", lambda: layer(bias=torch.zeros(3, 3), log_weights=torch.zeros(2))),
    ("bias", lambda: layer(bias=torch.zeros(2, 2).double())),
    ("bias", lambda: layer(bias=torch.full((2, 2), math.inf))),
    ("query, key, value", lambda: Attention(*(torch.ones(0, 2, 4),) * 3)),
    ("key", lambda: heads(key=torch.ones(2, 3, 4))),
    ("key", lambda: heads(**THREE_HEADS)),
    ("value", lambda: heads(value=torch.ones(3, 4))),
    ("output", lambda: heads(output=torch.ones(4, 5))),
    ("output_bias", lambda: heads(output_bias=torch.ones(4))),
    ("query_bias", lambda: heads(query_bias=torch.ones(2))),
    ("gate", lambda: heads(gate=torch.ones(2, 2, 4))),
    ("gate_bias", lambda: heads(gate_bias=torch.ones(3, 1))),
    ("rotary", lambda: heads(rotary=torch.ones(2))),
    ("scale", lambda: heads(scale=math.nan)),
    ("sinks", lambda: layer(sinks=torch.zeros(2))),
    ("softcap", lambda: layer(softcap=0.0)),
    ("query_norm", lambda: layer(query_norm=3.0)),
    ("attention", lambda: AttentionJacobian(layer(softcap=1.0), TOKENS)),  # not in three terms
    ("index", lambda: heads().head(2)),
]


@pytest.mark.parametrize(("named", "call"), BAD_INPUT)
def test_bad_input(named, call):
    with pytest.raises((ValueError, TypeError, IndexError), match=rf"^{named}\b") as caught:
        call()
    assert "\n" not in str(caught.value)
