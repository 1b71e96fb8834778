"""Squared distances: the fourth root of n holds, is needed, and beats what was known."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import brentq

from lab.l2 import l2_attention_upper
from lab.rivals import kim2021_l2_upper
from lab.star import star_inputs
from lab.zoo import l2_attention_map
from lipcore import AutogradJacobian, local_lipschitz


def weights(Y):
    distances = torch.cdist(Y, Y, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.softmax(-distances.square(), dim=-1)


def norm(M):
    return torch.linalg.matrix_norm(M, 2)


def heard(P, q):
    """Squares of the satellites' outputs for the unit vector that is constant on the 2q leaders."""
    return P[2 * q :, : 2 * q].sum(1).square().sum() / (2 * q)


def clouds(generator):
    """Gaussian clouds, many tokens at one point with a halo, shells, and lattices, of every size."""
    for trial in range(160):
        n = int(torch.randint(2, 50, (), generator=generator))
        k = int(torch.randint(1, 9, (), generator=generator))
        Y = torch.randn(n, k, generator=generator, dtype=torch.float64)
        if trial % 4 == 1:
            Y[: n // 2] = 0
        if trial % 4 == 2:
            Y /= Y.norm(dim=1, keepdim=True)
        if trial % 4 == 3:
            Y = Y.round()
        yield Y * 10 ** (2 * torch.rand((), generator=generator, dtype=torch.float64) - 1.3)


def test_mixing_norm_and_columns(generator):
    for Y in clouds(generator):
        P, n = weights(Y), len(Y)
        assert norm(P) <= P.trace() ** 0.25 * (1 + 1e-12)
        assert P.sum(0).max() <= n**0.5 / 2 + 5 / 4
        assert norm(P) <= (n**0.5 / 8 + 5 / 16) ** 0.5 + 2 * n ** (1 / 6)
    P = weights(torch.zeros(7, 2, dtype=torch.float64))
    assert norm(P).item() == pytest.approx(P.trace().item() ** 0.25, rel=1e-12)  # equality


def test_moments_of_columns(generator):
    """Three squares against the trace; for two close points the rest of the series is small, but no square is."""

    def moments(Y):
        P, z = weights(Y), Y[:, None] - Y
        zeroth = P.sum(0).square()
        first = torch.einsum("ij,ija->ja", P, z).square().sum(-1)
        second = torch.einsum("ij,ija,ijb->jab", P, z, z).square().sum((-2, -1))
        return zeroth.max() / P.trace(), (zeroth + 2 * first + 2 * second).max() / P.trace()

    for Y in clouds(generator):
        assert moments(Y)[1] <= 1 + 1e-12
    one, all_three = moments(torch.tensor([[0.0], [0.5]], dtype=torch.float64))
    assert one < 0.9 and 0.995 < all_three <= 1


def test_sum_over_a_set(generator):
    """Step one of the constant's proof, for every set and every column."""
    for Y in clouds(generator):
        K = (-(Y[:, None] - Y).square().sum(-1)).exp()
        S = torch.rand(len(Y), generator=generator) < 0.7
        sums = (K[S] / K[S][:, S].sum(1, keepdim=True)).sum(0)
        assert (sums <= S.sum().sqrt() / 2 + 5 / 4).all()
    K = (-(torch.cdist(Y := star_inputs(30), Y)).square()).exp()
    S = slice(60, None)
    sums = (K[S] / K[S, S].sum(1, keepdim=True)).sum(0)
    assert sums.max() > 30 / 2  # the leading order is reached


def test_mixing_norm_by_ascent(generator, truth):
    """Gradient ascent on the ratio climbs, and never past one."""

    def ratio(Y):
        P = weights(Y)
        return norm(P) / P.diagonal(dim1=-2, dim2=-1).sum(-1) ** 0.25

    for k in (1, 3, 12):
        Y = torch.randn(5, 12, k, generator=generator, dtype=torch.float64)
        reached = truth.ascended(ratio, Y, radius=10.0, steps=60).max()
        assert 1.02 * ratio(Y).max() < reached <= 1 + 1e-12


@pytest.mark.parametrize("q", [1, 2, 5, 16])
def test_star_reaches_the_fourth_root(q):
    P = weights(star_inputs(q))
    n = len(P)
    assert n == q**2 + 2 * q
    assert norm(P) ** 2 >= heard(P, q) >= (math.sqrt(n + 1) - 1) / 8
    if q == 16:  # the proof loses little: a row sums to 4 − 1/q²
        assert heard(P, q).item() == pytest.approx(q / 8, rel=0.01)


def test_no_smaller_exponent():
    """A star so large that the exponent shows, 10²⁰ tokens, as two tokens with masses; and its limit, 1/√8."""
    q = 1e10
    masses = torch.tensor([2 * q, q**2], dtype=torch.float64)
    K = torch.tensor([[2 * q, q], [2, 1 + (q**2 - 1) / q**2]], dtype=torch.float64)
    P = K / K.sum(1, keepdim=True)
    n, found = masses.sum().item(), norm(masses.sqrt()[:, None] * P / masses.sqrt()).item()
    trace = (P[0, 0] + masses[1] / K[1].sum()).item()
    assert trace ** (0.9 / 4) < found <= trace**0.25
    assert found / n**0.25 == pytest.approx(8**-0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("q", "dimension", "slack"), [(20, 8, 1.3), (30, 16, 1.08), (40, 64, 1.01)]
)
def test_star_in_few_dimensions(q, dimension, slack):
    stars = [
        star_inputs(q, dimension=dimension, generator=torch.Generator().manual_seed(seed))
        for seed in range(3)
    ]
    mean = sum(heard(weights(Y), q) for Y in stars) / 3  # at most the squared norm, for any P
    least = q / 8 * math.exp(-2 * math.log(q) ** 2 / dimension)
    assert least <= mean <= slack * least


def test_a_star_moves_as_far_as_it_mixes():
    """In one dimension more the Jacobian does what P does: its norm is at least that of P."""
    Y = star_inputs(6)
    k = Y.shape[1] + 1
    X = torch.cat([Y, Y.new_zeros(len(Y), 1)], dim=1)
    eye = torch.eye(k, dtype=torch.float64)[None]
    found = local_lipschitz(lambda Z: l2_attention_map(Z, k**0.25 * eye, eye), X, tol=1e-8).value
    assert found >= norm(weights(Y)) * (1 - 1e-8)


@pytest.mark.parametrize("q", [2, 5, 8])
def test_shifted_star(q):
    """Moving its leaders along the shift moves the satellites as the proof estimates, and the bound holds."""
    X = star_inputs(q, shifted=True)
    n, k = X.shape
    assert (n, k) == (q**2 + 4 * q, q**2 + 1)
    eye, move = torch.eye(k, dtype=torch.float64)[None], torch.zeros_like(X)
    move[: 4 * q, -1] = (4 * q) ** -0.5
    J = AutogradJacobian(lambda Z: l2_attention_map(Z, k**0.25 * eye, eye), X)
    along = J.matvec(move)[4 * q :, :-1].diagonal().square().sum()  # each satellite its own way
    estimate = math.log(2) / 64 * q * math.log(q)
    assert estimate <= along <= 1.6 * estimate
    sigma = local_lipschitz(lambda Z: l2_attention_map(Z, k**0.25 * eye, eye), X, tol=1e-6).value
    bound = l2_attention_upper(n=n, head_dim=k, norms_q=[k**0.25], norms_v=[1.0])
    assert along.sqrt() <= sigma <= bound


def test_tied_queries_and_keys_on_a_sphere(generator):
    """Any positive semidefinite A, tokens with equal scores for themselves: softmax mixes no worse."""
    A = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    A = A.mT @ A
    for own_score in (0.01, 1, 6):
        X = torch.randn(200, 10, 4, generator=generator, dtype=torch.float64)
        X *= (own_score / (X @ A * X).sum(-1, keepdim=True)).sqrt()
        P = torch.softmax(X @ A @ X.mT, dim=-1)
        assert (norm(P) <= P.diagonal(dim1=-2, dim2=-1).sum(-1) ** 0.25 * (1 + 1e-12)).all()


def test_bound_holds_for_several_heads(generator, truth):
    for n, k, heads in ((1, 1, 1), (2, 3, 2), (9, 2, 3), (30, 1, 1)):
        query, value = torch.randn(2, heads, k, 4, generator=generator, dtype=torch.float64)
        output = torch.randn(3, heads * k, generator=generator, dtype=torch.float64)
        norms = {"norms_q": norm(query).tolist(), "norms_v": norm(value).tolist()}
        bound = l2_attention_upper(n=n, head_dim=k, norm_o=norm(output).item(), **norms)
        for size in (0.01, 0.5, 2.0, 50.0):
            X = size * torch.randn(1, n, 4, generator=generator, dtype=torch.float64)
            assert truth.of_map(lambda Z: l2_attention_map(Z, query, value, output), X) <= bound  # noqa: B023


def test_bound_is_reached_by_one_token(truth):
    """Heads that are multiples of the identity, and W^O in line with their outputs."""
    eye = torch.eye(3, dtype=torch.float64)
    q, v = torch.tensor([[2.0, 0.5], [1.0, 3.0]], dtype=torch.float64)
    query, value = q[:, None, None] * eye, v[:, None, None] * eye
    output = torch.cat([*(q**2 * v)[:, None, None] * eye], 1)
    one = torch.ones_like(eye[:1])[None]
    reached = truth.of_map(lambda Z: l2_attention_map(Z, query, value, output), one)
    sizes = {"norms_q": q.tolist(), "norms_v": v.tolist(), "norm_o": norm(output).item()}
    assert reached.item() == pytest.approx(l2_attention_upper(n=1, head_dim=3, **sizes), rel=1e-12)


def test_bound_by_hand():
    """Each of the two is the less somewhere, and is what the formula says."""

    def parts(n, k):
        c = brentq(lambda x: x * math.exp(x + 1) - n + 1, 0, 50, xtol=1e-14)
        columns = (3 + math.sqrt(2 * math.pi * k)) ** k
        mixing = min(n**0.5, n**0.5 / 2 + 5 / 4) ** 0.5
        any_dimension = mixing + 2**0.75 * math.sqrt(c) * n**0.25
        return [
            any_dimension + 2 * c,
            math.sqrt(math.e * columns) + 2 * c + 2 * math.sqrt(2 * c * columns),
        ]

    less, size = set(), {"norms_q": [2.0, 1.0], "norms_v": [3.0, 0.5], "norm_o": 1.5}
    for n, k in ((2, 4), (5, 4), (50, 4), (200, 1), (10**6, 1)):
        two = parts(n, k)
        assert min(two) <= kim2021_l2_upper(n=n, head_dim=1, norms_q=[1.0], norms_v=[1.0])
        less.add(two.index(min(two)))
        for log in (False, True):
            found = l2_attention_upper(n=n, head_dim=k, log=log, **size)
            expected = min(two) * math.sqrt(16 * 9 + 0.25) * 1.5 / math.sqrt(k)
            assert found == pytest.approx(math.log(expected) if log else expected, rel=1e-9)
    assert less == {0, 1}


def test_edges_and_bad_input():
    one = {"norms_q": [1.0], "norms_v": [1.0]}
    assert l2_attention_upper(n=1, head_dim=1, **one) == pytest.approx(1)
    assert l2_attention_upper(n=5, head_dim=1, norms_q=[0.0], norms_v=[1.0]) == 0
    assert math.isfinite(l2_attention_upper(n=10**15, head_dim=10**6, **one))
    with pytest.raises(ValueError, match=r"^norms_v: "):
        l2_attention_upper(n=2, head_dim=1, norms_q=[1.0], norms_v=[])
    with pytest.raises(ValueError, match=r"^n: "):
        l2_attention_upper(n=0, head_dim=1, **one)
    for bad in ({"q": 0}, {"q": 2, "dimension": 0}):
        with pytest.raises(ValueError, match="expected"):
            star_inputs(**bad)
    assert torch.equal(star_inputs(9, dimension=4), star_inputs(9, dimension=4))
