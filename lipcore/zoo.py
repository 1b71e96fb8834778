"""Relatives of softmax attention, as plain differentiable maps of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from lipcore._checks import check_real_tensor, check_same_kind, check_tokens


def l2_attention_map(X: Tensor, query: Tensor, value: Tensor, output: Tensor | None = None) -> Tensor:
    r"""Self-attention with squared distances for scores and query = key (Kim, Papamakarios & Mnih 2021).

    .. math:: f(X)_i = W^O \Big[ V_h A_h \sum_j P^h_{ij} x_j \Big]_h, \qquad
        P^h_{i\cdot} = \mathrm{softmax}_j\big( -\|Q_h x_i - Q_h x_j\|^2/\sqrt k \big), \quad A_h = Q_h^\top Q_h/\sqrt k

    Parameters
    ----------
    X : Tensor, shape (…, n, d)
    query : Tensor, shape (heads, k, d)
    value : Tensor, shape (heads, p, d)
    output : Tensor, shape (q, heads·p), optional
        W^O; left out, the heads are concatenated.

    Returns
    -------
    Tensor, shape (…, n, q) or (…, n, heads·p)

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, or a tensor is not finite and real.

    Examples
    --------
    >>> import torch
    >>> one = torch.ones(1, 1, 1)
    >>> l2_attention_map(torch.tensor([[2.0], [2.0]]), 3 * one, one).flatten()  # equal tokens: A x = 9 · 2
    tensor([18., 18.])
    """
    d = check_tokens(X).shape[-1]
    for name, tensor in (("query", query), ("value", value)):
        check_real_tensor(name, tensor, ndim=3)
        check_same_kind(name, tensor, X, "X")
        if tensor.shape[0] != query.shape[0] or tensor.shape[2] != d:
            raise ValueError(f"{name}: expected shape ({query.shape[0]}, …, {d}), got {tuple(tensor.shape)}")
    queries = (X[..., None, :, :] @ query.mT) / query.shape[1] ** 0.25  # (…, heads, n, k)
    squares = queries.square().sum(-1)
    distances = squares[..., :, None] + squares[..., None, :] - 2 * queries @ queries.mT
    P = torch.softmax(-distances, dim=-1)
    back = value @ query.mT / query.shape[1] ** 0.25  # (heads, p, k): V_h Q_hᵀ/k^{1/4}
    joined = (P @ queries @ back.mT).transpose(-3, -2).flatten(-2)
    return joined if output is None else joined @ output.mT
