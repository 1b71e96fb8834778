"""What one problem says about one bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """Largest ratio that one problem gave for one bound.

    Attributes
    ----------
    bound, source : str
    ratio : float
        Truth over an upper bound, or a lower bound over the truth: at most one if the bound holds.
    tries : int
        Inputs at which it was held against the truth.
    where : str
        The problem in words.
    large_a : bool
        Whether a ≥ 1: at a = 0 attention is an average, and many bounds are equalities.
    """

    bound: str
    source: str
    ratio: float
    tries: int
    where: str
    large_a: bool = True
