"""Causal attention: uniform averaging, the longest moments of rows, and bounds with and without n."""

import math

import pytest
import torch

from lipcore import Attention, local_lipschitz, spectral_norm
from lipcore.adversarial import worst_case_inputs
from lipcore.bounds import (
    best_upper,
    causal_average,
    causal_average_norm,
    masked_upper,
    masked_upper_moments,
)
from lipcore.bounds.causal import log_masked_rows, row_moment

F64 = torch.float64
ONE = torch.ones(1, 1, dtype=F64)


def test_average_is_attention_at_the_origin():
    f = Attention.from_matrices(ONE, ONE, causal=True)
    J = f.jacobian(torch.zeros(7, 1, dtype=F64)).dense()
    average = causal_average(7)
    assert torch.allclose(average.dense(), J)
    assert torch.allclose(average.T.dense(), J.mT)


@pytest.fixture(scope="module")
def averages():
    """Norms of causal averaging on 1, 10, … tokens."""
    lengths = (1, 10, 1000, 100_000)
    return lengths, [spectral_norm(causal_average(n), tol=1e-6).lower.item() for n in lengths]


def test_norm_tends_to_two(averages):
    lengths, norms = averages
    assert norms == sorted(norms) and norms[0] == pytest.approx(1) and norms[-1] < 2
    assert causal_average_norm(lengths[-1]) == pytest.approx(norms[-1], rel=2e-3)
    # Wilf (1970): the square is 4 − 16π²/(ln n + γ + 6 ln 2)² up to smaller terms
    shift = 0.5772 + 6 * math.log(2)
    asymptote = [math.sqrt(4 - (4 * math.pi / (math.log(n) + shift)) ** 2) for n in lengths[2:]]
    assert 0 < norms[3] - asymptote[1] < norms[2] - asymptote[0] < 0.08


def test_bounds_are_sharp_without_scores(averages):
    """a = 0: averaging reaches more than nine tenths of every bound, none of which is below it."""
    sizes = {"radius": 1.0, "norm_a": 0.0, "norm_v": 1.0}
    lengths, norms = averages
    for n, norm in zip(lengths, norms, strict=True):
        short = [
            masked_upper(n=n, **sizes),
            best_upper(A=0 * ONE, V=ONE, radius=1.0, n=n, causal=True),
        ]
        every = [
            masked_upper_moments(**sizes),
            best_upper(A=0 * ONE, V=ONE, radius=1.0, causal=True),
        ]
        assert all(norm <= bound * (1 + 1e-9) for bound in short + every)
    assert all(norms[-1] > 0.93 * bound for bound in [*every, masked_upper(n=10**5, **sizes)])
    assert masked_upper(n=2, **sizes) == pytest.approx(math.sqrt(2), rel=1e-15)
    assert masked_upper(n=10**12, **sizes) == pytest.approx(2.0, rel=1e-15)


@pytest.mark.parametrize("a", [0.0, 0.1, 1.0, 3.0, 20.0])
def test_row_moment_is_the_largest_over_rows(a):
    gen = torch.Generator().manual_seed(0)
    for q in (2.0, 3.0, 3.5, 10.0):
        P = torch.softmax(3 * torch.randn(500, 6, generator=gen, dtype=F64), -1)
        x = torch.randn(500, 6, 2, generator=gen, dtype=F64)
        x = x / x.norm(dim=-1, keepdim=True)
        g, y = torch.randn(2, 500, 2, generator=gen, dtype=F64)
        g, y = g / g.norm(dim=-1, keepdim=True), y / y.norm(dim=-1, keepdim=True)
        deviation = (x - P[:, None] @ x) @ g[..., None]  # g·(x_j − m_i), tokens in the unit ball
        moment = (P * (g[:, None] + deviation * a * y[:, None]).norm(dim=-1) ** q).sum(-1)
        assert moment.max() ** (1 / q) <= row_moment(a, q) * (1 + 1e-12)
    assert row_moment(a, 2.0) ** 2 == pytest.approx(1 + a**2)


@pytest.mark.parametrize("q", [2.0, 3.0, 4.5])
def test_row_moment_is_reached_by_two_tokens(q):
    w = torch.linspace(0, 1, 100_001, dtype=F64)
    P, x = torch.stack([w, 1 - w], -1), torch.tensor([1.0, -1.0], dtype=F64)
    for a in (0.0, 0.1, 1.0, 3.0, 20.0):
        moment = (P * (1 + a * (x - (P @ x)[:, None])).abs() ** q).sum(-1).max()
        assert moment ** (1 / q) == pytest.approx(row_moment(a, q), rel=1e-7)
        assert row_moment(a, q, log=True) == pytest.approx(math.log(row_moment(a, q)), abs=1e-14)


def test_bounds_hold_at_worst_inputs():
    for a in (0.3, 1.0, 2.0):
        A = -a * torch.eye(2, dtype=F64)
        V = torch.eye(2, dtype=F64)
        X = worst_case_inputs(A, 400, 1.0, causal=True)
        reached = local_lipschitz(Attention.from_matrices(A, V, causal=True), X).value.item()
        assert reached <= masked_upper_moments(radius=1.0, norm_a=a, norm_v=1.0) <= 3 * reached
        best = best_upper(A=A, V=V, radius=1.0, n=400, causal=True)
        assert reached <= best <= masked_upper(n=400, radius=1.0, norm_a=a, norm_v=1.0)


def test_rows_with_a_known_n():
    """The sum over rows by hand; what is worked out lies between it and a little more, for n up to 10⁴⁰."""
    for a in (0.0, 0.3, 1.0, 3.0):
        w = torch.linspace(0, 1, 20_001, dtype=F64)
        kappa = math.exp(2 * a)
        short = (w**2 * (1 + 2 * a * (1 - w)) ** 2 + (1 - w) ** 2 * (1 - 2 * a * w) ** 2).max()
        rare = w * (1 + 2 * a * (1 - w)) ** 2 + (1 - w) * (1 - 2 * a * w) ** 2 / kappa
        long = kappa * ((1 - w + w / kappa) * rare).max()
        for n in (1, 2, 7, 100, 10_000):
            rows = torch.minimum(short, long / torch.arange(1, n + 1, dtype=F64))
            i = torch.arange(n, dtype=F64)
            columns = (1 + a**2) * (kappa / (kappa + i)).sum()
            least = min(rows.sum().item(), columns.item())
            found = math.exp(2 * log_masked_rows(n, math.log(a) if a else -math.inf))
            assert least * (1 - 1e-6) <= found <= least + 2 * short.item()
        assert math.isfinite(log_masked_rows(10**40, 3.0))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"^n: "):
        causal_average(0)
    with pytest.raises(ValueError, match=r"^q: "):
        row_moment(1.0, 1.5)
    with pytest.raises(ValueError, match=r"^H: "):
        causal_average(3).matvec(torch.zeros(4, dtype=F64))
