"""The best bound: never above another that applies, never below the truth, right at every size."""

import math
import random
from dataclasses import replace

import pytest
import torch

from draws import EYE, F64, KINDS, ONE, draw, norm
from lipcore import Attention, bounds, local_lipschitz
from lipcore.adversarial import ascend
from lipcore.bounds import _matrices, best_upper
from lipcore.bounds.ball import log_seen
from lipcore.bounds.layer import log_score_reach


def others(*, n, a, causal, bias=False, rotary=False, A=None, radius=None):
    """The logarithms of all other public bounds that hold for ‖V‖ = 1."""
    sizes = {"radius": 1.0, "norm_a": a, "norm_v": 1.0, "log": True}
    yield from [] if n is None else [bounds.general_upper(n=n, **sizes)]
    if causal and n is not None:
        yield bounds.masked_upper(n=n, **sizes)
    if rotary:
        return
    yield from [] if n is None else [bounds.torn_upper(n=n, **sizes)]
    rate = {"A": A, "radius": radius, "norm_v": 1.0, "log": True}
    if causal:
        yield bounds.masked_upper_moments(**sizes)
        yield from [] if bias else [bounds.masked_upper_rate(**rate)]
        return
    yield bounds.mean_field_upper_paper(**sizes)
    for length in (n, None):
        yield bounds.unified_upper(n=length, **sizes)
        yield bounds.unified_upper_sharp(n=length, **sizes)
        yield from [] if bias else [bounds.unified_upper_rate(n=length, **rate)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_never_above_another_bound(kind, causal):
    chance = random.Random(f"{kind} {causal}")
    for seed, d in zip(range(4), (1, 2, 3, 5), strict=True):
        radius = chance.choice([0.0, 1e150, *(10 ** chance.uniform(-10, 10) for _ in range(6))])
        n = chance.choice([None, 1, chance.randint(2, 60), chance.randint(1, 10**12)])
        A, V = KINDS[kind](draw(seed, d, d)), draw(seed + 1, 1 + seed % d, d)
        head = {"A": A, "V": V, "causal": causal, "log": True}
        found = best_upper(radius=radius, n=n, **head)
        assert not math.isnan(found)
        a = norm(A) * radius**2
        for log_bound in others(n=n, a=a, causal=causal, A=A, radius=radius) if a < 1e300 else ():
            assert found <= log_bound + math.log(norm(V)) + 1e-9 + 1e-12 * abs(log_bound)
        more = None if n is None or seed % 2 else 2 * n + 1
        for sizes in ({"radius": 1.5 * radius, "n": n}, {"radius": radius, "n": more}):
            larger = best_upper(**sizes, **head)
            assert found <= larger + 1e-9 + 1e-12 * abs(larger)


@pytest.mark.parametrize("n", [None, 6])
@pytest.mark.parametrize("radius", [0.5, 30.0])
def test_never_above_another_bound_of_a_layer(case, radius, n):
    """Each bound of a head, with its reach in place of a, joined in plain numbers as heads are."""
    f = case.members[0].attention
    tables = (f.mask, f.bias, f.log_weights, f.window)
    n = case.X.shape[-2] if any(table is not None for table in tables) else n
    found = best_upper(attention=f, radius=radius, n=n, log=True)
    assert n is None or found <= bounds.layer_upper(f, n=n, radius=radius, log=True) + 1e-9
    if any(table is not None for table in tables):
        return
    bias, rotary = f.query_bias is not None, f.rotary is not None
    known = {"n": n, "causal": f.causal, "bias": bias, "rotary": rotary, "radius": radius}
    heads = zip(bounds.score_reach(f, radius=radius).tolist(), f.score_matrices(), strict=True)
    for logs in torch.tensor([list(others(a=a, A=A, **known)) for a, A in heads], dtype=F64).mT:
        factors = (logs - logs.max()).exp()
        joined = (torch.linalg.matrix_norm(f.value, 2) * factors).norm()
        if f.output is not None:
            through = torch.linalg.matrix_norm(f.value_matrices(), 2) * factors
            joined = torch.minimum(norm(f.output) * joined, through.sum())
        limit = (joined.log() + logs.max()).item()
        assert found <= limit + 1e-9 + 1e-12 * abs(limit)


@pytest.mark.parametrize("radius", [0.3, 1e3])
def test_holds_for_every_layer(case, truth, radius):
    """Biases, heads, groups, rotary positions, projections, masks, log-weights: the whole table."""
    n = case.X.shape[-2]
    X = draw(0, 4, n, case.X.shape[-1])
    X[:2] = X[:2] / X[:2].norm(dim=-1, keepdim=True)
    layer = case.members[0].attention
    reached = truth.of_map(layer, truth.to_ball(radius * X, radius)).max().item()
    assert reached <= best_upper(attention=layer, n=n, radius=radius) * (1 + 1e-9)


OPTIMISED = ["biases", "biases, causal", "rotary", "rotary, everything", "heads concatenated"]


@pytest.mark.parametrize("name", [*OPTIMISED, "mask", "bias per head", "log-weights"])
def test_holds_on_optimised_inputs(make_case, truth, name):
    f = make_case(name).attention
    start = truth.to_ball(make_case(name).X, 1.0)
    X = ascend(f, start, 1.0, steps=25, progress=False).X
    reached = truth.of_map(f, X[None]).item()
    assert reached > 1.2 * truth.of_map(f, start[None]).item()  # it went uphill
    assert reached <= best_upper(attention=f, n=len(start), radius=1.0) * (1 + 1e-9)
    # the local form never fails either
    assert reached <= bounds.local_upper(f, X).item() * (1 + 1e-9)


def test_is_reached():
    """One token; no scores; balanced queries at large radius; two Diracs."""
    A, V = draw(0, 3, 3), draw(1, 1, 3)
    for causal in (False, True):
        assert best_upper(A=A, V=V, radius=50.0, n=1, causal=causal) == pytest.approx(norm(V))
    assert best_upper(A=0 * A, V=V, radius=50.0, n=10**6) == pytest.approx(norm(V))
    crowd = {"A": -EYE, "V": EYE, "n": 10_000, "radius": 8.0}
    assert 1 <= best_upper(**crowd) / bounds.construction_lower("torn", **crowd) < 1.03
    sharp = bounds.unified_upper_sharp(radius=1.0, norm_a=14.0, norm_v=1.0)  # exact to 1e-5
    assert best_upper(A=-14 * EYE, V=EYE, radius=1.0) == pytest.approx(sharp, rel=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_far_out(causal):
    """a = 10⁶ and n = 10¹²: the logarithm is a number, the value inf; radius 10²⁰⁰ too."""
    head = {"A": -EYE, "V": EYE, "causal": causal}
    found = best_upper(radius=1e3, n=10**12, log=True, **head)
    assert found == pytest.approx(math.log(10**6) + math.log(10**12 / 2) / 2, abs=1e-5)
    assert best_upper(radius=1e3, log=True, **head) == pytest.approx(1e6, abs=20)
    assert best_upper(radius=1e3, **head) == math.inf
    far = best_upper(radius=1e200, n=10**12, log=True, **head)
    assert far == pytest.approx(400 * math.log(10) + math.log(10**12 / 2) / 2, rel=1e-8)
    assert best_upper(A=0 * EYE, V=0 * EYE, radius=1.0, n=3, causal=causal, log=True) == -math.inf


@pytest.mark.parametrize("b", [0.0, 1e-12, 3.0])
def test_a_bias_keeps_the_rate(b):
    """The gap of 4I says e^{g*/2}: (4x + b)(R − x) has its top at x = R/2 − b/8."""
    one = ONE[None]
    f = Attention(4 * one, one, one, query_bias=b * ONE if b else None, scale=1.0)
    top = (80 + b) ** 2 / 16  # (40 + b/2)²/4
    expected = top / 2 + math.log(math.hypot(1, (4 * 20 + b) * 20))
    assert best_upper(attention=f, radius=20.0, log=True) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("name", ["mask", "log-weights"])
def test_a_mask_has_its_own_n(make_case, name):
    f = make_case(name).attention
    assert best_upper(attention=f, radius=1.0) == best_upper(attention=f, radius=1.0, n=6)
    with pytest.raises(ValueError, match=r"^n: "):
        best_upper(attention=f, radius=1.0, n=5)


Q32, K32 = torch.tensor([[[1e4], [1.0], [1e4]]]), torch.tensor([[[1e4], [-1.0], [-1e4]]])


@pytest.mark.parametrize("n", [None, 1000])
@pytest.mark.parametrize(
    ("options", "reach"),
    [({}, 4.0), ({"causal": True}, 4.0), ({"query_bias": Q32[..., 0]}, 6.0)],
)
def test_weights_in_single_precision_are_multiplied_in_double(n, options, reach):
    """KᵀQ = −1 and Kᵀb = −1 are zero in float32, and so would be the gap."""
    layer = Attention(Q32, K32, torch.ones(1, 1, 1), scale=1.0, **options)
    found = best_upper(attention=layer, radius=2.0, n=n)
    assert found == best_upper(attention=layer.to(F64), radius=2.0, n=n) > 90
    assert bounds.score_reach(layer, radius=2.0).item() == pytest.approx(reach)


def across(A, V):
    """max ‖Av‖ ν(Av) over unit v of a fine grid on the plane."""
    angle = torch.linspace(0, math.pi, 20_001, dtype=F64)
    image = torch.stack([angle.cos(), angle.sin()], dim=-1) @ A.mT
    beside = torch.stack([-image[:, 1], image[:, 0]], dim=-1)  # e ⊥ Av of the same length
    return (beside @ V.mT).norm(dim=-1).max().item()


@pytest.mark.parametrize("causal", [False, True])
def test_what_V_sees_across_bounds_short_inputs(causal):
    for trial in range(24):
        M, far = draw(trial, 2, 2), draw(trial + 50, 1, 2)
        b = M @ draw(trial + 99, 2)
        A = 1e4 * torch.outer(b, M[0]) + M
        V = b[None] + (0, 1e-3, 0)[trial % 3] * far
        V = torch.cat([V, 1e-3 * far]) if trial % 3 == 2 else V
        rest = best_upper(A=A, V=V, radius=1.0, n=50, causal=causal) / norm(V) - norm(A)
        omega = across(A, V) / norm(V)
        least = math.exp(log_seen(50, math.log(omega)))
        most = math.exp(log_seen(50, math.log(math.sqrt(2) * omega)))
        assert least * (1 - 1e-6) <= rest <= most * (1 + 1e-6)


def test_a_projection_leaves_the_bound_that_asks_what_V_sees():
    """The bound of a layer multiplies by ‖W_hV_h‖, and W may turn what V_h sees: it is not used."""
    one = ONE[None]
    alone = Attention(one, 1e4 * one, one)
    bound = best_upper(attention=replace(alone, output=ONE), radius=1.0, n=50)
    assert best_upper(attention=alone, radius=1.0, n=50) < bound


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_bounds_every_length(causal):
    """A key is seen from its window alone, so that n does not matter once it is longer."""
    layer = Attention(*draw(0, 3, 2, 2, 3) / 2, window=2, causal=causal)
    every = best_upper(attention=layer, radius=2.0)
    assert best_upper(attention=layer, n=100, radius=2.0) == every
    assert best_upper(attention=layer, n=2, radius=2.0) < every or causal
    for n in (2, 8, 30):
        X = draw(n, n, 3)
        X = 2 * X / X.norm(dim=-1, keepdim=True)
        assert float(local_lipschitz(layer, X)) <= best_upper(attention=layer, n=n, radius=2.0)


def test_heads_by_the_letter(make_case):
    f = make_case("biases").attention
    reaches = bounds.score_reach(f, radius=1.3).tolist()
    factors = [bounds.general_upper(n=5, radius=1.0, norm_a=a, norm_v=1.0) for a in reaches]
    alone = [norm(V) * x for V, x in zip(f.value, factors, strict=True)]
    through = [norm(V) * x for V, x in zip(f.value_matrices(), factors, strict=True)]
    expected = min(norm(f.output) * math.hypot(*alone), sum(through))
    assert bounds.layer_upper(f, n=5, radius=1.3) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("radius", [0.0, 0.7, 3.0])
def test_scores_stay_within_reach(case, radius):
    """Scores of one query differ by at most 2a in the ball."""
    attention = case.attention
    reach = bounds.score_reach(attention, radius=radius)
    assert reach.shape == (attention.heads,) and bool((reach >= 0).all())
    X = draw(1, 20, *case.X.shape[-2:])
    queries, keys, _ = attention.project(radius * X / X.norm(dim=-1, keepdim=True))
    scores = queries @ keys.mT
    spread = (scores.amax(-1) - scores.amin(-1)).amax((0, -1))
    assert bool((spread <= 2 * reach + 1e-12).all())
    logs = torch.tensor(log_score_reach(attention, radius), dtype=F64)
    torch.testing.assert_close(logs.exp(), reach)


@pytest.mark.parametrize("rotary", [None, torch.tensor([0.5], dtype=F64)], ids=["plain", "rotary"])
def test_reach_is_attained(rotary):
    """With a bias along the top singular vector the spread is 2a itself."""
    Q = torch.diag(torch.tensor([2.0, 0.5], dtype=F64))[None]
    K = torch.eye(2, dtype=F64)[None]
    bias = torch.tensor([[3.0, 0.0]], dtype=F64)
    f = Attention(Q, K, K, query_bias=bias, scale=1.0, rotary=rotary)
    first = torch.tensor([1.5, 0.0], dtype=F64)
    turned = first
    if rotary is not None:  # the key at position 1 undoes its rotation
        turned = torch.tensor([math.cos(0.5), -math.sin(0.5)], dtype=F64) * 1.5
    queries, keys, _ = f.project(torch.stack([first, -turned]))
    scores = (queries @ keys.mT)[0, 0]
    spread = (scores.max() - scores.min()).item()
    reach = bounds.score_reach(f, radius=1.5).item()
    assert reach == pytest.approx(spread / 2) == (2 * 1.5 + 3) * 1.5


@pytest.mark.parametrize("size", [1e-300, 1.0, 1e300])
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (1, 6), (6, 1)])
def test_norms_are_the_largest_singular_values(shape, size):
    matrices = draw(0, 7, 2, *shape)
    matrices[0] = 0
    expected = size * torch.linalg.matrix_norm(matrices, 2)
    torch.testing.assert_close(_matrices.norms(size * matrices), expected, rtol=1e-14, atol=0)
