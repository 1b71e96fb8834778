"""Attempts to break every bound of :mod:`lipcore.bounds`: ``python -m lab.attack`` runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tqdm import tqdm

from lab._threads import one_thread
from lab.attack.candidates import KNOWN_FAILURES
from lab.attack.problems import Outcome
from lab.attack.settings import SETTINGS

__all__ = ["KNOWN_FAILURES", "TOLERANCE", "Outcome", "Row", "attack", "replay"]

#: A ratio above 1 + TOLERANCE is no rounding error.
TOLERANCE = 1e-9
#: The number of problems of each setting for one hundred heads, if it is another one.
_SHARES = {"layer": 20, "l2": 20, "softmax": 5, "weighted": 5, "ball": 10, "rounding": 10}


class Row(NamedTuple):
    """The result of the attack on one bound."""

    bound: str
    source: str
    tries: int  # inputs at which the bound was compared with the truth
    ratio: float  # the largest of truth over upper bound, or lower bound over truth
    large_a_ratio: float  # the same where a ≥ 1: at a = 0 most bounds are exact
    status: str  # "holds", "fails" or "known failure"
    where: str  # the problem of the largest ratio
    replay: str  # the arguments that run it again


def attack(
    *,
    problems: int = 1000,
    seed: int = 0,
    settings: Mapping[str, Callable[[int, int], Iterator[Outcome]]] = SETTINGS,
    progress: bool = True,
) -> list[Row]:
    """Attack every bound, and return one row for each, in the order in which they were met.

    There are ``problems`` heads, each with about two hundred inputs, and a share of other settings.
    """
    plan = [
        (name, index)
        for name in settings
        for index in range(max(1, problems * _SHARES.get(name, 100) // 100))
    ]
    found: dict[str, list[tuple[Outcome, str]]] = {}
    with one_thread():
        for name, index in tqdm(plan, desc="attack", leave=False, disable=not progress):
            for outcome in settings[name](seed, index):
                found.setdefault(outcome.bound, []).append((outcome, f"{name} {seed} {index}"))
    return [_row(bound, outcomes) for bound, outcomes in found.items()]


def replay(setting: str, seed: int, index: int) -> list[Outcome]:
    """Run one problem of a setting (a key of ``lab.attack.settings.SETTINGS``) again."""
    return list(SETTINGS[setting](seed, index))


def _row(bound: str, outcomes: list[tuple[Outcome, str]]) -> Row:
    worst, place = max(outcomes, key=lambda pair: pair[0].ratio)
    tries = sum(outcome.tries for outcome, _ in outcomes)
    large = max((outcome.ratio for outcome, _ in outcomes if outcome.large_a), default=0.0)
    status = "holds" if worst.ratio <= 1 + TOLERANCE else "fails"
    row = Row(bound, worst.source, tries, worst.ratio, large, status, worst.where, place)
    if bound not in KNOWN_FAILURES:
        return row
    where, witness = KNOWN_FAILURES[bound]  # which counts as one more input
    if (ratio := witness()) > worst.ratio:
        return Row(bound, worst.source, tries + 1, ratio, ratio, "known failure", where, "witness")
    return row._replace(status="known failure", where=f"{worst.where}; witness: {where}")
