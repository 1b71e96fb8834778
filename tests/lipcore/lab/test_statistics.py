"""Fitted exponents: exact on power laws, calibrated on noisy ones."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from lab.statistics import correlations, fit_exponent, holm, lack_of_fit, local_slopes

LENGTHS = [4, 8, 16, 32, 64, 128, 256]
X = np.log(LENGTHS)


def noisy(seed, exponent=0.4, repeats=10, noise=0.3):
    rng = np.random.default_rng(seed)
    law = 2.0 * np.array(LENGTHS)[:, None] ** exponent
    return law * np.exp(noise * rng.normal(size=(len(LENGTHS), repeats)))


@pytest.mark.parametrize("exponent", [-1.5, 0.0, 0.25, 2.0])
def test_exact_power_law(exponent):
    """The values are far apart between lengths: mixing them would widen the interval."""
    fit = fit_exponent(LENGTHS, [[3.0 * n**exponent] * 5 for n in LENGTHS])
    assert fit.exponent == pytest.approx(exponent, abs=1e-12)
    assert fit.low <= fit.exponent <= fit.high and fit.high - fit.low < 1e-12


def test_interval_covers():
    """At 80 % it covers in about 80 % of 150 experiments (bootstraps of ten are a bit short)."""
    fits = [fit_exponent(LENGTHS, noisy(seed), confidence=0.8) for seed in range(150)]
    assert 0.70 < np.mean([fit.low <= 0.4 <= fit.high for fit in fits]) < 0.86


def test_every_length_counts_once_however_many_values_it_has():
    """Exponent by least squares on the mean logarithms, interval from their standard errors."""
    counts = [60, 3, 9, 2, 25, 4, 40]
    rng = np.random.default_rng(7)
    logs = [0.4 * x + rng.normal(size=m) for x, m in zip(X, counts, strict=True)]
    fit = fit_exponent(torch.tensor(LENGTHS), [torch.tensor(sample).exp() for sample in logs])
    slope = np.polyfit(X, [sample.mean() for sample in logs], 1)[0]
    assert fit.exponent == pytest.approx(slope, rel=1e-10)
    by_value = np.polyfit(np.repeat(X, counts), np.concatenate(logs), 1)[0]
    assert abs(by_value - slope) > 0.02  # another answer
    errors = np.array([sample.std() / math.sqrt(len(sample)) for sample in logs])
    leverage = (X - X.mean()) / ((X - X.mean()) ** 2).sum()
    width = 2 * 1.96 * np.linalg.norm(leverage * errors)
    assert fit.high - fit.low == pytest.approx(width, rel=0.08)
    assert (fit.high + fit.low) / 2 == pytest.approx(slope, abs=0.08 * width)


def test_bad_input_is_named():
    for n in ([4], [4, 4], [0, 4]):
        with pytest.raises(ValueError, match=r"^n: "):
            fit_exponent(n, [[1.0, 2.0]] * len(n))
    for last in ([], [0.0], [math.inf], [math.nan]):
        with pytest.raises(ValueError, match=r"^values: .* n=4"):
            fit_exponent([2, 4], [[1.0], last])
    for values in ([[1.0, 2.0]], [[1], [1]], [[1, 1], [1, 1, 1]]):
        with pytest.raises(ValueError, match=r"^values: "):
            local_slopes([2, 4], values)
    for test, n in ((local_slopes, [8, 4]), (lack_of_fit, [4, 8])):
        with pytest.raises(ValueError, match=r"^n: "):
            test(n, [[1, 1], [1, 1]])


def test_local_slopes_agree_with_scipy():
    values = noisy(7, repeats=4)
    found = local_slopes(LENGTHS, values)
    each = np.log2(values[1:] / values[:-1])  # the lengths double
    np.testing.assert_allclose(found.each, each)
    interval = stats.ttest_1samp(each, 0, axis=1).confidence_interval(0.95)
    np.testing.assert_allclose([found.low, found.high], interval)
    expected = stats.ttest_1samp(each, 0.3, axis=1, alternative="greater").pvalue
    np.testing.assert_allclose(found.above(0.3), expected)
    np.testing.assert_allclose(found.between, np.sqrt(2) * np.array(LENGTHS[:-1]))


@pytest.mark.parametrize("nested", [False, True])
def test_lack_of_fit_agrees_with_two_regressions(nested):
    """The F-test of a line against a mean a length, each with a level a text if nested."""
    values = noisy(9, repeats=5)
    m, repeats = values.shape
    y = np.log(values).ravel()
    texts = np.kron(np.ones((m, 1)), np.eye(repeats)) if nested else np.ones((y.size, 1))

    def residual(columns):
        design = np.hstack([texts, columns])
        off = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
        return off @ off, y.size - np.linalg.matrix_rank(design)

    small, few = residual(np.repeat(X, repeats)[:, None])
    full, many = residual(np.kron(np.eye(m), np.ones((repeats, 1))))
    found = lack_of_fit(LENGTHS, values, nested=nested)
    assert found.F == pytest.approx((small - full) / (few - many) / (full / many))
    assert found.p == pytest.approx(stats.f.sf(found.F, few - many, many))


def test_holm():
    # 0.01·4, 0.015·3, then max(0.02·2, 0.045), max(0.4, 0.045)
    assert holm([0.02, 0.01, 0.4, 0.015]) == pytest.approx([0.045, 0.04, 0.4, 0.045])
    rng = np.random.default_rng(12)
    called = [(holm(rng.uniform(size=30)) < 0.05).any() for _ in range(2000)]
    assert 0.03 < np.mean(called) < 0.07  # one false call in twenty


def test_correlations():
    """Against NumPy on all values, on the deviations and on the means."""
    rng = np.random.default_rng(13)
    groups = np.repeat(["a", "b", "c"], [4, 6, 10])
    x, y = rng.normal(size=(2, 20)) + np.repeat([[0, 2, 5], [1, 1, 3]], [4, 6, 10], axis=1)
    both = np.array([x, y])
    means = np.array([[part[groups == g].mean() for g in groups] for part in both])
    expected = [np.corrcoef(*part)[0, 1] for part in (both, both - means, means)]
    assert correlations(x, y, groups) == pytest.approx(expected)
    alone = correlations([0.1, 0.2, 0.7], [3, 5, 4], ["a"] * 3)
    assert alone.within == pytest.approx(alone.total) and math.isnan(alone.between)
