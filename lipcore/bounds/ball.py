r"""Upper bounds for tokens in the ball without a mask, for n tokens or for every n.

All of them are :math:`\|V\|_2(M + a)`, with a for the own query and M for mixing and others' keys
(the key term) together. M comes from the column sums of P, how much attention one key can collect,
or from the norms of the rows of the Jacobian. The row of n tokens sends H to
:math:`V\sum_jP_{ij}T_{ij}^\top h_j` with :math:`T_{ij}g = g + (g\cdot(x_j-m_i))\,Ax_i`. Since
:math:`\sum_jP_{ij}(x_j-m_i) = 0`, the cross term of the square vanishes, and :math:`1 + a` becomes
:math:`\sqrt{1+a^2}`. The module :mod:`lipcore.bounds` says which sizes the bounds take, and what
they refuse.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_count, check_number, check_square
from lipcore.bounds import _logarithms as logs
from lipcore.bounds.gap import score_gap_upper


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
    log_a, log_v = logs.sizes(radius, norm_a, norm_v)
    return logs.exp_unless_log(logs.times(log_v, log_general(n, log_a)), log)


def log_general(n: int, log_a: float) -> float:
    """Return log( √3 (a²(4n+1) + n)^{1/2} )."""
    return (math.log(3) + logs.add(2 * log_a + math.log(4 * n + 1), math.log(n))) / 2


def mean_field_upper_paper(
    *, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Return the bound of Castin, Ablin & Peyré 2024, which :prf:ref:`thm-mf-upper` improves.

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le \|V\|_2 (1+3a) e^{2a}

    Examples
    --------
    >>> size = {"radius": 1.0, "norm_a": 8.0, "norm_v": 1.0}
    >>> mean_field_upper_paper(**size) > unified_upper(**size)
    True
    """
    log_a, log_v = logs.sizes(radius, norm_a, norm_v)
    bound = logs.times(log_v, logs.one_plus(math.log(3), log_a), 2 * logs.exp(log_a))
    return logs.exp_unless_log(bound, log)


def unified_upper(
    *, radius: float, norm_a: float, norm_v: float, n: int | None = None, log: bool = False
) -> float:
    r"""Return the unified bound, for short and long inputs at once (:prf:ref:`thm-upper-unified`).

    .. math:: \mathrm{Lip}(f|B_R^n) \le
        \|V\|_2 \Big( \sqrt{(1+a^2)\, \tfrac{n\kappa}{n+\kappa-1}} + a \Big)

    It grows as √n for n ≪ κ and stops for n ≫ κ. Without n it holds for every n, and for the
    mean-field constant in :math:`W_2` on measures, with half the published exponent
    (:prf:ref:`thm-mf-upper`):

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le \|V\|_2 \big( \sqrt{1+a^2}\, e^{a} + a \big)

    It depends on A through its norm alone; :func:`unified_upper_rate` uses A itself.

    Examples
    --------
    >>> unified_upper(n=9, radius=1.0, norm_a=0.0, norm_v=1.0)  # averaging has norm one
    1.0
    >>> unified_upper(radius=0.0, norm_a=1.0, norm_v=2.0)
    2.0
    """
    n = logs.check_length(n)
    log_a, log_v = logs.sizes(radius, norm_a, norm_v)
    mixing = (logs.one_plus(2 * log_a) + log_column_sum(n, log_a)) / 2
    return logs.with_own_query(log_v, mixing, log_a, log)


def unified_upper_sharp(
    *, radius: float, norm_a: float, norm_v: float, n: int | None = None, log: bool = False
) -> float:
    r"""Return the unified bound with mixing and others' keys as one row (:prf:ref:`thm-every-row`).

    .. math:: \mathrm{Lip}(f|B_R^n) \le \|V\|_2 \Big( \min\Big( (1+a^2)\frac{n\kappa}{n+\kappa-1},\;
        n\,G(a),\; \kappa F(a) \Big)^{1/2} + a \Big)

    with G of :func:`torn_peak` and F of :func:`two_dirac_peak`. Others' keys is the key term of the
    Jacobian. The bound is never above :func:`unified_upper`. Without n it is the third entry, for
    every n and for measures; for :math:`A=-\gamma I` its quotient by the true constant then tends
    to one.

    Examples
    --------
    >>> round(unified_upper_sharp(n=64, radius=1.0, norm_a=5.0, norm_v=1.0), 2)
    34.12
    >>> round(unified_upper_sharp(radius=1.0, norm_a=3.0, norm_v=1.0), 3)
    51.007
    """
    n = logs.check_length(n)
    log_a, log_v = logs.sizes(radius, norm_a, norm_v)
    columns = math.inf if n is None else log_column_sum(n, log_a)  # F is never above 1 + a²
    return logs.with_own_query(log_v, log_rows(n, log_a, columns), log_a, log)


def unified_upper_rate(
    *, A: Tensor, radius: float, norm_v: float, n: int | None = None, log: bool = False
) -> float:
    r"""Return the unified bound for a given A, by its score gap (:prf:ref:`thm-every`).

    .. math:: \mathrm{Lip}(f|B_R^n) \le \|V\|_2 \big( \sqrt{(1+a^2)\,S} + a \big), \qquad
        S = \min\Big( e^{g^*},\; \frac{\kappa}{n+\kappa-1}
        + \frac{(n-1)\,e^{g^*}}{n-1+e^{g^*}} \Big)

    with :math:`g^* = g_AR^2`, at most 2a (:func:`score_gap`). It is never above
    :func:`unified_upper`. For V = I, d ≥ 2 and n ≥ 3 it is right up to a universal factor
    (:prf:ref:`thm-every-rate`). Without n, :math:`S = e^{g^*}`, and the bound holds for every n and
    for measures, with the exact exponential rate (:prf:ref:`thm-mf-rate`): for V = I it is at most
    :math:`64/(3\sqrt3) < 12.4` times the constant itself, whatever A, R and d are. The tests
    enclose the numbers of that proof. The argument A is a Tensor of shape (d, d).

    Examples
    --------
    >>> import torch
    >>> A = torch.eye(1, dtype=torch.float64)  # its rate is 1/8 of unified_upper's
    >>> round(unified_upper_rate(A=A, radius=10.0, norm_v=1.0, log=True), 2)  # 100/8 + log 100
    17.11
    """
    n = logs.check_length(n)
    norm = torch.linalg.matrix_norm(check_square("A", A).double(), 2).item()
    log_square = 2 * logs.log(check_number("radius", radius, minimum=0))
    log_a = logs.log(norm) + log_square
    gap = logs.exp(logs.log(score_gap_upper(A)) + log_square)
    mixing = (logs.one_plus(2 * log_a) + log_column_sum(n, log_a, gap)) / 2
    return logs.with_own_query(logs.norm(norm_v), mixing, log_a, log)


def torn_upper(*, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False) -> float:
    r"""Return the second entry of :prf:ref:`thm-every-row`, for torn queries, n ≪ κ and every mask.

    .. math:: \mathrm{Lip}(f|B_R^n) \le \|V\|_2 \big( \sqrt{n\,G(a)} + a \big),
        \qquad G \sim \tfrac12 a^2

    For :math:`A=-\gamma I` and V = I in dimension two or more, its quotient by the true constant
    tends to one as n and a grow with log n = o(a) (``construction_lower("torn", …)``).

    Examples
    --------
    >>> torn_upper(n=9, radius=1.0, norm_a=0.5, norm_v=1.0)
    3.5
    """
    n = check_count("n", n)
    log_a, log_v = logs.sizes(radius, norm_a, norm_v)
    return logs.with_own_query(log_v, (math.log(n) + log_torn(log_a)) / 2, log_a, log)


# --- column sums of P ----------------------------------------------------------------------------


def log_column_sum(n: int | None, log_a: float, gap: float = math.inf) -> float:
    """Return log S for n tokens, or every n, of score gap at most ``gap`` (:prf:ref:`thm-every`)."""
    spread = 2 * logs.exp(log_a)
    gap = min(gap, spread)
    if n is None:
        return gap
    log_others = logs.log(n - 1)
    own = -logs.one_plus(log_others - spread)
    others = -logs.add(-gap, -log_others)  # 1/(e^{−g} + 1/(n−1))
    return min(gap, max(0.0, logs.add(own, others)), math.log(n))


# --- rows of the Jacobian ------------------------------------------------------------------------


def torn_peak(a: float, *, log: bool = False) -> float:
    r"""Return the G(a) for which n rows have norm at most √(nG(a)) (:prf:ref:`thm-every-row`).

    .. math:: G(a) = \max_{0\le w\le1} w^2(1+2a(1-w))^2 + (1-w)^2(1-2aw)^2
        = \begin{cases} 1 & a \le \frac12 \\
        \frac12 + \frac12\big(a+\frac1{4a}\big)^2 & a \ge \frac12 \end{cases}

    Examples
    --------
    >>> torn_peak(0.5), round(torn_peak(1.0), 9)
    (1.0, 1.28125)
    """
    a = check_number("a", a, minimum=0)
    if a <= 0.5:
        return logs.exp_unless_log(0.0, log)
    square = 2 * (math.log(a) + math.log1p(1 / a / a / 4))
    return logs.exp_unless_log(logs.add(0.0, square) - math.log(2), log)


def two_dirac_peak(a: float, *, log: bool = False) -> float:
    r"""Return the F(a) for which all rows have norm at most e^a√F(a) (:prf:ref:`thm-every-row`).

    .. math:: F(a) = \max_{0\le w\le 1} \Big(1-w+\frac w\kappa\Big)
        \Big( w\,(1+2a(1-w))^2 + \frac{(1-w)(1-2aw)^2}{\kappa} \Big), \qquad \kappa = e^{2a}

    For :math:`A=-\gamma I` two antipodal Diracs reach :math:`e^a\sqrt F`, so that no smaller F is
    possible; as a grows, :math:`F \sim \frac{27}{64}a^2`. The tests enclose the maximum by interval
    arithmetic: the returned number is above it, by a relative 2e-13 at most.

    Examples
    --------
    >>> round(two_dirac_peak(0.0), 9), round(two_dirac_peak(3.0), 6)
    (1.0, 5.712594)
    """
    a = check_number("a", a, minimum=0)
    inverse = math.exp(-2 * a)
    one = 1 / (1 + 2 * a)  # squares in units of (1 + 2a)²: no overflow
    two_a = 2 * a * one

    def minus_value(w: float) -> float:
        rare = one + two_a * (1 - w)
        common = one - two_a * w
        return -(1 - w + w * inverse) * (w * rare * rare + (1 - w) * common * common * inverse)

    # the best w falls from 1/2 to 1/4 as a grows; the small term makes up for rounding
    log_peak = math.log(-logs.minimum_on(minus_value, 0.2, 0.55)) + 2 * math.log1p(2 * a) + 5e-14
    return logs.exp_unless_log(log_peak, log)


def log_torn(log_a: float) -> float:
    """Return log G(a) for every a; for large a, G is a²/2 to all digits."""
    return torn_peak(logs.exp(log_a), log=True) if log_a < 300 else 2 * log_a - math.log(2)


def log_two_dirac(log_a: float) -> float:
    """Return log κF(a) for every a; for large a, F vanishes beside κ."""
    a = logs.exp(log_a)
    return math.inf if a == math.inf else 2 * a + two_dirac_peak(min(a, 1e300), log=True)


def log_rows(n: int | None, log_a: float, log_columns: float) -> float:
    """Return half the log of the least of (1+a²)·(largest column sum), nG(a) and κF(a)."""
    entries = [logs.one_plus(2 * log_a) + log_columns, log_two_dirac(log_a)]
    if n is not None:
        entries.append(math.log(n) + log_torn(log_a))
    return min(entries) / 2


def log_seen(n: int, log_across: float) -> float:
    """Return log √n(1+√2M_n+ω/√2), ω what V sees across queries (:prf:ref:`thm-every-seen`)."""
    # M_n is the maximum of p(1−p)(log p/(1−p) + log(n−1)) over p
    log_others = math.log(n - 1)

    def minus_value(x: float) -> float:  # x = log p/(1−p); the best lies in [0, 1.55]
        return -(x + log_others) / (2 + 2 * math.cosh(x))

    along = -math.sqrt(2) * logs.minimum_on(minus_value, 0.0, 1.6) * (1 + 5e-14)
    return math.log(n) / 2 + logs.add(math.log1p(along), log_across - math.log(2) / 2)
