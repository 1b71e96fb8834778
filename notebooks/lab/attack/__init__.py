"""Attempts to break every bound of :mod:`lipcore.bounds`, which is compared with the truth.

``python -m lab.attack`` runs all of them, and ``--replay SETTING SEED INDEX`` runs one
problem again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tqdm import tqdm

from lab._threads import one_thread
from lab.attack.candidates import witness_kim2021_restated, witness_released_compute_bound
from lab.attack.outcome import Outcome
from lab.attack.settings import SETTINGS
from lipcore._checks import check_count

__all__ = ["KNOWN_FAILURES", "TOLERANCE", "Outcome", "Row", "attack", "replay"]

#: A ratio above 1 + TOLERANCE is no rounding error.
TOLERANCE = 1e-9
#: Formulas that are no bounds, each with its witness and the ratio of truth and formula there.
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
#: The number of problems of each setting for one hundred heads.
_SHARES = {
    "head": 100,
    "lower": 100,
    "layer": 20,
    "l2": 20,
    "softmax": 5,
    "weighted": 5,
    "ball": 10,
    "rounding": 10,
}


@dataclass(frozen=True)
class Row:
    """The result of the attack on one bound.

    Attributes
    ----------
    bound, source : str
    tries : int
        The number of inputs at which the bound was compared with the truth.
    ratio : float
        The largest ratio of truth and upper bound, or of lower bound and truth, which is at most
        one if the bound holds.
    large_a_ratio : float
        The same among problems with a ≥ 1, since at a = 0 attention is an average, for which most
        bounds are exact.
    status : {"holds", "fails", "known failure"}
    where, replay : str
        The problem of the largest ratio, and the arguments that run it again.
    """

    bound: str
    source: str
    tries: int
    ratio: float
    large_a_ratio: float
    status: str
    where: str
    replay: str


def attack(
    *,
    problems: int = 1000,
    seed: int = 0,
    settings: Mapping[str, Callable[[int, int], Iterator[Outcome]]] | None = None,
    progress: bool = True,
) -> list[Row]:
    """Attack every bound, and return one row for each.

    Parameters
    ----------
    problems : int
        The number of heads, each with about two hundred inputs; other settings have their share.
    seed : int
    settings : mapping of str to callable, optional
        Settings to run instead of ``lab.attack.settings.SETTINGS``.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    list of Row
        One row for each bound, in the order in which they were met.

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
    """Run one problem again, and return its outcomes.

    Parameters
    ----------
    setting : str
        A key of ``lab.attack.settings.SETTINGS``.
    seed, index : int

    Returns
    -------
    list of Outcome

    Raises
    ------
    ValueError
        If the setting is unknown.

    Examples
    --------
    >>> replay("softmax", 0, 3) == replay("softmax", 0, 3)
    True
    """
    if setting not in SETTINGS:
        raise ValueError(f"setting: expected one of {', '.join(SETTINGS)}, got {setting!r}")
    return list(SETTINGS[setting](seed, index))


def _row(bound: str, outcomes: list[tuple[Outcome, str]]) -> Row:
    worst, place = max(outcomes, key=lambda pair: pair[0].ratio)
    row = Row(
        bound=bound,
        source=worst.source,
        tries=sum(outcome.tries for outcome, _ in outcomes),
        ratio=worst.ratio,
        large_a_ratio=max((o.ratio for o, _ in outcomes if o.large_a), default=0.0),
        status="holds" if worst.ratio <= 1 + TOLERANCE else "fails",
        where=worst.where,
        replay=place,
    )
    return _known_failure(row) if bound in KNOWN_FAILURES else row


def _known_failure(row: Row) -> Row:
    """Return the row of a formula that is no bound, whose witness counts as one more input."""
    where, witness = KNOWN_FAILURES[row.bound]
    row = replace(row, status="known failure")
    ratio = witness()
    if ratio <= row.ratio:
        return replace(row, where=f"{row.where}; witness: {where}")
    return replace(
        row, tries=row.tries + 1, ratio=ratio, large_a_ratio=ratio, where=where, replay="witness"
    )
