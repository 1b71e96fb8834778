r"""Attention on measures: mean-field maps, optimal transport, local constants and mass splitting.

A sequence of tokens is a measure :math:`\mu = \sum_i w_i \delta_{x_i}`; attention pushes it forward
through a map that depends on it, :math:`F(\mu) = (\Gamma_\mu)_\sharp \mu`. A weight stands for any
number of copies (:prf:ref:`prop-mt-dictionary`). Arguments that do not fit, are not finite or out of
range raise a ValueError; a wrong type raises a TypeError.
"""

# fmt: off
# isort: off
from lipcore.measures.discrete import DiscreteMeasure, TimedMeasure
from lipcore.measures.local import (
    dense_local_constant, dense_splitting_gain, local_constant, splitting_gain,
)
from lipcore.measures.mean_field import (
    gamma_derivative, gamma_map, masked_mean_field_attention, mean_field_attention,
)
from lipcore.measures.transport import conditional_wasserstein, transport_plan, wasserstein
from lipcore.measures.two_dirac import TwoDirac
# isort: on

__all__ = [
    "DiscreteMeasure", "TimedMeasure", "TwoDirac", "conditional_wasserstein",
    "dense_local_constant", "dense_splitting_gain", "gamma_derivative", "gamma_map",
    "local_constant", "masked_mean_field_attention", "mean_field_attention", "splitting_gain",
    "transport_plan", "wasserstein",
]
# fmt: on
