"""Self-attention as a map on tokens: one or several heads, biases, masks, rotary positions, output projection."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lipcore._checks import (
    check_number,
    check_real_tensor,
    check_same_kind,
    check_square,
    check_tokens,
)


def rotate(vectors: Tensor, angles: Tensor) -> Tensor:
    r"""Rotate the plane (r, r + k/2) of each vector by ``angles[…, r]``: the rotary position map.

    Parameters
    ----------
    vectors : Tensor, shape (…, n, k)
    angles : Tensor, shape (n, k/2)

    Returns
    -------
    Tensor, shape (…, n, k)
        An isometry of each vector; ``rotate(rotate(v, a), -a)`` is ``v``.

    Examples
    --------
    >>> import math, torch
    >>> rotate(torch.tensor([[1.0, 0.0]]), torch.tensor([[math.pi / 2]])).round(decimals=6).abs()
    tensor([[0., 1.]])
    """
    first, second = vectors.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@dataclass(frozen=True, eq=False)
class Attention:
    r"""Multi-head self-attention without residual connection or normalisation (theory §0).

    .. math:: f(X)_i = \sum_h W_h \Big( \sum_j P^h_{ij} (V_h x_j + b^v_h) \Big) + b^o,
        \qquad P^h_{i\cdot} = \mathrm{softmax}_j\,\big( \lambda\,(Q_h x_i + b^q_h)\cdot(K_h x_j + b^k_h) \big).

    Parameters
    ----------
    query, key : Tensor, shapes (heads, k, d) and (key heads, k, d)
        Fewer key than query heads is grouped-query attention: each is shared by ``heads / key heads`` queries.
    value : Tensor, shape (key heads, p, d)
    query_bias, key_bias, value_bias : Tensor, shapes (·, k), (·, k), (·, p), optional
    output : Tensor, shape (q, heads·p), optional
        Output projection ``[W_1 … W_H]``. Without it the heads are concatenated.
    output_bias : Tensor, shape (q,), optional
    causal : bool
        Token i sees the tokens j ≤ i only.
    mask : Tensor of bool, shape (n, n), optional
        True where query i may see key j; it fixes n.
    log_weights : Tensor, shape (n,), optional
        Logarithm of each token's mass: ``P_ij ∝ w_j exp(s_ij)``; it fixes n. Minus infinity is a token without mass.
    scale : float, optional
        λ; ``1/√k`` if left out.
    rotary : Tensor, shape (k/2,), optional
        Angular frequencies ω of rotary positions: query and key of token i are turned by the angles i·ω.

    Examples
    --------
    >>> import torch
    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> Attention.from_matrices(torch.zeros(2, 2), torch.eye(2))(X)  # no score: every token moves to the mean
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
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

    def __post_init__(self) -> None:
        for name in ("query", "key", "value"):
            check_real_tensor(name, getattr(self, name), ndim=3)
        self._check_shapes()
        scale = (
            1 / math.sqrt(self.query.shape[1])
            if self.scale is None
            else check_number("scale", self.scale)
        )
        object.__setattr__(self, "scale", scale)
        groups = self.query.shape[0] // self.key.shape[0]
        if (
            groups > 1
        ):  # shared keys and values are written out once a query head: the formulas then need no case
            for name in ("key", "value", "key_bias", "value_bias"):
                shared = getattr(self, name)
                if shared is not None:
                    object.__setattr__(self, name, shared.repeat_interleave(groups, dim=0))

    def _check_shapes(self) -> None:
        (heads, k, d), key_heads = self.query.shape, self.key.shape[0]
        p = self.value.shape[1]
        if min(heads, key_heads, k, d, p) == 0:
            raise ValueError(
                f"query, key, value: expected non-empty tensors, got {tuple(self.query.shape)}, "
                f"{tuple(self.key.shape)}, {tuple(self.value.shape)}"
            )
        if heads % key_heads:
            raise ValueError(
                f"key: expected a number of heads that divides {heads}, got {key_heads}"
            )
        expected = {
            "key": (key_heads, k, d), "value": (key_heads, p, d), "query_bias": (heads, k),
            "key_bias": (key_heads, k), "value_bias": (key_heads, p), "rotary": (k // 2,),
        }  # fmt: skip
        if self.output is not None:
            check_real_tensor("output", self.output, ndim=2)
            expected |= {
                "output": (self.output.shape[0], heads * p),
                "output_bias": (self.output.shape[0],),
            }
        elif self.output_bias is not None:
            raise ValueError(
                "output_bias: expected an output projection beside it, got output=None"
            )
        for name, shape in expected.items():
            tensor = getattr(self, name)
            if tensor is None:
                continue
            check_real_tensor(name, tensor)
            check_same_kind(name, tensor, self.query, "query")
            if tuple(tensor.shape) != shape:
                raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")
        if self.rotary is not None and k % 2:
            raise ValueError(f"rotary: expected an even head dimension k, got k={k}")
        self._check_mask()

    def _check_mask(self) -> None:
        mask, log_weights = self.mask, self.log_weights
        for name, value in (("mask", mask), ("log_weights", log_weights)):
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")
        if mask is not None and (
            mask.dtype != torch.bool or mask.ndim != 2 or mask.shape[0] != mask.shape[1]
        ):
            raise ValueError(
                f"mask: expected a boolean (n, n) tensor, got {mask.dtype} of shape {tuple(mask.shape)}"
            )
        if log_weights is not None:
            if (
                log_weights.ndim != 1
                or log_weights.isnan().any()
                or (log_weights == math.inf).any()
            ):
                raise ValueError("log_weights: expected a vector of numbers below +infinity")
            check_same_kind("log_weights", log_weights, self.query, "query")
            if mask is not None and mask.shape[0] != log_weights.shape[0]:
                raise ValueError(
                    f"mask: expected shape ({log_weights.shape[0]},)*2 as log_weights has, got {tuple(mask.shape)}"
                )
        seen = torch.ones((), dtype=torch.bool)
        if mask is not None:
            n = mask.shape[0]
            seen = (self.mask_scores_(self.query.new_zeros(n, n), slice(0, n)) > -math.inf).any(-1)
        elif (
            log_weights is not None
        ):  # without a mask the first key decides, or any: no n × n array
            visible = log_weights > -math.inf
            seen = visible[:1] if self.causal else visible.any()
        if not seen.all():
            raise ValueError(
                "mask, log_weights: expected at least one visible key in every row, got a row with none"
            )

    @classmethod
    def from_matrices(
        cls,
        A: Tensor,
        V: Tensor,
        *,
        causal: bool = False,
        log_weights: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Attention:
        r"""One head in the notation of the theory: scores :math:`s_{ij} = (A x_i)\cdot x_j`, values :math:`V x_j`.

        Parameters
        ----------
        A : Tensor, shape (d, d)
        V : Tensor, shape (p, d)
        causal, log_weights, mask
            As in :class:`Attention`.

        Raises
        ------
        ValueError, TypeError
            If A is not square, V does not act on the same dimension, or either is not finite and real.

        Examples
        --------
        >>> import torch
        >>> attention = Attention.from_matrices(torch.eye(2), torch.ones(1, 2), causal=True)
        >>> attention(torch.tensor([[1.0, 0.0], [0.0, 1.0]])).shape
        torch.Size([2, 1])
        """
        check_square("A", A)
        check_real_tensor("V", V, ndim=2)
        check_same_kind("V", V, A, "A")
        if V.shape[1] != A.shape[0]:
            raise ValueError(
                f"V: expected {A.shape[0]} columns as A has, got shape {tuple(V.shape)}"
            )
        identity = torch.eye(A.shape[0], dtype=A.dtype, device=A.device)
        return cls(
            query=A[None],
            key=identity[None],
            value=V[None],
            causal=causal,
            scale=1.0,
            log_weights=log_weights,
            mask=mask,
        )

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.query.shape[0]

    @property
    def d(self) -> int:
        """Dimension of the tokens that come in."""
        return self.query.shape[2]

    @property
    def output_dim(self) -> int:
        """Dimension of the tokens that go out."""
        return self.heads * self.value.shape[1] if self.output is None else self.output.shape[0]

    def to(self, *args, **kwargs) -> Attention:
        """Move or convert every tensor, as :meth:`torch.Tensor.to` does: ``attention.to(torch.float64)``."""
        moved = {}
        for field in fields(self):
            tensor = getattr(self, field.name)
            if isinstance(tensor, Tensor):
                moved[field.name] = tensor.to(*args, **kwargs)
                if tensor.dtype == torch.bool:  # a mask follows to the device, but stays boolean
                    moved[field.name] = moved[field.name].bool()
        return replace(self, **moved)

    def head(self, index: int) -> Attention:
        """Head ``index`` alone, with its own columns W_h of the output projection (and no output bias)."""
        if not -self.heads <= index < self.heads:
            raise IndexError(f"index: expected a head from 0 to {self.heads - 1}, got {index}")
        index %= self.heads
        p = self.value.shape[1]
        picked = {name: tensor[index : index + 1] for name in
                  ("query", "key", "value", "query_bias", "key_bias", "value_bias")
                  if (tensor := getattr(self, name)) is not None}  # fmt: skip
        output = None if self.output is None else self.output[:, index * p : (index + 1) * p]
        return replace(self, **picked, output=output, output_bias=None)

    def compressed(self) -> tuple[Attention, Tensor, Tensor]:
        r"""Return the same layer in fewer dimensions, and the orthonormal frames that lead back.

        What a layer does to tokens passes through the rows of Q_h, K_h and V_h, and comes out through the columns
        of W_h. With orthonormal bases Z, U of these spaces, :math:`f(X) = g(XZ)\,U^\top`, up to the output bias, so
        that :math:`\|D_Xf\|_2 = \|D_{XZ}\,g\|_2`. One head of a large model shrinks from d to 2k + p dimensions.

        Returns
        -------
        g : Attention
        Z : Tensor, shape (d, min(d, heads · (2k + p)))
            The identity where nothing is gained.
        U : Tensor, shape (output_dim, min(output_dim, heads · p))

        Examples
        --------
        >>> import torch
        >>> query, key, value = torch.randn(3, 1, 2, 50)
        >>> f = Attention(query, key, value, output=torch.randn(50, 2))
        >>> g, Z, U = f.compressed()
        >>> g.d, g.output_dim, Z.shape, U.shape
        (6, 2, torch.Size([50, 6]), torch.Size([50, 2]))
        """
        weights = {name: getattr(self, name) for name in ("query", "key", "value")}
        Z = _frame(torch.cat([weight.flatten(0, 1) for weight in weights.values()]).mT)
        U = _frame(
            self.query.new_zeros(self.output_dim, self.output_dim)
            if self.output is None
            else self.output
        )
        small = (
            {} if Z.shape[1] == self.d else {name: weight @ Z for name, weight in weights.items()}
        )
        if U.shape[1] < self.output_dim:
            small |= {"output": U.mT @ self.output, "output_bias": None}
        return replace(self, **small) if small else self, Z, U

    @property
    def is_narrow(self) -> bool:
        """Whether :meth:`compressed` has fewer dimensions."""
        (heads, k, d), p = self.query.shape, self.value.shape[1]
        return heads * (2 * k + p) < d or heads * p < self.output_dim

    def score_matrices(self) -> Tensor:
        r""":math:`A_h = \lambda K_h^\top Q_h`, shape (heads, d, d).

        With rotary positions the scores are those of A_h between equal positions only.
        """
        return self.scale * self.key.mT @ self.query

    def score_offsets(self) -> Tensor:
        r""":math:`c_h = \lambda K_h^\top b^q_h`, shape (heads, d).

        Scores are :math:`(A_h x_i + c_h)\cdot x_j` up to a constant in j, which the softmax cancels.
        """
        if self.query_bias is None:
            return self.query.new_zeros(self.heads, self.d)
        return self.scale * (self.key.mT @ self.query_bias[..., None])[..., 0]

    def value_matrices(self) -> Tensor:
        """``W_h V_h``, shape (heads, output_dim, d), or ``V_h``, shape (heads, p, d), where there is no projection."""
        if self.output is None:
            return self.value
        return self.output.unflatten(1, (self.heads, -1)).movedim(1, 0) @ self.value

    def angles(self, n: int) -> Tensor | None:
        """Rotary angles of the positions 0 … n − 1, shape (n, k/2), or None."""
        if self.rotary is None:
            return None
        positions = torch.arange(n, dtype=self.rotary.dtype, device=self.rotary.device)
        return positions[:, None] * self.rotary

    def project(self, X: Tensor, *, value_bias: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Queries times λ, keys and values of every head: shapes (…, heads, n, k), the same, (…, heads, n, p).

        Without their bias the values have the same derivative, and keep their digits where the bias is large.
        """
        queries, keys, values = (
            _per_head(X, weight, bias)
            for weight, bias in (
                (self.query, self.query_bias),
                (self.key, self.key_bias),
                (self.value, self.value_bias if value_bias else None),
            )
        )
        angles = self.angles(X.shape[-2])
        if angles is not None:
            queries, keys = rotate(queries, angles), rotate(keys, angles)
        return self.scale * queries, keys, values

    def mask_scores_(self, scores: Tensor, rows: slice) -> Tensor:
        """Mask the scores (…, rows, columns) of ``rows`` against the first ``columns`` keys, in place."""
        columns = scores.shape[-1]
        if self.log_weights is not None:
            scores += self.log_weights[:columns]
        if self.mask is not None:
            scores.masked_fill_(~self.mask[rows, :columns], -math.inf)
        if self.causal:  # keys before the first of the rows are seen by all of them
            recent = scores[..., rows.start :]
            recent.masked_fill_(
                torch.ones(recent.shape[-2:], dtype=torch.bool, device=recent.device).triu_(1),
                -math.inf,
            )
        return scores

    def row_weights(self, queries: Tensor, keys: Tensor, rows: slice) -> Tensor:
        """Softmax weights P of the given rows; ``keys`` may be cut after the last key that they see."""
        return torch.softmax(self.mask_scores_(queries[..., rows, :] @ keys.mT, rows), dim=-1)

    def check_input(self, X: Tensor) -> Tensor:
        """Return X if this layer can take it, else raise."""
        check_tokens(X, self.d)
        check_same_kind("X", X, self.query, "the attention's weights")
        for name in ("mask", "log_weights"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape[0] != X.shape[-2]:
                raise ValueError(
                    f"X: expected {tensor.shape[0]} tokens as {name} has, got {X.shape[-2]}"
                )
        return X

    def weights(self, X: Tensor) -> Tensor:
        """Attention weights P, shape (…, heads, n, n); each row sums to one.

        Raises
        ------
        ValueError
            If X does not fit, or is so large that its scores overflow.

        Examples
        --------
        >>> import torch
        >>> Attention.from_matrices(torch.zeros(1, 1), torch.ones(1, 1), causal=True).weights(torch.ones(2, 1))
        tensor([[[1.0000, 0.0000],
                 [0.5000, 0.5000]]])
        """
        queries, keys, _ = self.project(self.check_input(X))
        check_scores(queries, keys)
        return self.row_weights(queries, keys, slice(0, X.shape[-2]))

    def __call__(self, X: Tensor) -> Tensor:
        """f(X), shape (…, n, output_dim), for X of shape (…, n, d). Differentiable in X."""
        queries, keys, values = self.project(self.check_input(X))
        check_scores(queries, keys)
        return self.join_heads(
            self.row_weights(queries, keys, slice(0, X.shape[-2])) @ values, bias=True
        )

    def join_heads(self, per_head: Tensor, *, bias: bool = False) -> Tensor:
        """(…, heads, n, p) → (…, n, output_dim): concatenate the heads, then project."""
        joined = per_head.transpose(-3, -2).flatten(-2)
        if self.output is not None:
            joined = joined @ self.output.mT
        return joined + self.output_bias if bias and self.output_bias is not None else joined

    def jacobian(self, X: Tensor):
        """The Jacobian of this layer at X as a linear operator: :class:`lipcore.jacobian.AttentionJacobian`.

        For few tokens it is the :class:`lipcore.jacobian.ShortAttentionJacobian`, with the same products.
        """
        from lipcore.jacobian import AttentionJacobian, ShortAttentionJacobian

        short = isinstance(X, Tensor) and X.ndim > 1 and ShortAttentionJacobian.pays(self, X)
        return (ShortAttentionJacobian if short else AttentionJacobian)(self, X)


def _per_head(X: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X (…, n, d) through weight (heads, k, d) as one product: (…, heads, n, k)."""
    projected = (X @ weight.flatten(0, 1).mT).unflatten(-1, weight.shape[:2]).transpose(-3, -2)
    return projected if bias is None else projected + bias[:, None, :]


def _frame(matrix: Tensor) -> Tensor:
    """Orthonormal columns (rows, min(shape)) that span the columns of a matrix; the identity if they are all."""
    rows, columns = matrix.shape
    if columns >= rows:
        return torch.eye(rows, dtype=matrix.dtype, device=matrix.device)
    return torch.linalg.qr(matrix).Q


def check_scores(queries: Tensor, keys: Tensor) -> None:
    """Refuse scores that may overflow (Cauchy–Schwarz): their softmax would be NaN."""
    largest = queries.detach().norm(dim=-1).amax() * keys.detach().norm(dim=-1).amax()
    if not bool(torch.isfinite(largest)):
        raise ValueError(
            f"X: expected tokens whose scores are finite in {queries.dtype}, got scores that overflow"
        )


def attention_map(X: Tensor, A: Tensor, V: Tensor, *, causal: bool = False) -> Tensor:
    r"""Single-head self-attention in the notation of the theory.

    .. math:: f(X)_i = V \sum_j P_{ij} x_j, \qquad P_{i\cdot} = \mathrm{softmax}_j\big((Ax_i)\cdot x_j\big)

    Parameters
    ----------
    X : Tensor, shape (…, n, d)
    A : Tensor, shape (d, d)
    V : Tensor, shape (p, d)
    causal : bool
        Whether token i sees only the tokens j ≤ i: the masked map :math:`f^m`.

    Returns
    -------
    Tensor, shape (…, n, p)

    Raises
    ------
    ValueError, TypeError
        For shapes that do not fit, non-finite entries, no token, or a dtype other than float32 and float64.

    Notes
    -----
    Castin, Ablin & Peyré (2024); theory §0.

    Examples
    --------
    >>> import torch
    >>> attention_map(torch.tensor([[0.0], [2.0]]), torch.zeros(1, 1), torch.ones(1, 1), causal=True)
    tensor([[0.],
            [1.]])
    """
    return Attention.from_matrices(A, V, causal=causal)(X)
