"""Normalised tokens: their ellipsoid, the reach of scores, and the pre-norm block."""

import math

import pytest
import torch

from lipcore import Attention, local_lipschitz
from lipcore.bounds import (
    Normalisation,
    layer_norm_radius,
    norm_constants,
    normalise,
    normalised_reach,
    normalised_upper,
    pre_norm_jacobian,
    score_gap_upper,
)
from lipcore.bounds.ball import log_column_sum
from lipcore.bounds.normalised import largest_affine_norm

F64 = torch.float64


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def layer(d=5, *, seed=0, **options):
    gen = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(2, 3, d, generator=gen, dtype=F64) for _ in range(3))
    return Attention(0.4 * query, 0.4 * key, value, 0.3 * draw(2, 3, seed=9), None, None, **options)


@pytest.fixture(params=["layer", "rms"])
def norm(request):
    bias = draw(5, seed=2) if request.param == "layer" else torch.zeros(5, dtype=F64)
    return Normalisation(request.param, draw(5, seed=1), bias, 1e-3)


def test_normalise_agrees_with_torch(norm):
    X = draw(4, 5)
    if norm.kind == "layer":
        expected = torch.nn.functional.layer_norm(X, (5,), norm.gain, norm.bias, norm.eps)
    else:
        expected = torch.nn.functional.rms_norm(X, (5,), norm.gain, norm.eps)
    assert torch.allclose(normalise(norm, X), expected)


@pytest.mark.parametrize("residual", [False, True])
def test_block_jacobian_agrees_with_autodiff(truth, norm, residual):
    attention, X = layer(output=draw(5, 6, seed=3)), draw(2, 4, 5)
    J = pre_norm_jacobian(norm, X, attention, residual=residual)
    dense = truth.jacobians(lambda x: residual * x + attention(normalise(norm, x)), X)
    assert torch.allclose(J.dense(), dense, atol=1e-12)
    assert torch.allclose(J.T.dense(), J.dense().mT, atol=1e-12)


def test_constants_lie_between_the_gains(norm):
    X = 3 * draw(50, 5, seed=4)
    centred = X - X.mean(-1, keepdim=True) if norm.kind == "layer" else X
    size = (centred.square().mean(-1) + norm.eps).sqrt()
    gains = norm.gain.abs().sort(descending=True).values
    constants = norm_constants(norm, X)
    assert (constants <= gains[0] / size * (1 + 1e-9)).all()
    assert (constants >= gains[2 if norm.kind == "layer" else 1] / size * (1 - 1e-6)).all()


def test_affine_maximum_is_exact():
    M, e = draw(6, 3, 4, seed=5), draw(6, 3, seed=6)
    top = largest_affine_norm(M, e, 2.0)
    z = draw(6, 4, 1, seed=7)
    for _ in range(2000):  # fixed point of the maximiser: z ∝ Mᵀ(Mz + e)
        z = M.mT @ (M @ z + e[..., None])
        z = 2.0 * z / z.norm(dim=1, keepdim=True)
    reached = (M @ z + e[..., None]).norm(dim=(1, 2))
    assert (reached <= top * (1 + 1e-12)).all() and (reached / top).median() > 1 - 1e-9


def test_affine_maximum_in_the_hard_case():
    M = torch.diag(torch.tensor([2.0, 1.0], dtype=F64))
    e = torch.tensor([0.0, 1.0], dtype=F64)  # no component along the longest axis
    angle = torch.linspace(0, 2 * math.pi, 100_001, dtype=F64)
    on_circle = torch.stack([2 * angle.cos(), angle.sin() + 1]).norm(dim=0).max()
    assert largest_affine_norm(M, e, 1.0).item() == pytest.approx(on_circle.item(), rel=1e-8)
    assert largest_affine_norm(M, torch.zeros(2, dtype=F64), 3.0).item() == pytest.approx(6.0)
    assert largest_affine_norm(0 * M, e, 3.0).item() == pytest.approx(1.0)
    assert largest_affine_norm(M, e, 0.0).item() == pytest.approx(1.0)


def test_reach_holds_and_is_reached(norm):
    attention, found = layer(), normalised_reach(layer(), norm)
    X = normalise(norm, 20 * draw(3000, 5, seed=8))
    pulled = X @ attention.score_matrices().mT + attention.score_offsets()[:, None]
    scores = pulled @ X.mT
    spread = (scores.amax(-1) - scores.amin(-1)).amax(-1) / 2
    assert X.norm(dim=-1).max() <= found.radius * (1 + 1e-12)
    assert (spread <= found.spread).all() and (spread > 0.8 * found.spread).all()
    assert (pulled.norm(dim=-1).amax(-1) <= found.query * (1 + 1e-12)).all()


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"output": draw(5, 6, seed=3)}], ids=["", "causal", "W"]
)
def test_bound_holds(norm, options):
    attention = layer(**options)
    X = normalise(norm, draw(30, 8, 5, seed=10))
    assert local_lipschitz(attention, X).value.max() <= normalised_upper(attention, norm, n=8)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 2, 9, 10**6])
def test_bound_of_a_round_ellipsoid_is_that_of_its_ball(n, causal):
    A, V, unit = (
        draw(5, 5) / 9,
        draw(3, 5, seed=1),
        Normalisation("rms", torch.ones(5), torch.zeros(5), 0.0),
    )
    a, size = 5 * torch.linalg.matrix_norm(A, 2).item(), torch.linalg.matrix_norm(V, 2).item()
    column = n if causal else math.exp(log_column_sum(n, math.log(a), 5 * score_gap_upper(A)))
    expected = size * ((1 + a) * math.sqrt(column) + a)
    found = normalised_upper(Attention.from_matrices(A, V, causal=causal), unit, n=n)
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_bound_by_the_letter(kind):
    """The formula with whole matrices, and its two maxima over the ellipsoid by brute force."""
    d, n = 3, 7
    A, V, c = 0.3 * draw(d, d), draw(2, d, seed=1), 0.2 * draw(d, seed=2)
    G, b = torch.diag(draw(d, seed=3)), 0.4 * draw(d, seed=4)
    Pi = torch.eye(d, dtype=F64) - (1 / d if kind == "layer" else 0)
    z = draw(20_000, d, seed=5) @ Pi
    x = math.sqrt(d) * z / z.norm(dim=-1, keepdim=True) @ G + b
    query = x @ A.T + c
    alpha = math.sqrt(d) * (query @ G @ Pi).norm(dim=-1).max().item()
    leads = query @ x[::10].T - (query * x).sum(-1, keepdim=True)  # of the keys over one's own
    S = math.exp(log_column_sum(n, math.log(alpha), leads.max().item()))
    own, spread, value = (
        torch.linalg.matrix_norm(M, 2).item() for M in (Pi @ G @ A, V @ G @ Pi, V)
    )
    keys = math.sqrt(d) * query.norm(dim=-1).max().item() * math.sqrt(S)
    expected = value * math.sqrt(S) + spread * (d * own + keys)
    one = torch.eye(d, dtype=F64)[None]
    attention = Attention(A[None], one, V[None], c[None], scale=1.0)
    found = normalised_upper(attention, Normalisation(kind, G.diagonal(), b, 0.0), n=n)
    assert found == pytest.approx(expected, rel=1e-3) and found >= expected * (1 - 1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_bound_withstands_ascent(truth, kind, causal):
    A, V, gain = (
        -0.2 * torch.eye(3, dtype=F64),
        torch.eye(3, dtype=F64),
        torch.tensor([1.0, 0.7, -1.2], dtype=F64),
    )
    norm = Normalisation(kind, gain, 0.1 * draw(3, seed=5), 0.0)
    values = truth.ascended(  # tokens are normalised: the ball of z does not matter
        lambda z: truth.of_head(A, V, normalise(norm, z), causal=causal), draw(8, 4, 3), 1.0, 30
    )
    bound = normalised_upper(Attention.from_matrices(A, V, causal=causal), norm, n=4)
    assert 0.4 * bound < values.max() <= bound


def test_bad_input_is_refused(norm):
    turned = Attention(draw(1, 4, 5), draw(1, 4, 5), draw(1, 2, 5), rotary=torch.ones(2, dtype=F64))
    with pytest.raises(ValueError, match="rotary"):
        normalised_reach(turned, norm)
    with pytest.raises(ValueError, match="gain"):
        normalised_reach(layer(d=4), norm)
    with pytest.raises(ValueError, match="residual"):
        pre_norm_jacobian(norm, draw(3, 5), layer(), residual=True)
    with pytest.raises(ValueError, match="radius"):
        largest_affine_norm(torch.eye(2), torch.zeros(2), -1.0)


def test_layer_norm_radius_holds_and_is_reached():
    gain, bias = draw(6), draw(6, seed=1)
    norm = Normalisation("layer", gain, bias, 0.0)
    radius = layer_norm_radius(gain=gain, bias=bias)
    assert normalise(norm, draw(2000, 6, seed=2)).norm(dim=-1).max() <= radius
    largest = torch.zeros(6, dtype=F64)
    largest[gain.abs().argmax()] = math.sqrt(6)
    assert (gain * largest).norm().item() == pytest.approx(layer_norm_radius(gain=gain))
    sum_of_both = layer_norm_radius(gain=gain) + bias.norm().item()
    assert radius == pytest.approx(sum_of_both, rel=1e-12)


def test_layer_norm_radius_refuses_bad_input():
    with pytest.raises(ValueError, match=r"^bias: "):
        layer_norm_radius(gain=torch.ones(2), bias=torch.ones(3))
    with pytest.raises(ValueError, match=r"^gain: "):
        layer_norm_radius(gain=torch.ones(0))
    with pytest.raises(ValueError, match=r"^gain: "):
        layer_norm_radius(gain=torch.tensor([math.inf]))
