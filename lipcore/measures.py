r"""Attention on measures: the mean-field maps, optimal transport, local constants in :math:`L^2(\mu)`, mass splitting.

A sequence of tokens is a measure :math:`\mu = \sum_i w_i \delta_{x_i}`; attention pushes it forward through a map that
depends on it, :math:`F(\mu) = (\Gamma_\mu)_\sharp \mu`. A weight stands for any number of copies of a token.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lipcore._checks import check_count, check_number, check_real_tensor, check_same_kind, check_square, check_tokens
from lipcore.attention import Attention, check_scores
from lipcore.jacobian import LinearOperator
from lipcore.spectral import spectral_norm

#: How far from one a sum of weights may lie, and how far from one another two time marginals.
WEIGHT_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
#: Bytes of intermediate results that batched functions hold at once, roughly.
BATCH_BYTES = 2**26


# --- measures -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DiscreteMeasure:
    r"""A probability measure :math:`\mu = \sum_i w_i \delta_{x_i}` on :math:`\mathbb R^d`.

    Parameters
    ----------
    points : Tensor, shape (n, d)
        Points may repeat.
    weights : Tensor, shape (n,), optional
        Non-negative, with sum one; 1/n each if left out. A point may have weight zero.

    Raises
    ------
    ValueError, TypeError
        If a weight is negative, the weights do not sum to one (``WEIGHT_TOLERANCE``), there is no point, shapes do
        not fit, or something is not finite or not float32 or float64.

    Examples
    --------
    >>> import torch
    >>> DiscreteMeasure(torch.tensor([[0.0], [1.0]])).weights
    tensor([0.5000, 0.5000])
    """

    points: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        check_tokens(check_real_tensor("points", self.points, ndim=2), name="points")
        object.__setattr__(self, "weights", _checked_weights(self.weights, self.points))

    @property
    def dim(self) -> int:
        """Dimension d of the space."""
        return self.points.shape[-1]

    @property
    def radius(self) -> float:
        """Largest norm of a point that has mass."""
        return self.points[self.weights > 0].norm(dim=-1).max().item()

    def support(self) -> DiscreteMeasure:
        """The same measure with every point once: no zero weight, and the masses of equal points added up."""
        first, weights = _merged(self.points, self.weights)
        return DiscreteMeasure(self.points[first], weights)


@dataclass(frozen=True, eq=False)
class TimedMeasure:
    r"""A probability measure :math:`\mu = \sum_i w_i \delta_{(t_i, x_i)}` on :math:`[0,1]\times\mathbb R^d` (theory §7).

    A sequence with a causal order: the time marginal is :math:`\theta = \sum_i w_i \delta_{t_i}`, and
    :math:`\mu^\tau` is the law of the tokens at time τ.

    Parameters
    ----------
    times : Tensor, shape (n,)
        In [0, 1], in any order. Tokens may share a time: they then see one another.
    points : Tensor, shape (n, d)
    weights : Tensor, shape (n,), optional
        As in :class:`DiscreteMeasure`.

    Raises
    ------
    ValueError, TypeError
        If a time lies outside [0, 1], and as :class:`DiscreteMeasure`.

    Examples
    --------
    >>> import torch
    >>> mu = TimedMeasure(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([[0.0], [1.0], [3.0]]))
    >>> mu.at(1.0).points.flatten(), mu.at(1.0).weights
    (tensor([1., 3.]), tensor([0.5000, 0.5000]))
    """

    times: Tensor
    points: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        points = check_tokens(check_real_tensor("points", self.points, ndim=2), name="points")
        _check_times("times", self.times, points)
        object.__setattr__(self, "weights", _checked_weights(self.weights, points))

    @property
    def dim(self) -> int:
        """Dimension d of the space."""
        return self.points.shape[-1]

    @property
    def radius(self) -> float:
        """Largest norm of a point that has mass."""
        return self.points[self.weights > 0].norm(dim=-1).max().item()

    def support(self) -> TimedMeasure:
        """The same measure with every pair (time, point) once and no zero weight."""
        first, weights = _merged(torch.cat([self.times[:, None], self.points], dim=-1), self.weights)
        return TimedMeasure(self.times[first], self.points[first], weights)

    def time_marginal(self) -> tuple[Tensor, Tensor]:
        """Times that have mass, increasing, and their masses: two tensors of one length."""
        positive = self.weights > 0
        times, index = torch.unique(self.times[positive], return_inverse=True)
        return times, self.weights.new_zeros(len(times)).index_add(0, index, self.weights[positive])

    def at(self, time: float) -> DiscreteMeasure:
        """Law :math:`\\mu^\\tau` of the points at one time, which must have mass."""
        now = (self.times == time) & (self.weights > 0)
        if not bool(now.any()):
            raise ValueError(f"time: expected a time that has mass, got {float(time):g}")
        return DiscreteMeasure(self.points[now], self.weights[now] / self.weights[now].sum())


def _checked_weights(weights: Tensor | None, points: Tensor) -> Tensor:
    """Weights of shape points.shape[:-1]: as given if they are probabilities, uniform if None, else an error."""
    shape = points.shape[:-1]
    if weights is None:
        return points.new_full(shape, 1 / shape[-1])
    check_real_tensor("weights", weights)
    check_same_kind("weights", weights, points, "points")
    if weights.shape != shape:
        raise ValueError(f"weights: expected shape {tuple(shape)} as the points have, got {tuple(weights.shape)}")
    if bool((weights < 0).any()):
        raise ValueError(f"weights: expected non-negative numbers, got {weights.min().item():g}")
    total = weights.double().sum(-1)
    drift = (total - 1).abs()
    if bool((drift > WEIGHT_TOLERANCE[weights.dtype]).any()):
        worst = total.flatten()[drift.argmax()].item()
        raise ValueError(f"weights: expected a sum of one, got {worst:.10g} (divide by weights.sum() to normalise)")
    return weights


def _check_times(name: str, times: object, points: Tensor) -> Tensor:
    """Return ``times`` if there is one in [0, 1] for each point, else raise."""
    check_real_tensor(name, times)
    check_same_kind(name, times, points, "points")
    if times.shape != points.shape[:-1]:
        raise ValueError(f"{name}: expected shape {tuple(points.shape[:-1])}, one for each point, "
                         f"got {tuple(times.shape)}")  # fmt: skip
    if bool(((times < 0) | (times > 1)).any()):
        outside = times[(times < 0) | (times > 1)]
        raise ValueError(f"{name}: expected numbers in [0, 1], got {outside[0].item():g}")
    return times


def _merged(atoms: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Index of the first of each group of equal rows that have mass, in order, and the mass of each group."""
    kept = torch.nonzero(weights > 0)[:, 0]
    unique, group = torch.unique(atoms[kept], dim=0, return_inverse=True)
    first = torch.full((len(unique),), len(weights), device=kept.device).scatter_reduce(0, group, kept, "amin")
    mass = weights.new_zeros(len(unique)).index_add(0, group, weights[kept])
    order = first.argsort()
    return first[order], mass[order]


# --- optimal transport --------------------------------------------------------------------------------------------------


def wasserstein(mu: DiscreteMeasure, nu: DiscreteMeasure, p: float = 2) -> float:
    r"""Wasserstein distance :math:`W_p(\mu,\nu)^p = \min_\pi \sum_{ij} \pi_{ij} \|x_i - y_j\|^p` over couplings π.

    Exact up to rounding (network simplex of POT, :func:`ot.emd`); between measures of n and m points it costs about
    :math:`nm(n+m)`. Distances below 1e-8 of the diameter may be rounding.

    Parameters
    ----------
    mu, nu : DiscreteMeasure
    p : float
        At least one.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        If p < 1, the dimensions differ, or an argument is no :class:`DiscreteMeasure`.
    ImportError
        Without POT, where it is needed: between two measures of two points at least.

    Notes
    -----
    Villani (2009); Flamary et al. (2021) for POT; theory §5.

    Examples
    --------
    >>> import torch
    >>> mu = DiscreteMeasure(torch.tensor([[0.0], [1.0]], dtype=torch.float64))
    >>> nu = DiscreteMeasure(torch.tensor([[5.0], [0.0]], dtype=torch.float64))
    >>> round(wasserstein(mu, nu, p=1), 6), round(wasserstein(mu, nu, p=2) ** 2, 6)
    (2.0, 8.0)
    """
    plan, distances = _optimal_plan(mu, nu, p)
    return _norm_p(plan, distances, p)


def transport_plan(mu: DiscreteMeasure, nu: DiscreteMeasure, p: float = 2) -> Tensor:
    r"""An optimal coupling π of two measures for the cost :math:`\|x-y\|^p`; there may be others.

    Parameters
    ----------
    mu, nu : DiscreteMeasure
    p : float
        At least one.

    Returns
    -------
    Tensor, shape (n, m), float64
        Row sums are the weights of mu, column sums those of nu.

    Raises
    ------
    ValueError, TypeError, ImportError
        As :func:`wasserstein`.

    Examples
    --------
    >>> import torch
    >>> mu = DiscreteMeasure(torch.tensor([[0.0], [1.0]]))
    >>> transport_plan(mu, DiscreteMeasure(torch.tensor([[0.9], [0.1]])))
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]], dtype=torch.float64)
    """
    return torch.from_numpy(_optimal_plan(mu, nu, p)[0])


def _optimal_plan(mu: DiscreteMeasure, nu: DiscreteMeasure, p: float) -> tuple[np.ndarray, np.ndarray]:
    """An optimal plan and the distances, two arrays of shape (n, m)."""
    _check_pair(mu, nu, DiscreteMeasure)
    p = check_number("p", p, minimum=1)
    a, b = (m.weights.detach().cpu().double().numpy() for m in (mu, nu))
    a, b = a / a.sum(), b / b.sum()
    x, y = (m.points.detach().cpu().double() for m in (mu, nu))
    # the direct formula: the faster one, by products, loses half of the digits for close points
    distances = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    if min(np.count_nonzero(a), np.count_nonzero(b)) == 1:  # one point has all the mass: no choice
        return a[:, None] * b, distances
    largest = distances[a > 0][:, b > 0].max()
    cost = (distances / largest) ** p if largest > 0 else np.zeros_like(distances)
    plan, log = _pot().emd(a, b, cost, numItermax=10**8, log=True)
    if log["warning"] is not None:
        raise RuntimeError(f"wasserstein: POT found no optimal plan: {log['warning']}")
    return plan, distances


def _norm_p(mass: np.ndarray, distances: np.ndarray, p: float) -> float:
    """(Σ mass · distances^p)^{1/p}, scaled so that no power overflows."""
    used = distances[mass > 0]
    largest = used.max(initial=0.0)
    if largest == 0:
        return 0.0
    return float(largest * ((mass[mass > 0] * (used / largest) ** p).sum()) ** (1 / p))


def _pot():
    """POT, imported where it is first needed; in a notebook its dependencies complain about missing progress bars."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="IProgress not found")
            import ot
    except ImportError as error:
        raise ImportError("wasserstein needs the package POT: pip install 'lipcore[transport]' (or pip install pot)") from error
    return ot


def _check_pair(mu: object, nu: object, kind: type) -> None:
    for name, measure in (("mu", mu), ("nu", nu)):
        if not isinstance(measure, kind):
            raise TypeError(f"{name}: expected a {kind.__name__}, got {type(measure).__name__}")
    if mu.dim != nu.dim:
        raise ValueError(f"nu: expected points of dimension {mu.dim} as mu has, got {nu.dim}")


def conditional_wasserstein(mu: TimedMeasure, nu: TimedMeasure, p: float = 2) -> float:
    r"""Conditional transport distance :math:`d_p(\mu,\nu)^p = \int W_p^p(\mu^\tau,\nu^\tau)\,d\theta(\tau)`.

    Mass moves in space and never in time: the distance of masked attention (Castin, Ablin & Peyré 2024; theory §7).
    It is never below :math:`W_p` on :math:`[0,1]\times\mathbb R^d`.

    Parameters
    ----------
    mu, nu : TimedMeasure
        With the same time marginal θ: the same times (exactly) with the same masses (to ``WEIGHT_TOLERANCE``).
    p : float
        At least one.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        If the time marginals differ, and as :func:`wasserstein`.

    Examples
    --------
    >>> import torch
    >>> times = torch.tensor([0.0, 1.0])
    >>> mu = TimedMeasure(times, torch.tensor([[0.0], [1.0]]))
    >>> nu = TimedMeasure(times, torch.tensor([[1.0], [0.0]]))  # the same points, in another order
    >>> conditional_wasserstein(mu, nu)
    1.0
    """
    _check_pair(mu, nu, TimedMeasure)
    p = check_number("p", p, minimum=1)
    times, masses = _common_marginal(mu, nu)
    distances = np.array([wasserstein(mu.at(time), nu.at(time), p) for time in times])
    return _norm_p(masses.detach().cpu().double().numpy(), distances, p)


def _common_marginal(mu: TimedMeasure, nu: TimedMeasure) -> tuple[list[float], Tensor]:
    """Times and masses of the common time marginal; an error names the first time where the two differ."""
    (times, masses), (other_times, other_masses) = mu.time_marginal(), nu.time_marginal()
    tolerance = max(WEIGHT_TOLERANCE[m.weights.dtype] for m in (mu, nu))
    here, there = (
        dict(zip(t.tolist(), m.tolist(), strict=True)) for t, m in ((times, masses), (other_times, other_masses))
    )
    for time in sorted(here.keys() | there.keys()):
        a, b = here.get(time, 0.0), there.get(time, 0.0)
        if (time in here) != (time in there) or abs(a - b) > tolerance:
            raise ValueError(f"nu: expected the time marginal of mu, but time {time!r} has mass {a:.10g} in mu "
                             f"and {b:.10g} in nu")  # fmt: skip
    return times.tolist(), masses


# --- mean-field attention -------------------------------------------------------------------------------------------------


def mean_field_attention(mu: DiscreteMeasure, A: Tensor, V: Tensor) -> DiscreteMeasure:
    r"""Attention on measures, :math:`F(\mu) = (\Gamma_\mu)_\sharp\mu` (Castin, Ablin & Peyré 2024; theory §0).

    .. math:: \Gamma_\mu(x) = V\, \frac{\int e^{(Ax)\cdot y}\, y\, d\mu(y)}{\int e^{(Ax)\cdot y}\, d\mu(y)}

    Parameters
    ----------
    mu : DiscreteMeasure
        n points in dimension d.
    A : Tensor, shape (d, d)
    V : Tensor, shape (q, d)

    Returns
    -------
    DiscreteMeasure
        The n images, in the order of the points, with the same weights.

    Raises
    ------
    ValueError, TypeError
        If A and V do not fit the measure, or mu is no :class:`DiscreteMeasure`.

    Examples
    --------
    >>> import torch
    >>> mu = DiscreteMeasure(torch.tensor([[0.0], [4.0]]), torch.tensor([0.25, 0.75]))
    >>> image = mean_field_attention(mu, torch.zeros(1, 1), torch.ones(1, 1))
    >>> image.points.flatten().round(decimals=4)  # no score: every point moves to the mean
    tensor([3., 3.])
    """
    if not isinstance(mu, DiscreteMeasure):
        raise TypeError(f"mu: expected a DiscreteMeasure, got {type(mu).__name__}")
    return DiscreteMeasure(_attention(mu, A, V)(mu.points), mu.weights)


def masked_mean_field_attention(mu: TimedMeasure, A: Tensor, V: Tensor) -> TimedMeasure:
    r"""Masked attention on measures: a token at time s sees the tokens at times τ ≤ s (theory §7).

    .. math:: F^m(\mu) = \big((s,x)\mapsto(s,\Gamma_\mu(s,x))\big)_\sharp\mu, \qquad \Gamma_\mu(s,x) =
        V\, \frac{\int_{\tau\le s} e^{(Ax)\cdot y}\, y\, d\mu(\tau,y)}{\int_{\tau\le s} e^{(Ax)\cdot y}\, d\mu(\tau,y)}

    Parameters
    ----------
    mu : TimedMeasure
        n tokens in dimension d. With distinct times and equal weights this is causal attention on the sequence.
    A : Tensor, shape (d, d)
    V : Tensor, shape (q, d)

    Returns
    -------
    TimedMeasure
        The n images at the same times, with the same weights.

    Raises
    ------
    ValueError, TypeError
        If A and V do not fit, mu is no :class:`TimedMeasure`, or a token of weight zero precedes all mass, where Γ is
        not defined (``mu.support()`` leaves it out).

    Examples
    --------
    >>> import torch
    >>> mu = TimedMeasure(torch.tensor([0.0, 1.0]), torch.tensor([[0.0], [4.0]]), torch.tensor([0.25, 0.75]))
    >>> masked_mean_field_attention(mu, torch.zeros(1, 1), torch.ones(1, 1)).points.flatten().round(decimals=4)
    tensor([0., 3.])
    """
    if not isinstance(mu, TimedMeasure):
        raise TypeError(f"mu: expected a TimedMeasure, got {type(mu).__name__}")
    _refuse_times_before_mass("mu.times", mu, mu.times)
    return TimedMeasure(mu.times, _attention(mu, A, V)(mu.points), mu.weights)


def _attention(mu: DiscreteMeasure | TimedMeasure, A: Tensor, V: Tensor) -> Attention:
    """Attention over the atoms of mu: weights in the softmax, a mask from the times."""
    _check_matrices(mu.points, A, V)
    mask = _sees(mu.times, mu.times) if isinstance(mu, TimedMeasure) else None
    return Attention.from_matrices(A, V, log_weights=mu.weights.log(), mask=mask)


def _check_matrices(points: Tensor, A: Tensor, V: Tensor) -> None:
    check_square("A", A)
    check_real_tensor("V", V, ndim=2)
    check_same_kind("A", A, points, "the measure")
    check_same_kind("V", V, points, "the measure")
    d = points.shape[-1]
    if A.shape[0] != d:
        raise ValueError(f"A: expected shape {(d, d)} as the measure has dimension {d}, got {tuple(A.shape)}")
    if V.shape[1] != d or V.shape[0] == 0:
        raise ValueError(f"V: expected {d} columns as the measure has dimension {d}, got shape {tuple(V.shape)}")


def _sees(query_times: Tensor, key_times: Tensor) -> Tensor:
    """Whether a query at time s sees a key at time τ ≤ s: (…, m), (…, n) → (…, m, n)."""
    return key_times[..., None, :] <= query_times[..., :, None]


def _refuse_times_before_mass(name: str, mu: TimedMeasure, times: Tensor) -> None:
    start = mu.times[mu.weights > 0].min()
    if bool((times < start).any()):
        raise ValueError(f"{name}: expected times from {start.item():g} on, where mu has its first mass, "
                         f"got {times.min().item():g}: Γ is not defined there")  # fmt: skip


def gamma_map(mu: DiscreteMeasure | TimedMeasure, x: Tensor, A: Tensor, V: Tensor, *,
              times: Tensor | None = None) -> Tensor:
    r""":math:`\Gamma_\mu` at any points x, in the support of μ or not; :math:`\Gamma_\mu(s,x)` for a timed measure.

    Parameters
    ----------
    mu : DiscreteMeasure or TimedMeasure
    x : Tensor, shape (m, d)
    A : Tensor, shape (d, d)
    V : Tensor, shape (q, d)
    times : Tensor, shape (m,)
        The times s in [0, 1], for a timed measure (only).

    Returns
    -------
    Tensor, shape (m, q)
        Differentiable in x.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, times are missing or out of place, or a time precedes all mass.

    Examples
    --------
    >>> import torch
    >>> mu = DiscreteMeasure(torch.tensor([[-1.0], [1.0]]))
    >>> gamma_map(mu, torch.tensor([[0.0], [1.0]]), torch.eye(1), torch.eye(1)).flatten().round(decimals=4)  # tanh
    tensor([0.0000, 0.7616])
    """
    P = _rows(mu, x, A, V, times)
    return P @ (mu.points @ V.mT)


def gamma_derivative(mu: DiscreteMeasure | TimedMeasure, x: Tensor, A: Tensor, V: Tensor, *,
                     times: Tensor | None = None) -> Tensor:
    r"""Derivative :math:`\nabla\Gamma_\mu(x) = V\,C_\mu(x)\,A`, with C the covariance of μ tilted by :math:`e^{(Ax)\cdot y}`.

    At an atom it is what a copy of that atom feels when it moves alone (theory §9).

    Parameters
    ----------
    mu, x, A, V, times
        As in :func:`gamma_map`.

    Returns
    -------
    Tensor, shape (m, q, d)

    Raises
    ------
    ValueError, TypeError
        As :func:`gamma_map`.

    Examples
    --------
    >>> import torch
    >>> mu = DiscreteMeasure(torch.tensor([[-1.0], [1.0]]))
    >>> gamma_derivative(mu, torch.zeros(1, 1), torch.eye(1), torch.eye(1))
    tensor([[[1.]]])
    """
    P = _rows(mu, x, A, V, times)
    own, _ = _own_query(P, mu.points, A, V)
    return own


def _rows(mu: DiscreteMeasure | TimedMeasure, x: Tensor, A: Tensor, V: Tensor, times: Tensor | None) -> Tensor:
    """Rows of the softmax of queries x against the atoms of mu: (m, n)."""
    _check_matrices(mu.points, A, V)
    check_tokens(check_real_tensor("x", x, ndim=2), mu.dim, "x")
    check_same_kind("x", x, mu.points, "the measure")
    timed = isinstance(mu, TimedMeasure)
    if timed != (times is not None):
        raise ValueError("times: expected " + ("one for each row of x, got None" if timed else "None: mu has no times"))
    visible = None
    if timed:
        _refuse_times_before_mass("times", mu, _check_times("times", times, x))
        visible = _sees(times, mu.times)
    log_weights = mu.weights.log()
    return (_log_density(x, mu.points, log_weights, A, visible) + log_weights).exp()


# --- the formulas, for any batch ------------------------------------------------------------------------------------------


def _log_density(x: Tensor, y: Tensor, log_weights: Tensor, A: Tensor, visible: Tensor | None) -> Tensor:
    r"""log G with :math:`P_{ij} = w_j G_{ij}`: the softmax as a density, finite where a weight vanishes.

    Shapes: x (…, m, d), y (…, n, d), log_weights (…, n), visible (…, m, n) → (…, m, n). Rows that see no mass are −∞
    or huge numbers, without meaning but never NaN.
    """
    queries = x @ A.mT
    check_scores(queries, y)
    scores = queries @ y.mT
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    weighted = scores + log_weights[..., None, :]
    top = weighted.amax(-1, keepdim=True)
    top = torch.where(top > -math.inf, top, 0)
    total = (weighted - top).exp().sum(-1, keepdim=True)
    return (scores - top) - torch.where(total > 0, total, 1).log()


def _own_query(P: Tensor, y: Tensor, A: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`V C_i A`, shape (…, m, q, d), and :math:`V(y_j - m_i)`, shape (…, m, n, q), for rows P (…, m, n)."""
    centred = y[..., None, :, :] - (P @ y)[..., :, None, :]  # (…, m, n, d)
    values = centred @ V.mT
    return (P[..., None] * values).mT @ (centred @ A), values


def _dense_norms(points: Tensor, weights: Tensor, A: Tensor, V: Tensor, times: Tensor | None) -> tuple[Tensor, Tensor]:
    r"""‖D_μF‖ in L²(μ) and max_i ‖V C_i A‖, both of shape (B,), from matrices of size nq × nd.

    The matrix of D_μF in the orthonormal coordinates :math:`\sqrt{w_i}\,h_i` has blocks
    :math:`\sqrt{w_i w_j}\, G_{ij}\,(V + V(x_j-m_i)(Ax_i)^\top) + \delta_{ij} V C_i A`.
    """
    B, n, d = points.shape
    half = weights.log() / 2
    log_density = _log_density(points, points, 2 * half, A, None if times is None else _sees(times, times))
    has_mass = weights > 0
    P = torch.where(has_mass[:, :, None], (log_density + 2 * half[:, None, :]).exp(), 0)
    own, values = _own_query(P, points, A, V)
    own = torch.where(has_mass[..., None, None], own, 0)
    between = torch.where(has_mass[:, :, None] & has_mass[:, None, :], log_density, -math.inf)
    between = (between + half[:, :, None] + half[:, None, :]).exp()  # (B, i, j): √(w_i w_j) G_ij
    queries = (points @ A.mT)[:, :, None, None, :]
    M = between[..., None, None] * (V + values[..., None] * queries)  # (B, i, j, q, d)
    M[:, range(n), range(n)] += own
    M = _without_splitting(M, points, weights, times).transpose(2, 3).reshape(B, n * V.shape[0], n * d)
    return torch.linalg.matrix_norm(M, 2), torch.linalg.matrix_norm(own, 2).amax(-1)


def _without_splitting(M: Tensor, points: Tensor, weights: Tensor, times: Tensor | None) -> Tensor:
    """Restrict M (B, i, j, q, d) to perturbations that move equal atoms alike: those that are functions on the support."""
    equal = (points[:, :, None] == points[:, None]).all(-1)
    if times is not None:
        equal &= times[:, :, None] == times[:, None]
    if not bool((equal.sum(-1) > 1).any()):
        return M
    root, mass = weights.sqrt(), (equal * weights[:, None, :]).sum(-1)
    projector = equal * root[:, :, None] * root[:, None, :] / torch.where(mass > 0, mass, 1)[:, :, None]
    return torch.einsum("bijqd,bjk->bikqd", M, projector)


# --- local constants and mass splitting -------------------------------------------------------------------------------------


class _MassOperator(LinearOperator):
    r"""A Jacobian between L²(μ) spaces: :math:`W^{1/2} J W^{-1/2}` with W the diagonal of the weights, all positive."""

    def __init__(self, jacobian: LinearOperator, weights: Tensor) -> None:
        self.jacobian, self._root = jacobian, weights.sqrt()[:, None]
        self.batch_shape, self.input_shape = jacobian.batch_shape, jacobian.input_shape
        self.output_shape, self.dtype, self.device = jacobian.output_shape, jacobian.dtype, jacobian.device

    def matvec(self, H: Tensor) -> Tensor:
        return self._root * self.jacobian.matvec(self._check("H", H, self.input_shape) / self._root)

    def rmatvec(self, G: Tensor) -> Tensor:
        return self.jacobian.rmatvec(self._root * self._check("G", G, self.output_shape)) / self._root


def local_constant(mu: DiscreteMeasure | TimedMeasure, A: Tensor, V: Tensor, *, splitting: bool = False,
                   tol: float = 1e-8) -> float:
    r"""Local Lipschitz constant of (masked) mean-field attention at μ, in :math:`W_2` (or :math:`d_2`).

    Without splitting it is :math:`\|D_\mu F\|`, the norm of the derivative on :math:`L^2(\mu)`: equal atoms move
    together. With splitting the copies of an atom may part (theory §9):

    .. math:: \mathrm{Lip_{split}}(\mu) = \max\big(\|D_\mu F\|_{L^2(\mu)},\; \max_i \|V C_i A\|_2\big).

    For a sequence X with uniform weights, :math:`\|D_X f\|_2` lies between the two; it is the first where no token
    repeats, and the second where every token does.

    Parameters
    ----------
    mu : DiscreteMeasure or TimedMeasure
        Atoms of weight zero do not count.
    A : Tensor, shape (d, d)
    V : Tensor, shape (q, d)
    splitting : bool
    tol : float
        Relative tolerance of :func:`lipcore.spectral.spectral_norm`.

    Returns
    -------
    float
        An estimate from below, up to ``tol``.

    Raises
    ------
    ValueError, TypeError
        If A and V do not fit the measure.
    RuntimeError
        If the iteration stops before ``tol``.

    Notes
    -----
    Local means that no mass moves far: the second is the upper limit of :math:`W_2(F(\nu), F(\mu)) / W_2(\nu, \mu)`
    as ν → μ in :math:`W_\infty`. Where ν → μ in :math:`W_2` only, ever less mass may move over a fixed distance, and
    the upper limit may be larger, as difference quotients of :math:`\Gamma_\mu` are. Over all measures in a ball the
    suprema of all three agree: they are the Lipschitz constant.

    Examples
    --------
    >>> import torch
    >>> mu = DiscreteMeasure(torch.tensor([[-0.091], [-6.124], [-3.012]]), torch.tensor([0.917, 0.009, 0.074]))
    >>> A, V = torch.tensor([[-2.22]]), torch.eye(1)
    >>> round(local_constant(mu, A, V), 3), round(local_constant(mu, A, V, splitting=True), 3)
    (0.301, 0.988)
    """
    _check_measure(mu)
    mu = mu.support()
    attention = _attention(mu, A, V)
    found = spectral_norm(_MassOperator(attention.jacobian(mu.points), mu.weights), tol=tol)
    if not bool(found.converged):
        raise RuntimeError(f"local_constant: expected the relative tolerance {tol:g} within {int(found.iterations)} "
                           f"iterations, got no further than {found.value.item():.6g}: ask for a larger tol")  # fmt: skip
    return max(found.value.item(), _own_query_norm(mu, A, V)) if splitting else found.value.item()


def _check_measure(mu: object) -> None:
    if not isinstance(mu, DiscreteMeasure | TimedMeasure):
        raise TypeError(f"mu: expected a DiscreteMeasure or a TimedMeasure, got {type(mu).__name__}")


def _own_query_norm(mu: DiscreteMeasure | TimedMeasure, A: Tensor, V: Tensor) -> float:
    """max_i ‖V C_i A‖₂ over the atoms, a block of rows at a time."""
    n, d = mu.points.shape
    block = max(1, BATCH_BYTES // (n * (2 * d + V.shape[0]) * mu.points.element_size()))
    times = mu.times if isinstance(mu, TimedMeasure) else None
    largest = 0.0
    for start in range(0, n, block):
        rows = slice(start, start + block)
        own = gamma_derivative(mu, mu.points[rows], A, V, times=None if times is None else times[rows])
        largest = max(largest, torch.linalg.matrix_norm(own, 2).max().item())
    return largest


def splitting_gain(mu: DiscreteMeasure | TimedMeasure, A: Tensor, V: Tensor, *, tol: float = 1e-8) -> float:
    r"""How much mass splitting helps at μ: :math:`\mathrm{Lip_{split}}(\mu)/\|D_\mu F\| \ge 1`, more than 1 iff it helps.

    Parameters
    ----------
    mu, A, V, tol
        As in :func:`local_constant`.

    Returns
    -------
    float
        One if both constants vanish, infinity if only the second does.

    Raises
    ------
    ValueError, TypeError, RuntimeError
        As :func:`local_constant`.

    Examples
    --------
    >>> import torch
    >>> mu = DiscreteMeasure(torch.tensor([[-0.091], [-6.124], [-3.012]]), torch.tensor([0.917, 0.009, 0.074]))
    >>> round(splitting_gain(mu, torch.tensor([[-2.22]]), torch.eye(1)), 2)
    3.28
    """
    plain, own = local_constant(mu, A, V, tol=tol), _own_query_norm(mu.support(), A, V)
    if own <= plain:
        return 1.0
    return own / plain if plain > 0 else math.inf


def local_constants(points: Tensor, weights: Tensor | None, A: Tensor, V: Tensor, *, splitting: bool = False,
                    times: Tensor | None = None) -> Tensor:
    r""":func:`local_constant` for a batch of small measures at once, exactly, by dense algebra.

    Parameters
    ----------
    points : Tensor, shape (…, n, d)
        Made for n·d up to about 64: the cost of each measure grows as :math:`n^3 d^3`.
    weights : Tensor, shape (…, n), or None
        Each row non-negative, with sum one; uniform if None.
    A : Tensor, shape (d, d)
    V : Tensor, shape (q, d)
    splitting : bool
        Whether copies of an atom may part.
    times : Tensor, shape (…, n), optional
        In [0, 1]; with them the measures are timed and the attention is masked.

    Returns
    -------
    Tensor, shape (…)

    Raises
    ------
    ValueError, TypeError
        As :class:`DiscreteMeasure`, :class:`TimedMeasure` and :func:`local_constant`.

    Examples
    --------
    >>> import torch
    >>> points = torch.tensor([[[-1.0], [1.0]], [[-2.0], [2.0]]], dtype=torch.float64)
    >>> eye = torch.eye(1, dtype=torch.float64)
    >>> local_constants(points, None, -eye, eye).round(decimals=4)
    tensor([1.6015, 1.0101], dtype=torch.float64)
    """
    plain, own = _batched_norms(points, weights, A, V, times)
    return torch.maximum(plain, own) if splitting else plain


def splitting_gains(points: Tensor, weights: Tensor | None, A: Tensor, V: Tensor, *,
                    times: Tensor | None = None) -> Tensor:
    r""":func:`splitting_gain` for a batch of small measures at once: mass splitting helps where it is more than 1.

    Parameters
    ----------
    points, weights, A, V, times
        As in :func:`local_constants`.

    Returns
    -------
    Tensor, shape (…)

    Raises
    ------
    ValueError, TypeError
        As :func:`local_constants`.

    Examples
    --------
    >>> import torch
    >>> points = torch.tensor([[[-0.091], [-6.124], [-3.012]], [[-1.0], [0.0], [1.0]]])
    >>> weights = torch.tensor([[0.917, 0.009, 0.074], [0.25, 0.5, 0.25]])
    >>> splitting_gains(points, weights, torch.tensor([[-2.22]]), torch.eye(1)).round(decimals=2)
    tensor([3.2800, 1.0000])
    """
    plain, own = _batched_norms(points, weights, A, V, times)
    return torch.where(own <= plain, 1, own / plain)


def _batched_norms(points: Tensor, weights: Tensor | None, A: Tensor, V: Tensor,
                   times: Tensor | None) -> tuple[Tensor, Tensor]:
    """Checked :func:`_dense_norms`, in chunks of bounded memory: two tensors of shape points.shape[:-2]."""
    check_tokens(points, name="points")
    weights = _checked_weights(weights, points)
    if times is not None:
        _check_times("times", times, points)
    _check_matrices(points, A, V)
    *batch, n, d = points.shape
    chunk = max(1, BATCH_BYTES // (n * n * (V.shape[0] + 1) * (d + 1) * points.element_size()))
    flat = points.reshape(-1, n, d).split(chunk), weights.reshape(-1, n).split(chunk)
    flat_times = [None] * len(flat[0]) if times is None else times.reshape(-1, n).split(chunk)
    parts = [_dense_norms(x, w, A, V, t) for x, w, t in zip(*flat, flat_times, strict=True)]
    return tuple(torch.cat(kind).reshape(batch) for kind in zip(*parts, strict=True))


# --- two Diracs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TwoDirac:
    r"""Two Diracs on a line, in closed form (theory §3, §5): :math:`\mu = p\,\delta_{x_1}+(1-p)\,\delta_{x_2}`, A = ±γI, V = I.

    With :math:`x_i = R\,t_i u`, u a unit vector, :math:`a = \gamma R^2`, :math:`b_i = \pm a\, t_i (t_j - t_i)` (the
    score of the other Dirac above one's own) and :math:`c = \pm a\,(t_j-t_i)^2`, each Dirac gives the other the weight

    .. math:: r_i = \frac{1}{1 + \frac{w_i}{w_j} e^{-b_i}}, \qquad \Gamma_\mu(x_i) = (1-r_i)\,x_i + r_i\, x_j,

    and the derivative along u is :math:`J_{ij} = r_i\,(1 + b_i(1-r_i))`, :math:`J_{ii} = (1-r_i)\,(1 + (c - b_i)\, r_i)`;
    across u only :math:`P = (r_i,\,1-r_i)` is left. For A = −γI, Diracs at ∓R have :math:`b = 2a, c = -4a`, and the
    worst mass is :math:`p \sim e^{-2a}/3` as a → ∞: unbalanced mass is the worst case.

    Parameters
    ----------
    p : float or Tensor
        Mass of the first Dirac, in (0, 1).
    radius, gamma : float
        R and γ, non-negative.
    sign : {-1, 1}
        A = −γI or A = γI.
    positions : tuple of two floats, optional
        t₁ and t₂. (−1, 1) for A = −γI and (1, ½) for A = γI, the worst cases of theory §3, if left out.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range.

    Examples
    --------
    >>> light = TwoDirac(0.01, 1.0, 2.0)  # the light Dirac pulls all the others
    >>> round(light.other_weight[1].item(), 3), round(light.constant.item(), 3)
    (0.355, 12.829)
    >>> round(TwoDirac(0.5, 1.0, 2.0).constant.item(), 3)
    1.247
    """

    p: float | Tensor
    radius: float
    gamma: float
    sign: int = -1
    positions: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        p = torch.as_tensor(self.p, dtype=torch.float64)
        if not bool(((p > 0) & (p < 1)).all()):
            raise ValueError("p: expected masses between 0 and 1, both excluded")
        if self.sign not in (-1, 1):
            raise ValueError(f"sign: expected -1 (A = -gamma I) or 1 (A = gamma I), got {self.sign!r}")
        positions = self.positions if self.positions is not None else ((-1.0, 1.0) if self.sign < 0 else (1.0, 0.5))
        if len(positions) != 2:
            raise ValueError(f"positions: expected two numbers, got {len(positions)}")
        object.__setattr__(self, "p", p)
        object.__setattr__(self, "radius", check_number("radius", self.radius, minimum=0))
        object.__setattr__(self, "gamma", check_number("gamma", self.gamma, minimum=0))
        object.__setattr__(self, "positions", tuple(check_number("positions", t) for t in positions))
        check_number("gamma * radius**2", self._curvature)

    @property
    def _t(self) -> Tensor:
        return torch.tensor(self.positions, dtype=torch.float64)

    @property
    def _curvature(self) -> float:
        return self.sign * self.gamma * self.radius**2

    @property
    def _log_odds(self) -> Tensor:
        """log(w_i / w_j), shape (…, 2)."""
        odds = self.p.log() - (-self.p).log1p()
        return torch.stack([odds, -odds], dim=-1)

    @property
    def score_gaps(self) -> Tensor:
        """b_i, the score of the other Dirac above one's own: shape (2,)."""
        return self._curvature * self._t * (self._t.flip(0) - self._t)

    @property
    def other_weight(self) -> Tensor:
        """r_i, the weight that each Dirac gives to the other: shape (…, 2)."""
        return torch.sigmoid(self.score_gaps - self._log_odds)

    @property
    def own_weight(self) -> Tensor:
        """1 − r_i to full precision, shape (…, 2)."""
        return torch.sigmoid(self._log_odds - self.score_gaps)

    @property
    def images(self) -> Tensor:
        """Γ_μ(x_i)·u, shape (…, 2)."""
        return self.radius * (self._t + self.other_weight * (self._t.flip(0) - self._t))

    def _in_mass(self, diagonal: Tensor, off_diagonal: Tensor) -> Tensor:
        """W^{1/2} J W^{-1/2} for J with J_ii = diagonal and J_ij = off_diagonal: shape (…, 2, 2)."""
        scaled = off_diagonal * (self._log_odds / 2).exp()
        return torch.diag_embed(diagonal) + torch.diag_embed(scaled).flip(-1)

    @property
    def derivative(self) -> Tensor:
        """Matrix of D_μF along u in the orthonormal coordinates √w_i h_i, shape (…, 2, 2)."""
        r, own, b = self.other_weight, self.own_weight, self.score_gaps
        c = self._curvature * (self.positions[1] - self.positions[0]) ** 2
        return self._in_mass(own * (1 + (c - b) * r), r * (1 + b * own))

    @property
    def constant(self) -> Tensor:
        """‖D_μF‖ in L²(μ) in dimension one, shape (…): along u."""
        return _norm_two_by_two(self.derivative)

    @property
    def transverse_constant(self) -> Tensor:
        """‖P‖ in L²(μ), shape (…): across u. In dimension two and more ‖D_μF‖ is the larger of the two constants."""
        return _norm_two_by_two(self._in_mass(self.own_weight, self.other_weight))

    @property
    def own_query(self) -> Tensor:
        """‖C_i A‖, what a copy of each Dirac feels when it moves alone: shape (…, 2).

        For A = −γI, Diracs at R and 0 and p = 1/γR², the heavy one feels 1 − p, while ``constant`` is about √p, as its
        own query then cancels mixing: the gain of mass splitting has no bound, and grows as √a.
        """
        c = self._curvature * (self.positions[1] - self.positions[0]) ** 2
        return abs(c) * self.other_weight * self.own_weight

    def measure(self, dim: int = 1) -> DiscreteMeasure:
        """The measure itself, for a single p, with u the first basis vector."""
        check_count("dim", dim)
        if self.p.ndim:
            raise ValueError(f"p: expected one mass to make a measure of, got shape {tuple(self.p.shape)}")
        points = torch.zeros(2, dim, dtype=torch.float64)
        points[:, 0] = self.radius * self._t
        return DiscreteMeasure(points, torch.stack([self.p, 1 - self.p]))


def _norm_two_by_two(M: Tensor) -> Tensor:
    """Largest singular value of 2 × 2 matrices: half the sum of two hypotenuses."""
    a, b, c, d = M[..., 0, 0], M[..., 0, 1], M[..., 1, 0], M[..., 1, 1]
    return (torch.hypot(a + d, b - c) + torch.hypot(a - d, b + c)) / 2
