"""Gradient attacks: in a ball around tokens, on measures with a bias, on errors of rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Generator, Tensor

from lab.attack.problems import (
    Outcome,
    Problem,
    generator_of,
    integer,
    largest_ratio,
    make_problem,
    normal,
)
from lab.attack.truth import dense_jacobian, frobenius_norm
from lab.rounding import ROUNDED, largest_error, rounding_upper
from lipcore import bounds
from lipcore.adversarial import score_gap_inputs
from lipcore.attention import Attention

#: Starts and steps of the attack in a ball, on a measure, on rounding.
BALL = (16, 20)
MEASURE = (12, 40)
ROUNDING = (8, 12)
#: Beyond this a, masses of the worst measures are too small for a dense Jacobian in float64.
LARGEST_A = 12.0
FORMATS = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


def climb(
    value: Callable[[Tensor], Tensor],
    X: Tensor,
    radius: float,
    *,
    norm: str = "frobenius",
    steps: int = BALL[1],
    starts: int = BALL[0],
    first: Tensor | None = None,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the largest values (starts,) found on the rim of a ball, and where (starts, n, d).

    Gradient ascent evaluates ``value``, from inputs (K, n, d) to numbers (K,), ``steps`` + 1 times.
    The ball is around one sequence X (n, d), as in :func:`lipcore.bounds.change_upper`; ``first``
    is the direction of one more start.

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
    best, where = H.new_full((len(H),), -torch.inf), X + H
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
    X = _tokens(problem, generator, 12)
    if index % 4 == 0 and len(X) > 2:  # equal tokens, whose weights are balanced
        X[2:] = X[2:3]
    f = problem.head()
    radius = problem.radius * 10 ** (5 * torch.rand((), generator=generator).item() - 4)
    start = f(X)
    J = f.jacobian(X).dense().unflatten(0, start.shape).unflatten(-1, X.shape)

    def from_tangent(Y: Tensor) -> Tensor:
        return (f(Y) - start - torch.einsum("ipjs,kjs->kip", J, Y - X)).flatten(1).norm(dim=1)

    lengths = {
        "change_upper": lambda Y: (f(Y) - start).flatten(1).norm(dim=1),
        "tangent_error_upper": from_tangent,
    }
    # smaller changes are lost in the rounding of values
    rounding = 1e-13 * problem.norm_v * (problem.radius + radius)
    for norm in ("frobenius", "token"):
        outcome = problem.outcome(f"radius {radius / problem.radius:.2g} R, {norm}")
        for name, length in lengths.items():
            best, _ = climb(length, X, radius, norm=norm, generator=generator)
            bound = getattr(bounds, name)(f, X, radius, norm=norm)
            ratio = largest_ratio(best.max() - rounding, bound)
            yield outcome(f"{name} ({norm})", "book", ratio, len(best) * (BALL[1] + 1))


def _tokens(problem: Problem, generator: Generator, most: int) -> Tensor:
    """Return random tokens (n, d) on the sphere."""
    X = normal(generator, min(problem.n, most), len(problem.A))
    return problem.radius * X / X.norm(dim=-1, keepdim=True)


def measure_setting(seed: int, index: int) -> Iterator[Outcome]:
    """Attack one head with a bias on measures: its constant, and how much one key collects."""
    generator = generator_of(seed, index)
    problem = make_problem(generator)
    while not 0 < problem.size <= LARGEST_A:
        problem = make_problem(generator)
    A, radius = problem.A, problem.radius
    start = _starts(problem, generator)
    length = start["c"].norm(dim=-1)[0, 0].item()  # kept during the ascent
    a = problem.size + length * radius
    where = f"weights, A {problem.shape}, d={len(A)}, a={problem.size:.3g}, |c|={length:.3g}"
    outcome = partial(Outcome, source="book", where=where, large_a=a >= 1)
    size = {"radius": radius, "norm_a": a / radius**2, "norm_v": 1.0, "log": True}
    constant, best = _ascend(partial(_log_constant, A), radius, start)
    for name in ("unified_upper", "unified_upper_sharp"):
        ratio = math.exp(constant - getattr(bounds, name)(**size))
        yield outcome(f"{name} (bias)", ratio=ratio, tries=MEASURE[0] * (MEASURE[1] + 1))
    one = torch.eye(len(A), dtype=A.dtype)
    head = Attention(A[None], one[None], best["V"][None], best["c"], scale=1.0)
    least = bounds.best_upper(attention=head, radius=radius, log=True)
    yield outcome("best_upper (bias)", ratio=math.exp(constant - least), tries=1)
    columns, best = _ascend(partial(_log_column, A), radius, start)
    gap = bounds.score_gap_upper(radius * A, best["c"][0]) * radius
    yield outcome("score_gap_upper (columns)", ratio=math.exp(columns - gap), tries=1)


def _starts(problem: Problem, generator: Generator) -> dict[str, Tensor]:
    """Return random tokens, masses, V and biases of one length, with the worst pair on half."""
    starts, d = MEASURE[0], len(problem.A)
    n = integer(2, 4, generator)
    X = problem.radius * normal(generator, starts, n, d)
    pair = score_gap_inputs(problem.A, 2, problem.radius)
    X[::2, 0] = pair[0]
    X[::2, 1:] = pair[1] + 0.1 * (X[::2, 1:] - pair[1])
    log_masses = normal(generator, starts, n)
    log_masses[:, 0] -= 2 * problem.size * torch.rand(starts, generator=generator).double()
    share = torch.rand((), generator=generator).item()
    length = problem.norm_a * problem.radius * max(0.0, 1.5 * share - 0.5)
    c = normal(generator, starts, 1, d)
    c = length * c / c.norm(dim=-1, keepdim=True)
    V = normal(generator, starts, d, d)
    return {"X": X, "y": X[:, :1].clone(), "log_masses": log_masses, "V": V, "c": c}


def _ascend(value: Callable, radius: float, start: dict[str, Tensor]) -> tuple[float, dict]:
    """Return the largest value met within the ball, for ‖V‖ = 1 and the bias's length, and where."""
    length = start["c"].norm(dim=-1, keepdim=True)
    free = {name: x.clone().requires_grad_() for name, x in start.items()}
    optimiser = torch.optim.Adam(free.values(), lr=0.1)
    top = -math.inf
    for _ in range(MEASURE[1] + 1):
        inside = {
            "X": _shortened(free["X"], radius),
            "y": _shortened(free["y"], radius),
            "log_masses": free["log_masses"].log_softmax(-1),
            "V": free["V"] / torch.linalg.matrix_norm(free["V"], 2)[:, None, None],
            "c": free["c"] * (length / free["c"].norm(dim=-1, keepdim=True).clamp(min=1e-300)),
        }
        values = value(inside)
        member = int(values.argmax())
        if values[member].item() > top:
            top = values[member].item()
            best = {name: x[member].detach() for name, x in inside.items()}
        optimiser.zero_grad()
        (-values.sum()).backward()
        optimiser.step()
    return top, best


def _shortened(X: Tensor, radius: float) -> Tensor:
    return X * (radius / X.norm(dim=-1, keepdim=True).clamp(min=radius))


def _log_constant(A: Tensor, at: dict[str, Tensor]) -> Tensor:
    """Return the logarithm of the local constant in L²(μ)."""
    J = dense_jacobian(A, at["V"], at["X"], at["log_masses"], offset=at["c"])
    return frobenius_norm(J).log()


def _log_column(A: Tensor, at: dict[str, Tensor]) -> Tensor:
    """Return log S(y), how much attention a key at y collects (:prf:ref:`lem-columns`)."""
    images = at["X"] @ A.mT + at["c"]
    rows = (images @ at["X"].mT + at["log_masses"][:, None]).logsumexp(-1)
    scores = (images @ at["y"].mT)[..., 0]
    return (at["log_masses"] + scores - rows).logsumexp(-1)


def rounding_setting(seed: int, index: int) -> Iterator[Outcome]:
    """One head, or two with a projection: scores, weights and values move by half their spacing."""
    generator = generator_of(seed, index)
    problem = make_problem(generator)
    X = _tokens(problem, generator, 6)
    f = problem.head()
    if index % 2:
        f = _beside_another(f, generator)
    q, k, v = f.project(X)
    first = int(torch.randint(len(FORMATS), (), generator=generator))
    largest = max((q @ k.mT).abs().max().item(), v.abs().max().item())
    formats = (*FORMATS[first:], torch.bfloat16)
    dtype = next(dtype for dtype in formats if largest <= torch.finfo(dtype).max)
    outcome = problem.outcome(str(dtype).removeprefix("torch."))
    tries = ROUNDING[0] * (ROUNDING[1] + 1)
    for name, sources in {**{name: (name,) for name in ROUNDED}, "all three": ROUNDED}.items():
        found = worst_rounding(f, X, dtype, sources, generator)
        found -= 1e-13 * f(X).norm().item()  # smaller moves are lost in the rounding of float64
        ratio = largest_ratio(found, rounding_upper(f, X, dtype, sources=sources))
        yield outcome(f"rounding_upper ({name})", "book", ratio, tries)


def _beside_another(f: Attention, generator: Generator) -> Attention:
    """Return a head beside another one, both read through a projection."""

    def beside(M: Tensor) -> Tensor:
        other = normal(generator, *M.shape)
        return torch.cat([M, M.norm() * other / other.norm()])

    output = normal(generator, 2, 2 * f.value.shape[1])
    value, key = beside(f.value), f.key.expand(2, -1, -1)
    return Attention(beside(f.query), key, value, output=output, scale=1.0, causal=f.causal)


def worst_rounding(
    f: Attention, X: Tensor, dtype: torch.dtype, sources: tuple[str, ...], generator: Generator
) -> float:
    """Return the largest move of f(X) found for errors that follow the signs of the gradient."""
    q, k, v = f.project(X)
    exact, start, info = q @ k.mT, f(X), torch.finfo(dtype)
    seen = torch.ones(len(X), len(X), dtype=torch.bool).tril(0 if f.causal else len(X))
    errors = torch.where(seen, largest_error(exact, dtype), 0)

    def move(scores: Tensor | int = 0, weights: Tensor | int = 0, values: Tensor | int = 0):
        P = torch.softmax((exact + errors * scores).masked_fill(~seen, -math.inf), dim=-1)
        allowed = info.eps / 2 * P + info.eps * info.smallest_normal / 2
        P = P + torch.where(seen, allowed, 0) * weights
        return f.join_heads(P @ (v + largest_error(v, dtype) * values), bias=True) - start

    sizes = {"scores": exact.shape, "weights": exact.shape, "values": v.shape}
    signs = {}
    for source in sources:
        drawn = torch.randint(0, 2, (ROUNDING[0], *sizes[source]), generator=generator)
        signs[source] = (2 * drawn - 1).to(X.dtype)
    best = 0.0
    for _ in range(ROUNDING[1] + 1):
        moves = move(**{source: s.requires_grad_() for source, s in signs.items()})
        lengths = moves.flatten(1).norm(dim=1)
        best = max(best, lengths.max().item())
        gradients = torch.autograd.grad(lengths.sum(), list(signs.values()))
        signs = {
            source: torch.where(g == 0, s.detach(), g.sign())
            for (source, s), g in zip(signs.items(), gradients, strict=True)
        }
    return best
