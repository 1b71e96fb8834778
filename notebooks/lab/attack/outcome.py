"""The result of one problem for one bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The largest ratio that one problem gave for one bound.

    Attributes
    ----------
    bound, source : str
    ratio : float
        The truth over an upper bound, or a lower bound over the truth, which is at most one if the
        bound holds.
    tries : int
        The number of inputs at which the bound was compared with the truth.
    where : str
        The problem in words.
    large_a : bool
        Whether a ≥ 1; at a = 0 attention is an average, for which many bounds are equalities.
    """

    bound: str
    source: str
    ratio: float
    tries: int
    where: str
    large_a: bool = True
