"""Lower bounds: below the truth at the inputs that they describe, close to it, right far out."""

import itertools
import math

import pytest
import torch
from scipy.special import polygamma

from draws import EYE, F64, KINDS, ONE, draw, norm, tensor
from lipcore import bounds
from lipcore.adversarial import eigenvector_inputs, score_gap_inputs
from lipcore.bounds import best_lower, best_upper, construction_inputs, construction_lower

FAMILIES = ("copies", "torn", "pulled", "own")
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "radius"), [(1, 1.0), (2, 0.3), (5, 1.0), (8, 2.5)])
def test_lower_bounds_hold_at_their_inputs(truth, kind, n, radius):
    for seed in range(2):
        A, V = KINDS[kind](draw(seed, 3, 3)), draw(seed + 9, 1 + seed, 3)
        gamma, u = bounds.eigen_gamma(A)
        size = {"n": n, "radius": radius, "gamma": gamma}
        X = eigenvector_inputs(A, n, radius)[None]
        reached = truth.of_head(A, V, X).item() * (1 + 1e-9)
        assert bounds.adversarial_lower(norm_v=norm(V), **size) <= reached
        assert bounds.refined_lower(norm_vu=(V @ u).norm().item(), **size) <= reached
        masked = truth.of_head(A, V, X, causal=True).item()
        assert bounds.masked_lower(norm_v=norm(V), **size) <= masked * (1 + 1e-9)
        reached = truth.of_head(A, V, score_gap_inputs(A, n, radius)[None]).item()
        found = bounds.score_gap_lower(n=n, radius=radius, A=A, V=V)
        assert found <= reached * (1 + 1e-9)


def test_lower_bounds_are_close_to_the_truth_at_their_inputs(truth):
    n, head = 40, {"A": -EYE, "V": EYE}
    size = {"n": n, "radius": 1.5}
    reached = truth.of_head(**head, X=eigenvector_inputs(-EYE, n, 1.5)[None]).item()
    assert bounds.refined_lower(gamma=1.0, norm_vu=1.0, **size) > 0.95 * reached
    assert bounds.score_gap_lower(**head, **size) > 0.95 * reached
    far = {"n": n, "radius": 5.0, "gamma": 1.0, "norm_v": 1.0}  # there the plain bound is sharp
    X = eigenvector_inputs(-EYE, n, 5.0)[None]
    assert bounds.adversarial_lower(**far) > 0.98 * truth.of_head(**head, X=X).item()
    assert bounds.masked_lower(**far) > 0.98 * truth.of_head(**head, X=X, causal=True).item()


def test_formulas_by_hand():
    w = 1 / (1 + 4 * math.exp(-2 * 0.7 * 1.3**2))
    size = {"n": 5, "radius": 1.3, "gamma": 0.7}
    assert bounds.adversarial_lower(norm_v=3.0, **size) == pytest.approx(3 * 2 * w, rel=1e-14)
    refined = 2 * w * (1 + 2 * 0.7 * 1.69 * (1 - w)) * 3
    assert bounds.refined_lower(norm_vu=3.0, **size) == pytest.approx(refined, rel=1e-14)
    squares = sum((1 + (i - 1) * math.exp(-2 * 0.7 * 1.69)) ** -2 for i in range(2, 6))
    masked = bounds.masked_lower(norm_v=3.0, **size)
    assert masked == pytest.approx(3 * math.sqrt(squares), rel=1e-14)


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


def test_extremes_are_numbers():
    radii, sizes = (0.0, 1e-200, 1.0, 1e200), (0.0, 1e-300, 1.0, 1e6)
    for n, radius, size, v in itertools.product((1, 3, 10**40), radii, sizes, (0.0, 1.0)):
        for log in (True, False):
            options = {"n": n, "radius": radius, "log": log}
            values = [
                bounds.adversarial_lower(gamma=size, norm_v=v, **options),
                bounds.refined_lower(gamma=size, norm_vu=v, **options),
                bounds.masked_lower(gamma=size, norm_v=v, **options),
                bounds.score_gap_lower(A=size * EYE, V=v * EYE, **options),
                best_lower(A=-size * EYE, V=v * EYE, **options),
                best_lower(A=size * ONE, V=v * ONE, **options | {"n": None}),
            ]
            assert not any(math.isnan(value) for value in values)


@EACH_FAMILY
def test_constructions_reach_what_they_say(truth, family):
    closest = 0.0
    for trial in range(16):
        d, n, radius = 2 + trial % 3, 3 + trial, 0.3 + 0.08 * trial
        A = list(KINDS.values())[trial % 8](draw(trial, d, d))
        V = draw(trial + 40, 1 + trial % 3, d)
        X = construction_inputs(family, A, n, radius, V=V)
        assert X.shape == (n, d) and X.norm(dim=-1).max() <= radius * (1 + 1e-12)
        lower = construction_lower(family, A=A, V=V, n=n, radius=radius)
        ratio = lower / truth.of_head(A, V, X[None]).item()
        assert ratio <= 1 + 1e-9
        closest = max(closest, ratio)
    assert closest > 0.9


@pytest.mark.parametrize("trial", range(20))
def test_no_direction_of_a_grid_pulls_a_torn_token_more(trial):
    d, n = 1 + trial % 3, 2 + trial % 5
    A, V = draw(trial, d, d), draw(trial + 50, 1 + trial % 2, d)
    own = construction_lower("own", A=A, V=V, radius=10.0, n=n)
    side = torch.arange(1, n) % 2 * 2.0 - 1  # of each of the others
    share = (side.square().sum() / n - (side.sum() / n) ** 2).item()
    w = draw(trial + 90, 2000, d)
    w = w / w.norm(dim=-1, keepdim=True)
    pulls = (w @ V.mT).norm(dim=-1) * (w @ A).norm(dim=-1)
    assert own >= share * 100 * pulls.max().item() * (1 - 1e-3) - norm(V) / n


@EACH_FAMILY
def test_measures_are_the_limit_of_many_tokens(family):
    head = {"A": tensor([-2.0, 1.0], [0.3, -1.0]), "V": tensor([0.2, 1.0]), "radius": 1.0}
    limit = construction_lower(family, **head)
    assert construction_lower(family, n=10**9, **head) == pytest.approx(limit, rel=1e-3)


@pytest.mark.parametrize("trial", range(12))
def test_the_bounds_stand_a_bounded_factor_apart_whatever_V_sees(trial):
    """Also on a line, and where V sees only the direction in which the crowd looks."""
    d = 1 + trial % 3
    A = draw(trial, d, d)
    image = A @ bounds.score_gap(A)[1]
    V = (torch.eye(d, dtype=F64), image[None], torch.outer(image, image), draw(9, 1, d))[trial // 3]
    for n in (None, 1, 3, 30, 10**12):
        head = {"A": A, "V": V, "radius": 10 ** (trial / 4), "n": n, "log": True}
        best = best_lower(**head)
        assert best >= math.log(norm(V)) - 1e-12
        assert best >= max(construction_lower(family, **head) for family in FAMILIES)
        factor = math.exp(best_upper(**head) - best)
        assert 1 - 1e-9 <= factor < (12.4 if n is None and trial < 3 else 40)


@pytest.mark.parametrize("size", [1e-320, 1e-300, 1e-160, 1e155, 1e300])
@pytest.mark.parametrize("n", [None, 2, 7, 10**20])
def test_lower_bounds_see_only_the_product_of_A_and_the_squared_radius(size, n):
    """A in other units, and tokens too, is the same head: at both ends of float64's range too."""
    A = tensor([-1.0, 0.5], [0.25, -2.0])
    rounded = 1e-4 if size < 1e-310 else 1e-9  # A has few digits among the smallest numbers
    for family in FAMILIES if n is None else (*FAMILIES, "gap"):

        def lower(family=family, **head):
            if family == "gap":
                return bounds.score_gap_lower(n=n, log=True, **head)
            return construction_lower(family, n=n, log=True, **head)

        here = lower(A=A, V=EYE, radius=1.5)
        there = lower(A=size * A, V=1e-300 * EYE, radius=1.5 * size**-0.5) + 300 * math.log(10)
        assert there == pytest.approx(here, abs=rounded) or here == there == -math.inf
        for radius in (1e-160, 1e300):
            head = {"A": size * A, "V": EYE, "radius": radius}
            found = lower(**head)
            assert found <= best_upper(n=n, log=True, **head) + 1e-9 * abs(found)


def test_where_there_is_no_such_input():
    """No balanced query on a line, no three among two; without values a bound of zero."""
    assert best_lower(A=0 * EYE, V=-3 * EYE, radius=1.0) == pytest.approx(3)
    assert construction_lower("own", A=EYE, V=EYE, radius=2.0) == pytest.approx(4)
    assert construction_lower("torn", n=9, radius=2.0, A=ONE, V=ONE) == 0
    assert construction_lower("torn", n=2, radius=2.0, A=EYE, V=EYE) == 0
    assert construction_lower("own", A=EYE, V=0 * EYE, radius=1.0, n=5) == 0
    assert construction_inputs("own", EYE, 5, 1.0, V=0 * EYE).shape == (5, 2)
