"""Gradient attacks in a ball around tokens, which are compared with the certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Generator, Tensor

from lab.attack.problems import (
    Outcome,
    generator_of,
    largest_ratio,
    make_problem,
    normal,
)
from lipcore import bounds
from lipcore.attention import Attention

#: The numbers of starts and of steps of the attack on each problem.
STARTS = 16
STEPS = 20


def climb(
    value: Callable[[Tensor], Tensor],
    X: Tensor,
    radius: float,
    *,
    norm: str = "frobenius",
    steps: int = STEPS,
    starts: int = STARTS,
    first: Tensor | None = None,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the largest values (starts,) found on the rim of a ball, and where (starts, n, d).

    Parameters
    ----------
    value : callable
        A function from inputs (K, n, d) to the numbers (K,) that are to become large; gradient
        ascent evaluates it ``steps`` + 1 times, for all starts at once.
    X, radius, norm
        The ball, as in :func:`lipcore.bounds.change_upper`, around one sequence (n, d).
    first : Tensor, shape (n, d), optional
        The direction of one more start.

    Examples
    --------
    >>> X = torch.zeros(1, 2, dtype=torch.float64)
    >>> best, Y = climb(lambda Y: Y[:, 0, 0], X, 2.0)
    >>> best.max().item()
    2.0
    """
    over = -1 if norm == "token" else (-2, -1)

    def scaled(H: Tensor, length: float) -> Tensor:
        return length * H / H.norm(dim=over, keepdim=True).clamp(min=1e-300)

    generator = generator or Generator().manual_seed(0)
    H = torch.randn(starts, *X.shape, dtype=X.dtype, generator=generator)
    if first is not None:
        H = torch.cat([H, first[None].to(X.dtype)])
    H = scaled(H, radius)
    best = H.new_full((len(H),), -torch.inf)
    where = X + H
    for _ in range(steps + 1):
        Y = (X + H).requires_grad_()
        values = value(Y)
        better = values.detach() > best
        best = torch.where(better, values.detach(), best)
        where = torch.where(better[:, None, None], Y.detach(), where)
        (gradient,) = torch.autograd.grad(values.sum(), Y)
        H = scaled(H / radius + 3 * scaled(gradient, 1.0), radius)
    return best, where


def ball_setting(seed: int, index: int) -> Iterator[Outcome]:
    """Attack one head in a ball around tokens: how far f moves, and how far from its tangent."""
    generator = generator_of(seed, index)
    problem = make_problem(generator)
    n = min(problem.n, 12)
    X = normal(generator, n, len(problem.A))
    X = problem.radius * X / X.norm(dim=-1, keepdim=True)
    if index % 4 == 0 and n > 2:  # equal tokens, whose weights are balanced
        X[2:] = X[2:3]
    f = Attention.from_matrices(problem.A, problem.V, causal=problem.causal)
    radius = problem.radius * 10 ** (5 * torch.rand((), generator=generator).item() - 4)
    start = f(X)
    J = f.jacobian(X).dense().unflatten(0, start.shape).unflatten(-1, X.shape)

    moves = {
        "change_upper": lambda Y: f(Y) - start,
        "tangent_error_upper": lambda Y: f(Y) - start - torch.einsum("ipjs,kjs->kip", J, Y - X),
    }
    # smaller changes are lost in the rounding of values
    rounding = 1e-13 * problem.norm_v * (problem.radius + radius)
    for norm in ("frobenius", "token"):
        where = f"{problem.describe()}, radius {radius / problem.radius:.2g} R, {norm}"
        for name, move in moves.items():
            size = partial(_size, move)
            best, _ = climb(size, X, radius, norm=norm, generator=generator)
            bound = getattr(bounds, name)(f, X, radius, norm=norm)
            ratio = largest_ratio(best.max() - rounding, bound)
            tries = len(best) * (STEPS + 1)
            yield Outcome(f"{name} ({norm})", "book", ratio, tries, where, problem.size >= 1)


def _size(move: Callable[[Tensor], Tensor], Y: Tensor) -> Tensor:
    return move(Y).flatten(1).norm(dim=1)
