"""Growth exponents and local slopes with their uncertainty, and tests of many at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from lab.numbers import decimal
from lipcore._checks import check_number, require


class PowerFit(NamedTuple):
    """The exponent of a fitted power law, and an interval for it."""

    exponent: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{decimal(self.exponent)} [{decimal(self.low)}, {decimal(self.high)}]"


def fit_exponent(n: Sequence[float], values: Sequence, *, confidence: float = 0.95) -> PowerFit:
    r"""Fit :math:`\log \text{value} = \log c + \alpha \log n`, with an interval for α.

    For each of m lengths there are one or more positive values. In the fit, by least squares, every
    length counts once, through its mean logarithm. The interval, a percentile bootstrap within each
    length, describes the spread of the values, and not whether a power law is the right shape.
    """
    check_number("confidence", confidence, minimum=0, maximum=1 - 1e-12, strict=True)
    log_n, logs = _logarithms(n, values)
    rng = np.random.default_rng(0)
    centred = log_n - log_n.mean()
    slope_of = centred / (centred @ centred)  # slope = mean logarithms · slope_of
    means = np.array([sample.mean() for sample in logs])
    exponent = float(means @ slope_of)
    drawn = []
    for sample in logs:
        places = rng.integers(len(sample), size=(1000, len(sample)))
        drawn.append(sample[places].mean(axis=1))
    slopes = np.stack(drawn, axis=1) @ slope_of
    low, high = np.quantile(slopes, [(1 - confidence) / 2, (1 + confidence) / 2])
    # rounding may leave the point a hair outside an interval without width
    return PowerFit(exponent, min(float(low), exponent), max(float(high), exponent))


class LocalSlopes(NamedTuple):
    """Slopes from each length to the next, on logarithmic axes, and 95 % intervals of their means."""

    between: np.ndarray  # (m - 1,), the geometric mean of the two lengths of a slope
    each: np.ndarray  # (m - 1, repeats), the slopes of every repeat
    mean: np.ndarray  # (m - 1,), as the ends of the intervals
    low: np.ndarray
    high: np.ndarray

    def above(self, slope: float) -> np.ndarray:
        """Return one-sided p-values, shape (m - 1,), for a mean slope of at most ``slope``."""
        return stats.ttest_1samp(self.each, slope, axis=1, alternative="greater").pvalue


def local_slopes(n: Sequence[float], values: Sequence) -> LocalSlopes:
    """Return slopes between neighbouring lengths on logarithmic axes, for each repeat.

    A column of ``values``, (m, repeats), is one repeat at all lengths, such as a text that is read
    on. Columns are taken as independent, and the intervals are by Student's law.
    """
    log_n, logs = _table_of_logarithms(n, values)
    steps = np.diff(log_n)
    require((steps > 0).all(), "n", "increasing lengths", list(n))
    each = np.diff(logs, axis=0) / steps[:, None]
    repeats = each.shape[1]
    mean = each.mean(axis=1)
    half = stats.t.isf(0.025, repeats - 1) * stats.sem(each, axis=1)
    between = np.exp((log_n[1:] + log_n[:-1]) / 2)
    return LocalSlopes(between, each, mean, mean - half, mean + half)


class LackOfFit(NamedTuple):
    """An F-test of whether deviations from a power law are more than noise."""

    F: float  # variance of the mean logarithms about the fitted law, over that of the repeats
    p: float  # probability of so large an F if the law holds


def lack_of_fit(n: Sequence[float], values: Sequence, *, nested: bool = False) -> LackOfFit:
    """Return the F-test for lack of fit of a power of n, on logarithms of values (m, repeats).

    With ``nested``, a column is one text that is read on, so that its values rise and fall
    together: it has a level of its own, and the noise is how the columns differ beyond it.
    """
    log_n, logs = _table_of_logarithms(n, values)
    lengths, repeats = logs.shape
    require(lengths >= 3, "n", "at least three lengths", lengths)
    means = logs.mean(axis=1)
    fitted = stats.linregress(log_n, means)
    off = means - fitted.intercept - fitted.slope * log_n
    noise = logs - means[:, None]
    if nested:
        noise = noise - noise.mean(axis=0)
    between = lengths - 2
    within = (lengths - 1 if nested else lengths) * (repeats - 1)
    F = (repeats * (off**2).sum() / between) / ((noise**2).sum() / within)
    return LackOfFit(float(F), float(stats.f.sf(F, between, within)))


def holm(p: Sequence[float]) -> np.ndarray:
    """Return p-values that are adjusted for their number by Holm's step-down rule."""
    p = np.asarray(p, dtype=float)
    order = np.argsort(p)
    steps = (len(p) - np.arange(len(p))) * p[order]
    adjusted = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted[np.argsort(order)]


class Correlations(NamedTuple):
    """A correlation and its two parts."""

    total: float
    within: float  # of the deviations from the means of the groups
    between: float  # of the means, each counted once for each member; NaN for one group


def correlations(x: Sequence[float], y: Sequence[float], groups: Sequence) -> Correlations:
    """Return the correlation of x and y, and its parts within and between named groups."""
    values = pd.DataFrame({"x": np.asarray(x, dtype=float), "y": np.asarray(y, dtype=float)})
    means = values.groupby(np.asarray(groups)).transform("mean")
    parts = (values, values - means, means)
    return Correlations(*(float(part.corr().loc["x", "y"]) for part in parts))


def _logarithms(n: Sequence[float], values: Sequence) -> tuple[np.ndarray, list[np.ndarray]]:
    """Check the input and return (log n, one array of log values a length)."""
    lengths = np.asarray(n, dtype=float)
    is_fit = np.isfinite(lengths).all() and (lengths > 0).all() and np.ptp(lengths) > 0
    require(is_fit, "n", "different positive lengths", lengths)
    require(len(values) == len(lengths), "values", f"{len(lengths)} entries", len(values))
    samples = [np.asarray(sample, dtype=float).reshape(-1) for sample in values]
    for length, sample in zip(lengths, samples, strict=True):
        positive = sample.size and np.isfinite(sample).all() and (sample > 0).all()
        require(positive, "values", f"positive finite values at n={length:g}", sample)
    return np.log(lengths), [np.log(sample) for sample in samples]


def _table_of_logarithms(n: Sequence[float], values: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Check the input and return (log n, log values as (lengths, repeats))."""
    log_n, samples = _logarithms(n, values)
    sizes = {sample.size for sample in samples}
    is_table = len(sizes) == 1 and sizes != {1}
    require(is_table, "values", "two or more repeats, as many at each length", sorted(sizes))
    return log_n, np.stack(samples)
