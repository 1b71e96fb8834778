"""Normalised tokens: their ellipsoid, the reach of scores, and the pre-norm block."""

import math

import pytest
import torch

from draws import F64, draw, norm, tensor
from lipcore import Attention, bounds
from lipcore.bounds import Normalisation, normalise
from lipcore.bounds.ball import log_column_sum
from lipcore.bounds.normalised import largest_affine_norm


def layer(d=5, **options):
    query, key, value = draw(0, 3, 2, 3, d)
    return Attention(0.4 * query, 0.4 * key, value, 0.3 * draw(9, 2, 3), None, None, **options)


@pytest.fixture(params=["layer", "rms"])
def N(request):
    bias = draw(2, 5) if request.param == "layer" else torch.zeros(5, dtype=F64)
    return Normalisation(request.param, draw(1, 5), bias, 1e-3)


def test_normalise_agrees_with_torch(N):
    X = draw(0, 4, 5)
    if N.kind == "layer":
        expected = torch.nn.functional.layer_norm(X, (5,), N.gain, N.bias, N.eps)
    else:
        expected = torch.nn.functional.rms_norm(X, (5,), N.gain, N.eps)
    assert torch.allclose(normalise(N, X), expected)


@pytest.mark.parametrize("residual", [False, True])
def test_block_jacobian_agrees_with_autodiff(truth, N, residual):
    attention, X = layer(output=draw(3, 5, 6)), draw(0, 2, 4, 5)
    J = bounds.pre_norm_jacobian(N, X, attention, residual=residual)
    dense = truth.jacobians(lambda x: residual * x + attention(normalise(N, x)), X)
    assert torch.allclose(J.dense(), dense, atol=1e-12)
    assert torch.allclose(J.T.dense(), J.dense().mT, atol=1e-12)


def test_constants_are_those_of_autodiff(truth, N):
    X = 3 * draw(4, 50, 5)
    constants = bounds.norm_constants(N, X)
    each = [truth.of_map(lambda x: normalise(N, x), x[None, None]).item() for x in X]
    assert torch.allclose(constants, tensor(*each), rtol=1e-5)


def test_affine_maximum_in_the_hard_case():
    M, e = torch.diag(tensor(2.0, 1.0)), tensor(0.0, 1.0)  # nothing along the longest axis
    angle = torch.linspace(0, 2 * math.pi, 100_001, dtype=F64)
    on_circle = torch.stack([2 * angle.cos(), angle.sin() + 1]).norm(dim=0).max().item()
    for matrix, offset, radius, expected in (
        (M, e, 1.0, on_circle),
        (M, 0 * e, 3.0, 6.0),
        (0 * M, e, 3.0, 1.0),
        (M, e, 0.0, 1.0),
    ):
        found = largest_affine_norm(matrix, offset, radius).item()
        assert found == pytest.approx(expected, rel=1e-8)


def test_reach_holds_and_is_reached(N):
    attention, found = layer(), bounds.normalised_reach(layer(), N)
    X = normalise(N, 20 * draw(8, 3000, 5))
    pulled = X @ attention.score_matrices().mT + attention.score_offsets()[:, None]
    scores = pulled @ X.mT
    spread = (scores.amax(-1) - scores.amin(-1)).amax(-1) / 2
    assert X.norm(dim=-1).max() <= found.radius * (1 + 1e-12)
    assert (spread <= found.spread).all() and (spread > 0.8 * found.spread).all()
    assert (pulled.norm(dim=-1).amax(-1) <= found.query * (1 + 1e-12)).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 2, 9, 10**6])
def test_bound_of_a_round_ellipsoid_is_that_of_its_ball(n, causal):
    A, V = draw(0, 5, 5) / 9, draw(1, 3, 5)
    unit = Normalisation("rms", torch.ones(5), torch.zeros(5), 0.0)
    a = 5 * norm(A)
    column = (
        n if causal else math.exp(log_column_sum(n, math.log(a), 5 * bounds.score_gap_upper(A)))
    )
    expected = norm(V) * ((1 + a) * math.sqrt(column) + a)
    found = bounds.normalised_upper(Attention.from_matrices(A, V, causal=causal), unit, n=n)
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_bound_by_the_letter(kind):
    """The formula with whole matrices, and its two maxima over the ellipsoid by brute force."""
    d, n = 3, 7
    A, V, c = 0.3 * draw(0, d, d), draw(1, 2, d), 0.2 * draw(2, d)
    G, b = torch.diag(draw(3, d)), 0.4 * draw(4, d)
    Pi = torch.eye(d, dtype=F64) - (1 / d if kind == "layer" else 0)
    z = draw(5, 20_000, d) @ Pi
    x = math.sqrt(d) * z / z.norm(dim=-1, keepdim=True) @ G + b
    query = x @ A.T + c
    alpha = math.sqrt(d) * (query @ G @ Pi).norm(dim=-1).max().item()
    leads = query @ x[::10].T - (query * x).sum(-1, keepdim=True)  # of the keys over one's own
    S = math.exp(log_column_sum(n, math.log(alpha), leads.max().item()))
    keys = math.sqrt(d) * query.norm(dim=-1).max().item() * math.sqrt(S)
    expected = norm(V) * math.sqrt(S) + norm(V @ G @ Pi) * (d * norm(Pi @ G @ A) + keys)
    one = torch.eye(d, dtype=F64)[None]
    attention = Attention(A[None], one, V[None], c[None], scale=1.0)
    found = bounds.normalised_upper(attention, Normalisation(kind, G.diagonal(), b, 0.0), n=n)
    assert found == pytest.approx(expected, rel=1e-3) and found >= expected * (1 - 1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_bound_withstands_ascent(truth, kind, causal):
    V = torch.eye(3, dtype=F64)
    N = Normalisation(kind, tensor(1.0, 0.7, -1.2), 0.1 * draw(5, 3), 0.0)
    values = truth.ascended(  # tokens are normalised: the ball of z does not matter
        lambda z: truth.of_head(-0.2 * V, V, normalise(N, z), causal=causal),
        draw(0, 8, 4, 3),
        1,
        30,
    )
    bound = bounds.normalised_upper(Attention.from_matrices(-0.2 * V, V, causal=causal), N, n=4)
    assert 0.4 * bound < values.max() <= bound


def test_layer_norm_radius_holds_and_is_reached():
    gain, bias = draw(0, 6), draw(1, 6)
    radius = bounds.layer_norm_radius(gain=gain, bias=bias)
    N = Normalisation("layer", gain, bias, 0.0)
    assert normalise(N, draw(2, 2000, 6)).norm(dim=-1).max() <= radius
    largest = math.sqrt(6) * gain.abs().max().item()
    assert bounds.layer_norm_radius(gain=gain) == pytest.approx(largest)
    assert radius == pytest.approx(largest + bias.norm().item(), rel=1e-12)
