r"""LayerNorm and RMSNorm in front of attention: the reach of tokens and scores, and the block (theory §8).

A normalised token is :math:`Gz + b` with :math:`G = \mathrm{diag}(\gamma)`, :math:`|z| \le \sqrt d`, and for
LayerNorm :math:`\sum_r z_r = 0`: a point of an ellipsoid, far smaller than the ball that holds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcore._checks import check_count, check_number, check_real_tensor, check_tokens
from lipcore.attention import Attention
from lipcore.bounds._logarithms import log_column_sum
from lipcore.jacobian import AttentionJacobian, LinearOperator
from lipcore.spectral import spectral_norm

_BISECTIONS = 200  # halvings of the multiplier's bracket: down to rounding


@dataclass(frozen=True, eq=False)
class Normalisation:
    r"""The normalisation whose output enters an attention layer: :math:`\gamma \odot \hat x + \beta`.

    Here :math:`\hat x = (x - \bar x)/\sqrt{\mathrm{var}(x) + \varepsilon}` (``kind="layer"``) or
    :math:`\hat x = x/\sqrt{\mathrm{mean}(x^2) + \varepsilon}` (``kind="rms"``). Either way
    :math:`|\hat x| \le \sqrt d`, so that tokens lie in an ellipsoid (theory §8).

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
    r"""Apply LayerNorm or RMSNorm to each token: :math:`\gamma \odot \hat x + \beta`.

    Parameters
    ----------
    norm : Normalisation
        From ``model.norm(layer)``.
    X : Tensor, shape (…, d)

    Returns
    -------
    Tensor, shape (…, d)
        In the precision of X. Differentiable.

    Examples
    --------
    >>> import torch
    >>> unit = Normalisation("layer", torch.ones(2), torch.zeros(2), 0.0)
    >>> normalise(unit, torch.tensor([[3.0, 1.0]]))
    tensor([[ 1., -1.]])
    """
    standard, _ = _standardise(norm, X)
    return norm.gain.to(X) * standard + norm.bias.to(X)


def _standardise(norm: Normalisation, X: Tensor) -> tuple[Tensor, Tensor]:
    """(x̂, s): the standardised tokens, and what each was divided by, (…, 1)."""
    if norm.kind == "layer":
        X = X - X.mean(-1, keepdim=True)
    size = (X.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return X / size, size


class PreNormJacobian(LinearOperator):
    r"""The Jacobian of a pre-norm block :math:`x \mapsto x + f(N(x))` at X, or of a part of it.

    With :math:`s_i` the size that token i is divided by, and :math:`\Pi` the projection off the mean for
    LayerNorm, the identity for RMSNorm,

    .. math:: DN(x_i) = \frac1{s_i}\, G\,\big(\Pi - \tfrac1d\, \hat x_i \hat x_i^\top\big).

    Parameters
    ----------
    norm : Normalisation
    X : Tensor, shape (…, n, d)
        The residual stream, before normalisation.
    attention : Attention, optional
        f; left out, the operator is the normalisation alone.
    residual : bool
        Whether to add the identity.

    Raises
    ------
    ValueError, TypeError
        If X does not fit, or the residual connection does.

    Examples
    --------
    >>> import torch
    >>> unit = Normalisation("rms", torch.ones(2), torch.zeros(2), 0.0)
    >>> J = PreNormJacobian(unit, torch.tensor([[2.0, 2.0]]))
    >>> J.matvec(torch.tensor([[1.0, 1.0]]))  # the size of a token is forgotten
    tensor([[0., 0.]])
    """

    def __init__(self, norm: Normalisation, X: Tensor, attention: Attention | None = None, *,
                 residual: bool = False) -> None:  # fmt: skip
        X = check_tokens(X, len(norm.gain)).detach()
        self._standard, self._size = _standardise(norm, X)
        self._gain, self._centred, self._residual = norm.gain.to(X), norm.kind == "layer", residual
        self._inner = (
            None if attention is None else AttentionJacobian(attention, normalise(norm, X))
        )
        self.batch_shape, self.input_shape = tuple(X.shape[:-2]), tuple(X.shape[-2:])
        self.output_shape = self.input_shape if self._inner is None else self._inner.output_shape
        self.dtype, self.device = X.dtype, X.device
        if residual and self.output_shape != self.input_shape:
            raise ValueError(
                f"residual: expected an attention whose output has {X.shape[-1]} dimensions, "
                f"got {self.output_shape[-1]}"
            )

    def _project(self, H: Tensor) -> Tensor:
        """(Π − x̂x̂ᵀ/d)/s, which is symmetric."""
        radial = (self._standard * H).mean(-1, keepdim=True) * self._standard
        centred = H - H.mean(-1, keepdim=True) if self._centred else H
        return (centred - radial) / self._size

    def matvec(self, H: Tensor) -> Tensor:
        """H + D f[DN[H]], as far as its parts are there."""
        self._check("H", H, self.input_shape)
        image = self._gain * self._project(H)
        image = image if self._inner is None else self._inner.matvec(image)
        return image + H if self._residual else image

    def rmatvec(self, G: Tensor) -> Tensor:
        """Transpose of :meth:`matvec`."""
        self._check("G", G, self.output_shape)
        image = G if self._inner is None else self._inner.rmatvec(G)
        image = self._project(self._gain * image)
        return image + G if self._residual else image


def norm_constants(norm: Normalisation, X: Tensor) -> Tensor:
    r"""Local Lipschitz constant of the normalisation at each token, at most :math:`\max|\gamma|/s_i`.

    Parameters
    ----------
    norm : Normalisation
    X : Tensor, shape (…, d)
        Tokens before normalisation.

    Returns
    -------
    Tensor, shape (…)

    Examples
    --------
    >>> import torch
    >>> unit = Normalisation("rms", torch.ones(3), torch.zeros(3), 0.0)
    >>> norm_constants(unit, torch.tensor([[0.0, 3.0, 0.0]])).mul(3**0.5).round(decimals=5)  # 1/s, s = √3
    tensor([1.])
    """
    return spectral_norm(PreNormJacobian(norm, X[..., None, :]), tol=1e-6).value


def largest_affine_norm(M: Tensor, e: Tensor, radius: float) -> Tensor:
    r"""Exact maximum of :math:`|Mz + e|` over the ball :math:`|z| \le \rho`.

    A convex function is maximised, but its Lagrange dual has no gap: with :math:`H = M^\top M` and
    :math:`q = M^\top e`,

    .. math:: \max_{|z|\le\rho} |Mz+e|^2 = \min_{\lambda > \lambda_{\max}(H)} |e|^2
        + q^\top(\lambda - H)^{-1}q + \lambda\rho^2 .

    Every λ gives an upper bound; the best one solves :math:`|(\lambda-H)^{-1}q| = \rho`.

    Parameters
    ----------
    M : Tensor, shape (…, k, d)
    e : Tensor, shape (…, k)
    radius : float
        ρ.

    Returns
    -------
    Tensor, shape (…)

    Raises
    ------
    ValueError, TypeError
        If the radius is negative, or M and e do not fit.

    Examples
    --------
    >>> import torch
    >>> M = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    >>> largest_affine_norm(M, torch.tensor([1.0, 0.0], dtype=torch.float64), 3.0).item()  # 2·3 + 1
    7.0
    """
    check_real_tensor("M", M, min_ndim=2)
    if e.shape != M.shape[:-1]:
        raise ValueError(
            f"e: expected shape {tuple(M.shape[:-1])} as M has rows, got {tuple(e.shape)}"
        )
    radius = check_number("radius", radius, minimum=0)
    left, values, _ = torch.linalg.svd(M, full_matrices=False)
    lowest = values.square().amax(-1, keepdim=True)
    q = values * (left.mT @ e[..., None])[..., 0]
    if radius == 0:
        return e.norm(dim=-1)
    gaps = lowest - values.square()
    low, high = torch.zeros_like(lowest), q.norm(dim=-1, keepdim=True) / radius  # of λ − λ_max
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        outside = _safe_ratio(q, middle + gaps).square().sum(-1, keepdim=True) > radius**2
        low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
    multiplier = (lowest + high)[..., 0]
    return (
        e.square().sum(-1) + (q * _safe_ratio(q, high + gaps)).sum(-1) + multiplier * radius**2
    ).sqrt()


def _safe_ratio(a: Tensor, b: Tensor) -> Tensor:
    """a/b, and zero where a is."""
    return torch.where(a == 0, 0, a / torch.where(a == 0, 1, b))


@dataclass(frozen=True, eq=False)
class Reach:
    r"""What normalised tokens can do to one attention layer.

    Attributes
    ----------
    radius : float
        Largest norm of a token on the ellipsoid, exactly.
    spread : Tensor, shape (heads,)
        :math:`\alpha_h`: no query's scores differ by more than :math:`2\alpha_h`, and some query's do.
        It takes the place of a in :math:`\kappa = e^{2a}`.
    query : Tensor, shape (heads,)
        Largest :math:`|A_hx + c_h|`.
    """

    radius: float
    spread: Tensor
    query: Tensor


def reach(attention: Attention, norm: Normalisation) -> Reach:
    r"""Exact reach of normalised tokens (this book).

    .. math:: \alpha_h = \sqrt d\,\max_x |\Pi G(A_hx + c_h)| \quad\text{over the ellipsoid}

    Parameters
    ----------
    attention : Attention
        Without rotary positions.
    norm : Normalisation

    Returns
    -------
    Reach
        In float64.

    Raises
    ------
    ValueError
        If the attention has rotary positions, or another dimension than the normalisation.

    Examples
    --------
    >>> import torch
    >>> unit = Normalisation("rms", torch.ones(2), torch.zeros(2), 0.0)
    >>> found = reach(Attention.from_matrices(3 * torch.eye(2), torch.eye(2)), unit)
    >>> round(found.radius, 6), found.spread.round(decimals=6)
    (1.414214, tensor([6.], dtype=torch.float64))
    """
    attention, gain, bias, root = _checked(attention, norm)
    query, key = attention.scale * attention.query, attention.key
    moved = _centre(norm, query * gain)  # queries of tokens, as a map of z
    constant = query @ bias
    if attention.query_bias is not None:
        constant = constant + attention.scale * attention.query_bias
    spread_root, query_root = _square_root(_centre(norm, key * gain)), _square_root(key)
    radius = largest_affine_norm(_centre(norm, torch.diag(gain)), bias, root).item()
    spread, query_norm = (
        largest_affine_norm(factor @ moved, (factor @ constant[..., None])[..., 0], root)
        for factor in (spread_root, query_root)
    )
    return Reach(radius, root * spread, query_norm)


def normalised_upper(attention: Attention, norm: Normalisation, *, n: int) -> float:
    r"""Upper bound for n normalised tokens: on the ellipsoid, not the ball around it (this book; theory §8).

    For one head, with :func:`reach`'s α and query norm r, and :math:`S = n\kappa/(n+\kappa-1)`,
    :math:`\kappa=e^{2\alpha}` (S = n with a mask),

    .. math:: \|V\|_2\sqrt S + \|VG\Pi\|_2\big( d\,\|\Pi GA\|_2 + \sqrt d\; r\sqrt S \big).

    Heads add up as in :func:`lipcore.bounds.layer_upper`.

    Parameters
    ----------
    attention : Attention
        Without rotary positions.
    norm : Normalisation
    n : int

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`reach`; also if n < 1.

    Examples
    --------
    >>> import torch
    >>> unit = Normalisation("rms", torch.ones(2), torch.zeros(2), 0.0)
    >>> normalised_upper(Attention.from_matrices(torch.zeros(2, 2), torch.eye(2)), unit, n=9)
    1.0
    """
    n, found = check_count("n", n), reach(attention, norm)
    attention, gain, _, root = _checked(attention, norm)
    masked = attention.causal or attention.mask is not None or attention.log_weights is not None
    columns = [n if masked else math.exp(log_column_sum(n, math.log(alpha) if alpha > 0 else -math.inf))
               for alpha in found.spread.tolist()]  # fmt: skip
    mixing = torch.tensor(columns, dtype=torch.float64).sqrt()
    keys = _centre(norm, attention.key * gain)
    own = root * _product_norm(attention.scale * attention.query, keys)  # √d ‖ΠGA‖
    shift = root * (own + found.query * mixing)

    def heads(values: Tensor) -> Tensor:
        scaled = torch.linalg.matrix_norm(_centre(norm, values * gain), 2)
        return torch.linalg.matrix_norm(values, 2) * mixing + scaled * shift

    joined = heads(attention.value).square().sum().sqrt().item()
    if attention.output is None:
        return joined
    projected = torch.linalg.matrix_norm(attention.output, 2).item() * joined
    return min(projected, heads(attention.value_matrices()).sum().item())


def _checked(attention: Attention, norm: Normalisation) -> tuple[Attention, Tensor, Tensor, float]:
    """(attention, γ, β, √d) in float64."""
    if attention.rotary is not None:
        raise ValueError(
            "attention: expected one without rotary positions, whose scores depend on them"
        )
    if len(norm.gain) != attention.d:
        raise ValueError(
            f"norm: expected a gain of {attention.d} entries as X has, got {len(norm.gain)}"
        )
    return (
        attention.to(torch.float64),
        norm.gain.double(),
        norm.bias.double(),
        math.sqrt(attention.d),
    )


def _centre(norm: Normalisation, matrices: Tensor) -> Tensor:
    """Multiply by Π from the right."""
    return matrices - matrices.mean(-1, keepdim=True) if norm.kind == "layer" else matrices


def _product_norm(query: Tensor, key: Tensor) -> Tensor:
    """‖KᵀQ‖₂ of each head, from the small factors."""
    return torch.linalg.matrix_norm(_square_root(key) @ _square_root(query).mT, 2)


def _square_root(matrices: Tensor) -> Tensor:
    """Return R with |Mᵀy| = |R y| for every y: (…, k, d) → (…, min(k, d), k)."""
    return torch.linalg.qr(matrices.mT, mode="r").R
