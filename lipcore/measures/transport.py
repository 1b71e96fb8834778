"""Optimal transport between discrete measures: the distances W_p, and d_p for measures with times."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from torch import Tensor

from lipcore._checks import check_number
from lipcore.measures.discrete import WEIGHT_TOLERANCE, DiscreteMeasure, TimedMeasure


def wasserstein(mu: DiscreteMeasure, nu: DiscreteMeasure, p: float = 2) -> float:
    r"""Wasserstein distance :math:`W_p`, over the couplings π of two measures.

    .. math:: W_p(\mu,\nu)^p = \min_\pi \sum_{ij} \pi_{ij} \|x_i - y_j\|^p

    Exact up to rounding, by the network simplex of POT (:func:`ot.emd`); between measures of n and m points
    it costs about :math:`nm(n+m)`. A distance below 1e-8 of the diameter may be rounding.

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
    r"""Find an optimal coupling π of two measures for the cost :math:`\|x-y\|^p`; there may be others.

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


def _optimal_plan(
    mu: DiscreteMeasure, nu: DiscreteMeasure, p: float
) -> tuple[np.ndarray, np.ndarray]:
    """Find an optimal plan; return it and the distances, two arrays of shape (n, m)."""
    _check_pair(mu, nu, DiscreteMeasure)
    p = check_number("p", p, minimum=1)
    a, b = (m.weights.detach().cpu().double().numpy() for m in (mu, nu))
    a, b = a / a.sum(), b / b.sum()
    distances = _distances(mu.points, nu.points)
    if min(np.count_nonzero(a), np.count_nonzero(b)) == 1:  # one point has all the mass: no choice
        return a[:, None] * b, distances
    largest = distances[a > 0][:, b > 0].max()
    cost = (distances / largest) ** p if largest > 0 else np.zeros_like(distances)
    plan, log = _pot().emd(a, b, cost, numItermax=10**8, log=True)
    if log["warning"] is not None:
        raise RuntimeError(f"wasserstein: POT found no optimal plan: {log['warning']}")
    return plan, distances


def _distances(x: Tensor, y: Tensor) -> np.ndarray:
    """‖x_i − y_j‖, (n, m), safe from overflow, and not by way of products, which lose half of the digits."""
    x, y = x.detach().cpu().double(), y.detach().cpu().double()
    scale = 2.0 ** (math.frexp(max(x.abs().max().item(), y.abs().max().item()))[1] - 1)
    return (
        scale
        * torch.cdist(x / scale, y / scale, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    )


def _norm_p(mass: np.ndarray, distances: np.ndarray, p: float) -> float:
    """(Σ mass · distances^p)^{1/p}, scaled so that no power overflows."""
    used = distances[mass > 0]
    largest = used.max(initial=0.0)
    if largest == 0:
        return 0.0
    return float(largest * ((mass[mass > 0] * (used / largest) ** p).sum()) ** (1 / p))


def _pot():
    """Import POT where it is first needed; in notebooks its dependencies complain about progress bars."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="IProgress not found")
            import ot
    except ImportError as error:
        raise ImportError(
            "wasserstein needs the package POT: pip install 'lipcore[measures]' (or pip install pot)"
        ) from error
    return ot


def _check_pair(mu: object, nu: object, kind: type) -> None:
    for name, measure in (("mu", mu), ("nu", nu)):
        if not isinstance(measure, kind):
            raise TypeError(f"{name}: expected a {kind.__name__}, got {type(measure).__name__}")
    if mu.dim != nu.dim:
        raise ValueError(f"nu: expected points of dimension {mu.dim} as mu has, got {nu.dim}")


def conditional_wasserstein(mu: TimedMeasure, nu: TimedMeasure, p: float = 2) -> float:
    r"""Conditional transport distance :math:`d_p(\mu,\nu)^p = \int W_p^p(\mu^\tau,\nu^\tau)\,d\theta(\tau)`.

    Mass moves in space and never in time: the distance for masked attention (Castin, Ablin & Peyré 2024;
    theory §7). It is never below :math:`W_p` on :math:`[0,1]\times\mathbb R^d`.

    Parameters
    ----------
    mu, nu : TimedMeasure
        With the same time marginal θ: the same times exactly, with the same masses to 1e-9 (1e-5 in float32).
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
    """Return the common time marginal, times and masses; the error names the first time where two differ."""
    (times, masses), (other_times, other_masses) = mu.time_marginal(), nu.time_marginal()
    tolerance = max(WEIGHT_TOLERANCE[m.weights.dtype] for m in (mu, nu))
    here, there = (
        dict(zip(t.tolist(), m.tolist(), strict=True))
        for t, m in ((times, masses), (other_times, other_masses))
    )
    for time in sorted(here.keys() | there.keys()):
        a, b = here.get(time, 0.0), there.get(time, 0.0)
        if (time in here) != (time in there) or abs(a - b) > tolerance:
            raise ValueError(
                f"nu: expected the time marginal of mu, but time {time!r} has mass {a:.10g} in mu and {b:.10g} in nu"
            )
    return times.tolist(), masses
