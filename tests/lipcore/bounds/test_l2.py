"""Squared distances: the fourth root of n holds, is needed, and beats what was known."""

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


def test_lemmas_on_clouds(randn, generator):
    """Gaussian clouds, many tokens at one point with a halo, shells, and lattices, of every size."""
    for trial in range(160):
        n, k = 2 + trial % 47, 1 + trial % 9
        Y = randn(n, k)
        if trial % 4 == 1:
            Y[: n // 2] = 0
        if trial % 4 == 2:
            Y /= Y.norm(dim=1, keepdim=True)
        if trial % 4 == 3:
            Y = Y.round()
        Y = Y * 10 ** (randn() - 0.3)
        P, z = weights(Y), Y[:, None] - Y
        assert norm(P) <= P.trace() ** 0.25 * (1 + 1e-12)
        assert norm(P) <= (n**0.5 / 8 + 5 / 16) ** 0.5 + 2 * n ** (1 / 6)
        moments = P.sum(0).square()
        moments += 2 * torch.einsum("ij,ija->ja", P, z).square().sum(-1)
        moments += 2 * torch.einsum("ij,ija,ijb->jab", P, z, z).square().sum((-2, -1))
        assert moments.max() <= P.trace() * (1 + 1e-12)
        # step one of the constant's proof, for any set S and every column
        K = (-z.square().sum(-1)).exp()
        S = torch.rand(n, generator=generator) < 0.7
        sums = (K[S] / K[S][:, S].sum(1, keepdim=True)).sum(0)
        assert (sums <= S.sum().sqrt() / 2 + 5 / 4).all()


def test_mixing_norm_by_ascent(randn, truth):
    """Gradient ascent on the ratio climbs, and never past one."""

    def ratio(Y):
        P = weights(Y)
        return norm(P) / P.diagonal(dim1=-2, dim2=-1).sum(-1) ** 0.25

    for k in (1, 3, 12):
        Y = randn(5, 12, k)
        reached = truth.ascended(ratio, Y, radius=10.0, steps=60).max()
        assert 1.02 * ratio(Y).max() < reached <= 1 + 1e-12


@pytest.mark.parametrize(("q", "dimension", "slack"), [(20, 8, 1.3), (40, 64, 1.01)])
def test_star_in_few_dimensions(q, dimension, slack):
    stars = [
        star_inputs(q, dimension=dimension, generator=torch.Generator().manual_seed(seed))
        for seed in range(3)
    ]
    mean = sum(heard(weights(Y), q) for Y in stars) / 3  # at most the squared norm, for any P
    least = q / 8 * math.exp(-2 * math.log(q) ** 2 / dimension)
    assert least <= mean <= slack * least


@pytest.mark.parametrize("q", [2, 5, 8])
def test_shifted_star(q):
    """Its leaders, moved along the shift, move the satellites as the proof says; the bound holds."""
    X = star_inputs(q, shifted=True)
    n, k = X.shape
    N, centre = k - 1, (X == 0).all(-1)
    m = n - N
    assert (m, N) == (math.ceil(2 * math.e * q / 5), math.ceil(q**2 / 5))
    eye, move = torch.eye(k, dtype=torch.float64)[None], torch.zeros_like(X)
    move[centre, -1] = m**-0.5

    def f(Z):
        return l2_attention_map(Z, k**0.25 * eye, eye)

    answer = AutogradJacobian(f, X).matvec(move)
    along = answer[~centre, :-1].diagonal().square().sum()  # each satellite its own way
    row = 1 + (N - 1) / q**2 + m / (math.e * q)
    proved = 4 * m * N * math.log(q) / (math.e * q * row**2) ** 2
    torch.testing.assert_close(along.item(), proved)
    bound = l2_attention_upper(n=n, head_dim=k, norms_q=[k**0.25], norms_v=[1.0])
    assert along.sqrt() <= local_lipschitz(f, X, tol=1e-6).value <= bound


def test_bound_holds_for_several_heads(randn, truth):
    for n, k, heads in ((1, 1, 1), (2, 3, 2), (9, 2, 3), (30, 1, 1)):
        query, value, output = *randn(2, heads, k, 4), randn(3, heads * k)
        norms = {"norms_q": norm(query).tolist(), "norms_v": norm(value).tolist()}
        bound = l2_attention_upper(n=n, head_dim=k, norm_o=norm(output).item(), **norms)
        for size in (0.01, 0.5, 2.0, 50.0):
            X = size * randn(1, n, 4)
            assert truth.of_map(lambda Z: l2_attention_map(Z, query, value) @ output.mT, X) <= bound  # noqa: B023


def test_bound_is_reached_by_one_token(truth):
    """Heads that are multiples of the identity, and W^O in line with their outputs."""
    eye = torch.eye(3, dtype=torch.float64)
    q, v = torch.tensor([[2.0, 0.5], [1.0, 3.0]], dtype=torch.float64)
    query, value = q[:, None, None] * eye, v[:, None, None] * eye
    output = torch.cat([*(q**2 * v)[:, None, None] * eye], 1)
    one = torch.ones_like(eye[:1])[None]
    reached = truth.of_map(lambda Z: l2_attention_map(Z, query, value) @ output.mT, one)
    sizes = {"norms_q": q.tolist(), "norms_v": v.tolist(), "norm_o": norm(output).item()}
    for upper in (l2_attention_upper, kim2021_l2_upper):
        assert reached.item() == pytest.approx(upper(n=1, head_dim=3, **sizes), rel=1e-12)


def test_bound_by_hand():
    """Each of the two is the less somewhere, and is what the formula says."""
    less, size = set(), {"norms_q": [2.0, 1.0], "norms_v": [3.0, 0.5], "norm_o": 1.5}
    for n, k in ((2, 4), (5, 4), (50, 4), (200, 1), (10**6, 1)):
        c = brentq(lambda x: x * math.exp(x + 1) - n + 1, 0, 50, xtol=1e-14)  # noqa: B023
        columns = (3 + math.sqrt(2 * math.pi * k)) ** k
        mixing = min(n**0.5, n**0.5 / 2 + 5 / 4) ** 0.5
        any_dimension = mixing + 2**0.75 * math.sqrt(c) * n**0.25
        this_dimension = math.sqrt(math.e * columns) + 2 * math.sqrt(2 * c * columns)
        least = min(any_dimension, this_dimension) + 2 * c
        assert least <= kim2021_l2_upper(n=n, head_dim=1, norms_q=[1.0], norms_v=[1.0])
        less.add(any_dimension < this_dimension)
        expected = math.log(least * math.sqrt(16 * 9 + 0.25) * 1.5 / math.sqrt(k))
        found = l2_attention_upper(n=n, head_dim=k, log=True, **size)
        assert found == pytest.approx(expected, abs=1e-9)
        exact = l2_attention_upper(n=n, head_dim=k, **size)
        assert exact == pytest.approx(math.exp(expected), rel=1e-9)
    assert less == {False, True}


def test_edges():
    assert l2_attention_upper(n=5, head_dim=1, norms_q=[0.0], norms_v=[1.0]) == 0
    one = {"norms_q": [1.0], "norms_v": [1.0]}
    assert math.isfinite(l2_attention_upper(n=10**15, head_dim=10**6, **one))
    with pytest.raises(ValueError, match="norms_v: "):
        l2_attention_upper(n=2, head_dim=1, norms_q=[1.0], norms_v=[])
