"""Projected gradient ascent on the largest singular value of the Jacobian."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from lipcore._checks import check_count, check_number
from lipcore.adversarial.domain import Domain, domain_of
from lipcore.attention import Attention
from lipcore.bounds.normalised import Normalisation
from lipcore.spectral import spectral_norm

#: Products with J and Jᵀ in each step; singular vectors are carried over, so that few are enough.
PRODUCTS = 3


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
    domain = domain_of(X, radius, ellipsoid)
    steps = check_count("steps", steps, minimum=0)
    restarts = check_count("restarts", restarts)
    check_number("learning_rate", learning_rate, minimum=0, strict=True)
    y = domain.inward(X.detach()).reshape(1, -1, *X.shape[-2:])
    y = _starts(y, domain, restarts, generator).flatten(0, 1)  # (restarts · batch, n, d)
    state = _first_state(attention, domain, y, learning_rate)
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


def _starts(y: Tensor, domain: Domain, restarts: int, generator: torch.Generator | None) -> Tensor:
    """Return starts (restarts, batch, n, d): y (1, batch, n, d), then y moved by more and more."""
    if restarts == 1:
        return y
    generator = generator or torch.Generator().manual_seed(0)
    shape = (restarts - 1, *y.shape[1:])
    noise = torch.randn(shape, generator=generator, dtype=y.dtype, device=generator.device).to(y)
    size = torch.linspace(1 / (restarts - 1), 1, restarts - 1, dtype=y.dtype, device=y.device)
    return torch.cat([y, domain.project(y + size[:, None, None, None] * noise)])


def _first_state(attention: Attention, domain: Domain, y: Tensor, learning_rate: float) -> _State:
    found = spectral_norm(attention.jacobian(domain.outward(y)), tol=1e-6)
    rate = y.new_full((len(y), 1, 1), learning_rate)
    return _State(y, found.value, found.left, found.right, rate)


def _next_state(attention: Attention, domain: Domain, state: _State) -> _State:
    """Make one step for each member, which is kept where σ grows."""
    gradient = domain.tangent(state.y, _gradient(attention, domain, state))
    largest = gradient.norm(dim=-1, keepdim=True).amax(-2, keepdim=True)
    y = domain.project(state.y + state.rate * gradient / torch.where(largest > 0, largest, 1))
    value, left, right = _top(attention, domain.outward(y), state.right)
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
def _gradient(attention: Attention, domain: Domain, state: _State) -> Tensor:
    """Return ∇_y of u·D_Xf[v] with u, v held fixed, as (D_Xf)ᵀ[u]·v by two reverse passes."""
    y = state.y.clone().requires_grad_()
    X = domain.outward(y)
    (pulled,) = torch.autograd.grad((state.left * attention(X)).sum(), X, create_graph=True)
    (gradient,) = torch.autograd.grad((pulled * state.right).sum(), y)
    return gradient


def _top(attention: Attention, X: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (σ, u, v) at X, by power iterations from the v of the step before."""
    operator = attention.jacobian(X)
    for _ in range(PRODUCTS):
        right = _unit(operator.rmatvec(operator.matvec(right)))
    left = operator.matvec(right)
    return left.flatten(1).norm(dim=-1), _unit(left), right


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
