"""The statements under attack, each with the kinds of problem that it speaks of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lipcore import bounds
from lipcore.attention import Attention
from lipcore.lab.attack.problems import Problem
from lipcore.lab.zoo import l2_attention_map

_TOKENS, _MEASURES, _CAUSAL = ("tokens", "counts"), ("tokens", "counts", "measure"), ("causal",)


@dataclass(frozen=True)
class Contestant:
    """An upper bound that depends on the head and the ball alone.

    Attributes
    ----------
    name : str
    source : str
        "paper", "book", or author and year.
    kinds : tuple of str
        Kinds of problem of which it speaks.
    log_bound : callable
        Problem → logarithm of the bound.
    """

    name: str
    source: str
    kinds: tuple[str, ...]
    log_bound: Callable[[Problem], float]


@dataclass(frozen=True)
class LocalContestant:
    """A bound at one input: ``bound(attention, X)``, batched. Where it is known to fail, ``witness`` says where."""

    name: str
    source: str
    bound: Callable
    kinds: tuple[str, ...] = ("tokens", "causal")
    witness: str | None = None


def closed_forms() -> list[Contestant]:
    """Every bound in n, ‖V‖, the radius, and ‖A‖ or A."""
    by_norm, by_matrix = _by_norm, _by_matrix
    rows = [
        ("general_upper", "paper", ("tokens", "counts", "causal"), by_norm, True),
        ("unified_upper", "book", _TOKENS, by_norm, True),
        ("unified_upper_sharp", "book", _TOKENS, by_norm, True),
        ("unified_upper_rate", "book", _TOKENS, by_matrix, True),
        ("torn_upper", "book", ("tokens", "counts", "causal"), by_norm, True),
        ("mean_field_upper_paper", "paper", _MEASURES, by_norm, False),
        ("mean_field_upper", "book", _MEASURES, by_norm, False),
        ("mean_field_upper_sharp", "book", _MEASURES, by_norm, False),
        ("mean_field_upper_rate", "book", _MEASURES, by_matrix, False),
        ("masked_upper", "book", _CAUSAL, by_norm, True),
        ("masked_upper_rate", "book", _CAUSAL, by_matrix, False),
        ("masked_upper_moments", "book", _CAUSAL, by_norm, False),
    ]
    published = [
        Contestant(name, source, kinds, form(getattr(bounds, name), with_n))
        for name, source, kinds, form, with_n in rows
    ]
    return [*published, Contestant("best_upper", "book", (*_MEASURES, *_CAUSAL), _best)]


def local_forms() -> list[LocalContestant]:
    """Every bound that looks at the input."""
    return [
        LocalContestant("local_upper", "book", bounds.local_upper),
        LocalContestant("yudin2025_local_upper", "yudin2025", bounds.yudin2025_local_upper),
        LocalContestant("castin2024_released_compute_bound", "castin2024", bounds.castin2024_released_compute_bound,
                        ("tokens",), "A = 50 e1 e2^T, X = (e1, -e1), V = I"),
    ]  # fmt: skip


def witness_released_compute_bound() -> float:
    """Truth over the released code's ``compute_bound`` at its witness.

    Examples
    --------
    >>> round(witness_released_compute_bound(), 1)
    35.4
    """
    A = torch.tensor([[0.0, 50.0], [0.0, 0.0]], dtype=torch.float64)
    X = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    f = Attention.from_matrices(A, torch.eye(2, dtype=torch.float64))
    sigma = torch.linalg.matrix_norm(f.jacobian(X).dense(), 2)
    return (sigma / bounds.castin2024_released_compute_bound(f, X)).item()


def witness_kim2021_restated() -> float:
    """Truth over the restated bound of L2 attention at its witness.

    Examples
    --------
    >>> round(witness_kim2021_restated(), 2)
    1.67
    """
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    J = torch.func.jacrev(lambda X: l2_attention_map(X, 5 * one, one))(
        one[0].expand(2, 1).contiguous()
    )
    bound = bounds.kim2021_l2_upper_restated(n=2, head_dim=1, norms_q=[5.0], norms_v=[1.0])
    return torch.linalg.matrix_norm(J.reshape(2, 2), 2).item() / bound


def _best(problem: Problem) -> float:
    n = None if problem.kind == "measure" else problem.n
    sizes = {"radius": problem.radius, "n": n, "causal": problem.causal}
    return bounds.best_upper(A=problem.A, V=problem.V, log=True, **sizes)


def _by_norm(bound: Callable, with_n: bool) -> Callable[[Problem], float]:
    def log_bound(problem: Problem) -> float:
        count = {"n": problem.n} if with_n else {}
        return bound(
            radius=problem.radius, norm_a=problem.norm_a, norm_v=problem.norm_v, log=True, **count
        )

    return log_bound


def _by_matrix(bound: Callable, with_n: bool) -> Callable[[Problem], float]:
    def log_bound(problem: Problem) -> float:
        count = {"n": problem.n} if with_n else {}
        return bound(A=problem.A, radius=problem.radius, norm_v=problem.norm_v, log=True, **count)

    return log_bound
