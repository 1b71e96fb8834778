"""Jacobians as linear operators, in closed form for attention and by autodiff for any other map.

Each member of the batch has its own Jacobian. Arguments that do not fit raise a ValueError or a
TypeError.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lipcore import guard
from lipcore._checks import check_count, check_real_tensor, check_same_kind, check_scores
from lipcore.autodiff import Derivative, arranged, one_line
from lipcore.masks import kept, mask_scores_
from lipcore.operators import LinearOperator

#: Attention weights of up to this many bytes are stored; every product recomputes larger ones.
WEIGHTS_BYTES = 2**28
#: Bytes of one tile of attention weights: it should stay in the cache between its products.
TILE_BYTES = 2**22
#: The same on an accelerator, where few large products are faster.
ACCELERATOR_TILE_BYTES = 2**26
#: A tile has at least this many rows, where n allows: thinner matrix products waste the machine.
TILE_ROWS = 64


class AttentionJacobian(LinearOperator):
    r"""Jacobian of :class:`~lipcore.attention.Attention` at X (:prf:ref:`thm-jacobian`).

    With :math:`m_i = \sum_j P_{ij} x_j`, :math:`C_i = \sum_j P_{ij}(x_j - m_i)(x_j - m_i)^\top`,
    for one head,

    .. math:: (D_X f[H])_i = V\Big( \underbrace{\textstyle\sum_j P_{ij} h_j}_{\text{mixing}}
        + \underbrace{C_i A h_i}_{\text{own query}} + \underbrace{\textstyle\sum_j
        P_{ij} (x_j - m_i)\,(A x_i + c)\cdot h_j}_{\text{others' keys}} \Big).

    The last two are also called the query term and the key term. The operator is applied in the
    space of queries, keys and values. The tangent of the scores is
    :math:`S_{ij} = \dot q_i\cdot k_j + q_i\cdot\dot k_j`, and the last two terms are
    :math:`\sum_j P_{ij} (S_{ij} - \bar s_i) v_j`, with :math:`\bar s_i` the mean of :math:`S_i`
    under P_i. P is visited in tiles, a few heads and some rows at a time. It is kept where it is
    small (``WEIGHTS_BYTES``); otherwise each product recomputes it, and memory is linear in n.
    Masks and biases only change P, and sinks only the sums of its rows.

    Parameters
    ----------
    attention : Attention
    X : Tensor, shape (…, n, d)
    store : bool, optional
        Whether to keep P, whatever its size.

    Examples
    --------
    >>> import torch
    >>> from lipcore import Attention
    >>> J = Attention.from_matrices(torch.zeros(1, 1), torch.eye(1)).jacobian(torch.randn(3, 1))
    >>> J.matvec(torch.ones(3, 1)).flatten()   # scores are constant: only mixing is left
    tensor([1., 1., 1.])
    """

    @torch.no_grad()
    def __init__(self, attention, X: Tensor, *, store: bool | None = None) -> None:
        if attention.beyond:
            got = ", ".join(attention.beyond)
            raise ValueError(
                f"attention: expected scores (A x + c)·x alone, got {got}: use .jacobian"
            )
        X = attention.check_input(X).detach()
        *batch, n, d = X.shape
        self._describe(X, batch, (n, d), (n, attention.output_dim))
        projected = attention.project(X, value_bias=attention.sinks is not None)
        self._weigh(attention, projected, store)
        is_light = 2 * len(self._q) * n * d * X.element_size() <= TILE_BYTES
        self._few_tokens = 4 * n <= self._q.shape[-1] and is_light and attention.rotary is None
        self._weights = self._projections()

    def _weigh(self, attention, projected, store: bool | None = None) -> None:
        """Work out P from queries, keys and values, (…, heads, n, k | k | p)."""
        self.attention = attention
        # one block for each member of the batch and each head: (batch·heads, n, k | k | p)
        self._q, self._k, self._v = (part.flatten(0, -3).contiguous() for part in projected)
        check_scores(self._q, self._k)
        blocks, n = self._q.shape[:2]
        keys = self._k.shape[1]
        size = self._q.element_size()
        self._cuts = cut_into_tiles(blocks, n, size, self.device.type, attention.causal, keys)
        self._P = None
        self._heaviest = self._q.new_empty(blocks, n, 1, dtype=torch.long)  # argmax_j P_ij
        if store is None:
            store = blocks * n * keys * size <= WEIGHTS_BYTES
        tiles = []
        for heads, rows, _, P in self._tiles():
            self._heaviest[heads, rows] = P.argmax(-1, keepdim=True)
            if store:
                tiles.append(P)
        self._P = tiles if store else None

    def _projections(self) -> list[tuple[Tensor, list[int]]]:
        """Return matrices (heads·width, d) that map H to the tangents of q, k, v, and the widths.

        For few tokens it is cheaper to map H to the products of these tangents with the n keys and
        queries, by the rows Aᵀx_j and A x_i + c of a matrix (…, heads·2n, d).
        """
        Q = self.attention.scale * self.attention.query
        K = self.attention.key
        V = self.attention.value
        if not self._few_tokens:
            return [(torch.cat([Q, K, V], dim=-2).flatten(0, 1), [x.shape[-2] for x in (Q, K, V)])]
        q, k = (x.unflatten(0, (*self.batch_shape, -1)) for x in (self._q, self._k))
        Q = torch.einsum("...hjk,hkd->...hjd", k, Q)
        K = torch.einsum("...hik,hkd->...hid", q, K)
        both = torch.cat([Q, K], dim=-2).flatten(-3, -2)
        return [(both, [q.shape[-2]] * 2), (V.flatten(0, 1), [V.shape[-2]])]

    def _tiles(self) -> Iterator[tuple[slice, slice, slice, Tensor]]:
        """Yield (heads, rows, seen, P[heads, rows, seen]) for one tile after the other."""
        for index, (heads, rows, seen) in enumerate(self._cuts):
            if self._P is not None:
                yield heads, rows, seen, self._P[index]
                continue
            P = self._q[heads, rows] @ self._k[heads, seen].mT
            blocks = ((*self.batch_shape, self.attention.heads), heads)
            P = mask_scores_(self.attention, P, rows, blocks)
            left = kept(self.attention, P, blocks)
            torch.softmax(P, dim=-1, out=P)
            if left is not None:
                P *= left
            # far below rounding, products would be subnormal numbers, ten times slower to work with
            torch.threshold_(P, math.sqrt(torch.finfo(self.dtype).tiny), 0.0)
            yield heads, rows, seen, P

    @torch.no_grad()
    def matvec(self, H: Tensor) -> Tensor:
        """Return D_X f[H], shape (…, n, output_dim)."""
        self._check("H", H, self.input_shape)
        parts = [self._split(H @ W.mT).split(widths, dim=-1) for W, widths in self._weights]
        dq, dk, dv = itertools.chain.from_iterable(parts)
        dq = self.attention.rotated(dq)
        dk = self.attention.rotated(dk)
        out = torch.empty_like(self._v)
        for heads, rows, seen, P in self._tiles():
            if self._few_tokens:
                S = (dq[heads] + dk[heads].mT).contiguous()  # see _softmax_tangent_
            else:
                S = torch.bmm(dq[heads, rows], self._k[heads, seen].mT)  # own query q̇·k
                S.baddbmm_(self._q[heads, rows], dk[heads, seen].mT)  # others' keys q·k̇
            dP = self._softmax_tangent_(P, S, self._heaviest[heads, rows])
            tile = torch.bmm(dP, self._v[heads, seen], out=out[heads, rows])
            tile.baddbmm_(P, dv[heads, seen])  # mixing
        return self.attention.join_heads(out.unflatten(0, (*self.batch_shape, -1)))

    @torch.no_grad()
    def rmatvec(self, G: Tensor) -> Tensor:
        """Return (D_X f)ᵀ[G], shape (…, n, d), by transposing each step of :meth:`matvec`."""
        self._check("G", G, self.output_shape)
        output = self.attention.output
        g = self._split(G if output is None else G @ output)
        dv = torch.empty_like(self._v)
        width = g.shape[1] if self._few_tokens else self._q.shape[-1]
        dq, dk = self._q.new_empty(2, *g.shape[:2], width)
        for heads, rows, seen, P in self._tiles():
            # the first tile of these heads sees all their keys, and the others are added to it
            add = float(rows.stop < g.shape[1])
            dv[heads, seen].baddbmm_(P.mT, g[heads, rows], beta=add)  # mixing
            S = torch.bmm(g[heads, rows], self._v[heads, seen].mT)
            dP = self._softmax_tangent_(P, S, self._heaviest[heads, rows])
            if self._few_tokens:
                dq[heads] = dP
                dk[heads] = dP.mT
            else:
                torch.bmm(dP, self._k[heads, seen], out=dq[heads, rows])  # own query
                dk[heads, seen].baddbmm_(dP.mT, self._q[heads, rows], beta=add)  # others' keys
        dq = self.attention.rotated(dq, back=True)
        dk = self.attention.rotated(dk, back=True)
        parts = iter((dq, dk, dv))
        own = [torch.cat([next(parts) for _ in widths], dim=-1) for _, widths in self._weights]
        return sum(self._joined(x) @ W for x, (W, _) in zip(own, self._weights, strict=True))

    def _softmax_tangent_(self, P: Tensor, S: Tensor, heaviest: Tensor) -> Tensor:
        """Write P_ij (S_ij − s̄_i), the derivative of softmax and a symmetric map, over S.

        S must be contiguous: PyTorch's kernel writes wrong numbers into any other layout.
        """
        if self.attention.sinks is None:  # with a sink, S is relative to its zero
            S -= S.gather(-1, heaviest)  # relative to the heaviest key: settled rows lose no digits
        return torch._softmax_backward_data(S, P, -1, S.dtype, grad_input=S)

    def _split(self, tokens: Tensor) -> Tensor:
        """Reshape (…, n, heads·p) to (batch·heads, n, p)."""
        return tokens.unflatten(-1, (self.attention.heads, -1)).transpose(-3, -2).flatten(0, -3)

    def _joined(self, blocks: Tensor) -> Tensor:
        """Reshape (batch·heads, n, p) to (…, n, heads·p)."""
        return blocks.unflatten(0, (*self.batch_shape, -1)).transpose(-3, -2).flatten(-2)


def cut_into_tiles(
    blocks: int,
    n: int,
    itemsize: int,
    device: str = "cpu",
    causal: bool = False,
    keys: int | None = None,
) -> list[tuple[slice, slice, slice]]:
    """Cut P (blocks, n, keys) into tiles (heads, rows, all keys that they see), last rows first."""
    keys = n if keys is None else keys
    entries = (TILE_BYTES if device == "cpu" else ACCELERATOR_TILE_BYTES) // itemsize
    height = min(n, max(TILE_ROWS, entries // keys))
    if causal:  # a tile ends at the last key that its rows see: tall tiles visit masked keys
        height = min(height, max(4 * TILE_ROWS, n // 8))
    width = min(blocks, max(1, entries // (height * keys)))
    heads = [slice(first, min(first + width, blocks)) for first in range(0, blocks, width)]
    rows = [slice(first, min(first + height, n)) for first in reversed(range(0, n, height))]
    return [(h, r, slice(0, r.stop if causal else keys)) for h, r in itertools.product(heads, rows)]


class AutogradJacobian(LinearOperator):
    """The Jacobian of any differentiable map at X, by automatic differentiation.

    The map is checked once (:mod:`lipcore.guard`). If its derivative cannot be trusted, it is
    refused with the cause in one line: members of the batch that influence one another, gradients
    cut inside, random numbers, or modules that change. Fused attention runs as PyTorch's
    mathematical kernel, and code wrapped by ``torch.compile`` runs uncompiled.

    Parameters
    ----------
    fn : callable
        Maps (…, n, d) to (…, …), with the same batch in front. A module must be in evaluation
        mode.
    X : Tensor, shape (…, n, d)
    event_dims : int
        How many of the last dimensions of X are one input; those before are a batch, whose members
        must not influence one another. 3 for images (…, channels, height, width).
    layout : {"NLE", "LNE"}
        With "LNE", the map takes and gives (n, batch, d), as :class:`torch.nn.MultiheadAttention`
        does without ``batch_first``. The Jacobian's batch comes first all the same.

    Raises
    ------
    ValueError, TypeError, RuntimeError
        If the map is refused, or fails at X.
    NotImplementedError
        If PyTorch has no derivative of an operation in it.

    Examples
    --------
    >>> import torch
    >>> AutogradJacobian(torch.sin, torch.zeros(2, 1)).matvec(torch.ones(2, 1)).flatten()
    tensor([1., 1.])
    """

    def __init__(
        self,
        fn: Callable[[Tensor], Tensor],
        X: Tensor,
        *,
        event_dims: int = 2,
        layout: str = "NLE",
    ) -> None:
        if not callable(fn):
            raise TypeError(f"fn: expected a callable, got {type(fn).__name__}")
        guard.refuse_training(fn)
        X, fn = arranged(fn, X, layout)
        batch = X.ndim - check_count("event_dims", event_dims)
        if batch < 0:
            expected = f"at most the {X.ndim} dimensions of X"
            raise ValueError(f"event_dims: expected {expected}, got {event_dims}")
        with guard.unchanged(X.device), one_line():
            self._derivative = Derivative(fn, X)
        value = self._derivative.value
        if not isinstance(value, Tensor):
            got = f"{type(value).__name__}: wrap it, for example lambda X: module(X)[0]"
            raise TypeError(f"fn: expected a map that returns a tensor, got {got}")
        check_real_tensor("fn(X)", value)
        check_same_kind("fn(X)", value, X, "X")
        if value.shape[:batch] != X.shape[:batch]:
            expected = f"an output that begins with the batch {tuple(X.shape[:batch])}"
            cure = "if that is no batch, pass event_dims="
            got = f"shape {tuple(value.shape)}: {cure}{event_dims + 1}"
            raise ValueError(f"fn: expected {expected}, got {got}")
        self._describe(X, X.shape[:batch], X.shape[batch:], value.shape[batch:])
        guard.check_derivative(self._derivative, batch)

    def matvec(self, H: Tensor) -> Tensor:
        """Return J[H]."""
        return self._derivative.push(self._check("H", H, self.input_shape))

    def rmatvec(self, G: Tensor) -> Tensor:
        """Return Jᵀ[G]."""
        return self._derivative.pull(self._check("G", G, self.output_shape))
