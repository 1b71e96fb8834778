"""Linear operators that are known by their products with arrays of tokens, (…, n, d).

Arguments that do not fit raise a ValueError or a TypeError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import scipy.sparse.linalg
import torch
from torch import Tensor

from lipcore._checks import check_tokens, require


class LinearOperator:
    """A batch of linear maps between token arrays, known by its products alone.

    Attributes
    ----------
    batch_shape, input_shape, output_shape : tuple of int
        Shapes of the batch, and of one input and one output without it.
    dtype, device
        The dtype and device of inputs and outputs.
    allows_inference_mode : bool
        Whether products may run in PyTorch's inference mode, where calls cost less.
    rounding : Tensor or None
        For each member, a bound on the error of a product with a unit vector, to first order in the
        dtype's ε. None where no bound is known.
    noise : float
        What is known of rounding instead: its share of a product, as far as it was measured.
    """

    allows_inference_mode: bool = False
    rounding: Tensor | None = None
    noise: float = 0.0

    def _describe(self, like, batch_shape, input_shape, output_shape) -> None:
        """Set the shapes; dtype and device are those of the tensor or operator ``like``."""
        self.batch_shape: tuple[int, ...] = tuple(batch_shape)
        self.input_shape: tuple[int, ...] = tuple(input_shape)
        self.output_shape: tuple[int, ...] = tuple(output_shape)
        self.dtype: torch.dtype = like.dtype
        self.device: torch.device = like.device

    def matvec(self, H: Tensor) -> Tensor:
        """Return J[H], (…, input_shape) → (…, output_shape), and leave H as it is."""
        raise NotImplementedError

    def rmatvec(self, G: Tensor) -> Tensor:
        """Return Jᵀ[G], (…, output_shape) → (…, input_shape), and leave G as it is."""
        raise NotImplementedError

    def in_float64(self) -> LinearOperator | None:
        """Return this operator with products in float64, or None if it has none."""
        return self if self.dtype == torch.float64 else None

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers (rows, columns) of one matrix of the batch."""
        return math.prod(self.output_shape), math.prod(self.input_shape)

    @property
    def T(self) -> LinearOperator:
        """The transposed operator."""
        shapes = self.batch_shape, self.output_shape, self.input_shape
        return FunctionOperator(self.rmatvec, self.matvec, self, *shapes)

    def __matmul__(self, other: LinearOperator) -> LinearOperator:
        """Return the product: first ``other``, then this operator."""
        fit = (other.batch_shape, other.output_shape) == (self.batch_shape, self.input_shape)
        sizes = [f"{J.batch_shape}, {J.input_shape} → {J.output_shape}" for J in (self, other)]
        require(fit, "@", "operators that fit", " and ".join(sizes))
        products = (
            lambda H: self.matvec(other.matvec(H)),
            lambda G: other.rmatvec(self.rmatvec(G)),
        )
        shapes = self.batch_shape, other.input_shape, self.output_shape
        return FunctionOperator(*products, self, *shapes)

    def dense(self) -> Tensor:
        """Return the matrices, (…, rows, columns), one product for each column: for small cases."""
        rows, columns = self.shape
        basis = torch.eye(columns, dtype=self.dtype, device=self.device)
        shape = (*self.batch_shape, *self.input_shape)
        images = [self.matvec(e.reshape(self.input_shape).expand(shape)) for e in basis]
        return torch.stack([image.reshape(*self.batch_shape, rows) for image in images], dim=-1)

    def to_scipy(self) -> scipy.sparse.linalg.LinearOperator:
        """Return the operator for SciPy, on flat NumPy arrays; the batch has one member.

        Examples
        --------
        >>> from scipy.sparse.linalg import svds
        >>> J = MatrixOperator(torch.diag(torch.tensor([3.0, 2.0, 1.0])))
        >>> svds(J.to_scipy(), k=2, return_singular_vectors=False, random_state=0).round(3).tolist()
        [2.0, 3.0]
        """
        members = math.prod(self.batch_shape)
        require(members == 1, "to_scipy", "a batch of one", f"{members} members")

        def product(multiply, shape):
            def multiplied(x):
                tokens = torch.as_tensor(x, dtype=self.dtype, device=self.device)
                image = multiply(tokens.reshape((*self.batch_shape, *shape)))
                return image.detach().flatten().cpu().numpy()

            return multiplied

        forth = product(self.matvec, self.input_shape)
        back = product(self.rmatvec, self.output_shape)
        kind = str(self.dtype).removeprefix("torch.")
        return scipy.sparse.linalg.LinearOperator(self.shape, forth, back, dtype=kind)

    def _check(self, name: str, tensor: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        # called before every product: what is said of a refusal is put together only then
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
        expected = (*self.batch_shape, *event_shape)
        if tensor.shape != expected:
            raise ValueError(f"{name}: expected shape {expected}, got {tuple(tensor.shape)}")
        if tensor.dtype != self.dtype or tensor.device != self.device:
            got = f"{tensor.dtype} on {tensor.device}"
            raise TypeError(f"{name}: expected {self.dtype} on {self.device}, got {got}")
        return tensor


class MatrixOperator(LinearOperator):
    """A batch of matrices, shape (…, rows, columns), as an operator."""

    allows_inference_mode = True

    def __init__(self, matrix: Tensor) -> None:
        self.matrix: Tensor = check_tokens(matrix, name="matrix")
        *batch, rows, columns = matrix.shape
        self._describe(matrix, batch, (columns,), (rows,))

    def matvec(self, H: Tensor) -> Tensor:
        """Return the matrix times H."""
        return (self.matrix @ self._check("H", H, self.input_shape)[..., None])[..., 0]

    def rmatvec(self, G: Tensor) -> Tensor:
        """Return the transposed matrix times G."""
        return (self.matrix.mT @ self._check("G", G, self.output_shape)[..., None])[..., 0]

    def in_float64(self) -> MatrixOperator:
        """Return the same matrices in float64."""
        return self if self.dtype == torch.float64 else MatrixOperator(self.matrix.double())

    @property
    def rounding(self) -> Tensor:
        """A bound γ‖M‖_F, with entries no larger than the largest, so that nothing overflows."""
        rows, columns = self.shape
        unit = max(rows, columns) * torch.finfo(self.dtype).eps
        return unit * math.sqrt(rows * columns) * self.matrix.detach().abs().amax((-2, -1))


class FunctionOperator(LinearOperator):
    """A batch of linear maps that is given by two functions, J[H] and Jᵀ[G].

    Parameters
    ----------
    matvec, rmatvec : callable
        The products with J and with Jᵀ.
    like : torch.Tensor or LinearOperator
        What has the dtype and the device of the operator.
    batch_shape, input_shape, output_shape : tuple of int
        Shapes of the batch, and of one input and one output without it.

    Examples
    --------
    >>> twice = FunctionOperator(lambda H: 2 * H, lambda G: 2 * G, torch.zeros(1), (), (2,), (2,))
    >>> (twice @ twice).dense().tolist()
    [[4.0, 0.0], [0.0, 4.0]]
    """

    def __init__(
        self,
        matvec: Callable[[Tensor], Tensor],
        rmatvec: Callable[[Tensor], Tensor],
        like: Tensor | LinearOperator,
        batch_shape: Iterable[int],
        input_shape: Iterable[int],
        output_shape: Iterable[int],
    ) -> None:
        self._products = matvec, rmatvec
        self._describe(like, batch_shape, input_shape, output_shape)

    def matvec(self, H: Tensor) -> Tensor:
        """Return J[H]."""
        return self._products[0](self._check("H", H, self.input_shape))

    def rmatvec(self, G: Tensor) -> Tensor:
        """Return Jᵀ[G]."""
        return self._products[1](self._check("G", G, self.output_shape))
