"""Upper bounds in n, ‖A‖, ‖V‖ and the radius alone."""

from __future__ import annotations

import math

from torch import Tensor

from lipcore._checks import check_real_tensor
from lipcore.bounds._logarithms import (
    exp,
    finish,
    log_add,
    log_column_sum,
    log_inputs,
    log_three_terms,
    log_times,
)


def general_upper(
    *, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Upper bound for n tokens in the ball of radius R (Castin, Ablin & Peyré 2024; theory §2).

    .. math:: \mathrm{Lip}(f|B_R^n) \le \sqrt3\, \|V\|_2 \big( \|A\|_2^2 R^4 (4n+1) + n \big)^{1/2}

    The same bound holds with a causal mask.

    Parameters
    ----------
    n : int
        Number of tokens.
    radius : float
        Largest norm of a token.
    norm_a, norm_v : float
        Spectral norms of A and V.
    log : bool
        Whether to return the logarithm of the bound.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        If n < 1, or a norm or radius is negative or not finite.

    Examples
    --------
    >>> round(general_upper(n=4, radius=1.0, norm_a=0.0, norm_v=1.0), 6) == round((3 * 4) ** 0.5, 6)
    True
    """
    n, log_a, log_v = log_inputs(n, radius, norm_a, norm_v)
    inside = log_add(2 * log_a + math.log(4 * n + 1), math.log(n))
    return finish(log_times(log_v, (math.log(3) + inside) / 2), log)


def unified_upper(
    *, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""One upper bound for every regime (this book; theory §4).

    .. math:: \mathrm{Lip}(f|B_R^n) \le \|V\|_2 \Big( (1+a) \sqrt{\tfrac{n\kappa}{n+\kappa-1}} + a \Big)

    It grows as √n for n ≪ κ and stops at the mean-field bound for n ≫ κ.

    Parameters
    ----------
    n, radius, norm_a, norm_v, log
        As in :func:`general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`general_upper`.

    Examples
    --------
    >>> unified_upper(n=9, radius=1.0, norm_a=0.0, norm_v=1.0)  # constant scores: averaging, norm one
    1.0
    """
    n, log_a, log_v = log_inputs(n, radius, norm_a, norm_v)
    mixing = log_column_sum(n, log_a) / 2
    return finish(log_times(log_v, log_three_terms(log_a, mixing, keys=1)), log)


def mean_field_upper(*, radius: float, norm_a: float, norm_v: float, log: bool = False) -> float:
    r"""Upper bound in the mean-field regime, in :math:`W_2` on measures in the ball (this book; theory §5).

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le \|V\|_2 \big( (1+a) e^{a} + a \big)

    Parameters
    ----------
    radius, norm_a, norm_v, log
        As in :func:`general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`general_upper`.

    Examples
    --------
    >>> mean_field_upper(radius=0.0, norm_a=1.0, norm_v=2.0)
    2.0
    """
    _, log_a, log_v = log_inputs(1, radius, norm_a, norm_v)
    return finish(log_times(log_v, log_three_terms(log_a, exp(log_a), keys=1)), log)


def mean_field_upper_paper(
    *, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Upper bound in the mean-field regime as published (Castin, Ablin & Peyré 2024; theory §5).

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le \|V\|_2 (1+3a) e^{2a}

    Parameters
    ----------
    radius, norm_a, norm_v, log
        As in :func:`general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`general_upper`.

    Examples
    --------
    >>> size = {"radius": 1.0, "norm_a": 8.0, "norm_v": 1.0}
    >>> mean_field_upper_paper(**size) > mean_field_upper(**size)
    True
    """
    _, log_a, log_v = log_inputs(1, radius, norm_a, norm_v)
    return finish(log_times(log_v, log_add(0.0, math.log(3) + log_a), 2 * exp(log_a)), log)


def masked_upper(
    *, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Upper bound for causal attention (this book; theory §7).

    .. math:: \mathrm{Lip}(f^m|B_R^n) \le \|V\|_2 \min\big( (1+a)\sqrt n + a,\; 2(1+2a) e^{a} + a \big)

    The second entry does not depend on n; its 2 is Hardy's constant, and cannot be made smaller.

    Parameters
    ----------
    n, radius, norm_a, norm_v, log
        As in :func:`general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`general_upper`.

    Examples
    --------
    >>> masked_upper(n=10**9, radius=1.0, norm_a=0.0, norm_v=1.0)
    2.0
    """
    n, log_a, log_v = log_inputs(n, radius, norm_a, norm_v)
    short = log_three_terms(log_a, math.log(n) / 2, keys=1)
    long = log_three_terms(log_a, math.log(2) + exp(log_a), keys=2)
    return finish(log_times(log_v, min(short, long)), log)


def layer_norm_radius(*, gain: Tensor, bias: Tensor | None = None) -> float:
    r"""Radius of a ball that holds every token that layer normalisation can produce (theory §8).

    .. math:: R \le \sqrt d\, \max_r |g_r| + \|b\|

    Parameters
    ----------
    gain : Tensor, shape (d,)
        The g of ``LayerNorm`` or ``RMSNorm``.
    bias : Tensor, shape (d,), optional
        The b of ``LayerNorm``; left out (RMSNorm), zero.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        If either is not a finite real vector, or their lengths differ.

    Examples
    --------
    >>> import torch
    >>> layer_norm_radius(gain=torch.ones(4), bias=torch.tensor([0.0, 0.0, 3.0, 4.0]))
    7.0
    """
    gain = check_real_tensor("gain", gain, ndim=1).double()
    if not len(gain):
        raise ValueError(f"gain: expected at least one entry, got shape {tuple(gain.shape)}")
    radius = math.sqrt(len(gain)) * gain.abs().amax().item()
    if bias is None:
        return radius
    bias = check_real_tensor("bias", bias, ndim=1).double()
    if bias.shape != gain.shape:
        raise ValueError(
            f"bias: expected shape {tuple(gain.shape)} as gain has, got {tuple(bias.shape)}"
        )
    return radius + bias.norm().item()
