"""Fitted exponents: exact on power laws, calibrated on noisy ones."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import linregress

from lab.statistics import (
    PowerFit,
    correlations,
    fit_exponent,
    holm,
    lack_of_fit,
    local_slopes,
)

LENGTHS = [4, 8, 16, 32, 64, 128, 256]


def noisy(rng, exponent=0.4, repeats=10, noise=0.3):
    law = 2.0 * np.array(LENGTHS)[:, None] ** exponent
    return law * np.exp(noise * rng.normal(size=(len(LENGTHS), repeats)))


@pytest.mark.parametrize("exponent", [-1.5, 0.0, 0.25, 0.5, 2.0])
def test_exact_power_law(exponent):
    law = [3.0 * n**exponent for n in LENGTHS]
    fit = fit_exponent(LENGTHS, law)
    assert fit.exponent == pytest.approx(exponent, abs=1e-12)
    assert fit.prefactor == pytest.approx(3.0)
    assert fit.low <= fit.exponent <= fit.high and fit.high - fit.low < 1e-12
    np.testing.assert_allclose(fit(LENGTHS), law)


def test_agrees_with_scipy():
    values = noisy(np.random.default_rng(1))
    expected = linregress(np.log(LENGTHS), np.log(values).mean(axis=1))
    fit = fit_exponent(LENGTHS, values)
    assert fit.exponent == pytest.approx(expected.slope, rel=1e-12)
    assert fit.prefactor == pytest.approx(math.exp(expected.intercept), rel=1e-12)


def test_interval_covers():
    """The 80 % interval covers in about 80 % of 300 experiments (bootstraps of ten are a bit short)."""
    rng = np.random.default_rng(2)
    fits = [
        fit_exponent(LENGTHS, noisy(rng), rng=rng, resamples=200, confidence=0.8)
        for _ in range(300)
    ]
    covered = np.mean([fit.low <= 0.4 <= fit.high for fit in fits])
    assert 0.70 < covered < 0.86


def test_interval_narrows_with_repeats_and_widens_with_confidence():
    few, many = (
        fit_exponent(LENGTHS, noisy(np.random.default_rng(3), repeats=r)) for r in (10, 1000)
    )
    assert 6 < (few.high - few.low) / (many.high - many.low) < 16  # √100
    sure = fit_exponent(LENGTHS, noisy(np.random.default_rng(3)), confidence=0.999)
    assert sure.low < few.low < few.high < sure.high


def test_lengths_may_have_different_numbers_of_values():
    values = [[2.0, 2.0, 2.0], [4.0], torch.tensor([8.0, 8.0])]
    fit = fit_exponent([4, 16, 64], values)
    assert fit.exponent == pytest.approx(0.5) and str(fit) == "0.50 [0.50, 0.50]"


def test_every_length_counts_once_however_many_values_it_has():
    """Exponent by least squares on the mean logarithms, interval from their standard errors."""
    counts = [60, 3, 9, 2, 25, 4, 40]
    rng = np.random.default_rng(7)
    logs = [0.4 * np.log(n) + rng.normal(size=m) for n, m in zip(LENGTHS, counts, strict=True)]
    fit = fit_exponent(LENGTHS, [np.exp(sample) for sample in logs], resamples=4000)
    x = np.log(LENGTHS)
    means = [sample.mean() for sample in logs]
    slope, level = np.polyfit(x, means, 1)
    assert fit.exponent == pytest.approx(slope, rel=1e-10)
    assert fit.prefactor == pytest.approx(math.exp(level), rel=1e-10)
    by_value = np.polyfit(np.repeat(x, counts), np.concatenate(logs), 1)[0]
    assert abs(by_value - slope) > 0.02  # another answer
    errors = np.array([sample.std() / math.sqrt(len(sample)) for sample in logs])
    leverage = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    width = 2 * 1.96 * np.linalg.norm(leverage * errors)
    assert fit.high - fit.low == pytest.approx(width, rel=0.05)
    assert (fit.high + fit.low) / 2 == pytest.approx(slope, abs=0.05 * width)


def test_resampling_stays_within_each_length():
    """Values far apart between lengths, equal within: mixing lengths would widen the interval."""
    fit = fit_exponent([1, 10, 100], [[1.0] * 5, [1e3] * 5, [1e6] * 5])
    assert fit.high - fit.low < 1e-9


def test_tensors_and_seeds():
    values = noisy(np.random.default_rng(4))
    one = fit_exponent(torch.tensor(LENGTHS), torch.tensor(values))
    assert one == fit_exponent(LENGTHS, values)
    assert one == fit_exponent(LENGTHS, values, rng=np.random.default_rng(0), confidence=0.95)
    assert one != fit_exponent(LENGTHS, values, rng=np.random.default_rng(5))
    assert isinstance(one, PowerFit)


POSITIVE = "^values: .*n="
BAD_INPUT = {
    "one length": (([4], [[1.0]]), {}, "^n: "),
    "equal lengths": (([4, 4], [[1.0], [2.0]]), {}, "^n: "),
    "length zero": (([0, 4], [[1.0], [2.0]]), {}, "^n: "),
    "lengths in a matrix": (([[1, 2]], [[1.0]]), {}, "^n: "),
    "too few values": (([2, 4], [[1.0]]), {}, "^values: "),
    "no value": (([2, 4], [[1.0], []]), {}, f"{POSITIVE}4"),
    "value zero": (([2, 4], [[1.0], [0.0]]), {}, f"{POSITIVE}4"),
    "value infinite": (([2, 4], [[math.inf], [1.0]]), {}, f"{POSITIVE}2"),
    "value not a number": (([2, 4], [[math.nan], [1.0]]), {}, f"{POSITIVE}2"),
    "confidence one": (([2, 4], [1.0, 2.0]), {"confidence": 1.0}, "confidence: "),
    "no resamples": (([2, 4], [1.0, 2.0]), {"resamples": 0}, "^resamples: "),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input(name):
    arguments, options, message = BAD_INPUT[name]
    with pytest.raises(ValueError, match=message):
        fit_exponent(*arguments, **options)


class TestLocalSlopes:
    values = noisy(np.random.default_rng(7), repeats=4)

    def test_agrees_with_scipy(self):
        """Length by length, and column by column."""
        found = local_slopes(LENGTHS, self.values, confidence=0.9)
        for i, low in enumerate(LENGTHS[:-1]):
            high = LENGTHS[i + 1]
            each = np.log(self.values[i + 1] / self.values[i]) / math.log(high / low)
            np.testing.assert_allclose(found.each[i], each)
            interval = stats.ttest_1samp(each, 0).confidence_interval(0.9)
            assert (found.low[i], found.high[i]) == pytest.approx(interval)
            expected = stats.ttest_1samp(each, 0.3, alternative="greater").pvalue
            assert found.above(0.3)[i] == pytest.approx(expected)
            assert found.between[i] == pytest.approx(math.sqrt(low * high))

    def test_a_family_holds_together(self):
        """Bonferroni: forty intervals at 95 % are those of one at 99.875 %."""
        many = local_slopes(LENGTHS, self.values, family=40)
        one = local_slopes(LENGTHS, self.values, confidence=1 - 0.05 / 40)
        np.testing.assert_allclose([many.low, many.high], [one.low, one.high])

    def test_interval_covers(self):
        rng = np.random.default_rng(8)
        slopes = [
            local_slopes([4, 8], noisy(rng, repeats=4)[:2], confidence=0.8) for _ in range(500)
        ]
        covered = np.mean([s.low[0] <= 0.4 <= s.high[0] for s in slopes])
        assert 0.75 < covered < 0.85

    @pytest.mark.parametrize(
        ("n", "values", "message"),
        [
            ([8, 4], [[1, 1], [1, 1]], "^n: "),
            ([4, 8], [[1], [1]], "expected shape .m, repeats., at least two"),
            ([4, 8], [[1, 1], [1, 1, 1]], "expected shape .m, repeats., at least two"),
            ([4, 8], [[1, 1], [0, 1]], "expected positive finite values at n=8"),
        ],
    )
    def test_bad_input_is_refused(self, n, values, message):
        with pytest.raises(ValueError, match=message):
            local_slopes(n, values)


class TestLackOfFit:
    @pytest.mark.parametrize("nested", [False, True])
    def test_agrees_with_two_regressions(self, nested):
        """The F-test of a line against a mean a length, each with a level a text if nested."""
        values = noisy(np.random.default_rng(9), repeats=5)
        m, repeats = values.shape
        y = np.log(values).ravel()
        texts = np.kron(np.ones((m, 1)), np.eye(repeats)) if nested else np.ones((y.size, 1))
        line = np.repeat(np.log(LENGTHS), repeats)[:, None]
        lengths = np.kron(np.eye(m), np.ones((repeats, 1)))

        def residual(*columns):
            design = np.hstack(columns)
            off = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
            return off @ off, y.size - np.linalg.matrix_rank(design)

        (small, few), (full, many) = residual(texts, line), residual(texts, lengths)
        found = lack_of_fit(LENGTHS, values, nested=nested)
        assert (found.between, found.within) == (few - many, many)
        assert found.F == pytest.approx((small - full) / (few - many) / (full / many))
        assert found.p == pytest.approx(stats.f.sf(found.F, few - many, many))

    @pytest.mark.parametrize("nested", [False, True])
    def test_of_its_level(self, nested):
        """Among 400 power laws about one in ten is rejected at 0.1."""
        rng = np.random.default_rng(10)
        level = rng.normal(size=(400, 1, 5)) * nested  # texts of different levels
        p = [
            lack_of_fit(LENGTHS, noisy(rng, repeats=5) * np.exp(x), nested=nested).p for x in level
        ]
        assert 0.06 < np.mean(np.array(p) < 0.1) < 0.14

    def test_two_lengths_are_too_few(self):
        with pytest.raises(ValueError, match=r"^n: "):
            lack_of_fit([4, 8], [[1, 1], [2, 2]])


class TestHolm:
    def test_by_hand(self):
        # 0.01·4, 0.015·3, then max(0.02·2, 0.045), max(0.4, 0.045)
        assert holm([0.02, 0.01, 0.4, 0.015]) == pytest.approx([0.045, 0.04, 0.4, 0.045])

    def test_never_above_one_and_never_below_the_raw(self):
        p = np.random.default_rng(11).uniform(size=50)
        assert (holm(p) >= p).all() and holm(p).max() == 1

    def test_one_false_call_in_twenty(self):
        rng = np.random.default_rng(12)
        called = [(holm(rng.uniform(size=30)) < 0.05).any() for _ in range(2000)]
        assert 0.03 < np.mean(called) < 0.07

    def test_no_probability_is_refused(self):
        with pytest.raises(ValueError, match=r"^p: "):
            holm([0.5, 1.2])


class TestCorrelations:
    def test_parts_add_up(self):
        """Against NumPy on the deviations and on the means, and as sums of products."""
        rng = np.random.default_rng(13)
        groups = np.repeat(["a", "b", "c"], [4, 6, 10])
        x, y = rng.normal(size=(2, 20)) + np.repeat([[0, 2, 5], [1, 1, 3]], [4, 6, 10], axis=1)
        found = correlations(x, y, groups)
        means = [np.array([part[groups == g].mean() for g in groups]) for part in (x, y)]
        assert found.total == pytest.approx(np.corrcoef(x, y)[0, 1])
        assert found.between == pytest.approx(np.corrcoef(*means)[0, 1])
        inner = [part - mean for part, mean in zip((x, y), means, strict=True)]
        assert found.within == pytest.approx(np.corrcoef(*inner)[0, 1])

    def test_one_group(self):
        found = correlations([1, 2, 4], [3, 5, 4], ["a"] * 3)
        assert found.within == pytest.approx(found.total) and math.isnan(found.between)

    def test_lengths_must_match(self):
        with pytest.raises(ValueError, match=r"^groups: "):
            correlations([1, 2, 3], [1, 2, 3], ["a", "b"])
