"""Every bound holds on random, worst-case and optimised inputs, and is as sharp as it claims to be."""

import math

import numpy as np
import pytest
import torch

from lipcore import Attention, local_lipschitz
from lipcore.bounds import (
    general_upper,
    layer_upper,
    local_upper,
    masked_upper,
    mean_field_upper,
    mean_field_upper_paper,
    nonnegative_norm_upper,
    score_reach,
    unified_upper,
)

ROUNDING = 1 + 1e-9
EYE = torch.eye(2, dtype=torch.float64)

#: The closed forms as the theory writes them, without care for overflow.
FORMULAS = {
    general_upper: lambda n, a, v: math.sqrt(3) * v * math.sqrt(a**2 * (4 * n + 1) + n),
    unified_upper: lambda n, a, v: (
        v * ((1 + a) * math.sqrt(n * math.exp(2 * a) / (n + math.exp(2 * a) - 1)) + a)
    ),
    mean_field_upper: lambda n, a, v: v * ((1 + a) * math.exp(a) + a),
    mean_field_upper_paper: lambda n, a, v: v * (1 + 3 * a) * math.exp(2 * a),
    masked_upper: lambda n, a, v: (
        v * min((1 + a) * math.sqrt(n) + a, 2 * (1 + 2 * a) * math.exp(a) + a)
    ),
}
MEAN_FIELD = (mean_field_upper, mean_field_upper_paper)
CLOSED_FORMS = pytest.mark.parametrize("bound", FORMULAS, ids=lambda bound: bound.__name__)


def evaluate(bound, *, n, **quantities):
    """The mean-field bounds do not take n."""
    return bound(**quantities) if bound in MEAN_FIELD else bound(n=n, **quantities)


def truth(attention, X):
    """‖D_X f‖₂ by reverse-mode autodiff and LAPACK, without lipcore.jacobian and lipcore.spectral."""
    J = torch.func.jacrev(attention)(X)
    return torch.linalg.matrix_norm(J.reshape(-1, X.numel()), 2)


def to_ball(X, radius):
    return X * (radius / X.norm(dim=-1, keepdim=True).clamp(min=radius))


def ascended(attention, X, radius, *, steps=60):
    """The best point seen when X goes uphill on the local constant, by projected gradient steps."""
    best, best_value = X, 0.0
    for step in range(steps):
        X = X.detach().requires_grad_()
        value = truth(attention, X)
        if value.item() > best_value:
            best, best_value = X.detach(), value.item()
        (gradient,) = torch.autograd.grad(value, X)
        rate = 0.3 * radius * (1 - step / steps)
        X = to_ball(X.detach() + rate * gradient / gradient.norm().clamp(min=1e-30), radius)
    return best


def worst_case(n, radius, gamma, d=2):
    """Theory §3 for A = γI, γ of either sign: one token apart, the others together."""
    X = torch.zeros(n, d, dtype=torch.float64)
    X[:, 0] = radius if gamma < 0 else radius / 2
    X[0, 0] = -radius if gamma < 0 else radius
    return X


def inputs(attention, n, radius, generator):
    """Random inputs of the ball and its sphere, the worst cases, and what gradient ascent finds from both."""
    inside = to_ball(radius * torch.randn(n, 2, generator=generator, dtype=torch.float64), radius)
    sphere = radius * inside / inside.norm(dim=-1, keepdim=True)
    starts = [inside, sphere, worst_case(n, radius, -1.0), worst_case(n, radius, 1.0)]
    return starts + [ascended(attention, X + 1e-3 * radius * inside, radius) for X in starts[1:3]]


MATRICES = {
    "-2 I": -2 * EYE,
    "2 I": 2 * EYE,
    "rotation": torch.tensor([[0.0, -1.5], [1.5, 0.0]], dtype=torch.float64),
    "nearly nilpotent": torch.tensor([[0.2, 2.0], [0.0, 0.2]], dtype=torch.float64),
    "diag(4, -0.1)": torch.diag(torch.tensor([4.0, -0.1], dtype=torch.float64)),
    "zero": 0 * EYE,
}


# --- validity -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True], ids=["unmasked", "masked"])
@pytest.mark.parametrize("n", [2, 7])
@pytest.mark.parametrize("name", MATRICES)
def test_bounds_hold(generator, name, n, causal):
    A, radius = MATRICES[name], 1.1
    V = torch.tensor([[1.0, 0.3], [0.0, 0.8]], dtype=torch.float64)
    attention = Attention.from_matrices(A, V, causal=causal)
    norms = {
        "radius": radius,
        "norm_a": torch.linalg.matrix_norm(A, 2),
        "norm_v": torch.linalg.matrix_norm(V, 2),
    }
    upper = [
        general_upper(n=n, **norms),
        masked_upper(n=n, **norms) if causal else unified_upper(n=n, **norms),
    ]
    upper += [] if causal else [mean_field_upper(**norms), mean_field_upper_paper(**norms)]
    for X in inputs(attention, n, radius, generator):
        sigma = truth(attention, X).item()
        assert sigma <= local_upper(attention, X).item() * ROUNDING
        assert all(sigma <= bound * ROUNDING for bound in upper)


@pytest.mark.parametrize("form", ["unified", "general"])
@pytest.mark.parametrize("radius", [1e-6, 0.3, 1.0, 1e3])
def test_layer_bounds_hold(case, radius, form):
    """Biases, heads, groups, rotary positions, projections, masks, log-weights: the whole table."""
    n = case.X.shape[-2]
    bound = layer_upper(case.attention, n=n, radius=radius, form=form)
    for seed in range(3):
        X = torch.randn(
            n, case.X.shape[-1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        for tokens in (to_ball(radius * X, radius), radius * X / X.norm(dim=-1, keepdim=True)):
            assert truth(case.attention, tokens).item() <= bound * ROUNDING


@pytest.mark.parametrize(
    "name", ["biases", "biases, causal", "rotary, everything", "heads concatenated", "mask"]
)
def test_layer_bounds_hold_on_optimised_inputs(make_case, name):
    case = make_case(name)
    X = ascended(case.attention, to_ball(case.X, 1.0), 1.0)
    sigma, n = truth(case.attention, X).item(), len(X)
    assert sigma > 1.2 * truth(case.attention, to_ball(case.X, 1.0)).item()  # it went uphill
    assert sigma <= local_upper(case.attention, X).item() * ROUNDING
    assert sigma <= layer_upper(case.attention, n=n, radius=1.0) * ROUNDING


@pytest.mark.parametrize("radius", [1e-6, 1e-2, 1.0, 30.0, 1e3])
def test_local_bound_holds(case, radius):
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        X = radius * torch.randn(case.X.shape[-2:], generator=generator, dtype=torch.float64)
        if seed == 3:
            X = X[:1].expand_as(X)  # identical tokens
        # rounding of the bound and of the truth is amplified by the scores
        slack = ROUNDING + 1e-13 * radius**2
        assert truth(case.attention, X).item() <= local_upper(case.attention, X).item() * slack


def test_local_bound_of_a_batch(make_case):
    case = make_case("batch")
    found = local_upper(case.attention, case.X)
    assert found.shape == (2, 3)
    alone = torch.stack([local_upper(case.attention, X) for X in case.X.flatten(0, 1)])
    torch.testing.assert_close(found.flatten(), alone)


def test_local_bound_in_single_precision(case):
    found = local_upper(case.attention.to(torch.float32), case.X.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found.double(), local_upper(case.attention, case.X), rtol=1e-3, atol=0
    )


def test_local_bound_is_below_the_unified_one_nearly(generator):
    """It knows P; only its sum of three separate maxima can cost it something."""
    attention = Attention.from_matrices(-EYE, EYE)
    for radius in (0.5, 1.0, 1.5):
        for X in inputs(attention, 6, radius, generator):
            assert (
                local_upper(attention, X).item()
                <= unified_upper(n=6, radius=radius, norm_a=1.0, norm_v=1.0) * ROUNDING
            )


# --- sharpness ----------------------------------------------------------------------------------------------


def two_clusters(n, x, y, gamma):
    """Local constant of f with A = γ, V = 1, d = 1 at one token x and n − 1 tokens y, in the symmetric plane.

    In the orthonormal basis (first token, mean of the others) the Jacobian is a 2 × 2 matrix: n may be huge.
    """
    rows = []
    for z, out in ((x, 1.0), (y, math.sqrt(n - 1))):
        w = 1 / (1 + (n - 1) * math.exp(gamma * z * (y - x)))  # weight of x seen from z
        own, keys = w * (1 - w) * (x - y) ** 2 * gamma, w * (1 - w) * (x - y) * gamma * z
        on_x, on_y = w + keys, 1 - w - keys
        if z == x and out == 1.0:
            on_x += own
        else:
            on_y += own
        rows.append([out * on_x, out * on_y / math.sqrt(n - 1)])
    return np.linalg.norm(rows, 2)


@pytest.mark.parametrize("gamma", [-1.0, 1.0])
def test_two_clusters_are_what_they_say(gamma):
    attention = Attention.from_matrices(torch.tensor([[gamma]]).double(), torch.ones(1, 1).double())
    X = torch.full((9, 1), 1.3, dtype=torch.float64)
    X[0] = -1.1
    assert two_clusters(9, -1.1, 1.3, gamma) == pytest.approx(truth(attention, X).item(), rel=1e-12)


def best_over_lengths(bound_of_n, gamma, x, y, log10_most):
    """Smallest bound / truth over n, and the n of it."""
    lengths = np.unique(np.geomspace(2, 10.0**log10_most, 80).astype(int)).tolist()
    ratios = [bound_of_n(n) / two_clusters(n, x, y, gamma) for n in lengths]
    assert min(ratios) >= 1 / ROUNDING
    return min(ratios)


@pytest.mark.parametrize("a", [0.5, 1.0, 2.0, 3.0, 5.0, 8.0])
def test_unified_bound_is_sharp(a):
    """Within a factor 2 of two clusters for A = −I, at the best n (theory §4)."""
    radius = math.sqrt(a)
    ratio = best_over_lengths(
        lambda n: unified_upper(n=n, radius=radius, norm_a=1.0, norm_v=1.0),
        -1.0,
        -radius,
        radius,
        1 + 2 * a / math.log(10),
    )
    assert ratio < 2


def test_unified_bound_where_the_theory_quotes_it():
    """a = 3: 48.06 is reached by two Diracs, and 1.47 is the ratio at n = 1000."""
    radius = math.sqrt(3)
    values = [two_clusters(n, -radius, radius, -1.0) for n in (1000, 1210, 100_000)]
    assert unified_upper(n=1000, radius=radius, norm_a=1.0, norm_v=1.0) / values[
        0
    ] == pytest.approx(1.47, abs=0.01)
    assert mean_field_upper(radius=radius, norm_a=1.0, norm_v=1.0) == pytest.approx(83.34, abs=0.01)
    assert max(values) <= 48.07


def test_unified_bound_is_exact_without_scores():
    """a = 0: averaging, of norm one, at any n."""
    attention = Attention.from_matrices(0 * EYE, 3 * EYE)
    sigma = truth(attention, torch.ones(8, 2, dtype=torch.float64)).item()
    for bound in (
        sigma,
        local_upper(attention, torch.ones(8, 2, dtype=torch.float64)).item(),
        unified_upper(n=8, radius=1.0, norm_a=0.0, norm_v=3.0),
    ):
        assert bound == pytest.approx(3.0, rel=1e-10)


def cesaro_norm(n, iterations=300):
    """Norm of uniform causal averaging on n tokens, from below, by power iteration on cumulative sums."""
    count = np.arange(1, n + 1)
    v = count**-0.5
    for _ in range(iterations):
        v = v / np.linalg.norm(v)
        u = np.cumsum(v) / count
        v = np.cumsum((u / count)[::-1])[::-1]
    return np.linalg.norm(u)


def test_masked_bound_is_sharp_without_scores():
    """a = 0: the norm of uniform causal averaging rises to Hardy's constant 2."""
    found = [cesaro_norm(n) for n in (10, 100, 1000, 10_000)]
    attention = Attention.from_matrices(0 * EYE[:1, :1], EYE[:1, :1], causal=True)
    assert found[0] == pytest.approx(
        truth(attention, torch.ones(10, 1, dtype=torch.float64)).item(), rel=1e-9
    )
    assert found == sorted(found) and found[-1] > 1.74
    # Wilf (1970): the square is 4 − 16π²/(ln n + γ + 6 ln 2)² up to smaller terms
    asymptote = [
        math.sqrt(4 - 16 * math.pi**2 / (math.log(n) + 0.5772 + 6 * math.log(2)) ** 2)
        for n in (1000, 10_000)
    ]
    assert 0 < found[3] - asymptote[1] < found[2] - asymptote[0] < 0.08
    assert masked_upper(n=10**12, radius=1.0, norm_a=0.0, norm_v=1.0) == pytest.approx(
        2.0, rel=1e-15
    )
    assert masked_upper(n=2, radius=1.0, norm_a=0.0, norm_v=1.0) == pytest.approx(
        math.sqrt(2), rel=1e-15
    )


def test_general_bound_has_the_right_rate():
    """√n is attained while n ≪ e^{2a}: the ratio to two clusters stays within a constant (theory §3)."""
    radius, gamma = 3.0, -1.0
    ratios = [
        general_upper(n=n, radius=radius, norm_a=1.0, norm_v=1.0)
        / two_clusters(n, -radius, radius, gamma)
        for n in (10, 1000, 100_000)
    ]
    assert max(ratios) / min(ratios) < 1.3


def test_mean_field_bound_has_the_right_exponent():
    """Two Diracs come within the factors of theory §5; the exponent as published is twice too large."""
    for a, factor in ((1.0, 2.10), (3.0, 1.73), (8.0, 1.60)):
        radius = math.sqrt(a)
        lengths = np.geomspace(1, 30, 60) * math.exp(2 * a)
        best = max(two_clusters(1 + n, -radius, radius, -1.0) for n in lengths)
        quantities = {"radius": radius, "norm_a": 1.0, "norm_v": 1.0}
        assert mean_field_upper(**quantities) / best == pytest.approx(factor, abs=0.011)
    assert mean_field_upper_paper(**quantities) / best == pytest.approx(1.3e4, rel=0.05)


@pytest.mark.parametrize(("gamma", "factor"), [(-1.0, 2.1), (1.0, 2.6)])
def test_local_bound_is_sharp_at_the_worst_case(gamma, factor):
    for radius in (0.5, 1.0, 1.5, 2.0):
        X = worst_case(40, radius, gamma)
        attention = Attention.from_matrices(gamma * EYE, EYE)
        assert local_upper(attention, X).item() <= factor * truth(attention, X).item()


@pytest.mark.parametrize(("a", "factor"), [(0.5, 1.65), (1.0, 1.42), (2.0, 1.24), (3.0, 1.18)])
def test_local_bound_at_two_clusters(a, factor):
    """At the two Diracs that nearly maximise it: here one token is seen by all, and others' keys matter most."""
    n, radius = 1 + round(3 * math.exp(2 * a)), math.sqrt(a)
    attention = Attention.from_matrices(-EYE[:1, :1], EYE[:1, :1])
    X = torch.full((n, 1), radius, dtype=torch.float64)
    X[0] = -radius
    assert 1 <= local_upper(attention, X).item() / two_clusters(n, -radius, radius, -1.0) <= factor


def test_local_bound_is_sharp_on_random_inputs(case):
    """What it may lose: terms and heads are added up as if each had its worst case where the others do."""
    sigma = torch.stack([truth(case.attention, X) for X in case.X.reshape(-1, *case.X.shape[-2:])])
    assert bool((local_upper(case.attention, case.X).flatten() <= 8 * sigma).all())


def test_local_bound_knows_where_attention_is_saturated(make_case):
    """Theory §6: at a large radius only mixing is left, and the bound is ‖V‖‖P‖, not √n."""
    case = make_case("one head")
    X = 1e4 * case.X
    P, V = case.attention.weights(X)[0], case.attention.value[0]
    expected = (torch.linalg.matrix_norm(V, 2) * torch.linalg.matrix_norm(P, 2)).item()
    assert local_upper(case.attention, X).item() == pytest.approx(expected, rel=1e-3)


# --- closed forms -------------------------------------------------------------------------------------------


@CLOSED_FORMS
@pytest.mark.parametrize("n", [1, 2, 30, 10**6])
@pytest.mark.parametrize(
    ("radius", "norm_a", "norm_v"),
    [(1.0, 1.0, 1.0), (0.5, 0.1, 3.0), (2.0, 1.5, 0.2), (0.0, 5.0, 2.0)],
)
def test_formula(bound, n, radius, norm_a, norm_v):
    found = evaluate(bound, n=n, radius=radius, norm_a=norm_a, norm_v=norm_v)
    assert found == pytest.approx(FORMULAS[bound](n, norm_a * radius**2, norm_v), rel=1e-12)


GRID = [(n, a) for n in (1, 2, 3, 10, 1000, 10**9) for a in (0.0, 1e-6, 0.1, 1.0, 3.0, 10.0, 300.0)]


@pytest.mark.parametrize(("n", "a"), GRID)
def test_ordering(n, a):
    quantities = {"radius": 1.0, "norm_a": a, "norm_v": 1.0, "log": True}
    unified, general = unified_upper(n=n, **quantities), general_upper(n=n, **quantities)
    assert unified <= general
    assert (
        unified
        <= mean_field_upper(**quantities) + 1e-12
        <= mean_field_upper_paper(**quantities) + 2e-12
    )
    assert unified <= math.log((1 + a) * math.sqrt(n) + a) + 1e-12
    assert masked_upper(n=n, **quantities) <= general
    assert unified >= math.log1p(2 * a if n > 1 else a) - 1e-12  # never below one token's own terms


@pytest.mark.parametrize("a", [0.0, 1e-9, 0.1, 1.0, 5.0, 10.0])
def test_limit_of_long_sequences(a):
    quantities = {"radius": 1.0, "norm_a": a, "norm_v": 1.7}
    assert unified_upper(n=10**15, **quantities) == pytest.approx(
        mean_field_upper(**quantities), rel=1e-6
    )
    short = 1.7 * ((1 + a) * math.sqrt(2 / (1 + math.exp(-2 * a))) + a)
    assert unified_upper(n=2, **quantities) == pytest.approx(short, rel=1e-12)


@CLOSED_FORMS
@pytest.mark.parametrize("a", [0.0, 1e-300, 1e-9, 1.0, 30.0, 354.0, 1e3, 1e6])
@pytest.mark.parametrize("n", [1, 2, 10**6, 10**12])
def test_extremes(bound, n, a):
    """Never NaN, never an error; ``inf`` past float64's range, where the logarithm is still a number."""
    quantities = {"radius": 1.0, "norm_a": a, "norm_v": 2.0}
    value, logarithm = (
        evaluate(bound, n=n, **quantities),
        evaluate(bound, n=n, log=True, **quantities),
    )
    assert math.isfinite(logarithm) and value > 0
    expected = math.exp(logarithm) if logarithm < 709.7 else math.inf
    assert value == pytest.approx(expected, rel=1e-9)
    assert evaluate(
        bound, n=n, radius=1e3 * math.sqrt(a), norm_a=1e-6, norm_v=2.0, log=True
    ) == pytest.approx(logarithm, rel=1e-9, abs=1e-9)


@CLOSED_FORMS
@pytest.mark.parametrize("a", [0.0, 1.0, 1e6])
def test_zero_values(bound, a):
    quantities = {"radius": 1.0, "norm_a": a, "norm_v": 0.0}
    assert evaluate(bound, n=5, **quantities) == 0.0
    assert evaluate(bound, n=5, log=True, **quantities) == -math.inf


@CLOSED_FORMS
def test_monotone(bound):
    values = [
        evaluate(bound, n=n, radius=1.0, norm_a=1.0, norm_v=1.0) for n in (1, 2, 5, 50, 10**5)
    ]
    assert values == sorted(values)
    values = [
        evaluate(bound, n=20, radius=r, norm_a=1.0, norm_v=1.0) for r in (0, 1e-3, 0.5, 1, 3, 10)
    ]
    assert values == sorted(values)


BAD_QUANTITIES = {
    "n zero": ({"n": 0}, ValueError, "n: expected at least 1, got 0"),
    "n half": ({"n": 2.5}, TypeError, "n: expected a whole number, got 2.5"),
    "n bool": ({"n": True}, TypeError, "n: expected a whole number, got True"),
    "radius negative": (
        {"radius": -1.0},
        ValueError,
        "radius: expected a number at least 0, got -1",
    ),
    "radius not a number": ({"radius": math.nan}, ValueError, "radius: expected a finite number"),
    "radius infinite": ({"radius": math.inf}, ValueError, "radius: expected a finite number"),
    "radius bool": ({"radius": True}, TypeError, "radius: expected a real number, got bool"),
    "radius a string": ({"radius": "1"}, TypeError, "radius: expected a real number, got str"),
    "norm_a negative": ({"norm_a": -1.0}, ValueError, "norm_a: expected a number at least 0"),
    "norm_a a matrix": ({"norm_a": EYE}, TypeError, "norm_a: expected a real number, got Tensor"),
    "norm_v negative": ({"norm_v": -1e-9}, ValueError, "norm_v: expected a number at least 0"),
}


@CLOSED_FORMS
@pytest.mark.parametrize("name", BAD_QUANTITIES)
def test_bad_quantities(bound, name):
    change, error, message = BAD_QUANTITIES[name]
    if "n" in change and bound in MEAN_FIELD:
        return
    with pytest.raises(error, match=message):
        evaluate(bound, **({"n": 3, "radius": 1.0, "norm_a": 1.0, "norm_v": 1.0} | change))


# --- layers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_layer_of_one_head_is_the_closed_form(randn, causal):
    A, V = randn(3, 3), randn(2, 3)
    attention = Attention.from_matrices(A, V, causal=causal)
    quantities = {
        "n": 9,
        "radius": 0.8,
        "norm_a": torch.linalg.matrix_norm(A, 2),
        "norm_v": torch.linalg.matrix_norm(V, 2),
    }
    unified = masked_upper if causal else unified_upper
    assert layer_upper(attention, n=9, radius=0.8) == pytest.approx(
        unified(**quantities), rel=1e-12
    )
    assert layer_upper(attention, n=9, radius=0.8, form="general") == pytest.approx(
        general_upper(**quantities), rel=1e-12
    )


def test_heads_combine(randn):
    """Equal heads side by side add up in squares; a projection that reads one of them costs one."""
    query, key, value = randn(1, 3, 3), randn(1, 3, 3), randn(1, 2, 3)
    one = layer_upper(Attention(query, key, value), n=5, radius=1.0)
    four = [part.expand(4, -1, -1).contiguous() for part in (query, key, value)]
    assert layer_upper(Attention(*four), n=5, radius=1.0) == pytest.approx(2 * one, rel=1e-12)
    reader = torch.cat([torch.eye(2), torch.zeros(2, 6)], dim=1).double()
    assert layer_upper(Attention(*four, output=reader), n=5, radius=1.0) == pytest.approx(
        one, rel=1e-12
    )


@pytest.mark.parametrize("radius", [0.0, 0.7, 3.0])
def test_scores_stay_within_reach(case, radius):
    """Scores of one query differ by at most 2a in the ball."""
    attention = case.attention
    reach = score_reach(attention, radius=radius)
    assert reach.shape == (attention.heads,) and bool((reach >= 0).all())
    for seed in range(20):
        X = torch.randn(
            case.X.shape[-2:], generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        queries, keys, _ = attention.project(radius * X / X.norm(dim=-1, keepdim=True))
        scores = queries @ keys.mT
        spread = (scores.amax(-1) - scores.amin(-1)).amax(-1)
        assert bool((spread <= 2 * reach + 1e-12).all())


def test_reach_is_attained():
    """With a bias along the top singular vector the spread is 2a itself."""
    A = torch.diag(torch.tensor([2.0, 0.5], dtype=torch.float64))
    attention = Attention(
        A[None], EYE[None], EYE[None], query_bias=torch.tensor([[3.0, 0.0]]).double(), scale=1.0
    )
    X = torch.tensor([[1.5, 0.0], [-1.5, 0.0]], dtype=torch.float64)
    queries, keys, _ = attention.project(X)
    spread = (queries @ keys.mT)[0, 0].max() - (queries @ keys.mT)[0, 0].min()
    assert (
        score_reach(attention, radius=1.5).item()
        == pytest.approx(spread.item() / 2)
        == (2 * 1.5 + 3) * 1.5
    )


@pytest.mark.parametrize("form", ["unified", "general"])
def test_layer_extremes(case, form):
    for radius in (0.0, 1e-200, 1e5, 1e200):
        value, logarithm = (
            layer_upper(case.attention, n=6, radius=radius, form=form, log=log)
            for log in (False, True)
        )
        assert value > 0 and not math.isnan(logarithm)
        assert value == pytest.approx(
            math.exp(logarithm) if logarithm < 709.7 else math.inf, rel=1e-9
        )
    zero = Attention(case.attention.query, case.attention.key, 0 * case.attention.value)
    assert layer_upper(zero, n=6, radius=1.0, form=form) == 0


def test_layer_bad_input(make_case):
    attention = make_case("one head").attention
    for change, error, message in (
        ({"form": "sharp"}, ValueError, "form: expected 'unified' or 'general', got 'sharp'"),
        ({"radius": -1.0}, ValueError, "radius: expected a number at least 0"),
        ({"n": 0}, ValueError, "n: expected at least 1"),
    ):
        with pytest.raises(error, match=message):
            layer_upper(attention, **({"n": 3, "radius": 1.0} | change))
    with pytest.raises(ValueError, match="X: expected tokens of dimension 4"):
        local_upper(attention, torch.zeros(3, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"X: .*overflow"):
        local_upper(attention, torch.full((3, 4), 1e160, dtype=torch.float64))


# --- norms of matrices with entries ≥ 0 ---------------------------------------------------------------------


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


NONNEGATIVE = {
    "zero": torch.zeros(3, 4),
    "zero columns": torch.tensor([[1.0, 0.0], [2.0, 0.0]]),
    "two blocks": torch.block_diag(torch.ones(2, 2), 0.1 * torch.ones(3, 3)),
    "permutation": torch.eye(5)[[1, 2, 3, 4, 0]],
    "triangular": torch.ones(6, 6).tril(),
    "wide": torch.arange(12.0).reshape(2, 6),
    "tiny": 1e-150 * torch.ones(3, 3, dtype=torch.float64),
    "one entry": torch.tensor([[7.0]]),
}


@pytest.mark.parametrize("name", NONNEGATIVE)
def test_norm_of_nonnegative_matrices(name):
    P = NONNEGATIVE[name].double()
    expected = np.linalg.norm(P.numpy(), 2)
    found = nonnegative_norm_upper(P).item()
    assert expected * (1 - 1e-12) <= found <= expected * 1.01


def test_norm_is_never_above_schur(randn):
    P = randn(50, 8, 8).abs()
    schur = (P.sum(-2).amax(-1) * P.sum(-1).amax(-1)).sqrt()
    for iterations in (0, 1, 5):
        assert bool((nonnegative_norm_upper(P, iterations=iterations) <= schur).all())


def test_norm_of_negative_entries():
    with pytest.raises(ValueError, match="P: expected entries of at least 0, got -1"):
        nonnegative_norm_upper(-torch.eye(2))


def test_local_bound_holds_in_float32_where_near_tokens_tie(generator):
    """Two tokens 1e-4 apart, under scores of 1e4: their covariance is below the rounding of float32."""
    for _ in range(1000):
        X = torch.randn(4, 2, generator=generator)
        X[1] = X[0] + 1e-4 * torch.randn(2, generator=generator)
        f = Attention.from_matrices(1e4 * torch.randn(2, 2, generator=generator), torch.eye(2))
        assert local_lipschitz(f, X).value <= local_upper(f, X) * (1 + 1e-5)
