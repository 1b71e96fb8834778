r"""Attention on measures, :math:`F(\mu) = (\Gamma_\mu)_\sharp\mu`, with and without a mask."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_head, check_same_kind, check_scores, check_square, check_tokens
from lipcore.attention import Attention
from lipcore.measures.discrete import DiscreteMeasure, Measure, TimedMeasure, check_times


def mean_field_attention(mu: DiscreteMeasure, A: Tensor, V: Tensor) -> DiscreteMeasure:
    r"""Return the image of μ under attention on measures (:prf:ref:`def-mean-field`).

    This is the map of Castin, Ablin & Peyré 2024,

    .. math:: F(\mu) = (\Gamma_\mu)_\sharp\mu, \qquad \Gamma_\mu(x) =
        V\, \frac{\int e^{(Ax)\cdot y}\, y\, d\mu(y)}{\int e^{(Ax)\cdot y}\, d\mu(y)}

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
    return DiscreteMeasure(attention_over(mu, A, V)(mu.points), mu.weights)


def masked_mean_field_attention(mu: TimedMeasure, A: Tensor, V: Tensor) -> TimedMeasure:
    r"""Return the image of μ under masked attention on measures (:prf:ref:`def-timed`).

    At time s only the tokens with times τ ≤ s count:

    .. math:: F^m(\mu) = \big((s,x)\mapsto(s,\Gamma_\mu(s,x))\big)_\sharp\mu, \qquad
        \Gamma_\mu(s,x) = V\, \frac{\int_{\tau\le s} e^{(Ax)\cdot y}\, y\, d\mu(\tau,y)}
        {\int_{\tau\le s} e^{(Ax)\cdot y}\, d\mu(\tau,y)}

    Parameters
    ----------
    mu : TimedMeasure
        n tokens in dimension d. With distinct times and equal weights this is causal attention on
        a sequence.
    A : Tensor, shape (d, d)
    V : Tensor, shape (q, d)

    Returns
    -------
    TimedMeasure
        The n images at the same times, with the same weights. A token of weight zero before all
        mass, where Γ is not defined, is refused (``mu.support()`` leaves it out).

    Raises
    ------
    ValueError
        If a token of weight zero precedes all mass (``mu.support()`` leaves it out).

    Examples
    --------
    >>> import torch
    >>> times, points = torch.tensor([0.0, 1.0]), torch.tensor([[0.0], [4.0]])
    >>> mu = TimedMeasure(times, points, torch.tensor([0.25, 0.75]))
    >>> image = masked_mean_field_attention(mu, torch.zeros(1, 1), torch.ones(1, 1))
    >>> image.points.flatten().round(decimals=4)
    tensor([0., 3.])
    """
    if not isinstance(mu, TimedMeasure):
        raise TypeError(f"mu: expected a TimedMeasure, got {type(mu).__name__}")
    _check_times_with_mass("mu.times", mu, mu.times)
    return TimedMeasure(mu.times, attention_over(mu, A, V)(mu.points), mu.weights)


def gamma_map(
    mu: Measure, x: Tensor, A: Tensor, V: Tensor, *, times: Tensor | None = None
) -> Tensor:
    r"""Return :math:`\Gamma_\mu(x)` at points x (:prf:ref:`def-mean-field`, :prf:ref:`def-timed`).

    Parameters
    ----------
    mu : DiscreteMeasure or TimedMeasure
    x : Tensor, shape (m, d)
        In the support of μ or not.
    A : Tensor, shape (d, d)
    V : Tensor, shape (q, d)
    times : Tensor, shape (m,)
        The times s in [0, 1] of :math:`\Gamma_\mu(s,x)`, for a timed measure (only); none may
        precede all mass.

    Returns
    -------
    Tensor, shape (m, q)
        Differentiable in x.

    Examples
    --------
    >>> import torch
    >>> mu = DiscreteMeasure(torch.tensor([[-1.0], [1.0]]))
    >>> image = gamma_map(mu, torch.tensor([[0.0], [1.0]]), torch.eye(1), torch.eye(1))
    >>> image.flatten().round(decimals=4)  # tanh
    tensor([0.0000, 0.7616])
    """
    return _rows(mu, x, A, V, times) @ (mu.points @ V.mT)


def gamma_derivative(
    mu: Measure, x: Tensor, A: Tensor, V: Tensor, *, times: Tensor | None = None
) -> Tensor:
    r"""Return :math:`\nabla\Gamma_\mu(x) = V C A`, C the covariance of μ for :math:`e^{Ax\cdot y}`.

    At an atom this is the effect of moving one copy of it alone (:prf:ref:`thm-split`).
    Parameters and errors are those of :func:`gamma_map`.

    Returns
    -------
    Tensor, shape (m, q, d)

    Examples
    --------
    >>> import torch
    >>> mu = DiscreteMeasure(torch.tensor([[-1.0], [1.0]]))
    >>> gamma_derivative(mu, torch.zeros(1, 1), torch.eye(1), torch.eye(1))
    tensor([[[1.]]])
    """
    return own_query(_rows(mu, x, A, V, times), mu.points, A, V)[0]


def attention_over(mu: Measure, A: Tensor, V: Tensor) -> Attention:
    """Return attention over the atoms of mu, with their weights, and a mask from the times."""
    check_matrices(mu.points, A, V)
    mask = sees(mu.times, mu.times) if isinstance(mu, TimedMeasure) else None
    return Attention.from_matrices(A, V, log_weights=mu.weights.log(), mask=mask)


def check_matrices(points: Tensor, A: Tensor, V: Tensor) -> None:
    """Refuse matrices that do not act on the points (…, n, d)."""
    check_same_kind("A", check_square("A", A), points, "the measure")
    d = points.shape[-1]
    if len(A) != d:
        expected = f"shape {(d, d)} as the measure has dimension {d}"
        raise ValueError(f"A: expected {expected}, got {tuple(A.shape)}")
    check_head(A, V)
    if len(V) == 0:
        raise ValueError(f"V: expected at least one row, got shape {tuple(V.shape)}")


def sees(query_times: Tensor, key_times: Tensor) -> Tensor:
    """Return whether a query at time s sees a key at time τ ≤ s: (…, m), (…, n) → (…, m, n)."""
    return key_times[..., None, :] <= query_times[..., :, None]


def log_density(
    x: Tensor, y: Tensor, log_weights: Tensor, A: Tensor, visible: Tensor | None
) -> Tensor:
    r"""Return log of the softmax as a density G against the weights, :math:`P_{ij} = w_j G_{ij}`.

    It is finite where a weight vanishes, and NaN in rows that see no mass. Shapes: x (…, m, d),
    y (…, n, d), log_weights (…, n), visible (…, m, n) → (…, m, n).
    """
    queries = x @ A.mT
    check_scores(queries, y)
    scores = queries @ y.mT
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    weighted = scores + log_weights[..., None, :]
    top = weighted.amax(-1, keepdim=True)
    return (scores - top) - (weighted - top).exp().sum(-1, keepdim=True).log()


def own_query(P: Tensor, y: Tensor, A: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`V C_i A`, (…, m, q, d), and :math:`V(y_j - m_i)`, (…, m, n, q), of P."""
    centred = y[..., None, :, :] - (P @ y)[..., :, None, :]  # (…, m, n, d)
    values = centred @ V.mT
    return (P[..., None] * values).mT @ (centred @ A[..., None, :, :]), values


def derivative_blocks(
    P: Tensor, X: Tensor, A: Tensor, V: Tensor, between: Tensor, *, mixing: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the blocks b_ij(V + V(x_j − m_i)(Ax_i)ᵀ) + δ_ij VC_iA, (…, n, n, q, d), and VC_iA."""
    own, values = own_query(P, X, A, V)
    queries = (X @ A.mT)[..., :, None, None, :]
    blocks = between[..., None, None] * (V * mixing + values[..., None] * queries)
    rows = torch.arange(X.shape[-2], device=X.device)
    blocks[..., rows, rows, :, :] += own
    return blocks, own


def _rows(mu: Measure, x: Tensor, A: Tensor, V: Tensor, times: Tensor | None) -> Tensor:
    """Return the rows (m, n) of the softmax of queries x against the atoms of mu."""
    check_matrices(mu.points, A, V)
    check_tokens(x, mu.dim, "x")
    check_same_kind("x", x, mu.points, "the measure")
    visible = None
    if isinstance(mu, TimedMeasure):
        if times is None:
            raise ValueError("times: expected one for each row of x, got None")
        _check_times_with_mass("times", mu, check_times("times", times, x))
        visible = sees(times, mu.times)
    elif times is not None:
        raise ValueError("times: expected None, as mu has no times")
    log_weights = mu.weights.log()
    return (log_density(x, mu.points, log_weights, A, visible) + log_weights).exp()


def _check_times_with_mass(name: str, mu: TimedMeasure, times: Tensor) -> None:
    """Refuse times before the first mass of mu, where Γ is not defined."""
    first = mu.times[mu.weights > 0].min().item()
    if bool((times < first).any()):
        expected = f"times from {first:g} on, where mu has its first mass"
        raise ValueError(f"{name}: expected {expected}, got {times.min().item():g}")
