"""Uniform causal averaging, and the bound for causal attention that does not depend on n."""

import math

import pytest
import torch

from lipcore import Attention, local_lipschitz, spectral_norm
from lipcore.adversarial import worst_case_inputs
from lipcore.bounds import masked_upper, masked_upper_sharp
from lipcore.bounds.masked import (
    CausalAverage,
    causal_average_norm,
    masked_upper_moments,
    row_moment,
)


def test_average_is_attention_at_the_origin():
    f = Attention.from_matrices(torch.eye(1).double(), torch.eye(1).double(), causal=True)
    J = f.jacobian(torch.zeros(7, 1, dtype=torch.float64)).dense()
    average = CausalAverage(7)
    assert torch.allclose(average.dense(), J)
    assert torch.allclose(average.T.dense(), J.mT)


def test_norm_tends_to_two():
    norms = [spectral_norm(CausalAverage(n), tol=1e-9).value.item() for n in (1, 10, 1000, 100_000)]
    assert norms == sorted(norms) and norms[0] == pytest.approx(1) and norms[-1] < 2
    assert causal_average_norm(100_000) == pytest.approx(norms[-1], rel=2e-3)


@pytest.mark.parametrize("a", [0.0, 0.1, 1.0, 3.0, 20.0])
def test_row_moment_is_the_largest_over_rows(a):
    gen = torch.Generator().manual_seed(0)
    for q in (2.0, 3.0, 3.5, 10.0):
        P = torch.softmax(3 * torch.randn(500, 6, generator=gen, dtype=torch.float64), -1)
        x = torch.nn.functional.normalize(
            torch.randn(500, 6, 2, generator=gen, dtype=torch.float64), dim=-1
        )
        g, y = torch.nn.functional.normalize(
            torch.randn(2, 500, 2, generator=gen, dtype=torch.float64), dim=-1
        )
        deviation = (x - P[:, None] @ x) @ g[..., None]  # g·(x_j − m_i), tokens in the unit ball
        moment = (P * (g[:, None] + deviation * a * y[:, None]).norm(dim=-1) ** q).sum(-1)
        assert moment.max() ** (1 / q) <= math.exp(row_moment(a, q)) * (1 + 1e-12)
    assert math.exp(row_moment(a, 2.0)) ** 2 == pytest.approx(1 + a**2)


@pytest.mark.parametrize("a", [0.0, 0.1, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("q", [2.0, 3.0, 4.5])
def test_row_moment_is_reached_by_two_tokens(a, q):
    w = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    P, x = torch.stack([w, 1 - w], -1), torch.tensor([1.0, -1.0], dtype=torch.float64)
    moment = (P * (1 + a * (x - (P @ x)[:, None])).abs() ** q).sum(-1).max()
    assert moment ** (1 / q) == pytest.approx(math.exp(row_moment(a, q)), rel=1e-7)


@pytest.mark.parametrize("a", [0.0, 0.01, 0.5, 2.0, 50.0, 1e6])
def test_never_above_the_other_bounds(a):
    sizes = dict(radius=1.0, norm_a=a, norm_v=2.0, log=True)
    value = masked_upper_moments(**sizes)
    assert value <= math.log(2) + (math.log(2 * (1 + 2 * a)) + a) + math.log1p(a) + 1e-9
    if a <= 50:
        assert value <= masked_upper(n=10**300, **sizes) + 1e-12
        assert value <= masked_upper_sharp(n=10**300, **sizes) + 1e-9


def test_bound_holds_at_worst_inputs():
    for a in (0.3, 1.0, 2.0):
        A, V = -a * torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
        X = worst_case_inputs(A, 400, 1.0, causal=True)
        truth = local_lipschitz(Attention.from_matrices(A, V, causal=True), X).value.item()
        assert truth <= masked_upper_moments(radius=1.0, norm_a=a, norm_v=1.0) <= 3 * truth


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="n"):
        CausalAverage(0)
    with pytest.raises(ValueError, match="q"):
        row_moment(1.0, 1.5)
    with pytest.raises(ValueError, match="radius"):
        masked_upper_moments(radius=-1.0, norm_a=1.0, norm_v=1.0)
    with pytest.raises(ValueError, match="H"):
        CausalAverage(3).matvec(torch.zeros(4, dtype=torch.float64))
