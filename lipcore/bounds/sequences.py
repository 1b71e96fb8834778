r"""Upper bounds for n tokens in the ball: the general bound, the unified bound and its sharp forms.

The module :mod:`lipcore.bounds` says which sizes they take, and what they refuse.
"""

from __future__ import annotations

import math

from torch import Tensor

from lipcore._checks import check_count
from lipcore.bounds._columns import log_column_sum, log_size_and_gap
from lipcore.bounds._logarithms import (
    finish,
    log_add,
    log_norm,
    log_one_plus,
    log_sizes,
    log_times,
    with_own_query,
)
from lipcore.bounds.rows import log_rows, log_torn


def general_upper(
    *, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Return the general bound of Castin, Ablin & Peyré 2024 (:prf:ref:`thm-upper-general`).

    .. math:: \mathrm{Lip}(f|B_R^n) \le \sqrt3\, \|V\|_2 \big( \|A\|_2^2 R^4 (4n+1) + n \big)^{1/2}

    It holds with a causal mask too (:prf:ref:`thm-masked-upper`).

    Examples
    --------
    >>> round(general_upper(n=4, radius=1.0, norm_a=0.0, norm_v=1.0) ** 2, 6)
    12.0
    """
    n = check_count("n", n)
    log_a, log_v = log_sizes(radius, norm_a, norm_v)
    return finish(log_times(log_v, log_general(n, log_a)), log)


def log_general(n: int, log_a: float) -> float:
    """Return log( √3 (a²(4n+1) + n)^{1/2} )."""
    return (math.log(3) + log_add(2 * log_a + math.log(4 * n + 1), math.log(n))) / 2


def unified_upper(
    *, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Return the unified bound, for short and long inputs at once (:prf:ref:`thm-upper-unified`).

    .. math:: \mathrm{Lip}(f|B_R^n) \le
        \|V\|_2 \Big( \sqrt{(1+a^2)\, \tfrac{n\kappa}{n+\kappa-1}} + a \Big)

    It grows as √n for n ≪ κ and stops at the mean-field bound for n ≫ κ. It depends on A through
    its norm alone; :func:`unified_upper_rate` uses A itself.

    Examples
    --------
    >>> unified_upper(n=9, radius=1.0, norm_a=0.0, norm_v=1.0)  # averaging has norm one
    1.0
    """
    n = check_count("n", n)
    log_a, log_v = log_sizes(radius, norm_a, norm_v)
    mixing = (log_one_plus(2 * log_a) + log_column_sum(n, log_a)) / 2
    return with_own_query(log_v, mixing, log_a, log)


def unified_upper_sharp(
    *, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Return the unified bound with mixing and others' keys as one row (:prf:ref:`thm-every-row`).

    .. math:: \mathrm{Lip}(f|B_R^n) \le \|V\|_2 \Big( \min\Big( (1+a^2)\frac{n\kappa}{n+\kappa-1},\;
        n\,G(a),\; \kappa F(a) \Big)^{1/2} + a \Big)

    with G of :func:`torn_peak` and F of :func:`two_dirac_peak`. Others' keys is the key term of the
    Jacobian. The bound is never above :func:`unified_upper`.

    Examples
    --------
    >>> round(unified_upper_sharp(n=64, radius=1.0, norm_a=5.0, norm_v=1.0), 2)
    34.12
    """
    n = check_count("n", n)
    log_a, log_v = log_sizes(radius, norm_a, norm_v)
    return with_own_query(log_v, log_rows(n, log_a, log_column_sum(n, log_a)), log_a, log)


def torn_upper(*, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False) -> float:
    r"""Return the second entry of :prf:ref:`thm-every-row`, for torn queries, n ≪ κ and every mask.

    .. math:: \mathrm{Lip}(f|B_R^n) \le \|V\|_2 \big( \sqrt{n\,G(a)} + a \big),
        \qquad G \sim \tfrac12 a^2

    For :math:`A=-\gamma I` and V = I in dimension two or more, its quotient by the true constant
    tends to one as n and a grow with log n = o(a) (:func:`torn_lower`).

    Examples
    --------
    >>> torn_upper(n=9, radius=1.0, norm_a=0.5, norm_v=1.0)
    3.5
    """
    n = check_count("n", n)
    log_a, log_v = log_sizes(radius, norm_a, norm_v)
    return with_own_query(log_v, (math.log(n) + log_torn(log_a)) / 2, log_a, log)


def unified_upper_rate(
    *, n: int, A: Tensor, radius: float, norm_v: float, log: bool = False
) -> float:
    r"""Return the unified bound for a given A, by its score gap (:prf:ref:`thm-every`).

    .. math:: \mathrm{Lip}(f|B_R^n) \le \|V\|_2 \big( \sqrt{(1+a^2)\,S} + a \big), \qquad
        S = \min\Big( e^{g^*},\; \frac{\kappa}{n+\kappa-1}
        + \frac{(n-1)\,e^{g^*}}{n-1+e^{g^*}} \Big)

    with :math:`g^* = g_AR^2`, at most 2a (:func:`score_gap`). It is never above
    :func:`unified_upper`. For V = I, d ≥ 2 and n ≥ 3 it is right up to a universal factor
    (:prf:ref:`thm-every-rate`). The argument A is a Tensor of shape (d, d).

    Examples
    --------
    >>> import torch
    >>> size = {"A": torch.eye(1, dtype=torch.float64), "radius": 10.0, "norm_v": 1.0}
    >>> unified_upper_rate(n=3, **size) <= unified_upper_rate(n=4, **size)
    True
    """
    n = check_count("n", n)
    log_a, gap = log_size_and_gap(A, radius)
    mixing = (log_one_plus(2 * log_a) + log_column_sum(n, log_a, gap)) / 2
    return with_own_query(log_norm(norm_v), mixing, log_a, log)
