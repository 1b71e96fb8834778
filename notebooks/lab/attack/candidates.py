"""The bounds under attack, each with the kinds of problem to which it applies."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lab import rivals
from lab.attack.problems import KINDS, Problem
from lab.attack.truth import frobenius_norm, reverse_mode_jacobian
from lab.zoo import l2_attention_map
from lipcore import bounds
from lipcore.attention import Attention

_SEQUENCES = ("tokens", "counts", "causal")
_MEASURES = ("tokens", "counts", "measure")
#: Bounds in n, ‖V‖, the radius, and ‖A‖ or A: name, source, kinds of problem.
_CLOSED_FORMS = (
    ("general_upper", "paper", _SEQUENCES),
    ("unified_upper", "book", _MEASURES),
    ("unified_upper_sharp", "book", _MEASURES),
    ("unified_upper_rate", "book", _MEASURES),
    ("torn_upper", "book", _SEQUENCES),
    ("mean_field_upper_paper", "paper", _MEASURES),
    ("masked_upper", "book", ("causal",)),
    ("masked_upper_rate", "book", ("causal",)),
    ("masked_upper_moments", "book", ("causal",)),
    ("best_upper", "book", KINDS),
)


class Candidate(NamedTuple):
    """An upper bound that depends on the head and the ball alone."""

    name: str
    source: str  # "paper", "book", or author and year
    kinds: tuple[str, ...]  # of problem, to which it applies
    log_bound: Callable[[Problem], float]  # the logarithm of the bound


class LocalCandidate(NamedTuple):
    """An upper bound at one input, of plain tokens: ``bound(attention, X)``, batched."""

    name: str
    source: str
    bound: Callable[[Attention, Tensor], Tensor]
    kinds: tuple[str, ...] = ("tokens", "causal")


def closed_forms() -> list[Candidate]:
    """Return every bound in n, ‖V‖, the radius, and ‖A‖ or A."""
    return [Candidate(*one, partial(_log_bound, getattr(bounds, one[0]))) for one in _CLOSED_FORMS]


def _log_bound(bound: Callable[..., float], problem: Problem) -> float:
    """Pass to ``bound`` those of the problem's quantities that it takes; a measure has no n."""
    wanted = inspect.signature(bound).parameters.keys() & vars(problem).keys()
    sizes = {name: getattr(problem, name) for name in wanted}
    if problem.kind == "measure":
        sizes.pop("n", None)
    return bound(log=True, **sizes)


def local_forms() -> list[LocalCandidate]:
    """Return every bound that depends on the input."""
    released = rivals.castin2024_released_compute_bound
    return [
        LocalCandidate("local_upper", "book", bounds.local_upper),
        LocalCandidate("yudin2025_local_upper", "yudin2025", rivals.yudin2025_local_upper),
        LocalCandidate(released.__name__, "castin2024", released, ("tokens",)),
    ]


def _witness_released() -> float:
    A = torch.tensor([[0.0, 50.0], [0.0, 0.0]], dtype=torch.float64)
    X = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    f = Attention.from_matrices(A, torch.eye(2, dtype=torch.float64))
    sigma = torch.linalg.matrix_norm(f.jacobian(X).dense(), 2)
    return (sigma / rivals.castin2024_released_compute_bound(f, X)).item()


def _witness_restated() -> float:
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    equal_tokens = one.repeat(1, 2, 1)
    J = reverse_mode_jacobian(lambda X: l2_attention_map(X, 5 * one, one), equal_tokens)
    bound = rivals.kim2021_l2_upper_restated(n=2, head_dim=1, norms_q=[5.0], norms_v=[1.0])
    return frobenius_norm(J).item() / bound


#: Formulas that are no bounds, each with its witness and the ratio of truth and formula there.
KNOWN_FAILURES: dict[str, tuple[str, Callable[[], float]]] = {
    "castin2024_released_compute_bound": (
        "A = 50 e1 e2^T, V = I, X = (e1, -e1)",
        _witness_released,
    ),
    "kim2021_l2_upper_restated": ("n = 2 equal tokens, d = k = 1, Q = 5, V = 1", _witness_restated),
}
