"""Optimal transport between discrete measures: the distances W_p, and d_p on timed measures."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from torch import Tensor

from lipcore._checks import check_number
from lipcore.measures.discrete import WEIGHT_TOLERANCE, DiscreteMeasure, TimedMeasure

#: The largest share of a plan's cost by which it may miss the optimum, by its dual potentials.
DUALITY_GAP = 1e-7


def wasserstein(mu: DiscreteMeasure, nu: DiscreteMeasure, p: float = 2) -> float:
    r"""Return the Wasserstein distance :math:`W_p` of two measures (:prf:ref:`def-wasserstein`).

    .. math:: W_p(\mu,\nu)^p = \min_\pi \sum_{ij} \pi_{ij} \|x_i - y_j\|^p

    The minimum is over the couplings π. It is found by the network simplex of POT (:func:`ot.emd`),
    in time about :math:`nm(n+m)` between measures of n and m points. Dual potentials bound the
    error: the relative error of :math:`W_p^p` is at most 1e-7, or the plan is refused. Sums of
    weights are known up to rounding only, so a :math:`W_2` below :math:`2\cdot10^{-8}\sqrt{n+m}`
    times the longest way of any mass may be rounding.

    Parameters
    ----------
    mu, nu : DiscreteMeasure
    p : float
        At least one.

    Raises
    ------
    ImportError
        If POT is missing and needed, which it is if both measures have two points or more.
    RuntimeError
        If POT finds no plan that is optimal to the stated accuracy.

    Notes
    -----
    See Villani (2009), and Flamary et al. (2021) for POT.

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
    r"""Return one coupling π that attains :math:`W_p` (:prf:ref:`def-wasserstein`).

    Parameters and errors are those of :func:`wasserstein`. For equally many equal masses there is
    a permutation among the optimal plans (:prf:ref:`thm-mt-birkhoff`).

    Returns
    -------
    Tensor, shape (n, m), float64
        Row sums are the weights of mu, column sums those of nu.

    Examples
    --------
    >>> import torch
    >>> mu = DiscreteMeasure(torch.tensor([[0.0], [1.0]]))
    >>> transport_plan(mu, DiscreteMeasure(torch.tensor([[0.9], [0.1]])))
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]], dtype=torch.float64)
    """
    return torch.from_numpy(_optimal_plan(mu, nu, p)[0])


def conditional_wasserstein(mu: TimedMeasure, nu: TimedMeasure, p: float = 2) -> float:
    r"""Return the conditional transport distance, for masked attention (:prf:ref:`def-timed`).

    .. math:: d_p(\mu,\nu)^p = \int W_p^p(\mu^\tau,\nu^\tau)\,d\theta(\tau)

    Mass moves in space and never in time (Castin, Ablin & Peyré 2024). The distance is never below
    :math:`W_p` on :math:`[0,1]\times\mathbb R^d` (:prf:ref:`prop-timed-distance`).

    Parameters
    ----------
    mu, nu : TimedMeasure
        With the same time marginal θ: the same times exactly, with the same masses to 1e-9
        (1e-5 in float32).
    p : float
        At least one.

    Examples
    --------
    >>> import torch
    >>> times = torch.tensor([0.0, 1.0])
    >>> mu = TimedMeasure(times, torch.tensor([[0.0], [1.0]]))
    >>> nu = TimedMeasure(times, torch.tensor([[1.0], [0.0]]))  # the same points in another order
    >>> conditional_wasserstein(mu, nu)
    1.0
    """
    _check_pair(mu, nu, TimedMeasure)
    p = check_number("p", p, minimum=1)
    times, masses = _common_marginal(mu, nu)
    distances = np.array([wasserstein(mu.at(time), nu.at(time), p) for time in times])
    return _norm_p(masses, distances, p)


def _optimal_plan(
    mu: DiscreteMeasure, nu: DiscreteMeasure, p: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return an optimal plan and the distances, two arrays (n, m)."""
    _check_pair(mu, nu, DiscreteMeasure)
    p = check_number("p", p, minimum=1)
    a, b = (measure.weights.detach().cpu().double().numpy() for measure in (mu, nu))
    a = a / a.sum()
    b = b / b.sum()
    distances = _distances(mu.points, nu.points)
    massive = np.ix_(a > 0, b > 0)
    plan = np.zeros_like(distances)
    plan[massive] = _plan_of_costs(a[a > 0], b[b > 0], distances[massive], p)
    return plan, distances


def _plan_of_costs(a: np.ndarray, b: np.ndarray, distances: np.ndarray, p: float) -> np.ndarray:
    """Return the optimal plan of positive masses a (n,), b (m,) for costs distances^p (n, m)."""
    if min(len(a), len(b)) == 1:  # one point has all the mass, and there is no choice
        return np.outer(a, b)
    largest = distances.max()
    cost = (distances / largest) ** p if largest > 0 else np.zeros_like(distances)
    cap = 1.0
    least = rounding = 0.0
    while True:
        capped = np.minimum(cost, cap)
        plan, log = _pot().emd(a, b, capped / cap, numItermax=10**8, log=True)
        if log["warning"] is not None:
            raise RuntimeError(f"wasserstein: POT found no optimal plan: {log['warning']}")
        plan = np.where(plan > least, plan, 0)
        # Σ a_i min_j (c_ij − v_j) + Σ b_j v_j is at most the cost of every plan, whatever v is; a
        # gap far below zero also shows that the digits are lost
        v = cap * log["v"]
        value = (plan * cost).sum()
        gap = value - a @ (capped - v).min(axis=1) - b @ v
        if abs(gap) <= DUALITY_GAP * value + rounding or (value <= 0 and least == 0):
            return plan
        if least == 0:
            # The digits of short ways are lost to far points. Ways far longer than the longest in
            # use do not matter. They may be made cheaper, which a bound from below allows; if they
            # become so cheap that they are used, their cost is raised again. Masses no larger than
            # the rounding of the sums of weights may be sent anywhere. They are not counted, since
            # on a long way they can cost more than all others on short ones.
            least = sum(cost.shape) * np.finfo(float).eps
            cap = 2 * cost[plan > least].max()
            rounding = cap * least
            if cap == 0:
                return np.where(plan > least, plan, 0)
        elif cap >= 1:
            expected = f"a plan that is optimal up to {DUALITY_GAP:g} of its cost"
            got = f"one up to {gap / value:.2g} from POT"
            raise RuntimeError(f"wasserstein: expected {expected}, got {got}")
        else:
            cap *= 8


def _distances(x: Tensor, y: Tensor) -> np.ndarray:
    """Return ‖x_i − y_j‖, (n, m), without overflow, and without products, which lose digits."""
    x, y = (points.detach().cpu().double() for points in (x, y))
    largest = max(x.abs().max().item(), y.abs().max().item())
    scale = 2.0 ** (math.frexp(largest)[1] - 1)
    mode = "donot_use_mm_for_euclid_dist"
    return scale * torch.cdist(x / scale, y / scale, compute_mode=mode).numpy()


def _norm_p(mass: np.ndarray, distances: np.ndarray, p: float) -> float:
    """Return (Σ mass · distances^p)^{1/p}, scaled so that no power overflows."""
    used = distances[mass > 0]
    largest = used.max(initial=0.0)
    if largest == 0:
        return 0.0
    return float(largest * ((mass[mass > 0] * (used / largest) ** p).sum()) ** (1 / p))


def _pot():
    """Import POT where it is first needed, without its warning on progress bars in notebooks."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="IProgress not found")
            import ot
    except ImportError as error:
        cure = "pip install 'lipcore[measures]'"
        raise ImportError(f"wasserstein needs the package POT: {cure}") from error
    return ot


def _check_pair(mu: object, nu: object, kind: type) -> None:
    for name, measure in (("mu", mu), ("nu", nu)):
        if not isinstance(measure, kind):
            raise TypeError(f"{name}: expected a {kind.__name__}, got {type(measure).__name__}")
    if mu.dim != nu.dim:
        raise ValueError(f"nu: expected points of dimension {mu.dim} as mu has, got {nu.dim}")


def _common_marginal(mu: TimedMeasure, nu: TimedMeasure) -> tuple[list[float], np.ndarray]:
    """Return times and masses of the common marginal, or name the first time where two differ."""
    tolerance = max(WEIGHT_TOLERANCE[measure.weights.dtype] for measure in (mu, nu))
    here, there = (
        dict(zip(*(tensor.tolist() for tensor in measure.time_marginal()), strict=True))
        for measure in (mu, nu)
    )
    for time in sorted(here.keys() | there.keys()):
        mass, other = here.get(time, 0.0), there.get(time, 0.0)
        if 0 in (mass, other) or abs(mass - other) > tolerance:
            but = f"time {time!r} has mass {mass:.10g} in mu and {other:.10g} in nu"
            raise ValueError(f"nu: expected the time marginal of mu, but {but}")
    return list(here), np.array(list(here.values()))
