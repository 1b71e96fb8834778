"""Gradient attacks in a ball around tokens, which are compared with the certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from lab.attack.outcome import Outcome
from lab.attack.problems import generator_of, make_problem
from lipcore import bounds
from lipcore.attention import Attention

NORMS = ("frobenius", "token")
#: The numbers of starts and of steps of the attack on each problem of :func:`ball_setting`.
STARTS = 16
STEPS = 20


def on_the_rim(H: Tensor, radius: float, norm: str) -> Tensor:
    """Scale moves H (…, n, d) to the length the ball allows: all tokens together, or each."""
    over = -1 if norm == "token" else (-2, -1)
    size = H.norm(dim=over, keepdim=True)
    return radius * H / size.clamp(min=1e-300)


def climb(
    value: Callable[[Tensor], Tensor],
    X: Tensor,
    radius: float,
    *,
    norm: str = "frobenius",
    steps: int = STEPS,
    starts: int = STARTS,
    first: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the largest values that gradient ascent finds on the rim of a ball, and where.

    Parameters
    ----------
    value : callable
        A function from inputs (K, n, d) to the numbers (K,) that are to become large.
    X : Tensor, shape (n, d)
    radius, norm
        The ball, as in :func:`lipcore.bounds.change_upper`.
    steps, starts : int
        ``value`` is evaluated ``steps`` + 1 times, for all starts at once.
    first : Tensor, shape (n, d), optional
        The direction of one more start.
    generator : torch.Generator, optional

    Returns
    -------
    best : Tensor, shape (starts,)
    Y : Tensor, shape (starts, n, d)

    Examples
    --------
    >>> X = torch.zeros(1, 2, dtype=torch.float64)
    >>> best, Y = climb(lambda Y: Y[:, 0, 0], X, 2.0)
    >>> best.max().item()
    2.0
    """
    like = {"dtype": X.dtype, "generator": generator or torch.Generator().manual_seed(0)}
    H = torch.randn(starts, *X.shape, **like)
    if first is not None:
        H = torch.cat([H, first[None].to(X.dtype)])
    H = on_the_rim(H, radius, norm)
    best = H.new_full((len(H),), -torch.inf)
    where = X + H
    for step in range(steps + 1):
        Y = (X + H).requires_grad_()
        values = value(Y)
        better = values.detach() > best
        best = torch.where(better, values.detach(), best)
        where = torch.where(better[:, None, None], Y.detach(), where)
        if step < steps:
            (gradient,) = torch.autograd.grad(values.sum(), Y)
            H = H / radius + 3 * on_the_rim(gradient, 1.0, norm)
            H = on_the_rim(H, radius, norm)
    return best, where


def ball_setting(seed: int, index: int) -> Iterator[Outcome]:
    """Attack one head in a ball around tokens: how far f moves, and how far from its tangent."""
    generator = generator_of(seed, index)
    problem = make_problem(generator)
    n = min(problem.n, 12)
    X = torch.randn(n, len(problem.A), generator=generator, dtype=torch.float64)
    X = problem.radius * X / X.norm(dim=-1, keepdim=True)
    if index % 4 == 0 and n > 2:  # equal tokens, whose weights are balanced
        X[2:] = X[2:3]
    f = Attention.from_matrices(problem.A, problem.V, causal=problem.causal)
    radius = problem.radius * 10 ** (5 * torch.rand((), generator=generator).item() - 4)
    start = f(X)
    J = f.jacobian(X).dense().unflatten(0, start.shape).unflatten(-1, X.shape)
    for norm in NORMS:
        maps = {
            "change_upper": lambda Y: f(Y) - start,
            "tangent_error_upper": lambda Y: f(Y) - start - torch.einsum("ipjs,kjs->kip", J, Y - X),
        }
        where = f"{problem.describe()}, radius {radius / problem.radius:.2g} R, {norm}"
        outcome = partial(Outcome, source="book", where=where, large_a=problem.size >= 1)
        for name, fn in maps.items():
            best, _ = climb(partial(_size, fn), X, radius, norm=norm, generator=generator)
            bound = getattr(bounds, name)(f, X, radius, norm=norm)
            # smaller changes are lost in the rounding of values
            rounding = 1e-13 * problem.norm_v * (problem.radius + radius)
            found = (best.max() - rounding).item()
            ratio = 0.0 if found <= 0 else found / bound.clamp(min=1e-300).item()
            yield outcome(f"{name} ({norm})", ratio=ratio, tries=len(best) * (STEPS + 1))


def _size(fn: Callable[[Tensor], Tensor], Y: Tensor) -> Tensor:
    return fn(Y).flatten(1).norm(dim=1)
