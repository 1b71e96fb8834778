"""Attempts to break every bound of :mod:`lipcore.bounds`: the truth is held against each on many inputs.

``python -m lipcore.lab.attack`` runs it; ``--replay ARENA SEED INDEX`` runs one problem again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from tqdm import tqdm

from lipcore._checks import check_count
from lipcore.lab.attack.arenas import ARENAS, Outcome
from lipcore.lab.attack.contestants import witness_kim2021_restated, witness_released_compute_bound

__all__ = ["KNOWN_FAILURES", "TOLERANCE", "Outcome", "Row", "attack", "replay"]

#: A ratio above 1 + TOLERANCE is no rounding error.
TOLERANCE = 1e-9
#: Formulas that are no bounds: their witness, and what truth over formula is there.
KNOWN_FAILURES: dict[str, tuple[str, Callable[[], float]]] = {
    "castin2024_released_compute_bound": (
        "A = 50 e1 e2^T, V = I, X = (e1, -e1)",
        witness_released_compute_bound,
    ),
    "kim2021_l2_upper_restated": (
        "n = 2 equal tokens, d = k = 1, Q = 5, V = 1",
        witness_kim2021_restated,
    ),
}
#: Problems of each arena for one hundred of the main one.
_SHARES = {"main": 100, "lower": 100, "layer": 20, "l2": 20, "softmax": 5}


@dataclass(frozen=True)
class Row:
    """What the attack found out about one bound.

    Attributes
    ----------
    bound, source : str
    tries : int
        Inputs at which it was held against the truth.
    ratio : float
        Largest truth over upper bound, or lower bound over truth: at most one if the bound holds.
    rough_ratio : float
        The same among problems with a ≥ 1: at a = 0 attention is an average, and most bounds are exact.
    status : {"holds", "fails", "known failure"}
    where, replay : str
        The problem of the largest ratio, and the arguments that run it again.
    """

    bound: str
    source: str
    tries: int
    ratio: float
    rough_ratio: float
    status: str
    where: str
    replay: str


def attack(
    *, problems: int = 1000, seed: int = 0, arenas: Mapping[str, Callable[[int, int], Iterator[Outcome]]] | None = None,
    progress: bool = True,
) -> list[Row]:  # fmt: skip
    """Attack every bound.

    Parameters
    ----------
    problems : int
        Problems of the main arena, about a hundred inputs each; the other arenas get their share.
    seed : int
    arenas : mapping of str to callable, optional
        What to run instead of ``lipcore.lab.attack.arenas.ARENAS``.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    list of Row
        One a bound, in the order in which they were met.

    Raises
    ------
    ValueError, TypeError
        If ``problems`` is not a whole number of at least one.

    Examples
    --------
    >>> rows = attack(problems=2, progress=False)
    >>> all(row.status != "fails" for row in rows)
    True
    """
    check_count("problems", problems)
    arenas = ARENAS if arenas is None else arenas
    plan = [
        (name, index)
        for name in arenas
        for index in range(max(1, problems * _SHARES.get(name, 100) // 100))
    ]
    found: dict[str, list[tuple[Outcome, str]]] = {}
    with _one_thread():
        for name, index in tqdm(plan, disable=not progress, desc="attack", leave=False):
            for outcome in arenas[name](seed, index):
                found.setdefault(outcome.bound, []).append((outcome, f"{name} {seed} {index}"))
    return [_row(bound, outcomes) for bound, outcomes in found.items()]


def replay(arena: str, seed: int, index: int) -> list[Outcome]:
    """Run one problem again.

    Parameters
    ----------
    arena : str
        A key of ``lipcore.lab.attack.arenas.ARENAS``.
    seed, index : int

    Returns
    -------
    list of Outcome

    Raises
    ------
    ValueError
        If there is no such arena.

    Examples
    --------
    >>> replay("softmax", 0, 3) == replay("softmax", 0, 3)
    True
    """
    if arena not in ARENAS:
        raise ValueError(f"arena: expected one of {', '.join(ARENAS)}, got {arena!r}")
    return list(ARENAS[arena](seed, index))


@contextmanager
def _one_thread() -> Iterator[None]:
    """The matrices are small: threads would wait for one another more than work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _row(bound: str, outcomes: list[tuple[Outcome, str]]) -> Row:
    worst, where = max(outcomes, key=lambda pair: pair[0].ratio)
    tries, ratio = sum(outcome.tries for outcome, _ in outcomes), worst.ratio
    rough = max((outcome.ratio for outcome, _ in outcomes if outcome.rough), default=0.0)
    if bound in KNOWN_FAILURES:
        place, witness = KNOWN_FAILURES[bound]
        if witness() > ratio:
            return Row(
                bound,
                worst.source,
                tries + 1,
                witness(),
                witness(),
                "known failure",
                place,
                "witness",
            )
        return Row(
            bound,
            worst.source,
            tries,
            ratio,
            rough,
            "known failure",
            f"{worst.where}; witness: {place}",
            where,
        )
    status = "holds" if ratio <= 1 + TOLERANCE else "fails"
    return Row(bound, worst.source, tries, ratio, rough, status, worst.where, where)
