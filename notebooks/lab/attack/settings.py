"""Settings of the attack, which draw a problem from two integers and test bounds on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Generator, Tensor

from lab import l2, rivals
from lab.attack.candidates import Candidate, LocalCandidate, closed_forms, local_forms
from lab.attack.gradients import ball_setting, measure_setting, rounding_setting
from lab.attack.problems import (
    LARGEST_LOG_MASS,
    Inputs,
    Outcome,
    Problem,
    first_inputs,
    generator_of,
    integer,
    largest_ratio,
    make_problem,
    normal,
    perturbed,
    truth,
    uniform,
)
from lab.attack.truth import dense_jacobian, frobenius_norm, reverse_mode_jacobian, token_norm
from lab.zoo import l2_attention_map
from lipcore import bounds
from lipcore.adversarial import ascend, eigenvector_inputs, score_gap_inputs, worst_case_inputs
from lipcore.attention import Attention

#: The sizes of the random moves, one after the other.
MOVES = (0.5, 0.1, 0.02)
#: One problem in this many is also attacked by gradient ascent.
ASCENT_EVERY = 12
ASCENT_STEPS = 40


def head_setting(
    seed: int,
    index: int,
    closed: Sequence[Candidate] | None = None,
    local: Sequence[LocalCandidate] | None = None,
) -> Iterator[Outcome]:
    """Attack one head by random inputs, worst cases, moves of the best, sometimes gradients."""
    generator = generator_of(seed, index)
    problem = make_problem(generator)
    closed = closed_forms() if closed is None else closed
    local = local_forms() if local is None else local
    closed = [candidate for candidate in closed if problem.kind in candidate.kinds]
    local = [candidate for candidate in local if problem.kind in candidate.kinds]
    if not closed and not local:
        return
    inputs, sigma, tries = _search(problem, generator, ascent=index % ASCENT_EVERY == 0)
    outcome = problem.outcome()
    log_sigma = sigma.max().log().item()
    for candidate in closed:
        ratio = 0.0  # a bound of zero on a constant of zero holds
        if log_sigma > -math.inf:
            ratio = math.exp(min(log_sigma - candidate.log_bound(problem), 700.0))
        yield outcome(candidate.name, candidate.source, ratio, tries)
    if inputs.masses is None:
        others = torch.randperm(len(sigma), generator=generator)[:5]
        some = torch.cat([sigma.argmax()[None], others])
        yield from _local_outcomes(problem, inputs.X[some], sigma[some], local)


def _search(problem: Problem, generator: Generator, *, ascent: bool) -> tuple[Inputs, Tensor, int]:
    """Return inputs of the problem, the truth at each, and how many were tried to find them."""
    inputs = first_inputs(problem, generator)
    inputs = inputs.join(_worst_cases(problem, inputs))
    sigma = truth(problem, inputs)

    def best() -> Inputs:
        return inputs.pick(sigma.topk(min(4, len(sigma))).indices)

    def join(more: Inputs) -> tuple[Inputs, Tensor]:
        return inputs.join(more), torch.cat([sigma, truth(problem, more)])

    for move in MOVES:
        inputs, sigma = join(perturbed(problem, best(), move, generator))
    if not ascent or inputs.masses is not None:
        return inputs, sigma, len(sigma)
    start = best().X
    reached = ascend(problem.head(), start, problem.radius, steps=ASCENT_STEPS, progress=False)
    inputs, sigma = join(Inputs(reached.X))
    return inputs, sigma, len(sigma) + (ASCENT_STEPS - 1) * len(start)


def _worst_cases(problem: Problem, inputs: Inputs) -> Inputs:
    """Return the worst cases of the theory, with several masses of the gap's pair."""
    A, n, radius = problem.A, problem.n, problem.radius
    if inputs.masses is None:
        worst = [worst_case_inputs(A, n, radius, causal=problem.causal)]
        if _has_balanced_query(problem):
            worst.append(bounds.construction_inputs("torn", A, n, radius, V=problem.V))
        return Inputs(torch.stack(worst))
    lowest = -min(2 * problem.size, LARGEST_LOG_MASS)  # the worst measures have masses of e^(−2a)
    share = torch.logspace(lowest, 0, 10, base=math.e, dtype=torch.float64)[:, None] / 2
    places = inputs.X.shape[1]
    X = score_gap_inputs(A, places, radius).expand(len(share), -1, -1)
    masses = torch.cat([share, ((1 - share) / (places - 1)).expand(-1, places - 1)], dim=1)
    if problem.kind == "counts":
        counts = (masses[:, 1:] * n).floor().clamp(min=1)
        masses = torch.cat([n - counts.sum(-1, keepdim=True), counts], dim=1)
        masses = torch.where(masses[:, :1] >= 1, masses, inputs.masses[: len(share)])
    return Inputs(X, masses)


def _has_balanced_query(problem: Problem) -> bool:
    return len(problem.A) > 1 and problem.n > 2 and problem.size > 0


def _local_outcomes(
    problem: Problem, X: Tensor, sigma: Tensor, candidates: Sequence[LocalCandidate]
) -> Iterator[Outcome]:
    """Test local bounds at some inputs, and bounds in the largest-token norm."""
    f = problem.head()
    outcome = partial(problem.outcome(), tries=len(X))
    for candidate in candidates:
        ratio = largest_ratio(sigma, candidate.bound(f, X))
        yield outcome(candidate.name, candidate.source, ratio)
    theta = rivals.emadi2026_softmax_norm(f.weights(X)).amax((-2, -1)).clamp(max=1.0)
    norms = {"radius": problem.radius, "norm_a": problem.norm_a, "norm_v": problem.norm_v}
    bound = [rivals.emadi2026_token_upper(theta=t, **norms) for t in theta.tolist()]
    token = token_norm(dense_jacobian(problem.A, problem.V, X, causal=problem.causal))
    ratio = largest_ratio(token, token.new_tensor(bound))
    yield outcome("emadi2026_token_upper", "emadi2026", ratio)


def lower_setting(seed: int, index: int) -> Iterator[Outcome]:
    """Test lower bounds at the inputs of their theorems, with n up to 10¹² by counts."""
    problem = make_problem(generator_of(seed, index))
    n = problem.n if problem.kind == "counts" else max(problem.n, 2)
    problem = replace(problem, kind="causal" if problem.causal else "counts", n=n)
    A, V = problem.A, problem.V
    gamma, u = bounds.eigen_gamma(A)
    sizes = {"n": n, "radius": problem.radius}
    norm = {"gamma": gamma, "norm_v": problem.norm_v} | sizes
    outcome = partial(problem.outcome(), tries=1)
    at_eigen = _one_against_all(problem, eigenvector_inputs)
    if problem.causal:
        value = bounds.masked_lower(**norm)
        yield outcome("masked_lower", "paper", largest_ratio(value, at_eigen))
        return
    value = bounds.adversarial_lower(**norm)
    yield outcome("adversarial_lower", "paper", largest_ratio(value, at_eigen))
    value = bounds.refined_lower(gamma=gamma, norm_vu=(V @ u).norm().item(), **sizes)
    yield outcome("refined_lower", "book", largest_ratio(value, at_eigen))
    at_gap = _one_against_all(problem, score_gap_inputs)
    value = bounds.score_gap_lower(A=A, V=V, **sizes)
    yield outcome("score_gap_lower", "book", largest_ratio(value, at_gap))
    if problem.size > 0:
        yield from _repeated_tokens(replace(problem, n=min(n, 1000)), outcome)


def _one_against_all(problem: Problem, construction: Callable[..., Tensor]) -> float:
    """Return the truth for x_1 once and then n − 1 times x_2."""
    if problem.causal:
        inputs = Inputs(construction(problem.A, problem.n, problem.radius)[None])
    else:
        counts = torch.tensor([[1, problem.n - 1]], dtype=torch.float64)
        inputs = Inputs(construction(problem.A, 2, problem.radius)[None], counts)
    return truth(problem, inputs).item()


def _repeated_tokens(problem: Problem, outcome: Callable[..., Outcome]) -> Iterator[Outcome]:
    """Test bounds with copies and a crowd at their inputs, and the best of them."""
    sizes = {"n": problem.n, "radius": problem.radius, "A": problem.A, "V": problem.V}
    largest = problem.norm_v
    families = ("own", "copies", "torn", "pulled")
    for family in families if _has_balanced_query(problem) else families[:2]:
        X = bounds.construction_inputs(family, problem.A, problem.n, problem.radius, V=problem.V)
        tokens, counts = torch.unique(X, dim=0, return_counts=True)
        sigma = truth(problem, Inputs(tokens[None], counts[None].double())).item()
        largest = max(largest, sigma)
        value = bounds.construction_lower(family, **sizes)
        yield outcome(f"construction_lower ({family})", "book", largest_ratio(value, sigma))
    yield outcome("best_lower", "book", largest_ratio(bounds.best_lower(**sizes), largest))


def layer_setting(seed: int, index: int) -> Iterator[Outcome]:
    """Attack several heads with biases, rotary positions, masks and an output projection."""
    generator = generator_of(seed, index)
    f = _random_layer(generator)
    n, d = 4, f.query.shape[-1]
    radius = 10 ** (1.5 * torch.rand((), generator=generator).item() - 1)
    X = normal(generator, 12, n, d)
    lengths = torch.where(torch.rand(12, n, 1, generator=generator) < 0.7, 1.0, 0.5).double()
    X = radius * lengths * X / X.norm(dim=-1, keepdim=True)
    if index % 4 == 0:
        X = ascend(f, X[:4], radius, steps=15, progress=False).X
    sigma = torch.linalg.matrix_norm(f.jacobian(X).dense(), 2)
    where = f"layer, {f.heads} heads, d={d}, n={n}, R={radius:.3g}"
    for name, bound in {
        "layer_upper": bounds.layer_upper(f, n=n, radius=radius),
        "best_upper (layer)": bounds.best_upper(attention=f, n=n, radius=radius),
        "local_upper": bounds.local_upper(f, X),
    }.items():
        yield Outcome(name, "book", largest_ratio(sigma, bound), len(X), where)


def _random_layer(generator: Generator) -> Attention:
    draw = partial(normal, generator)

    def toss() -> bool:
        return torch.rand((), generator=generator).item() < 0.5

    key_heads = 1 if toss() else 2
    projected = toss()
    return Attention(
        query=draw(2, 2, 3),
        key=draw(key_heads, 2, 3),
        value=draw(key_heads, 2, 3),
        query_bias=draw(2, 2) if toss() else None,
        key_bias=draw(key_heads, 2) if toss() else None,
        output=draw(3, 4) if projected else None,
        causal=toss(),
        rotary=torch.tensor([1.0], dtype=torch.float64) if toss() else None,
        log_weights=draw(4) if toss() else None,
    )


def l2_setting(seed: int, index: int) -> Iterator[Outcome]:
    """Attack L2 attention, for tokens anywhere."""
    generator = generator_of(seed, index)
    heads, k, d, n = (integer(1, top, generator) for top in (2, 2, 3, 5))
    size = 10 ** (2 * torch.rand((), generator=generator) - 1)
    query = size * normal(generator, heads, k, d)
    value = normal(generator, heads, 2, d)
    X = normal(generator, 16, n, d)
    scale = 10 ** (3 * uniform(generator, 16, 1, 1) - 2)
    norms_q, norms_v = (torch.linalg.matrix_norm(M, 2) for M in (query, value))
    X = X * scale / norms_q.amax()
    J = reverse_mode_jacobian(lambda Y: l2_attention_map(Y, query, value), X)
    sigma = frobenius_norm(J)
    where = f"L2 attention, {heads} heads, k={k}, d={d}, n={n}, |Q|={norms_q.amax():.3g}"
    norms = {"norms_q": norms_q.tolist(), "norms_v": norms_v.tolist()}
    for upper, source in {
        l2.l2_attention_upper: "book",
        rivals.kim2021_l2_upper: "kim2021",
        rivals.kim2021_l2_upper_restated: "kim2021",
    }.items():
        ratio = largest_ratio(sigma, upper(n=n, head_dim=k, **norms))
        yield Outcome(upper.__name__, source, ratio, len(X), where)


def softmax_setting(seed: int, index: int) -> Iterator[Outcome]:
    """Test two norms of the softmax's Jacobian, by eigenvalues and by all pairs of signs."""
    generator = generator_of(seed, index)
    n = integer(1, 7, generator)
    scale = 10 ** (2 * uniform(generator, 64, 1) - 1)
    p = torch.softmax(scale * normal(generator, 64, n), dim=-1)
    products = (p[:, :, None] * p[:, None, :]) * (1 - torch.eye(n, dtype=p.dtype))
    # p_i(1 − p_i) as a sum keeps its digits near one-hot rows
    M = torch.diag_embed(products.sum(-1)) - products
    outcome = partial(Outcome, tries=64, where=f"n={n}")
    ratio = largest_ratio(torch.linalg.eigvalsh(M)[:, -1], rivals.softmax_norm_upper(p))
    yield outcome("softmax_norm_upper", "yudin2025", ratio)
    signs = 1.0 - 2 * (torch.arange(2**n)[:, None] >> torch.arange(n) & 1).double()
    reached = (M @ signs.mT).abs().sum(1).amax(-1)
    ratio = largest_ratio(reached, rivals.emadi2026_softmax_norm(p))
    yield outcome("emadi2026_softmax_norm", "emadi2026", ratio)


SETTINGS: dict[str, Callable[[int, int], Iterator[Outcome]]] = {
    "head": head_setting,
    "lower": lower_setting,
    "layer": layer_setting,
    "l2": l2_setting,
    "softmax": softmax_setting,
    "weighted": measure_setting,
    "ball": ball_setting,
    "rounding": rounding_setting,
}
