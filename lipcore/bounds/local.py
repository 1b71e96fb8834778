"""The upper bound at one X, worked out from its attention weights."""

from __future__ import annotations

import torch
from torch import Tensor

from lipcore.attention import Attention, check_scores, rotate


def local_upper(attention: Attention, X: Tensor) -> Tensor:
    r"""Bound of the local constant at X from one softmax: always true, masked or not (this book; theory §4).

    For one head,

    .. math:: \|D_X f\|_2 \le \|V\|_2\|P\|_2 + \max_i \|V C_i A\|_2
        + \Big( \max_i \|V C_i V^\top\|_2 \;
        \max_j \big\| \textstyle\sum_i P_{ij} (Ax_i+c)(Ax_i+c)^\top \big\|_2 \Big)^{1/2}.

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
    wide, flat = _in_double(attention, X)
    return (
        torch.stack([_local_upper_one(wide, tokens) for tokens in flat])
        .reshape(X.shape[:-2])
        .to(X.dtype)
    )


def local_terms(attention: Attention, X: Tensor) -> Tensor:
    r"""The three terms of the local bound, head by head: mixing, own query, others' keys (this book; theory §4).

    Those of :func:`local_upper` with :math:`W_h` taken into :math:`V_h` where there is an output projection; the bound
    of a layer is at most their sum over heads and terms.

    Parameters
    ----------
    attention : Attention
    X : Tensor, shape (…, n, d)

    Returns
    -------
    Tensor, shape (…, heads, 3)

    Raises
    ------
    ValueError, TypeError
        If X does not fit the attention.

    Examples
    --------
    >>> import torch
    >>> f = Attention.from_matrices(torch.zeros(2, 2), 3 * torch.eye(2))
    >>> local_terms(f, torch.randn(4, 2)).round(decimals=4).abs()
    tensor([[3., 0., 0.]])
    """
    attention, flat = _in_double(attention, X)
    W, left = attention.output, None
    if W is not None:
        left = _square_root(W.unflatten(1, (attention.heads, -1)).movedim(1, 0))
    parts = torch.stack([_head_terms(attention, tokens).parts(left) for tokens in flat])
    return parts.reshape(*X.shape[:-2], attention.heads, 3).to(X.dtype)


def _in_double(attention: Attention, X: Tensor) -> tuple[Attention, Tensor]:
    """The layer, and X as (members, n, d), in float64: float32 would round small covariances to zero."""
    attention.check_input(X)
    flat = X.flatten(0, -3) if X.ndim > 2 else X[None]
    return (
        (attention, flat)
        if X.dtype == torch.float64
        else (attention.to(torch.float64), flat.double())
    )


def _local_upper_one(attention: Attention, X: Tensor) -> Tensor:
    """The local form at one sequence X, shape (n, d)."""
    terms = _head_terms(attention, X)
    concatenated = terms.bounds(None).square().sum(-1).sqrt()
    if attention.output is None:
        return concatenated
    W = attention.output
    blocks = W.unflatten(1, (attention.heads, -1)).movedim(1, 0)  # (heads, q, p)
    return torch.minimum(
        torch.linalg.matrix_norm(W, 2) * concatenated, terms.bounds(_square_root(blocks)).sum(-1)
    )


def _head_terms(attention: Attention, X: Tensor) -> _HeadTerms:
    queries, keys, values = attention.project(X)  # (heads, n, k), …
    check_scores(queries, keys)
    P = attention.row_weights(queries, keys, slice(0, X.shape[0]))  # (heads, n, n)
    return _HeadTerms(attention, P, queries, keys, values)


class _HeadTerms:
    """What the local form needs of each head, in the spaces of queries, keys and values."""

    def __init__(
        self, attention: Attention, P: Tensor, queries: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        self.attention, self.P = attention, P
        self.norm_p = nonnegative_norm_upper(P)
        angles = attention.angles(P.shape[-1])
        # only the values' and keys' differences matter; centred, the covariances lose fewer digits
        v, k = values - values.mean(-2, keepdim=True), keys - keys.mean(-2, keepdim=True)
        self.cov_vv = _covariances(P, v, v)  # V C_i Vᵀ
        own = _covariances(P, v, k)  # V C_i Kᵀ
        seen = (P.mT @ _outer(queries, queries).flatten(-2)).unflatten(-1, (queries.shape[-1],) * 2)
        if (
            angles is not None
        ):  # queries and keys turn with their positions; undone here, the norms do not change
            own = _rotate_columns(own, -angles)
            seen = _rotate_columns(_rotate_columns(seen, -angles).mT, -angles)
        self.own = (
            own @ _square_root((attention.scale * attention.query).mT)[:, None].mT
        )  # ‖·‖ as V C_i A
        root = _square_root(attention.key.mT)[:, None]  # (heads, 1, min(d, k), k)
        self.seen_norm = _largest_norm(root @ seen @ root.mT)  # max_j ‖Σ_i P_ij (Ax_i+c)(Ax_i+c)ᵀ‖

    def bounds(self, left: Tensor | None) -> Tensor:
        """One bound a head, shape (heads,), of the map ``left``·f_h."""
        return self.parts(left).sum(-1)

    def parts(self, left: Tensor | None) -> Tensor:
        """The three terms of each head's bound, shape (heads, 3)."""
        own, cov, V = self.own, self.cov_vv, self.attention.value
        if left is not None:
            own, cov, V = left[:, None] @ own, left[:, None] @ cov @ left[:, None].mT, left @ V
        mixing = torch.linalg.matrix_norm(V, 2) * self.norm_p
        return torch.stack(
            [mixing, _largest_norm(own), (_largest_norm(cov) * self.seen_norm).sqrt()], dim=-1
        )


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
        best = best.scatter_reduce(
            0, head, torch.linalg.matrix_norm(matrices[head, token], 2), "amax"
        )
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
