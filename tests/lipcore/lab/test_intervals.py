"""Baselines by intervals: exact where they say so, and bounds."""

import itertools

import pytest
import torch

from lab.attack.gradients import climb
from lab.intervals import interval_change, largest_mean, vertex_change
from lipcore import Attention

F64 = torch.float64
BOUNDS = pytest.mark.parametrize("bound", [vertex_change, interval_change])


def test_the_largest_mean_is_that_of_the_best_vertex(randn):
    low, values = randn(4, 6), randn(6, 3)
    high = low + 2 * randn(4, 6).abs()
    corners = [
        torch.softmax(torch.where(torch.tensor(corner), high, low), dim=-1) @ values
        for corner in itertools.product([False, True], repeat=6)
    ]
    torch.testing.assert_close(largest_mean(low, high, values), torch.stack(corners).amax(0))


@pytest.mark.parametrize("radius", [1e-3, 0.1, 2.0])
@pytest.mark.parametrize("name", ["heads projected", "biases, causal", "mask", "log-weights"])
def test_no_attack_is_above(make_case, name, radius):
    f, X = make_case(name).attention, make_case(name).X
    start = f(X)
    best, _ = climb(lambda Y: (f(Y) - start).flatten(1).norm(dim=1), X, radius, norm="token")
    for bound in (vertex_change, interval_change):
        assert best.max() <= bound(f, X, radius) * (1 + 1e-9)


@BOUNDS
def test_constant_scores_leave_the_box_of_the_values(bound, randn):
    f = Attention.from_matrices(torch.zeros(2, 2, dtype=F64), torch.eye(2, dtype=F64))
    assert bound(f, randn(4, 2), 1.0).item() == pytest.approx(8**0.5)


@BOUNDS
@pytest.mark.parametrize("name", ["rotary", "sinks", "softcap"])
def test_other_scores_are_refused(make_case, bound, name):
    with pytest.raises(ValueError, match=r"^attention: "):
        bound(make_case(name).attention, make_case(name).X, 0.1)
