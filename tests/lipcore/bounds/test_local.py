"""The local form: its terms by plain loops, never below the truth, and sharp where it says so."""

import math

import numpy as np
import pytest
import torch

from draws import EYE, F64, draw, norm, tensor
from lipcore import Attention, bounds
from lipcore.adversarial import worst_case_inputs
from lipcore.attention import rotate
from lipcore.bounds.ball import log_column_sum

ROUNDING = 1 + 1e-9


def terms_by_loops(layer, X, head, value):
    """Mixing, own query and others' keys of one head, from P, C_i and y_i of each token."""
    n, k = len(X), layer.query.shape[1]
    P = layer.weights(X)[head]
    Q, K = layer.query[head], layer.key[head]
    zero = torch.zeros(k, dtype=F64)
    bias_q = zero if layer.query_bias is None else layer.query_bias[head]
    bias_k = zero if layer.key_bias is None else layer.key_bias[head]
    # with rotary positions keys are turned by R_j and queries by R_i: A and y depend on both
    turns = torch.eye(k, dtype=F64).repeat(n, 1, 1)
    if layer.rotary is not None:
        angles = torch.arange(n, dtype=F64)[:, None] * layer.rotary
        turns = torch.stack([rotate(torch.eye(k, dtype=F64), a.expand(k, -1)).mT for a in angles])
    keys = torch.stack([turns[j] @ (K @ X[j] + bias_k) for j in range(n)])
    own, spread, seen = [], [], []
    for i in range(n):
        deviation = (X - P[i] @ X) @ value.mT
        cross = (P[i, :, None] * deviation).mT @ (keys - P[i] @ keys)
        own.append(norm(layer.scale * cross @ turns[i] @ Q))  # V C_i A
        spread.append(norm((P[i, :, None] * deviation).mT @ deviation))  # V C_i Vᵀ
    for j in range(n):
        total = 0
        for i in range(n):
            y = layer.scale * K.mT @ turns[j].mT @ turns[i] @ (Q @ X[i] + bias_q)
            total = total + P[i, j] * torch.outer(y, y)
        seen.append(norm(total))
    return [norm(value) * norm(P), max(own), math.sqrt(max(spread) * max(seen))]


def test_terms_by_loops(case):
    """All layers of the table: biases, heads, rotary positions, masks, projections."""
    layer, X = case.members[0].attention, case.members[0].X
    values = layer.value_matrices()
    expected = torch.tensor([terms_by_loops(layer, X, h, V) for h, V in enumerate(values)])
    found = bounds.local_terms(layer, X)
    torch.testing.assert_close(found[:, 1:].float(), expected[:, 1:], rtol=1e-5, atol=1e-6)
    assert (found[:, 0] >= expected[:, 0] * (1 - 1e-6)).all()  # ‖P‖₂ from above
    assert (found[:, 0] <= expected[:, 0] * (1 + 1e-3)).all()
    # heads joined: in squares, or through the projection
    joined = math.hypot(*(sum(terms_by_loops(layer, X, h, V)) for h, V in enumerate(layer.value)))
    if layer.output is not None:
        joined = min(norm(layer.output) * joined, expected.sum().item())
    assert bounds.local_upper(layer, X).item() == pytest.approx(joined, rel=1e-3)


@pytest.mark.parametrize("radius", [1.0, 1e3])
def test_bound_holds(case, truth, radius):
    X = radius * draw(0, 3, *case.X.shape[-2:])
    X[2] = X[2, :1]  # identical tokens
    # rounding of the bound and of the truth is amplified by the scores
    slack = ROUNDING + 1e-13 * radius**2
    layer = case.members[0].attention
    assert (truth.of_map(layer, X) <= bounds.local_upper(layer, X) * slack).all()


def test_bound_is_sharp_on_random_inputs(case, truth):
    """It may lose that terms and heads are added up; a batch is its members, in float32 too."""
    found = bounds.local_upper(case.attention, case.X)
    reached = torch.cat([truth.of_map(m.attention, m.X[None]) for m in case.members])
    assert (found.flatten() >= reached * (1 - 1e-9)).all()
    assert (found.flatten() <= 9 * reached).all()
    alone = torch.stack([bounds.local_upper(m.attention, m.X) for m in case.members])
    torch.testing.assert_close(found.flatten(), alone, rtol=1e-9, atol=0)
    assert bounds.local_terms(case.attention, case.X).shape == (
        *found.shape,
        case.attention.heads,
        3,
    )
    single = bounds.local_upper(case.attention.to(torch.float32), case.X.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), found, rtol=1e-3, atol=0)


def test_bound_in_single_precision_is_rounded_up(truth):
    X = draw(0, 40, 5, 3).float()
    f = Attention.from_matrices(torch.diag(torch.tensor([1.0, -2.0, 0.5])), torch.eye(3))
    assert (bounds.local_upper(f, X).double() >= bounds.local_upper(f.to(F64), X.double())).all()
    # near tokens tie: with scores of 1e4 their covariance is below the rounding of float32
    for seed in range(3):
        X = draw(seed, 40, 4, 2).float()
        X[:, 1] = X[:, 0] + 1e-4 * draw(seed + 10, 40, 2).float()
        f = Attention.from_matrices(1e4 * draw(seed + 20, 2, 2).float(), torch.eye(2))
        reached = truth.of_map(f.to(F64), X.double())
        assert (reached <= bounds.local_upper(f, X) * (1 + 1e-5)).all()


def test_bound_knows_where_attention_is_saturated(make_case):
    """At a large radius only mixing is left, and the bound is ‖V‖‖P‖, not √n."""
    f, X = make_case("one head").attention, 1e4 * make_case("one head").X
    expected = norm(f.value[0]) * norm(f.weights(X)[0])
    assert bounds.local_upper(f, X).item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("gamma", "factor"), [(-1.0, 2.1), (1.0, 2.6)])
@pytest.mark.parametrize("radius", [0.5, 1.0, 1.5, 2.0])
def test_bound_is_sharp_at_the_worst_case(truth, gamma, factor, radius):
    """And not above what the ball allows: only its sum of separate maxima can cost it something."""
    X = worst_case_inputs(gamma * EYE, 30, radius)
    local = bounds.local_upper(Attention.from_matrices(gamma * EYE, EYE), X).item()
    assert local <= factor * truth.of_head(gamma * EYE, EYE, X[None]).item()
    a = radius**2  # three terms, each at most what the ball allows
    column = math.exp(log_column_sum(30, math.log(a)))
    assert local <= ((1 + a) * math.sqrt(column) + a) * ROUNDING


@pytest.mark.parametrize("temperature", [0.1, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("causal", [False, True])
def test_norm_of_softmax_matrices(temperature, causal):
    scores = temperature * draw(0, 20, 30, 30)
    if causal:
        scores = scores.masked_fill(torch.ones(30, 30).triu(1).bool(), -math.inf)
    P = torch.softmax(scores, dim=-1)
    expected = np.linalg.norm(P.numpy(), 2, axis=(-2, -1))
    found = bounds.nonnegative_norm_upper(P).numpy()
    assert (found >= expected * (1 - 1e-13)).all() and (found <= expected * 1.01).all()
    schur = P.sum(-2).amax(-1).sqrt().numpy()
    for iterations in (0, 1, 5):
        assert (
            bounds.nonnegative_norm_upper(P, iterations=iterations).numpy() <= schur * ROUNDING
        ).all()


@pytest.mark.parametrize(
    "P",
    [torch.zeros(3, 4), tensor([1.0, 0.0], [2.0, 0.0]), torch.eye(5)[[1, 2, 3, 4, 0]],
     torch.block_diag(torch.ones(2, 2), 0.1 * torch.ones(3, 3)), torch.ones(6, 6).tril(),
     torch.arange(12.0).reshape(2, 6), 1e-150 * torch.ones(3, 3, dtype=F64), tensor([7.0])],
)  # fmt: skip
def test_norm_of_nonnegative_matrices(P):
    found = bounds.nonnegative_norm_upper(P.double()).item()
    expected = np.linalg.norm(P.double().numpy(), 2)
    assert expected * (1 - 1e-12) <= found <= expected * 1.01


@pytest.mark.parametrize("size", [1e14, 1e15, 1e16, 1e17, 1e18])
def test_rounding_does_not_take_the_own_query_below_the_truth(size):
    """Torn rows nearly settled: C_i is 4p(1 − p), p ≈ e^{−38}, below the rounding of its parts."""
    X = tensor([1.0, 19 / size], [-1.0, 19 / size])  # scores of ±19
    own = size * 4 * math.exp(-38) / (1 + math.exp(-38)) ** 2
    f = Attention.from_matrices(size * tensor([0.0, 1.0], [0.0, 0.0]), EYE)
    assert max(own, math.sqrt(2)) <= bounds.local_upper(f, X).item() <= 2 * max(own, math.sqrt(2))


def test_scores_without_a_digit_left_have_no_small_bound():
    """Scores of 10¹⁷ are multiples of 16: which key wins is unknown, and the bound says so."""
    terms = bounds.local_terms(Attention.from_matrices(EYE, EYE), 1e9 * EYE)
    assert (terms > 1e17).all()
