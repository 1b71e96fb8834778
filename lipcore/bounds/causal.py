r"""Bounds for causal attention, from Hardy's inequality, with and without n.

With a causal mask all later tokens see the early keys. The columns of P are then not bounded by the
score gap, even up to powers of a (:prf:ref:`thm-masked-planes`). A row is split into its least
weight, which all keys have, and the rest: Hardy's inequality bounds the first part, and a layer
cake the second (:prf:ref:`lem-masked-cake`). For the exact exponential rate the ball is cut into
cells in which scores vary by at most t, and the queries of a cell are also keys of it. As A sees it,
the ball is an ellipsoid whose semi-axes a_i are the singular values of R²A
(:prf:ref:`thm-masked-rate`).
:mod:`lipcore.bounds` describes the arguments.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from lipcore._checks import check_count, check_number, check_square
from lipcore.bounds import _logarithms as logs
from lipcore.bounds._matrices import rank_of
from lipcore.bounds.ball import log_torn, log_two_dirac
from lipcore.bounds.gap import score_gap_upper
from lipcore.operators import FunctionOperator, LinearOperator

#: Euler's constant γ + 6 log 2: the shift of log n in the norm of causal averaging (Štampach 2022).
_SHIFT = 0.5772156649015329 + 6 * math.log(2)
#: A row's moment is computed at this many weights, before the best is refined.
_GRID = 2048
#: Values of log c for which numbers of Voronoi cells are computed; every c gives a bound.
_LOG_C = torch.linspace(-30, 6, 145, dtype=torch.float64)


def causal_average(n: int, *, dtype: torch.dtype = torch.float64) -> LinearOperator:
    r"""Return uniform causal averaging, the Cesàro operator (:prf:ref:`thm-masked-hardy`).

    .. math:: (C_nh)_i = \frac1i\sum_{j\le i} h_j

    It is causal attention with constant scores: weights :math:`P_{ij} = 1/i` for j ≤ i. Products
    cost O(n).

    Examples
    --------
    >>> import torch
    >>> causal_average(3).matvec(torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64))
    tensor([1., 2., 3.], dtype=torch.float64)
    """
    n = check_count("n", n)
    seen = torch.arange(1, n + 1, dtype=dtype)  # how many tokens row i averages
    # the rows i ≥ j see token j
    products = lambda H: H.cumsum(-1) / seen, lambda G: (G / seen).flip(-1).cumsum(-1).flip(-1)
    return FunctionOperator(*products, seen, (), (n,), (n,))


def causal_average_norm(n: int) -> float:
    r"""Return the norm of :func:`causal_average` for large n, by an approximation that is no bound.

    .. math:: \|C_n\|_2^2 \approx \frac{4}{1 + 4\pi^2/(\log n + \gamma + 6\log 2)^2}
        = 4 - \frac{16\pi^2}{\log^2 n} + \frac{32\pi^2(\gamma + 6\log2)}{\log^3 n} + O(\log^{-4} n)

    It tends to Hardy's constant 2 (:prf:ref:`thm-masked-hardy`). The first term is from Wilf
    (1970); the others are from Štampach (2022), who has the expansion on the right.

    Examples
    --------
    >>> round(causal_average_norm(10**5), 3)
    1.865
    """
    return 2 / math.sqrt(1 + (2 * math.pi / (math.log(check_count("n", n)) + _SHIFT)) ** 2)


def masked_upper(
    *, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Return the bound for causal attention of :prf:ref:`thm-masked-upper` and its split rows.

    .. math:: \mathrm{Lip}(f^m|B_R^n) \le \|V\|_2 \Big( \min\big( (1+a)\sqrt n,\;
        2(1+2a)\,e^a,\; 2(1+2a) + (1+\sqrt2\,a)\sqrt{e^{2a}-1} \big) + a \Big)

    The last two entries do not depend on n. Their 2 is Hardy's constant, and cannot be made smaller
    for a → 0; from a = 0.39 on the last one (:prf:ref:`thm-masked-split`) is the least. The bound
    holds with rotary positions too.

    Examples
    --------
    >>> masked_upper(n=10**9, radius=1.0, norm_a=0.0, norm_v=1.0)
    2.0
    """
    n = check_count("n", n)
    log_a, log_v = logs.sizes(radius, norm_a, norm_v)
    short = logs.one_plus(log_a) + math.log(n) / 2
    mixing = min(short, log_every_n(log_hardy(log_a), log_a))
    return logs.with_own_query(log_v, mixing, log_a, log)


def masked_upper_rate(*, A: Tensor, radius: float, norm_v: float, log: bool = False) -> float:
    r"""Return the bound for every n with the exact exponential rate (:prf:ref:`thm-masked-rate`).

    .. math:: \mathrm{Lip}(f^m|B_R^n) \le
        \|V\|_2 \Big( 2(1+2a)\min\big(e^a, \sqrt{N e^{1+g^*}}\big) + a \Big)

    with :math:`g^* = g_AR^2` and :math:`N = (1 + 2a\min(2, \sqrt r))^r`, r the rank of A. The N
    counts cubes up to rank four, and Voronoi cells beyond. It holds for measures in time and space
    too (:prf:ref:`thm-timed-upper`).

    Examples
    --------
    >>> import torch
    >>> masked_upper_rate(A=torch.zeros(2, 2), radius=3.0, norm_v=1.0)
    2.0
    """
    log_a, cells = log_cells(A, radius)
    mixing = log_hardy(log_a) + min(2 * logs.exp(log_a), cells) / 2
    return logs.with_own_query(logs.norm(norm_v), mixing, log_a, log)


def masked_upper_moments(
    *, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Return the sharper bound for every n (:prf:ref:`thm-masked-split`).

    .. math:: \mathrm{Lip}(f^m|B_R^n) \le
        \|V\|_2 \Big( \min\big( e^a m(a),\; m(a) + (1+\sqrt2\,a)\sqrt{e^{2a}-1} \big) + a \Big),
        \qquad m(a) = \min_{1\le p<2} \big(\tfrac{2}{2-p}\big)^{1/p} M_{p/(p-1)}(a)

    with M the largest moment of one row of attention (:prf:ref:`prop-masked-moments`). Every p
    gives a bound; p = 1 gives :math:`m = 2(1+2a)`, and the best p is near 1.4 for large a, where m is
    within 1e-4 of the least. From a = 0.74 on the second entry is less than the first. It grows as
    :math:`\sqrt2\,a\,e^a`, and the constant of the worst heads as :math:`\tfrac{3\sqrt3}4 a\,e^a`
    (:prf:ref:`thm-masked-price`). The bound holds for masked measures (:prf:ref:`thm-timed-upper`).

    Examples
    --------
    >>> round(masked_upper_moments(radius=1.0, norm_a=0.0, norm_v=1.0), 9)
    2.0
    """
    log_a, log_v = logs.sizes(radius, norm_a, norm_v)
    return logs.with_own_query(log_v, log_every_n(log_moments(log_a), log_a), log_a, log)


def row_moment(a: float, q: float, *, log: bool = False) -> float:
    r"""Return the largest moment of one row of attention (:prf:ref:`prop-masked-moments`).

    .. math:: M_q(a)^q = \max_{0\le w\le1}\; w\,\big(1+2a(1-w)\big)^q + (1-w)\,\big|1-2aw\big|^q

    Two antipodal tokens reach it. The exponent q is at least 2, and may be infinite. The returned
    number is above the maximum, by a relative 3e-13 at most.
    """
    a = check_number("a", a, minimum=0)
    if not q >= 2:
        raise ValueError(f"q: expected a number of at least 2, got {q}")
    log_reach = math.log1p(2 * a)
    if q == math.inf:
        return logs.exp_unless_log(log_reach, log)
    rest = 1 / (1 + 2 * a)  # moments in units of 1 + 2a: no overflow
    share = 2 * a * rest

    def moment(w):
        return w * (1 - share * w) ** q + (1 - w) * abs(rest - share * w) ** q

    grid = torch.linspace(0, 1, _GRID + 1, dtype=torch.float64)
    values = moment(grid)
    near = grid[values.argmax()].item()
    step = 1 / _GRID
    best = -logs.minimum_on(lambda w: -moment(w), max(near - step, 0.0), min(near + step, 1.0))
    log_best = math.log(max(best, values.max().item())) / q + 1e-13  # makes up for rounding
    return logs.exp_unless_log(log_reach + log_best, log)


def log_hardy(log_a: float) -> float:
    """Return log 2(1+2a), from Hardy's constant and the longest deviation in others' keys."""
    return math.log(2) + logs.one_plus(math.log(2), log_a)


@lru_cache(maxsize=256)
def log_moments(log_a: float) -> float:
    """Return log of the least (2/(2−p))^{1/p} M_{p/(p−1)}(a); p = 1 is Hardy's bound."""
    if log_a > 300:  # too small beside e^a to matter
        return log_hardy(log_a)
    a = math.exp(log_a)

    def value(p: float) -> float:
        return math.log(2 / (2 - p)) / p + row_moment(a, p / (p - 1), log=True)

    return min(logs.minimum_on(value, 1.01, 1.7), log_hardy(log_a))


def log_every_n(log_m: float, log_a: float) -> float:
    """Return log min(e^a m, m + (1+√2a)√(κ−1)), for mixing and others' keys of every n."""
    uneven = logs.one_plus(math.log(2) / 2, log_a) + log_uneven(log_a)
    return min(log_m + logs.exp(log_a), logs.add(log_m, uneven))


def log_uneven(log_a: float) -> float:
    """Return log √(κ−1): what the weights of a row above its least add to ‖P‖₂."""
    a = logs.exp(log_a)
    return a + logs.log(-math.expm1(-2 * a)) / 2


def log_separate_terms(n: int | None, log_a: float) -> float:
    """Return log of a bound of mixing plus one of others' keys, which may differ in every pair."""
    even = logs.add(math.log(2), log_uneven(log_a))  # ‖P‖₂ ≤ 2 + √(κ−1)
    mixing = [math.log(2) + logs.exp(log_a), even]
    keys = [math.log(2) + mixing[0], logs.add(math.log(4), math.log(2) / 2 + log_uneven(log_a))]
    if n is not None:
        columns = log_causal_column_sum(n, log_a) / 2
        mixing.append(columns)
        keys.append(columns)
    return logs.add(min(mixing), logs.times(log_a, min(keys)))


def log_masked_rows(n: int, log_a: float) -> float:
    """Return log of the least bound of mixing and others' keys that depends on n."""
    # by columns, P_ij ≤ κ/(κ+i−1) is summed over i (thm-masked-upper, thm-every-row); by rows, row
    # i is a row of attention on i tokens, of square at most min(G, κF/i) (thm-every-row)
    by_columns = logs.one_plus(2 * log_a) + log_causal_column_sum(n, log_a)
    first = log_torn(log_a)
    peak = log_two_dirac(log_a)
    by_rows = math.log(n) + first
    log_turn = peak - first  # rows up to i* = κF/G use G, the others Σ 1/i ≤ 1/i* + log(n/i*)
    if log_turn < math.log(n):
        by_rows = min(by_rows, logs.total([peak, first, peak + logs.log(math.log(n) - log_turn)]))
    return min(by_columns, by_rows) / 2


# --- column sums of P, and cells -----------------------------------------------------------------


def log_causal_column_sum(n: int, log_a: float) -> float:
    """Return log min(n, 1 + κ log(1 + (n−1)/κ)), for a causal mask: Σ_i κ/(κ+i−1)."""
    log_kappa = 2 * logs.exp(log_a)
    log_others = logs.log(n - 1)
    if n == 1 or log_kappa == math.inf:
        return math.log(n)
    harmonic = logs.one_plus(log_others - log_kappa)  # log(1 + (n−1)/κ)
    if harmonic > 1e-8:
        log_others = min(log_others, log_kappa + math.log(harmonic))
    return min(math.log(n), logs.one_plus(log_others))


def log_cells(A: Tensor, radius: float) -> tuple[float, float]:
    """Return (log a, log N e^{1+g*}), with N = (1 + 2a·min(2, √r))^r cubes or Voronoi cells."""
    values = torch.linalg.svdvals(check_square("A", A).double()).tolist()
    log_square = 2 * logs.log(check_number("radius", radius, minimum=0))
    log_a = logs.log(values[0]) + log_square
    rank = rank_of(values)
    log_n = rank * logs.one_plus(math.log(2), log_a, min(math.log(2), logs.log(rank) / 2))
    return log_a, log_n + 1 + logs.exp(logs.log(score_gap_upper(A)) + log_square)


def log_least_cells(A: Tensor, radius: float, *, below: float) -> float:
    """Return log of the least N_t e^{t+g*} over t, or infinity if it is not ``below`` a number."""
    log_square = 2 * logs.log(radius)
    values = torch.linalg.svdvals(A).tolist()
    rank = rank_of(values)
    # a quarter of a: g* is no less, and costs more to know
    quarter = logs.exp(logs.log(values[0]) + log_square) / 4
    if quarter >= below:
        return math.inf
    axes = torch.tensor([math.log(v) + log_square for v in values[:rank]], dtype=torch.float64)
    high = math.log(rank + 1)  # for large a the best t is near the rank
    cells = math.inf
    for log_cells_within in (log_cubes, log_voronoi):

        def count(log_t: float, log_n=log_cells_within) -> float:  # any t gives a bound
            return logs.exp(log_t) + log_n(axes, log_t)

        cells = min(cells, logs.minimum_on(count, -20.0, high + 2), count(0.0), count(high))
    if cells + quarter >= below:
        return math.inf
    return cells + logs.exp(logs.log(score_gap_upper(A)) + log_square)


def log_cubes(log_axes: Tensor, log_t: float) -> float:
    """Return log Π(1 + 2a_i√r/t), for cubes of diameter t and an ellipsoid of r semi-axes a_i."""
    sides = log_axes + math.log(2) + logs.log(len(log_axes)) / 2 - log_t
    return torch.logaddexp(sides, torch.zeros_like(sides)).sum().item()


def log_voronoi(log_axes: Tensor, log_t: float) -> float:
    """Return log of the least Π((1+c)(4a_i/t)² + 1 + 1/c)^{1/2} over c > 0, for Voronoi cells."""
    squares = 2 * (log_axes[:, None] + math.log(4) - log_t) + _LOG_C.exp().log1p()
    return torch.logaddexp(squares, (-_LOG_C).exp().log1p()).sum(0).min().item() / 2
