"""Local Lipschitz constants of attention on measures, with and without mass splitting.

:func:`local_constant` and :func:`splitting_gain` take one measure of any size and iterate. Their
namesakes with ``dense_`` take batches of small measures and compute singular values of dense
matrices. Mass splitting means that copies of a duplicated token may move apart.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_tokens
from lipcore.measures.discrete import Measure, TimedMeasure, check_times, check_weights
from lipcore.measures.mean_field import (
    attention_over,
    check_matrices,
    derivative_blocks,
    gamma_derivative,
    log_density,
    sees,
)
from lipcore.operators import FunctionOperator
from lipcore.spectral import spectral_norm

#: About this many bytes of intermediate results are held at once.
BATCH_BYTES = 2**26


def local_constant(
    mu: Measure, A: Tensor, V: Tensor, *, splitting: bool = False, tol: float = 1e-8
) -> float:
    r"""Return the local Lipschitz constant of (masked) mean-field attention at μ, in W₂ (or d₂).

    Without mass splitting it is :math:`\|D_\mu F\|`, the norm of the derivative on
    :math:`L^2(\mu)`, and equal atoms move together. With mass splitting the copies of an atom may
    part (:prf:ref:`thm-split`):

    .. math:: \mathrm{Lip_{split}}(\mu)
        = \max\big(\|D_\mu F\|_{L^2(\mu)},\; \max_i \|V C_i A\|_2\big).

    For a sequence X with uniform weights, :math:`\|D_X f\|_2` lies between the two; it is the first
    where no token repeats, and the second where every token does (:prf:ref:`cor-split-sequence`).

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
        An estimate from below, to the relative tolerance ``tol``.

    Raises
    ------
    RuntimeError
        If the iteration stops before ``tol``.

    Notes
    -----
    Local means that no mass moves far: the constant with splitting is the upper limit of
    :math:`W_2(F(\nu), F(\mu)) / W_2(\nu, \mu)` as ν → μ in :math:`W_\infty`. If ν → μ in
    :math:`W_2` only, less and less mass may move over a fixed distance, and the upper limit may be
    larger, as difference quotients of :math:`\Gamma_\mu` are. Over all measures in a ball the
    suprema of all three agree, and are the Lipschitz constant (:prf:ref:`prop-split-global`).

    Examples
    --------
    >>> import torch
    >>> from lipcore.measures import DiscreteMeasure
    >>> points = torch.tensor([[-0.091], [-6.124], [-3.012]])
    >>> mu = DiscreteMeasure(points, torch.tensor([0.917, 0.009, 0.074]))
    >>> A, V = torch.tensor([[-2.22]]), torch.eye(1)
    >>> round(local_constant(mu, A, V), 3), round(local_constant(mu, A, V, splitting=True), 3)
    (0.301, 0.988)
    """
    mu = _support(mu)
    whole = _derivative_norm(mu, A, V, tol)
    return max(whole, _own_query_norm(mu, A, V)) if splitting else whole


def splitting_gain(mu: Measure, A: Tensor, V: Tensor, *, tol: float = 1e-8) -> float:
    r"""Return the gain of mass splitting at μ, :math:`\mathrm{Lip_{split}}(\mu)/\|D_\mu F\|`.

    Over all μ the gain is unbounded (:prf:ref:`prop-split-gain`). Parameters and errors are those
    of :func:`local_constant`.

    Returns
    -------
    float
        One where splitting does not help, and infinity where only :math:`\|D_\mu F\|` vanishes.

    Examples
    --------
    >>> import torch
    >>> from lipcore.measures import DiscreteMeasure
    >>> points = torch.tensor([[-0.091], [-6.124], [-3.012]])
    >>> mu = DiscreteMeasure(points, torch.tensor([0.917, 0.009, 0.074]))
    >>> round(splitting_gain(mu, torch.tensor([[-2.22]]), torch.eye(1)), 2)
    3.28
    """
    mu = _support(mu)
    whole = _derivative_norm(mu, A, V, tol)
    own = _own_query_norm(mu, A, V)
    if own <= whole:
        return 1.0
    return own / whole if whole > 0 else math.inf


def dense_local_constant(
    points: Tensor,
    weights: Tensor | None,
    A: Tensor,
    V: Tensor,
    *,
    splitting: bool = False,
    times: Tensor | None = None,
) -> Tensor:
    r"""Return the :func:`local_constant` of each small measure of a batch, by dense algebra.

    Parameters
    ----------
    points : Tensor, shape (…, n, d)
        Points, best for n·d up to about 64: the cost of each measure grows as :math:`n^3 d^3`.
    weights : Tensor, shape (…, n), or None
        Each row non-negative, with sum one; uniform if None.
    A : Tensor, shape (d, d)
    V : Tensor, shape (q, d)
    splitting : bool
        Whether copies of an atom may part (:prf:ref:`thm-split`).
    times : Tensor, shape (…, n), optional
        In [0, 1]; with them the measures are timed and the attention is masked.

    Returns
    -------
    Tensor, shape (…)
        Exact up to rounding.

    Examples
    --------
    >>> import torch
    >>> points = torch.tensor([[[-1.0], [1.0]], [[-2.0], [2.0]]], dtype=torch.float64)
    >>> eye = torch.eye(1, dtype=torch.float64)
    >>> dense_local_constant(points, None, -eye, eye).round(decimals=4)
    tensor([1.6015, 1.0101], dtype=torch.float64)
    """
    whole, own = _batched_norms(points, weights, A, V, times)
    return torch.maximum(whole, own) if splitting else whole


def dense_splitting_gain(
    points: Tensor, weights: Tensor | None, A: Tensor, V: Tensor, *, times: Tensor | None = None
) -> Tensor:
    r"""Return the :func:`splitting_gain` of each small measure of a batch, by dense algebra.

    Parameters and errors are those of :func:`dense_local_constant`.

    Returns
    -------
    Tensor, shape (…)
        More than one where mass splitting helps (:prf:ref:`prop-split-gain`).

    Examples
    --------
    >>> import torch
    >>> points = torch.tensor([[[-0.091], [-6.124], [-3.012]], [[-1.0], [0.0], [1.0]]])
    >>> weights = torch.tensor([[0.917, 0.009, 0.074], [0.25, 0.5, 0.25]])
    >>> A = torch.tensor([[-2.22]])
    >>> dense_splitting_gain(points, weights, A, torch.eye(1)).round(decimals=2)
    tensor([3.2800, 1.0000])
    """
    whole, own = _batched_norms(points, weights, A, V, times)
    return torch.where(own <= whole, 1, own / whole)


def _support(mu: object) -> Measure:
    if not isinstance(mu, Measure):
        raise TypeError(f"mu: expected a measure, got {type(mu).__name__}")
    return mu.support()


def _derivative_norm(mu: Measure, A: Tensor, V: Tensor, tol: float) -> float:
    """Return ‖D_μF‖ in L²(μ), for distinct atoms: of √W J √W⁻¹, W the diagonal of weights."""
    J = attention_over(mu, A, V).jacobian(mu.points)
    root = mu.weights.sqrt()[:, None]
    products = lambda H: root * J.matvec(H / root), lambda G: J.rmatvec(root * G) / root
    in_mass = FunctionOperator(*products, J, (), J.input_shape, J.output_shape)
    norm = spectral_norm(in_mass, tol=tol)
    if not bool(norm.converged):
        expected = f"the relative tolerance {tol:g} in {int(norm.iterations)} iterations"
        got = f"no further than {norm.value.item():.6g}: ask for a larger tol"
        raise RuntimeError(f"local_constant: expected {expected}, got {got}")
    return norm.value.item()


def _own_query_norm(mu: Measure, A: Tensor, V: Tensor) -> float:
    """Return max_i ‖V C_i A‖₂ over the atoms, by blocks of rows."""
    n, d = mu.points.shape
    block = max(1, BATCH_BYTES // (n * (2 * d + V.shape[0]) * mu.points.element_size()))
    rows = mu.points.split(block)
    clocks = mu.times.split(block) if isinstance(mu, TimedMeasure) else [None] * len(rows)
    blocks = (gamma_derivative(mu, x, A, V, times=t) for x, t in zip(rows, clocks, strict=True))
    return max(torch.linalg.matrix_norm(own, 2).max().item() for own in blocks)


def _batched_norms(
    points: Tensor, weights: Tensor | None, A: Tensor, V: Tensor, times: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return ‖D_μF‖ and max_i ‖V C_i A‖ of each measure after checks, as many at once as fit."""
    check_tokens(points, name="points")
    weights = check_weights(weights, points)
    check_matrices(points, A, V)
    *batch, n, d = points.shape
    chunk = max(1, BATCH_BYTES // (n * n * (V.shape[0] + 1) * (d + 1) * points.element_size()))
    tables = [points.reshape(-1, n, d), weights.reshape(-1, n)]
    if times is not None:
        tables.append(check_times("times", times, points).reshape(-1, n))
    chunks = zip(*(table.split(chunk) for table in tables), strict=True)
    parts = [dense_norms(A, V, *chunk) for chunk in chunks]
    whole, own = (torch.cat(kind) for kind in zip(*parts, strict=True))
    return whole.reshape(batch), own.amax(-1).reshape(batch)


def dense_norms(
    A: Tensor, V: Tensor, points: Tensor, weights: Tensor, times: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ‖D_μF‖ in L²(μ), (…), and ‖V C_i A‖, (…, n), from matrices of size nq × nd."""
    log_w = weights.log()
    massive = (weights > 0)[..., None]
    visible = None if times is None else sees(times, times)
    log_g = log_density(points, points, log_w, A, visible)
    P = torch.where(massive, (log_g + log_w[..., None, :]).exp(), 0)
    # in the orthonormal coordinates √w_i h_i the factor of V is √(w_i w_j) G_ij; it is taken as one
    # exponential, as G is huge where the weights are tiny
    between = (log_g + (log_w[..., :, None] + log_w[..., None, :]) / 2).exp()
    blocks, own = derivative_blocks(P, points, A, V, torch.where(massive, between, 0))
    # perturbations are functions on the support: equal atoms move alike
    equal = (points[..., :, None, :] == points[..., None, :, :]).all(-1)
    if times is not None:
        equal &= times[..., :, None] == times[..., None, :]
    if bool((equal.sum(-1) > 1).any()):
        mass = (equal * weights[..., None, :]).sum(-1)
        root = weights.sqrt() / torch.where(mass > 0, mass, 1).sqrt()
        projector = equal * root[..., :, None] * root[..., None, :]
        blocks = torch.einsum("...ijqd,...jk->...ikqd", blocks, projector)
    matrix = blocks.transpose(-3, -2).flatten(-2).flatten(-3, -2)  # (…, n·q, n·d)
    return torch.linalg.matrix_norm(matrix, 2), torch.linalg.matrix_norm(own, 2)
