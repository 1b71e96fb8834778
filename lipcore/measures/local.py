r"""Local Lipschitz constants of attention on measures, with and without mass splitting."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_tokens
from lipcore.jacobian import LinearOperator
from lipcore.measures.discrete import (
    DiscreteMeasure,
    Measure,
    TimedMeasure,
    check_times,
    check_weights,
)
from lipcore.measures.mean_field import (
    attention_over,
    check_matrices,
    gamma_derivative,
    log_density,
    own_query,
    sees,
)
from lipcore.spectral import spectral_norm

#: Bytes of intermediate results that are held at once, roughly.
BATCH_BYTES = 2**26


def _dense_norms(
    points: Tensor, weights: Tensor, A: Tensor, V: Tensor, times: Tensor | None
) -> tuple[Tensor, Tensor]:
    r"""‖D_μF‖ in L²(μ) and max_i ‖V C_i A‖, both of shape (B,), from matrices of size nq × nd.

    The matrix of D_μF in the orthonormal coordinates :math:`\sqrt{w_i}\,h_i` has blocks
    :math:`\sqrt{w_i w_j}\, G_{ij}\,(V + V(x_j-m_i)(Ax_i)^\top) + \delta_{ij} V C_i A`.
    """
    B, n, d = points.shape
    half = weights.log() / 2
    log_g = log_density(points, points, 2 * half, A, None if times is None else sees(times, times))
    has_mass = weights > 0
    P = torch.where(has_mass[:, :, None], (log_g + 2 * half[:, None, :]).exp(), 0)
    own, values = own_query(P, points, A, V)
    between = (log_g + half[:, :, None] + half[:, None, :]).exp()  # (B, i, j): √(w_i w_j) G_ij
    between = torch.where(has_mass[:, :, None], between, 0)
    queries = (points @ A.mT)[:, :, None, None, :]
    M = between[..., None, None] * (V + values[..., None] * queries)  # (B, i, j, q, d)
    M[:, range(n), range(n)] += own
    M = (
        _without_splitting(M, points, weights, times)
        .transpose(2, 3)
        .reshape(B, n * V.shape[0], n * d)
    )
    return torch.linalg.matrix_norm(M, 2), torch.linalg.matrix_norm(own, 2).amax(-1)


def _without_splitting(M: Tensor, points: Tensor, weights: Tensor, times: Tensor | None) -> Tensor:
    """Restrict M (B, i, j, q, d) to perturbations that move equal atoms alike: functions on the support."""
    equal = (points[:, :, None] == points[:, None]).all(-1)
    if times is not None:
        equal &= times[:, :, None] == times[:, None]
    if not bool((equal.sum(-1) > 1).any()):
        return M
    root, mass = weights.sqrt(), (equal * weights[:, None, :]).sum(-1)
    projector = (
        equal * root[:, :, None] * root[:, None, :] / torch.where(mass > 0, mass, 1)[:, :, None]
    )
    return torch.einsum("bijqd,bjk->bikqd", M, projector)


class _MassOperator(LinearOperator):
    r"""A Jacobian between L²(μ) spaces: :math:`W^{1/2} J W^{-1/2}`, W the diagonal of positive weights."""

    def __init__(self, jacobian: LinearOperator, weights: Tensor) -> None:
        self.jacobian, self._root = jacobian, weights.sqrt()[:, None]
        self.batch_shape, self.input_shape = jacobian.batch_shape, jacobian.input_shape
        self.output_shape, self.dtype, self.device = (
            jacobian.output_shape,
            jacobian.dtype,
            jacobian.device,
        )

    def matvec(self, H: Tensor) -> Tensor:
        return self._root * self.jacobian.matvec(self._check("H", H, self.input_shape) / self._root)

    def rmatvec(self, G: Tensor) -> Tensor:
        return (
            self.jacobian.rmatvec(self._root * self._check("G", G, self.output_shape)) / self._root
        )


def local_constant(
    mu: Measure, A: Tensor, V: Tensor, *, splitting: bool = False, tol: float = 1e-8
) -> float:
    r"""Local Lipschitz constant of (masked) mean-field attention at μ, in :math:`W_2` (or :math:`d_2`).

    Without splitting it is :math:`\|D_\mu F\|`, the norm of the derivative on :math:`L^2(\mu)`: equal atoms
    move together. With splitting the copies of an atom may part (theory §9):

    .. math:: \mathrm{Lip_{split}}(\mu) = \max\big(\|D_\mu F\|_{L^2(\mu)},\; \max_i \|V C_i A\|_2\big).

    For a sequence X with uniform weights, :math:`\|D_X f\|_2` lies between the two; it is the first where no
    token repeats, and the second where every token does.

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
    Local means that no mass moves far: the second is the upper limit of
    :math:`W_2(F(\nu), F(\mu)) / W_2(\nu, \mu)` as ν → μ in :math:`W_\infty`. Where ν → μ in :math:`W_2` only,
    ever less mass may move over a fixed distance, and the upper limit may be larger, as difference
    quotients of :math:`\Gamma_\mu` are. Over all measures in a ball the suprema of all three agree: they are
    the Lipschitz constant.

    Examples
    --------
    >>> import torch
    >>> points, weights = torch.tensor([[-0.091], [-6.124], [-3.012]]), torch.tensor([0.917, 0.009, 0.074])
    >>> mu = DiscreteMeasure(points, weights)
    >>> A, V = torch.tensor([[-2.22]]), torch.eye(1)
    >>> round(local_constant(mu, A, V), 3), round(local_constant(mu, A, V, splitting=True), 3)
    (0.301, 0.988)
    """
    _check_measure(mu)
    mu = mu.support()
    attention = attention_over(mu, A, V)
    found = spectral_norm(_MassOperator(attention.jacobian(mu.points), mu.weights), tol=tol)
    if not bool(found.converged):
        raise RuntimeError(
            f"local_constant: expected the relative tolerance {tol:g} in {int(found.iterations)} iterations, "
            f"got no further than {found.value.item():.6g}: ask for a larger tol"
        )
    return max(found.value.item(), _own_query_norm(mu, A, V)) if splitting else found.value.item()


def _check_measure(mu: object) -> None:
    if not isinstance(mu, DiscreteMeasure | TimedMeasure):
        raise TypeError(
            f"mu: expected a DiscreteMeasure or a TimedMeasure, got {type(mu).__name__}"
        )


def _own_query_norm(mu: Measure, A: Tensor, V: Tensor) -> float:
    """max_i ‖V C_i A‖₂ over the atoms, a block of rows at a time."""
    n, d = mu.points.shape
    block = max(1, BATCH_BYTES // (n * (2 * d + V.shape[0]) * mu.points.element_size()))
    times = mu.times if isinstance(mu, TimedMeasure) else None
    largest = 0.0
    for start in range(0, n, block):
        rows = slice(start, start + block)
        own = gamma_derivative(
            mu, mu.points[rows], A, V, times=None if times is None else times[rows]
        )
        largest = max(largest, torch.linalg.matrix_norm(own, 2).max().item())
    return largest


def splitting_gain(mu: Measure, A: Tensor, V: Tensor, *, tol: float = 1e-8) -> float:
    r"""How much mass splitting helps at μ, :math:`\mathrm{Lip_{split}}(\mu)/\|D_\mu F\|`; 1 if not at all.

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
    >>> points, weights = torch.tensor([[-0.091], [-6.124], [-3.012]]), torch.tensor([0.917, 0.009, 0.074])
    >>> mu = DiscreteMeasure(points, weights)
    >>> round(splitting_gain(mu, torch.tensor([[-2.22]]), torch.eye(1)), 2)
    3.28
    """
    plain, own = local_constant(mu, A, V, tol=tol), _own_query_norm(mu.support(), A, V)
    if own <= plain:
        return 1.0
    return own / plain if plain > 0 else math.inf


def local_constants(
    points: Tensor,
    weights: Tensor | None,
    A: Tensor,
    V: Tensor,
    *,
    splitting: bool = False,
    times: Tensor | None = None,
) -> Tensor:
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


def splitting_gains(
    points: Tensor, weights: Tensor | None, A: Tensor, V: Tensor, *, times: Tensor | None = None
) -> Tensor:
    r""":func:`splitting_gain` for a batch of small measures at once: more than 1 where mass splitting helps.

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


def _batched_norms(
    points: Tensor, weights: Tensor | None, A: Tensor, V: Tensor, times: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Check, then work through :func:`_dense_norms` in chunks: two tensors of shape points.shape[:-2]."""
    check_tokens(points, name="points")
    weights = check_weights(weights, points)
    if times is not None:
        check_times("times", times, points)
    check_matrices(points, A, V)
    *batch, n, d = points.shape
    chunk = max(1, BATCH_BYTES // (n * n * (V.shape[0] + 1) * (d + 1) * points.element_size()))
    flat = points.reshape(-1, n, d).split(chunk), weights.reshape(-1, n).split(chunk)
    flat_times = [None] * len(flat[0]) if times is None else times.reshape(-1, n).split(chunk)
    parts = [_dense_norms(x, w, A, V, t) for x, w, t in zip(*flat, flat_times, strict=True)]
    return tuple(torch.cat(kind).reshape(batch) for kind in zip(*parts, strict=True))
