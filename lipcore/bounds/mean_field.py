r"""Upper bounds in the mean-field regime, in :math:`W_2` on measures in the ball.

They hold for sequences of any number n of tokens too. :mod:`lipcore.bounds` describes their
arguments.
"""

from __future__ import annotations

import math

from torch import Tensor

from lipcore.bounds._columns import log_column_sum, log_size_and_gap
from lipcore.bounds._logarithms import (
    exp,
    finish,
    log_norm,
    log_one_plus,
    log_sizes,
    log_times,
    with_own_query,
)
from lipcore.bounds.rows import log_two_dirac


def mean_field_upper_paper(
    *, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Return the bound of Castin, Ablin & Peyré 2024, which :prf:ref:`thm-mf-upper` improves.

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le \|V\|_2 (1+3a) e^{2a}

    Examples
    --------
    >>> size = {"radius": 1.0, "norm_a": 8.0, "norm_v": 1.0}
    >>> mean_field_upper_paper(**size) > mean_field_upper(**size)
    True
    """
    log_a, log_v = log_sizes(radius, norm_a, norm_v)
    return finish(log_times(log_v, log_one_plus(math.log(3), log_a), 2 * exp(log_a)), log)


def mean_field_upper(*, radius: float, norm_a: float, norm_v: float, log: bool = False) -> float:
    r"""Return the bound with half the published exponent (:prf:ref:`thm-mf-upper`).

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le \|V\|_2 \big( \sqrt{1+a^2}\, e^{a} + a \big)

    Examples
    --------
    >>> mean_field_upper(radius=0.0, norm_a=1.0, norm_v=2.0)
    2.0
    """
    log_a, log_v = log_sizes(radius, norm_a, norm_v)
    return with_own_query(log_v, log_one_plus(2 * log_a) / 2 + exp(log_a), log_a, log)


def mean_field_upper_sharp(
    *, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Return the bound with the exact leading constant (:prf:ref:`thm-every-row`, third entry).

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le \|V\|_2 \big( e^{a}\sqrt{F(a)} + a \big)

    with F of :func:`two_dirac_peak`. For :math:`A=-\gamma I` the quotient of the bound and the true
    constant tends to one.

    Examples
    --------
    >>> round(mean_field_upper_sharp(radius=1.0, norm_a=3.0, norm_v=1.0), 3)
    51.007
    """
    log_a, log_v = log_sizes(radius, norm_a, norm_v)
    return with_own_query(log_v, log_two_dirac(log_a) / 2, log_a, log)


def mean_field_upper_rate(*, A: Tensor, radius: float, norm_v: float, log: bool = False) -> float:
    r"""Return the bound with the exact exponential rate (:prf:ref:`thm-mf-rate`).

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le
        \|V\|_2 \big( \sqrt{1+a^2}\; e^{g^*/2} + a \big), \qquad g^* = g_A R^2

    For V = I it is at most :math:`64/(3\sqrt3) < 12.4` times the constant itself, whatever A, R and
    d are (:prf:ref:`thm-every-rate`); the tests enclose the numbers of that proof.

    Parameters
    ----------
    A : Tensor, shape (d, d)
    radius, norm_v : float
    log : bool
        Whether to return the logarithm, which never overflows.

    Examples
    --------
    >>> import torch
    >>> A = torch.eye(1, dtype=torch.float64)  # its rate is 1/8 of mean_field_upper's
    >>> round(mean_field_upper_rate(A=A, radius=10.0, norm_v=1.0, log=True), 2)  # 100/8 + log 100
    17.11
    """
    log_a, gap = log_size_and_gap(A, radius)
    mixing = (log_one_plus(2 * log_a) + log_column_sum(None, log_a, gap)) / 2
    return with_own_query(log_norm(norm_v), mixing, log_a, log)
