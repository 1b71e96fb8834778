"""Problems of the attack: a head, a set of inputs, and guesses at the worst of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from lab.attack.truth import dense_jacobian, frobenius_norm, own_query_norm
from lipcore.attention import Attention
from lipcore.bounds import score_gap

#: tokens: n tokens; counts: few distinct tokens in copies, n in all; measure: any masses;
#: causal: n tokens, masked.
KINDS = ("tokens", "counts", "measure", "causal")
#: How many inputs are drawn at once.
INPUTS = 50
#: The logarithm of a mass is at least minus this.
LARGEST_LOG_MASS = 24.0


class Outcome(NamedTuple):
    """The largest ratio of one problem: truth over upper bound, or lower bound over truth."""

    bound: str
    source: str
    ratio: float
    tries: int  # the number of inputs that were compared
    where: str
    large_a: bool = True  # a ≥ 1: below, many bounds are equalities


@dataclass(eq=False)
class Problem:
    """One head of matrices A (d, d), V (p, d), and the ball of its n tokens, copies included."""

    kind: str
    shape: str
    A: Tensor
    V: Tensor
    radius: float
    n: int

    def __post_init__(self):
        self.causal = self.kind == "causal"
        self.norm_a = torch.linalg.matrix_norm(self.A, 2).item()
        self.norm_v = torch.linalg.matrix_norm(self.V, 2).item()
        self.size = self.norm_a * self.radius**2  # a = ‖A‖R²

    def head(self) -> Attention:
        """Return the head as attention."""
        return Attention.from_matrices(self.A, self.V, causal=self.causal)

    def outcome(self, *more: str) -> Callable[..., Outcome]:
        """Return what makes an outcome of bound, source, ratio and tries, and says where."""
        about = f"{self.kind}, A {self.shape}, d={len(self.A)}, n={self.n:.4g}, a={self.size:.3g}"
        return partial(Outcome, where=", ".join([about, *more]), large_a=self.size >= 1)


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs X (K, n, d) of one problem, with counts or masses (K, n) except for plain tokens."""

    X: Tensor
    masses: Tensor | None = None

    def pick(self, index: Tensor) -> Inputs:
        """Return the inputs with these indices."""
        return Inputs(self.X[index], None if self.masses is None else self.masses[index])

    def join(self, other: Inputs) -> Inputs:
        """Return both batches as one."""
        masses = None if self.masses is None else torch.cat([self.masses, other.masses])
        return Inputs(torch.cat([self.X, other.X]), masses)


def truth(problem: Problem, inputs: Inputs) -> Tensor:
    """Return the local constant at each input, (K,), in the norm of the problem's kind."""
    A, V, X = problem.A, problem.V, inputs.X
    if inputs.masses is None:
        return frobenius_norm(dense_jacobian(A, V, X, causal=problem.causal))
    log_masses = inputs.masses.log() - inputs.masses.sum(-1, keepdim=True).log()
    value = frobenius_norm(dense_jacobian(A, V, X, log_masses))
    if problem.kind == "counts":  # a sequence exceeds its measure only where copies part
        apart = own_query_norm(A, V, X, log_masses) * (inputs.masses >= 2)
        value = torch.maximum(value, apart.amax(-1))
    return value


def largest_ratio(value, bound) -> float:
    """Return the largest quotient of numbers; 0/0 = 0, for a bound of zero on zero holds."""
    value = torch.as_tensor(value, dtype=torch.float64)
    return torch.where(value > 0, value / bound, 0.0).max().item()


def generator_of(seed: int, index: int) -> Generator:
    """Return the generator of one problem, so that each can be replayed alone."""
    return Generator().manual_seed((seed * 1_000_003 + index) % 2**63)


def make_problem(generator: Generator) -> Problem:
    """Return a random problem, of any kind and shape, with scores from tiny to huge."""
    kind, shape = _choice(KINDS, generator), _choice(tuple(SHAPES), generator)
    d, p, n = (integer(1, top, generator) for top in (4, 4, 7))
    if kind == "causal" and uniform(generator) < 0.3:  # few dimensions, many tokens
        d, p, n = integer(1, 2, generator), 1, integer(8, 24, generator)
    radius = 10 ** (2 * uniform(generator).item() - 1)
    A = SHAPES[shape](normal(generator, d, d), generator)
    a = _score_size(kind, generator)
    norm = torch.linalg.matrix_norm(A, 2).item()
    A = A * (a / radius**2 / norm) if norm else A
    V = _value_matrix(p, d, generator)
    if kind == "counts":
        n = int(10 ** (1 + 11 * uniform(generator).item()))
    return Problem(kind, shape, A, V, radius, n)


def first_inputs(problem: Problem, generator: Generator) -> Inputs:
    """Return random tokens in the ball and on its sphere, and tokens along the directions of A."""
    d = len(problem.A)
    weighted = problem.kind in ("counts", "measure")
    n = integer(2, 4, generator) if weighted else problem.n
    sphere = normal(generator, INPUTS, n, d)
    sphere = sphere / sphere.norm(dim=-1, keepdim=True)
    along, inside = INPUTS // 2, INPUTS // 3
    shrink = uniform(generator, inside, n, 1) ** (1 / d)
    directions = _directions(problem.A)
    index = torch.randint(len(directions), (along, n), generator=generator)
    lengths = uniform(generator, along, n, 1).clamp(min=0.5) * 2 - 1
    lengths = torch.where(torch.rand(along, 1, 1, generator=generator) < 0.7, 1.0, lengths)
    ball = sphere[-inside:] * shrink
    X = torch.cat([directions[index] * lengths, sphere[along:-inside], ball])
    if not weighted:
        return Inputs(problem.radius * X)
    # over many orders of magnitude, such as those of the worst measures
    log_spread = min(2 * problem.size + 2, LARGEST_LOG_MASS)
    masses = (-log_spread * uniform(generator, INPUTS, n)).exp()
    return Inputs(problem.radius * X, _normalised(problem, masses))


def perturbed(problem: Problem, best: Inputs, size: float, generator: Generator) -> Inputs:
    """Return inputs near the best ones, by moves of ``size`` radii of some of the tokens."""
    chosen = best.pick(torch.randint(len(best.X), (INPUTS,), generator=generator))
    step = size * problem.radius * normal(generator, *chosen.X.shape)
    moves = torch.rand(*chosen.X.shape[:2], 1, generator=generator) < 0.7
    X = chosen.X + step * moves
    X = X / (X.norm(dim=-1, keepdim=True) / problem.radius).clamp(min=1.0)
    if chosen.masses is None:
        return Inputs(X)
    factor = (3 * size * normal(generator, *chosen.masses.shape)).exp()
    return Inputs(X, _normalised(problem, chosen.masses * factor))


def _normalised(problem: Problem, masses: Tensor) -> Tensor:
    """Return masses with sum one, or whole numbers, at least one each, with sum n."""
    masses = masses / masses.sum(-1, keepdim=True)
    if problem.kind == "measure":
        return masses
    counts = (masses * problem.n).floor().clamp(min=1)
    largest = counts.argmax(-1, keepdim=True)
    return counts.scatter_add(-1, largest, problem.n - counts.sum(-1, keepdim=True))


def _directions(A: Tensor) -> Tensor:
    """Return ± unit vectors (m, d): the score gap's pair, eigen- and singular vectors, an axis."""
    _, u = score_gap(A)
    values, vectors = torch.linalg.eig(A)
    left, _, right = torch.linalg.svd(A)
    axis = torch.eye(len(A), dtype=A.dtype)[0]
    eigenvectors = vectors[:, values.imag == 0].real.mT
    rows = torch.stack([u, A @ u, *eigenvectors, left[:, 0], right[0], axis])
    rows = rows[rows.norm(dim=-1) > 0]
    rows = rows / rows.norm(dim=-1, keepdim=True)
    return torch.cat([rows, -rows])


def _score_size(kind: str, generator: Generator) -> float:
    """Return a = ‖A‖R², from 1e-3 to 12, sometimes tiny or huge."""
    draw = uniform(generator).item()
    if draw < 0.05:
        return 1e-8
    if draw < 0.15 and kind != "measure":  # whose masses would be outside the range of float64
        return 10 ** (2 + 4 * uniform(generator).item())
    return 1e-3 * 12e3 ** (uniform(generator).item() ** 0.5)


def _value_matrix(p: int, d: int, generator: Generator) -> Tensor:
    draw, V = uniform(generator), normal(generator, p, d)
    if draw < 0.4:
        return torch.eye(p, d, dtype=V.dtype)
    if draw < 0.6:
        return torch.outer(V[:, 0], V[-1])
    return V * 0 if draw < 0.63 else V


def normal(generator: Generator, *shape: int) -> Tensor:
    """Return standard normal numbers."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def uniform(generator: Generator, *shape: int) -> Tensor:
    """Return numbers that are uniform between zero and one."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def integer(low: int, high: int, generator: Generator) -> int:
    """Return one of the numbers from low to high, both of which are possible."""
    return int(torch.randint(low, high + 1, (), generator=generator))


def _choice(options: tuple, generator: Generator):
    return options[integer(0, len(options) - 1, generator)]


#: What is made of a random A.
SHAPES = {
    "general": lambda A, _: A,
    "symmetric": lambda A, _: A + A.mT,
    "antisymmetric": lambda A, _: A - A.mT,
    "low rank": lambda A, _: torch.outer(A[0], A[:, -1]),
    "non-normal": lambda A, g: A.triu() * _choice((0.3, 1.0, 10.0), g) + torch.diag(A.diag()),
    "multiple of I": lambda A, g: torch.eye(len(A)).to(A) * (1 if uniform(g) < 0.5 else -1),
    "zero": lambda A, _: torch.zeros_like(A),
}
