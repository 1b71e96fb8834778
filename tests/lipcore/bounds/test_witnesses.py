"""Inputs at which bounds are reached or nearly so, and layers whose bound is typed in numbers."""

import math

import numpy as np
import pytest
import torch

from draws import EYE, F64, KINDS, ONE, draw, norm, tensor
from lipcore import Attention, bounds
from lipcore.bounds import best_upper, construction_inputs
from lipcore.bounds.causal import log_moments


def is_above(found, truth):
    """An upper bound may not be below; both are logarithms or both are numbers."""
    assert found >= truth - 2e-8 * (1 + abs(truth)), f"{found} is below {truth}"


def is_equal(found, expected):
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
@pytest.mark.parametrize("n", [2, 7])
def test_bounds_hold(truth, n, masked):
    """Random inputs of the ball and its sphere, a worst case, and what ascent finds from them."""
    radius, V = 1.1, tensor([1.0, 0.3], [0.0, 0.8])
    inside = truth.to_ball(radius * draw(0, n, 2), radius)
    apart = torch.zeros(n, 2, dtype=F64)
    apart[:, 0], apart[0, 0] = radius, -radius
    starts = torch.stack([inside, radius * inside / inside.norm(dim=-1, keepdim=True), apart])
    matrices = [KINDS[kind](1.5 * draw(seed, 2, 2)) for seed, kind in enumerate(KINDS)]
    A = torch.stack(matrices).repeat_interleave(3, dim=0)
    X = truth.to_ball(starts.repeat(len(KINDS), 1, 1) + 1e-3 * inside, radius)
    start = truth.of_head(A, V, X, causal=masked)
    value = truth.ascended(lambda X: truth.of_head(A, V, X, causal=masked), X, radius, steps=25)
    assert (value > 1.2 * start).any()  # it went uphill
    for A, sigma in zip(matrices, value.view(-1, 3).amax(-1).tolist(), strict=True):
        sizes = {"radius": radius, "norm_a": norm(A), "norm_v": norm(V)}
        rate = {"A": A, "radius": radius, "norm_v": norm(V)}
        upper = [bounds.general_upper(n=n, **sizes), bounds.torn_upper(n=n, **sizes)]
        upper += [best_upper(A=A, V=V, radius=radius, n=n, causal=masked)]
        if masked:
            upper += [bounds.masked_upper(n=n, **sizes), bounds.masked_upper_moments(**sizes)]
            upper += [bounds.masked_upper_rate(**rate)]
        else:
            for bound in (bounds.unified_upper, bounds.unified_upper_sharp):
                upper += [bound(n=n, **sizes), bound(**sizes)]
            upper += [bounds.mean_field_upper_paper(**sizes)]
            upper += [bounds.unified_upper_rate(n=n, **rate), bounds.unified_upper_rate(**rate)]
        is_above(min(upper), sigma)


@pytest.mark.parametrize("a", [0.5, 1.0, 2.0, 3.0, 5.0, 8.0])
def test_unified_bounds_are_sharp(truth, a):
    """Two clusters for A = −I reach two thirds of both bounds at the best n."""
    lengths = np.unique(np.geomspace(2, 10.0 ** (1 + 2 * a / math.log(10)), 80).astype(int))
    radius = math.sqrt(a)
    reached = [truth.two_clusters(n, -radius, radius, -1.0) for n in lengths.tolist()]
    sizes = {"radius": radius, "norm_a": 1.0, "norm_v": 1.0}
    for bound in (bounds.unified_upper, bounds.unified_upper_sharp):
        ratios = [bound(n=n, **sizes) / s for n, s in zip(lengths.tolist(), reached, strict=True)]
        assert 1 - 1e-9 <= min(ratios) < 1.5


@pytest.mark.parametrize(
    ("a", "plain", "sharp", "tolerance"),
    [(1.0, 1.579, 1.336, 1e-3), (3.0, 1.389, 1.0612, 1e-3), (8.0, 1.434, 1.0005, 1e-3),
     (14.0, 1.478, 1.000005, 1e-5)],
)  # fmt: skip
def test_two_diracs_nearly_reach_the_bounds(truth, a, plain, sharp, tolerance):
    """p δ_{−1} + (1−p) δ_1 for A = −a: the sharp bound tends to what they reach."""
    odds = torch.linspace(min(a, 2 * a - 4), 2 * a + 5, 1001, dtype=F64)  # log (1−p)/p
    masses = torch.nn.functional.logsigmoid(torch.stack([-odds, odds], dim=-1))
    X = tensor([-1.0], [1.0]).expand(len(odds), 2, 1)
    reached = truth.of_head(-a * ONE, ONE, X, masses).max().item()
    size = {"radius": 1.0, "norm_a": a, "norm_v": 1.0}
    assert bounds.unified_upper(**size) / reached == pytest.approx(plain, rel=0.01)
    assert bounds.unified_upper_sharp(**size) / reached == pytest.approx(sharp, rel=tolerance)


def upper_bounds(a, sign, n=None):
    """The logarithms of all bounds without a mask for A = ±a on a line, R = 1 and V = 1."""
    sizes = {"radius": 1.0, "norm_a": a, "norm_v": 1.0, "n": n, "log": True}
    yield bounds.unified_upper(**sizes)
    yield bounds.unified_upper_sharp(**sizes)
    yield bounds.unified_upper_rate(A=sign * a * ONE, radius=1.0, norm_v=1.0, n=n, log=True)
    yield best_upper(A=sign * a * ONE, V=ONE, radius=1.0, n=n, log=True)
    if n is not None:
        yield bounds.torn_upper(**sizes)


@pytest.mark.parametrize("n", [None, 2, 10**6])
@pytest.mark.parametrize("a", [-6.0, -1.0, 0.05, 0.2])
def test_two_tokens_of_any_odds(truth, a, n):
    """Tokens t and 1 on a line, of every t and all masses."""
    t = torch.linspace(-1, 1, 41, dtype=F64)
    odds = torch.linspace(-2, 2 * abs(a) + 4, 13, dtype=F64)
    if n is not None:
        copies = torch.unique((n * torch.sigmoid(-odds)).round().clamp(min=1, max=max(n // 2, 1)))
        odds = (n - copies).log() - copies.log()
    log_masses = torch.nn.functional.logsigmoid(torch.stack([-odds, odds], dim=-1))
    X = torch.stack([t, torch.ones_like(t)], dim=-1)
    X = X[:, None].expand(-1, len(odds), -1).reshape(-1, 2, 1)
    found = truth.of_head(a * ONE, ONE, X, log_masses.repeat(len(t), 1))
    for bound in upper_bounds(abs(a), math.copysign(1, a), n):
        is_above(bound, found.max().log().item())


def rare_leader(a):
    """log of one entry of the Jacobian: Diracs ±1, A = −a, 3e^{2a} tokens a leader."""
    return a + math.log(math.sqrt(3) / 4 * (1 + 3 * a / 2))


@pytest.mark.parametrize("a", [30.0, 1e3, 1e12])
def test_far_out(a):
    """Sizes at which an exponent, or a power of a, is all that counts."""
    lengths = (None,) if a > 300 else (None, 1 + round(3 * math.exp(2 * a)))
    for n in lengths:
        for bound in upper_bounds(a, -1, n):
            is_above(bound, rare_leader(a) - 1e-9 * a)
    # under a mask leaders at −1 among tokens at 1, one for 3e^{2a} of them
    leaders = a + math.log(math.sqrt(3) / 2 * (1 + 3 * a / 2))
    sizes = {"radius": 1.0, "norm_a": a, "norm_v": 1.0, "log": True}
    line = {"A": -a * ONE, "radius": 1.0, "log": True}
    found = [bounds.masked_upper_moments(**sizes), best_upper(V=ONE, causal=True, **line)]
    if a < 300:
        found.append(bounds.masked_upper(n=10**400, **sizes))
    excess = torch.tensor(found, dtype=F64) - leaders
    assert -1e-9 * a < excess.min() and excess.max() < math.log(1.1) + 1e-9 * a
    is_above(bounds.masked_upper_rate(norm_v=1.0, **line), leaders - 1e-9 * a)


def test_cells_of_the_best_size():
    """A causal head whose gap a/4 is far below 2a."""
    a = 400.0
    t = torch.linspace(0.1, 4, 40_001, dtype=F64)
    cells = ((2 * a / t + 1).log() + t).min().item() + a / 4
    factor = log_moments(math.log(a))
    found = best_upper(A=a * ONE, V=ONE, radius=1.0, causal=True, log=True)
    is_equal(found, factor + cells / 2)


@pytest.mark.parametrize("mixing", [None, [2.0, 1.0], [1.0, 0.0]], ids=str)
def test_heads_without_scores_are_joined_exactly(mixing):
    """Averages that are in line: heads in squares, through the projection, or one of them alone."""
    three = torch.eye(3, dtype=F64)
    zero = torch.zeros(2, 3, 3, dtype=F64)
    output = None if mixing is None else torch.cat([w * three for w in mixing], dim=1)
    layer = Attention(zero, zero, torch.stack([2 * three, three]), output=output)
    X = torch.ones(4, 3, dtype=F64)
    reached = norm(layer.jacobian(X).dense())
    unit = bounds.Normalisation("rms", torch.ones(3), torch.zeros(3), 0.0)
    is_equal(best_upper(attention=layer, n=4, radius=1.0), reached)
    is_equal(bounds.local_upper(layer, X).item(), reached)
    is_equal(bounds.normalised_upper(layer, unit, n=4), reached)
    is_equal(bounds.layer_upper(layer, n=4, radius=1.0), math.sqrt(12) * reached)


def test_a_bias_alone():
    """Every query looks at the same key."""
    alone = Attention(0 * ONE[None], ONE[None], ONE[None], tensor([1e3]), scale=1.0)
    is_above(best_upper(attention=alone, radius=1.0, log=True), rare_leader(1e3) - 1e-6)


def test_masks_that_are_not_causal():
    """Everyone sees the first token alone; or three keys, or three to each side, G(1) = 1.28125."""
    first = torch.zeros(9, 9, dtype=torch.bool)
    first[:, 0] = True
    hidden = Attention.from_matrices(0 * EYE, 2 * EYE, mask=first)
    is_equal(best_upper(attention=hidden, radius=1.0), 6.0)
    for masked, reach in ((True, 3), (False, 5)):
        near = Attention.from_matrices(-ONE, 2 * ONE, causal=masked, window=3)
        expected = 2 * (math.sqrt(reach * 1.28125) + 1)
        is_equal(best_upper(attention=near, n=40, radius=1.0), expected)


def test_layers_by_the_letter():
    """One head with biases, rotary positions or a mask, typed in plain arithmetic."""
    query, key, value = (draw(seed, 1, 2, 3) for seed in range(3))
    bias_q, bias_k = draw(3, 1, 2), draw(4, 1, 2)
    R, n, v = 0.7, 6, norm(value[0])
    A = key[0].mT @ query[0] / math.sqrt(2)
    offset = key[0].mT @ bias_q[0] / math.sqrt(2)
    a = (norm(A) * R + offset.norm().item()) * R
    # with rotary positions norms are multiplied, of a query by that of a key
    q = norm(query[0]) * R + bias_q.norm().item()
    k = norm(key[0]) * R + bias_k.norm().item()
    turned = q * k / math.sqrt(2)
    kappa = math.exp(2 * turned)
    column = n * kappa / (n + kappa - 1)
    early = min(n, 1 + kappa * math.log(1 + (n - 1) / kappa))
    above = math.sqrt(kappa - 1)
    every = min(2 + above, 2 * math.exp(turned))
    every += turned * min(4 + math.sqrt(2) * above, 4 * math.exp(turned))
    parts = (query, key, value, bias_q, bias_k)
    around = Attention(*parts, rotary=tensor(1.0))
    masked = Attention(*parts, rotary=tensor(1.0), causal=True)
    weights = {"log_weights": draw(5, n)}
    is_equal(bounds.score_reach(Attention(*parts), radius=R).item(), a)
    is_equal(bounds.score_reach(around, radius=R).item(), turned)
    general = v * math.sqrt(3 * (a * a * (4 * n + 1) + n))
    is_equal(bounds.layer_upper(Attention(*parts), n=n, radius=R), general)
    for layer, length, reach, mixing in (
        (around, n, turned, (1 + turned) * math.sqrt(column)),
        (around, None, turned, (1 + turned) * math.exp(turned)),
        (masked, n, turned, (1 + turned) * math.sqrt(early)),
        (masked, None, turned, every),
        (masked, 10**40, turned, every),
        (Attention(*parts, **weights), None, a, math.sqrt(n * bounds.torn_peak(a))),
        (Attention(*parts, rotary=tensor(1.0), **weights), n, turned, (1 + turned) * math.sqrt(n)),
    ):
        is_equal(best_upper(attention=layer, n=length, radius=R), v * (mixing + reach))


def test_what_V_sees_across():
    """Nothing on a line, little of a head with a V that sees its strong side."""
    x = torch.linspace(0, 2, 200_001, dtype=F64)
    n = 50
    M = ((x + math.log(n - 1)) / (2 + 2 * x.cosh())).max().item()
    for across, A, V in (
        (0.0, 1e3 * ONE, ONE),
        (math.hypot(10, 100), torch.diag(tensor(1e3, 10.0)), torch.diag(tensor(1.0, 0.1))),
    ):
        expected = math.sqrt(n) * (1 + math.sqrt(2) * M + across / math.sqrt(2)) + 1e3
        is_equal(best_upper(A=A, V=V, n=n, radius=1.0), expected)


SHEAR = tensor([1.0, 5.0], [0.0, 1.0])
STRETCHED = 8 * SHEAR / norm(SHEAR)
OBLIQUE = tensor([1.0, 0.4], [0.0, 0.7])


@pytest.mark.parametrize("n", [2, 6, 7])
def test_what_one_torn_token_does_to_itself(n):
    """The last one, at the origin."""
    X = construction_inputs("own", STRETCHED, n, 2.0, V=OBLIQUE)
    J = Attention.from_matrices(STRETCHED, OBLIQUE).jacobian(X).dense()[-2:, -2:]
    head = {"A": STRETCHED, "V": OBLIQUE, "n": n, "radius": 2.0}
    is_equal(bounds.construction_lower("own", **head), norm(J))


@pytest.mark.parametrize("family", ["copies", "torn", "pulled"])
def test_what_the_crowd_is_moved_by(truth, family):
    """The part of the Jacobian that a proof reads: the rows of the last tokens."""
    A, V, n = STRETCHED, OBLIQUE, 90
    X = construction_inputs(family, A, n, 1.0, V=V)
    tokens, counts = torch.unique_consecutive(X, dim=0, return_counts=True)

    def layer(Y):
        return torch.softmax(Y @ A.mT @ Y.mT + counts.log(), -1) @ Y @ V.mT

    J = truth.jacobians(layer, tokens[None])[0].unflatten(0, (len(tokens), -1))[-1]
    J = J.unflatten(1, (len(tokens), -1))  # (p, tokens, d)
    lead = A @ tokens[-1] / (A @ tokens[-1]).norm()
    moved = {
        "copies": J[:, 0],
        "torn": ((J[:, 0] - J[:, 1]) @ lead)[:, None] / math.sqrt(2),
        "pulled": (J[:, 0] @ lead)[:, None],
    }[family]
    reached = math.log(norm(moved)) + math.log(counts[-1] / counts[0]) / 2
    is_equal(bounds.construction_lower(family, A=A, V=V, n=n, radius=1.0, log=True), reached)
