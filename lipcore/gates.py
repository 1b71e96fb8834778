r"""Gates on the heads' outputs, and what they add to the Jacobian.

Gated attention multiplies what head h puts out at token i by numbers between zero and one that the
token itself decides, :math:`g^h_i = \mathrm{sigmoid}(G_h x_i + b_h)`, before the output projection
(Qiu et al. 2025). For heads a(X) without their gates, the derivative is the product rule,

.. math:: D_X(g \odot a)[H] = g \odot D_Xa[H] + a \odot g \odot (1 - g) \odot (G H).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lipcore.operators import LinearOperator

#: How many attention weights are held at a time where only the outputs are wanted.
ENTRIES = 2**23


class GatedJacobian(LinearOperator):
    """The Jacobian of a layer with gates, by the product rule of :mod:`lipcore.gates`.

    Parameters
    ----------
    attention : Attention
    inner : LinearOperator
        The Jacobian of its heads, concatenated, without their gates.
    gates : Tensor, shape (…, heads, n, 1 or p)
    heads : Tensor, shape (…, heads, n, p), optional
        Outputs of the heads before their gates; left out if the gates are held fixed.

    Examples
    --------
    >>> from lipcore import Attention
    >>> one = torch.ones(1, 1, 1)  # values, and gates sigmoid(x), of one token: x sigmoid(x)
    >>> J = Attention(one, one, one, gate=one).jacobian(torch.zeros(1, 1))
    >>> J.matvec(torch.ones(1, 1)).item()
    0.5
    """

    @torch.no_grad()
    def __init__(
        self, attention, inner: LinearOperator, gates: Tensor, heads: Tensor | None = None
    ) -> None:
        output_shape = (inner.output_shape[0], attention.output_dim)
        self._describe(inner, inner.batch_shape, inner.input_shape, output_shape)
        self.attention = attention
        self.inner = inner
        self._gates = gates.detach()
        self._slopes = None
        if heads is not None:
            self._slopes = (self._gates * (1 - self._gates) * heads).detach()

    @torch.no_grad()
    def matvec(self, H: Tensor) -> Tensor:
        """Return D_X f[H], shape (…, n, output_dim)."""
        heads = self._split(self.inner.matvec(self._check("H", H, self.input_shape)))
        heads = self._gates * heads
        if self._slopes is not None:
            heads += self._slopes * per_head(H, self.attention.gate)
        return self.attention.join_heads(heads)

    @torch.no_grad()
    def rmatvec(self, G: Tensor) -> Tensor:
        """Return (D_X f)ᵀ[G], shape (…, n, d)."""
        self._check("G", G, self.output_shape)
        heads = self._split(G if self.attention.output is None else G @ self.attention.output)
        found = self.inner.rmatvec((self._gates * heads).transpose(-3, -2).flatten(-2))
        if self._slopes is None:
            return found
        gate = self.attention.gate
        moved = self._slopes * heads
        moved = moved.sum(-1, keepdim=True) if gate.shape[1] == 1 else moved
        return found + moved.transpose(-3, -2).flatten(-2) @ gate.flatten(0, 1)

    def _split(self, tokens: Tensor) -> Tensor:
        """Reshape (…, n, heads·p) to (…, heads, n, p)."""
        return tokens.unflatten(-1, (self.attention.heads, -1)).transpose(-3, -2)


def without_gates(attention):
    """Return the layer without gates and output projection, so that its heads are concatenated."""
    parts = ("gate", "gate_bias", "output", "output_bias")
    return replace(attention, **dict.fromkeys(parts))


@torch.no_grad()
def head_outputs(layer, X: Tensor) -> Tensor:
    """Return the outputs of the heads before their gates, (…, heads, n, p), in memory linear in n.

    Examples
    --------
    >>> from lipcore import Attention
    >>> head_outputs(Attention.from_matrices(torch.eye(1), torch.eye(1)), torch.ones(2, 1)).shape
    torch.Size([1, 2, 1])
    """
    queries, keys, values = layer.project(layer.check_input(X))
    n = queries.shape[-2]
    height = max(1, ENTRIES // max(1, queries[..., :1, 0].numel() * keys.shape[-2]))
    # written in place: small results kept between large ones would leave holes in the memory
    found = values.new_empty(*queries.shape[:-1], values.shape[-1])
    for start in range(0, n, height):
        rows = slice(start, min(start + height, n))
        found[..., rows, :] = layer.row_weights(queries, keys, rows) @ values
    return found


def per_head(X: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return X (…, n, d) times weight (heads, k, d), in one product: (…, heads, n, k).

    Examples
    --------
    >>> per_head(torch.ones(3, 4), torch.ones(2, 5, 4)).shape
    torch.Size([2, 3, 5])
    """
    projected = (X @ weight.flatten(0, 1).mT).unflatten(-1, weight.shape[:2]).transpose(-3, -2)
    return projected if bias is None else projected + bias[:, None, :]
