"""Every argument that measures, their maps and their distances refuse is named."""

import math

import pytest
import torch

from draws import EYE, ONE, draw, measure, tensor, timed
from lipcore.measures import (
    DiscreteMeasure,
    TimedMeasure,
    TwoDirac,
    conditional_wasserstein,
    dense_local_constant,
    gamma_map,
    local_constant,
    masked_mean_field_attention,
    mean_field_attention,
    splitting_gain,
    wasserstein,
)

MU, TIMED, TWO = measure(0, 3, 2), timed(0, 3, 2), draw(0, 2, 1)
SINGLE = TimedMeasure(tensor(0.5), tensor([0.0, 0.0]))
LIGHT = TimedMeasure(tensor(0.0, 0.5), TWO, tensor(1e-12, 1 - 1e-12))


def refuses(name, call, error=ValueError):
    with pytest.raises(error, match=f"^{name}"):
        call()


@pytest.mark.parametrize(
    "weights",
    [tensor(1.5, -0.5), tensor(0.5, 0.4), tensor(0.5, math.nan), tensor(0.5, 0.3, 0.2),
     tensor(0.5, 0.5 + 1e-8)],
)  # fmt: skip
def test_weights(weights):
    refuses("weights: ", lambda: DiscreteMeasure(TWO, weights))
    refuses("weights: ", lambda: dense_local_constant(TWO, weights, ONE, ONE))
    for other in (torch.tensor([0.5, 0.5]), torch.tensor([1, 0]), [0.5, 0.5]):
        refuses("weights", lambda other=other: DiscreteMeasure(TWO, other), TypeError)


@pytest.mark.parametrize("shape", [(0, 1), (2, 0), (2,)])
def test_points(shape):
    refuses("points: ", lambda: DiscreteMeasure(draw(0, *shape)))
    refuses("points: ", lambda: DiscreteMeasure(tensor([math.inf], [0.0])))
    refuses("points: ", lambda: dense_local_constant(draw(0, 2, 0, 1), None, ONE, ONE))


@pytest.mark.parametrize("times", [(0.0, 1.1), (-0.1, 0.5), (0.0,), (0.0, math.nan)])
def test_times(times):
    refuses("times: ", lambda: TimedMeasure(tensor(*times), TWO))
    refuses("times: ", lambda: TimedMeasure(torch.tensor([0, 1]), TWO), TypeError)
    refuses("times", lambda: TimedMeasure(torch.tensor([0.0, 1.0]), TWO), TypeError)
    refuses("times: ", lambda: dense_local_constant(TWO, None, ONE, ONE, times=tensor(*times)))


@pytest.mark.parametrize(
    ("A", "V", "error", "name"),
    [
        (draw(0, 3, 3), EYE, ValueError, "A: "),
        (draw(0, 2, 3), EYE, ValueError, "A: "),
        (EYE, draw(0, 2, 3), ValueError, "V: "),
        (EYE, draw(0, 0, 2), ValueError, "V: "),
        (EYE.float(), EYE, TypeError, "A is"),
        (EYE, EYE.float(), TypeError, "V is"),
        (EYE * math.nan, EYE, ValueError, "A: "),
        (EYE.long(), EYE, TypeError, "A: "),
    ],
)
def test_matrices_that_do_not_fit(A, V, error, name):
    for call in (
        lambda: mean_field_attention(MU, A, V),
        lambda: masked_mean_field_attention(TIMED, A, V),
        lambda: local_constant(MU, A, V),
        lambda: splitting_gain(TIMED, A, V),
        lambda: gamma_map(MU, MU.points, A, V),
        lambda: dense_local_constant(MU.points, MU.weights, A, V),
    ):
        refuses(name, call, error)


def test_what_is_no_measure_or_lacks_its_times():
    refuses("mu: ", lambda: mean_field_attention(TIMED, EYE, EYE), TypeError)
    refuses("mu: ", lambda: masked_mean_field_attention(MU, EYE, EYE), TypeError)
    refuses("mu: ", lambda: local_constant(MU.points, EYE, EYE), TypeError)
    refuses("mu: ", lambda: splitting_gain(MU.points, EYE, EYE), TypeError)
    refuses("times: ", lambda: gamma_map(TIMED, MU.points, EYE, EYE))
    refuses("times: ", lambda: gamma_map(MU, MU.points, EYE, EYE, times=TIMED.times))
    late = tensor(0.5, 0.4, 0.6)  # before the only token there is
    refuses("times: ", lambda: gamma_map(SINGLE, MU.points, EYE, EYE, times=late))
    refuses("x: ", lambda: gamma_map(MU, draw(0, 2, 3), EYE, EYE))
    refuses(".*overflow", lambda: gamma_map(MU, 1e200 * MU.points, 1e200 * EYE, EYE))


@pytest.mark.parametrize("p", [0.5, 0, -1, math.nan, math.inf])
def test_orders_of_distances(p):
    refuses("p: ", lambda: wasserstein(MU, MU, p))
    refuses("p: ", lambda: conditional_wasserstein(TIMED, TIMED, p))


def test_pairs_of_measures():
    refuses("nu: ", lambda: wasserstein(MU, measure(1, 2, 1)))
    refuses("mu: ", lambda: wasserstein(MU.points, MU), TypeError)
    refuses("nu: ", lambda: wasserstein(MU, TIMED), TypeError)
    refuses("mu: ", lambda: conditional_wasserstein(MU, TIMED), TypeError)
    # a time of little mass is missed all the same; one without mass has no say
    refuses(
        "nu: .*marginal", lambda: conditional_wasserstein(LIGHT, TimedMeasure(tensor(0.5), TWO[:1]))
    )
    massless = TimedMeasure(tensor(0.0, 0.5), TWO, tensor(0.0, 1.0))
    assert math.isfinite(conditional_wasserstein(massless, TimedMeasure(tensor(0.5), TWO[:1])))


@pytest.mark.parametrize("times", [(0.0, 0.5, 1.0), (0.0, 0.25, 0.25), (0.0, 0.1, 0.25)])
def test_other_time_marginals(times):
    mu = TimedMeasure(tensor(0.0, 0.25, 1.0), MU.points)
    refuses(
        "nu: .*marginal",
        lambda: conditional_wasserstein(mu, TimedMeasure(tensor(*times), MU.points)),
    )


def test_two_diracs():
    for p in (0.0, 1.0, math.nan):
        refuses("p: ", lambda p=p: TwoDirac(p, 1.0, 1.0))
    refuses("radius", lambda: TwoDirac(0.5, -1.0, 1.0))
    refuses("gamma", lambda: TwoDirac(0.5, 1.0, -1.0))
    refuses(r"gamma \* radius", lambda: TwoDirac(0.5, 1e200, 1.0))
    refuses("sign", lambda: TwoDirac(0.5, 1.0, 1.0, sign=2))
    for positions in ((1.0, 2.0, 3.0), (1.0, math.inf)):
        refuses("positions", lambda x=positions: TwoDirac(0.5, 1.0, 1.0, positions=x))
    refuses("p: ", lambda: TwoDirac(tensor(0.1, 0.2), 1.0, 1.0).measure())
