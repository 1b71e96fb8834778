"""Bounds that others have published, in the notation of this book; names are author and year.

Each docstring says what the statement assumes, and whether it was found to hold here.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lab.l2 import distance_spread, log_heads
from lipcore._checks import check_count, check_number, check_real_tensor, require
from lipcore.attention import Attention
from lipcore.bounds import _logarithms as logs
from lipcore.bounds._matrices import norms, product_norm
from lipcore.bounds.layer import join_heads


def yudin2025_local_upper(attention: Attention, X: Tensor) -> Tensor:
    r"""Return a local bound from each row's two largest weights (:prf:ref:`thm-rivals-yudin`).

    .. math:: \|D_X f\|_2 \le \|V\|_2 \Big( \|P\|_2 + 2\|X\|_2^2\|A\|_2 \max_i g(P_i) \Big), \qquad
        g(p) = p_{(1)}\big(1 - p_{(1)} + p_{(2)}\big)

    Yudin et al. 2025 assume scores that are bilinear in the tokens. The bound is found to hold.
    """
    _check_bilinear(attention)
    P = attention.weights(X)  # (…, heads, n, n)
    peak = softmax_norm_upper(P).amax(-1)  # (…, heads)
    size = attention.scale * product_norm(attention.query, attention.key)  # ‖A_h‖
    reach = 2 * torch.linalg.matrix_norm(X, 2)[..., None] ** 2 * size
    factors = torch.linalg.matrix_norm(P, 2) + reach * peak
    projected = attention.value_norms() * factors
    return join_heads(attention, norms(attention.value) * factors, projected)


def softmax_norm_upper(p: Tensor) -> Tensor:
    """Return p₁ (1 − p₁ + p₂), a bound of the softmax's Jacobian (:prf:ref:`lem-rivals-softmax`)."""
    check_real_tensor("p", p, min_ndim=1)
    if p.shape[-1] == 1:
        return torch.zeros_like(p[..., 0])
    ordered = p.sort(dim=-1, descending=True).values
    # 1 − p₁ as a sum: near one-hot rows the difference loses its digits
    return ordered[..., 0] * (ordered[..., 1:].sum(-1) + ordered[..., 1])


def emadi2026_softmax_norm(p: Tensor) -> Tensor:
    r"""Return the ∞→1 norm of the softmax's Jacobian at p (:prf:ref:`prop-rivals-emadi`).

    The identity of Emadi 2026, :math:`4\max_S p(S)(1-p(S))`, is found to hold. Up to 16 tokens
    every S is tried; beyond, the result is exact if an entry of p (…, n) is more than a half, and
    the upper bound 1 otherwise.
    """
    check_real_tensor("p", p, min_ndim=1)
    n = p.shape[-1]
    largest = p.amax(-1)
    if n > 16:
        return torch.where(largest > 0.5, 4 * largest * (1 - largest), 1.0)
    numbers = torch.arange(2 ** (n - 1), device=p.device)[:, None]
    subsets = (numbers >> torch.arange(n, device=p.device) & 1).to(p.dtype)
    inside = p @ subsets.mT  # (…, 2^{n−1}); complements give the same value
    outside = p @ (1 - subsets).mT  # 1 − p(S), without losing digits
    return (4 * inside * outside).amax(-1)


def emadi2026_token_upper(
    *, radius: float, norm_a: float, norm_v: float, theta: float = 1.0, log: bool = False
) -> float:
    r"""Return a bound in the largest-token norm, for every n (:prf:ref:`prop-rivals-emadi`).

    It is :math:`\|V\|_2(1 + 2a\theta)` with :math:`\max_i \theta(P_i) \le \theta \le 1`, for the
    norm :math:`\max_i |x_i|`. Emadi 2026 states it for a layer; that for a head is derived here.
    """
    log_a, log_v = logs.sizes(radius, norm_a, norm_v)
    theta = check_number("theta", theta, minimum=0, maximum=1)
    return logs.exp_unless_log(
        logs.times(log_v, logs.one_plus(math.log(2), log_a, logs.log(theta))), log
    )


def kim2021_l2_upper(
    *,
    n: int,
    head_dim: int,
    norms_q: Sequence[float],
    norms_v: Sequence[float],
    norm_o: float = 1.0,
    log: bool = False,
    power: int = 4,
) -> float:
    r"""Return an upper bound of L2 attention, for tokens anywhere (:prf:ref:`thm-rivals-kim`).

    .. math:: \mathrm{Lip}(f) \le \sqrt{\frac nk}\,\big(4\varphi^{-1}(n-1)+1\big)
        \Big( \sum_h \|Q_h\|_2^4\|V_h\|_2^2 \Big)^{1/2} \|W^O\|_2, \qquad \varphi(x) = xe^{x+1}

    The bound is from Kim, Papamakarios & Mnih 2021, and the power 4 of Q is derived here. It
    assumes query = key, and values through :math:`A_h = Q_h^\top Q_h/\sqrt k`.
    """
    n = check_count("n", n)
    heads = log_heads(check_count("head_dim", head_dim), norms_q, norms_v, norm_o, power)
    mixing = (math.log(n) / 2, math.log1p(4 * distance_spread(n)))
    return logs.exp_unless_log(logs.times(*mixing, heads), log)


def kim2021_l2_upper_restated(**sizes) -> float:
    r"""Return the formula of public code, which is **not a bound** (:prf:ref:`thm-rivals-kim`).

    It has degree one in Q, and the map has degree two: two equal tokens with d = k = 1, Q = 5 and
    V = 1 have a Jacobian of norm 25, and the formula gives 14.9.
    """
    return kim2021_l2_upper(**sizes, power=2)


def castin2024_released_compute_bound(attention: Attention, X: Tensor) -> Tensor:
    r"""Return ``compute_bound`` of the code of *How Smooth Is Attention?*, **not a bound**.

    .. math:: \sum_h \|V_h\|_2 \big( R_h^2 r^2 (n+1) + n \big)^{1/2}, \qquad
        R_h = \max_i \|A_hx_i\|, \quad r = \max_{i,j}\|x_i-x_j\|

    It leaves out :math:`A^\top x`, which matters through the own query: for
    :math:`A = 50\,e_1e_2^\top` and :math:`X = \pm e_1` the Jacobian has norm 50.02, the formula 1.41.
    """
    _check_bilinear(attention)
    n = attention.check_input(X).shape[-2]
    images = X[..., None, :, :] @ attention.score_matrices().mT  # (…, heads, n, d)
    reach = images.norm(dim=-1).amax(-1)  # (…, heads)
    differences = X[..., :, None, :] - X[..., None, :, :]
    diameter = differences.norm(dim=-1).amax((-2, -1))[..., None]
    factors = ((reach * diameter).square() * (n + 1) + n).sqrt()
    return (attention.value_norms() * factors).sum(-1)


def _check_bilinear(attention: Attention) -> None:
    for name in ("query_bias", "rotary", "bias", "sinks", "softcap", "query_norm", "key_norm"):
        is_plain = getattr(attention, name) is None
        require(is_plain, "attention", f"{name}=None, as published", f"a layer with {name}")
