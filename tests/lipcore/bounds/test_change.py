"""The certificate in a ball: its formula, attacks below it, sharp where it says so."""

import math
from dataclasses import replace

import pytest
import torch

from draws import EYE, F64, draw, norm, tensor
from lipcore import Attention, bounds, local_lipschitz
from lipcore.bounds.change import SIGMA, STEPS
from lipcore.guard import draw_normal

NORMS = pytest.mark.parametrize("kind", ["frobenius", "token"])
NORMALISATIONS = pytest.mark.parametrize("normalised", ["layer", "rms"])
LAYERS = ("one head", "log-weights", "heads projected", "biases, causal", "rotary, everything",
          "mask per sequence, bias, everything", "window")  # fmt: skip


def total(radius, n, kind):
    return radius * math.sqrt(n) if kind == "token" else radius


def on_the_rim(H, radius, kind):
    size = H.norm(dim=-1, keepdim=True) if kind == "token" else H.norm(dim=(-2, -1), keepdim=True)
    return radius * H / size.clamp(min=1e-300)


def attacked(function, X, radius, kind, steps=15, starts=3):
    """The largest ‖function(Y)‖ that steps along the gradient find on the rim; it is zero at X."""
    H = on_the_rim(draw(0, starts, *X.shape), radius, kind)
    best = 0.0
    for _ in range(steps):
        H = H.detach().requires_grad_()
        values = function(X + H).flatten(1).norm(dim=1)
        best = max(best, values.max().item())
        (gradient,) = torch.autograd.grad(values.sum(), H)
        H = on_the_rim(H.detach() / radius + 3 * on_the_rim(gradient, 1.0, kind), radius, kind)
    return best


def dense(f, X):
    """The Jacobian by reverse mode, a matrix."""
    return torch.autograd.functional.jacobian(f, X).flatten(2).flatten(0, 1)


def change(f, X):
    start = f(X)
    return lambda Y: f(Y) - start


def off_tangent(f, X):
    start, J = f(X), dense(f, X)
    return lambda Y: f(Y) - start - ((Y - X).flatten(1) @ J.mT).view(-1, *start.shape)


def normalisation(kind, d, eps=1e-3):
    gain, bias = draw(1, 2, d)
    return bounds.Normalisation(kind, gain, bias if kind == "layer" else 0 * bias, eps)


def spread(P, points):
    """Largest standard deviation and distance from the mean, under each row of weights."""
    centred = points - (P @ points)[:, None]
    moments = torch.einsum("ij,ijr,ijs->irs", P, centred, centred)
    far = torch.where(P > 0, centred.norm(dim=-1), 0).amax(-1)
    return torch.linalg.matrix_norm(moments, 2).sqrt(), far


def at_tokens(layer, X, head, value):
    """P, ‖V‖, ‖A‖; and of each query ‖y_i‖, κ_i, D_i, ν_i, ω_i, in the space of tokens."""
    P = layer.weights(X)[head]
    Q, K = layer.scale * layer.query[head], layer.key[head]
    q = X @ Q.mT
    if layer.query_bias is not None:
        q = q + layer.scale * layer.query_bias[head]
    if layer.rotary is None:
        A = K.mT @ Q
        keys, norm_a, y = X @ A, norm(A), (q @ K).norm(dim=-1)  # (A h)·x_j = h·(Aᵀx_j)
    else:
        keys = layer.project(X)[1][head] * norm(Q)
        norm_a, y = norm(Q) * norm(K), norm(K) * q.norm(dim=-1)
    return P, norm(value), norm_a, y, *spread(P, keys), *spread(P, X @ value.mT)


def within(at, r, kind):
    """The weights that may be reached, the shift μ of means, and y, κ, ν, ω at distance r."""
    P, V, A, y, kappa, D, nu, w = at
    y = y + A * r
    if kind == "token":
        u, o = r * (D + 2 * y), r * (2 * D + 2 * y)
    else:
        u, o = r * torch.hypot(D + y, y), r * torch.hypot(2 * D + y, y)
    mu = torch.minimum(w, nu * torch.sinh(o / 2))
    kappa = (u / 2).exp() * (kappa + A * r)
    nu = (u / 2).exp() * (nu + V * r)
    return (P * u.exp()[:, None]).clamp(max=1), mu, y, kappa, nu, w + mu + 2 * V * r


def curvature(at, r, kind):
    _, V, A, *_ = at
    P, _, y, kappa, nu, w = within(at, r, kind)
    alpha = 2 * V * kappa + 2 * nu * A + 2 * w * kappa * y
    beta = 2 * V * y + w * y * y
    gamma = w * kappa**2
    if kind == "token":
        return (alpha + beta + gamma).norm().item()
    found = (alpha * P.amax(-1).sqrt()).amax() + (beta[:, None] * P).norm(dim=0).amax()
    return (found + gamma.amax()).item()


def error(at, radius, kind):
    found = 0.0
    for step in range(STEPS):
        start, end = step / STEPS, (step + 1) / STEPS
        share = (end - end**2 / 2) - (start - start**2 / 2)
        found += share * curvature(at, radius * end, kind)
    return radius**2 * found


def rows_change(at, radius, kind):
    P, mu, *_ = within(at, radius, kind)
    V = at[1]
    if kind == "token":
        return (V * radius + mu).norm().item()
    return mu.norm().item() + V * min(norm(P), math.sqrt(len(P))) * radius


def joined(layer, X, bound):
    """Heads in squares, or through the projection, whichever is less."""

    def of(values):
        return [bound(at_tokens(layer, X, h, value)) for h, value in enumerate(values)]

    alone = math.hypot(*of(layer.value))
    if layer.output is None:
        return alone
    return min(norm(layer.output) * alone, sum(of(layer.value_matrices())))


@pytest.fixture(params=LAYERS)
def first(request, make_case):
    """The first member of a layer that has what a formula may forget."""
    return make_case(request.param).members[0]


@NORMS
@pytest.mark.parametrize("radius", [0.02, 0.3])
def test_formula(first, kind, radius):
    layer, X = first.attention, first.X
    expected = joined(layer, X, lambda at: error(at, radius, kind))
    found = bounds.tangent_error_upper(layer, X, radius, norm=kind).item()
    assert found == pytest.approx(expected, rel=1e-5)
    sigma = norm(layer.jacobian(X).dense())
    R = total(radius, len(X), kind)
    largest = X.norm(dim=-1).max().item() + radius
    expected = min(
        sigma * R + expected,
        joined(layer, X, lambda at: rows_change(at, radius, kind)),
        bounds.best_upper(attention=layer, n=len(X), radius=largest) * R,
    )
    found = bounds.change_upper(layer, X, radius, norm=kind).item()
    assert expected * (1 - 1e-6) <= found <= expected * (1 + 1e-3)


@NORMS
@pytest.mark.parametrize("radius", [0.1, 3.0])
def test_no_gradient_attack_is_above(first, kind, radius):
    layer, X = first.attention, first.X
    reached = attacked(change(layer, X), X, radius, kind)
    assert reached <= bounds.change_upper(layer, X, radius, norm=kind).item() * (1 + 1e-9)
    reached = attacked(off_tangent(layer, X), X, radius, kind)
    bound = bounds.tangent_error_upper(layer, X, radius, norm=kind).item()
    assert reached <= bound * (1 + 1e-9) + 1e-13


@NORMS
def test_sharp_for_small_radii(first, kind):
    """The tangent decides: what an attack reaches is 99 % of the bound and more."""
    layer, X = first.attention, first.X
    J = layer.jacobian(X).dense()
    right = torch.linalg.svd(J).Vh[0].reshape(X.shape)
    reached = (layer(X + 1e-6 * right) - layer(X)).norm().item()
    bound = bounds.change_upper(layer, X, 1e-6, norm=kind).item()
    assert kind == "token" or 0.99 * bound <= reached <= bound * (1 + 1e-9)
    assert bound <= 1.01 * norm(J) * total(1e-6, len(X), kind)
    assert bounds.change_upper(layer, X, 0.0, norm=kind).item() == 0


def torn():
    """64 queries between two keys of opposite values; 10⁴ times the usual scores."""
    X = bounds.construction_inputs("torn", -1e4 * EYE, 64, 1.0, V=EYE[:1])
    return Attention.from_matrices(-1e4 * EYE, EYE[:1]), X


def test_sharp_where_every_row_is_torn():
    """One key moves by a hundredth of its length, and every row goes over to the other one."""
    f, X = torn()
    bound = bounds.change_upper(f, X, 0.01).item()
    moves = torch.zeros(64, 4, *X.shape, dtype=F64)
    moves[torch.arange(64), :, torch.arange(64)] = 0.01 * torch.cat([EYE, -EYE])
    found = torch.linalg.matrix_norm(f(X + moves) - f(X)).max()
    assert 0.9 * bound < found <= bound


@NORMS
@pytest.mark.parametrize("bound", [bounds.change_upper, bounds.tangent_error_upper])
def test_grows(first, kind, bound):
    layer, X = first.attention, first.X
    found = [bound(layer, X, radius, norm=kind).item() for radius in (1e-4, 1.0, 1e6)]
    assert 0 < found[0] and found == sorted(found)


@NORMALISATIONS
@NORMS
@pytest.mark.parametrize("name", ["biases, causal", "rotary, everything"])
def test_behind_a_normalisation(make_case, normalised, kind, name):
    """No attack is above, and the tangent decides for small radii."""
    layer, X = make_case(name).attention, 2 * make_case(name).X
    N = normalisation(normalised, layer.d)

    def block(Y):
        return layer(bounds.normalise(N, Y))

    for radius in (0.1, 1.0, 30.0):
        bound = bounds.change_upper(layer, X, radius, norm=kind, normalisation=N).item()
        assert attacked(change(block, X), X, radius, kind) <= bound * (1 + 1e-9)
    bound = bounds.change_upper(layer, X, 1e-7, norm=kind, normalisation=N).item()
    assert 1 <= bound / (norm(dense(block, X)) * total(1e-7, len(X), kind)) < 1.01


@NORMALISATIONS
@NORMS
@pytest.mark.parametrize("radius", [0.05, 0.5, 3.0])
def test_behind_a_normalisation_by_hand(normalised, kind, radius):
    """One token that attention hands on as it is: what is left is the normalisation itself."""
    d, eps = 5, 0.01
    N = normalisation(normalised, d, eps=eps)
    x = tensor([1.0, -0.5, 2.0, 0.3, -1.0])
    f = Attention.from_matrices(torch.zeros(d, d, dtype=F64), torch.eye(d, dtype=F64))
    u = x - x.mean() if normalised == "layer" else x
    tau = math.sqrt(u.square().mean().item() + eps)
    lowest = max(tau - radius / math.sqrt(d), math.sqrt(eps))
    gain = N.gain.abs().max().item()
    chord = min(gain * radius / math.sqrt(tau * lowest), 2 * math.sqrt(d) * gain)
    J = dense(lambda x: bounds.normalise(N, x), x)
    tangent = norm(J) * radius + gain * radius**2 / (math.sqrt(3 * d) * lowest**2)
    found = bounds.change_upper(f, x, radius, norm=kind, normalisation=N).item()
    assert found == pytest.approx(min(chord, tangent), rel=1e-3)


@NORMS
def test_behind_a_normalisation_by_its_parts(make_case, kind):
    """σ of the composition, what tokens leave the tangent of N, what attention leaves its own."""
    f, X = make_case("biases, causal").attention, make_case("biases, causal").X
    n, d = X.shape
    N, radius = normalisation("rms", d), 0.02
    sizes = [math.sqrt(x.square().mean().item() + N.eps) for x in X]
    lowest = [size - radius / math.sqrt(d) for size in sizes]
    gain = N.gain.abs().max().item()
    reach = radius * max(gain / math.sqrt(s * t) for s, t in zip(sizes, lowest, strict=True))
    bent = [gain * radius**2 / (math.sqrt(3 * d) * t**2) for t in lowest]
    bent = math.hypot(*bent) if kind == "token" else max(bent)
    Z = bounds.normalise(N, X)
    expected = norm(dense(lambda X: f(bounds.normalise(N, X)), X)) * total(radius, n, kind)
    expected += norm(f.jacobian(Z).dense()) * bent
    expected += bounds.tangent_error_upper(f, Z, reach, norm=kind).item()
    assert expected < bounds.change_upper(f, Z, reach, norm=kind)
    found = bounds.change_upper(f, X, radius, norm=kind, normalisation=N).item()
    assert found == pytest.approx(expected, rel=1e-3)


@NORMALISATIONS
def test_all_tokens_may_turn_round_behind_a_normalisation(normalised):
    """Averages of 9 equal tokens, which all go to the other side: the largest change there is."""
    f = Attention.from_matrices(torch.zeros(4, 4, dtype=F64), torch.eye(4, dtype=F64))
    X = tensor([1.0, -1.0, 1.0, -1.0]).expand(9, 4).contiguous()
    N = normalisation(normalised, 4, eps=1e-9)
    N = replace(N, gain=torch.ones_like(N.gain))
    reached = (f(bounds.normalise(N, X)) - f(bounds.normalise(N, -X))).norm()
    for kind, radius in (("frobenius", 12.001), ("token", 4.001)):
        bound = bounds.change_upper(f, X, radius, norm=kind, normalisation=N)
        assert 0.99 * bound < reached <= bound


def test_bound_of_a_batch(make_case):
    for name, bound in (("batch", bounds.tangent_error_upper), ("padding", bounds.change_upper)):
        case = make_case(name)
        found = bound(case.attention, case.X, 0.1)
        alone = torch.stack([bound(m.attention, m.X, 0.1) for m in case.members])
        torch.testing.assert_close(found, alone.view(2, 3))


@pytest.mark.parametrize("bound", [bounds.change_upper, bounds.tangent_error_upper])
def test_single_precision_is_rounded_up(make_case, bound):
    f, X = make_case("biases").attention.to(torch.float32), make_case("biases").X.float()
    found = bound(f, X, 0.1)
    assert found.dtype == torch.float32
    assert found.double() >= bound(f.to(F64), X.double(), 0.1)


def test_scores_out_of_range_leave_the_bound_of_the_rows():
    """A tangent error past float64's range is infinite, and another bound takes its place."""
    _, X = torn()
    f = Attention.from_matrices(-1e10 * EYE, EYE[:1])
    assert bounds.tangent_error_upper(f, X, 10.0).item() == math.inf
    assert 0 < bounds.change_upper(f, X, 10.0).item() < math.inf
    blind = Attention.from_matrices(-1e10 * EYE, 0 * EYE[:1])
    assert bounds.change_upper(blind, X, 10.0) == 0


def hidden(top, overlap, d=160):
    """One token, mapped by a spectrum dense at 1, and a value above that the start hardly sees."""
    basis = torch.linalg.qr(torch.stack([draw(0, d), draw_normal((d,), 1)], dim=1)).Q
    z = basis @ tensor(overlap, math.sqrt(1 - overlap**2))
    Q = torch.linalg.qr(torch.column_stack([z, draw_normal((d, d - 1), 2)])).Q
    spectrum = torch.cat([tensor(top), 1 - torch.linspace(0, 1, d - 1, dtype=F64) ** 2])
    return Attention.from_matrices(torch.zeros(d, d, dtype=F64), spectrum[:, None] * Q.mT)


def test_a_top_vector_that_the_start_hardly_sees(monkeypatch):
    """The tangent alone must hold: of σ the upper end counts, and its confidence is 1 − 10⁻¹²."""
    assert 2 * (1 - SIGMA["probability"]) <= 1e-12  # σ of f and of f∘N
    monkeypatch.setattr("lipcore.bounds.change.best_upper", lambda **_: math.inf)
    no_rows = "lipcore.bounds.change._Heads.rows_change"
    monkeypatch.setattr(no_rows, lambda self, *_: self.pull[:, 0] + math.inf)
    monkeypatch.setitem(SIGMA, "tol", 1e-2)  # far fewer steps than dimensions
    layer = hidden(1.004, 1e-11)
    X = torch.zeros(1, layer.d, dtype=F64)
    assert local_lipschitz(layer, X, **SIGMA).value < 1.001
    one = torch.ones(layer.d, dtype=F64)
    near_identity = bounds.Normalisation("rms", one, 0 * one, 1.0)  # at zero: its ε is large
    for in_front in (None, near_identity):
        assert bounds.change_upper(layer, X, 1e-3, normalisation=in_front).item() >= 1.004e-3
