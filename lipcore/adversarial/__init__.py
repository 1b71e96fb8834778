"""Inputs with a large local constant, by the constructions of the theory or by gradient ascent.

The local constant at one input of a set is a *lower* bound of the Lipschitz constant on the set
(:prf:ref:`thm-lip-local`).
"""

from lipcore.adversarial.ascent import Ascent, ascend
from lipcore.adversarial.pairs import eigenvector_inputs, reduced_scores, score_gap_inputs
from lipcore.adversarial.shared_key import SharedKey, shared_key_inputs
from lipcore.adversarial.worst_case import worst_case_inputs

__all__ = [
    "Ascent",
    "SharedKey",
    "ascend",
    "eigenvector_inputs",
    "reduced_scores",
    "score_gap_inputs",
    "shared_key_inputs",
    "worst_case_inputs",
]
