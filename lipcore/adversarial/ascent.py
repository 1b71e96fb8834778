"""Projected gradient ascent on the largest singular value of the Jacobian."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from lipcore._checks import check_count, check_number, check_real_tensor
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
    ellipsoid: Normalisation | tuple[Tensor, Tensor | None] | None = None,
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
        Where to start; every leading dimension is a batch.
    radius : float, optional
        Radius of the ball in which the tokens stay. Give this or ``ellipsoid``.
    ellipsoid : Normalisation, or (gain, bias), tensors of shape (d,), optional
        Tokens stay on :math:`\sqrt d\,\mathrm{diag}(g)S^{d-1} + b`, where a normalisation puts
        them. For a LayerNorm they also stay on the points of the sphere with mean zero; for a pair
        they do not, and the bias may be None.
    steps : int
    restarts : int
        Number of starts for each member: X itself, and X with random moves. The best is returned.
    learning_rate : float
        How far the token that moves most goes in the first step, in units of the radius.
    progress : bool
        Whether to show a progress bar.
    generator : torch.Generator, optional
        Source of the random moves; a fixed seed if left out.

    Returns
    -------
    Ascent

    Raises
    ------
    ValueError, TypeError
        If X does not fit, or leaves the ball or ellipsoid, or not exactly one of these is given.

    Examples
    --------
    >>> import torch
    >>> eye = torch.eye(1, dtype=torch.float64)
    >>> X = torch.tensor([[0.3], [-0.2], [0.1]], dtype=torch.float64)
    >>> found = ascend(Attention.from_matrices(-eye, eye), X, 1.0, steps=30, progress=False)
    >>> bool(found.value >= found.history[0]), bool((found.X.abs() <= 1).all())
    (True, True)
    """
    attention.check_input(X)
    domain = _domain_of(X, radius, ellipsoid)
    steps = check_count("steps", steps, minimum=0)
    restarts = check_count("restarts", restarts)
    check_number("learning_rate", learning_rate, minimum=0, strict=True)
    y = domain.inward(X.detach()).reshape(1, -1, *X.shape[-2:])
    y = _starts(y, domain, restarts, generator).flatten(0, 1)  # (restarts · batch, n, d)
    top = spectral_norm(attention.jacobian(domain.outward(y)), tol=1e-6)
    rate = y.new_full((len(y), 1, 1), learning_rate)
    state = _State(y, top.value, top.left, top.right, rate)
    history = [state.value]
    for _ in tqdm(range(steps), desc="ascent", leave=False, disable=not progress):
        state = _next_state(attention, domain, state)
        history.append(state.value)
    return _best_restart(attention, domain.outward(state.y), torch.stack(history), X, restarts)


@dataclass(frozen=True, eq=False)
class _State:
    """The state of the ascent of B members."""

    y: Tensor  # (B, n, d), coordinates in the domain
    value: Tensor  # (B,), σ there
    left: Tensor  # (B, n, q), top singular vectors
    right: Tensor  # (B, n, d)
    rate: Tensor  # (B, 1, 1), size of the next move


def _starts(y: Tensor, domain: _Domain, restarts: int, generator: torch.Generator | None) -> Tensor:
    """Return starts (restarts, batch, n, d): y (1, batch, n, d), then y moved by more and more."""
    if restarts == 1:
        return y
    generator = generator or torch.Generator().manual_seed(0)
    shape = (restarts - 1, *y.shape[1:])
    noise = torch.randn(shape, generator=generator, dtype=y.dtype, device=generator.device).to(y)
    size = torch.linspace(1 / (restarts - 1), 1, restarts - 1, dtype=y.dtype, device=y.device)
    return torch.cat([y, domain.project(y + size[:, None, None, None] * noise)])


def _next_state(attention: Attention, domain: _Domain, state: _State) -> _State:
    """Make one step for each member, which is kept where σ grows."""
    gradient = domain.tangent(state.y, _gradient(attention, domain, state))
    largest = gradient.norm(dim=-1, keepdim=True).amax(-2, keepdim=True)
    y = domain.project(state.y + state.rate * gradient / torch.where(largest > 0, largest, 1))
    operator = attention.jacobian(domain.outward(y))
    right = state.right  # singular vectors of the step before are a good start
    for _ in range(PRODUCTS):
        right = _unit(operator.rmatvec(operator.matvec(right)))
    left = operator.matvec(right)
    value = left.flatten(1).norm(dim=-1)
    left = _unit(left)
    better = value > state.value
    grows = better[:, None, None]
    return _State(
        torch.where(grows, y, state.y),
        torch.where(better, value, state.value),
        torch.where(grows, left, state.left),
        torch.where(grows, right, state.right),
        torch.where(grows, 1.3 * state.rate, 0.5 * state.rate).clamp(1e-9, 1.0),
    )


@torch.enable_grad()
def _gradient(attention: Attention, domain: _Domain, state: _State) -> Tensor:
    """Return ∇_y of u·D_Xf[v] with u, v held fixed, as (D_Xf)ᵀ[u]·v by two reverse passes."""
    y = state.y.clone().requires_grad_()
    X = domain.outward(y)
    (pulled,) = torch.autograd.grad((state.left * attention(X)).sum(), X, create_graph=True)
    (gradient,) = torch.autograd.grad((pulled * state.right).sum(), y)
    return gradient


def _unit(vectors: Tensor) -> Tensor:
    """Return (B, n, d) with each member scaled to norm one; zero stays zero."""
    norms = vectors.flatten(1).norm(dim=-1)[:, None, None]
    return vectors / torch.where(norms > 0, norms, 1)


def _best_restart(
    attention: Attention, reached: Tensor, history: Tensor, X: Tensor, restarts: int
) -> Ascent:
    """Return the best restart of each member, with its value computed again, more accurately."""
    *batch, n, d = X.shape
    tol = max(1e-10, 16 * torch.finfo(X.dtype).eps)
    value = spectral_norm(attention.jacobian(reached), tol=tol).value
    value, best = torch.maximum(value, history[-1]).reshape(restarts, -1).max(0)
    found = reached.reshape(restarts, -1, n, d)[best, torch.arange(len(best), device=X.device)]
    # the history of the best over all restarts so far, which ends at the value
    history = history.reshape(len(history), restarts, -1).amax(1).clamp(max=value)
    history[-1] = value
    return Ascent(
        found.reshape(X.shape), value.reshape(batch), history.reshape(len(history), *batch)
    )


# --- where tokens stay -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Domain:
    """Tokens scale ⊙ y + offset, with y in the unit ball or on the sphere, perhaps of mean zero."""

    scale: Tensor  # (d,)
    offset: Tensor  # (d,)
    sphere: bool
    centred: bool = False

    def inward(self, X: Tensor) -> Tensor:
        """Return the coordinates y of tokens X, moved into the set."""
        return self.project((X - self.offset) / self.scale)

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

    def check(self, X: Tensor) -> None:
        """Refuse tokens outside the set."""
        y = (X - self.offset) / self.scale
        norms = y.norm(dim=-1).flatten()
        if not self.sphere:
            if bool(norms.max() > 1 + OUTSIDE[X.dtype]):
                radius = self.scale[0].item()
                got = f"one of norm {norms.max().item() * radius:.9g}"
                raise ValueError(f"X: expected tokens in the ball of radius {radius:g}, got {got}")
            return
        worst = norms[(norms - 1).abs().argmax()].item()
        if abs(worst - 1) > OFF_ELLIPSOID:
            got = f"one at {worst:.6g} of its size"
            raise ValueError(f"X: expected tokens on the ellipsoid, got {got}")
        if self.centred and bool(y.mean(-1).abs().max() * math.sqrt(y.shape[-1]) > OFF_ELLIPSOID):
            raise ValueError("X: expected tokens out of a LayerNorm, got one that is not centred")

    def _centre(self, y: Tensor) -> Tensor:
        return y - y.mean(-1, keepdim=True) if self.centred else y


def _domain_of(
    X: Tensor,
    radius: float | None,
    ellipsoid: Normalisation | tuple[Tensor, Tensor | None] | None,
) -> _Domain:
    """Return the ball or the ellipsoid, whichever is given, if it contains all tokens of X."""
    if (radius is None) == (ellipsoid is None):
        got = "neither" if radius is None else "both"
        raise ValueError(f"radius, ellipsoid: expected exactly one of the two, got {got}")
    d = X.shape[-1]
    if radius is not None:
        radius = check_number("radius", radius, minimum=0, strict=True)
        domain = _Domain(X.new_full((d,), radius), X.new_zeros(d), sphere=False)
    else:
        centred = isinstance(ellipsoid, Normalisation) and ellipsoid.kind == "layer"
        if isinstance(ellipsoid, Normalisation):
            ellipsoid = ellipsoid.gain, ellipsoid.bias
        gain, bias = ellipsoid
        bias = torch.zeros_like(gain) if bias is None else bias
        for name, tensor in (("gain", gain), ("bias", bias)):
            got = tuple(check_real_tensor(f"ellipsoid {name}", tensor).shape)
            if got != (d,):
                raise ValueError(f"ellipsoid {name}: expected shape ({d},), got {got}")
        if bool((gain == 0).any()):
            raise ValueError("ellipsoid gain: expected entries other than zero, got a zero")
        domain = _Domain(math.sqrt(d) * gain.to(X), bias.to(X), sphere=True, centred=centred)
    domain.check(X)
    return domain
