"""Linear operators that are known by their products with arrays of tokens, (…, n, d).

Arguments that do not fit raise a ValueError or a TypeError.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_tokens


class LinearOperator:
    """A batch of linear maps between token arrays, known by its products alone.

    Attributes
    ----------
    batch_shape, input_shape, output_shape : tuple of int
        Shapes of the batch, and of one input and one output without it.
    dtype, device
        The dtype and device of inputs and outputs.
    """

    _transposed_from = None

    def _describe(self, like, batch_shape, input_shape, output_shape) -> None:
        """Set the shapes; dtype and device are those of the tensor or operator ``like``."""
        self.batch_shape = tuple(batch_shape)
        self.input_shape = tuple(input_shape)
        self.output_shape = tuple(output_shape)
        self.dtype = like.dtype
        self.device = like.device

    def matvec(self, H: Tensor) -> Tensor:
        """Return J[H], (…, input_shape) → (…, output_shape), and leave H as it is."""
        raise NotImplementedError

    def rmatvec(self, G: Tensor) -> Tensor:
        """Return Jᵀ[G], (…, output_shape) → (…, input_shape), and leave G as it is."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers (rows, columns) of one matrix of the batch."""
        return math.prod(self.output_shape), math.prod(self.input_shape)

    @property
    def T(self) -> LinearOperator:
        """The transposed operator."""
        if self._transposed_from is not None:
            return self._transposed_from
        transposed = LinearOperator()
        transposed._transposed_from = self
        transposed._describe(self, self.batch_shape, self.output_shape, self.input_shape)
        transposed.matvec = self.rmatvec
        transposed.rmatvec = self.matvec
        return transposed

    def dense(self) -> Tensor:
        """Return the matrices, (…, rows, columns), one product for each column: for small cases."""
        rows, columns = self.shape
        basis = torch.eye(columns, dtype=self.dtype, device=self.device)
        shape = (*self.batch_shape, *self.input_shape)
        images = [self.matvec(e.reshape(self.input_shape).expand(shape)) for e in basis]
        return torch.stack([image.reshape(*self.batch_shape, rows) for image in images], dim=-1)

    def _check(self, name: str, tensor: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        expected = (*self.batch_shape, *event_shape)
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name}: expected shape {expected}, got {tuple(tensor.shape)}")
        if tensor.dtype != self.dtype or tensor.device != self.device:
            got = f"{tensor.dtype} on {tensor.device}"
            raise TypeError(f"{name}: expected {self.dtype} on {self.device}, got {got}")
        return tensor


class MatrixOperator(LinearOperator):
    """A batch of matrices, shape (…, rows, columns), as an operator."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = check_tokens(matrix, name="matrix")
        *batch, rows, columns = matrix.shape
        self._describe(matrix, batch, (columns,), (rows,))

    def matvec(self, H: Tensor) -> Tensor:
        """Return the matrix times H."""
        return (self.matrix @ self._check("H", H, self.input_shape)[..., None])[..., 0]

    def rmatvec(self, G: Tensor) -> Tensor:
        """Return the transposed matrix times G."""
        return (self.matrix.mT @ self._check("G", G, self.output_shape)[..., None])[..., 0]
