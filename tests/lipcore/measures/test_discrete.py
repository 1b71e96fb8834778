"""Measures: what is one, its support, its laws at each time."""

import pytest
import torch

from draws import F64, close, draw, tensor
from lipcore.measures import DiscreteMeasure, TimedMeasure


def test_weights_are_uniform_by_default_and_may_be_rounded():
    assert torch.equal(DiscreteMeasure(draw(0, 4, 2)).weights, torch.full((4,), 0.25, dtype=F64))
    DiscreteMeasure(draw(0, 10, 1), torch.full((10,), 0.1, dtype=F64) + 5e-11)
    DiscreteMeasure(draw(0, 100_000, 1).float())


def test_support_adds_up_copies_and_drops_massless_points():
    points = tensor([2.0, 0.0], [1.0, 0.0], [2.0, 0.0], [7.0, 7.0], [-0.0, 1.0], [0.0, 1.0])
    mu = DiscreteMeasure(points, tensor(0.1, 0.2, 0.3, 0.0, 0.25, 0.15))
    support = mu.support()
    assert torch.equal(support.points, tensor([0.0, 1.0], [1.0, 0.0], [2.0, 0.0]))
    assert close(support.weights, tensor(0.4, 0.2, 0.4))
    assert mu.radius == 2  # it counts only what has mass


def test_support_keeps_copies_at_different_times_apart():
    times, points = tensor(1.0, 0.5, 0.5, 0.0), tensor([1.0], [1.0], [1.0], [3.0])
    mu = TimedMeasure(times, points, tensor(0.5, 0.2, 0.3, 0.0))
    support = mu.support()
    assert support.times.tolist() == [0.5, 1.0] and support.weights.tolist() == [0.5, 0.5]
    assert torch.equal(support.points, points[:2])
    assert mu.radius == 1


def test_a_timed_measure_falls_apart_into_laws():
    points = tensor([1.0], [2.0], [3.0], [4.0])
    mu = TimedMeasure(tensor(1.0, 0.5, 1.0, 0.0), points, tensor(0.1, 0.6, 0.3, 0.0))
    times, weights = mu.time_marginal()
    assert times.tolist() == [0.5, 1.0]
    assert close(weights, tensor(0.6, 0.4))
    assert close(mu.at(1.0).weights, tensor(0.25, 0.75))
    assert mu.at(1.0).points.flatten().tolist() == [1, 3]
    for time in (0.0, 0.75):
        with pytest.raises(ValueError, match=r"^time: "):
            mu.at(time)
