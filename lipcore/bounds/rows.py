r"""The largest norm of one row of the Jacobian, without the term of its own query.

Mixing and others' keys (the key term) together send H to :math:`V\sum_jP_{ij}T_{ij}^\top h_j` with
:math:`T_{ij}g = g + (g\cdot(x_j-m_i))\,Ax_i`. Since :math:`\sum_jP_{ij}(x_j-m_i) = 0`, the cross
term of the square vanishes, and :math:`1 + a` becomes :math:`\sqrt{1+a^2}`. Among all rows, the
largest norm is that of a row with two tokens.
"""

from __future__ import annotations

import math

from lipcore._checks import check_number
from lipcore.bounds._logarithms import exp, finish, log_add, log_one_plus, smallest


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
        return finish(0.0, log)
    square = 2 * (math.log(a) + math.log1p(1 / a / a / 4))
    return finish(log_add(0.0, square) - math.log(2), log)


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
    log_peak = math.log(-smallest(minus_value, 0.2, 0.55)) + 2 * math.log1p(2 * a) + 5e-14
    return finish(log_peak, log)


def log_torn(log_a: float) -> float:
    """Return log G(a) for every a; for large a, G is a²/2 to all digits."""
    return torn_peak(exp(log_a), log=True) if log_a < 300 else 2 * log_a - math.log(2)


def log_two_dirac(log_a: float) -> float:
    """Return log κF(a) for every a; for large a, F vanishes beside κ."""
    a = exp(log_a)
    return math.inf if a == math.inf else 2 * a + two_dirac_peak(min(a, 1e300), log=True)


def log_seen(n: int, log_across: float) -> float:
    r"""Return log √n(1 + √2 M_n + ω/√2), ‖V‖ = 1, ω what V sees across (:prf:ref:`thm-every-seen`).

    .. math:: M_n = \max_{0\le p\le1} p(1-p)\Big(\log\frac p{1-p} + \log(n-1)\Big)
        \le \tfrac14\,(1 + \log n)
    """
    log_others = math.log(n - 1)

    def minus_value(x: float) -> float:  # x = log p/(1−p); the best lies in [0, 1.55]
        return -(x + log_others) / (2 + 2 * math.cosh(x))

    along = -math.sqrt(2) * smallest(minus_value, 0.0, 1.6) * (1 + 5e-14)
    return math.log(n) / 2 + log_add(math.log1p(along), log_across - math.log(2) / 2)


def log_rows(n: int | None, log_a: float, log_columns: float) -> float:
    r"""Return log √n ρ, the least of (1+a²)·(largest column sum), nG(a) and κF(a), halved."""
    entries = [log_one_plus(2 * log_a) + log_columns, log_two_dirac(log_a)]
    if n is not None:
        entries.append(math.log(n) + log_torn(log_a))
    return min(entries) / 2
