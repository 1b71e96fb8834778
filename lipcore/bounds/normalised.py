r"""Bounds for tokens from LayerNorm or RMSNorm, which lie in an ellipsoid, and for pre-norm blocks.

A normalised token is :math:`Gz + b` with :math:`G = \mathrm{diag}(\gamma)`,
:math:`|z| \le \sqrt d`, and for LayerNorm :math:`\sum_r z_r = 0`. It is a point of an ellipsoid,
which is far smaller than the ball that holds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcore._checks import check_count, check_number, check_real_tensor, check_tokens
from lipcore.attention import Attention
from lipcore.bounds import _logarithms as logs
from lipcore.bounds._matrices import norms, product_norm, square_root
from lipcore.bounds.ball import log_column_sum
from lipcore.bounds.gap import score_gap_upper
from lipcore.bounds.layer import check_covered, join_heads, output_roots
from lipcore.operators import FunctionOperator, LinearOperator
from lipcore.spectral import spectral_norm

_BISECTIONS = 200  # halvings of the multiplier's bracket, down to rounding


@dataclass(frozen=True, eq=False)
class Normalisation:
    r"""The normalisation whose output enters an attention layer.

    It returns :math:`\gamma \odot \hat x + \beta`, where
    :math:`\hat x = (x - \bar x)/\sqrt{\mathrm{var}(x) + \varepsilon}` (``kind="layer"``) or
    :math:`\hat x = x/\sqrt{\mathrm{mean}(x^2) + \varepsilon}` (``kind="rms"``). In both cases
    :math:`|\hat x| \le \sqrt d`, so that tokens lie in an ellipsoid (:prf:ref:`prop-norm-radius`).

    Attributes
    ----------
    kind : str
        ``"layer"`` (LayerNorm) or ``"rms"`` (RMSNorm).
    gain, bias : Tensor, shape (d,)
        γ and β; RMSNorm has β = 0.
    eps : float
    """

    kind: str
    gain: Tensor
    bias: Tensor
    eps: float


def normalise(norm: Normalisation, X: Tensor) -> Tensor:
    r"""Apply LayerNorm or RMSNorm to each token (:prf:ref:`prop-norm-radius`).

    X has shape (…, d); the result has the shape and the precision of X, and is differentiable.

    Examples
    --------
    >>> import torch
    >>> unit = Normalisation("layer", torch.ones(2), torch.zeros(2), 0.0)
    >>> normalise(unit, torch.tensor([[3.0, 1.0]]))
    tensor([[ 1., -1.]])
    """
    standard, _ = standardise(norm, X)
    return norm.gain.to(X) * standard + norm.bias.to(X)


def standardise(norm: Normalisation, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x̂, s), the standardised tokens and the numbers (…, 1) by which they were divided."""
    if norm.kind == "layer":
        X = X - X.mean(-1, keepdim=True)
    size = (X.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return X / size, size


def pre_norm_jacobian(
    norm: Normalisation, X: Tensor, attention: Attention | None = None, *, residual: bool = False
) -> LinearOperator:
    r"""Return the Jacobian of a pre-norm block :math:`x \mapsto x + f(N(x))` at X, or of a part.

    With :math:`s_i` the number by which token i is divided, and :math:`\Pi` the projection off the
    mean for LayerNorm, or the identity for RMSNorm (:prf:ref:`prop-norm-own`,
    :prf:ref:`prop-norm-block`),

    .. math:: DN(x_i) = \frac1{s_i}\, G\,\big(\Pi - \tfrac1d\, \hat x_i \hat x_i^\top\big).

    Parameters
    ----------
    norm : Normalisation
    X : Tensor, shape (…, n, d)
        The residual stream, before normalisation.
    attention : Attention, optional
        The attention f; without it, the operator is that of the normalisation alone.
    residual : bool
        Whether to add the identity.

    Examples
    --------
    >>> import torch
    >>> unit = Normalisation("rms", torch.ones(2), torch.zeros(2), 0.0)
    >>> J = pre_norm_jacobian(unit, torch.tensor([[2.0, 2.0]]))
    >>> J.matvec(torch.tensor([[1.0, 1.0]]))  # the size of a token does not matter
    tensor([[0., 0.]])
    """
    X = check_tokens(X, len(norm.gain)).detach()
    standard, size = standardise(norm, X)
    gain = norm.gain.to(X)

    def project(H: Tensor) -> Tensor:  # (Π − x̂x̂ᵀ/d)/s, which is symmetric
        radial = (standard * H).mean(-1, keepdim=True) * standard
        return (_centre(norm, H) - radial) / size

    shapes = X.shape[:-2], X.shape[-2:]
    products = lambda H: gain * project(H), lambda G: project(gain * G)
    J = FunctionOperator(*products, X, *shapes, shapes[1])
    if attention is not None:
        J = attention.jacobian(normalise(norm, X)) @ J
    if not residual:
        return J
    if J.output_shape != J.input_shape:
        expected = f"an attention whose output has {X.shape[-1]} dimensions"
        raise ValueError(f"residual: expected {expected}, got {J.output_shape[-1]}")
    products = lambda H: J.matvec(H) + H, lambda G: J.rmatvec(G) + G
    return FunctionOperator(*products, X, *shapes, shapes[1])


def norm_constants(norm: Normalisation, X: Tensor) -> Tensor:
    r"""Return the local constant of the normalisation at each token (:prf:ref:`prop-norm-own`).

    It is at most :math:`\max|\gamma|/s_i`. X has shape (…, d) and holds the tokens before
    normalisation; the result has shape (…).

    Examples
    --------
    >>> import torch
    >>> unit = Normalisation("rms", torch.ones(3), torch.zeros(3), 0.0)
    >>> constants = norm_constants(unit, torch.tensor([[0.0, 3.0, 0.0]]))  # 1/s, s = √3
    >>> round(constants.item() * 3**0.5, 5)
    1.0
    """
    return spectral_norm(pre_norm_jacobian(norm, X[..., None, :]), tol=1e-6).value


def layer_norm_radius(*, gain: Tensor, bias: Tensor | None = None) -> float:
    r"""Return the radius of a ball that holds all normalised tokens (:prf:ref:`prop-norm-radius`).

    .. math:: R \le \sqrt d\, \max_r |g_r| + \|b\|

    Parameters
    ----------
    gain : Tensor, shape (d,)
        The g of ``LayerNorm`` or ``RMSNorm``.
    bias : Tensor, shape (d,), optional
        The b of ``LayerNorm``; zero if left out, as for RMSNorm.

    Examples
    --------
    >>> import torch
    >>> layer_norm_radius(gain=torch.ones(4), bias=torch.tensor([0.0, 0.0, 3.0, 4.0]))
    7.0
    """
    gain = check_real_tensor("gain", gain, ndim=1).double()
    if not len(gain):
        raise ValueError(f"gain: expected at least one entry, got shape {tuple(gain.shape)}")
    bias = check_real_tensor("bias", 0 * gain if bias is None else bias, ndim=1).double()
    if bias.shape != gain.shape:
        raise ValueError(f"bias: expected {len(gain)} entries as gain has, got {len(bias)}")
    return math.sqrt(len(gain)) * gain.abs().amax().item() + bias.norm().item()


def largest_affine_norm(M: Tensor, e: Tensor, radius: float) -> Tensor:
    """Return the exact maximum of ‖Mz + e‖ over the ball ‖z‖ ≤ ρ (:prf:ref:`lem-affine-ball`)."""
    # a convex function is maximised, but the dual has no gap: with H = MᵀM and q = Mᵀe, the square
    # is the least |e|² + qᵀ(λ−H)⁻¹q + λρ² over λ > λ_max(H), at which |(λ−H)⁻¹q| = ρ
    radius = check_number("radius", radius, minimum=0)
    if radius == 0:
        return e.norm(dim=-1)
    left, values, _ = torch.linalg.svd(M, full_matrices=False)
    q = values * (left.mT @ e[..., None])[..., 0]
    squares = values.square()
    lowest = squares.amax(-1, keepdim=True)
    gaps = lowest - squares
    low = torch.zeros_like(lowest)  # of λ − λ_max
    high = q.norm(dim=-1, keepdim=True) / radius
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        outside = _safe_ratio(q, middle + gaps).square().sum(-1, keepdim=True) > radius**2
        low = torch.where(outside, middle, low)
        high = torch.where(outside, high, middle)
    constant = e.square().sum(-1) + (q * _safe_ratio(q, high + gaps)).sum(-1)
    return (constant + (lowest + high)[..., 0] * radius**2).sqrt()


def _safe_ratio(a: Tensor, b: Tensor) -> Tensor:
    """Return a/b, or zero where a is zero."""
    return torch.where(a == 0, 0, a / torch.where(a == 0, 1, b))


@dataclass(frozen=True, eq=False)
class NormalisedReach:
    r"""What normalised tokens can reach in one attention layer (:prf:ref:`prop-norm-spread`).

    Attributes
    ----------
    radius : float
        The largest norm of a token on the ellipsoid, exactly.
    spread : Tensor, shape (heads,)
        The :math:`\alpha_h`: the scores of a query differ by at most :math:`2\alpha_h`, and those
        of some query do. It replaces a in :math:`\kappa = e^{2a}`.
    query : Tensor, shape (heads,)
        The largest :math:`|A_hx + c_h|`.
    """

    radius: float
    spread: Tensor
    query: Tensor


def normalised_reach(attention: Attention, norm: Normalisation) -> NormalisedReach:
    r"""Return the exact reach of normalised tokens (:prf:ref:`prop-norm-spread`).

    .. math:: \alpha_h = \sqrt d\,\max_x |\Pi G(A_hx + c_h)| \quad\text{over the ellipsoid}

    The result is in float64. Rotary positions, or another dimension than that of the normalisation,
    raise a ValueError.

    Examples
    --------
    >>> import torch
    >>> unit = Normalisation("rms", torch.ones(2), torch.zeros(2), 0.0)
    >>> found = normalised_reach(Attention.from_matrices(3 * torch.eye(2), torch.eye(2)), unit)
    >>> round(found.radius, 6), found.spread.round(decimals=6)
    (1.414214, tensor([6.], dtype=torch.float64))
    """
    attention, gain, bias, root = _checked(attention, norm)
    query = attention.scale * attention.query
    key = attention.key
    moved = _centre(norm, query * gain)  # the queries of tokens, as a map of z
    constant = query @ bias
    if attention.query_bias is not None:
        constant = constant + attention.scale * attention.query_bias
    largest = [
        largest_affine_norm(factor @ moved, (factor @ constant[..., None])[..., 0], root)
        for factor in (square_root(_centre(norm, key * gain).mT), square_root(key.mT))
    ]
    radius = largest_affine_norm(_centre(norm, torch.diag(gain)), bias, root).item()
    return NormalisedReach(radius=radius, spread=root * largest[0], query=largest[1])


def normalised_upper(attention: Attention, norm: Normalisation, *, n: int) -> float:
    r"""Return the bound for n normalised tokens, on their ellipsoid (:prf:ref:`thm-norm-bound`).

    For one head, with the α and query norm r of :func:`normalised_reach`, and the S of the theorem
    for :math:`\kappa=e^{2\alpha}` and the score gap g* of the ellipsoid (S = n with a mask),

    .. math:: \|V\|_2\sqrt S + \|VG\Pi\|_2\big( d\,\|\Pi GA\|_2 + \sqrt d\; r\sqrt S \big).

    Heads add up as in :prf:ref:`prop-norm-heads`. It refuses what :func:`normalised_reach` refuses.

    Examples
    --------
    >>> import torch
    >>> unit = Normalisation("rms", torch.ones(2), torch.zeros(2), 0.0)
    >>> normalised_upper(Attention.from_matrices(torch.zeros(2, 2), torch.eye(2)), unit, n=9)
    1.0
    """
    n = check_count("n", n)
    reach = normalised_reach(attention, norm)
    attention, gain, bias, root = _checked(attention, norm)
    given = (attention.mask, attention.bias, attention.log_weights, attention.window)
    mixing = gain.new_full((attention.heads,), math.log(n) / 2).exp()
    if not attention.causal and all(table is None for table in given):
        for h, alpha in enumerate(reach.spread.tolist()):
            query, key = attention.query[h], attention.key[h]
            centre = query @ bias  # the query at the ellipsoid's centre
            if attention.query_bias is not None:
                centre = centre + attention.query_bias[h]
            query, key = (_centre(norm, M * gain) for M in (query, key))
            frame = torch.linalg.qr(torch.cat([query, key]).mT).Q  # only what the head reads counts
            reads = attention.scale * (key @ frame).mT
            gap = root**2 * score_gap_upper(reads @ query @ frame, reads @ centre / root)
            mixing[h] = logs.exp(log_column_sum(n, logs.log(alpha), gap) / 2)
    keys = _centre(norm, attention.key * gain)
    own = root * product_norm(attention.scale * attention.query, keys)
    shift = root * (own + reach.query * mixing)  # own: √d ‖ΠGA‖

    def heads(values: Tensor) -> Tensor:
        return norms(values) * mixing + norms(_centre(norm, values * gain)) * shift

    alone = heads(attention.value)
    left = output_roots(attention)
    projected = alone if left is None else heads(left @ attention.value)
    return join_heads(attention, alone, projected).item()


def _checked(attention: Attention, norm: Normalisation) -> tuple[Attention, Tensor, Tensor, float]:
    """Return (attention, γ, β, √d) in float64."""
    check_covered(attention)
    if attention.rotary is not None:
        raise ValueError("attention: expected one without rotary positions, got rotary frequencies")
    d = attention.d
    if len(norm.gain) != d:
        raise ValueError(f"norm: expected a gain of {d} entries as X has, got {len(norm.gain)}")
    return attention.to(torch.float64), norm.gain.double(), norm.bias.double(), math.sqrt(d)


def _centre(norm: Normalisation, matrices: Tensor) -> Tensor:
    """Multiply by Π from the right."""
    return matrices - matrices.mean(-1, keepdim=True) if norm.kind == "layer" else matrices
