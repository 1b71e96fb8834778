"""Gradient ascent on all that a bound for measures lets vary: tokens, masses, V and the bias."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Generator, Tensor

from lab.attack.problems import Outcome, Problem, generator_of, integer, make_problem, normal
from lab.attack.truth import dense_jacobian, frobenius_norm
from lipcore import bounds
from lipcore.adversarial import score_gap_inputs
from lipcore.attention import Attention

#: The numbers of starts and of steps of the ascent on each problem.
STARTS = 12
STEPS = 40
#: Beyond this, masses of the worst measures are too small for a dense Jacobian in float64.
LARGEST_A = 12.0


def weighted_setting(seed: int, index: int) -> Iterator[Outcome]:
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
    constant, best = _climb(partial(_log_constant, A), radius, start)
    for name in ("unified_upper", "unified_upper_sharp"):
        ratio = math.exp(constant - getattr(bounds, name)(**size))
        yield outcome(f"{name} (bias)", ratio=ratio, tries=STARTS * (STEPS + 1))
    one = torch.eye(len(A), dtype=A.dtype)
    head = Attention(A[None], one[None], best["V"][None], best["c"], scale=1.0)
    least = bounds.best_upper(attention=head, radius=radius, log=True)
    yield outcome("best_upper (bias)", ratio=math.exp(constant - least), tries=1)
    columns, best = _climb(partial(_log_column, A), radius, start)
    gap = bounds.score_gap_upper(radius * A, best["c"][0]) * radius
    yield outcome("score_gap_upper (columns)", ratio=math.exp(columns - gap), tries=1)


def _starts(problem: Problem, generator: Generator) -> dict[str, Tensor]:
    """Return random tokens, masses, V and biases of one length, with the worst pair on half."""
    A, radius = problem.A, problem.radius
    d = len(A)
    n = integer(2, 4, generator)
    X = radius * normal(generator, STARTS, n, d)
    pair = score_gap_inputs(A, 2, radius)
    X[::2, 0] = pair[0]
    X[::2, 1:] = pair[1] + 0.1 * (X[::2, 1:] - pair[1])
    log_masses = normal(generator, STARTS, n)
    log_masses[:, 0] -= 2 * problem.size * torch.rand(STARTS, generator=generator).double()
    share = torch.rand((), generator=generator).item()
    length = problem.norm_a * radius * max(0.0, 1.5 * share - 0.5)
    c = normal(generator, STARTS, 1, d)
    c = length * c / c.norm(dim=-1, keepdim=True)
    V = normal(generator, STARTS, d, d)
    return {"X": X, "y": X[:, :1].clone(), "log_masses": log_masses, "V": V, "c": c}


def _climb(
    value: Callable[[dict[str, Tensor]], Tensor], radius: float, start: dict[str, Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """Return the largest value met, and the member that has it."""
    length = start["c"].norm(dim=-1, keepdim=True)
    free = {name: x.clone().requires_grad_() for name, x in start.items()}
    optimiser = torch.optim.Adam(free.values(), lr=0.1)
    top = -math.inf
    best: dict[str, Tensor] = {}
    for _ in range(STEPS + 1):
        inside = _inside(free, radius, length)
        values = value(inside)
        member = int(values.argmax())
        if values[member].item() > top:
            top = values[member].item()
            best = {name: x[member].detach() for name, x in inside.items()}
        optimiser.zero_grad()
        (-values.sum()).backward()
        optimiser.step()
    return top, best


def _inside(free: dict[str, Tensor], radius: float, length: Tensor) -> dict[str, Tensor]:
    """Return tokens in the ball, masses of sum one, ‖V‖ = 1, and the bias with its length."""

    def in_ball(x: Tensor) -> Tensor:
        return x * (radius / x.norm(dim=-1, keepdim=True).clamp(min=radius))

    c = free["c"]
    return {
        "X": in_ball(free["X"]),
        "y": in_ball(free["y"]),
        "log_masses": free["log_masses"].log_softmax(-1),
        "V": free["V"] / torch.linalg.matrix_norm(free["V"], 2)[:, None, None],
        "c": c * (length / c.norm(dim=-1, keepdim=True).clamp(min=1e-300)),
    }


def _log_constant(A: Tensor, at: dict[str, Tensor]) -> Tensor:
    """Return the logarithm of the local constant in L²(μ)."""
    return frobenius_norm(
        dense_jacobian(A, at["V"], at["X"], at["log_masses"], offset=at["c"])
    ).log()


def _log_column(A: Tensor, at: dict[str, Tensor]) -> Tensor:
    """Return log S(y), how much attention a key at y collects (:prf:ref:`lem-columns`)."""
    images = at["X"] @ A.mT + at["c"]
    rows = (images @ at["X"].mT + at["log_masses"][:, None]).logsumexp(-1)
    scores = (images @ at["y"].mT)[..., 0]
    return (at["log_masses"] + scores - rows).logsumexp(-1)
