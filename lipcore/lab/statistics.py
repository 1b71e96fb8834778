"""Growth exponents with their uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lipcore._checks import check_count, check_number
from lipcore.lab.numbers import decimal


@dataclass(frozen=True)
class PowerFit:
    """A fitted power law ``prefactor · n^exponent`` and an interval for its exponent.

    Attributes
    ----------
    exponent, prefactor : float
    low, high : float
        Interval of the exponent from resampling the values within each length. It speaks of the
        spread of the values, not of whether a power law is the right shape.
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
    r"""Fit :math:`\log \text{value} = \log c + \alpha \log n`, with a bootstrap interval for α.

    Least squares in which every length counts once, through the mean logarithm of its values. The
    interval comes from drawing the values of each length anew, with replacement, and fitting again
    (a percentile bootstrap).

    Parameters
    ----------
    n : sequence of float, length m
        Lengths; at least two of them differ.
    values : array or tensor of shape (m,) or (m, repeats), or m sequences of any sizes
        Positive values at each length. With one value a length the interval has no width.
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


def refine_exponent(
    n: Sequence[float],
    values: Sequence,
    draw: Callable[[int, int, int], Sequence[float]],
    *,
    width: float = 0.1,
    most: int = 40,
    **options,
) -> tuple[PowerFit, list[np.ndarray]]:
    """Fit an exponent, and draw more values at every length while its interval is too wide.

    Each round doubles the number of values. Whether to go on depends on the width of the interval
    alone, not on where it lies.

    Parameters
    ----------
    n : sequence of int, length m
    values : m sequences of positive values
        Those there are already, as many at each length.
    draw : callable
        ``draw(n, first, count)`` returns the values number first, …, first + count − 1 at length n.
    width : float
        Width of the interval that is narrow enough.
    most : int
        Values a length after which to stop in any case.
    **options
        Of :func:`fit_exponent`.

    Returns
    -------
    fit : PowerFit
    values : list of arrays
        All values, those given first.

    Raises
    ------
    ValueError, TypeError
        If :func:`fit_exponent` refuses the values, lengths have different numbers of values, or
        ``draw`` returns another number than asked.

    Examples
    --------
    >>> noise = np.random.default_rng(0)
    >>> wide = [np.exp(noise.normal(size=4)) for n in (4, 16, 64)]
    >>> more = lambda n, first, count: np.exp(noise.normal(size=count))
    >>> fit, values = refine_exponent([4, 16, 64], wide, more, most=30)
    >>> [len(sample) for sample in values]
    [30, 30, 30]
    """
    check_number("width", width, minimum=0, strict=True)
    check_count("most", most)
    values = [_flat(sample) for sample in values]
    fit = fit_exponent(n, values, **options)
    have = len(values[0])
    if {len(sample) for sample in values} != {have}:
        counts = [len(sample) for sample in values]
        raise ValueError(f"values: expected as many at each length, got {counts}")
    while fit.high - fit.low > width and have < most:
        more = min(have, most - have)
        drawn = [_flat(draw(length, have, more)) for length in n]
        counts = [len(sample) for sample in drawn]
        if set(counts) != {more}:  # else it might never end
            raise ValueError(f"draw: expected {more} values at each length, got {counts}")
        values = [np.concatenate(pair) for pair in zip(values, drawn, strict=True)]
        have += more
        fit = fit_exponent(n, values, **options)
    return fit, values


def _resampled_means(sample: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Means of ``resamples`` draws with replacement from one length's logarithms."""
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
