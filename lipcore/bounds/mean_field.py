r"""Upper bounds in the mean-field regime, in :math:`W_2` on measures in the ball: chapter 7.

They hold for sequences of n tokens too, whatever n. Their arguments are said in
:mod:`lipcore.bounds`.
"""

from __future__ import annotations

import math

from torch import Tensor

from lipcore.bounds._columns import log_cells, log_column_sum
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
    r"""The published bound of Castin, Ablin & Peyré 2024, which :prf:ref:`thm-mf-upper` improves.

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
    r"""The bound with half the published exponent (:prf:ref:`thm-mf-upper`).

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le \|V\|_2 \big( (1+a) e^{a} + a \big)

    Examples
    --------
    >>> mean_field_upper(radius=0.0, norm_a=1.0, norm_v=2.0)
    2.0
    """
    log_a, log_v = log_sizes(radius, norm_a, norm_v)
    return with_own_query(log_v, log_one_plus(log_a) + exp(log_a), log_a, log)


def mean_field_upper_sharp(
    *, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""The bound with the exact leading constant, third entry of :prf:ref:`thm-every-row`.

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le \|V\|_2 \big( e^{a}\sqrt{F(a)} + a \big)

    with F of :func:`two_dirac_peak`. For :math:`A=-\gamma I` its quotient by the true constant
    tends to one.

    Examples
    --------
    >>> round(mean_field_upper_sharp(radius=1.0, norm_a=3.0, norm_v=1.0), 3)
    51.007
    """
    log_a, log_v = log_sizes(radius, norm_a, norm_v)
    return with_own_query(log_v, log_two_dirac(log_a) / 2, log_a, log)


def mean_field_upper_rate(*, A: Tensor, radius: float, norm_v: float, log: bool = False) -> float:
    r"""The bound with the exact exponential rate (:prf:ref:`thm-mf-rate`).

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le
        \|V\|_2 \Big( (1+a)\sqrt{\min(\kappa, N e^{1+g^*})} + a \Big),
        \qquad g^* = g_A R^2,\quad N = (2a\sqrt r + 1)^r,\quad r = \mathrm{rank}\, A

    A : Tensor, shape (d, d).

    Examples
    --------
    >>> import torch
    >>> A = torch.eye(1, dtype=torch.float64)  # its rate is 1/8 of mean_field_upper's
    >>> 12.5 < mean_field_upper_rate(A=A, radius=10.0, norm_v=1.0, log=True) < 21
    True
    """
    log_a, cells = log_cells(A, radius)
    mixing = log_one_plus(log_a) + min(log_column_sum(None, log_a), cells) / 2
    return with_own_query(log_norm(norm_v), mixing, log_a, log)
