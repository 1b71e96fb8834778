r"""How much attention one key can collect: bounds of the column sums of P.

Every upper bound for the ball is a function of a, n and these sums. Without a mask they are at most
:math:`e^{g^*}` (:prf:ref:`lem-columns`). With a causal mask that is not true, even up to powers of
a (:prf:ref:`thm-masked-planes`); there the ball is cut into cells within which scores vary little,
and the queries of a cell are keys of it too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_number, check_square
from lipcore.bounds._logarithms import exp, log_, log_add, log_one_plus, smallest
from lipcore.bounds._matrices import rank_of
from lipcore.bounds.gap import score_gap_upper


def log_column_sum(n: int | None, log_a: float, gap: float = math.inf) -> float:
    r"""log S of n tokens, or of every n, whose scores allow a gap g* (:prf:ref:`thm-every`).

    .. math:: S = \min\Big( e^{g^*},\; \frac{\kappa}{n+\kappa-1}
        + \frac{(n-1)e^{g^*}}{n-1+e^{g^*}} \Big)

    ``gap`` is an upper bound of g*; left out, 2a, and S is nκ/(n+κ−1).
    """
    spread = 2 * exp(log_a)
    gap = min(gap, spread)
    if n is None:
        return gap
    log_others = log_(n - 1)
    own = -log_one_plus(log_others - spread)
    others = -log_add(-gap, -log_others)  # 1/(e^{−g} + 1/(n−1))
    return min(gap, max(0.0, log_add(own, others)), math.log(n))


def log_size_and_gap(A: Tensor, radius: float) -> tuple[float, float]:
    """Checked (log a, g*)."""
    norm = torch.linalg.matrix_norm(check_square("A", A).double(), 2).item()
    log_square = 2 * log_(check_number("radius", radius, minimum=0))
    return log_(norm) + log_square, exp(log_(score_gap_upper(A)) + log_square)


def log_causal_column_sum(n: int, log_a: float) -> float:
    """log min(n, 1 + κ log(1 + (n−1)/κ)): the same with a causal mask, Σ_i κ/(κ+i−1)."""
    log_kappa = 2 * exp(log_a)
    log_others = log_(n - 1)
    if n == 1 or log_kappa == math.inf:
        return math.log(n)
    harmonic = log_one_plus(log_others - log_kappa)  # log(1 + (n−1)/κ)
    if harmonic > 1e-8:
        log_others = min(log_others, log_kappa + math.log(harmonic))
    return min(math.log(n), log_one_plus(log_others))


def log_cells(A: Tensor, radius: float) -> tuple[float, float]:
    """Checked (log a, log N e^{1+g*}), with N = (2a√r+1)^r cells, for causal masks."""
    values = torch.linalg.svdvals(check_square("A", A).double()).tolist()
    log_square = 2 * log_(check_number("radius", radius, minimum=0))
    log_a = log_(values[0]) + log_square
    rank = rank_of(values)
    log_n = rank * log_one_plus(math.log(2), log_a, log_(rank) / 2)
    return log_a, log_n + 1 + exp(log_(score_gap_upper(A)) + log_square)


def log_least_cells(A: Tensor, radius: float, *, below: float) -> float:
    """log of the least N_t e^{t+g*} over t, N_t = Π_i(2a_i√r/t+1), a_i the singular values of R²A.

    Infinite where that is not below the given number: often seen before the score gap is computed,
    as g* is at least a quarter of a.
    """
    log_square = 2 * log_(radius)
    values = torch.linalg.svdvals(A).tolist()
    rank = rank_of(values)
    quarter = exp(log_(values[0]) + log_square) / 4
    if quarter >= below:
        return math.inf
    sides = [math.log(2) + log_(v) + log_square + log_(rank) / 2 for v in values[:rank]]

    def count(log_t: float) -> float:
        return exp(log_t) + sum(log_one_plus(side - log_t) for side in sides)

    high = math.log(rank + 1)  # far out, the best t is the rank
    cells = min(smallest(count, -20.0, high + 2), count(0.0), count(high))  # any t gives a bound
    if cells + quarter >= below:
        return math.inf
    return cells + exp(log_(score_gap_upper(A)) + log_square)
