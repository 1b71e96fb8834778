r"""Bounds of the (local) Lipschitz constant of attention: each function is one statement of the theory.

Throughout :math:`a = \|A\|_2 R^2` and :math:`\kappa = e^{2a}`. Every closed form is worked out in logarithms:
``log=True`` returns the logarithm, and a value past float64's range is ``inf``, never an error.
"""

from lipcore.bounds.closed_form import (
    general_upper,
    layer_norm_radius,
    masked_upper,
    mean_field_upper,
    mean_field_upper_paper,
    unified_upper,
)
from lipcore.bounds.gap import (
    eigen_gamma,
    masked_upper_rate,
    mean_field_upper_rate,
    score_gap,
    score_gap_lower,
    score_gap_upper,
    unified_upper_rate,
)
from lipcore.bounds.l2 import l2_attention_upper
from lipcore.bounds.layer import layer_upper, score_reach
from lipcore.bounds.local import local_terms, local_upper, nonnegative_norm_upper
from lipcore.bounds.lower import adversarial_lower, masked_lower, refined_lower
from lipcore.bounds.rivals import (
    castin2024_released_compute_bound,
    emadi2026_softmax_norm,
    emadi2026_token_upper,
    kim2021_l2_upper,
    kim2021_l2_upper_restated,
    softmax_norm_upper,
    yudin2025_local_upper,
)
from lipcore.bounds.sharp import (
    masked_upper_rate_sharp,
    masked_upper_sharp,
    mean_field_upper_rate_sharp,
    mean_field_upper_sharp,
    two_dirac_peak,
    unified_upper_sharp,
)
from lipcore.bounds.torn import torn_inputs, torn_lower, torn_peak, torn_upper

__all__ = [
    "adversarial_lower",
    "castin2024_released_compute_bound",
    "eigen_gamma",
    "emadi2026_softmax_norm",
    "emadi2026_token_upper",
    "general_upper",
    "kim2021_l2_upper",
    "kim2021_l2_upper_restated",
    "l2_attention_upper",
    "layer_norm_radius",
    "layer_upper",
    "local_terms",
    "local_upper",
    "masked_lower",
    "masked_upper",
    "masked_upper_rate",
    "masked_upper_rate_sharp",
    "masked_upper_sharp",
    "mean_field_upper",
    "mean_field_upper_paper",
    "mean_field_upper_rate",
    "mean_field_upper_rate_sharp",
    "mean_field_upper_sharp",
    "nonnegative_norm_upper",
    "refined_lower",
    "score_gap",
    "score_gap_lower",
    "score_gap_upper",
    "score_reach",
    "softmax_norm_upper",
    "torn_inputs",
    "torn_lower",
    "torn_peak",
    "torn_upper",
    "two_dirac_peak",
    "unified_upper",
    "unified_upper_rate",
    "unified_upper_sharp",
    "yudin2025_local_upper",
]
