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

from lipcore._checks import check_same_kind, check_scores, check_tokens
from lipcore.gates import GatedJacobian, head_outputs, without_gates
from lipcore.jacobian import AttentionJacobian, AutogradJacobian
from lipcore.masks import check_fits
from lipcore.masks import members as members_of
from lipcore.operators import LinearOperator


@dataclass(frozen=True, eq=False, repr=False)
class CrossAttention:
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
        if (self.memory is None) == (self.queries is None):
            got = "none" if self.memory is None else "both"
            raise ValueError(f"memory, queries: expected one of them, the fixed one, got {got}")
        if self.attention.causal or self.attention.window is not None:
            cure = "say with a mask of shape (queries, keys) who sees what"
            got = "causal=True" if self.attention.causal else f"window={self.attention.window}"
            raise ValueError(f"attention: expected one for two sequences, got {got}: {cure}")
        name = "queries" if self.memory is None else "memory"
        d = self.attention.d if self.memory is None else self.attention.key.shape[2]
        check_tokens(self._fixed, d, name=name)
        check_same_kind(name, self._fixed, self.attention.query, "the attention's weights")

    def __repr__(self) -> str:
        """Return one line with the layer and what is held fixed."""
        moving = "queries" if self.queries is None else "memory"
        held = "memory" if self.queries is None else "queries"
        return f"{self.attention!r} of {moving}, at {held} of shape {tuple(self._fixed.shape)}"

    @property
    def _fixed(self) -> Tensor:
        return self.memory if self.queries is None else self.queries

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.attention.heads

    @property
    def d(self) -> int:
        """The dimension of the tokens that come in."""
        return self.attention.d if self.queries is None else self.attention.key.shape[2]

    @property
    def output_dim(self) -> int:
        """The dimension of the tokens that go out."""
        return self.attention.output_dim

    @property
    def output(self) -> Tensor | None:
        """The output projection, or None."""
        return self.attention.output

    @property
    def sinks(self) -> Tensor | None:
        """The scores of the attention sinks, keys with value zero, or None."""
        return self.attention.sinks

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
        check_tokens(X, self.d)
        check_same_kind("X", X, self.attention.query, "the attention's weights")
        batch = self._fixed.shape[:-2]
        if batch and batch != X.shape[:-2]:
            expected = f"the batch {tuple(batch)} of what is held fixed"
            raise ValueError(f"X: expected {expected}, got shape {tuple(X.shape)}")
        check_fits(self.attention, *self.pair(X))
        return X

    def project(self, X: Tensor, *, value_bias: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries times λ, keys, values: :meth:`lipcore.attention.Attention.project`."""
        return self.attention.project(*self.pair(X), value_bias=value_bias)

    def row_weights(self, queries: Tensor, keys: Tensor, rows: slice) -> Tensor:
        """Return the weights P of the given rows."""
        return self.attention.row_weights(queries, keys, rows)

    def weights(self, X: Tensor) -> Tensor:
        """Return the attention weights P, shape (…, heads, queries, keys)."""
        queries, keys, _ = self.project(self.check_input(X))
        check_scores(queries, keys)
        return self.row_weights(queries, keys, slice(0, queries.shape[-2]))

    def __call__(self, X: Tensor) -> Tensor:
        """Return the output, shape (…, queries, output_dim); differentiable in X."""
        queries, keys, values = self.project(self.check_input(X))
        check_scores(queries, keys)
        P = self.row_weights(queries, keys, slice(0, queries.shape[-2]))
        return self.attention.join_heads(self.gated(P @ values, X), bias=True)

    def gates(self, X: Tensor) -> Tensor | None:
        """Return the gates at the queries' tokens, (…, heads, queries, 1 or p), or None."""
        return self.attention.gates(self.pair(X)[0])

    def gated(self, heads: Tensor, X: Tensor) -> Tensor:
        """Return the outputs of the heads times the gates."""
        return self.attention.gated(heads, self.pair(X)[0])

    def members(self, batch: tuple[int, ...], index) -> CrossAttention:
        """Return the map for some sequences of a batch, by :func:`lipcore.masks.members`."""
        fixed = {"memory": self.memory, "queries": self.queries}
        own = {n: x[index] for n, x in fixed.items() if x is not None and x.ndim > 2}
        return replace(self, attention=members_of(self.attention, batch, index), **own)

    def jacobian(self, X: Tensor) -> LinearOperator:
        """Return the Jacobian at X, a :class:`CrossJacobian` where its formulas cover the layer."""
        if self.attention.gate is not None:
            bare = replace(self, attention=without_gates(self.attention))
            heads = head_outputs(bare, X) if self.queries is None else None
            return GatedJacobian(self.attention, bare.jacobian(X), self.gates(X), heads)
        return (AutogradJacobian if self.attention.beyond else CrossJacobian)(self, X)


class CrossJacobian(AttentionJacobian):
    r"""The Jacobian of a :class:`CrossAttention`, with those of the three terms that it has.

    Parameters
    ----------
    cross : CrossAttention
    X : Tensor, shape (…, n, d)
    store : bool, optional
        Whether to keep P, whatever its size.

    Examples
    --------
    >>> from lipcore import Attention
    >>> f = Attention.from_matrices(torch.zeros(1, 1), torch.eye(1)).cross(queries=torch.ones(1, 1))
    >>> CrossJacobian(f, torch.ones(4, 1)).dense()  # the mean of the memory
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """

    @torch.no_grad()
    def __init__(self, cross: CrossAttention, X: Tensor, *, store: bool | None = None) -> None:
        X = cross.check_input(X).detach()
        attention = cross.attention
        *batch, n, d = X.shape
        projected = cross.project(X, value_bias=attention.sinks is not None)
        self._describe(X, batch, (n, d), (projected[0].shape[-2], cross.output_dim))
        self._weigh(attention, projected, store)
        self._asks = cross.queries is None
        moving = (attention.scale * attention.query,)
        moving = moving if self._asks else (attention.key, attention.value)
        self._widths = [weight.shape[-2] for weight in moving]
        self._moving = torch.cat(moving, dim=-2).flatten(0, 1)

    @torch.no_grad()
    def matvec(self, H: Tensor) -> Tensor:
        """Return D_X f[H], shape (…, queries, output_dim)."""
        self._check("H", H, self.input_shape)
        dx, *dv = self._split(H @ self._moving.mT).split(self._widths, dim=-1)
        dx = self.attention.rotated(dx)
        out = self._q.new_empty(*self._q.shape[:2], self._v.shape[-1])
        for heads, rows, _, P in self._tiles():
            if self._asks:
                S = torch.bmm(dx[heads, rows], self._k[heads].mT)
            else:
                S = torch.bmm(self._q[heads, rows], dx[heads].mT)
            dP = self._softmax_tangent_(P, S, self._heaviest[heads, rows])
            out[heads, rows] = torch.bmm(dP, self._v[heads])
            for moved in dv:
                out[heads, rows] += torch.bmm(P, moved[heads])  # mixing
        return self.attention.join_heads(out.unflatten(0, (*self.batch_shape, -1)))

    @torch.no_grad()
    def rmatvec(self, G: Tensor) -> Tensor:
        """Return (D_X f)ᵀ[G], shape (…, n, d), by transposing each step of :meth:`matvec`."""
        self._check("G", G, self.output_shape)
        output = self.attention.output
        g = self._split(G if output is None else G @ output)
        dx = torch.zeros_like(self._q if self._asks else self._k)
        dv = [] if self._asks else [torch.zeros_like(self._v)]
        for heads, rows, _, P in self._tiles():
            for moved in dv:
                moved[heads].baddbmm_(P.mT, g[heads, rows])
            S = torch.bmm(g[heads, rows], self._v[heads].mT)
            dP = self._softmax_tangent_(P, S, self._heaviest[heads, rows])
            if self._asks:
                torch.bmm(dP, self._k[heads], out=dx[heads, rows])
            else:
                dx[heads].baddbmm_(dP.mT, self._q[heads, rows])
        dx = self.attention.rotated(dx, back=True)
        return self._joined(torch.cat([dx, *dv], dim=-1)) @ self._moving
