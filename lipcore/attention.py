"""Self-attention as a map on tokens, with heads, biases, masks, rotary positions and a projection.

Tokens are the rows of X (…, n, d); dimensions before the last two are a batch. Arguments that do
not fit, are not finite, or are not float32 or float64 raise a ValueError or a TypeError.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from lipcore._checks import check_fits, check_head, check_layer, check_number, check_tokens, require
from lipcore._heads import mask_scores_, per_head, sink_factor
from lipcore.cross import AttentionMap, CrossAttention


def attention_map(X: Tensor, A: Tensor, V: Tensor, *, causal: bool = False) -> Tensor:
    r"""Return the outputs of self-attention with one head (:prf:ref:`def-attention`).

    .. math:: f(X)_i = V \sum_j P_{ij} x_j,
        \qquad P_{i\cdot} = \mathrm{softmax}_j\big((Ax_i)\cdot x_j\big)

    Parameters
    ----------
    X : Tensor, shape (…, n, d)
    A, V : Tensor, shapes (d, d) and (p, d)
    causal : bool
        Whether token i sees only the tokens j ≤ i, as in the masked map :math:`f^m`.

    Returns
    -------
    Tensor, shape (…, n, p)

    Examples
    --------
    >>> import torch
    >>> A, V = torch.zeros(1, 1), torch.ones(1, 1)
    >>> attention_map(torch.tensor([[0.0], [2.0]]), A, V, causal=True)
    tensor([[0.],
            [1.]])
    """
    return Attention.from_matrices(A, V, causal=causal)(X)


@dataclass(frozen=True, eq=False, repr=False)
class Attention(AttentionMap):
    r"""Multi-head self-attention, without residual connection or normalisation.

    .. math:: f(X)_i = \sum_h W_h \Big( \sum_j P^h_{ij} (V_h x_j + b^v_h) \Big) + b^o,
        \qquad P^h_{i\cdot} = \mathrm{softmax}_j\,
        \big( \lambda\,(Q_h x_i + b^q_h)\cdot(K_h x_j + b^k_h) \big).

    Parameters
    ----------
    query, key : Tensor, shapes (heads, k, d) and (key heads, k, d)
        With fewer key heads than heads this is grouped-query attention. Keys and values may read
        tokens of another dimension than queries do; such a layer works in :meth:`cross` alone.
    value : Tensor, shape (key heads, p, d)
    query_bias, key_bias, value_bias : Tensor, shapes (·, k), (·, k), (·, p), optional
    output : Tensor, shape (q, heads·p), optional
        Output projection ``[W_1 … W_H]``. Without it the heads are concatenated.
    output_bias : Tensor, shape (q,), optional
    causal : bool
        Whether token i sees only the tokens j ≤ i.
    window : int, optional
        Token i sees the tokens that are fewer than ``window`` places away, itself included.
    mask : Tensor of bool, shape broadcastable to (…, heads, n, n), optional
        True where query i may see key j, as in ``scaled_dot_product_attention``; the masks of
        ``nn.MultiheadAttention`` say the opposite. A mask fixes the number n of tokens.
    bias : Tensor, shape broadcastable to (…, heads, n, n), optional
        Numbers added to the scores (ALiBi, relative positions), −∞ to hide a key; they fix n.
    sinks : Tensor, shape (heads,), optional
        Score of one more key, whose value is zero; rows of P then sum to less than one.
    softcap : float, optional
        The number c > 0; a score s becomes :math:`c \tanh(s/c)`, before biases and masks.
    query_norm, key_norm : callable, optional
        Maps, such as ``nn.RMSNorm``, of each query and each key vector (…, heads, n, k) before its
        rotation. With these, or ``softcap``, the Jacobian is by automatic differentiation.
    gate, gate_bias : Tensor, shapes (heads, 1 or p, d) and (heads, 1 or p), optional
        Head h is multiplied by :math:`\mathrm{sigmoid}(G_h x_i + b_h)`, one number or one for each
        of its p outputs; ``gate_bias`` alone is a fixed gate, which is multiplied into the values.
    log_weights : Tensor, shape (n,), optional
        Logarithms of the tokens' masses w, −∞ for no mass: ``P_ij ∝ w_j exp(s_ij)``; they fix n.
    scale : float, optional
        The factor λ of the scores, ``1/√k`` if left out.
    rotary : Tensor, shape (k/2,), optional
        Frequencies ω; query and key of token i are rotated by i·ω (:prf:ref:`prop-norm-rotary`).

    Examples
    --------
    >>> import torch
    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> f = Attention.from_matrices(torch.zeros(2, 2), torch.eye(2))
    >>> f(X)  # all scores are zero: every token moves to the mean
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    >>> f
    Attention(1 head, 2 → 2 dimensions)
    """

    query: Tensor
    key: Tensor
    value: Tensor
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    output: Tensor | None = None
    output_bias: Tensor | None = None
    causal: bool = False
    mask: Tensor | None = None
    log_weights: Tensor | None = None
    scale: float | None = None
    rotary: Tensor | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None
    softcap: float | None = None
    query_norm: Callable[[Tensor], Tensor] | None = None
    key_norm: Callable[[Tensor], Tensor] | None = None
    gate: Tensor | None = None
    gate_bias: Tensor | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        check_layer(self)
        scale = 1 / math.sqrt(self.query.shape[1]) if self.scale is None else self.scale
        object.__setattr__(self, "scale", check_number("scale", scale))
        groups = self.query.shape[0] // self.key.shape[0]
        for name in ("key", "value", "key_bias", "value_bias"):
            shared = getattr(self, name)
            if groups > 1 and shared is not None:  # copied, so that formulas need no special case
                object.__setattr__(self, name, shared.repeat_interleave(groups, dim=0))
        if self.gate is None and self.gate_bias is not None:  # fixed gates are part of the values
            gates = torch.sigmoid(self.gate_bias)
            object.__setattr__(self, "value", gates[..., None] * self.value)
            if self.value_bias is not None:
                object.__setattr__(self, "value_bias", gates * self.value_bias)
            object.__setattr__(self, "gate_bias", None)

    @classmethod
    def from_matrices(cls, A: Tensor, V: Tensor, **options: object) -> Attention:
        r"""Return a layer of one head: scores :math:`s_{ij} = (A x_i)\cdot x_j`, values ``V x_j``.

        Parameters
        ----------
        A, V : Tensor, shapes (d, d) and (p, d)
        **options
            Those of :class:`Attention`, such as ``causal``, ``mask`` and ``sinks``.
        """
        A, V = check_head(A, V)
        identity = torch.eye(len(A), dtype=A.dtype, device=A.device)
        return cls(query=A[None], key=identity[None], value=V[None], scale=1.0, **options)

    def __repr__(self) -> str:
        """Return one line with the sizes and the names of the options in use."""
        heads = f"{self.heads} head{'s' if self.heads > 1 else ''}"
        rest = [*vars(self).items()][8:]  # behind the weights and their biases
        given = [k for k, x in rest if x is not None and x is not False and k != "scale"]
        sizes = f"{heads}, {self.d} → {self.output_dim} dimensions"
        return f"Attention({', '.join([sizes, *given])})"

    #: The parts that change with X: all, where queries, keys and values come from one sequence.
    moving: ClassVar[tuple[str, ...]] = ("query", "key", "value", "gate")

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return self.query.shape[0]

    @property
    def d(self) -> int:
        """The dimension of the tokens that come in."""
        return self.query.shape[2]

    @property
    def output_dim(self) -> int:
        """The dimension of the tokens that go out."""
        return self.heads * self.value.shape[1] if self.output is None else self.output.shape[0]

    def to(self, *args: object, **kwargs: object) -> Attention:
        """Move or convert every tensor, as :meth:`torch.Tensor.to` does; a mask stays boolean."""
        moved = {}
        for name, part in vars(self).items():
            if isinstance(part, Tensor | nn.Module):  # a module would be changed where it is
                part = copy.deepcopy(part) if isinstance(part, nn.Module) else part
                moved[name] = part.to(*args, **kwargs)
        if self.mask is not None:
            moved["mask"] = moved["mask"].bool()
        return replace(self, **moved)

    def head(self, index: int) -> Attention:
        """Return head ``index`` alone, with its columns of the output projection, no bias."""
        is_one = -self.heads <= index < self.heads
        require(is_one, "index", f"a head from 0 to {self.heads - 1}", index, IndexError)
        index %= self.heads
        weights = ("query", "key", "value", "gate")
        parts = ("sinks", *weights, *(f"{name}_bias" for name in weights))
        tensors = {name: getattr(self, name) for name in parts}
        picked = {name: x[index : index + 1] for name, x in tensors.items() if x is not None}
        for name in ("mask", "bias"):
            table = getattr(self, name)
            if table is not None and table.ndim > 2 and table.shape[-3] > 1:
                picked[name] = table[..., index : index + 1, :, :]
        if self.output is not None:
            picked["output"] = self.output.unflatten(1, (self.heads, -1))[:, index]
        return replace(self, **picked, output_bias=None)

    def select_sequences(self, batch: tuple[int, ...], index: Tensor) -> Attention:
        """Return the layer for some sequences of a batch, with the masks and biases of these."""
        tables = {"mask": self.mask, "bias": self.bias}
        chosen = {
            name: table.expand(*batch, *table.shape[-3:])[index]
            for name, table in tables.items()
            if table is not None and table.ndim > 3
        }
        return replace(self, **chosen) if chosen else self

    def compressed(self) -> tuple[Attention, Tensor, Tensor]:
        r"""Return the same layer in fewer dimensions, and the orthonormal frames that lead back.

        A layer reads tokens only through the rows of Q_h, K_h and V_h, and writes its outputs only
        through the columns of W_h. With orthonormal bases Z, U of these spaces,
        :math:`f(X) = g(XZ)\,U^\top` up to the output bias, and the Jacobians of f and g have the
        same norm (:prf:ref:`prop-fast-heads`).

        Returns
        -------
        g : Attention
        Z : Tensor, shape (d, min(d, heads · (2k + p)))
            The identity if no dimension is saved.
        U : Tensor, shape (output_dim, min(output_dim, heads · p))
        """
        names = ("query", "key", "value", *(["gate"] if self.gate is not None else []))
        weights = {name: getattr(self, name) for name in names}
        Z = _frame(torch.cat([weight.flatten(0, 1) for weight in weights.values()]).mT)
        no_output = self.query.new_zeros(self.output_dim, self.output_dim)
        U = _frame(no_output if self.output is None else self.output)
        changed = {}
        if Z.shape[1] < self.d:
            changed |= {name: weight @ Z for name, weight in weights.items()}
        if U.shape[1] < self.output_dim:
            changed |= {"output": U.mT @ self.output, "output_bias": None}
        return (replace(self, **changed) if changed else self), Z, U

    @property
    def is_narrow(self) -> bool:
        """Whether :meth:`compressed` has fewer dimensions."""
        k, p = self.query.shape[1], self.value.shape[1]
        gates = 0 if self.gate is None else self.gate.shape[1]
        return self.heads * (2 * k + p + gates) < self.d or self.heads * p < self.output_dim

    def score_matrices(self) -> Tensor:
        r"""Return :math:`A_h = \lambda K_h^\top Q_h`, (heads, d, d); rotary at equal positions."""
        return self.scale * self.key.mT @ self.query

    def score_offsets(self) -> Tensor:
        r"""Return :math:`c_h = \lambda K_h^\top b^q_h`, what biases add to scores, (heads, d).

        Scores are :math:`(A_h x_i + c_h)\cdot x_j` up to a constant in j, which the softmax
        cancels (:prf:ref:`prop-biases`).
        """
        if self.query_bias is None:
            return self.query.new_zeros(self.heads, self.d)
        return self.scale * (self.key.mT @ self.query_bias[..., None])[..., 0]

    def value_matrices(self) -> Tensor:
        """Return ``W_h V_h``, (heads, output_dim, d), or ``V_h``, (heads, p, d), if no output."""
        if self.output is None:
            return self.value
        return self.output.unflatten(1, (self.heads, -1)).movedim(1, 0) @ self.value

    def value_norms(self) -> Tensor:
        """Return ‖W_h V_h‖₂, (heads,), or ‖V_h‖₂ if no output, without the d × d products."""
        if self.output is None:
            return torch.linalg.matrix_norm(self.value, 2)
        output = self.output.unflatten(1, (self.heads, -1)).movedim(1, 0)
        return torch.linalg.matrix_norm(torch.linalg.qr(output, mode="r").R @ self.value, 2)

    def angles(self, n: int) -> Tensor | None:
        """Return the rotary angles of the positions 0 … n − 1, shape (n, k/2), or None."""
        if self.rotary is None:
            return None
        positions = torch.arange(n, dtype=self.rotary.dtype, device=self.rotary.device)
        return positions[:, None] * self.rotary

    def rotated(self, vectors: Tensor, *, back: bool = False) -> Tensor:
        """Return queries or keys (…, n, k) rotated by their positions' angles, or rotated back."""
        angles = self.angles(vectors.shape[-2])
        return vectors if angles is None else rotate(vectors, -angles if back else angles)

    def project(
        self, X: Tensor, memory: Tensor | None = None, *, value_bias: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries times λ, keys and values of every head, shapes (…, heads, n, k | k | p).

        Keys and values are made from ``memory``, or from X if that is left out. Unless there are
        sinks, the derivative does not depend on the bias of the values; leaving out a large bias
        avoids its rounding errors.
        """
        queries = per_head(X, self.query, self.query_bias)
        queries = self.rotated(self.query_norm(queries) if self.query_norm else queries)
        memory = X if memory is None else memory
        keys = per_head(memory, self.key, self.key_bias)
        keys = self.rotated(self.key_norm(keys) if self.key_norm else keys)
        values = per_head(memory, self.value, self.value_bias if value_bias else None)
        return self.scale * queries, keys, values

    def row_weights(self, queries: Tensor, keys: Tensor, rows: slice) -> Tensor:
        """Return the weights P of some rows; ``keys`` may end with the last key that they see."""
        scores = queries[..., rows, :] @ keys.mT
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        scores = mask_scores_(self, scores, rows)
        factor = sink_factor(self, scores)
        P = torch.softmax(scores, dim=-1)
        return P if factor is None else factor * P

    def check_input(self, X: Tensor) -> Tensor:
        """Return X if this layer can take it, else raise."""
        check_tokens(X, self.d, layer=self)
        is_one = self.key.shape[2] == self.d
        require(is_one, "X", "a layer of one sequence", "one of two: use .cross(memory=...)")
        check_fits(self, X)
        return X

    def pair(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens of the queries, and those of keys and values: X and X."""
        return X, X

    def gates(self, X: Tensor) -> Tensor | None:
        """Return the gates at the queries' tokens X, shape (…, heads, n, 1 or p), or None."""
        return None if self.gate is None else per_head(X, self.gate, self.gate_bias).sigmoid()

    def join_heads(self, per_head: Tensor, *, bias: bool = False) -> Tensor:
        """Concatenate the heads (…, heads, n, p), project them, and return (…, n, output_dim)."""
        joined = per_head.transpose(-3, -2).flatten(-2)
        if self.output is not None:
            joined = joined @ self.output.mT
        return joined + self.output_bias if bias and self.output_bias is not None else joined

    @property
    def not_bilinear(self) -> list[str]:
        """The options in use whose scores are not those of :prf:ref:`thm-jacobian`."""
        names = ("softcap", "query_norm", "key_norm")
        return [name for name in names if getattr(self, name) is not None]

    def cross(
        self, *, memory: Tensor | None = None, queries: Tensor | None = None
    ) -> CrossAttention:
        """Return cross-attention as a map of the queries' tokens or of the memory, the other fixed.

        Exactly one is given, and the layer has neither ``causal`` nor ``window``, but for a mask.

        Parameters
        ----------
        memory, queries : Tensor, shape (…, n, d)
            The one that is held fixed, once for all sequences or once for each. The returned
            :class:`~lipcore.cross.CrossAttention` is a map of the other.
        """
        return CrossAttention(self, memory=memory, queries=queries)


def rotate(vectors: Tensor, angles: Tensor) -> Tensor:
    r"""Rotate the plane (r, r + k/2) of each vector by ``angles[…, r]``, as rotary positions do.

    The vectors (…, n, k) keep their norms, and the negative of ``angles`` (n, k/2) turns them back.
    """
    first, second = vectors.chunk(2, dim=-1)
    cos = angles.cos()
    sin = angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _frame(matrix: Tensor) -> Tensor:
    """Return an orthonormal basis of a matrix's columns, or the identity if they span all."""
    rows, columns = matrix.shape
    if columns >= rows:
        return torch.eye(rows, dtype=matrix.dtype, device=matrix.device)
    return torch.linalg.qr(matrix).Q
