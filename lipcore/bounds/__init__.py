r"""Bounds of the (local) Lipschitz constant of attention: each function is one statement of the theory.

Throughout :math:`a = \|A\|_2 R^2` and :math:`\kappa = e^{2a}`. Every closed form is worked out in logarithms:
``log=True`` returns the logarithm, and a value past float64's range is ``inf``, never an error.
"""

from lipcore.bounds.closed_form import (
    general_upper,
    masked_upper,
    mean_field_upper,
    mean_field_upper_paper,
    unified_upper,
)
from lipcore.bounds.layer import layer_upper, score_reach
from lipcore.bounds.local import local_upper, nonnegative_norm_upper

__all__ = [
    "general_upper",
    "layer_upper",
    "local_upper",
    "masked_upper",
    "mean_field_upper",
    "mean_field_upper_paper",
    "nonnegative_norm_upper",
    "score_reach",
    "unified_upper",
]
