"""Bounds of whole layers: true for every kind of layer, joined as heads are, right far out."""

import math

import pytest
import torch

from lipcore import Attention
from lipcore.bounds import general_upper, layer_upper, score_reach
from lipcore.bounds.layer import log_score_reach

F64 = torch.float64


def test_layer_of_one_head_is_the_closed_form(randn):
    A, V = randn(3, 3), randn(2, 3)
    sizes = {"norm_a": torch.linalg.matrix_norm(A, 2), "norm_v": torch.linalg.matrix_norm(V, 2)}
    for causal in (False, True):
        f = Attention.from_matrices(A, V, causal=causal)
        expected = general_upper(n=9, radius=0.8, **sizes)
        assert layer_upper(f, n=9, radius=0.8) == pytest.approx(expected, rel=1e-12)


def test_heads_combine(randn):
    """Equal heads side by side add up in squares; a projection that reads one of them costs one."""
    parts = randn(1, 3, 3), randn(1, 3, 3), randn(1, 2, 3)
    one = layer_upper(Attention(*parts), n=5, radius=1.0)
    four = [part.expand(4, -1, -1).contiguous() for part in parts]
    side_by_side = layer_upper(Attention(*four), n=5, radius=1.0)
    assert side_by_side == pytest.approx(2 * one, rel=1e-12)
    reader = torch.cat([torch.eye(2), torch.zeros(2, 6)], dim=1).double()
    projected = layer_upper(Attention(*four, output=reader), n=5, radius=1.0)
    assert projected == pytest.approx(one, rel=1e-12)
    mean = torch.cat([torch.eye(2)] * 4, dim=1).double() / 4  # ‖W‖ = 1/2, on heads that agree
    assert layer_upper(Attention(*four, output=mean), n=5, radius=1.0) == pytest.approx(
        one, rel=1e-12
    )


def test_heads_by_the_letter(make_case):
    case = make_case("biases")
    f = case.attention
    factors = [
        general_upper(n=5, radius=1.0, norm_a=a, norm_v=1.0)
        for a in score_reach(f, radius=1.3).tolist()
    ]
    factors = torch.tensor(factors, dtype=F64)
    norms = [torch.linalg.matrix_norm(M, 2) for M in (f.value, f.value_matrices(), f.output)]
    joined = norms[2] * (norms[0] * factors).square().sum().sqrt()
    expected = min(joined.item(), (norms[1] * factors).sum().item())
    assert layer_upper(f, n=5, radius=1.3) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("radius", [0.0, 0.7, 3.0])
def test_scores_stay_within_reach(case, radius):
    """Scores of one query differ by at most 2a in the ball."""
    attention = case.attention
    reach = score_reach(attention, radius=radius)
    assert reach.shape == (attention.heads,) and bool((reach >= 0).all())
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(20, *case.X.shape[-2:], generator=generator, dtype=F64)
    queries, keys, _ = attention.project(radius * X / X.norm(dim=-1, keepdim=True))
    scores = queries @ keys.mT
    spread = (scores.amax(-1) - scores.amin(-1)).amax((0, -1))
    assert bool((spread <= 2 * reach + 1e-12).all())
    logs = torch.tensor(log_score_reach(attention, radius), dtype=F64)
    torch.testing.assert_close(logs.exp(), reach)


@pytest.mark.parametrize("rotary", [None, torch.tensor([0.5], dtype=F64)], ids=["plain", "rotary"])
def test_reach_is_attained(rotary):
    """With a bias along the top singular vector the spread is 2a itself."""
    Q = torch.diag(torch.tensor([2.0, 0.5], dtype=F64))[None]
    K = torch.eye(2, dtype=F64)[None]
    bias = torch.tensor([[3.0, 0.0]], dtype=F64)
    f = Attention(Q, K, K, query_bias=bias, scale=1.0, rotary=rotary)
    first = torch.tensor([1.5, 0.0], dtype=F64)
    turned = first
    if rotary is not None:  # the key at position 1 undoes its rotation
        turned = torch.tensor([math.cos(0.5), -math.sin(0.5)], dtype=F64) * 1.5
    queries, keys, _ = f.project(torch.stack([first, -turned]))
    scores = (queries @ keys.mT)[0, 0]
    spread = (scores.max() - scores.min()).item()
    assert score_reach(f, radius=1.5).item() == pytest.approx(spread / 2) == (2 * 1.5 + 3) * 1.5


def test_extremes(case):
    for radius in (0.0, 1e-200, 1e5, 1e200):
        value, logarithm = (
            layer_upper(case.attention, n=6, radius=radius, log=log) for log in (False, True)
        )
        assert value > 0 and math.isfinite(logarithm)
        expected = math.exp(logarithm) if logarithm < 709.7 else math.inf
        assert value == pytest.approx(expected, rel=1e-9)
    zero = Attention(case.attention.query, case.attention.key, 0 * case.attention.value)
    assert layer_upper(zero, n=6, radius=1.0) == 0


def test_bad_input(make_case):
    attention = make_case("one head").attention
    with pytest.raises(ValueError, match=r"^radius: "):
        layer_upper(attention, n=3, radius=-1.0)
    with pytest.raises(ValueError, match=r"^n: "):
        layer_upper(attention, n=0, radius=1.0)
