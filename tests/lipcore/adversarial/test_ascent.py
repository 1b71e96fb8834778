"""Gradient ascent: it follows the gradient of σ, keeps to its set, and finds what is known."""

import math
from dataclasses import replace

import pytest
import torch

from lipcore import Attention, bounds
from lipcore.adversarial import ascend
from lipcore.bounds.normalised import Normalisation


def _draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _sigma(f, X):
    return torch.linalg.matrix_norm(f.jacobian(X).dense(), 2)


def _slopes(f, X, step=1e-5):
    """Central differences of σ in every entry of X (n, d)."""
    moves = step * torch.eye(X.numel(), dtype=X.dtype).reshape(-1, *X.shape)
    return ((_sigma(f, X + moves) - _sigma(f, X - moves)) / (2 * step)).reshape(X.shape)


def test_ascent_climbs_and_stays_in_the_ball():
    f, radius = Attention.from_matrices(_draw(0, 3, 3), _draw(1, 2, 3)), 1.5
    X = _draw(2, 3, 5, 3)
    X = radius * X / X.norm(dim=-1, keepdim=True).clamp(min=1.0) / 2
    found = ascend(f, X, radius, steps=20, progress=False)
    assert found.X.shape == X.shape and found.value.shape == (3,) and found.history.shape == (21, 3)
    assert (found.history.diff(dim=0) >= 0).all()
    assert torch.equal(found.history[-1], found.value)
    assert torch.allclose(found.history[0], _sigma(f, X), rtol=1e-5)
    assert torch.allclose(found.value, _sigma(f, found.X), rtol=1e-9)
    assert (found.value > 1.2 * _sigma(f, X)).all()
    assert (found.X.norm(dim=-1) <= radius * (1 + 1e-12)).all()


def test_the_first_step_follows_the_gradient_of_the_largest_singular_value():
    f, X = Attention.from_matrices(_draw(0, 2, 2), _draw(1, 2, 2)), 0.4 * _draw(2, 3, 2)
    move = ascend(f, X, 2.0, steps=1, learning_rate=1e-3, progress=False).X - X
    assert move.norm(dim=-1).max().item() == pytest.approx(1e-3 * 2.0)
    slopes = _slopes(f, X)
    assert torch.allclose(move / move.norm(), slopes / slopes.norm(), atol=1e-5)


def test_on_the_ellipsoid_the_first_step_follows_the_tangent():
    """With gain one the coordinates are X/√2; only the part along the circle moves a token."""
    f, y = Attention.from_matrices(_draw(0, 2, 2), _draw(1, 2, 2)), _draw(2, 3, 2)
    y = y / y.norm(dim=-1, keepdim=True)
    X = math.sqrt(2) * y
    one = torch.ones(2, dtype=torch.float64)
    ellipsoid = Normalisation("rms", one, 0 * one, 0.0)
    found = ascend(f, X, ellipsoid=ellipsoid, steps=1, learning_rate=1e-4, progress=False)
    move = found.X / math.sqrt(2) - y
    assert move.norm(dim=-1).max().item() == pytest.approx(1e-4, rel=1e-3)
    slopes = _slopes(f, X)
    along = slopes - (slopes * y).sum(-1, keepdim=True) * y
    assert (slopes * y).norm() > 0.1
    assert torch.allclose(move / move.norm(), along / along.norm(), atol=1e-3)


def test_the_size_of_steps_adapts():
    """Whatever the first step: to the supremum 1 for A = −1, n = 2."""
    one = torch.ones(1, 1, dtype=torch.float64)
    f, X = Attention.from_matrices(-one, one), 0.5 * _draw(0, 2, 1).clamp(-1, 1)
    for rate in (1e-4, 1.0):
        found = ascend(f, X, 1.0, steps=30, learning_rate=rate, progress=False)
        assert found.value.item() == pytest.approx(1.0, rel=1e-5)


def test_ascent_finds_the_two_antipodal_tokens():
    """From random starts, for A = −1, n = 2: the supremum found by a grid over both tokens."""
    one = torch.ones(1, 1, dtype=torch.float64)
    f = Attention.from_matrices(-one, one)
    grid = torch.linspace(-1, 1, 81, dtype=torch.float64)
    pairs = torch.cartesian_prod(grid, grid)[..., None]
    start = 0.5 * _draw(0, 2, 1).clamp(-1, 1)
    found = ascend(f, start, 1.0, steps=40, restarts=8, progress=False)
    assert found.value >= _sigma(f, pairs).max() * (1 - 1e-3)


def test_restarts_only_help_and_are_reproducible():
    f = Attention.from_matrices(_draw(0, 2, 2), torch.eye(2, dtype=torch.float64))
    X, options = torch.zeros(4, 2, dtype=torch.float64), {"steps": 12, "progress": False}
    seeded = torch.Generator().manual_seed(0)
    once = ascend(f, X, 2.0, **options)
    many = ascend(f, X, 2.0, restarts=5, **options)
    again = ascend(f, X, 2.0, restarts=5, generator=seeded, **options)
    assert many.value > once.value and torch.equal(many.X, again.X)
    start = ascend(f, 0.8 * _draw(3, 4, 2), 2.0, steps=0, restarts=9, progress=False).X
    assert 1.99 < start.norm(dim=-1).max() <= 2 * (1 + 1e-12)
    assert (many.history.diff(dim=0) >= 0).all() and many.history.shape == (13,)


def test_ascent_on_the_ellipsoid_of_layer_normalisation():
    d = 4
    gain, bias = torch.tensor([1.0, 2.0, 0.5, -1.0], dtype=torch.float64), 0.1 * _draw(0, d)
    f = Attention.from_matrices(_draw(1, d, d) / 4, _draw(2, d, d))
    y = _draw(3, 2, 5, d)
    X = math.sqrt(d) * gain * y / y.norm(dim=-1, keepdim=True) + bias
    norm = Normalisation("rms", gain, bias, 0.0)
    found = ascend(f, X, ellipsoid=norm, steps=15, progress=False)
    inside = ((found.X - bias) / (math.sqrt(d) * gain)).norm(dim=-1)
    assert torch.allclose(inside, torch.ones_like(inside), atol=1e-12)
    assert (found.value > 1.05 * _sigma(f, X)).all()
    assert (found.X.norm(dim=-1) <= bounds.layer_norm_radius(gain=gain, bias=bias)).all()
    norm = Normalisation("rms", gain, 0 * bias, 0.0)
    without_bias = ascend(f, X - bias, ellipsoid=norm, steps=2, progress=False)
    assert without_bias.value.shape == (2,)


def test_after_a_layer_norm_tokens_stay_centred():
    """An RMSNorm lets them leave mean zero, and with it reaches more."""
    gain, bias = torch.tensor([1.0, 2.0, 0.5, -1.0], dtype=torch.float64), 0.1 * _draw(0, 4)
    f = Attention.from_matrices(_draw(1, 4, 4) / 4, _draw(2, 4, 4))
    y = _draw(4, 5, 4)
    y = y - y.mean(-1, keepdim=True)
    X = 2.0 * gain * y / y.norm(dim=-1, keepdim=True) + bias
    reached = {}
    for kind in ("layer", "rms"):
        norm = Normalisation(kind, gain, bias, 0.0)
        found = ascend(f, X, ellipsoid=norm, steps=15, progress=False)
        y = (found.X - bias) / (2.0 * gain)
        assert torch.allclose(y.norm(dim=-1), torch.ones(5, dtype=y.dtype), atol=1e-12)
        reached[kind] = y.mean(-1).abs().max().item(), found.value.item()
    assert reached["layer"][0] < 1e-12 < 0.1 < reached["rms"][0]
    assert 1.05 * _sigma(f, X).item() < reached["layer"][1] < reached["rms"][1]
    with pytest.raises(ValueError, match=r"^X: "):
        ascend(f, found.X, ellipsoid=Normalisation("layer", gain, bias, 0.0), progress=False)


def test_ascent_of_a_causal_layer_with_several_heads():
    f = Attention(
        query=_draw(0, 2, 2, 3),
        key=_draw(1, 2, 2, 3),
        value=_draw(2, 2, 2, 3),
        output=_draw(3, 3, 4),
        query_bias=_draw(4, 2, 2),
        causal=True,
    )
    found = ascend(f, 0.1 * _draw(5, 4, 3), 1.0, steps=20, progress=False)
    assert found.value > found.history[0] * 1.2
    assert found.value <= bounds.local_upper(f, found.X) * (1 + 1e-9)


def test_zero_layer_stays_at_zero():
    f = Attention.from_matrices(torch.eye(2), torch.zeros(2, 2))
    found = ascend(f, torch.zeros(3, 2), 1.0, steps=3, progress=False)
    assert found.value == 0 and not found.X.isnan().any()


def test_ascent_where_gradients_are_off():
    eye = torch.eye(2, dtype=torch.float64)
    f, X = Attention.from_matrices(-eye, eye), _draw(0, 4, 2).clamp(-0.5, 0.5)
    expected = ascend(f, X, 1.0, steps=5, progress=False).value
    with torch.no_grad():
        assert torch.equal(ascend(f, X, 1.0, steps=5, progress=False).value, expected)


def test_progress_is_shown_where_it_is_wanted(capsys):
    f = Attention.from_matrices(torch.eye(2), torch.eye(2))
    ascend(f, torch.zeros(3, 2), 1.0, steps=2)
    assert "ascent" in capsys.readouterr().err
    ascend(f, torch.zeros(3, 2), 1.0, steps=2, progress=False)
    assert not capsys.readouterr().err


ONES = torch.ones(2)
UNIT = Normalisation("rms", ONES, 0 * ONES, 0.0)
ON_BALL = {"radius": 2.0}


@pytest.mark.parametrize(
    ("X", "options", "message"),
    [
        (torch.ones(2, 2), {"radius": 1.0}, "^X: "),
        (torch.ones(2, 2), {}, "one of the two"),
        (torch.ones(2, 2), ON_BALL | {"ellipsoid": UNIT}, "one of the two"),
        (2 * torch.ones(2, 2), {"ellipsoid": UNIT}, "^X: "),
        (torch.ones(2, 2), {"ellipsoid": replace(UNIT, gain=torch.ones(3))}, "^ellipsoid gain: "),
        (torch.ones(2, 2), {"ellipsoid": replace(UNIT, bias=torch.ones(3))}, "^ellipsoid bias: "),
        (torch.ones(2, 2), {"ellipsoid": replace(UNIT, gain=torch.eye(2)[0])}, "gain: "),
        (torch.ones(2, 2), {"radius": 0.0}, "^radius: "),
        (torch.ones(2, 2), ON_BALL | {"steps": -1}, "^steps: "),
        (torch.ones(2, 2), ON_BALL | {"learning_rate": 0.0}, "^learning_rate: "),
        (torch.ones(2, 3), ON_BALL, "^X: "),
    ],
)
def test_ascent_refuses_bad_input(X, options, message):
    f = Attention.from_matrices(torch.eye(2), torch.eye(2))
    with pytest.raises(ValueError, match=message):
        ascend(f, X, progress=False, **options)
