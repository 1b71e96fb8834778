"""The Jacobian of attention in closed form, as a linear operator whose memory is linear in n.

Each member of the batch has its own Jacobian. Arguments that do not fit raise a ValueError or a
TypeError.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lipcore._checks import check_scores, require
from lipcore._heads import head_outputs, mask_scores_, sink_factor
from lipcore.operators import LinearOperator

#: Attention weights of up to this many bytes are stored; every product recomputes larger ones.
WEIGHTS_BYTES = 2**30
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

    The last two are also called the query term and the key term. In cross-attention only some of
    them are left: *own query* if the queries' tokens move, the others if the memory moves. Gates
    :math:`g = \mathrm{sigmoid}(Gx + b)` of heads with outputs a add the product rule,

    .. math:: D_X(g \odot a)[H] = g \odot D_Xa[H] + a \odot g \odot (1 - g) \odot (G H).

    Parameters
    ----------
    layer : Attention or CrossAttention
    X : Tensor, shape (…, n, d)
    store : bool, optional
        Whether to keep P, whatever its size.
    error : float
        How far layer and X are, relatively, from those whose Jacobian is meant.

    Notes
    -----
    The operator is applied in the space of queries, keys and values. The tangent of the scores is
    :math:`S_{ij} = \dot q_i\cdot k_j + q_i\cdot\dot k_j`, and the last two terms are
    :math:`\sum_j P_{ij} (S_{ij} - \bar s_i) v_j`, with :math:`\bar s_i` the mean of :math:`S_i`
    under P_i. P is visited in tiles, a few heads and some rows at a time. It is kept where it is
    small (``WEIGHTS_BYTES``); otherwise each product recomputes it, and memory is linear in n.
    Masks and biases only change P, and sinks only the sums of its rows.

    ``rounding`` bounds, to first order in the dtype's ε, the error of a product with a unit vector.
    A sum of m products, in any order, is off by at most m·ε/2 times the sum of their sizes. So
    queries are off by :math:`o_q = \tfrac\varepsilon2(d+8)\,(\|Q\|_F\max\|x\|+\|b^q\|)`, and
    so on. With g for ε times all lengths together and q, k, v for the largest vectors, scores are
    off by :math:`\delta = o_qk + o_kq + g\,qk` and what tables and sinks add, and weights relatively
    by :math:`\rho = e^{2\delta+4g}-1`. A head is then off by at most

    .. math:: (4\rho+8g)\,\big(\|Q\|kv + \|P\|\,\|K\|qv + \|P\|\,\|V\|\big)
        + 2\|Q\|\,(o_kv+ko_v) + 2\|P\|\,\|K\|\,(o_qv+qo_v),

    where :math:`\|P\|^2` is at most the largest sum of a column.

    Examples
    --------
    >>> import torch
    >>> from lipcore import Attention
    >>> J = Attention.from_matrices(torch.zeros(1, 1), torch.eye(1)).jacobian(torch.randn(3, 1))
    >>> J.matvec(torch.ones(3, 1)).flatten()   # scores are constant: only mixing is left
    tensor([1., 1., 1.])
    """

    allows_inference_mode = True

    @torch.no_grad()
    def __init__(self, layer, X: Tensor, *, store: bool | None = None, error: float = 0.0) -> None:
        attention = self.attention = getattr(layer, "attention", layer)
        others = attention.not_bilinear
        require(not others, "attention", "scores (A x + c)·x alone", f"{others}: use .jacobian")
        self._layer, self._X = layer, X
        X = layer.check_input(X).detach()
        # unless sinks take a share, a bias of the values cancels: left out, it costs no digits
        projected = layer.project(X, value_bias=attention.sinks is not None)
        # one block for each member of the batch and each head: (batch·heads, n, k | k | p)
        self._q, self._k, self._v = (part.flatten(0, -3).contiguous() for part in projected)
        check_scores(self._q, self._k)
        output_shape = (self._q.shape[1], attention.output_dim)
        self._describe(X, X.shape[:-2], X.shape[-2:], output_shape)
        # the matrix (heads·width, d) that maps H to the tangents of all parts that move with X
        query = attention.scale * attention.query
        weights = {"query": query, "key": attention.key, "value": attention.value}
        weights |= {} if attention.gate is None else {"gate": attention.gate}
        weights = {name: weight for name, weight in weights.items() if name in layer.moving}
        self._widths = {name: weight.shape[-2] for name, weight in weights.items()}
        self._projection = torch.cat([*weights.values()], dim=-2).flatten(0, 1)
        self._gates = self._slopes = None
        if attention.gate is not None:
            gates = layer.gates(X)
            self._gates = gates.flatten(0, -3)
            if "gate" in self._widths:
                self._slopes = (gates * (1 - gates) * head_outputs(layer, X)).flatten(0, -3)
        self._weigh(store)
        self.rounding = self._rounding(error)

    def in_float64(self) -> AttentionJacobian | None:
        """Return the Jacobian of the layer in float64, or None if that would take long."""
        if self.dtype == torch.float64:
            return self
        twin = self._layer.in_float64(self._X)
        return None if twin is None else AttentionJacobian(*twin)

    def _rounding(self, error: float) -> Tensor:
        """Return what rounding may do to products with unit vectors; see the notes above."""
        layer, attention = self._layer, self.attention
        tokens = dict(zip(("query", "key"), layer.pair(self._X.detach()), strict=True))
        tokens |= {"value": tokens["key"], "gate": tokens["query"]}
        n, m = (tokens[name].shape[-2] for name in ("query", "key"))
        eps = torch.finfo(self.dtype).eps
        joined = attention.heads * self._v.shape[-1]
        g = (
            eps * (n + m + sum(self._projection.shape) + joined + self.output_shape[-1] + 20)
            + error
        )
        turned = 0 if attention.rotary is None else 4 * max(n, m) * attention.rotary.abs().max()

        def off(name: str) -> Tensor:  # how far the parts of one token may be off, (…, heads)
            weight, bias = getattr(attention, name), getattr(attention, f"{name}_bias")
            size = weight.flatten(1).norm(dim=-1) * _longest(tokens[name])[..., None]
            cancels = name == "value" and attention.sinks is None and attention.gate is None
            size = size if bias is None or cancels else size + bias.norm(dim=-1)
            return (eps / 2 * (weight.shape[-1] + 8 + turned) + error) * size

        off_q, off_k, off_v = abs(attention.scale) * off("query"), off("key"), off("value")
        q, k, v = (_longest(part).reshape(off_k.shape) for part in (self._q, self._k, self._v))
        if attention.gate is not None and attention.value_bias is not None:
            v = v + attention.value_bias.norm(dim=-1)
        added = (getattr(attention, name) for name in ("bias", "log_weights", "sinks"))
        added = sum(_largest_finite(table) for table in added if table is not None)
        delta = off_q * k + off_k * q + g * q * k + 4 * eps * added
        rho = torch.expm1((2 * delta + 4 * g).clamp(max=100))  # more than anybody asks for
        norms = {name: _spectral(getattr(attention, name)) for name in self._widths}
        a = abs(attention.scale) * norms.get("query", 0.0)
        b, c = (self._spread * norms.get(name, 0.0) for name in ("key", "value"))
        size = a * k * v + b * q * v + c
        heads = (4 * rho + 8 * g) * size
        heads = heads + 2 * (a * (off_k * v + k * off_v) + b * (off_q * v + q * off_v))
        if attention.gate is not None:
            gate = off("gate")  # gates are off by a quarter of this
            heads = heads + 2 * gate * size
            heads = heads + (rho + 8 * g + gate) * (v + off_v) * norms.get("gate", 0.0)
        if attention.output is None:
            return heads.norm(dim=-1)
        output = attention.output.unflatten(1, (attention.heads, -1)).transpose(0, 1)
        return (_spectral(output) * (heads + g * size)).sum(-1)

    def _weigh(self, store: bool | None) -> None:
        """Work out P once, for its largest entries, and keep it where it is small."""
        blocks, n = self._q.shape[:2]
        keys = self._k.shape[1]
        size = self._q.element_size()
        self._cuts = cut_into_tiles(blocks, n, size, self.device.type, self.attention.causal, keys)
        self._P = None
        self._heaviest = self._q.new_empty(blocks, n, 1, dtype=torch.long)  # argmax_j P_ij
        if store is None:
            store = blocks * n * keys * size <= WEIGHTS_BYTES
        tiles = []
        columns = self._q.new_zeros(blocks, keys)  # what each key has of all queries
        for heads, rows, seen, P in self._tiles():
            self._heaviest[heads, rows] = P.argmax(-1, keepdim=True)
            columns[heads, seen] += P.sum(-2)
            if store:
                tiles.append(P)
        self._P = tiles if store else None
        # ‖P‖₂, since its rows sum to at most one; no less than one, for what the heaviest key adds
        self._spread = columns.amax(-1).sqrt().clamp(min=1).reshape(*self.batch_shape, -1)

    def _tiles(self) -> Iterator[tuple[slice, slice, slice, Tensor]]:
        """Yield (heads, rows, seen, P[heads, rows, seen]) for one tile after the other."""
        for index, (heads, rows, seen) in enumerate(self._cuts):
            if self._P is not None:
                yield heads, rows, seen, self._P[index]
                continue
            P = self._q[heads, rows] @ self._k[heads, seen].mT
            blocks = ((*self.batch_shape, self.attention.heads), heads)
            P = mask_scores_(self.attention, P, rows, blocks)
            factor = sink_factor(self.attention, P, blocks)
            torch.softmax(P, dim=-1, out=P)
            if factor is not None:
                P *= factor
            # far below rounding, products would be subnormal numbers, ten times slower to work with
            torch.threshold_(P, math.sqrt(torch.finfo(self.dtype).tiny), 0.0)
            yield heads, rows, seen, P

    @torch.no_grad()
    def matvec(self, H: Tensor) -> Tensor:
        """Return D_X f[H], shape (…, n, output_dim)."""
        self._check("H", H, self.input_shape)
        parts = self._split(H @ self._projection.mT).split([*self._widths.values()], dim=-1)
        moved = dict(zip(self._widths, parts, strict=True))
        dq, dk = (self._rotated(moved.get(name)) for name in ("query", "key"))
        dv = moved.get("value")
        out = self._q.new_empty(*self._q.shape[:2], self._v.shape[-1])
        for heads, rows, seen, P in self._tiles():
            S = torch.empty_like(P)
            if dq is not None:
                torch.bmm(dq[heads, rows], self._k[heads, seen].mT, out=S)  # own query q̇·k
            if dk is not None:  # with beta=0, S may hold anything
                both = float(dq is not None)
                S.baddbmm_(self._q[heads, rows], dk[heads, seen].mT, beta=both)  # others' keys q·k̇
            dP = self._softmax_tangent_(P, S, self._heaviest[heads, rows])
            tile = torch.bmm(dP, self._v[heads, seen], out=out[heads, rows])
            if dv is not None:
                tile.baddbmm_(P, dv[heads, seen])  # mixing
        if self._gates is not None:
            out *= self._gates
        if "gate" in moved:
            out += self._slopes * moved["gate"]
        return self.attention.join_heads(out.unflatten(0, (*self.batch_shape, -1)))

    @torch.no_grad()
    def rmatvec(self, G: Tensor) -> Tensor:
        """Return (D_X f)ᵀ[G], shape (…, n, d), by transposing each step of :meth:`matvec`."""
        self._check("G", G, self.output_shape)
        output = self.attention.output
        g = self._split(G if output is None else G @ output)
        given = {}
        if "gate" in self._widths:
            dgate = self._slopes * g
            given["gate"] = dgate.sum(-1, keepdim=True) if self._widths["gate"] == 1 else dgate
        if self._gates is not None:
            g = g * self._gates
        for name, part in (("query", self._q), ("key", self._k), ("value", self._v)):
            given[name] = torch.empty_like(part) if name in self._widths else None
        dq, dk, dv = (given[name] for name in ("query", "key", "value"))
        for heads, rows, seen, P in self._tiles():
            # the first tile of these heads sees all their keys, and the others are added to it
            add = float(rows.stop < g.shape[1])
            if dv is not None:
                dv[heads, seen].baddbmm_(P.mT, g[heads, rows], beta=add)  # mixing
            S = torch.bmm(g[heads, rows], self._v[heads, seen].mT)
            dP = self._softmax_tangent_(P, S, self._heaviest[heads, rows])
            if dq is not None:
                torch.bmm(dP, self._k[heads, seen], out=dq[heads, rows])  # own query
            if dk is not None:
                dk[heads, seen].baddbmm_(dP.mT, self._q[heads, rows], beta=add)  # others' keys
        given |= {"query": self._rotated(dq, back=True), "key": self._rotated(dk, back=True)}
        tangents = torch.cat([given[name] for name in self._widths], dim=-1)
        tangents = tangents.unflatten(0, (*self.batch_shape, -1)).transpose(-3, -2)
        return tangents.flatten(-2) @ self._projection

    def _softmax_tangent_(self, P: Tensor, S: Tensor, heaviest: Tensor) -> Tensor:
        """Write P_ij (S_ij − s̄_i), the derivative of softmax and a symmetric map, over S.

        S must be contiguous: PyTorch's kernel writes wrong numbers into any other layout.
        """
        if self.attention.sinks is None:  # with a sink, S is relative to its zero
            S -= S.gather(-1, heaviest)  # relative to the heaviest key: settled rows lose no digits
        return torch._softmax_backward_data(S, P, -1, S.dtype, grad_input=S)

    def _rotated(self, part: Tensor | None, *, back: bool = False) -> Tensor | None:
        """Rotate the tangents of queries or keys by their positions, if these move."""
        return None if part is None else self.attention.rotated(part, back=back)

    def _split(self, tokens: Tensor) -> Tensor:
        """Reshape (…, n, heads·p) to (batch·heads, n, p)."""
        return tokens.unflatten(-1, (self.attention.heads, -1)).transpose(-3, -2).flatten(0, -3)


def _spectral(weights: Tensor) -> Tensor:
    """Return spectral norms (heads,) of matrices whose smaller side is short."""
    rows, columns = weights.shape[-2:]
    gram = weights @ weights.mT if rows < columns else weights.mT @ weights
    return torch.linalg.eigvalsh(gram)[..., -1].clamp(min=0).sqrt()


def _longest(tokens: Tensor) -> Tensor:
    """Return the largest norm of a token of each member."""
    return tokens.norm(dim=-1).amax(-1)


def _largest_finite(table: Tensor) -> Tensor:
    """Return the largest size of a table's entries, without those that are infinite."""
    return table.abs().nan_to_num(posinf=0.0).max()


def cut_into_tiles(blocks, n, itemsize, device="cpu", causal=False, keys=None) -> list[tuple]:
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
