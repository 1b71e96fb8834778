"""Relatives of softmax attention, as differentiable maps of tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import (
    check_head,
    check_number,
    check_real_tensor,
    check_same_kind,
    check_tokens,
)


def l2_attention_map(
    X: Tensor, query: Tensor, value: Tensor, output: Tensor | None = None
) -> Tensor:
    r"""Return the outputs of L2 self-attention, with query = key (:prf:ref:`thm-zoo-l2`).

    Its scores are minus squared distances (Kim, Papamakarios & Mnih 2021). With
    :math:`A_h = Q_h^\top Q_h/\sqrt k`,

    .. math:: f(X)_i = W^O \Big[ V_h A_h \sum_j P^h_{ij} x_j \Big]_h, \qquad
        P^h_{i\cdot} = \mathrm{softmax}_j\big( -\|Q_h x_i - Q_h x_j\|^2/\sqrt k \big)

    Parameters
    ----------
    X : Tensor, shape (…, n, d)
    query : Tensor, shape (heads, k, d)
    value : Tensor, shape (heads, p, d)
    output : Tensor, shape (q, heads·p), optional
        The matrix W^O; if left out, the heads are concatenated.

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
    >>> equal = torch.tensor([[2.0], [2.0]])
    >>> l2_attention_map(equal, 3 * one, one).flatten()  # A x = 9 · 2
    tensor([18., 18.])
    """
    d = check_tokens(X).shape[-1]
    for name, tensor in (("query", query), ("value", value)):
        check_real_tensor(name, tensor, ndim=3)
        check_same_kind(name, tensor, X, "X")
        if tensor.shape[0] != query.shape[0] or tensor.shape[2] != d:
            raise ValueError(
                f"{name}: expected shape ({query.shape[0]}, …, {d}), got {tuple(tensor.shape)}"
            )
    queries = (X[..., None, :, :] @ query.mT) / query.shape[1] ** 0.25  # (…, heads, n, k)
    squares = queries.square().sum(-1)
    distances = squares[..., :, None] + squares[..., None, :] - 2 * queries @ queries.mT
    P = torch.softmax(-distances, dim=-1)
    back = value @ query.mT / query.shape[1] ** 0.25  # (heads, p, k): V_h Q_hᵀ/k^{1/4}
    joined = (P @ queries @ back.mT).transpose(-3, -2).flatten(-2)
    return joined if output is None else joined @ output.mT


def sigmoid_attention_map(X: Tensor, A: Tensor, V: Tensor, *, bias: float | None = None) -> Tensor:
    r"""Return the outputs of sigmoid attention: keys do not compete (:prf:ref:`thm-zoo-sigmoid`).

    It is studied by Ramapuram et al. (2024).

    .. math:: f(X)_i = V \sum_j \frac{x_j}{1 + e^{-(Ax_i)\cdot x_j - b}}

    Parameters
    ----------
    X : Tensor, shape (…, n, d)
    A : Tensor, shape (d, d)
    V : Tensor, shape (p, d)
    bias : float, optional
        The bias b, −log n if left out; a token with scores of zero then gives about one in all.

    Returns
    -------
    Tensor, shape (…, n, p)

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, or a tensor is not finite and real.

    Examples
    --------
    >>> import torch
    >>> X = torch.tensor([[2.0]])
    >>> sigmoid_attention_map(X, torch.zeros(1, 1), torch.eye(1))  # half the weight
    tensor([[1.]])
    """
    _check_matrices(X, A, V)
    b = -math.log(X.shape[-2]) if bias is None else check_number("bias", bias)
    return torch.sigmoid(X @ A.mT @ X.mT + b) @ X @ V.mT


def linear_attention_map(X: Tensor, A: Tensor, V: Tensor) -> Tensor:
    r"""Return the outputs of linear attention, with scores as weights (:prf:ref:`thm-zoo-linear`).

    It is the attention of Katharopoulos et al. (2020) with the identity for features.

    .. math:: f(X)_i = \frac1n V \sum_j \big((Ax_i)\cdot x_j\big)\, x_j

    Parameters
    ----------
    X : Tensor, shape (…, n, d)
    A : Tensor, shape (d, d)
    V : Tensor, shape (p, d)

    Returns
    -------
    Tensor, shape (…, n, p)

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, or a tensor is not finite and real.

    Examples
    --------
    >>> import torch
    >>> X = torch.tensor([[1.0], [3.0]])
    >>> linear_attention_map(X, torch.eye(1), torch.eye(1)).flatten()  # x (1 + 9)/2
    tensor([ 5., 15.])
    """
    _check_matrices(X, A, V)
    return X @ A.mT @ (X.mT @ X / X.shape[-2]) @ V.mT


def cosine_attention_map(
    X: Tensor, query: Tensor, key: Tensor, V: Tensor, *, temperature: float = 10.0
) -> Tensor:
    r"""Return the outputs of cosine attention, a softmax of cosines (:prf:ref:`thm-zoo-cosine`).

    The cosines are those of queries and keys, as in Qi et al. (2023); values are not normalised.

    .. math:: s_{ij} = \tau\,\frac{Qx_i}{\|Qx_i\|}\cdot\frac{Kx_j}{\|Kx_j\|}

    Parameters
    ----------
    X : Tensor, shape (…, n, d)
    query, key : Tensor, shape (k, d)
    V : Tensor, shape (p, d)
    temperature : float
        The temperature τ, which is the largest score.

    Returns
    -------
    Tensor, shape (…, n, p)

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, a tensor is not finite and real, or a query or key is zero.

    Examples
    --------
    >>> import torch
    >>> X = torch.tensor([[1.0, 0.0], [5.0, 0.0]])  # the same direction: equal weights
    >>> cosine_attention_map(X, torch.eye(2), torch.eye(2), torch.eye(2))[:, 0]
    tensor([3., 3.])
    """
    d = check_tokens(X).shape[-1]
    for name, matrix in (("query", query), ("key", key), ("V", V)):
        check_real_tensor(name, matrix, ndim=2)
        check_same_kind(name, matrix, X, "X")
        if matrix.shape[1] != d or (name == "key" and key.shape != query.shape):
            raise ValueError(
                f"{name}: expected {d} columns, and key as query, got {tuple(matrix.shape)}"
            )
    temperature = check_number("temperature", temperature)
    queries = _directions(X @ query.mT)
    keys = _directions(X @ key.mT)
    return torch.softmax(temperature * queries @ keys.mT, dim=-1) @ X @ V.mT


def _directions(images: Tensor) -> Tensor:
    lengths = images.norm(dim=-1, keepdim=True)
    if bool((lengths == 0).any()):
        raise ValueError("X: expected queries and keys other than zero, got a zero")
    return images / lengths


def _check_matrices(X: Tensor, A: Tensor, V: Tensor) -> None:
    """Refuse matrices that do not fit X."""
    check_head(A, V)
    check_tokens(X, len(A))
    check_same_kind("A", A, X, "X")
