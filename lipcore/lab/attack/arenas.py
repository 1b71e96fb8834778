"""Where bounds and truth meet. An arena takes a seed and an index and returns ratios that should not pass one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipcore import bounds
from lipcore.adversarial import ascend, worst_case_inputs
from lipcore.attention import Attention
from lipcore.lab.attack.contestants import Contestant, LocalContestant, closed_forms, local_forms
from lipcore.lab.attack.problems import Inputs, Problem, first_inputs, make_problem, mutate, truth
from lipcore.lab.attack.truth import (
    dense_jacobian,
    frobenius_norm,
    reverse_mode_jacobian,
    token_norm,
)
from lipcore.lab.zoo import l2_attention_map

#: Sizes of random moves, one a generation.
MOVES = (0.5, 0.1, 0.02)
#: One problem in so many is also attacked by gradient ascent.
ASCENT_EVERY = 12
ASCENT_STEPS = 40


@dataclass(frozen=True)
class Outcome:
    """Largest ratio that one problem gave for one bound: truth over an upper bound, or a lower bound over the truth.

    Attributes
    ----------
    bound, source : str
    ratio : float
        At most one if the bound holds.
    tries : int
        Inputs at which it was held against the truth.
    where : str
        The problem in words.
    rough : bool
        Whether a ≥ 1: attention on which bounds are put to the test (at a = 0 it is an average).
    """

    bound: str
    source: str
    ratio: float
    tries: int
    where: str
    rough: bool = True


def main_arena(
    seed: int,
    index: int,
    closed: Sequence[Contestant] | None = None,
    local: Sequence[LocalContestant] | None = None,
) -> Iterator[Outcome]:
    """One head: random inputs, the theory's worst cases, random moves from the best, and sometimes gradient ascent."""
    generator = _generator(seed, index)
    problem = make_problem(generator)
    closed = [c for c in (closed_forms() if closed is None else closed) if problem.kind in c.kinds]
    local = [c for c in (local_forms() if local is None else local) if problem.kind in c.kinds]
    if not closed and not local:
        return
    inputs, sigma, tries = _search(problem, generator, climb=index % ASCENT_EVERY == 0)
    log_sigma, where, rough = sigma.max().log().item(), problem.describe(), problem.size >= 1
    for contestant in closed:
        ratio = _ratio(log_sigma, contestant.log_bound(problem))
        yield Outcome(contestant.name, contestant.source, ratio, tries, where, rough)
    if inputs.masses is None:
        yield from _local_outcomes(problem, inputs, sigma, local, generator)


def _search(
    problem: Problem, generator: torch.Generator, *, climb: bool
) -> tuple[Inputs, Tensor, int]:
    """Inputs of the problem, the truth at each, and the number of evaluations that it took to find them."""
    inputs = _with_worst_case(problem, first_inputs(problem, generator))
    sigma, climbing = truth(problem, inputs), 0
    for move in MOVES:
        fresh = mutate(problem, _top(inputs, sigma, 4), move, generator)
        inputs, sigma = inputs.join(fresh), torch.cat([sigma, truth(problem, fresh)])
    if climb and inputs.masses is None:
        best = _top(inputs, sigma, 4)
        f = Attention.from_matrices(problem.A, problem.V, causal=problem.causal)
        reached = Inputs(ascend(f, best.X, problem.radius, steps=ASCENT_STEPS, progress=False).X)
        inputs, sigma = inputs.join(reached), torch.cat([sigma, truth(problem, reached)])
        climbing = (ASCENT_STEPS - 1) * len(best.X)
    return inputs, sigma, len(sigma) + climbing


def _local_outcomes(problem: Problem, inputs: Inputs, sigma: Tensor, contestants: Sequence[LocalContestant],
                    generator: torch.Generator) -> Iterator[Outcome]:  # fmt: skip
    """Local bounds at the roughest input and at some others; then the largest-token norm."""
    some = torch.cat([sigma.argmax()[None], torch.randperm(len(sigma), generator=generator)[:5]])
    X, sigma = inputs.X[some], sigma[some]
    f = Attention.from_matrices(problem.A, problem.V, causal=problem.causal)
    where, rough = problem.describe(), problem.size >= 1
    for contestant in contestants:
        ratio = _largest_ratio(sigma, contestant.bound(f, X))
        yield Outcome(contestant.name, contestant.source, ratio, len(X), where, rough)
    theta = bounds.emadi2026_softmax_norm(f.weights(X)).amax((-2, -1)).clamp(max=1.0)
    token = token_norm(dense_jacobian(problem.A, problem.V, X, causal=problem.causal))
    norms = {"radius": problem.radius, "norm_a": problem.norm_a, "norm_v": problem.norm_v}
    bound = token.new_tensor(
        [bounds.emadi2026_token_upper(theta=t, **norms) for t in theta.tolist()]
    )
    yield Outcome(
        "emadi2026_token_upper", "emadi2026", _largest_ratio(token, bound), len(X), where, rough
    )


def lower_arena(seed: int, index: int) -> Iterator[Outcome]:
    """Lower bounds at the inputs for which the theory states them; n up to 10¹² through counts."""
    generator = _generator(seed, index)
    problem = make_problem(generator)
    n = problem.n if problem.kind == "counts" else max(problem.n, 2)
    problem = replace(problem, kind="causal" if problem.kind == "causal" else "counts", n=n)
    gamma, u = bounds.eigen_gamma(problem.A)
    eigen, gap = _eigen_pair(problem.A, u), _gap_pair(problem.A)
    at_eigen, at_gap = (
        truth(problem, _one_against_all(problem, pair)).item() for pair in (eigen, gap)
    )
    sizes = {"n": n, "radius": problem.radius}
    where = problem.describe()
    if problem.causal:
        value = bounds.masked_lower(gamma=gamma, norm_v=problem.norm_v, **sizes)
        yield Outcome(
            "masked_lower", "paper", _quotient(value, at_eigen), 1, where, problem.size >= 1
        )
        return
    norm_vu = (problem.V @ u).norm().item()
    values = [
        (
            "adversarial_lower",
            "paper",
            bounds.adversarial_lower(gamma=gamma, norm_v=problem.norm_v, **sizes),
            at_eigen,
        ),
        (
            "refined_lower",
            "book",
            bounds.refined_lower(gamma=gamma, norm_vu=norm_vu, **sizes),
            at_eigen,
        ),
        (
            "score_gap_lower",
            "book",
            bounds.score_gap_lower(A=problem.A, V=problem.V, **sizes),
            at_gap,
        ),
    ]
    if len(problem.A) > 1 and n > 2 and problem.size > 0:
        values.append(("torn_lower", "book", *_torn_duel(problem)))
    for name, source, value, sigma in values:
        yield Outcome(name, source, _quotient(value, sigma), 1, where, problem.size >= 1)


def layer_arena(seed: int, index: int) -> Iterator[Outcome]:
    """Several heads with biases, rotary positions, masks and an output projection."""
    generator = _generator(seed, index)
    f, d = _random_layer(generator)
    n = 4
    radius = 10 ** (1.5 * torch.rand((), generator=generator).item() - 1)
    X = torch.randn(12, n, d, generator=generator, dtype=torch.float64)
    lengths = torch.where(torch.rand(12, n, 1, generator=generator) < 0.7, 1.0, 0.5).double()
    X = radius * lengths * X / X.norm(dim=-1, keepdim=True)
    if index % 4 == 0:
        X = ascend(f, X[:4], radius, steps=15, progress=False).X
    sigma = torch.linalg.matrix_norm(f.jacobian(X).dense(), 2)
    where = f"layer, {f.heads} heads, d={d}, n={n}, R={radius:.3g}"
    closed = {
        "layer_upper": bounds.layer_upper(f, n=n, radius=radius),
        "best_upper (layer)": bounds.best_upper(attention=f, n=n, radius=radius),
    }
    for name, bound in closed.items():
        yield Outcome(name, "book", (sigma.max() / bound).item(), len(X), where)
    yield Outcome(
        "local_upper", "book", _largest_ratio(sigma, bounds.local_upper(f, X)), len(X), where
    )


def l2_arena(seed: int, index: int) -> Iterator[Outcome]:
    """L2 attention, anywhere in space."""
    generator = _generator(seed, index)
    heads, k, d, n = (int(torch.randint(1, top, (), generator=generator)) for top in (3, 3, 4, 6))
    size = 10 ** (2 * torch.rand((), generator=generator) - 1)
    query = size * torch.randn(heads, k, d, generator=generator, dtype=torch.float64)
    value = torch.randn(heads, 2, d, generator=generator, dtype=torch.float64)
    X = torch.randn(16, n, d, generator=generator, dtype=torch.float64)
    norms_q, norms_v = torch.linalg.matrix_norm(query, 2), torch.linalg.matrix_norm(value, 2)
    X = (
        X
        * 10 ** (3 * torch.rand(16, 1, 1, generator=generator, dtype=X.dtype) - 2)
        / norms_q.amax()
    )
    sigma = (
        frobenius_norm(reverse_mode_jacobian(lambda Y: l2_attention_map(Y, query, value), X))
        .max()
        .item()
    )
    norms = {"norms_q": norms_q.tolist(), "norms_v": norms_v.tolist()}
    where = f"L2 attention, {heads} heads, k={k}, d={d}, n={n}, |Q|={max(norms['norms_q']):.3g}"
    for name, source in (
        ("l2_attention_upper", "book"),
        ("kim2021_l2_upper", "kim2021"),
        ("kim2021_l2_upper_restated", "kim2021"),
    ):
        bound = getattr(bounds, name)(n=n, head_dim=k, **norms)
        yield Outcome(name, source, sigma / bound, len(X), where)


def softmax_arena(seed: int, index: int) -> Iterator[Outcome]:
    """The two norms of the softmax's Jacobian against eigenvalues, and against every pair of sign vectors."""
    generator = _generator(seed, index)
    n = int(torch.randint(1, 8, (), generator=generator))
    scale = 10 ** (2 * torch.rand(64, 1, generator=generator, dtype=torch.float64) - 1)
    p = torch.softmax(scale * torch.randn(64, n, generator=generator, dtype=torch.float64), dim=-1)
    products = p[:, :, None] * p[:, None, :]
    products = products - torch.diag_embed(products.diagonal(dim1=1, dim2=2))
    M = (
        torch.diag_embed(products.sum(-1)) - products
    )  # p_i(1 − p_i) as a sum keeps its digits near one-hot rows
    exact = torch.linalg.eigvalsh(M)[:, -1]
    yield Outcome(
        "softmax_norm_upper",
        "yudin2025",
        _largest_ratio(exact, bounds.softmax_norm_upper(p)),
        64,
        f"n={n}",
    )
    signs = 1.0 - 2 * (torch.arange(2**n)[:, None] >> torch.arange(n) & 1).double()
    reached = (M @ signs.mT).abs().sum(1).amax(-1)
    theta = bounds.emadi2026_softmax_norm(p)
    yield Outcome(
        "emadi2026_softmax_norm", "emadi2026", _largest_ratio(reached, theta), 64, f"n={n}"
    )


ARENAS: dict[str, Callable[..., Iterator[Outcome]]] = {
    "main": main_arena, "lower": lower_arena, "layer": layer_arena, "l2": l2_arena, "softmax": softmax_arena,
}  # fmt: skip


def _generator(seed: int, index: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)


def _top(inputs: Inputs, sigma: Tensor, count: int) -> Inputs:
    return inputs.pick(sigma.topk(min(count, len(sigma))).indices)


def _with_worst_case(problem: Problem, inputs: Inputs) -> Inputs:
    """The inputs and the theory's worst cases; with masses, the score gap's pair at several of them."""
    if inputs.masses is None:
        worst = [worst_case_inputs(problem.A, problem.n, problem.radius, causal=problem.causal)]
        if len(problem.A) > 1 and problem.n > 2 and problem.size > 0:
            worst.append(bounds.torn_inputs(problem.A, problem.n, problem.radius, V=problem.V))
        return Inputs(torch.cat([inputs.X, torch.stack(worst)]))
    first, others = (problem.radius * x for x in _gap_pair(problem.A))
    share = (
        torch.logspace(-min(2 * problem.size, 24.0), 0, 10, base=math.e, dtype=torch.float64) / 2
    )
    n = inputs.X.shape[1]
    X = torch.stack([first, *[others] * (n - 1)]).expand(len(share), n, -1)
    masses = torch.cat([share[:, None], ((1 - share) / (n - 1))[:, None].expand(-1, n - 1)], dim=1)
    if problem.kind == "counts":
        counts = (masses[:, 1:] * problem.n).floor().clamp(min=1)
        masses = torch.cat([problem.n - counts.sum(-1, keepdim=True), counts], dim=1)
        masses = torch.where(masses[:, :1] >= 1, masses, inputs.masses[: len(share)])
    return inputs.join(Inputs(X, masses))


def _eigen_pair(A: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """(x_1, x_2) of the eigenvalue construction, in the unit ball."""
    return (-u, u) if u @ A @ u < 0 else (u, u / 2)


def _gap_pair(A: Tensor) -> tuple[Tensor, Tensor]:
    """(x_1, x_2) of the score-gap construction, in the unit ball."""
    _, u = bounds.score_gap(A)
    image = A @ u
    return (image / image.norm() if image.norm() > 0 else u), u


def _one_against_all(problem: Problem, pair: tuple[Tensor, Tensor]) -> Inputs:
    """One token x_1, then n − 1 times x_2."""
    first, others = (problem.radius * x for x in pair)
    if problem.causal:
        return Inputs(torch.stack([first, *[others] * (problem.n - 1)])[None])
    return Inputs(
        torch.stack([first, others])[None],
        torch.tensor([[1.0, problem.n - 1.0]], dtype=torch.float64),
    )


def _torn_duel(problem: Problem) -> tuple[float, float]:
    """The lower bound by torn queries, and the truth at its inputs: two far tokens, and one token n − 2 times."""
    problem = replace(problem, n=min(problem.n, 1000))
    X = bounds.torn_inputs(problem.A, problem.n, problem.radius, V=problem.V)[:3]
    inputs = Inputs(X[None], torch.tensor([[1.0, 1.0, problem.n - 2.0]], dtype=torch.float64))
    bound = bounds.torn_lower(n=problem.n, radius=problem.radius, A=problem.A, V=problem.V)
    return bound, truth(problem, inputs).item()


def _random_layer(generator: torch.Generator) -> tuple[Attention, int]:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def toss() -> bool:
        return torch.rand((), generator=generator).item() < 0.5

    heads, k, d, p = 2, 2, 3, 2
    key_heads = 1 if toss() else heads
    projected = toss()
    return Attention(
        query=draw(heads, k, d), key=draw(key_heads, k, d), value=draw(key_heads, p, d),
        query_bias=draw(heads, k) if toss() else None, key_bias=draw(key_heads, k) if toss() else None,
        output=draw(3, heads * p) if projected else None, causal=toss(),
        rotary=torch.tensor([1.0], dtype=torch.float64) if toss() else None,
        log_weights=draw(4) if toss() else None,
    ), d  # fmt: skip


def _ratio(log_value: float, log_bound: float) -> float:
    """e^(difference), with 0/0 = 0: a bound zero of a constant zero is kept."""
    if log_value == -math.inf:
        return 0.0
    return math.inf if log_bound == -math.inf else math.exp(min(log_value - log_bound, 700.0))


def _quotient(value: float, bound: float) -> float:
    return _ratio(
        math.log(value) if value > 0 else -math.inf, math.log(bound) if bound > 0 else -math.inf
    )


def _largest_ratio(values: Tensor, bound: Tensor) -> float:
    """Largest quotient, with 0/0 = 0."""
    ratios = torch.where(values > 0, values / bound, torch.zeros_like(values))
    return ratios.max().item()
