r"""Cross-attention, with queries from one sequence, and keys and values from another, the memory.

As a map of both, :math:`f(X, M)_i = \sum_j P_{ij} V y_j` with
:math:`P_{i\cdot} = \mathrm{softmax}_j((Ax_i + c)\cdot y_j)` for one head. Of the three terms of
:prf:ref:`thm-jacobian`, only *own query*, the query term :math:`V C_i A h_i`, is left if the
queries' tokens move; if the memory moves, *mixing* and *others' keys*, the key term, are left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipcore._checks import check_fits, check_scores, check_tokens, require
from lipcore.autodiff import AutogradJacobian
from lipcore.jacobian import AttentionJacobian
from lipcore.operators import LinearOperator

#: Layers with up to this many attention weights are measured in float64, whatever their dtype.
FLOAT64_ENTRIES = 2**26
#: What a map of one of two sequences has from its layer, as it is.
_OF_THE_LAYER = ("heads", "output_dim", "output", "sinks", "not_bilinear")
_OF_THE_LAYER += ("row_weights", "join_heads")


class AttentionMap:
    """What self-attention and cross-attention do alike, from queries, keys and values on."""

    def weights(self, X: Tensor) -> Tensor:
        """Return the weights P, (…, heads, queries, keys); rows sum to one, or less with sinks."""
        queries, keys, _ = self.project(self.check_input(X))
        check_scores(queries, keys)
        return self.row_weights(queries, keys, slice(0, queries.shape[-2]))

    def __call__(self, X: Tensor) -> Tensor:
        """Return f(X), shape (…, queries, output_dim); differentiable in X."""
        queries, keys, values = self.project(self.check_input(X))
        check_scores(queries, keys)
        P = self.row_weights(queries, keys, slice(0, queries.shape[-2]))
        return self.join_heads(self.gated(P @ values, X), bias=True)

    def gated(self, heads: Tensor, X: Tensor) -> Tensor:
        """Return the outputs of the heads, (…, heads, queries, p), times the gates at X."""
        gates = self.gates(X)
        return heads if gates is None else gates * heads

    def jacobian(self, X: Tensor) -> LinearOperator:
        """Return the Jacobian at X as an operator, an :class:`~lipcore.jacobian.AttentionJacobian`.

        With a softcap or normalised queries or keys it is an
        :class:`~lipcore.autodiff.AutogradJacobian`.
        """
        return (AutogradJacobian if self.not_bilinear else AttentionJacobian)(self, X)

    def in_float64(self, X: Tensor) -> tuple[AttentionMap, Tensor] | None:
        """Return the map and X in float64, or None where it would take long (``FLOAT64_ENTRIES``)."""
        queries, keys = (tokens.shape[-2] for tokens in self.pair(X))
        entries = X[..., 0, 0].numel() * self.heads * queries * keys
        is_small = entries <= FLOAT64_ENTRIES and X.device.type != "mps"  # which has no float64
        return (self.to(torch.float64), X.double()) if is_small else None


@dataclass(frozen=True, eq=False, repr=False)
class CrossAttention(AttentionMap):
    """Cross-attention as a map of the queries' tokens, with a fixed memory, or the reverse.

    :meth:`lipcore.attention.Attention.cross` makes one. Masks and biases of the layer have shape
    (queries, keys), and rotary positions count each sequence from zero.

    Parameters
    ----------
    attention : Attention
        A layer without ``causal`` and ``window``; a mask can say which keys each query sees.
    memory, queries : Tensor, shape (…, n, d)
        Exactly one of them, the one that is held fixed. Its batch is that of the map's inputs, or
        empty.

    Examples
    --------
    >>> import torch
    >>> from lipcore import Attention, local_lipschitz
    >>> layer = Attention.from_matrices(torch.eye(2), torch.eye(2))
    >>> memory = torch.eye(2)
    >>> f = layer.cross(memory=memory)
    >>> f(torch.zeros(1, 2))  # a query without a preference gets the mean
    tensor([[0.5000, 0.5000]])
    >>> round(float(local_lipschitz(f, torch.zeros(1, 2))), 4)  # ‖C‖, the covariance of the memory
    0.5
    >>> round(float(local_lipschitz(layer.cross(queries=torch.zeros(1, 2)), memory)), 4)
    0.7071
    """

    attention: object
    memory: Tensor | None = None
    queries: Tensor | None = None

    is_narrow = False

    def __post_init__(self) -> None:
        is_one = (self.memory is None) != (self.queries is None)
        require(is_one, "memory, queries", "one of them, the fixed one", "none or both")
        layer = self.attention
        got = f"causal={layer.causal}, window={layer.window}: a mask can say who sees what"
        is_free = not layer.causal and layer.window is None
        require(is_free, "attention", "one for two sequences", got)
        name, d = ("queries", layer.d) if self.memory is None else ("memory", layer.key.shape[2])
        check_tokens(self._fixed, d, name, layer)

    def __repr__(self) -> str:
        """Return one line with the layer and what is held fixed."""
        moving, held = ("queries", "memory") if self.queries is None else ("memory", "queries")
        return f"{self.attention!r} of {moving}, at {held} of shape {tuple(self._fixed.shape)}"

    @property
    def _fixed(self) -> Tensor:
        return self.memory if self.queries is None else self.queries

    def __getattr__(self, name: str):
        """Return what the map has from its layer, whichever sequence moves."""
        if name in _OF_THE_LAYER:
            return getattr(self.attention, name)
        raise AttributeError(f"CrossAttention has no attribute {name!r}")

    @property
    def d(self) -> int:
        """The dimension of the tokens that come in."""
        return self.attention.d if self.queries is None else self.attention.key.shape[2]

    @property
    def moving(self) -> tuple[str, ...]:
        """The parts of the layer that change with X."""
        return ("query", "gate") if self.queries is None else ("key", "value")

    @property
    def terms(self) -> tuple[int, ...]:
        """The terms of the Jacobian that are left: 0 is mixing, 1 own query, and 2 others' keys."""
        return (1,) if self.queries is None else (0, 2)

    def to(self, *args, **kwargs) -> CrossAttention:
        """Move or convert every tensor, as :meth:`torch.Tensor.to` does."""
        fixed = {"memory": self.memory, "queries": self.queries}
        moved = {name: x if x is None else x.to(*args, **kwargs) for name, x in fixed.items()}
        return CrossAttention(self.attention.to(*args, **kwargs), **moved)

    def pair(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries' tokens and the memory, of which one is X, with the same batch."""
        fixed = self._fixed.expand(*X.shape[:-2], *self._fixed.shape[-2:])
        return (X, fixed) if self.queries is None else (fixed, X)

    def check_input(self, X: Tensor) -> Tensor:
        """Return X if this map can take it, else raise."""
        check_tokens(X, self.d, layer=self.attention)
        batch = tuple(self._fixed.shape[:-2])
        require(batch in ((), X.shape[:-2]), "X", f"the fixed one's batch {batch}", tuple(X.shape))
        check_fits(self.attention, *self.pair(X))
        return X

    def project(self, X: Tensor, *, value_bias: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries times λ, keys, values: :meth:`lipcore.attention.Attention.project`."""
        return self.attention.project(*self.pair(X), value_bias=value_bias)

    def gates(self, X: Tensor) -> Tensor | None:
        """Return the gates at the queries' tokens, (…, heads, queries, 1 or p), or None."""
        return self.attention.gates(self.pair(X)[0])

    def select_sequences(self, batch: tuple[int, ...], index) -> CrossAttention:
        """Return the map for some sequences of a batch, with what belongs to these alone."""
        fixed = {"memory": self.memory, "queries": self.queries}
        chosen = {n: x[index] for n, x in fixed.items() if x is not None and x.ndim > 2}
        return replace(self, attention=self.attention.select_sequences(batch, index), **chosen)
