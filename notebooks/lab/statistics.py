"""Growth exponents and local slopes with their uncertainty, and tests of many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from lab.numbers import decimal
from lipcore._checks import check_count, check_number


@dataclass(frozen=True)
class PowerFit:
    """A fitted power law ``prefactor · n^exponent`` and an interval for its exponent.

    Attributes
    ----------
    exponent, prefactor : float
    low, high : float
        The interval of the exponent from resampling the values within each length. It describes the
        spread of the values, and not whether a power law is the right shape.
    """

    exponent: float
    low: float
    high: float
    prefactor: float

    def __call__(self, n) -> np.ndarray:
        """Return the fitted law at n."""
        return self.prefactor * np.asarray(n, dtype=float) ** self.exponent

    def __str__(self) -> str:
        """Return the exponent and its interval, to two digits."""
        return f"{decimal(self.exponent)} [{decimal(self.low)}, {decimal(self.high)}]"


def fit_exponent(
    n: Sequence[float],
    values: Sequence,
    *,
    rng: np.random.Generator | None = None,
    resamples: int = 1000,
    confidence: float = 0.95,
) -> PowerFit:
    r"""Fit :math:`\log \text{value} = \log c + \alpha \log n`, with an interval for α.

    The fit is by least squares, in which every length counts once, through the mean logarithm of
    its values. The interval is a percentile bootstrap: the values of each length are drawn again,
    with replacement, and fitted again.

    Parameters
    ----------
    n : sequence of float, length m
        Lengths; at least two of them differ.
    values : array or tensor of shape (m,) or (m, repeats), or m sequences of any sizes
        Positive values at each length. With one value for each length the interval has no width.
    rng : numpy.random.Generator, optional
        Source of the resampling; a fixed seed if left out.
    resamples : int
        Number of bootstrap samples.
    confidence : float
        Coverage of the interval, in (0, 1).

    Returns
    -------
    PowerFit

    Raises
    ------
    ValueError, TypeError
        If lengths and values do not match, one is not positive and finite, or all lengths are
        equal.

    Examples
    --------
    >>> fit = fit_exponent([4, 16, 64], [[2.0, 2.0], [4.0, 4.0], [8.0, 8.0]])
    >>> print(fit, round(fit.prefactor, 6))
    0.50 [0.50, 0.50] 1.0
    """
    check_count("resamples", resamples)
    check_number("confidence", confidence, minimum=0, maximum=1 - 1e-12, strict=True)
    log_n, logs = _logarithms(n, values)
    rng = np.random.default_rng(0) if rng is None else rng
    centred = log_n - log_n.mean()
    slope_of = centred / (centred @ centred)  # slope = mean logarithms · slope_of
    means = np.array([sample.mean() for sample in logs])
    exponent = float(means @ slope_of)
    level = means.mean() - exponent * log_n.mean()
    drawn = np.stack([_resampled_means(sample, resamples, rng) for sample in logs], axis=1)
    low, high = np.quantile(drawn @ slope_of, [(1 - confidence) / 2, (1 + confidence) / 2])
    # rounding may leave the point a hair outside an interval without width
    low = min(float(low), exponent)
    high = max(float(high), exponent)
    return PowerFit(exponent, low, high, prefactor=float(np.exp(level)))


@dataclass(frozen=True)
class LocalSlopes:
    r"""Slopes from each length to the next, on logarithmic axes, and intervals for their means.

    Attributes
    ----------
    between : ndarray, shape (m - 1,)
        The geometric mean of the two lengths of each slope.
    each : ndarray, shape (m - 1, repeats)
        The slopes of every repeat.
    mean, low, high : ndarray, shape (m - 1,)
        Their means, and intervals by Student's law with repeats − 1 degrees of freedom.
    """

    between: np.ndarray
    each: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def above(self, slope: float) -> np.ndarray:
        """Return one-sided p-values, shape (m - 1,), for a mean slope of at most ``slope``."""
        return stats.ttest_1samp(self.each, slope, axis=1, alternative="greater").pvalue


def local_slopes(
    n: Sequence[float], values: Sequence, *, confidence: float = 0.95, family: int = 1
) -> LocalSlopes:
    r"""Return slopes between neighbouring lengths on logarithmic axes, for each repeat.

    .. math:: \log(\text{value}_{i+1}/\text{value}_i) / \log(n_{i+1}/n_i)

    For a power law all of them equal its exponent.

    Parameters
    ----------
    n : sequence of float, length m
        Increasing lengths.
    values : array of shape (m, repeats)
        Positive values. A column is one repeat at all lengths, such as one text that is read on.
        There are at least two columns, which are taken as independent.
    confidence : float
        Coverage of the intervals, in (0, 1).
    family : int
        Number of intervals that are to hold together; each then has the coverage
        1 − (1 − confidence)/family (Bonferroni).

    Returns
    -------
    LocalSlopes

    Raises
    ------
    ValueError, TypeError
        If lengths and values do not match, a value is not positive, or there is one column only.

    Examples
    --------
    >>> slopes = local_slopes([1, 4, 16], [[1.0, 3.0], [2.0, 6.0], [8.0, 24.0]])
    >>> slopes.mean.tolist(), (slopes.high - slopes.low).round(12).tolist()
    ([0.5, 1.0], [0.0, 0.0])
    """
    check_number("confidence", confidence, minimum=0, maximum=1 - 1e-12, strict=True)
    log_n, logs = _table_of_logarithms(n, values)
    if (np.diff(log_n) <= 0).any():
        raise ValueError(f"n: expected increasing lengths, got {list(n)}")
    each = np.diff(logs, axis=0) / np.diff(log_n)[:, None]
    repeats = each.shape[1]
    alpha = (1 - confidence) / check_count("family", family)
    mean = each.mean(axis=1)
    half = stats.t.isf(alpha / 2, repeats - 1) * each.std(axis=1, ddof=1) / np.sqrt(repeats)
    between = np.exp((log_n[1:] + log_n[:-1]) / 2)
    return LocalSlopes(between, each, mean, mean - half, mean + half)


@dataclass(frozen=True)
class LackOfFit:
    """Whether deviations from a power law are more than noise.

    Attributes
    ----------
    F : float
        Variance of the mean logarithms about the fitted law, over that of the repeats.
    between, within : int
        Degrees of freedom of the two.
    p : float
        Probability of so large an F if the law holds.
    """

    F: float
    between: int
    within: int
    p: float


def lack_of_fit(n: Sequence[float], values: Sequence, *, nested: bool = False) -> LackOfFit:
    r"""Return the F-test for lack of fit of a power of n, on logarithms.

    Parameters
    ----------
    n : sequence of float, length m
        Lengths, at least three.
    values : array of shape (m, repeats)
        Positive values, at least two at a length.
    nested : bool
        Whether a column is one text that is read on, so that its values rise and fall together.
        Every column then has a level of its own, and the noise is how the columns differ beyond it,
        with (m − 1)(repeats − 1) degrees of freedom instead of m (repeats − 1).

    Returns
    -------
    LackOfFit

    Raises
    ------
    ValueError
        If lengths and values do not match, a value is not positive, or there are too few.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=(4, 10)) / 100
    >>> n = np.array([4, 8, 16, 32])
    >>> lack_of_fit(n, n[:, None] ** 0.5 * np.exp(noise)).p > 0.05
    True
    >>> lack_of_fit(n, (n[:, None] + 4) ** 0.5 * np.exp(noise)).p < 1e-6
    True
    """
    log_n, logs = _table_of_logarithms(n, values)
    lengths, repeats = logs.shape
    if lengths < 3:
        raise ValueError(f"n: expected at least three lengths, got {lengths}")
    means = logs.mean(axis=1)
    centred = log_n - log_n.mean()
    off = means - means.mean() - centred * (centred @ means) / (centred @ centred)
    noise = logs - means[:, None]
    if nested:
        noise = noise - noise.mean(axis=0)
    between = lengths - 2
    within = (lengths - 1 if nested else lengths) * (repeats - 1)
    F = (repeats * (off**2).sum() / between) / ((noise**2).sum() / within)
    return LackOfFit(float(F), between, within, float(stats.f.sf(F, between, within)))


def holm(p: Sequence[float]) -> np.ndarray:
    """Return p-values that are adjusted for their number by Holm's step-down rule.

    All that are below 0.05 may be called significant: the probability of one false call among them
    is at most 0.05, for any dependence.

    Parameters
    ----------
    p : sequence of float

    Returns
    -------
    ndarray
        In the same order, each at least as large as before and at most 1.

    Raises
    ------
    ValueError
        If one is not in [0, 1].

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p, dtype=float)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p: expected a vector of probabilities, got {p.tolist()}")
    order = np.argsort(p)
    steps = (len(p) - np.arange(len(p))) * p[order]
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


@dataclass(frozen=True)
class Correlations:
    """A correlation and its two parts.

    Attributes
    ----------
    total : float
    within : float
        Correlation of the deviations from the means of the groups, all groups together.
    between : float
        Correlation of the means of the groups, each counted once for each of its members; NaN for
        one group.
    """

    total: float
    within: float
    between: float


def correlations(x: Sequence[float], y: Sequence[float], groups: Sequence) -> Correlations:
    r"""Return the correlation of x and y, split into its parts within and between groups.

    With deviations from the overall mean split into those of the group's mean and those within the
    group, the two products add up: :math:`S_{xy} = S_{xy}^\text{within} + S_{xy}^\text{between}`.

    Parameters
    ----------
    x, y : sequence of float, length m
    groups : sequence of length m
        Names of the groups.

    Returns
    -------
    Correlations

    Raises
    ------
    ValueError
        If the three have different lengths.

    Examples
    --------
    >>> found = correlations([0, 1, 10, 11], [1, 0, 11, 10], ["a", "a", "b", "b"])
    >>> round(found.total, 2), round(found.within, 2), round(found.between, 2)
    (0.98, -1.0, 1.0)
    """
    both = np.array([x, y], dtype=float)
    names = np.asarray(groups)
    if both.ndim != 2 or names.shape != both.shape[1:]:
        raise ValueError(f"groups: expected one name for each of {both.shape[-1]} values")
    means = np.empty_like(both)
    for name in np.unique(names):
        here = names == name
        means[:, here] = both[:, here].mean(axis=1, keepdims=True)
    centre = both.mean(axis=1, keepdims=True)
    parts = (both - centre, both - means, means - centre)
    return Correlations(*map(_cosine, parts))


def _resampled_means(sample: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Return the means of ``resamples`` draws with replacement from one length's logarithms."""
    return sample[rng.integers(len(sample), size=(resamples, len(sample)))].mean(axis=1)


def _flat(sample) -> np.ndarray:
    return np.asarray(sample, dtype=float).reshape(-1)


def _logarithms(n: Sequence[float], values: Sequence) -> tuple[np.ndarray, list[np.ndarray]]:
    """Check the input and return (log n, one array of log values a length)."""
    lengths = np.asarray(n, dtype=float)
    if lengths.ndim != 1 or len(lengths) < 2:
        raise ValueError(f"n: expected at least two lengths, got shape {lengths.shape}")
    if not (np.isfinite(lengths).all() and (lengths > 0).all()):
        raise ValueError("n: expected positive finite lengths")
    if np.ptp(np.log(lengths)) == 0:
        raise ValueError(f"n: expected lengths that differ, got {lengths[0]:g} only")
    if len(values) != len(lengths):
        raise ValueError(
            f"values: expected one entry for each of {len(lengths)} lengths, got {len(values)}"
        )
    samples = [_flat(sample) for sample in values]
    for length, sample in zip(lengths, samples, strict=True):
        if not (sample.size and np.isfinite(sample).all() and (sample > 0).all()):
            raise ValueError(f"values: expected positive finite values at n={length:g}")
    return np.log(lengths), [np.log(sample) for sample in samples]


def _table_of_logarithms(n: Sequence[float], values: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Check the input and return (log n, log values as (lengths, repeats))."""
    log_n, samples = _logarithms(n, values)
    sizes = {sample.size for sample in samples}
    if len(sizes) > 1 or sizes == {1}:
        raise ValueError(f"values: expected shape (m, repeats), at least two, got {sorted(sizes)}")
    return log_n, np.stack(samples)


def _cosine(pair: np.ndarray) -> float:
    """Return the cosine of the angle between two rows, or NaN if one is zero."""
    x, y = pair
    norm = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / norm) if norm else float("nan")
