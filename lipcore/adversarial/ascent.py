"""Projected gradient ascent on the largest singular value of the Jacobian."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from lipcore._checks import check_count, check_number
from lipcore.attention import Attention
from lipcore.bounds.normalised import Normalisation
from lipcore.spectral import spectral_norm

#: Products with J and Jᵀ in each step; singular vectors are carried over, so that few are enough.
PRODUCTS = 3
#: The relative distance by which a token may be outside the ball.
OUTSIDE = {torch.float32: 1e-5, torch.float64: 1e-9}
#: The same for the ellipsoid and the mean, since the ε of a normalisation makes tokens shorter.
OFF_ELLIPSOID = 1e-3


@dataclass(frozen=True, eq=False)
class Ascent:
    """The result of gradient ascent, with one entry for each member of the batch.

    Attributes
    ----------
    X : Tensor, shape (…, n, d)
        The best input found, in its set.
    value : Tensor, shape (…)
        The norm σ_max of the Jacobian there, a lower bound of the Lipschitz constant on the set.
    history : Tensor, shape (steps + 1, …)
        Best value after each step; it never falls.
    """

    X: Tensor
    value: Tensor
    history: Tensor


def ascend(
    attention: Attention,
    X: Tensor,
    radius: float | None = None,
    *,
    ellipsoid: Normalisation | None = None,
    steps: int = 200,
    restarts: int = 1,
    learning_rate: float = 0.1,
    progress: bool = True,
    generator: torch.Generator | None = None,
) -> Ascent:
    r"""Run projected gradient ascent on :math:`\sigma_{\max}(D_Xf)` in a ball, or on an ellipsoid.

    The gradient is :math:`\nabla_X\,(u\cdot D_Xf[v])` with the top singular vectors u, v held
    fixed (Danskin's theorem). Each member of the batch has its own step, which grows when σ grows
    and shrinks when it does not; a step is kept only if σ grows. The result is a lower bound of the
    Lipschitz constant on the set (:prf:ref:`thm-lip-local`).

    Parameters
    ----------
    attention : Attention
    X : Tensor, shape (…, n, d)
        Where to start, in the ball or on the ellipsoid; every leading dimension is a batch.
    radius : float, optional
        Radius of the ball in which the tokens stay. Give this or ``ellipsoid``.
    ellipsoid : Normalisation, optional
        Tokens stay on :math:`\sqrt d\,\mathrm{diag}(g)S^{d-1} + b`, where the normalisation puts
        them, and for a LayerNorm on the points of the sphere with mean zero.
    steps : int
    restarts : int
        Number of starts for each member: X itself, and X with random moves. The best is returned.
    learning_rate : float
        How far the token that moves most goes in the first step, in units of the radius.
    progress : bool
        Whether to show a progress bar.
    generator : torch.Generator, optional
        Source of the random moves; a fixed seed if left out.

    Raises
    ------
    ValueError, TypeError
        If a token of X is outside the ball or off the ellipsoid, or not exactly one of them is given.

    Examples
    --------
    >>> import torch
    >>> eye = torch.eye(1, dtype=torch.float64)
    >>> X = torch.tensor([[0.3], [-0.2], [0.1]], dtype=torch.float64)
    >>> best = ascend(Attention.from_matrices(-eye, eye), X, 1.0, steps=30, progress=False)
    >>> bool(best.value >= best.history[0]), bool((best.X.abs() <= 1).all())
    (True, True)
    """
    attention.check_input(X)
    domain, y = _domain_of(X, radius, ellipsoid)
    steps = check_count("steps", steps, minimum=0)
    restarts = check_count("restarts", restarts)
    check_number("learning_rate", learning_rate, minimum=0, strict=True)
    y = _starts(y, domain, restarts, generator)  # (restarts · batch, n, d)
    top = spectral_norm(attention.jacobian(domain.outward(y)), tol=1e-6)
    value, left, right = top.value, top.left, top.right
    rate = y.new_full((len(y), 1, 1), learning_rate)
    history = [value]
    for _ in tqdm(range(steps), desc="ascent", leave=False, disable=not progress):
        gradient = domain.tangent(y, _gradient(attention, domain, y, left, right))
        largest = gradient.norm(dim=-1, keepdim=True).amax(-2, keepdim=True)
        moved = domain.project(y + rate * gradient / torch.where(largest > 0, largest, 1))
        J = attention.jacobian(domain.outward(moved))
        vectors = right  # singular vectors of the step before are a good start
        for _ in range(PRODUCTS):
            vectors = _unit(J.rmatvec(J.matvec(vectors)))
        image = J.matvec(vectors)
        reached = image.flatten(1).norm(dim=-1)
        better = reached > value
        grows = better[:, None, None]
        y = torch.where(grows, moved, y)
        value = torch.where(better, reached, value)
        left = torch.where(grows, _unit(image), left)
        right = torch.where(grows, vectors, right)
        rate = torch.where(grows, 1.3 * rate, 0.5 * rate).clamp(1e-9, 1.0)
        history.append(value)
    # the value of each restart is computed again, more accurately, and the best is returned
    *batch, n, d = X.shape
    inputs = domain.outward(y)
    tol = max(1e-10, 16 * torch.finfo(X.dtype).eps)
    value = torch.maximum(spectral_norm(attention.jacobian(inputs), tol=tol).value, value)
    value, best = value.reshape(restarts, -1).max(0)
    inputs = inputs.reshape(restarts, -1, n, d)[best, torch.arange(len(best), device=X.device)]
    # the history of the best over all restarts so far, which ends at the value
    history = torch.stack(history).reshape(steps + 1, restarts, -1).amax(1).clamp(max=value)
    history[-1] = value
    return Ascent(inputs.reshape(X.shape), value.reshape(batch), history.reshape(-1, *batch))


def _starts(y: Tensor, domain: _Domain, restarts: int, generator: torch.Generator | None) -> Tensor:
    """Return y (…, n, d), then y moved by more and more: (restarts · batch, n, d)."""
    y = y.reshape(1, -1, *y.shape[-2:])
    if restarts > 1:
        generator = generator or torch.Generator().manual_seed(0)
        kind = {"dtype": y.dtype, "device": generator.device}
        noise = torch.randn((restarts - 1, *y.shape[1:]), generator=generator, **kind).to(y)
        size = torch.linspace(1 / (restarts - 1), 1, restarts - 1, dtype=y.dtype, device=y.device)
        y = torch.cat([y, domain.project(y + size[:, None, None, None] * noise)])
    return y.flatten(0, 1)


@torch.enable_grad()
def _gradient(
    attention: Attention, domain: _Domain, y: Tensor, left: Tensor, right: Tensor
) -> Tensor:
    """Return ∇_y of u·D_Xf[v] with u, v held fixed, as (D_Xf)ᵀ[u]·v by two reverse passes."""
    # left is u, right is v; sequences do not meet, so that the sum gives each its own gradient
    y = y.clone().requires_grad_()
    X = domain.outward(y)
    (pulled,) = torch.autograd.grad((left * attention(X)).sum(), X, create_graph=True)
    (gradient,) = torch.autograd.grad((pulled * right).sum(), y)
    return gradient


def _unit(vectors: Tensor) -> Tensor:
    """Return (B, n, d) with each member scaled to norm one; zero stays zero."""
    norms = vectors.flatten(1).norm(dim=-1)[:, None, None]
    return vectors / torch.where(norms > 0, norms, 1)


@dataclass(frozen=True, eq=False)
class _Domain:
    """Tokens scale ⊙ y + offset, with y in the unit ball or on the sphere, perhaps of mean zero."""

    scale: Tensor  # (d,)
    offset: Tensor  # (d,)
    sphere: bool
    centred: bool

    def outward(self, y: Tensor) -> Tensor:
        """Return the tokens of coordinates y."""
        return self.scale * y + self.offset

    def project(self, y: Tensor) -> Tensor:
        """Return the nearest coordinates in the set."""
        y = self._centre(y)
        norms = y.norm(dim=-1, keepdim=True)
        if self.sphere:
            return y / torch.where(norms > 0, norms, 1)
        return y / norms.clamp(min=1.0)

    def tangent(self, y: Tensor, gradient: Tensor) -> Tensor:
        """Return the part of the gradient at y that moves tokens along the set."""
        gradient = self._centre(gradient)
        if self.sphere:
            return gradient - (gradient * y).sum(-1, keepdim=True) * y
        return gradient

    def _centre(self, y: Tensor) -> Tensor:
        return y - y.mean(-1, keepdim=True) if self.centred else y


def _domain_of(
    X: Tensor, radius: float | None, ellipsoid: Normalisation | None
) -> tuple[_Domain, Tensor]:
    """Return the ball or the ellipsoid, if all tokens of X are there, and their coordinates."""
    if (radius is None) == (ellipsoid is None):
        got = "neither" if radius is None else "both"
        raise ValueError(f"radius, ellipsoid: expected exactly one of the two, got {got}")
    X = X.detach()
    d = X.shape[-1]
    if radius is not None:
        radius = check_number("radius", radius, minimum=0, strict=True)
        y = X / radius
        largest = y.norm(dim=-1).max().item()
        if largest > 1 + OUTSIDE[X.dtype]:
            got = f"one of norm {largest * radius:.9g}"
            raise ValueError(f"X: expected tokens in the ball of radius {radius:g}, got {got}")
        domain = _Domain(X.new_full((d,), radius), X.new_zeros(d), sphere=False, centred=False)
        return domain, domain.project(y)
    for name, tensor in (("gain", ellipsoid.gain), ("bias", ellipsoid.bias)):
        if tensor.shape != (d,):
            expected = f"shape ({d},) as X has"
            raise ValueError(f"ellipsoid {name}: expected {expected}, got {tuple(tensor.shape)}")
    if bool((ellipsoid.gain == 0).any()):
        raise ValueError("ellipsoid gain: expected entries other than zero, got a zero")
    scale = math.sqrt(d) * ellipsoid.gain.to(X)
    domain = _Domain(scale, ellipsoid.bias.to(X), True, centred=ellipsoid.kind == "layer")
    y = (X - domain.offset) / scale
    off = (y.norm(dim=-1) - 1).abs().max().item()
    if off > OFF_ELLIPSOID:
        raise ValueError(f"X: expected tokens on the ellipsoid, got one {off:.3g} of its size off")
    if domain.centred and bool(y.mean(-1).abs().max() * math.sqrt(d) > OFF_ELLIPSOID):
        raise ValueError("X: expected tokens out of a LayerNorm, got one that is not centred")
    return domain, domain.project(y)
