r"""Sharper upper bounds: mixing and others' keys bounded as one map (this book).

Both terms together are :math:`\sum_j P_{ij}\, T_{ij}^\top h_j` with :math:`T_{ij}\, g = g + (g\cdot(x_j-m_i))\,Ax_i`,
and :math:`\sum_j P_{ij}(x_j - m_i) = 0` removes the cross term:
:math:`\sum_j P_{ij}|T_{ij}g|^2 = |g|^2 + |Ax_i|^2\, g\cdot C_i g \le (1+a^2)|g|^2`.
By Cauchy–Schwarz :math:`1 + a` becomes :math:`\sqrt{1+a^2}`. With the weight :math:`P_{ij}/\mu_j` inside
Cauchy–Schwarz it becomes a worst case over one row, attained by two Diracs: :func:`two_dirac_peak`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_number, check_square
from lipcore.bounds._logarithms import (
    exp,
    finish,
    log_,
    log_add,
    log_column_sum,
    log_inputs,
    log_norm,
    log_sum,
    log_times,
    smallest,
)
from lipcore.bounds.gap import rank_of, score_gap_upper


def two_dirac_peak(a: float) -> float:
    r"""The log F(a) for which mixing and others' keys have norm at most :math:`e^a\sqrt{F(a)}` (this book).

    .. math:: F(a) = \max_{0\le w\le 1} \Big(1-w+\frac w\kappa\Big)
        \Big( w\,(1+2a(1-w))^2 + \frac{(1-w)(1-2aw)^2}{\kappa} \Big), \qquad \kappa = e^{2a}

    For :math:`A=-\gamma I` two antipodal Diracs reach :math:`e^a\sqrt F`, so that no smaller F will do; as a grows,
    :math:`F \sim \frac{27}{64}a^2`.

    Parameters
    ----------
    a : float

    Returns
    -------
    float
        log F(a).

    Raises
    ------
    ValueError, TypeError
        If a is negative or not finite.

    Examples
    --------
    >>> round(math.exp(two_dirac_peak(0.0)), 9), round(math.exp(two_dirac_peak(3.0)), 6)
    (1.0, 5.712594)
    """
    a = check_number("a", a, minimum=0)
    inverse = math.exp(-2 * a)
    one, two_a = 1 / (1 + 2 * a), 2 * a / (1 + 2 * a)  # squares in units of (1 + 2a)²: no overflow

    def minus_value(w: float) -> float:
        rare, common = one + two_a * (1 - w), one - two_a * w
        return -(1 - w + w * inverse) * (w * rare * rare + (1 - w) * common * common * inverse)

    # the best w falls from 1/2 to 1/4 as a grows; the small term makes up for rounding
    return math.log(-smallest(minus_value, 0.2, 0.55)) + 2 * math.log1p(2 * a) + 1e-14


def mean_field_upper_sharp(
    *, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Upper bound in the mean-field regime with the exact leading constant (this book).

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le \|V\|_2 \big( e^{a}\sqrt{F(a)} + a \big),
        \qquad \log F = \mathtt{two\_dirac\_peak}(a)

    For :math:`A=-\gamma I` its quotient by the true constant tends to one as a grows.

    Parameters
    ----------
    radius, norm_a, norm_v, log
        As in :func:`~lipcore.bounds.general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`~lipcore.bounds.general_upper`.

    Examples
    --------
    >>> round(mean_field_upper_sharp(radius=1.0, norm_a=3.0, norm_v=1.0), 3)
    51.007
    """
    _, log_a, log_v = log_inputs(1, radius, norm_a, norm_v)
    return finish(log_times(log_v, log_add(_log_mean_field(log_a), log_a)), log)


def unified_upper_sharp(
    *, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Upper bound for every regime, never above :func:`~lipcore.bounds.unified_upper` (this book).

    .. math:: \mathrm{Lip}(f|B_R^n) \le \|V\|_2 \Big(
        \min\Big( \sqrt{1+a^2}\,\sqrt{\tfrac{n\kappa}{n+\kappa-1}},\; e^a\sqrt{F(a)} \Big) + a \Big)

    Parameters
    ----------
    n, radius, norm_a, norm_v, log
        As in :func:`~lipcore.bounds.general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`~lipcore.bounds.general_upper`.

    Examples
    --------
    >>> unified_upper_sharp(n=9, radius=1.0, norm_a=0.0, norm_v=1.0)
    1.0
    """
    n, log_a, log_v = log_inputs(n, radius, norm_a, norm_v)
    short = (log_add(0.0, 2 * log_a) + log_column_sum(n, log_a)) / 2
    return finish(log_times(log_v, log_add(min(short, _log_mean_field(log_a)), log_a)), log)


def masked_upper_sharp(
    *, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Upper bound for causal attention, never above :func:`~lipcore.bounds.masked_upper` (this book).

    .. math:: \mathrm{Lip}(f^m|B_R^n) \le \|V\|_2 \Big( \min\Big( \sqrt{(1+a^2)\, s_n},\; \sqrt{t_n},\;
        \min_{1\le p<2} \big(\tfrac{2}{2-p}\big)^{1/p} (1+a^2)^{1-1/p} (1+2a)^{2/p-1}\, e^a \Big) + a \Big)

    where :math:`s_n = \min(n, 1+\kappa\log(1+\tfrac{n-1}{\kappa}))` bounds the column sums of P,
    :math:`t_n = \min(1+a^2, \kappa F) + \sum_{i=2}^n \min(1+a^2, \kappa F/i)`, and the last entry, by Hölder and
    Hardy's inequality in :math:`L^{2/p}`, does not depend on n (p = 1: the constant 2 of the unsharpened bound).

    Parameters
    ----------
    n, radius, norm_a, norm_v, log
        As in :func:`~lipcore.bounds.general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`~lipcore.bounds.general_upper`.

    Examples
    --------
    >>> round(masked_upper_sharp(n=10**9, radius=1.0, norm_a=0.0, norm_v=1.0), 9)
    2.0
    """
    n, log_a, log_v = log_inputs(n, radius, norm_a, norm_v)
    log_kappa, joint = 2 * exp(log_a), log_add(0.0, 2 * log_a)
    columns = min(math.log(n), log_add(0.0, _log_logarithmic(n, log_kappa)))
    weighted = _log_weighted(n, joint, 2 * _log_mean_field(log_a))
    log_mixing = min((joint + columns) / 2, weighted / 2, log_hoelder(log_a) + log_kappa / 2)
    return finish(log_times(log_v, log_add(log_mixing, log_a)), log)


def mean_field_upper_rate_sharp(
    *, A: Tensor, radius: float, norm_v: float, log: bool = False
) -> float:
    r"""Upper bound in the mean-field regime, exact in its exponential rate and sharper in the rest (this book).

    .. math:: \|V\|_2 \Big( \min\Big( e^a\sqrt{F(a)},\; \sqrt{1+a^2}\,
        \min_{t>0} \Big(\prod_i \big(\tfrac{2 a_i\sqrt r}{t}+1\big)\, e^{t+g^*}\Big)^{1/2} \Big) + a \Big)

    with the r singular values :math:`a_i` of :math:`R^2 A`: cells on which scores vary by t, cut along the singular
    directions. :func:`~lipcore.bounds.mean_field_upper_rate` has t = 1 and :math:`a_i = a`.

    Parameters
    ----------
    A, radius, norm_v, log
        As in :func:`~lipcore.bounds.mean_field_upper_rate`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`~lipcore.bounds.mean_field_upper_rate`.

    Examples
    --------
    >>> import torch
    >>> A = torch.eye(4, dtype=torch.float64)
    >>> round(mean_field_upper_rate_sharp(A=A, radius=10.0, norm_v=1.0, log=True), 3)
    28.335
    """
    log_a, log_cells = _log_cells(A, radius)
    log_mixing = min(_log_mean_field(log_a), (log_add(0.0, 2 * log_a) + log_cells) / 2)
    return finish(log_times(log_norm(norm_v), log_add(log_mixing, log_a)), log)


def masked_upper_rate_sharp(*, A: Tensor, radius: float, norm_v: float, log: bool = False) -> float:
    r"""Upper bound for causal attention, whatever n, exact in its exponential rate and sharper in the rest (this book).

    The last entry of :func:`masked_upper_sharp` with the smaller of :math:`e^a` and the root of
    :func:`mean_field_upper_rate_sharp`'s :math:`\min_t N_t e^{t+g^*}`.

    Parameters
    ----------
    A, radius, norm_v, log
        As in :func:`~lipcore.bounds.mean_field_upper_rate`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`~lipcore.bounds.mean_field_upper_rate`.

    Examples
    --------
    >>> import torch
    >>> round(masked_upper_rate_sharp(A=torch.zeros(2, 2), radius=3.0, norm_v=1.0), 9)
    2.0
    """
    log_a, log_cells = _log_cells(A, radius)
    log_mixing = log_hoelder(log_a) + min(2 * exp(log_a), log_cells) / 2
    return finish(log_times(log_norm(norm_v), log_add(log_mixing, log_a)), log)


def log_hoelder(log_a: float) -> float:
    r"""log of :math:`\min_{1\le p<2} (2/(2-p))^{1/p} (1+a^2)^{1-1/p} (1+2a)^{2/p-1}`, between 2 and 2(1+2a)."""
    square, linear = log_add(0.0, 2 * log_a), log_add(0.0, math.log(2) + log_a)

    def value(p: float) -> float:
        return math.log(2 / (2 - p)) / p + (1 - 1 / p) * square + (2 / p - 1) * linear

    if linear == math.inf:
        return math.inf
    return min(smallest(value, 1.0, 1.9), value(1.0))  # any p gives a bound


def _log_mean_field(log_a: float) -> float:
    """log( e^a √F(a) )."""
    a = exp(log_a)
    return (
        math.inf if a == math.inf else a + two_dirac_peak(min(a, 1e300)) / 2
    )  # beyond, F is lost beside a


def _log_logarithmic(n: int, log_kappa: float) -> float:
    """log( κ log(1 + (n−1)/κ) ), an upper bound of Σ_{i=1}^{n−1} κ/(κ+i)."""
    if n == 1 or log_kappa == math.inf:
        return log_(n - 1)
    inside = log_add(0.0, log_(n - 1) - log_kappa)  # log(1 + (n−1)/κ)
    return min(log_(n - 1), log_kappa + log_(inside)) if inside > 1e-8 else log_(n - 1)


def _log_weighted(n: int, joint: float, peak: float) -> float:
    """Upper bound of log Σ_{i=1}^n min(1+a², κF/i), from the logarithms of 1+a² and κF."""
    if joint + math.log(n) <= peak:
        return joint + math.log(n)
    if joint >= peak:  # the second entry is the smaller from the first row on
        return peak + math.log1p(math.log(n))
    log_turn = (
        peak - joint
    )  # rows up to i* = κF/(1+a²) use the first entry, the rest Σ 1/i ≤ 1/i* + log(n/i*)
    return log_sum([peak, peak - log_turn, peak + log_(math.log(n) - log_turn)])


def _log_cells(A: Tensor, radius: float) -> tuple[float, float]:
    """Checked (log a, log of the least N_t e^{t+g*} over t)."""
    values = torch.linalg.svdvals(check_square("A", A).double()).tolist()
    log_radius, rank = log_(check_number("radius", radius, minimum=0)), rank_of(values)
    sides = [math.log(2) + log_(value) + 2 * log_radius + log_(rank) / 2 for value in values[:rank]]

    def count(log_t: float) -> float:
        return exp(log_t) + sum(log_add(0.0, side - log_t) for side in sides)

    high = math.log(rank + 1)  # far out, the best t is the rank
    cells = min(smallest(count, -20.0, high + 2), count(0.0), count(high))  # any t gives a bound
    return log_(values[0]) + 2 * log_radius, cells + exp(log_(score_gap_upper(A)) + 2 * log_radius)
