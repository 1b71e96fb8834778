"""Gradient ascent: it follows the gradient of σ, keeps to its set, and finds what is known."""

import math
from dataclasses import replace

import pytest
import torch

from draws import EYE, F64, ONE, draw, tensor
from lipcore import Attention, bounds
from lipcore.adversarial import ascend
from lipcore.bounds.normalised import Normalisation

ZERO = torch.zeros(2, dtype=F64)
UNIT = Normalisation("rms", ZERO + 1, ZERO, 0.0)


def sigma(f, X):
    return torch.linalg.matrix_norm(f.jacobian(X).dense(), 2)


def slopes(f, X, step=1e-5):
    """Central differences of σ in every entry of X (n, d)."""
    moves = step * torch.eye(X.numel(), dtype=X.dtype).reshape(-1, *X.shape)
    return ((sigma(f, X + moves) - sigma(f, X - moves)) / (2 * step)).reshape(X.shape)


def test_ascent_climbs_and_stays_in_the_ball():
    f, radius = Attention.from_matrices(draw(0, 3, 3), draw(1, 2, 3)), 1.5
    X = draw(2, 3, 5, 3)
    X = radius * X / X.norm(dim=-1, keepdim=True).clamp(min=1.0) / 2
    found = ascend(f, X, radius, steps=20, progress=False)
    assert found.X.shape == X.shape and found.value.shape == (3,) and found.history.shape == (21, 3)
    assert (found.history.diff(dim=0) >= 0).all()
    assert torch.equal(found.history[-1], found.value)
    assert torch.allclose(found.history[0], sigma(f, X), rtol=1e-5)
    assert torch.allclose(found.value, sigma(f, found.X), rtol=1e-9)
    assert (found.value > 1.2 * sigma(f, X)).all()
    assert (found.X.norm(dim=-1) <= radius * (1 + 1e-12)).all()
    with torch.no_grad():
        again = ascend(f, X, radius, steps=20, progress=False)
    assert torch.equal(again.value, found.value)


def test_the_first_step_follows_the_gradient_of_the_largest_singular_value():
    f, X = Attention.from_matrices(draw(0, 2, 2), draw(1, 2, 2)), 0.4 * draw(2, 3, 2)
    move = ascend(f, X, 2.0, steps=1, learning_rate=1e-3, progress=False).X - X
    assert move.norm(dim=-1).max().item() == pytest.approx(1e-3 * 2.0)
    expected = slopes(f, X)
    assert torch.allclose(move / move.norm(), expected / expected.norm(), atol=1e-5)


def test_on_the_ellipsoid_the_first_step_follows_the_tangent():
    """With gain one the coordinates are X/√2; only the part along the circle moves a token."""
    f, y = Attention.from_matrices(draw(0, 2, 2), draw(1, 2, 2)), draw(2, 3, 2)
    y = y / y.norm(dim=-1, keepdim=True)
    X = math.sqrt(2) * y
    found = ascend(f, X, ellipsoid=UNIT, steps=1, learning_rate=1e-4, progress=False)
    move = found.X / math.sqrt(2) - y
    assert move.norm(dim=-1).max().item() == pytest.approx(1e-4, rel=1e-3)
    radial = (slopes(f, X) * y).sum(-1, keepdim=True)
    along = slopes(f, X) - radial * y
    assert radial.norm() > 0.1
    assert torch.allclose(move / move.norm(), along / along.norm(), atol=1e-3)


@pytest.mark.parametrize("rate", [1e-4, 1.0])
def test_the_size_of_steps_adapts(rate):
    """Whatever the first step: to the supremum for A = −1, n = 2, by a grid over both tokens."""
    f, X = Attention.from_matrices(-ONE, ONE), 0.5 * draw(0, 2, 1).clamp(-1, 1)
    found = ascend(f, X, 1.0, steps=40, restarts=8, learning_rate=rate, progress=False)
    grid = torch.linspace(-1, 1, 81, dtype=F64)
    assert found.value >= sigma(f, torch.cartesian_prod(grid, grid)[..., None]).max() * (1 - 1e-3)


def test_restarts_only_help_and_are_reproducible():
    f = Attention.from_matrices(draw(0, 2, 2), EYE)
    X, options = torch.zeros(4, 2, dtype=F64), {"steps": 12, "progress": False}
    seeded = torch.Generator().manual_seed(0)
    once = ascend(f, X, 2.0, **options)
    many = ascend(f, X, 2.0, restarts=5, **options)
    again = ascend(f, X, 2.0, restarts=5, generator=seeded, **options)
    assert many.value > once.value and torch.equal(many.X, again.X)
    start = ascend(f, 0.8 * draw(3, 4, 2), 2.0, steps=0, restarts=9, progress=False).X
    assert 1.99 < start.norm(dim=-1).max() <= 2 * (1 + 1e-12)
    assert (many.history.diff(dim=0) >= 0).all() and many.history.shape == (13,)


def test_ascent_on_the_ellipsoids_of_normalisations():
    """After a LayerNorm tokens stay centred; an RMSNorm lets them leave, and reaches more."""
    gain, bias = tensor(1.0, 2.0, 0.5, -1.0), 0.1 * draw(0, 4)
    f = Attention.from_matrices(draw(1, 4, 4) / 4, draw(2, 4, 4))
    y = draw(4, 2, 5, 4)
    y = y - y.mean(-1, keepdim=True)
    X = 2.0 * gain * y / y.norm(dim=-1, keepdim=True) + bias
    off_centre, values = {}, {}
    for kind in ("layer", "rms"):
        norm = Normalisation(kind, gain, bias, 0.0)
        found = ascend(f, X, ellipsoid=norm, steps=15, progress=False)
        y = (found.X - bias) / (2.0 * gain)
        assert torch.allclose(y.norm(dim=-1), torch.ones(2, 5, dtype=F64), atol=1e-12)
        assert (found.X.norm(dim=-1) <= bounds.layer_norm_radius(gain=gain, bias=bias)).all()
        off_centre[kind], values[kind] = y.mean(-1).abs().max().item(), found.value
    assert off_centre["layer"] < 1e-12 < 0.1 < off_centre["rms"]
    assert (1.05 * sigma(f, X) < values["layer"]).all()
    assert (values["layer"] < values["rms"]).all()
    with pytest.raises(ValueError, match=r"^X: "):
        ascend(f, found.X, ellipsoid=replace(norm, kind="layer"), progress=False)


def test_zero_layer_stays_at_zero_and_progress_is_shown_where_it_is_wanted(capsys):
    f = Attention.from_matrices(torch.eye(2), torch.zeros(2, 2))
    found = ascend(f, torch.zeros(3, 2), 1.0, steps=3, progress=False)
    assert found.value == 0 and not found.X.isnan().any()
    assert not capsys.readouterr().err
    ascend(f, torch.zeros(3, 2), 1.0, steps=2)
    assert "ascent" in capsys.readouterr().err


ON_BALL = {"radius": 2.0}


@pytest.mark.parametrize(
    ("X", "options", "message"),
    [
        (EYE + 1, {"radius": 1.0}, "^X: "),
        (EYE + 1, {}, "one of the two"),
        (EYE + 1, {"radius": 9.0, "ellipsoid": UNIT}, "one of the two"),
        (2 * EYE + 1, {"ellipsoid": UNIT}, "^X: "),
        (EYE, {"ellipsoid": replace(UNIT, gain=torch.ones(3, dtype=F64))}, "^ellipsoid gain: "),
        (EYE, {"ellipsoid": replace(UNIT, bias=torch.ones(3, dtype=F64))}, "^ellipsoid bias: "),
        (EYE, {"ellipsoid": replace(UNIT, gain=EYE[0])}, "gain: "),
        (EYE, {"radius": 0.0}, "^radius: "),
        (EYE, ON_BALL | {"steps": -1}, "^steps: "),
        (EYE, ON_BALL | {"learning_rate": 0.0}, "^learning_rate: "),
        (torch.ones(2, 3, dtype=F64), ON_BALL, "^X: "),
    ],
)
def test_ascent_refuses_bad_input(X, options, message):
    with pytest.raises(ValueError, match=message):
        ascend(Attention.from_matrices(EYE, EYE), X, progress=False, **options)
