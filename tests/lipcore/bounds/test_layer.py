"""Bounds of whole layers: true for every kind of layer, joined as heads are, right far out."""

import math

import pytest
import torch

from draws import F64, draw, norm
from lipcore import Attention
from lipcore.bounds import _matrices, general_upper, layer_upper, score_reach
from lipcore.bounds.layer import log_score_reach


def test_heads_by_the_letter(make_case):
    f = make_case("biases").attention
    reaches = score_reach(f, radius=1.3).tolist()
    factors = [general_upper(n=5, radius=1.0, norm_a=a, norm_v=1.0) for a in reaches]
    alone = [norm(V) * x for V, x in zip(f.value, factors, strict=True)]
    through = [norm(V) * x for V, x in zip(f.value_matrices(), factors, strict=True)]
    expected = min(norm(f.output) * math.hypot(*alone), sum(through))
    assert layer_upper(f, n=5, radius=1.3) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("radius", [0.0, 0.7, 3.0])
def test_scores_stay_within_reach(case, radius):
    """Scores of one query differ by at most 2a in the ball."""
    attention = case.attention
    reach = score_reach(attention, radius=radius)
    assert reach.shape == (attention.heads,) and bool((reach >= 0).all())
    X = draw(1, 20, *case.X.shape[-2:])
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


@pytest.mark.parametrize("size", [1e-300, 1.0, 1e300])
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (1, 6), (6, 1)])
def test_norms_are_the_largest_singular_values(shape, size):
    matrices = draw(0, 7, 2, *shape)
    matrices[0] = 0
    expected = size * torch.linalg.matrix_norm(matrices, 2)
    torch.testing.assert_close(_matrices.norms(size * matrices), expected, rtol=1e-14, atol=0)
