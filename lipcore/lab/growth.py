r"""How a layer's constant grows with the text, and which part of its Jacobian carries it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lipcore.attention import Attention
from lipcore.models.language_model import LanguageModel
from lipcore.models.texts import sequences
from lipcore.spectral import SpectralNorm, local_lipschitz

#: Order of the terms in everything that has one entry for each.
TERMS = ("mixing", "own query", "others' keys")


def layer_constants(
    model: LanguageModel,
    ids: Tensor,
    lengths: Iterable[int],
    *,
    layers: Sequence[int] | None = None,
    count: int = 10,
    start: int | torch.Generator = 0,
    tol: float = 1e-2,
) -> np.ndarray:
    r"""Local constants of several layers on consecutive pieces of a text, at several lengths.

    Parameters
    ----------
    model : LanguageModel
    ids : Tensor of integers, shape (tokens,)
        The text.
    lengths : iterable of int
    layers : sequence of int, optional
        All if left out.
    count, start
        As in :func:`lipcore.models.texts.sequences`.
    tol : float
        Relative tolerance; values are lower by at most about so much.

    Returns
    -------
    ndarray, shape (layers, lengths, count)

    Raises
    ------
    ValueError, IndexError
        If no layer or length is given, the text is too short, a length exceeds the model's positions, or there is no
        such layer.
    RuntimeError
        If a constant did not converge to the tolerance.
    """
    layers, lengths = list(range(model.n_layers) if layers is None else layers), list(lengths)
    if not (layers and lengths):
        raise ValueError(
            f"layers, lengths: expected at least one of each, got {layers} and {lengths}"
        )
    attentions = [model.attention(layer) for layer in layers]
    columns = []
    for n in lengths:
        pieces = sequences(model, ids, n, count, start=start)
        if len(layers) == 1:  # nothing above is needed
            entering = [model.hidden_states(layers[0], pieces)]
        else:
            every = model.all_hidden_states(pieces)
            entering = [every[layer] for layer in layers]
        found = [local_lipschitz(f, X, tol=tol) for f, X in zip(attentions, entering, strict=True)]
        if not all(bool(one.converged.all()) for one in found):
            raise RuntimeError(
                f"tol: expected every constant at n={n} to converge to {tol:g}, some did not"
            )
        columns.append([one.value.tolist() for one in found])
    return np.array(columns).swapaxes(0, 1)


def term_shares(attention: Attention, X: Tensor, found: SpectralNorm) -> Tensor:
    r"""Who carries the constant: the share of each of the Jacobian's three terms in the worst response.

    With the top singular pair, :math:`D_Xf[H] = \sigma G`, the three numbers
    :math:`\langle G, \mathrm{term}[H]\rangle/\sigma` add up to one. A share may be negative: a term can work against
    the others.

    Parameters
    ----------
    attention : Attention
    X : Tensor, shape (…, n, d)
    found : SpectralNorm
        ``local_lipschitz(attention, X)``.

    Returns
    -------
    Tensor, shape (…, 3)
        Mixing, own query, others' keys (:data:`TERMS`).

    Raises
    ------
    ValueError
        If a constant is zero.

    Examples
    --------
    >>> import torch
    >>> f = Attention.from_matrices(torch.zeros(2, 2), torch.eye(2))  # no scores: nothing but mixing
    >>> X = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    >>> term_shares(f, X, local_lipschitz(f, X)).round(decimals=3).tolist()
    [1.0, 0.0, 0.0]
    """
    if not bool((found.value > 0).all()):
        raise ValueError("found: expected constants other than zero, of which there are no shares")
    linear = replace(attention, query_bias=None, key_bias=None, value_bias=None)
    queries, keys, values = attention.project(X)
    dq, dk, dv = linear.project(found.right)
    P = attention.weights(X)
    values = values - values.mean(-2, keepdim=True)  # rows of a change of weights sum to zero
    terms = [P @ dv] + [
        (P * scores - P * (P * scores).sum(-1, keepdim=True)) @ values
        for scores in (dq @ keys.mT, queries @ dk.mT)
    ]
    joined = torch.stack([attention.join_heads(term) for term in terms])
    return ((joined * found.left).sum((-2, -1)) / found.value).movedim(0, -1)


def listeners(P: Tensor) -> tuple[Tensor, Tensor]:
    r"""Audience of the best-heard token, as a mean and as a mean square: what brackets ‖P‖₂/√n.

    .. math:: \max_j \Big(\frac1n\sum_i P_{ij}^2\Big)^{1/2} \le \frac{\|P\|_2}{\sqrt n}
        \le \Big(\max_j \frac1n\sum_i P_{ij}\Big)^{1/2}

    Parameters
    ----------
    P : Tensor, shape (…, n, n)
        Attention weights; rows sum to one.

    Returns
    -------
    mean, root_mean_square : Tensor, shape (…)
        :math:`\max_j q_j` and :math:`\max_j p_j`.

    Examples
    --------
    >>> import torch
    >>> P = torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # all look at the first token
    >>> [float(part) for part in listeners(P)]
    [1.0, 1.0]
    """
    return P.mean(-2).amax(-1), P.square().mean(-2).sqrt().amax(-1)
