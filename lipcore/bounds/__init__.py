r"""Bounds on Lipschitz constants of attention, on sets of inputs and at single inputs.

======================  ==========================================================================
Module                  What it holds
======================  ==========================================================================
``best``                the least of all upper bounds that hold for a head or a layer
``sequences``           upper bounds for n tokens in a ball: general, unified and sharp forms
``rows``                the largest norm of one row of the Jacobian, on which the sharp forms rest
``mean_field``          upper bounds for measures in a ball, and so for any number of tokens
``lower``               lower bounds from one leader, the token that all others look at
``copies``              lower bounds from leaders with copies, and the best of all
``gap``                 the score gap of A, which sets the exact exponential rate
``large_radius_limit``  what the Jacobian becomes when tokens are scaled up
``masked``              upper bounds with a causal mask, from Hardy's inequality
``layer``               upper bounds for a layer with heads, biases, rotary positions, projection
``normalised``          upper bounds for tokens that come out of LayerNorm or RMSNorm
``local``               the local bound, an upper bound at one input
``change``              upper bounds on how far the outputs move under a change of finite size
======================  ==========================================================================

Closed forms take sizes as keyword-only arguments and return a float: ``n`` tokens of norm at most
``radius`` :math:`= R`; ``norm_a`` and ``norm_v``, the spectral norms of A and V, or A and V
themselves, of shapes (d, d) and (p, d). Throughout :math:`a = \|A\|_2 R^2` and
:math:`\kappa = e^{2a}`. The closed forms are evaluated in logarithms: ``log=True`` returns the
logarithm, and a value beyond the range of float64 is ``inf`` rather than an error. A size that is
negative or not finite, n below 1, and a matrix that is not finite or does not fit raise a
ValueError; a wrong type raises a TypeError.
"""

from lipcore.bounds.best import best_upper
from lipcore.bounds.change import change_upper, tangent_error_upper
from lipcore.bounds.copies import (
    best_lower,
    copies_inputs,
    copies_lower,
    own_inputs,
    own_lower,
    pulled_inputs,
    pulled_lower,
    torn_inputs,
    torn_lower,
)
from lipcore.bounds.gap import eigen_gamma, score_gap, score_gap_upper
from lipcore.bounds.large_radius_limit import LargeRadius, large_radius, large_radius_error
from lipcore.bounds.layer import layer_upper, score_reach
from lipcore.bounds.local import local_terms, local_upper, nonnegative_norm_upper
from lipcore.bounds.lower import (
    adversarial_lower,
    masked_lower,
    refined_lower,
    score_gap_lower,
)
from lipcore.bounds.masked import (
    CausalAverage,
    causal_average_norm,
    masked_upper,
    masked_upper_moments,
    masked_upper_rate,
    row_moment,
)
from lipcore.bounds.mean_field import (
    mean_field_upper,
    mean_field_upper_paper,
    mean_field_upper_rate,
    mean_field_upper_sharp,
)
from lipcore.bounds.normalised import (
    Normalisation,
    NormalisedReach,
    PreNormJacobian,
    largest_affine_norm,
    layer_norm_radius,
    norm_constants,
    normalise,
    normalised_reach,
    normalised_upper,
)
from lipcore.bounds.rows import torn_peak, two_dirac_peak
from lipcore.bounds.sequences import (
    general_upper,
    torn_upper,
    unified_upper,
    unified_upper_rate,
    unified_upper_sharp,
)

__all__ = [
    "CausalAverage",
    "LargeRadius",
    "Normalisation",
    "NormalisedReach",
    "PreNormJacobian",
    "adversarial_lower",
    "best_lower",
    "best_upper",
    "causal_average_norm",
    "change_upper",
    "copies_inputs",
    "copies_lower",
    "eigen_gamma",
    "general_upper",
    "large_radius",
    "large_radius_error",
    "largest_affine_norm",
    "layer_norm_radius",
    "layer_upper",
    "local_terms",
    "local_upper",
    "masked_lower",
    "masked_upper",
    "masked_upper_moments",
    "masked_upper_rate",
    "mean_field_upper",
    "mean_field_upper_paper",
    "mean_field_upper_rate",
    "mean_field_upper_sharp",
    "nonnegative_norm_upper",
    "norm_constants",
    "normalise",
    "normalised_reach",
    "normalised_upper",
    "own_inputs",
    "own_lower",
    "pulled_inputs",
    "pulled_lower",
    "refined_lower",
    "row_moment",
    "score_gap",
    "score_gap_lower",
    "score_gap_upper",
    "score_reach",
    "tangent_error_upper",
    "torn_inputs",
    "torn_lower",
    "torn_peak",
    "torn_upper",
    "two_dirac_peak",
    "unified_upper",
    "unified_upper_rate",
    "unified_upper_sharp",
]
