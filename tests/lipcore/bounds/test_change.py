"""The certificate in a ball: its formula by plain loops, gradient attacks below it, sharp where it says so."""

import math
from dataclasses import replace

import pytest
import torch

from lipcore import Attention, bounds, local_lipschitz
from lipcore.bounds import (
    Normalisation,
    best_upper,
    change_upper,
    construction_inputs,
    normalise,
    tangent_error_upper,
)
from lipcore.bounds.change import SIGMA, STEPS
from lipcore.guard import draw_normal

F64 = torch.float64
EYE = torch.eye(2, dtype=F64)
NORMS = ("frobenius", "token")
ROUNDING = 1 + 1e-9
LAYERS = (
    "one head",
    "log-weights",
    "heads projected",
    "biases, causal",
    "rotary, everything",
    "mask per sequence, bias, everything",
    "window",
)


def norm2(M):
    return torch.linalg.matrix_norm(M, 2).item()


def total(radius, n, norm):
    return radius * math.sqrt(n) if norm == "token" else radius


def on_the_rim(H, radius, norm):
    size = H.norm(dim=-1, keepdim=True) if norm == "token" else H.norm(dim=(-2, -1), keepdim=True)
    return radius * H / size.clamp(min=1e-300)


def attacked(function, X, radius, norm, steps=15, starts=3, size=None):
    """The largest ‖function(Y)‖ that steps along the gradient find on the rim, for functions zero at X."""
    generator = torch.Generator().manual_seed(0)
    H = on_the_rim(torch.randn(starts, *X.shape, generator=generator, dtype=F64), radius, norm)
    best = 0.0
    for _ in range(steps):
        H = H.detach().requires_grad_()
        values = function(X + H).flatten(1).norm(dim=1)
        best = max(best, values.max().item())
        (gradient,) = torch.autograd.grad(values.sum(), H)
        H = on_the_rim(H.detach() / radius + 3 * on_the_rim(gradient, 1.0, norm), radius, norm)
    return best


def change(f, X):
    start = f(X)
    return lambda Y: f(Y) - start


def off_tangent(f, X):
    start, J = f(X), torch.autograd.functional.jacobian(f, X)
    return lambda Y: f(Y) - start - torch.einsum("ipjs,kjs->kip", J, Y - X)


# --- the formula, by loops ------------------------------------------------------------------------


def at_token(layer, X, head, value, i):
    """(log-weights, ‖V‖, ‖A‖, ‖y_i‖, κ_i, ν_i, D_i, w_i) of one query, in the space of tokens."""
    n, k = len(X), layer.query.shape[1]
    P = layer.weights(X)[head, i]
    Q, K = layer.scale * layer.query[head], layer.key[head]
    zero = torch.zeros(k, dtype=F64)
    q = Q @ X[i] + (zero if layer.query_bias is None else layer.scale * layer.query_bias[head])
    if layer.rotary is None:
        A, y = K.mT @ Q, K.mT @ q
        keys, norm_a, norm_y = X @ A, norm2(A), y.norm().item()  # (A h)·x_j = h·(Aᵀx_j)
    else:
        keys = layer.project(X)[1][head] * norm2(Q)
        norm_a, norm_y = norm2(Q) * norm2(K), norm2(K) * q.norm().item()
    found = []
    for points in (keys, X @ value.mT):
        mean = sum(P[j] * points[j] for j in range(n))
        moments = sum(P[j] * torch.outer(points[j] - mean, points[j] - mean) for j in range(n))
        far = max((points[j] - mean).norm().item() for j in range(n) if P[j] > 0)
        found.append((math.sqrt(norm2(moments)), far))
    (kappa, D), (nu, w) = found
    return P, norm2(value), norm_a, norm_y, kappa, nu, D, w


def row(at, r, norm):
    """(u, μ, α, β, γ) of one query at distance r."""
    _, V, A, y, kappa, nu, D, w = at
    y = y + A * r
    u = r * (D + 2 * y) if norm == "token" else r * math.sqrt((D + y) ** 2 + y**2)
    o = r * (2 * D + 2 * y) if norm == "token" else r * math.sqrt((2 * D + y) ** 2 + y**2)
    mu = min(w, nu * math.sinh(min(o / 2, 700)))
    kappa = math.exp(u / 2) * (kappa + A * r)
    nu = math.exp(u / 2) * (nu + V * r)
    w = w + mu + 2 * V * r
    return (
        u,
        mu,
        2 * V * kappa + 2 * nu * A + 2 * w * kappa * y,
        2 * V * y + w * y * y,
        w * kappa**2,
    )


def curvature(rows, r, norm):
    n = len(rows)
    u, _, alpha, beta, gamma = zip(*(row(at, r, norm) for at in rows), strict=True)
    if norm == "token":
        return math.hypot(*(sum(parts) for parts in zip(alpha, beta, gamma, strict=True)))
    P = [[min(1.0, rows[i][0][j].item() * math.exp(u[i])) for j in range(n)] for i in range(n)]
    return (
        max(alpha[i] * math.sqrt(max(P[i])) for i in range(n))
        + max(math.hypot(*(beta[i] * P[i][j] for i in range(n))) for j in range(n))
        + max(gamma)
    )


def error(rows, radius, norm):
    found = 0.0
    for step in range(STEPS):
        start, end = step / STEPS, (step + 1) / STEPS
        share = (end - end**2 / 2) - (start - start**2 / 2)
        found += share * curvature(rows, radius * end, norm)
    return radius**2 * found


def rows_change(rows, radius, norm):
    parts = [row(at, radius, norm) for at in rows]
    V = rows[0][1]
    if norm == "token":
        return math.hypot(*(V * radius + mu for _, mu, *_ in parts))
    grown = [(at[0] * math.exp(u)).clamp(max=1) for at, (u, *_) in zip(rows, parts, strict=True)]
    mixing = min(norm2(torch.stack(grown)), math.sqrt(len(rows)))
    return math.hypot(*(mu for _, mu, *_ in parts)) + V * mixing * radius


def joined(layer, X, bound):
    """Heads in squares, or through the projection, whichever is less."""
    heads = range(layer.heads)

    def of(values):
        return [bound([at_token(layer, X, h, values[h], i) for i in range(len(X))]) for h in heads]

    alone = math.hypot(*of(layer.value))
    if layer.output is None:
        return alone
    return min(norm2(layer.output) * alone, sum(of(layer.value_matrices())))


@pytest.fixture(params=LAYERS)
def first(request, make_case):
    """The first member of a layer that has what a formula may forget."""
    return make_case(request.param).members[0]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [0.02, 0.3])
def test_terms_by_loops(first, norm, radius):
    layer, X = first.attention, first.X
    expected = joined(layer, X, lambda rows: error(rows, radius, norm))
    assert tangent_error_upper(layer, X, radius, norm=norm).item() == pytest.approx(
        expected, rel=1e-5
    )
    sigma = norm2(layer.jacobian(X).dense())
    R = total(radius, len(X), norm)
    largest = X.norm(dim=-1).max().item() + radius
    expected = min(
        sigma * R + expected,
        joined(layer, X, lambda rows: rows_change(rows, radius, norm)),
        best_upper(attention=layer, n=len(X), radius=largest) * R,
    )
    found = change_upper(layer, X, radius, norm=norm).item()
    assert expected * (1 - 1e-6) <= found <= expected * (1 + 1e-3)


# --- a bound, and how sharp -----------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [1e-3, 0.1, 3.0])
def test_no_gradient_attack_is_above(first, norm, radius):
    layer, X = first.attention, first.X
    reached = attacked(change(layer, X), X, radius, norm)
    assert reached <= change_upper(layer, X, radius, norm=norm).item() * ROUNDING
    reached = attacked(off_tangent(layer, X), X, radius, norm)
    assert reached <= tangent_error_upper(layer, X, radius, norm=norm).item() * ROUNDING + 1e-13


def test_sharp_for_small_radii(first):
    """The tangent decides: what an attack reaches is 99 % of the bound and more."""
    layer, X = first.attention, first.X
    sigma = norm2(layer.jacobian(X).dense())
    right = torch.linalg.svd(layer.jacobian(X).dense()).Vh[0].reshape(X.shape)
    for radius in (1e-6,):
        reached = (layer(X + radius * right) - layer(X)).norm().item()
        bound = change_upper(layer, X, radius).item()
        assert 0.99 * bound <= reached <= bound * ROUNDING
    for norm in NORMS:
        bound = change_upper(layer, X, 1e-6, norm=norm).item()
        assert bound <= 1.01 * sigma * total(1e-6, len(X), norm)


def test_sharp_at_a_finite_radius_where_scores_are_weak(generator):
    X = torch.randn(6, 3, generator=generator, dtype=F64)
    f = Attention.from_matrices(0.01 * torch.eye(3, dtype=F64), torch.eye(3, dtype=F64))
    assert (
        attacked(change(f, X), X, 1.0, "frobenius", steps=40) > 0.9 * change_upper(f, X, 1.0).item()
    )


def torn():
    """64 queries, each balanced between two keys that have opposite values; 10⁴ times the usual scores."""
    A = -1e4 * EYE
    V = torch.tensor([[1.0, 0.0]], dtype=F64)
    X = construction_inputs("torn", A, 64, 1.0, V=V)
    return Attention.from_matrices(A, V), X


def test_sharp_where_every_row_is_torn():
    """One key moves by a hundredth of its length, and every row of weights goes over to the other one."""
    f, X = torn()
    bound = change_upper(f, X, 0.01).item()
    found = []
    for j in range(64):
        for direction in torch.cat([EYE, -EYE]):
            Y = X.clone()
            Y[j] += 0.01 * direction
            found.append((f(Y) - f(X)).norm().item())
    assert 0.9 * bound < max(found) <= bound


def test_never_above_the_bound_of_the_ball(first):
    layer, X = first.attention, first.X
    for norm in NORMS:
        for radius in (0.1, 10.0, 1e6):
            largest = X.norm(dim=-1).max().item() + radius
            ball = best_upper(attention=layer, n=len(X), radius=largest)
            found = change_upper(layer, X, radius, norm=norm).item()
            assert 0 < found <= ball * total(radius, len(X), norm)


def test_the_ball_that_holds_the_moved_tokens_may_be_the_least():
    X = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]], dtype=F64)
    f = Attention.from_matrices(0.5 * EYE[:1, :1], EYE[:1, :1])
    ball = 0.7 * best_upper(attention=f, n=4, radius=1.7)
    assert change_upper(f, X, 0.7).item() == pytest.approx(ball)
    assert ball < f.jacobian(X).dense().norm() * 0.7 + tangent_error_upper(f, X, 0.7)


def test_grows_with_the_radius_and_with_the_freedom(first):
    layer, X = first.attention, first.X
    radii = torch.logspace(-4, 1, 5).tolist()
    found = {norm: [change_upper(layer, X, r, norm=norm).item() for r in radii] for norm in NORMS}
    assert all(values == sorted(values) for values in found.values())
    errors = {norm: [tangent_error_upper(layer, X, r, norm=norm) for r in radii] for norm in NORMS}
    for values in errors.values():
        assert all(values[i + 1] >= values[i] for i in range(4))
    for norm in NORMS:
        assert change_upper(layer, X, 0.0, norm=norm).item() == 0


# --- the lemmas, each at its equality -------------------------------------------------------------


def test_mean_under_other_weights_is_sharp():
    """ν sinh(o/2): an equality for a coin whose odds go from e^(−o) to one."""
    for o in (0.1, 1.0, 4.0):
        p = 1 / (1 + math.exp(o))
        moved = p * math.exp(o) / (p * math.exp(o) + 1 - p)
        assert moved - p == pytest.approx(math.sqrt(p * (1 - p)) * math.sinh(o / 2))


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_second_derivative_of_a_normalisation_is_sharp(kind):
    """2/√3 at the angle where the radial part is a third: no other number would do."""
    norm = Normalisation(kind, torch.ones(4, dtype=F64), torch.zeros(4, dtype=F64), 0.0)
    x = torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=F64)
    side = torch.tensor([0.0, 0.0, 1.0, -1.0], dtype=F64) / math.sqrt(2)
    tau = x.norm() / 2
    best = 0.0
    for angle in torch.linspace(0, math.pi, 181, dtype=F64):
        h = angle.cos() * x / x.norm() + angle.sin() * side
        step = 1e-4
        second = normalise(norm, x + step * h) + normalise(norm, x - step * h)
        second = (second - 2 * normalise(norm, x)) / step**2
        best = max(best, second.norm().item())
    assert best == pytest.approx(2 / math.sqrt(3) / (2 * tau**2).item(), rel=1e-3)


# --- a normalisation in front ---------------------------------------------------------------------


def normalisation(kind, d, eps=1e-3):
    generator = torch.Generator().manual_seed(1)
    gain, bias = torch.randn(2, d, generator=generator, dtype=F64)
    return Normalisation(kind, gain, bias if kind == "layer" else 0 * bias, eps)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [1e-3, 0.1, 1.0, 30.0])
def test_behind_a_normalisation(make_case, kind, norm, radius):
    for name in ("biases, causal", "rotary, everything"):
        layer, X = make_case(name).attention, 2 * make_case(name).X
        N = normalisation(kind, layer.d)

        def block(Y, N=N, layer=layer):
            return layer(normalise(N, Y))

        bound = change_upper(layer, X, radius, norm=norm, normalisation=N).item()
        assert attacked(change(block, X), X, radius, norm) <= bound * ROUNDING


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_behind_a_normalisation_it_is_sharp_for_small_radii(make_case, kind):
    layer, X = make_case("biases, causal").attention, make_case("biases, causal").X
    N = normalisation(kind, layer.d, eps=0.0)

    def block(Y):
        return layer(normalise(N, Y))

    J = torch.autograd.functional.jacobian(block, X).flatten(2).flatten(0, 1)
    for norm in NORMS:
        bound = change_upper(layer, X, 1e-7, norm=norm, normalisation=N).item()
        assert 1 <= bound / (norm2(J) * total(1e-7, len(X), norm)) < 1.01


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("radius", [0.05, 0.5, 3.0])
def test_behind_a_normalisation_by_hand(kind, radius):
    """One token that attention hands on as it is: what is left is the normalisation itself."""
    d, eps = 5, 0.01
    N = normalisation(kind, d, eps=eps)
    x = torch.tensor([[1.0, -0.5, 2.0, 0.3, -1.0]], dtype=F64)
    f = Attention.from_matrices(torch.zeros(d, d, dtype=F64), torch.eye(d, dtype=F64))
    u = x - x.mean() if kind == "layer" else x
    tau = math.sqrt(u.square().mean().item() + eps)
    lowest = max(tau - radius / math.sqrt(d), math.sqrt(eps))
    gain = N.gain.abs().max().item()
    J = torch.autograd.functional.jacobian(lambda x: normalise(N, x), x).reshape(d, d)
    chord = min(gain * radius / math.sqrt(tau * lowest), 2 * math.sqrt(d) * gain)
    tangent = norm2(J) * radius + gain * radius**2 / (math.sqrt(3 * d) * lowest**2)
    for norm in NORMS:
        found = change_upper(f, x, radius, norm=norm, normalisation=N).item()
        assert found == pytest.approx(min(chord, tangent), rel=1e-3)


@pytest.mark.parametrize("norm", NORMS)
def test_behind_a_normalisation_by_its_parts(make_case, norm):
    """σ of the composition, what tokens leave the tangent of N, what attention leaves its own."""
    f, X = make_case("biases, causal").attention, make_case("biases, causal").X
    n, d = X.shape
    N, radius = normalisation("rms", d), 0.02
    sizes = [math.sqrt(x.square().mean().item() + N.eps) for x in X]
    lowest = [size - radius / math.sqrt(d) for size in sizes]
    gain = N.gain.abs().max().item()
    reach = radius * max(gain / math.sqrt(s * t) for s, t in zip(sizes, lowest, strict=True))
    bent = [gain * radius**2 / (math.sqrt(3 * d) * t**2) for t in lowest]
    bent = math.hypot(*bent) if norm == "token" else max(bent)
    Z = normalise(N, X)
    J = torch.autograd.functional.jacobian(lambda X: f(normalise(N, X)), X).flatten(2)
    expected = norm2(J.flatten(0, 1)) * total(radius, n, norm)
    expected += norm2(f.jacobian(Z).dense()) * bent
    expected += tangent_error_upper(f, Z, reach, norm=norm).item()
    assert expected < change_upper(f, Z, reach, norm=norm)
    found = change_upper(f, X, radius, norm=norm, normalisation=N).item()
    assert found == pytest.approx(expected, rel=1e-3)


def test_behind_a_normalisation_no_move_is_longer_than_the_ellipsoid(make_case):
    layer, X = make_case("one head").attention, make_case("one head").X
    N = normalisation("layer", layer.d, eps=0.0)
    found = [change_upper(layer, X, r, norm="token", normalisation=N).item() for r in (1e3, 1e6)]
    assert found[0] == pytest.approx(found[1], rel=1e-9)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_all_tokens_may_turn_round_behind_a_normalisation(kind):
    """Averages of 9 equal tokens, which all go to the other side: the largest change there is."""
    f = Attention.from_matrices(torch.zeros(4, 4, dtype=F64), torch.eye(4, dtype=F64))
    X = torch.tensor([[1.0, -1.0, 1.0, -1.0]], dtype=F64).expand(9, 4).contiguous()
    N = normalisation(kind, 4, eps=1e-9)
    N = replace(N, gain=torch.ones_like(N.gain))
    change = (f(normalise(N, X)) - f(normalise(N, -X))).norm()
    for norm, radius in (("frobenius", 12.001), ("token", 4.001)):
        bound = change_upper(f, X, radius, norm=norm, normalisation=N)
        assert 0.99 * bound < change <= bound


# --- shapes, precision, bad input -----------------------------------------------------------------


def test_bound_of_a_batch(make_case):
    for name in ("batch", "padding"):
        case = make_case(name)
        found = change_upper(case.attention, case.X, 0.1)
        alone = torch.stack([change_upper(m.attention, m.X, 0.1) for m in case.members])
        torch.testing.assert_close(found.flatten(), alone)
        assert found.shape == tangent_error_upper(case.attention, case.X, 0.1).shape == (2, 3)


def test_single_precision_is_rounded_up(make_case):
    case = make_case("biases")
    f, X = case.attention.to(torch.float32), case.X.float()
    for bound in (change_upper, tangent_error_upper):
        found = bound(f, X, 0.1)
        assert found.dtype == torch.float32
        assert found.double() >= bound(f.to(F64), X.double(), 0.1)


def test_scores_out_of_range_leave_the_bound_of_the_rows():
    """A tangent error past float64's range is infinite, and another bound takes its place."""
    f, X = torn()
    f = Attention.from_matrices(1e6 * f.score_matrices()[0], f.value[0])
    assert tangent_error_upper(f, X, 10.0).item() == math.inf
    assert 0 < change_upper(f, X, 10.0).item() < math.inf
    zero = Attention.from_matrices(f.score_matrices()[0], 0 * f.value[0])
    assert change_upper(zero, X, 10.0).item() == 0


def test_bad_input(make_case):
    case = make_case("one head")
    f, X = case.attention, case.X
    for bound in (change_upper, tangent_error_upper):
        with pytest.raises(ValueError, match=r"^radius: "):
            bound(f, X, -1.0)
        with pytest.raises(ValueError, match=r"^radius: "):
            bound(f, X, math.nan)
        with pytest.raises(TypeError, match=r"^radius: "):
            bound(f, X, "1")
        with pytest.raises(ValueError, match=r"^norm: "):
            bound(f, X, 1.0, norm="inf")
        with pytest.raises(ValueError, match=r"^X: "):
            bound(f, X[:, :3], 1.0)
        with pytest.raises(ValueError, match=r"^X: .*overflow"):
            bound(f, torch.full((3, 4), 1e160, dtype=F64), 1.0)
        for name, what in (("sinks", "sinks"), ("softcap", "softcap"), ("gate per head", "gate")):
            other = make_case(name)
            with pytest.raises(ValueError, match=f"^attention: .*{what}"):
                bound(other.attention, other.X, 1.0)
        with pytest.raises(ValueError, match=r"^attention: "):
            bound(f.cross(memory=X), X, 1.0)
    with pytest.raises(TypeError, match=r"^normalisation: "):
        change_upper(f, X, 1.0, normalisation="layer")
    with pytest.raises(ValueError, match=r"^normalisation: "):
        change_upper(f, X, 1.0, normalisation=normalisation("rms", 3))


def hidden(top, overlap, d=500):
    """One token, mapped by a spectrum that is dense at 1, and by one value above that the start hardly sees."""
    start = torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis = torch.linalg.qr(torch.stack([start, draw_normal((d,), 1)], dim=1)).Q
    z = basis @ torch.tensor([overlap, math.sqrt(1 - overlap**2)], dtype=F64)
    others = draw_normal((d, d - 1), 2)
    Q = torch.linalg.qr(torch.column_stack([z, others])).Q
    spectrum = torch.cat(
        [torch.tensor([top], dtype=F64), 1 - torch.linspace(0, 1, d - 1, dtype=F64) ** 2]
    )
    return Attention.from_matrices(torch.zeros(d, d, dtype=F64), spectrum[:, None] * Q.mT)


@pytest.mark.parametrize("normalised", [False, True])
def test_a_top_vector_that_the_start_hardly_sees(monkeypatch, normalised):
    """The tangent alone must hold: of σ the upper end counts, and its confidence is 1 − 10⁻¹²."""
    monkeypatch.setattr("lipcore.bounds.change.best_upper", lambda **_: math.inf)
    no_rows = "lipcore.bounds.change._Heads.rows_change"
    monkeypatch.setattr(no_rows, lambda self, *_: self.pull[:, 0] + math.inf)
    layer = hidden(1.0004, 1e-11)
    X = torch.zeros(1, layer.d, dtype=F64)
    norm = {}
    if normalised:  # with a large ε it is nearly the identity at zero
        one = torch.ones(layer.d, dtype=F64)
        norm = {"normalisation": Normalisation("rms", one, 0 * one, 1.0)}
    assert local_lipschitz(layer, X, **SIGMA).value < 1.0001
    assert change_upper(layer, X, 1e-3, **norm).item() >= 1.0004e-3


def test_two_events_share_the_confidence():
    """Behind a normalisation σ of f and of f∘N are used, and 2(1 − p) is at most 10⁻¹²."""
    assert 2 * (1 - SIGMA["probability"]) <= 1e-12


def test_names_are_public():
    assert {"change_upper", "tangent_error_upper"} <= set(bounds.__all__)
