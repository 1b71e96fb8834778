"""Lower bounds: below the truth at the inputs that they describe, close to it, and right far out."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from scipy.special import polygamma

from lipcore import bounds

F64 = torch.float64
EYE = torch.eye(2, dtype=F64)


def _eigen_inputs(A, n, radius):
    _, u = bounds.eigen_gamma(A)
    first, others = (-u, u) if u @ A @ u < 0 else (u, u / 2)
    return radius * torch.stack([first, *[others] * (n - 1)])


def _cases():
    """(A, V) of every kind, seeded."""
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        A, V = (torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(2))
        yield from ((A, V), (A + A.mT, V), (torch.outer(A[0], A[:, 0]), V))
        yield torch.eye(3, dtype=A.dtype), torch.outer(V[0], V[1])


@pytest.mark.parametrize(("n", "radius"), [(1, 1.0), (2, 0.3), (5, 1.0), (8, 2.5)])
def test_lower_bounds_hold_at_their_inputs(truth, n, radius):
    for A, V in _cases():
        gamma, u = bounds.eigen_gamma(A)
        size = {"n": n, "radius": radius, "gamma": gamma}
        norm_v, norm_vu = torch.linalg.matrix_norm(V, 2).item(), (V @ u).norm().item()
        X = _eigen_inputs(A, n, radius)
        plain, masked = (
            truth.of_head(A, V, X[None], causal=causal).item() for causal in (False, True)
        )
        assert bounds.adversarial_lower(norm_v=norm_v, **size) <= plain * (1 + 1e-9)
        assert bounds.refined_lower(norm_vu=norm_vu, **size) <= plain * (1 + 1e-9)
        assert bounds.masked_lower(norm_v=norm_v, **size) <= masked * (1 + 1e-9)
        _, u = bounds.score_gap(A)
        X = radius * torch.stack([A @ u / (A @ u).norm(), *[u] * (n - 1)])
        reached = truth.of_head(A, V, X[None]).item()
        assert bounds.score_gap_lower(n=n, radius=radius, A=A, V=V) <= reached * (1 + 1e-9)


def test_lower_bounds_are_close_to_the_truth_at_their_inputs(truth):
    A, V, n = -EYE, EYE, 40
    size = {"n": n, "radius": 1.5, "gamma": 1.0}
    reached = truth.of_head(A, V, _eigen_inputs(A, n, 1.5)[None]).item()
    assert bounds.refined_lower(norm_vu=1.0, **size) > 0.95 * reached
    assert bounds.score_gap_lower(n=n, radius=1.5, A=A, V=V) > 0.95 * reached
    wide = {"n": n, "radius": 5.0, "gamma": 1.0}  # far from the turn, the plain bound is sharp
    X = _eigen_inputs(A, n, 5.0)[None]
    assert bounds.adversarial_lower(norm_v=1.0, **wide) > 0.98 * truth.of_head(A, V, X).item()
    masked = truth.of_head(A, V, X, causal=True).item()
    assert bounds.masked_lower(norm_v=1.0, **wide) > 0.98 * masked


def test_formulas_by_hand():
    w = 1 / (1 + 4 * math.exp(-2 * 0.7 * 1.3**2))
    size = {"n": 5, "radius": 1.3, "gamma": 0.7}
    assert bounds.adversarial_lower(norm_v=3.0, **size) == pytest.approx(3 * 2 * w, rel=1e-14)
    refined = 2 * w * (1 + 2 * 0.7 * 1.69 * (1 - w)) * 3
    assert bounds.refined_lower(norm_vu=3.0, **size) == pytest.approx(refined, rel=1e-14)
    squares = sum((1 + (i - 1) * math.exp(-2 * 0.7 * 1.69)) ** -2 for i in range(2, 6))
    assert bounds.masked_lower(norm_v=3.0, **size) == pytest.approx(
        3 * math.sqrt(squares), rel=1e-14
    )


def test_half_of_root_n_up_to_the_turn():
    for a in (1.0, 3.0, 10.0):
        n = int(math.exp(2 * a)) + 1
        assert bounds.adversarial_lower(n=n, radius=1.0, gamma=a, norm_v=2.0) >= math.sqrt(n - 1)


def test_refined_equals_the_score_gap_for_multiples_of_the_identity():
    for a, n in itertools.product((0.1, 1.0, 4.0, 300.0), (2, 100, 10**12)):
        size = {"n": n, "radius": 1.0, "log": True}
        for sign, gamma in ((-a, a), (8 * a, a)):
            A = sign * torch.eye(2, dtype=torch.float64)
            refined = bounds.refined_lower(gamma=gamma, norm_vu=1.0, **size)
            found = bounds.score_gap_lower(A=A, V=torch.eye(2, dtype=A.dtype), **size)
            assert found == pytest.approx(refined, abs=1e-9)


@pytest.mark.parametrize("log_q", [-40.0, -14.0, -3.0, 0.0])
@pytest.mark.parametrize("n", [2, 257, 258, 300, 5000, 10**6])
def test_masked_sum_agrees_with_trigamma(log_q, n):
    inverse = math.exp(-log_q)
    if inverse > 1e10:
        expected = n - 1.0
    else:
        expected = inverse**2 * float(polygamma(1, 1 + inverse) - polygamma(1, n + inverse))
    found = bounds.masked_lower(n=n, radius=1.0, gamma=-log_q / 2, norm_v=1.0) ** 2
    # the difference of two trigammas loses digits
    assert found == pytest.approx(expected, rel=1e-7 if inverse > 1e5 else 1e-10)


def test_masked_sum_stops_where_the_unmasked_bound_falls():
    """One seen token in 10¹² no longer matters to the mean, but a causal row near the start still sees it."""
    size = {"n": 10**12, "radius": 1.0, "gamma": 5.0, "norm_v": 1.0}
    assert bounds.masked_lower(**size) == pytest.approx(math.exp(5.0), rel=0.01)
    assert bounds.adversarial_lower(**size) < 0.03


def test_lower_below_upper():
    for a, n in itertools.product((0.0, 1e-3, 1.0, 20.0, 1e3, 1e6), (1, 2, 1000, 10**12)):
        size, norms = {"n": n, "radius": 1.0, "log": True}, {"norm_a": a, "norm_v": 1.0}
        slack = 1e-9 * (1 + a)
        plain = bounds.refined_lower(gamma=a, norm_vu=1.0, **size)
        assert bounds.adversarial_lower(gamma=a, norm_v=1.0, **size) <= plain + slack
        for upper in (bounds.general_upper, bounds.unified_upper, bounds.unified_upper_sharp):
            assert plain <= upper(**size, **norms) + slack
        masked = bounds.masked_lower(gamma=a, norm_v=1.0, **size)
        assert masked <= bounds.masked_upper(**size, **norms) + slack


def test_extremes_are_numbers():
    radii, sizes = (0.0, 1e-200, 1.0, 1e200), (0.0, 1e-300, 1.0, 1e6)
    for n, radius, size, v in itertools.product((1, 10**12, 10**40), radii, sizes, (0.0, 1.0)):
        for log in (True, False):
            sizes_n = {"n": n, "radius": radius, "log": log}
            values = [
                bounds.adversarial_lower(gamma=size, norm_v=v, **sizes_n),
                bounds.refined_lower(gamma=size, norm_vu=v, **sizes_n),
                bounds.masked_lower(gamma=size, norm_v=v, **sizes_n),
                bounds.score_gap_lower(A=size * EYE, V=v * EYE, **sizes_n),
            ]
            assert not any(math.isnan(value) for value in values)


def test_score_gap_lower_where_V_sees_one_direction_only():
    """V = b(Au)ᵀ vanishes on (Au)^⊥: the bound then comes from the direction Au itself, and grows at the same rate."""
    A = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    _, u = bounds.score_gap(A)
    V = torch.outer(torch.tensor([1.0, 0.0], dtype=torch.float64), A @ u)
    n = int(math.exp(9.0))
    value = bounds.score_gap_lower(n=n, radius=3.0, A=A, V=V)
    assert value > math.sqrt(n - 1) / 2


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"^gamma: "):
        bounds.adversarial_lower(n=2, radius=1.0, gamma=-1.0, norm_v=1.0)
    with pytest.raises(ValueError, match=r"^n: "):
        bounds.masked_lower(n=0, radius=1.0, gamma=1.0, norm_v=1.0)
    with pytest.raises(ValueError, match=r"^norm_vu: "):
        bounds.refined_lower(n=2, radius=1.0, gamma=1.0, norm_vu=math.inf)
    with pytest.raises(ValueError, match=r"^V: "):
        bounds.score_gap_lower(n=2, radius=1.0, A=torch.eye(2), V=torch.eye(3))
    with pytest.raises(TypeError, match=r"^V is"):
        bounds.score_gap_lower(n=2, radius=1.0, A=torch.eye(2).double(), V=torch.eye(2))


# --- balanced queries -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["any", "symmetric", "antisymmetric", "rank one", "positive"])
def test_torn_bound_is_reached_by_its_inputs(truth, kind):
    generator = torch.Generator().manual_seed(7)
    for trial in range(8):
        d, n, radius = 2 + trial % 4, 3 + 2 * trial, 0.3 + 0.4 * trial
        M = torch.randn(d, d, generator=generator, dtype=F64)
        A = {"any": M, "symmetric": M + M.mT, "antisymmetric": M - M.mT, "rank one": torch.outer(M[0], M[1]),
             "positive": M @ M.mT}[kind]  # fmt: skip
        V = torch.randn(3, d, generator=generator, dtype=F64)
        X = bounds.construction_inputs("torn", A, n, radius, V=V)
        assert X.shape == (n, d) and X.norm(dim=-1).max() <= radius * (1 + 1e-12)
        assert bounds.construction_lower("torn", n=n, radius=radius, A=A, V=V) <= (
            truth.of_head(A, V, X[None]).item() * (1 + 1e-9)
        )


def test_no_head_escapes_a_root_n():
    """(The theorem: a·ν·√(n−2)/6 for n ≤ 2 + e^{a/10}.)"""
    generator = torch.Generator().manual_seed(8)
    for trial in range(15):
        A = torch.randn(3, 3, generator=generator, dtype=F64)
        a = 4.0 + 3 * trial
        n, norm_a = 2 + int(math.exp(a / 10)), torch.linalg.matrix_norm(A, 2).item()
        reached = bounds.construction_lower(
            "torn", n=n, radius=math.sqrt(a / norm_a), A=A, V=torch.eye(3, dtype=F64)
        )
        assert reached >= a * math.sqrt(n - 2) / 6


@pytest.mark.parametrize(("a", "n"), [(0.5, 5), (2.0, 12), (8.0, 12), (8.0, 48)])
def test_torn_bound_holds_with_a_mask_too(truth, a, n):
    X = bounds.construction_inputs("torn", -a * EYE, n, 1.0)
    found = truth.of_head(-a * EYE, EYE, X[None], causal=True).item()
    assert bounds.construction_lower("torn", n=n, radius=1.0, A=-a * EYE, V=EYE) <= found * (
        1 + 1e-9
    )
    assert found <= bounds.torn_upper(n=n, radius=1.0, norm_a=a, norm_v=1.0)


@pytest.mark.parametrize("radius", [1e-8, 1.0, 1e3, 1e160])
@pytest.mark.parametrize("n", [1, 3, 10**12])
def test_torn_bounds_of_extreme_sizes_stay_ordered(n, radius):
    upper = bounds.torn_upper(n=n, radius=radius, norm_a=1.0, norm_v=1.0, log=True)
    lower = bounds.construction_lower("torn", n=n, radius=radius, A=-EYE, V=EYE, log=True)
    assert not math.isnan(upper) and not math.isnan(lower) and lower <= upper


def test_there_are_no_balanced_queries_on_a_line():
    line = torch.ones(1, 1, dtype=F64)
    assert bounds.construction_lower("torn", n=9, radius=2.0, A=line, V=line) == 0
    assert bounds.construction_lower("torn", n=2, radius=2.0, A=EYE, V=EYE) == 0
    with pytest.raises(ValueError, match=r"^A, radius: "):
        bounds.construction_inputs("torn", line, 9, 2.0)
    with pytest.raises(ValueError, match=r"^n: "):
        bounds.construction_inputs("torn", EYE, 2, 2.0)
    with pytest.raises(ValueError, match=r"^V: "):
        bounds.construction_lower("torn", n=5, radius=1.0, A=EYE, V=line)


# --- copies, and the best of all ----------------------------------------------------------------------

PAIRS = [
    (partial(bounds.construction_lower, family), partial(bounds.construction_inputs, family))
    for family in ("copies", "torn", "pulled", "own")
]


@pytest.mark.parametrize(("lower", "inputs"), PAIRS, ids=lambda f: f.args[0])
def test_constructions_reach_what_they_say(truth, lower, inputs):
    generator = torch.Generator().manual_seed(11)
    closest = 0.0
    for trial in range(40):
        d, n, radius = 2 + trial % 3, 3 + trial, 0.3 + 0.05 * trial
        M = torch.randn(d, d, generator=generator, dtype=F64)
        A = (M, M + M.mT, M - M.mT, M @ M.mT, torch.outer(M[0], M[1]))[trial % 5]
        V = torch.randn(1 + trial % 3, d, generator=generator, dtype=F64)
        X = inputs(A, n, radius, V=V)
        assert X.shape == (n, d) and X.norm(dim=-1).max() <= radius * (1 + 1e-12)
        ratio = lower(A=A, V=V, n=n, radius=radius) / truth.of_head(A, V, X[None]).item()
        assert ratio <= 1 + 1e-9
        closest = max(closest, ratio)
    assert closest > 0.9


def test_copies_of_measures_are_the_limit_of_many_tokens():
    for lower, _ in PAIRS:
        A = torch.tensor([[-2.0, 1.0], [0.3, -1.0]], dtype=F64)
        head = {"A": A, "V": torch.tensor([[0.2, 1.0]], dtype=F64), "radius": 1.0}
        assert lower(n=10**9, **head) == pytest.approx(lower(**head), rel=1e-3)


def test_a_V_that_sees_no_difference_loses_no_power_of_a():
    """A = diag(−a, −a/2), V = e₂ᵀ: copies reach e^a only, torn queries √a e^a, the pulled mean a e^a."""
    V = torch.tensor([[0.0, 1.0]], dtype=F64)
    for a in (16.0, 64.0, 1024.0):
        head = {"A": -a * torch.diag(torch.tensor([1.0, 0.5], dtype=F64)), "V": V, "radius": 1.0}
        logs = [lower(log=True, **head) - a for lower, _ in PAIRS]
        assert logs[0] < 0 and logs[1] < math.log(math.sqrt(a))
        assert logs[2] == pytest.approx(math.log(0.124 * a), abs=0.01)


def test_one_torn_query_is_of_order_a_from_two_tokens_on(truth):
    generator = torch.Generator().manual_seed(13)
    for trial in range(40):
        d, n = 1 + trial % 3, 2 + trial % 5
        A, V = torch.randn(2, d, d, generator=generator, dtype=F64)
        V = V[: 1 + trial % 2]
        norm_a, norm_v = (torch.linalg.matrix_norm(M, 2).item() for M in (A, V))
        head = {"A": A, "V": V, "radius": 10.0, "n": n}
        value = bounds.construction_lower("own", **head)
        share = 1 / 4 if n == 2 else 2 * ((n - 1) // 2) / n
        assert value >= norm_v * (share * norm_a * 100 / 2 - 1 / n)
        X = bounds.construction_inputs("own", A, n, 10.0, V=V)
        assert value <= truth.of_head(A, V, X[None]).item() * (1 + 1e-9)
        # no direction w of a fine grid pulls more
        w = torch.randn(2000, d, generator=generator, dtype=F64)
        w = w / w.norm(dim=-1, keepdim=True)
        pulls = (w @ V.mT).norm(dim=-1) * (w @ A).norm(dim=-1)
        assert value >= share * 100 * pulls.max().item() * (1 - 1e-3) - norm_v / n


def test_a_torn_query_without_values_is_an_input_too():
    assert bounds.construction_lower("own", A=EYE, V=0 * EYE, radius=1.0, n=5) == 0
    assert bounds.construction_inputs("own", EYE, 5, 1.0, V=0 * EYE).shape == (5, 2)
    with pytest.raises(ValueError, match=r"^n: "):
        bounds.construction_inputs("own", EYE, 1, 1.0)
    with pytest.raises(ValueError, match=r"^family: "):
        bounds.construction_inputs("pushed", EYE, 5, 1.0)


def test_a_crowd_is_pulled_part_of_the_way_where_n_is_small():
    """V = eᵀ with e ⊥ x_1 − x_0, n far below e^g*: all of the way, the crowd would be won over."""
    A = -100 * torch.diag(torch.tensor([1.0, 0.5], dtype=F64))
    head = {"A": A, "V": torch.tensor([[0.0, 1.0]], dtype=F64), "radius": 1.0}
    for n in (100, 10**6, 10**12):
        assert bounds.construction_lower("pulled", n=n, **head) > 0.1 * math.sqrt(n) * math.log(n)


def test_the_bounds_stand_a_bounded_factor_apart_whatever_V_sees():
    """Also on a line, and where V sees only the direction in which the crowd looks."""
    generator = torch.Generator().manual_seed(14)
    for trial in range(18):
        d = 1 + trial % 3
        A = torch.randn(d, d, generator=generator, dtype=F64)
        image = A @ bounds.score_gap(A)[1]
        V = (torch.eye(d, dtype=F64), image[None], torch.outer(image, image))[trial // 3 % 3]
        for n in (2, 3, 30, 10**4, 10**12):
            head = {"A": A, "V": V, "radius": 10 ** (trial / 6), "n": n, "log": True}
            apart = bounds.best_upper(**head) - bounds.best_lower(**head)
            assert -1e-9 <= apart < math.log(30)


def test_best_lower_takes_the_best_and_stays_below_the_upper_bound():
    generator = torch.Generator().manual_seed(12)
    for trial in range(20):
        A = torch.randn(3, 3, generator=generator, dtype=F64)
        V = torch.randn(2, 3, generator=generator, dtype=F64)
        for n in (None, 1, 2, 3, 50, 10**9, 10**40):
            head = {"A": A, "V": V, "radius": 0.2 + trial / 4, "n": n, "log": True}
            best = bounds.best_lower(**head)
            assert best >= max(lower(**head) for lower, _ in PAIRS)
            assert best >= math.log(torch.linalg.matrix_norm(V, 2).item()) - 1e-12
            assert best <= bounds.best_upper(**head) + 1e-9


@pytest.mark.parametrize("radius", [0.0, 1e-200, 1e3, 1e200])
@pytest.mark.parametrize("n", [None, 1, 2, 3, 10**12])
def test_constructions_of_extreme_sizes_are_numbers(n, radius):
    for A in (-EYE, 0 * EYE, EYE, -EYE[:1, :1]):
        V = torch.eye(len(A), dtype=F64)
        for lower in (*(lower for lower, _ in PAIRS), bounds.best_lower):
            for log in (True, False):
                assert not math.isnan(lower(A=A, V=V, radius=radius, n=n, log=log))


@pytest.mark.parametrize("size", [1e-320, 1e-300, 1e-160, 1e155, 1e300])
@pytest.mark.parametrize("n", [None, 2, 7, 10**20])
def test_lower_bounds_see_only_the_product_of_A_and_the_squared_radius(size, n):
    """A in other units, and tokens too, is the same head: at both ends of float64's range as well."""
    A = torch.tensor([[-1.0, 0.5], [0.25, -2.0]], dtype=F64)
    lowers = [*(lower for lower, _ in PAIRS), bounds.best_lower]
    for lower in lowers if n is None else [*lowers, bounds.score_gap_lower]:
        size_n = {"log": True} | ({"n": n} if n else {})
        here = lower(A=A, V=EYE, radius=1.5, **size_n)
        there = lower(A=size * A, V=1e-300 * EYE, radius=1.5 * size**-0.5, **size_n)
        rounded = 1e-4 if size < 1e-310 else 1e-9  # A has few digits among the smallest numbers
        assert (
            there + 300 * math.log(10) == pytest.approx(here, abs=rounded)
            or here == there == -math.inf
        )
        for radius in (1e-160, 1e300):
            head = {"A": size * A, "V": EYE, "radius": radius, "n": n, "log": True}
            if n or lower is not bounds.score_gap_lower:
                assert lower(**head) <= bounds.best_upper(**head) + 1e-9 * abs(lower(**head))
