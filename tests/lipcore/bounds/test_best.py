"""The best bound: never above another that applies, never below the truth, right at every size."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcore import Attention, bounds, local_lipschitz
from lipcore.adversarial import ascend
from lipcore.bounds import best_upper
from lipcore.bounds.ball import log_seen

F64 = torch.float64
EYE = torch.eye(2, dtype=F64)
KINDS = ("any", "symmetric", "positive", "negative", "rank one", "turn", "zero")


def matrices(kind, seed, d):
    M, V = torch.randn(2, d, d, generator=torch.Generator().manual_seed(seed), dtype=F64)
    A = {"any": M, "symmetric": M + M.mT, "positive": M @ M.mT, "negative": -M @ M.mT,
         "rank one": M[:, :1] @ M[:1], "turn": M - M.mT, "zero": 0 * M}[kind]  # fmt: skip
    return A, V[: 1 + seed % d]


def norm2(M):
    return torch.linalg.matrix_norm(M, 2).item()


def others(*, n, a, causal, bias=False, rotary=False, A=None, radius=None):
    """The logarithms of all other public bounds, for ‖V‖ = 1: by a, and by A where it alone decides."""
    sizes = {"radius": 1.0, "norm_a": a, "norm_v": 1.0, "log": True}
    if n is not None:
        yield bounds.general_upper(n=n, **sizes)
        if causal:
            yield bounds.masked_upper(n=n, **sizes)
        if not rotary:
            yield bounds.torn_upper(n=n, **sizes)
            if not causal:
                yield bounds.unified_upper(n=n, **sizes)
                yield bounds.unified_upper_sharp(n=n, **sizes)
    if not causal:
        yield bounds.mean_field_upper_paper(**sizes)
    if not rotary:
        if not causal:
            yield bounds.unified_upper(**sizes)
        yield (bounds.masked_upper_moments if causal else bounds.unified_upper_sharp)(**sizes)
    if A is not None and not bias and not rotary:
        head = {"A": A, "radius": radius, "norm_v": 1.0, "log": True}
        yield bounds.masked_upper_rate(**head) if causal else bounds.unified_upper_rate(**head)
        if n is not None and not causal:
            yield bounds.unified_upper_rate(n=n, **head)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10**6),
    d=st.integers(1, 5),
    radius=st.one_of(st.just(0.0), st.floats(-10, 10).map(lambda x: 10**x), st.just(1e150)),
    n=st.one_of(st.none(), st.integers(1, 60), st.integers(1, 10**12)),
    causal=st.booleans(),
)
def test_never_above_another_bound(kind, seed, d, radius, n, causal):
    A, V = matrices(kind, seed, d)
    found = best_upper(A=A, V=V, radius=radius, n=n, causal=causal, log=True)
    log_v = math.log(norm2(V))
    a = norm2(A) * radius**2
    for log_bound in others(n=n, a=a, causal=causal, A=A, radius=radius) if a < 1e300 else ():
        assert found <= log_bound + log_v + 1e-9 + 1e-12 * abs(log_bound)
    assert not math.isnan(found)
    for change in ({"radius": 1.5 * radius}, {"n": None if n is None or seed % 2 else 2 * n + 1}):
        sizes = {"radius": radius, "n": n} | change
        larger = best_upper(A=A, V=V, causal=causal, log=True, **sizes)
        assert found <= larger + 1e-9 + 1e-12 * abs(larger)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    heads=st.integers(1, 3),
    radius=st.floats(-3, 3).map(lambda x: 10**x),
    n=st.one_of(st.none(), st.integers(1, 60), st.integers(1, 10**12)),
    causal=st.booleans(),
    bias=st.booleans(),
    rotary=st.booleans(),
    projected=st.booleans(),
)
def test_never_above_another_bound_of_a_layer(
    seed, heads, radius, n, causal, bias, rotary, projected
):
    """Each bound of a head, with its reach in the place of a, joined in plain numbers as heads are."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, heads, 2, 4, generator=generator, dtype=F64)
    f = Attention(
        query, key, value, query_bias=query[..., 0] if bias else None, key_bias=key[..., 1],
        output=torch.randn(3, 2 * heads, generator=generator, dtype=F64) if projected else None,
        rotary=torch.tensor([0.7], dtype=F64) if rotary else None, causal=causal,
    )  # fmt: skip
    found = best_upper(attention=f, radius=radius, n=n, log=True)
    assert n is None or found <= bounds.layer_upper(f, n=n, radius=radius, log=True) + 1e-9
    known = {"n": n, "causal": causal, "bias": bias, "rotary": rotary, "radius": radius}
    per_head = [
        list(others(a=a, A=A, **known))
        for a, A in zip(
            bounds.score_reach(f, radius=radius).tolist(), f.score_matrices(), strict=True
        )
    ]
    for logs in torch.tensor(per_head, dtype=F64).mT:
        shift = logs.max()
        alone, through = (
            torch.linalg.matrix_norm(M, 2) * (logs - shift).exp()
            for M in (f.value, f.value_matrices())
        )
        joined = alone.norm()
        if projected:
            joined = torch.minimum(norm2(f.output) * joined, through.sum())
        limit = (joined.log() + shift).item()
        assert found <= limit + 1e-9 + 1e-12 * abs(limit)


@pytest.mark.parametrize("radius", [1e-6, 0.3, 1.0, 1e3])
def test_holds_for_every_layer(case, truth, radius):
    """Biases, heads, groups, rotary positions, projections, masks, log-weights: the whole table."""
    n = case.X.shape[-2]
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(4, n, case.X.shape[-1], generator=generator, dtype=F64)
    X[:2] = X[:2] / X[:2].norm(dim=-1, keepdim=True)
    layer = case.members[0].attention
    reached = truth.of_map(layer, truth.to_ball(radius * X, radius)).max().item()
    assert reached <= best_upper(attention=layer, n=n, radius=radius) * (1 + 1e-9)


LAYERS = ("biases", "biases, causal", "rotary", "rotary, everything", "heads concatenated", "mask",
          "bias per head", "log-weights")  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_holds_on_optimised_inputs(make_case, truth, name):
    f = make_case(name).attention
    start = truth.to_ball(make_case(name).X, 1.0)
    reached = truth.of_map(f, ascend(f, start, 1.0, steps=25, progress=False).X[None]).item()
    assert reached > 1.2 * truth.of_map(f, start[None]).item()  # it went uphill
    assert reached <= best_upper(attention=f, n=len(start), radius=1.0) * (1 + 1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_holds_for_heads_at_ascended_inputs(truth, causal):
    starts = torch.randn(len(KINDS), 5, 2, generator=torch.Generator().manual_seed(1), dtype=F64)
    starts[:, 1:] = 0.8 * starts[:, 1:2] + 0.05 * starts[:, 1:]
    for size in (0.3, 1.5, 5.0):
        A, V = map(torch.stack, zip(*(matrices(kind, 6, 2) for kind in KINDS), strict=True))
        A = size * A / torch.linalg.matrix_norm(A, 2).clamp(min=1e-9)[:, None, None]
        X = truth.to_ball(starts, 1.0)
        value = truth.ascended(lambda X: truth.of_head(A, V, X, causal=causal), X, 1.0, 25)  # noqa: B023
        for index in range(len(KINDS)):
            bound = best_upper(A=A[index], V=V[index], radius=1.0, n=5, causal=causal)
            assert value[index] <= bound * (1 + 1e-9)


def test_values_of_the_examples():
    """Where older forms gave 259 and 52.9."""
    three = {"A": -3 * EYE, "V": EYE, "radius": 1.0, "causal": True}
    assert best_upper(n=4096, **three) == pytest.approx(89.36, abs=0.01)
    assert best_upper(**three) == pytest.approx(178.46, abs=0.01)
    assert best_upper(A=-5 * EYE, V=EYE, radius=1.0, n=64) == pytest.approx(34.12, abs=0.01)


def test_is_reached():
    """One token; no scores; balanced queries at large radius. (Two Diracs: test_mean_field.)"""
    A, V = matrices("any", 3, 3)
    for causal in (False, True):
        assert best_upper(A=A, V=V, radius=50.0, n=1, causal=causal) == pytest.approx(norm2(V))
    assert best_upper(A=0 * A, V=V, radius=50.0, n=10**6) == pytest.approx(norm2(V))
    reached = bounds.construction_lower("torn", n=10_000, radius=8.0, A=-EYE, V=EYE)
    assert 1 <= best_upper(A=-EYE, V=EYE, radius=8.0, n=10_000) / reached < 1.03
    sharp = bounds.unified_upper_sharp(radius=1.0, norm_a=14.0, norm_v=1.0)  # exact to 1e-5
    assert best_upper(A=-14 * EYE, V=EYE, radius=1.0) == pytest.approx(sharp, rel=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_far_out(causal):
    """a = 10⁶ and n = 10¹²: the logarithm is a number, the value inf; radius 10²⁰⁰ too."""
    sizes = {"A": -EYE, "V": EYE, "causal": causal}
    found = best_upper(radius=1e3, n=10**12, log=True, **sizes)
    assert found == pytest.approx(math.log(10**6) + math.log(10**12 / 2) / 2, abs=1e-5)
    assert best_upper(radius=1e3, log=True, **sizes) == pytest.approx(1e6, abs=20)
    assert best_upper(radius=1e3, **sizes) == math.inf
    far = best_upper(radius=1e200, n=10**12, log=True, **sizes)
    assert far == pytest.approx(400 * math.log(10) + math.log(10**12 / 2) / 2, rel=1e-8)
    assert best_upper(A=0 * EYE, V=0 * EYE, radius=1.0, n=3, causal=causal, log=True) == -math.inf


def test_a_head_and_its_layer_agree(randn):
    A, V = randn(3, 3), randn(2, 3)
    for causal, n in ((False, None), (True, 9), (False, 9)):
        f = Attention.from_matrices(A, V, causal=causal)
        expected = best_upper(A=A, V=V, radius=2.0, n=n, causal=causal)
        assert best_upper(attention=f, radius=2.0, n=n) == expected
    single = best_upper(A=A.float(), V=V.float(), radius=2.0, n=9)
    assert single == pytest.approx(expected, rel=1e-5)


def test_what_is_left_with_rotary_positions_and_masks(make_case):
    """Three separate terms, with the longest column that is known; rows that sum to one, where it is not."""
    f = make_case("rotary").attention.head(0)
    R = 0.4
    a = bounds.score_reach(f, radius=R).item()
    norm_v = norm2(f.value[0])
    kappa = math.exp(2 * a)
    log_weights = torch.zeros(6, dtype=F64)
    hardy = 2 * (1 + 2 * a) * math.exp(a)
    expected = [
        ({}, 6, (1 + a) * math.sqrt(6 * kappa / (5 + kappa))),
        ({}, None, (1 + a) * math.exp(a)),
        ({"causal": True}, 6, (1 + a) * math.sqrt(min(6, 1 + kappa * math.log(1 + 5 / kappa)))),
        ({"causal": True}, None, hardy),
        ({"causal": True}, 10**40, hardy),
        ({"log_weights": log_weights}, None, (1 + a) * math.sqrt(6)),
        ({"causal": True, "log_weights": log_weights}, 6, (1 + a) * math.sqrt(6)),
    ]
    for change, n, mixing in expected:
        found = best_upper(attention=replace(f, **change), radius=R, n=n)
        assert found == pytest.approx(norm_v * (mixing + a), rel=1e-12)
    for name in ("mask", "log-weights", "causal mask"):
        g = make_case(name).attention
        a = bounds.score_reach(g, radius=R).item()
        expected = bounds.torn_upper(n=6, radius=1.0, norm_a=a, norm_v=norm2(g.value[0]))
        assert best_upper(attention=g, radius=R) == pytest.approx(expected, rel=1e-12)


def test_a_bias_keeps_the_rate():
    """The gap of 4I says e^{g*/2}, with a bias too: (4x + b)(R − x) has its top at x = R/2 − b/8."""
    one = torch.eye(1, dtype=F64)[None]
    for b in (None, 1e-12, 3.0):
        bias = None if b is None else torch.full((1, 1), b).double()
        f = Attention(4 * one, one, one, query_bias=bias, scale=1.0)
        top = (80 + (b or 0)) ** 2 / 16  # (40 + b/2)²/4
        a = (4 * 20 + (b or 0)) * 20
        expected = top / 2 + math.log(math.hypot(1, a))
        assert best_upper(attention=f, radius=20.0, log=True) == pytest.approx(expected, rel=1e-7)


def test_with_a_mask_a_bias_costs_the_rate():
    one = torch.eye(1, dtype=F64)[None]
    plain = Attention(4 * one, one, one, scale=1.0, causal=True)
    biased = replace(plain, query_bias=torch.full((1, 1), 1e-12).double())
    logs = [best_upper(attention=f, radius=20.0, log=True) for f in (plain, biased)]
    assert logs[0] < 250 < 1600 <= logs[1] < 1620


def test_a_mask_has_its_own_n(make_case):
    for name, n in (("mask", 6), ("log-weights", 6)):
        f = make_case(name).attention
        assert best_upper(attention=f, radius=1.0) == best_upper(attention=f, radius=1.0, n=n)
        with pytest.raises(ValueError, match=r"^n: "):
            best_upper(attention=f, radius=1.0, n=5)


def test_bad_input(make_case):
    f = make_case("one head").attention
    for arguments in ({}, {"A": EYE}, {"A": EYE, "V": EYE, "attention": f}):
        with pytest.raises(ValueError, match=r"^A, V, attention: "):
            best_upper(radius=1.0, **arguments)
    with pytest.raises(ValueError, match=r"^causal: "):
        best_upper(attention=f, radius=1.0, causal=True)
    with pytest.raises(ValueError, match=r"^V: "):
        best_upper(A=EYE, V=torch.eye(3, dtype=F64), radius=1.0)
    with pytest.raises(ValueError, match=r"^radius: "):
        best_upper(A=EYE, V=EYE, radius=-1.0)
    with pytest.raises(TypeError, match=r"^n: "):
        best_upper(A=EYE, V=EYE, radius=1.0, n=2.5)


def cancelling(**bias):
    """A float32 head with KᵀQ = −1 and Kᵀb = −1, both of which float32 rounds to zero."""
    q = torch.tensor([[[1e4], [1.0], [1e4]]])
    k = torch.tensor([[[1e4], [-1.0], [-1e4]]])
    return Attention(q, k, torch.ones(1, 1, 1), scale=1.0, **bias)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [None, 1000])
def test_weights_in_single_precision_are_multiplied_in_double(n, causal):
    """A gap of A worked out in float32 may be zero where the head's own is not."""
    layer = replace(cancelling(), causal=causal)
    found = best_upper(attention=layer, radius=2.0, n=n)
    assert found == best_upper(attention=layer.to(F64), radius=2.0, n=n)
    assert found > 90


def test_a_bias_in_single_precision_is_multiplied_in_double():
    layer = cancelling(query_bias=torch.tensor([[1e4, 1.0, 1e4]]))
    assert bounds.score_reach(layer, radius=2.0).item() == pytest.approx(6.0)
    wide = best_upper(attention=layer.to(F64), radius=2.0)
    assert best_upper(attention=layer, radius=2.0) == wide


def across(A, V):
    """max ‖Av‖ ν(Av) over unit v of a fine grid on the plane."""
    angle = torch.linspace(0, math.pi, 20_001, dtype=F64)
    image = torch.stack([angle.cos(), angle.sin()], dim=-1) @ A.mT
    # e ⊥ Av of the same length
    beside = torch.stack([-image[:, 1], image[:, 0]], dim=-1)
    return (beside @ V.mT).norm(dim=-1).max().item()


@pytest.mark.parametrize("causal", [False, True])
def test_what_V_sees_across_bounds_short_inputs(causal):
    generator = torch.Generator().manual_seed(15)
    for trial in range(30):
        M = torch.randn(2, 2, generator=generator, dtype=F64)
        b = M @ torch.randn(2, generator=generator, dtype=F64)
        far = torch.randn(1, 2, generator=generator, dtype=F64)
        A = 1e4 * torch.outer(b, M[0]) + M
        V = b[None] + (0, 1e-3, 0)[trial % 3] * far
        V = torch.cat([V, 1e-3 * far]) if trial % 3 == 2 else V
        norm_v = torch.linalg.matrix_norm(V, 2).item()
        a = torch.linalg.matrix_norm(A, 2).item()
        rest = best_upper(A=A, V=V, radius=1.0, n=50, causal=causal) / norm_v - a
        omega = across(A, V) / norm_v
        least = math.exp(log_seen(50, math.log(omega)))
        most = math.exp(log_seen(50, math.log(math.sqrt(2) * omega)))
        assert least * (1 - 1e-6) <= rest <= most * (1 + 1e-6)


def test_on_a_line_the_bound_of_short_inputs_does_not_grow_with_the_keys_factor(truth):
    one = torch.ones(1, 1, dtype=F64)
    for a in (1e2, 1e4, 1e8):
        bound = best_upper(A=a * one, V=one, radius=1.0, n=100)
        assert bound - a < 10 * (1.36 + 0.36 * math.log(100))
    generator = torch.Generator().manual_seed(16)
    X = 2 * torch.rand(500, 4, 1, generator=generator, dtype=F64) - 1
    X[250:] *= torch.logspace(-4, 0, 250, dtype=F64)[:, None, None]
    for a in (-30.0, 3.0, 30.0, 300.0):
        found = truth.of_head(a * one, one, X).max().item()
        assert found <= best_upper(A=a * one, V=one, radius=1.0, n=4)


def test_a_projection_leaves_the_bound_that_asks_what_V_sees():
    """The bound of a layer multiplies by ‖W_hV_h‖: W may turn what V_h sees, so that it is not used."""
    one = torch.ones(1, 1, 1, dtype=F64)
    layer = Attention(one, 1e4 * one, one, output=one[0])
    alone = Attention(one, 1e4 * one, one)
    assert best_upper(attention=alone, radius=1.0, n=50) < best_upper(
        attention=layer, radius=1.0, n=50
    )


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_bounds_every_length(causal):
    """A key is seen from its window alone, so that n does not matter once it is longer."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 2, 2, 3, generator=generator, dtype=torch.float64) / 2
    layer = Attention(*weights, window=2, causal=causal)
    every = best_upper(attention=layer, radius=2.0)
    assert best_upper(attention=layer, n=100, radius=2.0) == every
    assert best_upper(attention=layer, n=2, radius=2.0) < every or causal
    for n in (2, 8, 30):
        X = torch.randn(n, 3, generator=generator, dtype=torch.float64)
        X = 2 * X / X.norm(dim=-1, keepdim=True)
        assert float(local_lipschitz(layer, X)) <= best_upper(attention=layer, n=n, radius=2.0)
