"""Bounds for attention with squared distances (L2 attention), on all inputs."""

import math
from collections.abc import Sequence

from scipy.special import lambertw

from lipcore._checks import check_count, require
from lipcore.bounds import _logarithms as logs


def l2_attention_upper(
    *,
    n: int,
    head_dim: int,
    norms_q: Sequence[float],
    norms_v: Sequence[float],
    norm_o: float = 1.0,
    log: bool = False,
) -> float:
    r"""Return the least of :prf:ref:`thm-zoo-l2` and :prf:ref:`thm-zoo-fourth`, for any tokens.

    .. math:: \Big( \sum_h \|Q_h\|_2^4\|V_h\|_2^2 \Big)^{1/2} \frac{\|W^O\|_2}{\sqrt k}\; \min\Big\{
        \mu + 2^{3/4}\sqrt c\, n^{1/4} + 2c,\;\; \sqrt{e\,c_k} + 2c + 2\sqrt{2c\,c_k} \Big\}

    with :math:`c e^{c+1} = n - 1`, :math:`\mu^2 = \min(\sqrt n, \tfrac12\sqrt n + \tfrac54)` and
    :math:`c_k = (3 + \sqrt{2\pi k})^k`. The first bound holds in every head dimension k, and
    :math:`n^{1/4}\sqrt{\log n}` is the exact order over all k. The second grows no faster than log
    n for a fixed k. ``norms_q`` and ``norms_v`` are spectral norms, one for each head.
    """
    n = check_count("n", n)
    k = check_count("head_dim", head_dim)
    heads = log_heads(k, norms_q, norms_v, norm_o)
    c = distance_spread(n)
    log_n = math.log(n)
    mixing = min(log_n / 2, logs.add(log_n / 2 - math.log(2), math.log(1.25))) / 2  # log μ
    any_dimension = logs.add(mixing, log_n / 4 + 0.75 * math.log(2) + logs.log(c) / 2)
    columns = k * math.log(3 + math.sqrt(2 * math.pi * k))  # log c_k
    this_dimension = columns / 2 + math.log(math.sqrt(math.e) + 2 * math.sqrt(2 * c))
    total = logs.add(min(any_dimension, this_dimension), logs.log(2 * c))
    return logs.exp_unless_log(logs.times(total, heads), log)


def distance_spread(n: int) -> float:
    """Return c with c e^{c+1} = n − 1, the largest mean of ‖y_i − y_j‖² under a row of weights."""
    return float(lambertw(logs.exp(logs.log(n - 1) - 1)).real)


def log_heads(
    head_dim: int, norms_q: Sequence[float], norms_v: Sequence[float], norm_o: float, power: int = 4
) -> float:
    """Return the logarithm of (Σ_h ‖Q_h‖^power ‖V_h‖²)^{1/2} ‖W^O‖ / √k."""
    heads = len(norms_q)
    require(len(norms_v) == heads, "norms_v", f"{heads} numbers as norms_q has", len(norms_v))
    squares = [
        power * logs.norm(q, "norms_q") + 2 * logs.norm(v, "norms_v")
        for q, v in zip(norms_q, norms_v, strict=True)
    ]
    return logs.times((logs.total(squares) - math.log(head_dim)) / 2, logs.norm(norm_o, "norm_o"))
