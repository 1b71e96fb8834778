"""Rounding inside a layer: stages put together again, predictions against dense Jacobians and measured moves."""

import pytest
import torch

from draws import F64, draw
from lab.precision import SOURCES, measured, predicted, stage
from lab.rounding import largest_error
from lipcore import Attention


def layer(seed=0, d=24, heads=3, k=8):
    shape = (heads, k, d)
    return Attention(
        query=draw(seed, *shape) / 4,
        key=draw(seed + 1, *shape) / 4,
        value=draw(seed + 2, *shape),
        key_bias=draw(seed + 3, heads, k),
        output=draw(seed + 4, d, heads * k),
        causal=seed % 2 == 0,
        rotary=torch.tensor([1.0, 0.3, 0.1, 0.03], dtype=F64),
    )


@pytest.mark.parametrize("source", SOURCES)
def test_a_stage_gives_the_layer(source):
    f, X = layer(), draw(9, 7, 24)
    z, g = stage(f, X, source)
    torch.testing.assert_close(g(*z), f(X), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("source", ["tokens", "keys", "scores", "values"])
def test_prediction_is_the_frobenius_norm(source, generator):
    """Row by row, of the dense derivative with its columns times the deviations."""
    f, X = layer(d=4, k=8, heads=1), draw(9, 3, 4)
    z, g = stage(f, X, source)
    jacobians = torch.autograd.functional.jacobian(g, z)
    squares = 0
    for part, J in zip(z, jacobians, strict=True):
        scaled = J.flatten(2) * (largest_error(part, torch.bfloat16).flatten() / 3**0.5)
        squares = squares + scaled.square().sum((1, 2))
    found = predicted((z, g), torch.bfloat16, generator=generator, probes=80)
    torch.testing.assert_close(found, squares.sqrt(), rtol=0.25, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8], ids=str)
@pytest.mark.parametrize("source", SOURCES)
def test_prediction_is_right_on_random_layers(source, dtype, generator):
    ratios = []
    for seed in (0, 5):
        at = stage(layer(seed), draw(seed + 90, 16, 24), source)
        expected = predicted(at, dtype, generator=generator).norm()
        ratios.append(measured(at, dtype).norm() / expected)
    assert 0.8 < torch.stack(ratios).square().mean().sqrt() < 1.25, ratios


def test_equal_numbers_have_equal_errors(generator):
    """A sum of copies is rounded as one number, and of opposites not at all."""

    def total(y):
        return y.sum(-1, keepdim=True)

    z = torch.full((1, 64), 1.001, dtype=F64)
    same = predicted(((z,), total), torch.bfloat16, generator=generator)
    torch.testing.assert_close(same, 64 * largest_error(z[:, 0], torch.bfloat16) / 3**0.5)
    opposite = torch.cat([z, -z], dim=-1)
    none = predicted(((opposite,), total), torch.bfloat16, generator=generator)
    assert none.item() == pytest.approx(0, abs=1e-15)


def test_eight_bits_have_one_scale():
    z = torch.tensor([[254.0, 1.2, 0.9]], dtype=F64)
    move = measured(((z,), lambda y: y), torch.int8)
    torch.testing.assert_close(move, torch.tensor([[0.0, 0.8, -0.9]], dtype=F64))
