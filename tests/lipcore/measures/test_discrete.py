"""Measures: what is one, its support, its laws at each time."""

import math

import pytest
import torch

from lipcore.measures import DiscreteMeasure, TimedMeasure
from random_measures import F64, close, draw, tensor


def test_weights_default_to_uniform():
    assert torch.equal(DiscreteMeasure(draw(0, 4, 2)).weights, torch.full((4,), 0.25, dtype=F64))


@pytest.mark.parametrize(
    ("points", "weights", "message"),
    [
        (draw(0, 2, 1), tensor(1.5, -0.5), "^weights: "),
        (draw(0, 2, 1), tensor(0.5, 0.4), "^weights: "),
        (draw(0, 3, 1), tensor(0.916, 0.009, 0.074), "^weights: "),
        (draw(0, 2, 1), tensor(0.5, math.nan), "^weights: "),
        (draw(0, 2, 1), tensor(0.5, 0.3, 0.2), "^weights: "),
        (draw(0, 0, 1), None, "^points: "),
        (draw(0, 2, 0), None, "^points: "),
        (draw(0, 2), None, "^points: "),
        (tensor([math.inf], [0.0]), None, "^points: "),
    ],
)
def test_a_measure_that_is_none_is_refused(points, weights, message):
    with pytest.raises(ValueError, match=message):
        DiscreteMeasure(points, weights)


@pytest.mark.parametrize("weights", [torch.tensor([0.5, 0.5]), torch.tensor([1, 0]), [0.5, 0.5]])
def test_weights_of_another_kind_are_refused(weights):
    with pytest.raises(TypeError, match="weights"):
        DiscreteMeasure(draw(0, 2, 1), weights)


def test_rounding_of_the_sum_is_no_error():
    DiscreteMeasure(draw(0, 10, 1), torch.full((10,), 0.1, dtype=F64) + 5e-11)
    DiscreteMeasure(draw(0, 100_000, 1).float())
    with pytest.raises(ValueError, match="weights"):
        DiscreteMeasure(draw(0, 10, 1), torch.full((10,), 0.1, dtype=F64) + 1e-9)


@pytest.mark.parametrize(
    ("times", "error", "message"),
    [
        (tensor(0.0, 1.1), ValueError, "^times: "),
        (tensor(-0.1, 0.5), ValueError, "^times: "),
        (tensor(0.0), ValueError, "^times: "),
        (tensor(0.0, math.nan), ValueError, "^times: "),
        (torch.tensor([0, 1]), TypeError, "^times: "),
        (torch.tensor([0.0, 1.0]), TypeError, "^times"),
    ],
)
def test_times_outside_the_interval_are_refused(times, error, message):
    with pytest.raises(error, match=message):
        TimedMeasure(times, draw(0, 2, 1))


def test_support_adds_up_copies_and_drops_massless_points():
    points = tensor([2.0, 0.0], [1.0, 0.0], [2.0, 0.0], [7.0, 7.0], [-0.0, 1.0], [0.0, 1.0])
    support = DiscreteMeasure(points, tensor(0.1, 0.2, 0.3, 0.0, 0.25, 0.15)).support()
    assert torch.equal(support.points, tensor([0.0, 1.0], [1.0, 0.0], [2.0, 0.0]))
    assert close(support.weights, tensor(0.4, 0.2, 0.4))


def test_support_keeps_copies_at_different_times_apart():
    times, points = tensor(1.0, 0.5, 0.5, 0.0), tensor([1.0], [1.0], [1.0], [1.0])
    support = TimedMeasure(times, points, tensor(0.5, 0.2, 0.3, 0.0)).support()
    assert support.times.tolist() == [0.5, 1.0] and support.weights.tolist() == [0.5, 0.5]
    assert torch.equal(support.points, points[:2])


def test_the_radius_counts_only_what_has_mass():
    points, weights = tensor([3.0, 4.0], [10.0, 0.0]), tensor(1.0, 0.0)
    assert DiscreteMeasure(points, weights).radius == 5
    assert TimedMeasure(tensor(0.0, 0.0), points, weights).radius == 5


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
