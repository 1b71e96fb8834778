"""Problems of the attack: a head, a set of inputs, and guesses at the worst of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lab.attack.truth import dense_jacobian, frobenius_norm, own_query_norm
from lipcore.bounds import score_gap

#: tokens: n tokens; counts: few distinct tokens in copies, n in all; measure: any masses;
#: causal: n tokens, masked.
KINDS = ("tokens", "counts", "measure", "causal")
SHAPES = (
    "general",
    "symmetric",
    "antisymmetric",
    "low rank",
    "non-normal",
    "multiple of I",
    "zero",
)
#: How many inputs are drawn at once.
INPUTS = 50
#: The logarithm of a mass is at least minus this.
_LARGEST_LOG_MASS = 24.0


@dataclass(frozen=True, eq=False)
class Problem:
    """One head and one set of inputs.

    Attributes
    ----------
    kind, shape : str
        The kind of the inputs (:data:`KINDS`), and the shape of A (:data:`SHAPES`).
    A, V : Tensor, shapes (d, d), (p, d)
    radius : float
    n : int
        The number of tokens, copies included.
    """

    kind: str
    shape: str
    A: Tensor
    V: Tensor
    radius: float
    n: int

    @property
    def causal(self) -> bool:
        """Whether tokens see the past only."""
        return self.kind == "causal"

    @cached_property
    def norm_a(self) -> float:
        """‖A‖₂."""
        return torch.linalg.matrix_norm(self.A, 2).item()

    @cached_property
    def norm_v(self) -> float:
        """‖V‖₂."""
        return torch.linalg.matrix_norm(self.V, 2).item()

    @property
    def size(self) -> float:
        """a = ‖A‖₂R²."""
        return self.norm_a * self.radius**2

    @property
    def smallest_log_mass(self) -> float:
        """The log of the smallest mass to try; the worst measures have masses down to e^(−2a)."""
        return -min(2 * self.size, _LARGEST_LOG_MASS)

    def quantities(self) -> dict[str, object]:
        """Return the quantities that bounds may take; a measure has no n."""
        n = None if self.kind == "measure" else self.n
        names = ("A", "V", "radius", "norm_a", "norm_v", "causal")
        return {"n": n, **{name: getattr(self, name) for name in names}}

    def describe(self) -> str:
        """Return one line for the reader of the table."""
        return f"{self.kind}, A {self.shape}, d={len(self.A)}, n={self.n:.4g}, a={self.size:.3g}"


@dataclass(frozen=True, eq=False)
class Inputs:
    """A batch of inputs of one problem.

    Attributes
    ----------
    X : Tensor, shape (K, n, d)
    masses : Tensor, shape (K, n), optional
        Counts or masses of the tokens, except for plain tokens.
    """

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
    A = problem.A
    V = problem.V
    X = inputs.X
    if inputs.masses is None:
        return frobenius_norm(dense_jacobian(A, V, X, causal=problem.causal))
    log_masses = inputs.masses.log() - inputs.masses.sum(-1, keepdim=True).log()
    value = frobenius_norm(dense_jacobian(A, V, X, log_masses))
    if problem.kind == "counts":  # a sequence exceeds its measure only where copies part
        apart = own_query_norm(A, V, X, log_masses) * (inputs.masses >= 2)
        value = torch.maximum(value, apart.amax(-1))
    return value


def generator_of(seed: int, index: int) -> torch.Generator:
    """Return the generator of one problem, so that each can be replayed alone."""
    return torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)


def make_problem(generator: torch.Generator) -> Problem:
    """Return a random problem, of any kind and shape, with scores from tiny to huge."""
    kind = _choice(KINDS, generator)
    shape = _choice(SHAPES, generator)
    d = _integer(1, 4, generator)
    p = _integer(1, 4, generator)
    n = _integer(1, 7, generator)
    if kind == "causal" and _uniform(generator) < 0.3:  # few dimensions, many tokens
        d = _integer(1, 2, generator)
        p = 1
        n = _integer(8, 24, generator)
    radius = 10 ** (2 * _uniform(generator) - 1)
    A = _score_matrix(shape, d, generator)
    a = _score_size(kind, generator)
    norm = torch.linalg.matrix_norm(A, 2).item()
    A = A * (a / radius**2 / norm) if norm else A
    V = _value_matrix(p, d, generator)
    if kind == "counts":
        n = int(10 ** (1 + 11 * _uniform(generator)))
    return Problem(kind, shape, A, V, radius, n)


def first_inputs(problem: Problem, generator: torch.Generator) -> Inputs:
    """Return random tokens in the ball and on its sphere, and tokens along the directions of A."""
    d = len(problem.A)
    n = _integer(2, 4, generator) if problem.kind in ("counts", "measure") else problem.n
    sphere = _normal(generator, INPUTS, n, d)
    sphere = sphere / sphere.norm(dim=-1, keepdim=True)
    shrink = _uniforms(generator, INPUTS // 3, n, 1) ** (1 / d)
    along = INPUTS // 2
    directions = _directions(problem.A)
    index = torch.randint(len(directions), (along, n), generator=generator)
    lengths = _uniforms(generator, along, n, 1).clamp(min=0.5) * 2 - 1
    lengths = torch.where(torch.rand(along, 1, 1, generator=generator) < 0.7, 1.0, lengths)
    ball = sphere[-len(shrink) :] * shrink
    X = torch.cat([directions[index] * lengths, sphere[along : -len(shrink)], ball])
    return Inputs(problem.radius * X, _masses(problem, n, generator))


def perturbed(problem: Problem, best: Inputs, size: float, generator: torch.Generator) -> Inputs:
    """Return inputs near the best ones, by moves of ``size`` radii of some of the tokens."""
    chosen = best.pick(torch.randint(len(best.X), (INPUTS,), generator=generator))
    step = size * problem.radius * _normal(generator, *chosen.X.shape)
    moves = torch.rand(*chosen.X.shape[:2], 1, generator=generator) < 0.7
    X = chosen.X + step * moves
    X = X / (X.norm(dim=-1, keepdim=True) / problem.radius).clamp(min=1.0)
    if chosen.masses is None:
        return Inputs(X)
    factor = (3 * size * _normal(generator, *chosen.masses.shape)).exp()
    return Inputs(X, _normalised(problem, chosen.masses * factor))


def _masses(problem: Problem, n: int, generator: torch.Generator) -> Tensor | None:
    """Return masses over many orders of magnitude, such as those of the worst measures."""
    if problem.kind not in ("counts", "measure"):
        return None
    log_spread = min(2 * problem.size + 2, _LARGEST_LOG_MASS)
    masses = (-log_spread * _uniforms(generator, INPUTS, n)).exp()
    return _normalised(problem, masses)


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


def _score_matrix(shape: str, d: int, generator: torch.Generator) -> Tensor:
    A = _normal(generator, d, d)
    if shape == "symmetric":
        return A + A.mT
    if shape == "antisymmetric":
        return A - A.mT
    if shape == "low rank":
        return torch.outer(A[0], A[:, -1])
    if shape == "non-normal":
        return A.triu() * _choice((0.3, 1.0, 10.0), generator) + torch.diag(A.diag())
    if shape == "multiple of I":
        return torch.eye(d, dtype=A.dtype) * (1 if _uniform(generator) < 0.5 else -1)
    return torch.zeros_like(A) if shape == "zero" else A


def _score_size(kind: str, generator: torch.Generator) -> float:
    """Return a = ‖A‖R², from 1e-3 to 12, sometimes tiny or huge.

    It is not huge for measures, whose masses would be outside the range of float64.
    """
    draw = _uniform(generator)
    if draw < 0.05:
        return 1e-8
    if draw < 0.15 and kind != "measure":
        return 10 ** (2 + 4 * _uniform(generator))
    return 1e-3 * 12e3 ** (_uniform(generator) ** 0.5)


def _value_matrix(p: int, d: int, generator: torch.Generator) -> Tensor:
    draw = _uniform(generator)
    V = _normal(generator, p, d)
    if draw < 0.4:
        return torch.eye(p, d, dtype=V.dtype)
    if draw < 0.6:
        return torch.outer(V[:, 0], V[-1])
    return V * 0 if draw < 0.63 else V


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _uniforms(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def _uniform(generator: torch.Generator) -> float:
    return _uniforms(generator).item()


def _integer(low: int, high: int, generator: torch.Generator) -> int:
    return int(torch.randint(low, high + 1, (), generator=generator))


def _choice(options: tuple, generator: torch.Generator):
    return options[_integer(0, len(options) - 1, generator)]
