r"""Bounds of the column sums of P: how much attention one key can collect.

Every upper bound for the ball is a function of a, n and these sums. Without a mask they are at most
:math:`e^{g^*}` (:prf:ref:`lem-columns`). With a causal mask this fails, even up to powers of a
(:prf:ref:`thm-masked-planes`). There the ball is cut into cells in which scores vary by at most t,
and the queries of a cell are also keys of it. As A sees it, the ball is an ellipsoid whose
semi-axes a_i are the singular values of R²A (:prf:ref:`thm-masked-rate`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_number, check_square
from lipcore.bounds._logarithms import exp, log_, log_add, log_one_plus, smallest
from lipcore.bounds._matrices import rank_of
from lipcore.bounds.gap import score_gap_upper

#: Values of log c for which numbers of Voronoi cells are computed; every c gives a bound.
_LOG_C = torch.linspace(-30, 6, 145, dtype=torch.float64)


def log_column_sum(n: int | None, log_a: float, gap: float = math.inf) -> float:
    r"""Return log S of n tokens, or of every n, whose scores have a gap g* (:prf:ref:`thm-every`).

    .. math:: S = \min\Big( e^{g^*},\; \frac{\kappa}{n+\kappa-1}
        + \frac{(n-1)e^{g^*}}{n-1+e^{g^*}} \Big)

    The argument ``gap`` is an upper bound of g*. It is 2a if left out, and S is then nκ/(n+κ−1).
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
    """Return (log a, g*), after checking the arguments."""
    norm = torch.linalg.matrix_norm(check_square("A", A).double(), 2).item()
    log_square = 2 * log_(check_number("radius", radius, minimum=0))
    return log_(norm) + log_square, exp(log_(score_gap_upper(A)) + log_square)


def log_causal_column_sum(n: int, log_a: float) -> float:
    """Return log min(n, 1 + κ log(1 + (n−1)/κ)), for a causal mask: Σ_i κ/(κ+i−1)."""
    log_kappa = 2 * exp(log_a)
    log_others = log_(n - 1)
    if n == 1 or log_kappa == math.inf:
        return math.log(n)
    harmonic = log_one_plus(log_others - log_kappa)  # log(1 + (n−1)/κ)
    if harmonic > 1e-8:
        log_others = min(log_others, log_kappa + math.log(harmonic))
    return min(math.log(n), log_one_plus(log_others))


def log_cells(A: Tensor, radius: float) -> tuple[float, float]:
    """Return (log a, log N e^{1+g*}) for causal masks, with N = (1 + 2a·min(2, √r))^r cells.

    The cells are cubes or Voronoi cells (:prf:ref:`thm-masked-rate`), which are fewer from rank
    five on.
    """
    values = torch.linalg.svdvals(check_square("A", A).double()).tolist()
    log_square = 2 * log_(check_number("radius", radius, minimum=0))
    log_a = log_(values[0]) + log_square
    rank = rank_of(values)
    log_n = rank * log_one_plus(math.log(2), log_a, min(math.log(2), log_(rank) / 2))
    return log_a, log_n + 1 + exp(log_(score_gap_upper(A)) + log_square)


def log_least_cells(A: Tensor, radius: float, *, below: float) -> float:
    r"""Return log of the least N_t e^{t+g*} over t, with N_t cells, cubes or Voronoi cells.

    The result is infinite if it is not below the given number. This is often known before the score
    gap is computed, as g* is at least a quarter of a.
    """
    log_square = 2 * log_(radius)
    values = torch.linalg.svdvals(A).tolist()
    rank = rank_of(values)
    quarter = exp(log_(values[0]) + log_square) / 4
    if quarter >= below:
        return math.inf
    axes = torch.tensor([math.log(v) + log_square for v in values[:rank]], dtype=torch.float64)
    high = math.log(rank + 1)  # for large a the best t is near the rank
    found = []
    for log_cells_within in (log_cubes, log_voronoi):

        def count(log_t: float, log_n=log_cells_within) -> float:
            return exp(log_t) + log_n(axes, log_t)

        found += [smallest(count, -20.0, high + 2), count(0.0), count(high)]  # any t gives a bound
    cells = min(found)
    if cells + quarter >= below:
        return math.inf
    return cells + exp(log_(score_gap_upper(A)) + log_square)


def log_cubes(log_axes: Tensor, log_t: float) -> float:
    """Return log Π(1 + 2a_i√r/t), for cubes of diameter t and an ellipsoid of r semi-axes a_i."""
    sides = log_axes + math.log(2) + log_(len(log_axes)) / 2 - log_t
    return torch.logaddexp(sides, torch.zeros_like(sides)).sum().item()


def log_voronoi(log_axes: Tensor, log_t: float) -> float:
    """Return log of the least Π((1+c)(4a_i/t)² + 1 + 1/c)^{1/2} over c > 0, for Voronoi cells."""
    squares = 2 * (log_axes[:, None] + math.log(4) - log_t) + _LOG_C.exp().log1p()
    return torch.logaddexp(squares, (-_LOG_C).exp().log1p()).sum(0).min().item() / 2
