r"""The local bound: an upper bound of the local Lipschitz constant at X, from one softmax.

It keeps the quantities that the bounds for a ball estimate: :math:`P`, the covariances :math:`C_i`
of tokens under the rows of P, and :math:`y_i = Ax_i + c`. All computations are in the spaces of
queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lipcore._checks import check_scores
from lipcore.attention import Attention, rotate
from lipcore.bounds._matrices import covariances, norms, second_moments, square_root
from lipcore.bounds.layer import join_heads, output_roots, rounded_up, sequences_of
from lipcore.cross import CrossAttention


def local_upper(attention: Attention, X: Tensor) -> Tensor:
    r"""Return an upper bound of the constant at X, for every mask (:prf:ref:`thm-every-local`).

    For one head,

    .. math:: \|D_X f\|_2 \le \|V\|_2\|P\|_2 + \max_i \|V C_i A\|_2
        + \Big( \max_i \|V C_i V^\top\|_2 \;
        \max_j \big\| \textstyle\sum_i P_{ij} y_iy_i^\top \big\|_2 \Big)^{1/2}.

    Heads add up as in :prf:ref:`prop-norm-heads`, and :func:`nonnegative_norm_upper` bounds ‖P‖₂.
    What scores and covariances may lose to rounding is added. The terms are mixing, own query (the
    query term) and others' keys (the key term). Cross-attention has the second if the queries'
    tokens move, and the other two if the memory does.

    Parameters
    ----------
    attention : Attention or CrossAttention
    X : Tensor, shape (…, n, d)

    Returns
    -------
    Tensor, shape (…)

    Examples
    --------
    >>> import torch
    >>> f = Attention.from_matrices(torch.zeros(2, 2), torch.eye(2))
    >>> round(local_upper(f, torch.randn(3, 2)).item(), 4)
    1.0
    """
    bounds = []
    for wide, left, terms in _heads_of(attention, X):
        alone = terms(None).sum(-1)
        projected = alone if left is None else terms(left).sum(-1)
        bounds.append(join_heads(wide, alone, projected))
    return rounded_up(bounds, X)


def local_terms(attention: Attention, X: Tensor) -> Tensor:
    r"""Return the three terms of the local bound, head by head (:prf:ref:`thm-every-local`).

    They are mixing, own query (the query term) and others' keys (the key term), with :math:`W_hV_h`
    in place of :math:`V_h` where there is an output projection. The bound of a layer is at most
    their sum over heads and terms. X has shape (…, n, d), and the result has shape (…, heads, 3).

    Examples
    --------
    >>> import torch
    >>> f = Attention.from_matrices(torch.zeros(2, 2), 3 * torch.eye(2))
    >>> local_terms(f, torch.randn(4, 2)).round(decimals=4).abs()
    tensor([[3., 0., 0.]])
    """
    heads = [terms(left) for _, left, terms in _heads_of(attention, X)]
    return torch.stack(heads).reshape(*X.shape[:-2], -1, 3).to(X.dtype)


def nonnegative_norm_upper(P: Tensor, *, iterations: int = 30) -> Tensor:
    r"""Return an upper bound of ‖P‖₂ for entries ≥ 0 (:prf:ref:`thm-every-local`, 1).

    .. math:: \|P\|_2^2 \le \max_i (P^\top P w)_i / w_i
        \quad\text{for every } w > 0 \text{ (Collatz–Wielandt)}

    with w from power iteration. It is always true, approaches ‖P‖₂ as ``iterations`` grow, and is
    never above :math:`\sqrt{\|P\|_1\|P\|_\infty}` (Schur).

    Parameters
    ----------
    P : Tensor, shape (…, m, n)
    iterations : int
        The number of products with PᵀP.

    Returns
    -------
    Tensor, shape (…)

    Examples
    --------
    >>> import torch
    >>> round(nonnegative_norm_upper(torch.tensor([[1.0, 1.0], [1.0, 1.0]])).item(), 4)
    2.0
    """
    if bool((P < 0).any()):
        raise ValueError(f"P: expected entries of at least 0, got {P.min().item():.3g}")
    smallest = torch.finfo(P.dtype)
    w = P.new_ones(*P.shape[:-2], P.shape[-1], 1)
    best = (P.sum(-2).amax(-1) * P.sum(-1).amax(-1)).sqrt()
    for _ in range(iterations):
        image = P.mT @ (P @ w)
        best = torch.minimum(best, (image / w).amax((-2, -1)).sqrt())
        # the floor keeps w positive where columns vanish; any positive w gives a bound
        w = image / image.amax(-2, keepdim=True).clamp(min=smallest.tiny)
        w = w.clamp(min=smallest.eps**2)
    return best


def _heads_of(
    layer: Attention | CrossAttention, X: Tensor
) -> Iterator[tuple[Attention, Tensor | None, Callable]]:
    """Yield the attention, the roots of its output and its terms, for each sequence of X."""
    left = None
    for number, (one, tokens) in enumerate(sequences_of(layer, X, cross=True)):
        attention = one.attention if isinstance(one, CrossAttention) else one
        left = left if number else output_roots(attention)  # the same for all sequences
        yield attention, left, _terms_at(one, tokens)


def _terms_at(layer: Attention | CrossAttention, X: Tensor) -> Callable[[Tensor | None], Tensor]:
    """Return the terms at one X (n, d), as a function of R_h, for R_h·f_h in place of f_h."""
    attention = layer.attention if isinstance(layer, CrossAttention) else layer
    queries, keys, values = layer.project(X)  # (heads, n, k), (heads, n, k), (heads, n, p)
    check_scores(queries, keys)
    P = layer.row_weights(queries, keys, slice(0, queries.shape[-2]))  # (heads, n, n)
    # products with weights below the normal numbers are slow, and such weights have lost digits
    P = torch.where(P < torch.finfo(P.dtype).tiny, 0, P)
    # only differences of values and keys matter; centred, their covariances lose fewer digits
    v = values - values.mean(-2, keepdim=True)
    k = keys - keys.mean(-2, keepdim=True)
    own = covariances(P, v, k)  # V C_i Kᵀ
    spread = covariances(P, v, v)
    eps = torch.finfo(P.dtype).eps
    largest_v, largest_k = (x.norm(dim=-1).amax(-1, keepdim=True) for x in (v, k))
    summed = eps * (len(P[0]) + 8 * max(v.shape[-1], k.shape[-1]))  # of a covariance, as a sum
    # weights are wrong by a factor of up to 1 + off, since scores are rounded
    scores = queries.norm(dim=-1).amax(-1, keepdim=True) * keys.norm(dim=-1).amax(-1, keepdim=True)
    off = torch.expm1((2 * eps * (k.shape[-1] + 4) * scores).clamp(max=300))
    about_v, about_k = (_about_the_first(P, x, off) for x in (v, k))
    about_both = (about_v * about_k).sqrt()
    seen = second_moments(P.mT, queries, queries)  # Σ_i P_ij q_i q_iᵀ
    query_root = square_root((attention.scale * attention.query).mT)[:, None]
    key_root = square_root(attention.key.mT)[:, None]
    if attention.rotary is not None:  # the scores are those of turned queries and keys
        query_root, key_root = (
            rotate(root.movedim(1, 2), attention.angles(x.shape[-2])).movedim(2, 1)
            for root, x in ((query_root, queries), (key_root, keys))
        )
    own = own @ query_root.mT  # of norm ‖V C_i A‖
    seen = (1 + off[:, 0]) * _largest_norm(key_root @ seen @ key_root.mT)
    norm_p = (1 + off[:, 0]) * nonnegative_norm_upper(P)
    # what rounding may have taken from the norms of own and of spread
    own_rounding = torch.minimum(summed * largest_v * largest_k + off * about_both, about_both)
    own_rounding = norms(query_root).amax(-1) * own_rounding.amax(-1)
    spread_rounding = torch.minimum(summed * largest_v**2 + off * about_v, about_v).amax(-1)
    moving = layer.terms if isinstance(layer, CrossAttention) else (0, 1, 2)
    there = P.new_tensor([term in moving for term in range(3)])

    def terms(left: Tensor | None) -> Tensor:  # mixing, own query and others' keys, (heads, 3)
        maps = attention.value, own, spread, 1
        if left is not None:
            wide = left[:, None]
            maps = left @ attention.value, wide @ own, wide @ spread @ wide.mT, norms(left)
        value, queries, keys, size = maps
        query = _largest_norm(queries) + size * own_rounding
        key = ((_largest_norm(keys) + size**2 * spread_rounding) * seen).sqrt()
        return there * torch.stack([norms(value) * norm_p, query, key], dim=-1)

    return terms


def _about_the_first(P: Tensor, points: Tensor, off: Tensor) -> Tensor:
    """Return E|x − x_*|² of each row, (heads, n), x_* its likeliest point: at least trace C."""
    # no digits are lost where nearly all weight is on one point, as in differences of moments
    squares = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    first = P.argmax(-1, keepdim=True).expand(*P.shape[:-1], points.shape[-2])
    weights = torch.where(off[..., None] > 1e100, 1, P)  # which key wins is then unknown
    return (1 + off) * (weights * squares.gather(-2, first)).sum(-1)


def _largest_norm(matrices: Tensor) -> Tensor:
    """Return the largest spectral norm among the matrices (heads, n, r, c), shape (heads,)."""
    # few need a decomposition: those whose Frobenius norm is below a known spectral one cannot win
    frobenius = torch.linalg.matrix_norm(matrices)  # (heads, n)
    heads = torch.arange(len(matrices), device=matrices.device)
    best = norms(matrices[heads, frobenius.argmax(-1)])
    head, token = torch.nonzero(frobenius > best[:, None], as_tuple=True)
    if len(head) == 0:
        return best
    others = norms(matrices[head, token])
    return best.scatter_reduce(0, head, others, "amax")
