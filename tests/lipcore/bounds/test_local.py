"""The local form: each of its terms by plain loops, never below the truth, and sharp where it says so."""

import math

import numpy as np
import pytest
import torch

from lipcore import Attention
from lipcore.adversarial import ascend, worst_case_inputs
from lipcore.attention import rotate
from lipcore.bounds import (
    Normalisation,
    best_upper,
    layer_upper,
    local_terms,
    local_upper,
    nonnegative_norm_upper,
    normalised_upper,
    score_reach,
)
from lipcore.bounds.ball import log_column_sum

ROUNDING = 1 + 1e-9
F64 = torch.float64
EYE = torch.eye(2, dtype=F64)


def norm2(M):
    return torch.linalg.matrix_norm(M, 2).item()


def terms_by_loops(layer, X, head, value):
    """Mixing, own query and others' keys of one head, from P, C_i and y_i = Ax_i + c at each token in turn.

    With rotary positions keys are turned by R_j and queries by R_i, so that A and y depend on both.
    """
    n, k = len(X), layer.query.shape[1]
    P = layer.weights(X)[head]
    Q, K = layer.query[head], layer.key[head]
    zero = torch.zeros(k, dtype=F64)
    bias_q = zero if layer.query_bias is None else layer.query_bias[head]
    bias_k = zero if layer.key_bias is None else layer.key_bias[head]
    turns = torch.eye(k, dtype=F64).repeat(n, 1, 1)
    if layer.rotary is not None:
        angles = torch.arange(n, dtype=F64)[:, None] * layer.rotary
        turns = torch.stack([rotate(torch.eye(k, dtype=F64), a.expand(k, -1)).mT for a in angles])
    own, spread = [], []
    for i in range(n):
        mean_x, mean_k = 0, 0
        keys = [turns[j] @ (K @ X[j] + bias_k) for j in range(n)]
        for j in range(n):
            mean_x = mean_x + P[i, j] * X[j]
            mean_k = mean_k + P[i, j] * keys[j]
        cross, covariance = 0, 0
        for j in range(n):
            deviation = value @ (X[j] - mean_x)
            cross = cross + P[i, j] * torch.outer(deviation, keys[j] - mean_k)
            covariance = covariance + P[i, j] * torch.outer(deviation, deviation)
        own.append(norm2(layer.scale * cross @ turns[i] @ Q))  # V C_i A
        spread.append(norm2(covariance))  # V C_i Vᵀ
    seen = []
    for j in range(n):
        total = 0
        for i in range(n):
            y = layer.scale * K.mT @ turns[j].mT @ turns[i] @ (Q @ X[i] + bias_q)
            total = total + P[i, j] * torch.outer(y, y)
        seen.append(norm2(total))
    return [norm2(value) * norm2(P), max(own), math.sqrt(max(spread) * max(seen))]


def test_terms_by_loops(case):
    """All layers of the table: biases, heads, rotary positions, masks, projections."""
    layer, X = case.members[0].attention, case.members[0].X
    values = layer.value_matrices()
    expected = torch.tensor([terms_by_loops(layer, X, h, values[h]) for h in range(layer.heads)])
    found = local_terms(layer, X)
    torch.testing.assert_close(found[:, 1:].float(), expected[:, 1:], rtol=1e-5, atol=1e-6)
    assert (found[:, 0] >= expected[:, 0] * (1 - 1e-6)).all()  # ‖P‖₂ from above
    assert (found[:, 0] <= expected[:, 0] * (1 + 1e-3)).all()
    # heads joined: in squares, or through the projection
    alone = [sum(terms_by_loops(layer, X, h, layer.value[h])) for h in range(layer.heads)]
    joined = math.hypot(*alone)
    if layer.output is not None:
        joined = min(norm2(layer.output) * joined, expected.sum().item())
    assert local_upper(layer, X).item() == pytest.approx(joined, rel=1e-3)


@pytest.mark.parametrize("radius", [1e-6, 1.0, 1e3])
def test_bound_holds(case, truth, radius):
    generator = torch.Generator().manual_seed(0)
    X = radius * torch.randn(3, *case.X.shape[-2:], generator=generator, dtype=F64)
    X[2] = X[2, :1]  # identical tokens
    # rounding of the bound and of the truth is amplified by the scores
    slack = ROUNDING + 1e-13 * radius**2
    layer = case.members[0].attention
    assert (truth.of_map(layer, X) <= local_upper(layer, X) * slack).all()


@pytest.mark.parametrize("name", ["biases, causal", "rotary, everything", "mask", "bias per head"])
def test_bound_holds_on_optimised_inputs(make_case, truth, name):
    layer = make_case(name).attention
    X = ascend(layer, truth.to_ball(make_case(name).X, 1.0), 1.0, steps=20, progress=False).X
    assert truth.of_map(layer, X[None]) <= local_upper(layer, X) * ROUNDING


def test_bound_of_a_batch(make_case):
    case = make_case("batch")
    found = local_upper(case.attention, case.X)
    alone = torch.stack([local_upper(case.attention, X) for X in case.X.flatten(0, 1)])
    torch.testing.assert_close(found, alone.reshape(2, 3))
    assert local_terms(case.attention, case.X).shape == (2, 3, 2, 3)


def test_bound_in_single_precision(case):
    found = local_upper(case.attention.to(torch.float32), case.X.float())
    assert found.dtype == torch.float32
    expected = local_upper(case.attention, case.X)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=0)


def test_bound_in_single_precision_is_rounded_up(generator):
    X = torch.randn(40, 5, 3, generator=generator)
    f = Attention.from_matrices(torch.diag(torch.tensor([1.0, -2.0, 0.5])), torch.eye(3))
    assert (local_upper(f, X).double() >= local_upper(f.to(F64), X.double())).all()


def test_bound_holds_in_float32_where_near_tokens_tie(generator, truth):
    """Two tokens 1e-4 apart, under scores of 1e4: their covariance is below the rounding of float32."""
    for _ in range(6):
        X = torch.randn(50, 4, 2, generator=generator)
        X[:, 1] = X[:, 0] + 1e-4 * torch.randn(50, 2, generator=generator)
        f = Attention.from_matrices(1e4 * torch.randn(2, 2, generator=generator), torch.eye(2))
        reached = truth.of_map(f.to(F64), X.double())
        assert (reached <= local_upper(f, X) * (1 + 1e-5)).all()


def test_bound_knows_where_attention_is_saturated(make_case):
    """At a large radius only mixing is left, and the bound is ‖V‖‖P‖, not √n."""
    case = make_case("one head")
    X = 1e4 * case.X
    expected = norm2(case.attention.value[0]) * norm2(case.attention.weights(X)[0])
    assert local_upper(case.attention, X).item() == pytest.approx(expected, rel=1e-3)


def test_bound_is_exact_without_scores():
    X = torch.ones(8, 2, dtype=F64)
    found = local_upper(Attention.from_matrices(0 * EYE, 3 * EYE), X)
    assert found.item() == pytest.approx(3.0, rel=1e-10)


@pytest.mark.parametrize(("gamma", "factor"), [(-1.0, 2.1), (1.0, 2.6)])
def test_bound_is_sharp_at_the_worst_case(truth, gamma, factor):
    """And not above what the ball allows: only its sum of separate maxima can cost it something."""
    A = gamma * EYE
    for radius in (0.5, 1.0, 1.5, 2.0):
        X = worst_case_inputs(A, 30, radius)
        local = local_upper(Attention.from_matrices(A, EYE), X).item()
        assert local <= factor * truth.of_head(A, EYE, X[None]).item()
        a = radius**2  # three terms, each at most what the ball allows
        column = math.exp(log_column_sum(30, math.log(a)))
        assert local <= ((1 + a) * math.sqrt(column) + a) * ROUNDING


@pytest.mark.parametrize(("a", "factor"), [(0.5, 1.65), (1.0, 1.42), (2.0, 1.24), (3.0, 1.18)])
def test_bound_at_two_clusters(truth, a, factor):
    """At the two Diracs that nearly maximise it others' keys matter most: one token is seen by all."""
    n = 1 + round(3 * math.exp(2 * a))
    f = Attention.from_matrices(-EYE[:1, :1], EYE[:1, :1])
    X = torch.full((n, 1), math.sqrt(a), dtype=F64)
    X[0] = -math.sqrt(a)
    reached = truth.two_clusters(n, -math.sqrt(a), math.sqrt(a), -1.0)
    assert 1 <= local_upper(f, X).item() / reached <= factor


def test_bound_is_sharp_on_random_inputs(case, truth):
    """What it may lose: terms and heads are added up as if each had its worst case where the others do."""
    found = local_upper(case.attention, case.X).flatten()
    reached = torch.cat([truth.of_map(m.attention, m.X[None]) for m in case.members])
    assert (found <= 9 * reached).all()
    alone = torch.stack([local_upper(m.attention, m.X) for m in case.members])
    torch.testing.assert_close(found, alone, rtol=1e-9, atol=0)
    assert (found >= reached * (1 - 1e-9)).all()


@pytest.mark.parametrize(
    ("name", "what"),
    (
        ("sinks", "sinks"),
        ("softcap", "softcap"),
        ("normalised queries and keys, everything", "sinks, softcap, query_norm, key_norm"),
    ),
)
def test_no_bound_is_claimed_for_what_no_theorem_covers(make_case, name, what):
    f = make_case(name).attention
    X = make_case(name).X
    norm = Normalisation("rms", torch.ones(f.d, dtype=F64), torch.zeros(f.d, dtype=F64), 0.0)
    for claim in (
        lambda: local_upper(f, X),
        lambda: local_terms(f, X),
        lambda: best_upper(attention=f, n=X.shape[-2], radius=1.0),
        lambda: layer_upper(f, n=6, radius=1.0),
        lambda: score_reach(f, radius=1.0),
        lambda: normalised_upper(f, norm, n=6),
    ):
        with pytest.raises(ValueError, match=f"^attention: .*{what}"):
            claim()


def test_bad_input(make_case):
    attention = make_case("one head").attention
    with pytest.raises(ValueError, match=r"^X: "):
        local_upper(attention, torch.zeros(3, 5, dtype=F64))
    with pytest.raises(ValueError, match=r"^X: .*overflow"):
        local_upper(attention, torch.full((3, 4), 1e160, dtype=F64))
    with pytest.raises(ValueError, match=r"^P: "):
        nonnegative_norm_upper(-torch.eye(2))


# --- norms of matrices with entries ≥ 0 -------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.1, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("causal", [False, True])
def test_norm_of_softmax_matrices(randn, temperature, causal):
    scores = temperature * randn(20, 30, 30)
    if causal:
        scores = scores.masked_fill(torch.ones(30, 30).triu(1).bool(), -math.inf)
    P = torch.softmax(scores, dim=-1)
    expected = np.linalg.norm(P.numpy(), 2, axis=(-2, -1))
    found = nonnegative_norm_upper(P).numpy()
    assert (found >= expected * (1 - 1e-13)).all() and (found <= expected * 1.01).all()
    schur = P.sum(-2).amax(-1).sqrt().numpy()
    for iterations in (0, 1, 5):
        assert (nonnegative_norm_upper(P, iterations=iterations).numpy() <= schur * ROUNDING).all()


NONNEGATIVE = {
    "zero": torch.zeros(3, 4),
    "zero columns": torch.tensor([[1.0, 0.0], [2.0, 0.0]]),
    "two blocks": torch.block_diag(torch.ones(2, 2), 0.1 * torch.ones(3, 3)),
    "permutation": torch.eye(5)[[1, 2, 3, 4, 0]],
    "triangular": torch.ones(6, 6).tril(),
    "wide": torch.arange(12.0).reshape(2, 6),
    "tiny": 1e-150 * torch.ones(3, 3, dtype=F64),
    "one entry": torch.tensor([[7.0]]),
}


@pytest.mark.parametrize("name", NONNEGATIVE)
def test_norm_of_nonnegative_matrices(name):
    P = NONNEGATIVE[name].double()
    expected = np.linalg.norm(P.numpy(), 2)
    found = nonnegative_norm_upper(P).item()
    assert expected * (1 - 1e-12) <= found <= expected * 1.01


@pytest.mark.parametrize("size", [1e14, 1e15, 1e16, 1e17, 1e18])
def test_rounding_does_not_take_the_own_query_below_the_truth(size):
    """Torn rows that are nearly settled: C_i is 4p(1 − p) with p ≈ e^{−38}, below the rounding of its parts."""
    A = size * torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=F64)
    X = torch.tensor([[1.0, 19 / size], [-1.0, 19 / size]], dtype=F64)  # scores of ±19
    own = size * 4 * math.exp(-38) / (1 + math.exp(-38)) ** 2
    bound = local_upper(Attention.from_matrices(A, EYE), X).item()
    assert max(own, math.sqrt(2)) <= bound <= 2 * max(own, math.sqrt(2))


def test_scores_without_a_digit_left_have_no_small_bound():
    """Scores of 10¹⁷ are rounded to multiples of 16: which key wins is unknown, and the bound says so."""
    terms = local_terms(Attention.from_matrices(EYE, EYE), 1e9 * EYE)
    assert (terms > 1e17).all()
