"""Worst-case inputs and gradient ascent."""

from __future__ import annotations

import math

import pytest
import torch

from lipcore import Attention, bounds, local_lipschitz
from lipcore.adversarial import ascend, eigenvector_pair, leader_and_crowd, worst_case_inputs


def _tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


def _draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


MATRICES = {
    "negative": -3 * torch.eye(2, dtype=torch.float64),
    "positive": 3 * torch.eye(2, dtype=torch.float64),
    "rotation": _tensor([[0, -3.0], [3, 0]]),
    "non-normal": _tensor([[1, 5.0], [0, 1]]),
    "symmetric": _tensor([[4, 1.0], [1, -0.1]]),
    "low rank": _tensor([[0, 50.0], [0, 0]]),
    "zero": torch.zeros(2, 2, dtype=torch.float64),
    "one dimension": -2 * torch.ones(1, 1, dtype=torch.float64),
    "seven dimensions": _draw(3, 7, 7),
}


def _head(A, causal=False):
    return Attention.from_matrices(A, torch.eye(len(A), dtype=A.dtype), causal=causal)


def _sigma(f, X):
    return torch.linalg.matrix_norm(f.jacobian(X).dense(), 2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MATRICES)
def test_worst_case_reaches_every_lower_bound(name, causal):
    A = MATRICES[name]
    gamma = bounds.eigen_gamma(A)[0]
    for n, radius in ((1, 1.0), (2, 1.0), (3, 0.5), (12, 1.0), (30, 1.3)):
        X = worst_case_inputs(A, n, radius, causal=causal)
        assert X.shape == (n, len(A)) and X.dtype == A.dtype
        assert (X.norm(dim=-1) <= radius * (1 + 1e-12)).all()
        sigma = _sigma(_head(A, causal), X).item()
        size = {"n": n, "radius": radius}
        floor = [bounds.masked_lower(gamma=gamma, norm_v=1.0, **size)] if causal else [
            bounds.adversarial_lower(gamma=gamma, norm_v=1.0, **size),
            bounds.score_gap_lower(A=A, V=torch.eye(len(A), dtype=A.dtype), **size),
        ]  # fmt: skip
        assert sigma >= max(floor) * (1 - 1e-9)


def test_worst_case_beats_random_inputs():
    A, n, radius = MATRICES["rotation"], 12, 1.0
    X = _draw(0, 200, n, 2)
    X = radius * X / X.norm(dim=-1, keepdim=True)
    for causal in (False, True):
        f = _head(A, causal)
        assert _sigma(f, worst_case_inputs(A, n, radius, causal=causal)) > 1.2 * _sigma(f, X).max()


def test_worst_case_uses_copies_once_one_token_is_too_few():
    """For n far above e^{g*} one token in n is seen by no one; a share of e^{−g*} is."""
    A, n = 2 / 3 * MATRICES["rotation"], 400
    X = worst_case_inputs(A, n, 1.0)
    copies = (X == X[0]).all(-1).sum().item()
    assert 1 < copies < n / 2
    value = local_lipschitz(_head(A), X, tol=1e-8).value.item()
    assert value > 2.5 * bounds.score_gap_lower(n=n, radius=1.0, A=A, V=torch.eye(2, dtype=A.dtype))
    assert value <= bounds.mean_field_upper_sharp(radius=1.0, norm_a=2.0, norm_v=1.0)


def test_worst_case_comes_within_a_small_factor_of_the_bound():
    size = {"radius": 1.0, "norm_a": 3.0, "norm_v": 1.0}
    X = worst_case_inputs(MATRICES["negative"], 500, 1.0)
    assert local_lipschitz(_head(MATRICES["negative"]), X).value > 0.7 * bounds.unified_upper_sharp(
        n=500, **size
    )


@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_closed_forms_of_two_distinct_tokens_are_exact(d):
    from lipcore.adversarial import _candidate_pairs, _first_block_norm, _shortened, _two_token_norm

    A = _draw(d, d, d)
    first, others = (x[::17] for x in _shortened(*_candidate_pairs(A)))
    first = torch.cat([first, 3 * _draw(8, 40, d)])  # pairs among which copies part
    others = torch.cat([others, 0.3 * _draw(9, 40, d)])

    def tokens(copies, n):
        counts = torch.tensor([copies, n - copies])
        return torch.stack([first, others], dim=1).repeat_interleave(counts, dim=1)

    for n, copies in ((2, 1), (5, 1), (5, 2), (6, 4)):
        found = _two_token_norm(A, first, others, torch.tensor([copies]), n)[:, 0]
        assert torch.allclose(found, _sigma(_head(A), tokens(copies, n)), rtol=1e-12)
    columns = (
        _head(A, causal=True).jacobian(tokens(1, 7)).dense()[..., :d]
    )  # what the first token does
    assert torch.allclose(
        _first_block_norm(A, first, others, 7), torch.linalg.matrix_norm(columns, 2), rtol=1e-12
    )


def test_single_precision_in_single_precision_out():
    assert worst_case_inputs(MATRICES["symmetric"].float(), 5, 1.0).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [((torch.zeros(2, 3), 2, 1.0), ValueError, "A: expected a square matrix"),
     ((torch.eye(2), 0, 1.0), ValueError, "n: expected at least 1"),
     ((torch.eye(2), 2, -1.0), ValueError, "radius: expected a number at least 0"),
     ((torch.eye(2), 2, 1e200), ValueError, "radius: expected scores within"),
     ((torch.eye(2), 2.5, 1.0), TypeError, "n: expected a whole number")],
)  # fmt: skip
def test_bad_input_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        worst_case_inputs(*arguments)


# --- ascent -----------------------------------------------------------------------------------------------------------


def test_ascent_climbs_and_stays_in_the_ball():
    f, radius = Attention.from_matrices(_draw(0, 3, 3), _draw(1, 2, 3)), 1.5
    X = _draw(2, 3, 5, 3)
    X = radius * X / X.norm(dim=-1, keepdim=True).clamp(min=1.0) / 2
    found = ascend(f, X, radius, steps=40, progress=False)
    assert found.X.shape == X.shape and found.value.shape == (3,) and found.history.shape == (41, 3)
    assert (found.history.diff(dim=0) >= 0).all()
    assert torch.equal(found.history[-1], found.value)
    assert torch.allclose(found.history[0], _sigma(f, X), rtol=1e-5)
    assert torch.allclose(found.value, _sigma(f, found.X), rtol=1e-9)
    assert (found.value > 1.2 * _sigma(f, X)).all()
    assert (found.X.norm(dim=-1) <= radius * (1 + 1e-12)).all()


def test_gradient_is_that_of_the_largest_singular_value():
    """Danskin's gradient against central differences of σ."""
    from lipcore.adversarial import _Climber, _Domain

    f, X = Attention.from_matrices(_draw(0, 2, 2), _draw(1, 2, 2)), 0.4 * _draw(2, 1, 3, 2)
    gradient = _Climber(f, _Domain.of(X, 2.0, None), X / 2.0, 0.1)._gradient() / 2.0
    step = 1e-5
    for index in range(6):
        move = torch.zeros(6, dtype=X.dtype)
        move[index] = step
        move = move.reshape(1, 3, 2)
        slope = (_sigma(f, X + move) - _sigma(f, X - move)) / (2 * step)
        assert gradient.flatten()[index].item() == pytest.approx(slope.item(), abs=1e-5)


def test_gradient_on_the_ellipsoid_is_tangent():
    from lipcore.adversarial import _Climber, _Domain

    f, y = Attention.from_matrices(_draw(0, 2, 2), _draw(1, 2, 2)), _draw(2, 1, 3, 2)
    y = y / y.norm(dim=-1, keepdim=True)
    domain = _Domain.of(math.sqrt(2) * y, None, (torch.ones(2, dtype=torch.float64), None))
    gradient = _Climber(f, domain, y, 0.1)._gradient()
    assert (gradient * y).sum(-1).abs().max() < 1e-12 < 0.1 < gradient.norm()


def test_ascent_finds_the_two_antipodal_tokens():
    """From random starts, for A = −γI, d = 1, n = 2: the supremum found by a grid over both tokens."""
    f = _head(_tensor([[-1.0]]))
    grid = torch.linspace(-1, 1, 81, dtype=torch.float64)
    pairs = torch.cartesian_prod(grid, grid)[..., None]
    found = ascend(f, 0.5 * _draw(0, 2, 1).clamp(-1, 1), 1.0, steps=80, restarts=8, progress=False)
    assert found.value >= _sigma(f, pairs).max() * (1 - 1e-3)


def test_restarts_only_help_and_are_reproducible():
    f, X = _head(_draw(0, 2, 2)), torch.zeros(4, 2, dtype=torch.float64)
    once = ascend(f, X, 2.0, steps=20, progress=False)
    many = ascend(f, X, 2.0, steps=20, restarts=5, progress=False)
    again = ascend(
        f, X, 2.0, steps=20, restarts=5, progress=False, generator=torch.Generator().manual_seed(0)
    )
    assert many.value > once.value and torch.equal(many.X, again.X)
    assert (many.history.diff(dim=0) >= 0).all() and many.history.shape == (21,)


def test_ascent_on_the_ellipsoid_of_layer_normalisation():
    d = 4
    gain, bias = _tensor([1.0, 2.0, 0.5, -1.0]), 0.1 * _draw(0, d)
    f = Attention.from_matrices(_draw(1, d, d) / 4, _draw(2, d, d))
    y = _draw(3, 2, 5, d)
    X = math.sqrt(d) * gain * y / y.norm(dim=-1, keepdim=True) + bias
    found = ascend(f, X, ellipsoid=(gain, bias), steps=40, progress=False)
    inside = ((found.X - bias) / (math.sqrt(d) * gain)).norm(dim=-1)
    assert torch.allclose(inside, torch.ones_like(inside), atol=1e-12)
    assert (found.value > 1.05 * _sigma(f, X)).all()
    assert (found.X.norm(dim=-1) <= bounds.layer_norm_radius(gain=gain, bias=bias)).all()
    without_bias = ascend(f, X - bias, ellipsoid=(gain, None), steps=2, progress=False)
    assert without_bias.value.shape == (2,)


def test_ascent_of_a_causal_layer_with_several_heads():
    f = Attention(query=_draw(0, 2, 2, 3), key=_draw(1, 2, 2, 3), value=_draw(2, 2, 2, 3), output=_draw(3, 3, 4),
                  query_bias=_draw(4, 2, 2), causal=True)  # fmt: skip
    found = ascend(f, 0.1 * _draw(5, 4, 3), 1.0, steps=30, progress=False)
    assert found.value > found.history[0] * 1.2
    assert found.value <= bounds.local_upper(f, found.X) * (1 + 1e-9)


def test_zero_layer_stays_at_zero():
    f = Attention.from_matrices(torch.eye(2), torch.zeros(2, 2))
    found = ascend(f, torch.zeros(3, 2), 1.0, steps=3, progress=False)
    assert found.value == 0 and not found.X.isnan().any()


@pytest.mark.parametrize(
    ("X", "options", "message"),
    [(torch.ones(2, 2), {"radius": 1.0}, "X: expected tokens in the ball of radius 1, got one of norm 1.414"),
     (torch.ones(2, 2), {}, "expected exactly one of the two"),
     (torch.ones(2, 2), {"radius": 2.0, "ellipsoid": (torch.ones(2), None)}, "expected exactly one of the two"),
     (2 * torch.ones(2, 2), {"ellipsoid": (torch.ones(2), None)}, "X: expected tokens on the ellipsoid"),
     (torch.ones(2, 2), {"ellipsoid": (torch.ones(3), None)}, "ellipsoid gain: expected shape"),
     (torch.ones(2, 2), {"ellipsoid": (torch.tensor([1.0, 0.0]), None)}, "gain: expected entries other than zero"),
     (torch.ones(2, 2), {"radius": 0.0}, "radius: expected a number more than 0"),
     (torch.ones(2, 2), {"radius": 2.0, "steps": -1}, "steps: expected at least 0"),
     (torch.ones(2, 2), {"radius": 2.0, "learning_rate": 0.0}, "learning_rate: expected a number more than 0"),
     (torch.ones(2, 3), {"radius": 2.0}, "X: expected tokens of dimension 2")],
)  # fmt: skip
def test_ascent_refuses_bad_input(X, options, message):
    f = Attention.from_matrices(torch.eye(2), torch.eye(2))
    with pytest.raises(ValueError, match=message):
        ascend(f, X, progress=False, **options)


def _trained_like(seed, causal, *, bias=True, output=True, d=7, k=2, p=3):
    draw = torch.Generator().manual_seed(seed)
    rand = lambda *shape: torch.randn(shape, generator=draw, dtype=torch.float64)  # noqa: E731
    return Attention(query=rand(1, k, d), key=rand(1, k, d), value=rand(1, p, d), causal=causal,
                     query_bias=rand(1, k) if bias else None, output=rand(d, p) if output else None)  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("radius", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"output": False}])
def test_the_crowds_bound_holds_and_is_what_the_leader_moves(causal, radius, options):
    for seed in range(3):
        f = _trained_like(seed, causal, **options)
        found = leader_and_crowd(f, 6, radius)
        assert found.X.norm(dim=-1).max() <= radius * (1 + 1e-12)
        dense = f.jacobian(found.X).dense().reshape(6, -1, 6, 7)
        by_leader = torch.linalg.matrix_norm(dense[1:, :, 0].flatten(0, 1), 2).item()
        assert found.lower == pytest.approx(by_leader, rel=1e-9)
        scores = f.score_matrices()[0] @ found.X[1] + f.score_offsets()[0]
        assert found.lead == pytest.approx((scores @ (found.X[0] - found.X[1])).item())


def test_a_crowd_with_a_clear_leader_has_the_rate():
    f = _trained_like(5, causal=False)
    found = leader_and_crowd(f, 400, 30.0)
    assert found.lead > math.log(400) + 10
    assert found.lower == pytest.approx(
        math.sqrt(399) * torch.linalg.matrix_norm(f.value_matrices()[0], 2).item(), rel=1e-6
    )


def test_the_crowd_refuses_what_is_no_single_head():
    f = _trained_like(0, causal=False)
    two = Attention(f.query.repeat(2, 1, 1), f.key.repeat(2, 1, 1), f.value.repeat(2, 1, 1))
    with pytest.raises(ValueError, match="one head"):
        leader_and_crowd(two, 5, 1.0)
    with pytest.raises(ValueError, match="depend on the key"):
        leader_and_crowd(Attention.from_matrices(torch.zeros(2, 2), torch.eye(2)), 5, 1.0)
    with pytest.raises(ValueError, match="n:"):
        leader_and_crowd(f, 1, 1.0)


def test_published_pair_is_an_eigenvector_of_the_head():
    draw = torch.Generator().manual_seed(1)
    signs = set()
    for _ in range(12):
        query, key = (torch.randn(3, 6, generator=draw, dtype=torch.float64) for _ in range(2))
        A = key.mT @ query / math.sqrt(3)
        x1, x2 = eigenvector_pair(query, key, 2.0)
        gamma = (x1 @ A @ x1 / (x1 @ x1)).item()
        assert (A @ x1 - gamma * x1).norm() < 1e-9
        assert x1.norm().item() == pytest.approx(2.0)
        torch.testing.assert_close(x2, -x1 if gamma < 0 else x1 / 2)
        signs.add(gamma < 0)
        real = torch.linalg.eigvals(A)
        real = real.real[real.imag.abs() < 1e-9]
        assert max(-gamma, gamma / 8) == pytest.approx(
            max(-real.min().item(), real.max().item() / 8)
        )
    assert signs == {True, False}


def test_ascent_where_gradients_are_off(randn):
    f, X = (
        Attention.from_matrices(-torch.eye(2).double(), torch.eye(2).double()),
        randn(4, 2).clamp(-0.5, 0.5),
    )
    expected = ascend(f, X, 1.0, steps=5, progress=False).value
    with torch.no_grad():
        assert torch.equal(ascend(f, X, 1.0, steps=5, progress=False).value, expected)


def test_weights_that_ask_for_gradients():
    A = torch.tensor([[-3.0]], requires_grad=True)
    assert worst_case_inputs(A, n=5, radius=1.0).shape == (5, 1)


def test_a_crowd_too_large_for_its_scores_is_refused():
    with pytest.raises(ValueError, match="radius: expected scores within range"):
        leader_and_crowd(
            Attention.from_matrices(-torch.eye(2).double(), torch.eye(2).double()),
            n=5,
            radius=1e200,
        )
