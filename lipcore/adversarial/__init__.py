"""Inputs with a large local constant, by the constructions of the theory or by gradient ascent.

The local constant at one input of a set is a *lower* bound of the Lipschitz constant on the set
(:prf:ref:`thm-lip-local`). Arguments that do not fit, are not finite or out of range raise a
ValueError; a wrong type raises a TypeError.
"""

# fmt: off
# isort: off
from lipcore.adversarial.ascent import Ascent, ascend
from lipcore.adversarial.inputs import (
    SharedKey, eigenvector_inputs, reduced_scores, score_gap_inputs, shared_key_inputs,
    worst_case_inputs,
)
# isort: on

__all__ = [
    "Ascent", "SharedKey", "ascend", "eigenvector_inputs", "reduced_scores", "score_gap_inputs",
    "shared_key_inputs", "worst_case_inputs",
]
# fmt: on
