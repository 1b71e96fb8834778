"""Relatives of softmax attention, as plain differentiable maps of tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import (
    check_number,
    check_real_tensor,
    check_same_kind,
    check_square,
    check_tokens,
)


def l2_attention_map(
    X: Tensor, query: Tensor, value: Tensor, output: Tensor | None = None
) -> Tensor:
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
    r"""Attention in which keys do not compete: a sigmoid in place of the softmax (Ramapuram et al. 2024).

    .. math:: f(X)_i = V \sum_j \frac{x_j}{1 + e^{-(Ax_i)\cdot x_j - b}}

    Parameters
    ----------
    X : Tensor, shape (…, n, d)
    A : Tensor, shape (d, d)
    V : Tensor, shape (p, d)
    bias : float, optional
        b; −log n if left out, with which a token whose scores are zero gives weight of about one in all.

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
    >>> sigmoid_attention_map(torch.tensor([[2.0]]), torch.zeros(1, 1), torch.eye(1))  # half the weight
    tensor([[1.]])
    """
    scores = _scores(X, A, V)
    b = -math.log(X.shape[-2]) if bias is None else check_number("bias", bias)
    return torch.sigmoid(scores + b) @ X @ V.mT


def linear_attention_map(X: Tensor, A: Tensor, V: Tensor) -> Tensor:
    r"""Attention without any nonlinearity on the scores (Katharopoulos et al. 2020, identity features).

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
        As :func:`sigmoid_attention_map`.

    Examples
    --------
    >>> import torch
    >>> linear_attention_map(torch.tensor([[1.0], [3.0]]), torch.eye(1), torch.eye(1)).flatten()  # x (1 + 9)/2
    tensor([ 5., 15.])
    """
    _scores(X, A, V)
    return X @ A.mT @ (X.mT @ X / X.shape[-2]) @ V.mT


def cosine_attention_map(
    X: Tensor,
    query: Tensor,
    key: Tensor,
    V: Tensor,
    *,
    temperature: float = 10.0,
    epsilon: float = 0.0,
) -> Tensor:
    r"""Softmax attention on cosines of queries and keys (as in Qi et al. 2023, here with values as they are).

    .. math:: s_{ij} = \tau\,\frac{Qx_i}{\|Qx_i\|}\cdot\frac{Kx_j}{\|Kx_j\|}

    Parameters
    ----------
    X : Tensor, shape (…, n, d)
    query, key : Tensor, shape (k, d)
    V : Tensor, shape (p, d)
    temperature : float
        τ, the largest score.
    epsilon : float
        Norms are :math:`\sqrt{\|\cdot\|^2 + \epsilon^2}`: a floor under the length of queries and keys.

    Returns
    -------
    Tensor, shape (…, n, p)

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, a tensor is not finite and real, or a query or key is zero with ``epsilon`` zero.

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
    epsilon, temperature = (
        check_number("epsilon", epsilon, minimum=0),
        check_number("temperature", temperature),
    )
    directions = []
    for matrix in (query, key):
        image = X @ matrix.mT
        length = (image.square().sum(-1, keepdim=True) + epsilon**2).sqrt()
        if bool((length == 0).any()):
            raise ValueError("X: expected queries and keys other than zero, or epsilon > 0")
        directions.append(image / length)
    return torch.softmax(temperature * directions[0] @ directions[1].mT, dim=-1) @ X @ V.mT


def _scores(X: Tensor, A: Tensor, V: Tensor) -> Tensor:
    """Check the arguments, and return (A x_i)·x_j."""
    d = check_tokens(X).shape[-1]
    check_square("A", A)
    check_real_tensor("V", V, ndim=2)
    for name, matrix in (("A", A), ("V", V)):
        check_same_kind(name, matrix, X, "X")
        if matrix.shape[1] != d:
            raise ValueError(f"{name}: expected {d} columns, got {tuple(matrix.shape)}")
    return X @ A.mT @ X.mT
