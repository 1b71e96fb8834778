r"""Bounds on Lipschitz constants of attention, on sets of inputs and at single inputs.

What a user needs first:

============================  ====================================================================
Function                      What it bounds
============================  ====================================================================
:func:`best_upper`            from above, n tokens in a ball, for a head or a layer: the least of
                              all bounds that are proved
:func:`best_lower`            from below, by inputs that reach it: a universal factor apart
:func:`local_upper`           the constant at one input, from one softmax
:func:`local_terms`           the same, head by head and term by term
:func:`change_upper`          how far the output moves if the tokens move in a ball around X
:func:`tangent_error_upper`   how far it then is from its tangent
:func:`layer_upper`           the published bound, for a whole layer
:func:`normalised_upper`      n tokens that come out of LayerNorm or RMSNorm
:func:`score_gap`             by how much a key's score can exceed the query's own: the exact
                              exponential rate of all of this
============================  ====================================================================

The lower bounds come from four families of inputs (:func:`construction_lower`,
:func:`construction_inputs`), in which equal tokens are called copies and most tokens a crowd. In
``"own"`` a query is torn between two halves of the tokens. In ``"copies"`` a crowd looks at copies
of one token, in ``"torn"`` it is torn between two tokens, and in ``"pulled"`` it looks at one token
while others pull its mean aside.

Closed forms take sizes as keyword-only arguments and return a float: ``n`` tokens of norm at most
``radius`` :math:`= R`; ``norm_a`` and ``norm_v``, the spectral norms of A and V, or A and V
themselves, of shapes (d, d) and (p, d). Where n may be left out, the bound then holds for every n
and for measures, in :math:`W_2`: this is the mean-field regime. Throughout
:math:`a = \|A\|_2 R^2` and :math:`\kappa = e^{2a}`. The closed forms are evaluated in logarithms:
``log=True`` returns the logarithm, and a value beyond the range of float64 is ``inf`` rather than
an error. A size that is negative or not finite, n below 1, and a matrix that is not finite or does
not fit raise a ValueError; a wrong type raises a TypeError.
"""

# fmt: off
# isort: off
from lipcore.bounds.ball import (
    general_upper, mean_field_upper_paper, torn_peak, torn_upper, two_dirac_peak, unified_upper,
    unified_upper_rate, unified_upper_sharp,
)
from lipcore.bounds.best import best_upper
from lipcore.bounds.causal import (
    causal_average, causal_average_norm, masked_upper, masked_upper_moments, masked_upper_rate,
)
from lipcore.bounds.change import change_upper, tangent_error_upper
from lipcore.bounds.gap import eigen_gamma, score_gap, score_gap_upper
from lipcore.bounds.large_radius_limit import LargeRadius, large_radius, large_radius_error
from lipcore.bounds.layer import layer_upper, score_reach
from lipcore.bounds.local import local_terms, local_upper, nonnegative_norm_upper
from lipcore.bounds.lower import (
    adversarial_lower, best_lower, construction_inputs, construction_lower, masked_lower,
    refined_lower, score_gap_lower,
)
from lipcore.bounds.normalised import (
    Normalisation, NormalisedReach, layer_norm_radius, norm_constants, normalise,
    normalised_reach, normalised_upper, pre_norm_jacobian,
)
# isort: on

__all__ = [
    "LargeRadius", "Normalisation", "NormalisedReach", "adversarial_lower", "best_lower",
    "best_upper", "causal_average", "causal_average_norm", "change_upper", "construction_inputs",
    "construction_lower", "eigen_gamma", "general_upper", "large_radius", "large_radius_error",
    "layer_norm_radius", "layer_upper", "local_terms", "local_upper", "masked_lower",
    "masked_upper", "masked_upper_moments", "masked_upper_rate", "mean_field_upper_paper",
    "nonnegative_norm_upper", "norm_constants", "normalise", "normalised_reach", "normalised_upper",
    "pre_norm_jacobian", "refined_lower", "score_gap", "score_gap_lower", "score_gap_upper",
    "score_reach", "tangent_error_upper", "torn_peak", "torn_upper", "two_dirac_peak",
    "unified_upper", "unified_upper_rate", "unified_upper_sharp",
]
# fmt: on
