"""Attempts to break every bound of :mod:`lipcore.bounds`, which is compared with the truth.

``python -m lab.attack`` runs all of them, and ``--replay SETTING SEED INDEX`` runs one
problem again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tqdm import tqdm

from lab._threads import one_thread
from lab.attack.candidates import KNOWN_FAILURES
from lab.attack.problems import Outcome
from lab.attack.settings import SETTINGS
from lipcore._checks import check_count

__all__ = ["KNOWN_FAILURES", "TOLERANCE", "Outcome", "Row", "attack", "replay"]

#: A ratio above 1 + TOLERANCE is no rounding error.
TOLERANCE = 1e-9
#: The number of problems of each setting for one hundred heads, if it is another one.
_SHARES = {"layer": 20, "l2": 20, "softmax": 5, "weighted": 5, "ball": 10, "rounding": 10}


@dataclass(frozen=True)
class Row:
    """The result of the attack on one bound."""

    bound: str
    source: str
    #: inputs at which the bound was compared with the truth
    tries: int
    #: the largest of truth over upper bound, or lower bound over truth: at most one if it holds
    ratio: float
    #: the same where a ≥ 1, since at a = 0 attention is an average, and most bounds are exact
    large_a_ratio: float
    #: "holds", "fails" or "known failure"
    status: str
    #: the problem of the largest ratio, and the arguments that run it again
    where: str
    replay: str


def attack(
    *,
    problems: int = 1000,
    seed: int = 0,
    settings: Mapping[str, Callable[[int, int], Iterator[Outcome]]] | None = None,
    progress: bool = True,
) -> list[Row]:
    """Attack every bound, and return one row for each, in the order in which they were met.

    There are ``problems`` heads, each with about two hundred inputs; other settings have their
    share. ``settings`` may take the place of ``lab.attack.settings.SETTINGS``.
    """
    check_count("problems", problems)
    settings = SETTINGS if settings is None else settings
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
    if setting not in SETTINGS:
        raise ValueError(f"setting: expected one of {', '.join(SETTINGS)}, got {setting!r}")
    return list(SETTINGS[setting](seed, index))


def _row(bound: str, outcomes: list[tuple[Outcome, str]]) -> Row:
    worst, place = max(outcomes, key=lambda pair: pair[0].ratio)
    row = {
        "bound": bound,
        "source": worst.source,
        "tries": sum(outcome.tries for outcome, _ in outcomes),
        "ratio": worst.ratio,
        "large_a_ratio": max((o.ratio for o, _ in outcomes if o.large_a), default=0.0),
        "status": "holds" if worst.ratio <= 1 + TOLERANCE else "fails",
        "where": worst.where,
        "replay": place,
    }
    if bound in KNOWN_FAILURES:  # no bound: its witness counts as one more input
        where, witness = KNOWN_FAILURES[bound]
        row |= {"status": "known failure", "where": f"{worst.where}; witness: {where}"}
        if (ratio := witness()) > worst.ratio:
            row |= {"ratio": ratio, "large_a_ratio": ratio, "tries": row["tries"] + 1}
            row |= {"where": where, "replay": "witness"}
    return Row(**row)
