"""The Jacobian of attention as a linear operator, in three terms; and of any differentiable map, by autodiff."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipcore._checks import check_same_kind, check_tokens
from lipcore.attention import Attention, check_scores, rotate

#: Attention weights are stored up to this many bytes, and worked out anew tile by tile beyond.
WEIGHTS_BYTES = 2**28
#: Bytes of one tile of attention weights: it should stay in the cache between the products that use it.
TILE_BYTES = 2**22
#: The same on an accelerator, which wants few large products instead.
ACCELERATOR_TILE_BYTES = 2**26
#: The same for the rows of a :class:`ShortAttentionJacobian`.
ROWS_BYTES = 2**22
#: Rows of a tile at least, where n allows: thinner matrix products waste the machine.
TILE_ROWS = 64
_AUTODIFF = (
    threading.RLock()
)  # forward mode and the choice of kernels belong to the process: one thread at a time


class LinearOperator:
    """A batch of linear maps between token arrays, known by its products alone.

    Attributes
    ----------
    batch_shape : tuple of int
    input_shape, output_shape : tuple of int
        Shapes of one input and one output, without the batch.
    dtype, device
        Of the inputs and outputs.
    """

    batch_shape: tuple[int, ...]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def matvec(self, H: Tensor) -> Tensor:
        """J[H]: (*batch, *input_shape) → (*batch, *output_shape). H must be left as it is."""
        raise NotImplementedError

    def rmatvec(self, G: Tensor) -> Tensor:
        """Jᵀ[G]: (*batch, *output_shape) → (*batch, *input_shape). G must be left as it is."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns) of one matrix of the batch."""
        return math.prod(self.output_shape), math.prod(self.input_shape)

    @property
    def T(self) -> LinearOperator:
        """The transposed operator."""
        return _Transposed(self)

    def dense(self) -> Tensor:
        """The matrices, (*batch, rows, columns), one product a column: for tests and small cases only."""
        rows, columns = self.shape
        basis = torch.eye(columns, dtype=self.dtype, device=self.device)
        images = [
            self.matvec(e.reshape(self.input_shape).expand(*self.batch_shape, *self.input_shape))
            for e in basis
        ]
        return torch.stack([image.reshape(*self.batch_shape, rows) for image in images], dim=-1)

    def _check(self, name: str, tensor: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        expected = (*self.batch_shape, *event_shape)
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name}: expected shape {expected}, got {tuple(tensor.shape)}")
        if tensor.dtype != self.dtype or tensor.device != self.device:
            raise TypeError(
                f"{name}: expected {self.dtype} on {self.device}, got {tensor.dtype} on {tensor.device}"
            )
        return tensor


class _Transposed(LinearOperator):
    def __init__(self, operator: LinearOperator) -> None:
        self.operator = operator
        self.batch_shape = operator.batch_shape
        self.input_shape, self.output_shape = operator.output_shape, operator.input_shape
        self.dtype, self.device = operator.dtype, operator.device

    def matvec(self, H: Tensor) -> Tensor:
        return self.operator.rmatvec(H)

    def rmatvec(self, G: Tensor) -> Tensor:
        return self.operator.matvec(G)

    @property
    def T(self) -> LinearOperator:
        return self.operator


class MatrixOperator(LinearOperator):
    """A batch of matrices, shape (*batch, rows, columns), as an operator.

    Examples
    --------
    >>> import torch
    >>> MatrixOperator(torch.tensor([[1.0, 2.0]])).matvec(torch.tensor([1.0, 1.0]))
    tensor([3.])
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = check_tokens(matrix, name="matrix")
        self.batch_shape = tuple(matrix.shape[:-2])
        self.output_shape, self.input_shape = (matrix.shape[-2],), (matrix.shape[-1],)
        self.dtype, self.device = matrix.dtype, matrix.device

    def matvec(self, H: Tensor) -> Tensor:
        """Matrix times vector."""
        return (self.matrix @ self._check("H", H, self.input_shape)[..., None])[..., 0]

    def rmatvec(self, G: Tensor) -> Tensor:
        """Transposed matrix times vector."""
        return (self.matrix.mT @ self._check("G", G, self.output_shape)[..., None])[..., 0]


class AttentionJacobian(LinearOperator):
    r"""The Jacobian of :class:`~lipcore.attention.Attention` at X, never formed as a matrix (theory §1).

    With :math:`m_i = \sum_j P_{ij} x_j`, :math:`C_i = \sum_j P_{ij}(x_j - m_i)(x_j - m_i)^\top`, for one head,

    .. math:: (D_X f[H])_i = V\Big( \underbrace{\textstyle\sum_j P_{ij} h_j}_{\text{mixing}}
        + \underbrace{C_i A h_i}_{\text{own query}}
        + \underbrace{\textstyle\sum_j P_{ij} (x_j - m_i)\,(A x_i + c)\cdot h_j}_{\text{others' keys}} \Big).

    It is applied in the space of queries, keys and values: with :math:`S_{ij} = \dot q_i\cdot k_j + q_i\cdot\dot k_j`,
    the last two terms are :math:`\sum_j P_{ij} (S_{ij} - \bar s_i) v_j`, with :math:`\bar s_i` the mean of
    :math:`S_i` under P_i. P is visited in tiles (a few heads, some rows): a product costs little more than its matrix
    products of size n × n × k.

    Parameters
    ----------
    attention : Attention
    X : Tensor, shape (…, n, d)
    store : bool, optional
        Whether to keep P. Left out, P is kept where it is small (``WEIGHTS_BYTES``), else each tile is worked out
        anew in every product: memory is then linear in n.

    Raises
    ------
    ValueError, TypeError
        If X does not fit the attention.

    Examples
    --------
    >>> import torch
    >>> from lipcore import Attention
    >>> J = Attention.from_matrices(torch.zeros(1, 1), torch.eye(1)).jacobian(torch.randn(3, 1))
    >>> J.matvec(torch.ones(3, 1)).flatten()   # scores are constant: only mixing is left
    tensor([1., 1., 1.])
    """

    @torch.no_grad()
    def __init__(self, attention: Attention, X: Tensor, *, store: bool | None = None) -> None:
        self.attention = attention
        X = attention.check_input(X).detach()
        self.batch_shape, self.input_shape = tuple(X.shape[:-2]), (X.shape[-2], attention.d)
        self.output_shape = (X.shape[-2], attention.output_dim)
        self.dtype, self.device = X.dtype, X.device
        self._angles = attention.angles(X.shape[-2])
        # a "row of heads" for each member of the batch and each head: (batch·heads, n, k | k | p)
        projected = attention.project(X, value_bias=False)
        self._q, self._k, self._v = (part.flatten(0, -3).contiguous() for part in projected)
        check_scores(self._q, self._k)
        if store is None:
            store = len(self._q) * X.shape[-2] ** 2 * self.dtype.itemsize <= WEIGHTS_BYTES
        self._cuts, self._weights = self._cut(), None
        self._heaviest = torch.empty(
            *self._v.shape[:2], 1, dtype=torch.long, device=self.device
        )  # argmax_j P_ij
        kept = []
        for heads, rows, _, P, _ in self._tiles():
            self._heaviest[heads, rows] = P.argmax(-1, keepdim=True)
            if store:
                kept.append(P.clone())
        self._weights = kept if store else None  # the tiles of P

    def _cut(self) -> list[tuple[slice, slice, slice]]:
        """Tiles (heads, rows, seen), the last rows first; ``seen`` are all the keys that these rows can see."""
        count, n = self._q.shape[:2]
        entries = (
            TILE_BYTES if self.device.type == "cpu" else ACCELERATOR_TILE_BYTES
        ) // self.dtype.itemsize
        rows_at_once = min(n, max(TILE_ROWS, entries // n))
        if (
            self.attention.causal
        ):  # a tile reaches to the last key that its rows see: tall ones visit what is masked
            rows_at_once = min(rows_at_once, max(4 * TILE_ROWS, n // 8))
        heads_at_once = min(count, max(1, entries // (rows_at_once * n)))
        cuts = []
        for first, start in itertools.product(
            range(0, count, heads_at_once), reversed(range(0, n, rows_at_once))
        ):
            heads, rows = (
                slice(first, min(first + heads_at_once, count)),
                slice(start, min(start + rows_at_once, n)),
            )
            cuts.append((heads, rows, slice(0, rows.stop if self.attention.causal else n)))
        return cuts

    def _tiles(self) -> Iterator[tuple[slice, slice, slice, Tensor, list[Tensor]]]:
        """Yield (heads, rows, seen, P[heads, rows, seen], two scratches of the same shape).

        The scratch is the same memory every time: fresh memory would cost more than what is worked out in it.
        """
        shapes = [tuple(part.stop - part.start for part in cut) for cut in self._cuts]
        stored = self._weights is not None
        buffers = self._q.new_empty(2 if stored else 3, max(map(math.prod, shapes)))
        for index, ((heads, rows, seen), shape) in enumerate(zip(self._cuts, shapes, strict=True)):
            *scratch, P = buffers[:, : math.prod(shape)].view(-1, *shape).unbind()
            if stored:
                scratch, P = [*scratch, P], self._weights[index]
            else:
                scores = torch.bmm(self._q[heads, rows], self._k[heads, seen].mT, out=scratch[0])
                torch.softmax(self.attention.mask_scores_(scores, rows), dim=-1, out=P)
                self._flush(P)
            yield heads, rows, seen, P, scratch

    def _flush(self, P: Tensor) -> Tensor:
        """Put zero for weights far below rounding: in products they become subnormal, ten times slower to work with."""
        return torch.threshold_(P, math.sqrt(torch.finfo(self.dtype).tiny), 0.0)

    @torch.no_grad()
    def matvec(self, H: Tensor) -> Tensor:
        """D_X f[H], shape (…, n, output_dim)."""
        dq, dk, dv = self._tangents(self._check("H", H, self.input_shape))
        out = torch.empty_like(self._v)
        for heads, rows, seen, P, (S, dP) in self._tiles():
            torch.bmm(dq[heads, rows], self._k[heads, seen].mT, out=S)  # own query q̇·k
            S.baddbmm_(self._q[heads, rows], dk[heads, seen].mT)  # others' keys q·k̇
            self._softmax_tangent(P, S, self._heaviest[heads, rows], out=dP)
            tile = torch.bmm(dP, self._v[heads, seen], out=out[heads, rows])
            tile.baddbmm_(P, dv[heads, seen])  # mixing
        return self.attention.join_heads(
            out.unflatten(0, (*self.batch_shape, self.attention.heads))
        )

    @torch.no_grad()
    def rmatvec(self, G: Tensor) -> Tensor:
        """(D_X f)ᵀ[G], shape (…, n, d): each term of :meth:`matvec` turned round."""
        g = self._split_heads(self._check("G", G, self.output_shape))
        dq, dk, dv = torch.empty_like(self._q), torch.empty_like(self._k), torch.empty_like(self._v)
        for heads, rows, seen, P, (S, dP) in self._tiles():
            add = float(
                rows.stop < g.shape[1]
            )  # the first tile sees all keys, and the others are added to it
            dv[heads, seen].baddbmm_(P.mT, g[heads, rows], beta=add)  # mixing
            torch.bmm(g[heads, rows], self._v[heads, seen].mT, out=S)
            self._softmax_tangent(P, S, self._heaviest[heads, rows], out=dP)
            torch.bmm(dP, self._k[heads, seen], out=dq[heads, rows])  # own query
            dk[heads, seen].baddbmm_(dP.mT, self._q[heads, rows], beta=add)  # others' keys
        return self._pull_back(dq, dk, dv)

    @staticmethod
    def _softmax_tangent(
        P: Tensor, S: Tensor, heaviest: Tensor, *, out: Tensor | None = None
    ) -> Tensor:
        """P_ij (S_ij − s̄_i), with s̄_i the mean of S_i under P_i: the derivative of softmax, symmetric. S is changed."""
        S -= S.gather(-1, heaviest)  # from the heaviest key: settled rows lose no digits
        return torch._softmax_backward_data(S, P, -1, S.dtype, grad_input=out)

    @functools.cached_property
    def _projection(self) -> Tensor:
        """The three projections as one, (heads, 2k + p, d)."""
        attention = self.attention
        return torch.cat([attention.scale * attention.query, attention.key, attention.value], dim=1)

    def _tangents(self, H: Tensor) -> tuple[Tensor, ...]:
        """Tangents of queries, keys and values along H: (batch·heads, n, k | k | p)."""
        k, p = self._q.shape[-1], self._v.shape[-1]
        dq, dk, dv = self._per_head(H @ self._projection.flatten(0, 1).mT).split([k, k, p], dim=-1)
        if self._angles is not None:
            dq, dk = rotate(dq, self._angles), rotate(dk, self._angles)
        return dq, dk, dv

    def _pull_back(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Tensor:
        """Transpose of :meth:`_tangents`."""
        if self._angles is not None:
            dq, dk = rotate(dq, -self._angles), rotate(dk, -self._angles)
        heads = (*self.batch_shape, self.attention.heads)
        moved = torch.cat([x.unflatten(0, heads).transpose(-3, -2) for x in (dq, dk, dv)], dim=-1)
        return moved.flatten(-2) @ self._projection.flatten(0, 1)

    def _split_heads(self, G: Tensor) -> Tensor:
        """Transpose of :meth:`Attention.join_heads`: (…, n, output_dim) → (batch·heads, n, p)."""
        if self.attention.output is not None:
            G = G @ self.attention.output
        return self._per_head(G)

    def _per_head(self, tokens: Tensor) -> Tensor:
        """(…, n, heads·p) → (batch·heads, n, p)."""
        return tokens.unflatten(-1, (self.attention.heads, -1)).transpose(-3, -2).flatten(0, -3)


class ShortAttentionJacobian(AttentionJacobian):
    r"""The same for few tokens, whose scores are small beside their keys: S comes from H directly.

    With the rows :math:`A^\top x_j` and :math:`A x_i + c` of the theory, kept for every token and head,
    :math:`S_{ij} = A^\top x_j\cdot h_i + (A x_i + c)\cdot h_j`: one product with 2n vectors a head in the place of two
    with the weights, and no tangents of queries and keys.

    Raises
    ------
    ValueError
        If the attention has rotary positions: A is then another matrix for each two positions.

    Examples
    --------
    >>> import torch
    >>> from lipcore import Attention
    >>> f, X = Attention.from_matrices(torch.ones(1, 1), torch.eye(1)), torch.tensor([[1.0], [-1.0]])
    >>> H = torch.tensor([[1.0], [0.0]])
    >>> bool((ShortAttentionJacobian(f, X).matvec(H) - AttentionJacobian(f, X).matvec(H)).abs().max() < 1e-6)
    True
    """

    @torch.no_grad()
    def __init__(self, attention: Attention, X: Tensor) -> None:
        if attention.rotary is not None:
            raise ValueError("attention: expected one without rotary positions")
        super().__init__(attention, X, store=True)
        q, k = (x.unflatten(0, (-1, attention.heads)) for x in (self._q, self._k))
        # Aᵀx_j and A x_i + c, (batch, heads·n, d) each
        self._own = torch.einsum("bhjk,hkd->bhjd", attention.scale * k, attention.query).flatten(
            1, 2
        )
        self._others = torch.einsum("bhik,hkd->bhid", q, attention.key).flatten(1, 2)
        self._value, self._P = attention.value.flatten(0, 1), torch.cat(self._weights)

    @staticmethod
    def pays(attention: Attention, X: Tensor) -> bool:
        """Whether the rows are few beside the weights, and small enough to stay in the cache between products."""
        n, k = X.shape[-2], attention.query.shape[1]
        rows = math.prod(X.shape[:-2]) * 2 * attention.heads * n
        return (
            attention.rotary is None
            and 4 * n <= k
            and rows * attention.d * X.dtype.itemsize <= ROWS_BYTES
        )

    @torch.no_grad()
    def matvec(self, H: Tensor) -> Tensor:
        """D_X f[H], shape (…, n, output_dim)."""
        H = self._check("H", H, self.input_shape).reshape(-1, *self.input_shape)
        own, others = (
            torch.bmm(H, rows.mT).unflatten(2, (self.attention.heads, -1))
            for rows in (self._own, self._others)
        )
        S = own.transpose(1, 2) + others.permute(0, 2, 3, 1)  # own query q̇·k, others' keys q·k̇
        out = torch.bmm(self._softmax_tangent(self._P, S.flatten(0, 1), self._heaviest), self._v)
        out.baddbmm_(self._P, self._per_head(H @ self._value.mT))  # mixing
        return self.attention.join_heads(
            out.unflatten(0, (*self.batch_shape, self.attention.heads))
        )

    @torch.no_grad()
    def rmatvec(self, G: Tensor) -> Tensor:
        """(D_X f)ᵀ[G], shape (…, n, d): each term of :meth:`matvec` turned round."""
        g = self._split_heads(self._check("G", G, self.output_shape))
        S = self._softmax_tangent(self._P, torch.bmm(g, self._v.mT), self._heaviest)
        S = S.unflatten(0, (-1, self.attention.heads))
        dv = torch.bmm(self._P.mT, g).unflatten(0, S.shape[:2]).transpose(1, 2).flatten(2)  # mixing
        H = dv @ self._value
        H.baddbmm_(S.transpose(1, 2).flatten(2), self._own).baddbmm_(
            S.flatten(1, 2).mT, self._others
        )
        return H.reshape(*self.batch_shape, *self.input_shape)


class AutogradJacobian(LinearOperator):
    """The Jacobian of any differentiable map at X, by automatic differentiation.

    Parameters
    ----------
    fn : callable
        Maps (…, n, d) to (…, …): everything before the last two dimensions of X is a batch, whose members must not
        influence one another. A module must be in evaluation mode.
    X : Tensor, shape (…, n, d)

    Raises
    ------
    ValueError
        If the module trains, if two calls differ (dropout), or if the output does not keep the batch.

    Notes
    -----
    Fused attention has no forward-mode derivative on every device: the map is run with PyTorch's mathematical
    kernel, which has one.

    Examples
    --------
    >>> import torch
    >>> AutogradJacobian(torch.sin, torch.zeros(2, 1)).matvec(torch.ones(2, 1)).flatten()
    tensor([1., 1.])
    """

    def __init__(self, fn: Callable[[Tensor], Tensor], X: Tensor) -> None:
        if not callable(fn):
            raise TypeError(f"fn: expected a callable, got {type(fn).__name__}")
        X = check_tokens(X)
        _refuse_training(fn)
        self._fn = fn
        with _autodiff(), torch.no_grad():
            self._X = X.detach().clone(memory_format=torch.contiguous_format)
            value = self._call(self._X)
            self._check_output(value)
            if not torch.equal(value, self._call(self._X)):
                raise ValueError(
                    "fn: expected the same output at the same X, got two: call .eval() if it has dropout"
                )
        self.batch_shape, self.input_shape = tuple(X.shape[:-2]), tuple(X.shape[-2:])
        self.output_shape = tuple(value.shape[len(self.batch_shape) :])
        self.dtype, self.device = X.dtype, X.device
        self._push = self._pull = None

    def _call(self, X: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return self._fn(X.clone())  # a map that works in place must not change X

    def _check_output(self, value: object) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(
                f"fn: expected a map that returns a tensor, got {type(value).__name__}: "
                "wrap it, for example lambda X: module(X)[0]"
            )
        check_same_kind("fn(X)", value, self._X, "X")
        batch = self._X.shape[:-2]
        if value.shape[: len(batch)] != batch:
            raise ValueError(
                f"fn: expected an output that begins with the batch {tuple(batch)}, got shape {tuple(value.shape)}"
            )
        if not bool(torch.isfinite(value).all()):
            raise ValueError("fn: expected a finite output at X, got NaN or infinity")

    def matvec(self, H: Tensor) -> Tensor:
        """J[H], by forward mode (the tangent map is traced once)."""
        self._check("H", H, self.input_shape)
        if self._push is None:
            self._push = _explained(self._trace_push)
        return _explained(
            lambda: self._push(H.clone())
        )  # clones, for tensors made in inference mode

    def _trace_push(self) -> Callable[[Tensor], Tensor]:
        try:  # traced once, the tangent map costs half of a jvp
            with warnings.catch_warnings():  # PyTorch warns of its own constant folding
                warnings.filterwarnings("ignore", message="Attempted to insert a get_attr Node")
                return torch.func.linearize(self._call, self._X)[1]
        except RuntimeError:  # a map that looks at values (checks, branches) cannot be traced
            return lambda H: torch.func.jvp(self._call, (self._X,), (H,))[
                1
            ]  # [0] would be the primal f(X)

    def rmatvec(self, G: Tensor) -> Tensor:
        """Jᵀ[G], by reverse mode."""
        self._check("G", G, self.output_shape)
        if self._pull is None:
            self._pull = _explained(lambda: torch.func.vjp(self._call, self._X)[1])
        return _explained(lambda: self._pull(G.clone()))[0]


@contextlib.contextmanager
def _autodiff() -> Iterator[None]:
    """Alone, and outside inference mode, in which derivatives would be zero without a word."""
    with _AUTODIFF, torch.inference_mode(False):
        yield


def _refuse_training(fn: Callable) -> None:
    module = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    if isinstance(module, nn.Module) and any(part.training for part in module.modules()):
        raise ValueError(
            f"fn: expected a module in evaluation mode, got {type(module).__name__} in training mode: "
            "call .eval() first"
        )


def _explained(compute: Callable):
    """Run ``compute``; where autodiff has no rule, say in one line what to change."""
    try:
        with _autodiff():
            return compute()
    except (NotImplementedError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise NotImplementedError(
            f"fn: automatic differentiation has no rule for an operation in it ({reason[:200]}): use explicit softmax "
            "(for transformers models, attn_implementation='eager')"
        ) from error
