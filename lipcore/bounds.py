r"""Bounds of the (local) Lipschitz constant of attention: each function is one statement of the theory.

Throughout :math:`a = \|A\|_2 R^2` and :math:`\kappa = e^{2a}`. Every closed form is worked out in logarithms:
``log=True`` returns the logarithm, and a value past float64's range is ``inf``, never an error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_count, check_number
from lipcore.attention import Attention, check_scores, rotate


def general_upper(*, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False) -> float:
    r"""Upper bound for n tokens in the ball of radius R (Castin, Ablin & Peyré 2024; theory §2).

    .. math:: \mathrm{Lip}(f|B_R^n) \le \sqrt3\, \|V\|_2 \big( \|A\|_2^2 R^4 (4n+1) + n \big)^{1/2}

    The same bound holds with a causal mask.

    Parameters
    ----------
    n : int
        Number of tokens.
    radius : float
        Largest norm of a token.
    norm_a, norm_v : float
        Spectral norms of A and V.
    log : bool
        Whether to return the logarithm of the bound.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        If n < 1, or a norm or radius is negative or not finite.

    Examples
    --------
    >>> round(general_upper(n=4, radius=1.0, norm_a=0.0, norm_v=1.0), 6) == round((3 * 4) ** 0.5, 6)
    True
    """
    n, log_a, log_v = _log_inputs(n, radius, norm_a, norm_v)
    inside = _log_add(2 * log_a + math.log(4 * n + 1), math.log(n))
    return _finish(log_v + (math.log(3) + inside) / 2, log)


def unified_upper(*, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False) -> float:
    r"""One upper bound for every regime (this book; theory §4).

    .. math:: \mathrm{Lip}(f|B_R^n) \le \|V\|_2 \Big( (1+a) \sqrt{\tfrac{n\kappa}{n+\kappa-1}} + a \Big)

    It grows as √n for n ≪ κ and stops at the mean-field bound for n ≫ κ.

    Parameters
    ----------
    n, radius, norm_a, norm_v, log
        As in :func:`general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`general_upper`.

    Examples
    --------
    >>> unified_upper(n=9, radius=1.0, norm_a=0.0, norm_v=1.0)  # constant scores: averaging, norm one
    1.0
    """
    n, log_a, log_v = _log_inputs(n, radius, norm_a, norm_v)
    mixing = _log_column_sum(n, log_a) / 2
    return _finish(log_v + _log_three_terms(log_a, mixing, keys=1), log)


def mean_field_upper(*, radius: float, norm_a: float, norm_v: float, log: bool = False) -> float:
    r"""Upper bound in the mean-field regime, in :math:`W_2` on measures in the ball (this book; theory §5).

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le \|V\|_2 \big( (1+a) e^{a} + a \big)

    Parameters
    ----------
    radius, norm_a, norm_v, log
        As in :func:`general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`general_upper`.

    Examples
    --------
    >>> mean_field_upper(radius=0.0, norm_a=1.0, norm_v=2.0)
    2.0
    """
    _, log_a, log_v = _log_inputs(1, radius, norm_a, norm_v)
    return _finish(log_v + _log_three_terms(log_a, math.exp(log_a), keys=1), log)


def mean_field_upper_paper(*, radius: float, norm_a: float, norm_v: float, log: bool = False) -> float:
    r"""Upper bound in the mean-field regime as published (Castin, Ablin & Peyré 2024; theory §5).

    .. math:: \mathrm{Lip}^{W_2}(F|\mathcal P(B_R)) \le \|V\|_2 (1+3a) e^{2a}

    Parameters
    ----------
    radius, norm_a, norm_v, log
        As in :func:`general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`general_upper`.

    Examples
    --------
    >>> mean_field_upper_paper(radius=1.0, norm_a=8.0, norm_v=1.0) > mean_field_upper(radius=1.0, norm_a=8.0, norm_v=1.0)
    True
    """
    _, log_a, log_v = _log_inputs(1, radius, norm_a, norm_v)
    return _finish(log_v + _log_add(0.0, math.log(3) + log_a) + 2 * math.exp(log_a), log)


def masked_upper(*, n: int, radius: float, norm_a: float, norm_v: float, log: bool = False) -> float:
    r"""Upper bound for causal attention (this book; theory §7).

    .. math:: \mathrm{Lip}(f^m|B_R^n) \le \|V\|_2 \min\big( (1+a)\sqrt n + a,\; 2(1+2a) e^{a} + a \big)

    The second entry does not depend on n; its 2 is Hardy's constant, and cannot be made smaller.

    Parameters
    ----------
    n, radius, norm_a, norm_v, log
        As in :func:`general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`general_upper`.

    Examples
    --------
    >>> masked_upper(n=10**9, radius=1.0, norm_a=0.0, norm_v=1.0)
    2.0
    """
    n, log_a, log_v = _log_inputs(n, radius, norm_a, norm_v)
    short = _log_three_terms(log_a, math.log(n) / 2, keys=1)
    long = _log_three_terms(log_a, math.log(2) + math.exp(log_a), keys=2)
    return _finish(log_v + min(short, long), log)


def _log_inputs(n: int, radius: float, norm_a: float, norm_v: float) -> tuple[int, float, float]:
    """Checked (n, log a, log ‖V‖), with log 0 = −∞."""
    n = check_count("n", n)
    radius = check_number("radius", radius, minimum=0)
    norm_a = check_number("norm_a", norm_a, minimum=0)
    norm_v = check_number("norm_v", norm_v, minimum=0)
    return n, _log(norm_a) + 2 * _log(radius), _log(norm_v)


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _exp(x: float) -> float:
    """e^x, infinite past float64's range."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _log_add(x: float, y: float) -> float:
    """log(e^x + e^y)."""
    high, low = max(x, y), min(x, y)
    return high if low == -math.inf or high == math.inf else high + math.log1p(math.exp(low - high))


def _finish(log_value: float, log: bool) -> float:
    return log_value if log else _exp(log_value)


def _log_three_terms(log_a: float, log_mixing: float, *, keys: int) -> float:
    """log( (1 + keys·a)·mixing + a ): mixing, others' keys (a multiple of mixing) and own query."""
    return _log_add(_log_add(0.0, math.log(keys) + log_a) + log_mixing, log_a)


def _log_column_sum(n: int, log_a: float) -> float:
    """log( nκ/(n+κ−1) ), the largest column sum of P that scores within a of one another allow."""
    a = _exp(log_a)
    log_kappa_minus_1 = 2 * a + math.log(-math.expm1(-2 * a)) if a > 0 else -math.inf
    return 0.0 if n == 1 else min(math.log(n) + 2 * a - _log_add(math.log(n), log_kappa_minus_1), math.log(n))


# --- the local form ---------------------------------------------------------------------------------------------------


def local_upper(attention: Attention, X: Tensor) -> Tensor:
    r"""Bound of the local constant at X from one softmax: always true, masked or not (this book; theory §4).

    For one head,

    .. math:: \|D_X f\|_2 \le \|V\|_2\|P\|_2 + \max_i \|V C_i A\|_2
        + \Big( \max_i \|V C_i V^\top\|_2 \; \max_j \big\| \textstyle\sum_i P_{ij} (Ax_i+c)(Ax_i+c)^\top \big\|_2 \Big)^{1/2}.

    Heads add up in squares where they are concatenated; with an output projection W the smaller of
    ‖W‖ times that and the sum over heads with W_h taken into V_h is returned. ‖P‖₂ is bounded through
    Collatz–Wielandt: for every positive w, :math:`\|P\|_2^2 \le \max_i (P^\top P w)_i / w_i`.

    Parameters
    ----------
    attention : Attention
    X : Tensor, shape (…, n, d)

    Returns
    -------
    Tensor, shape (…)

    Raises
    ------
    ValueError, TypeError
        If X does not fit the attention.

    Examples
    --------
    >>> import torch
    >>> f = Attention.from_matrices(torch.zeros(2, 2), torch.eye(2))
    >>> round(local_upper(f, torch.randn(3, 2)).item(), 4)
    1.0
    """
    attention.check_input(X)
    flat = X.flatten(0, -3) if X.ndim > 2 else X[None]
    return torch.stack([_local_upper_one(attention, tokens) for tokens in flat]).reshape(X.shape[:-2])


def _local_upper_one(attention: Attention, X: Tensor) -> Tensor:
    """The local form at one sequence X, shape (n, d)."""
    queries, keys, values = attention.project(X)  # (heads, n, k), …
    check_scores(queries, keys)
    P = attention.row_weights(queries, keys, slice(0, X.shape[0]))  # (heads, n, n)
    terms = _HeadTerms(attention, P, queries, keys, values)
    concatenated = terms.bounds(None).square().sum(-1).sqrt()
    if attention.output is None:
        return concatenated
    W = attention.output
    blocks = W.unflatten(1, (attention.heads, -1)).movedim(1, 0)  # (heads, q, p)
    return torch.minimum(torch.linalg.matrix_norm(W, 2) * concatenated, terms.bounds(_square_root(blocks)).sum(-1))


class _HeadTerms:
    """What the local form needs of each head, in the spaces of queries, keys and values."""

    def __init__(self, attention: Attention, P: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> None:
        self.attention, self.P = attention, P
        self.norm_p = nonnegative_norm_upper(P)
        angles = attention.angles(P.shape[-1])
        # only the values' and keys' differences matter; centred, the covariances lose fewer digits
        v, k = values - values.mean(-2, keepdim=True), keys - keys.mean(-2, keepdim=True)
        self.cov_vv = _covariances(P, v, v)  # V C_i Vᵀ
        own = _covariances(P, v, k)  # V C_i Kᵀ
        seen = (P.mT @ _outer(queries, queries).flatten(-2)).unflatten(-1, (queries.shape[-1],) * 2)
        if angles is not None:  # queries and keys turn with their positions; undone here, the norms do not change
            own = _rotate_columns(own, -angles)
            seen = _rotate_columns(_rotate_columns(seen, -angles).mT, -angles)
        self.own = own @ _square_root((attention.scale * attention.query).mT)[:, None].mT  # ‖·‖ as V C_i A
        root = _square_root(attention.key.mT)[:, None]  # (heads, 1, min(d, k), k)
        self.seen_norm = _largest_norm(root @ seen @ root.mT)  # max_j ‖Σ_i P_ij (Ax_i+c)(Ax_i+c)ᵀ‖

    def bounds(self, left: Tensor | None) -> Tensor:
        """One bound a head, shape (heads,), of the map ``left``·f_h."""
        own, cov, V = self.own, self.cov_vv, self.attention.value
        if left is not None:
            own, cov, V = left[:, None] @ own, left[:, None] @ cov @ left[:, None].mT, left @ V
        mixing = torch.linalg.matrix_norm(V, 2) * self.norm_p
        return mixing + _largest_norm(own) + (_largest_norm(cov) * self.seen_norm).sqrt()


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a[..., :, None] * b[..., None, :]


def _covariances(P: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Covariance of a and b under each row of P: (heads, n, p), (heads, n, k) → (heads, n, p, k)."""
    second = (P @ _outer(a, b).flatten(-2)).unflatten(-1, (a.shape[-1], b.shape[-1]))
    return second - _outer(P @ a, P @ b)


def _rotate_columns(matrices: Tensor, angles: Tensor) -> Tensor:
    """Rotate the rows (as vectors) of the matrices (heads, n, r, k) by the angle of their token."""
    return rotate(matrices.movedim(1, 2), angles).movedim(2, 1)


def _square_root(matrices: Tensor) -> Tensor:
    """R with RᵀR = MᵀM, of the smaller size: ‖M B‖ = ‖R B‖ for every B. (heads, q, p) → (heads, min(q, p), p)."""
    return torch.linalg.qr(matrices, mode="r").R


def _largest_norm(matrices: Tensor) -> Tensor:
    """Largest spectral norm among the matrices (heads, n, r, c): shape (heads,).

    Few need a decomposition: the Frobenius norm is an upper bound, so once one norm is known, the matrices whose
    Frobenius norm lies below it cannot win.
    """
    frobenius = torch.linalg.matrix_norm(matrices)  # (heads, n)
    first = frobenius.argmax(-1)
    heads = torch.arange(len(matrices), device=matrices.device)
    best = torch.linalg.matrix_norm(matrices[heads, first], 2)
    head, token = torch.nonzero(frobenius > best[:, None], as_tuple=True)
    if len(head):
        best = best.scatter_reduce(0, head, torch.linalg.matrix_norm(matrices[head, token], 2), "amax")
    return best


def nonnegative_norm_upper(P: Tensor, *, iterations: int = 30) -> Tensor:
    r"""Upper bound of the spectral norm of a matrix with entries ≥ 0, always true and sharp as ``iterations`` grow.

    .. math:: \|P\|_2^2 \le \max_i (P^\top P w)_i / w_i \quad\text{for every } w > 0 \text{ (Collatz–Wielandt)}

    with w from power iteration. Never above :math:`\sqrt{\|P\|_1\|P\|_\infty}` (Schur).

    Parameters
    ----------
    P : Tensor, shape (…, m, n)
    iterations : int
        Products with PᵀP.

    Returns
    -------
    Tensor, shape (…)

    Raises
    ------
    ValueError
        If an entry is negative.

    Examples
    --------
    >>> import torch
    >>> round(nonnegative_norm_upper(torch.tensor([[1.0, 1.0], [1.0, 1.0]])).item(), 4)
    2.0
    """
    if bool((P < 0).any()):
        raise ValueError(f"P: expected entries of at least 0, got {P.min().item():.3g}")
    w = P.new_ones(*P.shape[:-2], P.shape[-1], 1)
    best = (P.sum(-2).amax(-1) * P.sum(-1).amax(-1)).sqrt()
    for _ in range(iterations):
        image = P.mT @ (P @ w)
        best = torch.minimum(best, (image / w).amax((-2, -1)).sqrt())
        # the floor keeps w positive where columns vanish; any positive w gives a bound
        w = image / image.amax(-2, keepdim=True).clamp(min=torch.finfo(P.dtype).tiny)
        w = w.clamp(min=torch.finfo(P.dtype).eps ** 2)
    return best
