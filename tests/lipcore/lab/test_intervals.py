"""Baselines by intervals: exact where they say so, and bounds."""

from __future__ import annotations

import itertools

import pytest
import torch

from lab.attack.gradients import climb
from lab.intervals import interval_change, largest_mean, vertex_change
from lipcore import Attention

F64 = torch.float64


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def test_the_largest_mean_is_that_of_the_best_vertex():
    low, values = draw(0, 4, 6), draw(1, 6, 3)
    high = low + 2 * draw(2, 4, 6).abs()
    best = torch.full((4, 3), -torch.inf, dtype=F64)
    for corner in itertools.product([False, True], repeat=6):
        weights = torch.softmax(torch.where(torch.tensor(corner), high, low), dim=-1)
        best = torch.maximum(best, weights @ values)
    torch.testing.assert_close(largest_mean(low, high, values), best)


@pytest.mark.parametrize("radius", [1e-3, 0.1, 2.0])
@pytest.mark.parametrize("name", ["heads projected", "biases, causal", "mask", "log-weights"])
def test_no_attack_is_above(make_case, name, radius):
    f, X = make_case(name).attention, make_case(name).X
    start = f(X)
    best, _ = climb(lambda Y: (f(Y) - start).flatten(1).norm(dim=1), X, radius, norm="token")
    vertex, interval = vertex_change(f, X, radius), interval_change(f, X, radius)
    assert best.max() <= vertex * (1 + 1e-9)
    assert best.max() <= interval * (1 + 1e-9)


def test_constant_scores_leave_the_box_of_the_values():
    f = Attention.from_matrices(torch.zeros(2, 2, dtype=F64), torch.eye(2, dtype=F64))
    for bound in (vertex_change, interval_change):
        assert bound(f, draw(0, 4, 2), 1.0).item() == pytest.approx(8**0.5)


def test_rotary_positions_are_refused(make_case):
    for name in ("rotary", "sinks", "softcap"):
        for bound in (vertex_change, interval_change):
            with pytest.raises(ValueError, match=r"^attention: "):
                bound(make_case(name).attention, make_case(name).X, 0.1)
