"""Relatives of softmax attention, as differentiable maps of tokens (…, n, d)."""

import math

import torch
from torch import Tensor

from lipcore._checks import check_head, check_same_kind, check_tokens, require


def l2_attention_map(X: Tensor, query: Tensor, value: Tensor) -> Tensor:
    r"""Return the outputs of L2 self-attention, with query = key (:prf:ref:`thm-zoo-l2`).

    Its scores are minus squared distances (Kim, Papamakarios & Mnih 2021). With
    :math:`A_h = Q_h^\top Q_h/\sqrt k`,

    .. math:: f(X)_i = \Big[ V_h A_h \sum_j P^h_{ij} x_j \Big]_h, \qquad
        P^h_{i\cdot} = \mathrm{softmax}_j\big( -\|Q_h x_i - Q_h x_j\|^2/\sqrt k \big)

    ``query`` has shape (heads, k, d), ``value`` (heads, p, d).
    """
    k = query.shape[-2]
    queries = (X[..., None, :, :] @ query.mT) / k**0.25  # (…, heads, n, k)
    squares = queries.square().sum(-1)
    distances = squares[..., :, None] + squares[..., None, :] - 2 * queries @ queries.mT
    P = torch.softmax(-distances, dim=-1)
    back = value @ query.mT / k**0.25  # (heads, p, k): V_h Q_hᵀ/k^{1/4}
    return (P @ queries @ back.mT).transpose(-3, -2).flatten(-2)


def sigmoid_attention_map(X: Tensor, A: Tensor, V: Tensor, *, bias: float | None = None) -> Tensor:
    r"""Return the outputs of sigmoid attention: keys do not compete (:prf:ref:`thm-zoo-sigmoid`).

    .. math:: f(X)_i = V \sum_j \frac{x_j}{1 + e^{-(Ax_i)\cdot x_j - b}}

    The ``bias`` b is −log n if left out, as in Ramapuram et al. (2024).
    """
    _check_matrices(X, A, V)
    b = -math.log(X.shape[-2]) if bias is None else bias
    return torch.sigmoid(X @ A.mT @ X.mT + b) @ X @ V.mT


def linear_attention_map(X: Tensor, A: Tensor, V: Tensor) -> Tensor:
    r"""Return the outputs of linear attention, with scores as weights (:prf:ref:`thm-zoo-linear`).

    It is the attention of Katharopoulos et al. (2020) with the identity for features.

    .. math:: f(X)_i = \frac1n V \sum_j \big((Ax_i)\cdot x_j\big)\, x_j
    """
    _check_matrices(X, A, V)
    return X @ A.mT @ (X.mT @ X / X.shape[-2]) @ V.mT


def cosine_attention_map(
    X: Tensor, query: Tensor, key: Tensor, V: Tensor, *, temperature: float = 10.0
) -> Tensor:
    r"""Return the outputs of cosine attention, a softmax of cosines (:prf:ref:`thm-zoo-cosine`).

    The cosines are those of queries and keys, as in Qi et al. (2023); values are not normalised.
    The temperature τ is the largest score.

    .. math:: s_{ij} = \tau\,\frac{Qx_i}{\|Qx_i\|}\cdot\frac{Kx_j}{\|Kx_j\|}
    """
    queries = _directions(X @ query.mT)
    keys = _directions(X @ key.mT)
    return torch.softmax(temperature * queries @ keys.mT, dim=-1) @ X @ V.mT


def _directions(images: Tensor) -> Tensor:
    lengths = images.norm(dim=-1, keepdim=True)
    require((lengths > 0).all(), "X", "queries and keys other than zero", "a zero")
    return images / lengths


def _check_matrices(X: Tensor, A: Tensor, V: Tensor) -> None:
    check_head(A, V)
    check_tokens(X, len(A))
    check_same_kind("A", A, X, "X")
