"""How the constants of a model's layers grow with the text, and which term carries them."""

from __future__ import annotations

import numpy as np
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
    model: LanguageModel, ids: Tensor, lengths: list, *, layers: list, count: int, tol: float
) -> np.ndarray:
    """Return local constants (layers, lengths, count) on consecutive pieces of a text."""
    attentions = {layer: model.attention(layer) for layer in layers}
    constants = np.empty((len(layers), len(lengths), count))
    for column, n in enumerate(lengths):
        pieces = sequences(model, ids, n, count)
        states = model.all_hidden_states(pieces, up_to=max(layers))
        for row, layer in enumerate(layers):
            found = local_lipschitz(attentions[layer], states[layer], tol=tol)
            constants[row, column] = found.value.numpy(force=True)
    return constants


def term_shares(attention: Attention, X: Tensor, found: SpectralNorm) -> Tensor:
    r"""Return the share of each term (:prf:ref:`thm-jacobian`) in the worst response.

    With the top singular pair, :math:`D_Xf[H] = \sigma G`, the three numbers
    :math:`\langle G, \mathrm{term}[H]\rangle/\sigma` add up to one. A share is negative where a
    term works against the others.

    ``found`` is ``local_lipschitz(attention, X, tol=SHARES)``; the shares (…, 3) are those of
    mixing, own query (the query term), and others' keys (the key term).
    """
    shares = head_and_term_shares(attention, X, found.left, found.right).sum(-2)
    return shares / found.value[..., None]


def column_means(P: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the largest mean and root mean square of a column of P (:prf:ref:`thm-why-lever`).

    .. math:: \max_j \Big(\frac1n\sum_i P_{ij}^2\Big)^{1/2} \le \frac{\|P\|_2}{\sqrt n}
        \le \Big(\max_j \frac1n\sum_i P_{ij}\Big)^{1/2}

    Both have the shape (…) of weights P (…, n, n), whose rows sum to one.
    """
    return P.mean(-2).amax(-1), P.square().mean(-2).sqrt().amax(-1)
