"""How the constants of a model's layers grow with the text, and which term carries them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from lab.models.language_model import LanguageModel
from lab.models.texts import sequences
from lipcore.attention import Attention
from lipcore.lipschitz import head_and_term_shares, local_lipschitz
from lipcore.spectral import SpectralNorm

#: The tolerance of σ where shares of tokens or terms are read off its singular vectors, whose error
#: is about the square root of the relative error of σ, and larger where a second value is close.
SHARES = 1e-6


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
    """Return local constants of layers on consecutive pieces of a text, at several lengths.

    Parameters
    ----------
    model : LanguageModel
    ids : Tensor of integers, shape (tokens,)
        The text.
    lengths : iterable of int
    layers : sequence of int, optional
        All if left out.
    count, start
        The number of pieces and their start, as for :func:`lab.models.texts.sequences`.
    tol : float
        The relative tolerance; values are lower by at most about this much.

    Returns
    -------
    ndarray, shape (layers, lengths, count)

    Raises
    ------
    ValueError, IndexError
        If no layer or length is given, the text is too short, a length exceeds the model's
        positions, or there is no such layer.
    RuntimeError
        If a constant did not converge to the tolerance.
    """
    layers = list(range(model.n_layers) if layers is None else layers)
    lengths = list(lengths)
    if not (layers and lengths):
        raise ValueError(
            f"layers, lengths: expected at least one of each, got {layers} and {lengths}"
        )
    attentions = {layer: model.attention(layer) for layer in layers}
    constants = np.empty((len(layers), len(lengths), count))
    for column, n in enumerate(lengths):
        pieces = sequences(model, ids, n, count, start=start)
        states = model.all_hidden_states(pieces, up_to=max(layers))
        for row, layer in enumerate(layers):
            found = local_lipschitz(attentions[layer], states[layer], tol=tol)
            if not bool(found.converged.all()):
                raise RuntimeError(
                    f"tol: expected every constant at n={n} to converge to {tol:g}, some did not"
                )
            constants[row, column] = found.value.numpy(force=True)
    return constants


def term_shares(attention: Attention, X: Tensor, found: SpectralNorm) -> Tensor:
    r"""Return the share of each term (:prf:ref:`thm-jacobian`) in the worst response.

    With the top singular pair, :math:`D_Xf[H] = \sigma G`, the three numbers
    :math:`\langle G, \mathrm{term}[H]\rangle/\sigma` add up to one. A share is negative where a
    term works against the others.

    Parameters
    ----------
    attention : Attention
    X : Tensor, shape (…, n, d)
    found : SpectralNorm
        ``local_lipschitz(attention, X, tol=SHARES)``.

    Returns
    -------
    Tensor, shape (…, 3)
        Mixing, own query (the query term), and others' keys (the key term).

    Raises
    ------
    ValueError
        If a constant is zero.

    Examples
    --------
    >>> import torch
    >>> f = Attention.from_matrices(torch.zeros(2, 2), torch.eye(2))  # no scores: mixing alone
    >>> X = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    >>> term_shares(f, X, local_lipschitz(f, X)).round(decimals=3).tolist()
    [1.0, 0.0, 0.0]
    """
    if not bool((found.value > 0).all()):
        raise ValueError("found: expected constants other than zero, of which there are no shares")
    shares = head_and_term_shares(attention, X, found.left, found.right).sum(-2)
    return shares / found.value[..., None]


def column_means(P: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the largest mean and root mean square of a column of P (:prf:ref:`thm-why-lever`).

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
    >>> P = torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # all the weight is on the first token
    >>> [float(part) for part in column_means(P)]
    [1.0, 1.0]
    """
    return P.mean(-2).amax(-1), P.square().mean(-2).sqrt().amax(-1)
