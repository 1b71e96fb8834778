"""Rounding errors chosen by an adversary, within what a format allows, against their bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor

from lab.attack.problems import (
    Outcome,
    Problem,
    generator_of,
    largest_ratio,
    make_problem,
    normal,
)
from lab.rounding import ROUNDED, largest_error, rounding_upper
from lipcore.attention import Attention

FORMATS = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
#: Random choices of signs, and steps from each to the signs of the gradient.
STARTS = 8
STEPS = 12


def rounding_setting(seed: int, index: int) -> Iterator[Outcome]:
    """One head, or two with a projection: scores, weights and values move by half their spacing."""
    generator = generator_of(seed, index)
    problem = make_problem(generator)
    X = normal(generator, min(problem.n, 6), len(problem.A))
    X = problem.radius * X / X.norm(dim=-1, keepdim=True)
    f = _layer(problem, generator, heads=1 + index % 2)
    q, k, v = f.project(X)
    first = int(torch.randint(len(FORMATS), (), generator=generator))
    largest = max((q @ k.mT).abs().max().item(), v.abs().max().item())
    formats = (*FORMATS[first:], torch.bfloat16)
    dtype = next(dtype for dtype in formats if largest <= torch.finfo(dtype).max)
    where = f"{problem.describe()}, {str(dtype).removeprefix('torch.')}"
    for sources in (*((source,) for source in ROUNDED), ROUNDED):
        found = worst_rounding(f, X, dtype, sources, generator)
        found -= 1e-13 * f(X).norm().item()  # smaller moves are lost in the rounding of float64
        ratio = largest_ratio(found, rounding_upper(f, X, dtype, sources=sources))
        name = f"rounding_upper ({sources[0] if len(sources) == 1 else 'all three'})"
        yield Outcome(name, "book", ratio, STARTS * (STEPS + 1), where, problem.size >= 1)


def worst_rounding(
    f: Attention,
    X: Tensor,
    dtype: torch.dtype,
    sources: tuple[str, ...],
    generator: Generator,
) -> float:
    """Return the largest move of f(X) (n, d) that was found among all errors of a format.

    Each error is its largest size times a sign; from random signs, every step takes the signs of
    the gradient, which never goes down where the output is convex in the errors.
    """
    move = _move(f, X, dtype)
    square = (f.heads, len(X), len(X))
    sizes = {"scores": square, "weights": square, "values": f.project(X)[2].shape}
    signs = {}
    for source in sources:
        drawn = torch.randint(0, 2, (STARTS, *sizes[source]), generator=generator)
        signs[source] = (2 * drawn - 1).to(X.dtype)
    best = 0.0
    for _ in range(STEPS + 1):
        free = {source: s.requires_grad_() for source, s in signs.items()}
        lengths = move(**free).flatten(1).norm(dim=1)
        best = max(best, lengths.max().item())
        gradients = torch.autograd.grad(lengths.sum(), list(free.values()))
        signs = {
            source: torch.where(g == 0, s.detach(), g.sign())
            for (source, s), g in zip(free.items(), gradients, strict=True)
        }
    return best


def _move(f: Attention, X: Tensor, dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return the move of the output as a function of the signs of the errors."""
    q, k, v = f.project(X)
    exact = q @ k.mT
    seen = torch.ones(len(X), len(X), dtype=torch.bool)
    if f.causal:
        seen = seen.tril()
    errors = torch.where(seen, largest_error(exact, dtype), 0)
    info = torch.finfo(dtype)
    start = f(X)

    def move(scores: Tensor | int = 0, weights: Tensor | int = 0, values: Tensor | int = 0):
        rounded = (exact + errors * scores).masked_fill(~seen, -math.inf)
        P = torch.softmax(rounded, dim=-1)
        allowed = info.eps / 2 * P + info.eps * info.smallest_normal / 2
        P = P + torch.where(seen, allowed, 0) * weights
        return f.join_heads(P @ (v + largest_error(v, dtype) * values), bias=True) - start

    return move


def _layer(problem: Problem, generator: Generator, heads: int) -> Attention:
    """Return the problem's head, alone or beside another one, both read through a projection."""
    f = Attention.from_matrices(problem.A, problem.V, causal=problem.causal)
    if heads == 1:
        return f

    def beside(M: Tensor) -> Tensor:
        other = normal(generator, *M.shape)
        return torch.cat([M, M.norm() * other / other.norm()])

    output = normal(generator, 2, 2 * len(problem.V))
    key = f.key.expand(2, -1, -1)
    value = beside(f.value)
    return Attention(beside(f.query), key, value, output=output, scale=1.0, causal=f.causal)
