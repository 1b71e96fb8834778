"""One key that all the others attend to: the lower bound, and its rate."""

import math
from dataclasses import replace

import pytest
import torch

from lipcore import Attention
from lipcore.adversarial import shared_key_inputs


def _trained_like(seed, causal=False):
    draw = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    return Attention(
        query=rand(1, 2, 7),
        key=rand(1, 2, 7),
        value=rand(1, 3, 7),
        query_bias=rand(1, 2),
        output=rand(7, 3),
        causal=causal,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("radius", [0.3, 4.0])
@pytest.mark.parametrize("without", [{}, {"query_bias": None}, {"output": None}])
def test_the_bound_holds_and_is_what_the_shared_key_moves(causal, radius, without):
    for seed in range(2):
        f = replace(_trained_like(seed, causal), **without)
        found = shared_key_inputs(f, 6, radius)
        assert found.X.norm(dim=-1).max() <= radius * (1 + 1e-12)
        dense = f.jacobian(found.X).dense().reshape(6, -1, 6, 7)
        by_first = torch.linalg.matrix_norm(dense[1:, :, 0].flatten(0, 1), 2).item()
        assert found.lower == pytest.approx(by_first, rel=1e-9)
        scores = f.score_matrices()[0] @ found.X[1] + f.score_offsets()[0]
        assert found.lead == pytest.approx((scores @ (found.X[0] - found.X[1])).item())


def test_with_a_clear_lead_it_has_the_rate():
    f = _trained_like(5)
    found = shared_key_inputs(f, 400, 30.0)
    assert found.lead > math.log(400) + 10
    norm_v = torch.linalg.matrix_norm(f.value_matrices()[0], 2).item()
    assert found.lower == pytest.approx(math.sqrt(399) * norm_v, rel=1e-6)


def test_what_is_no_single_head_or_too_large_is_refused():
    f = _trained_like(0)
    eye = torch.eye(2, dtype=torch.float64)
    two = Attention(f.query.repeat(2, 1, 1), f.key.repeat(2, 1, 1), f.value.repeat(2, 1, 1))
    band = replace(f, mask=torch.ones(5, 5, dtype=torch.bool))
    for head in (two, band, replace(f, log_weights=torch.zeros(5, dtype=torch.float64))):
        with pytest.raises(ValueError, match=r"^head: "):
            shared_key_inputs(head, 5, 1.0)
    with pytest.raises(ValueError, match="depend on the key"):
        shared_key_inputs(Attention.from_matrices(0 * eye, eye), 5, 1.0)
    with pytest.raises(ValueError, match=r"^n:"):
        shared_key_inputs(f, 1, 1.0)
    with pytest.raises(ValueError, match=r"^radius: "):
        shared_key_inputs(Attention.from_matrices(-eye, eye), 5, 1e200)
