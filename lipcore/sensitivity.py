r"""The gradient of σ, which leads through its top pair of singular vectors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lipcore._checks import check_number
from lipcore.autodiff import undisturbed
from lipcore.operators import LinearOperator
from lipcore.outputs import SomeOutputs, check_norm
from lipcore.results import SpectralNorm

#: A warning is given where two singular values are closer than this share of σ, which then has a
#: kink, or nearly so.
SMALLEST_GAP = 1e-3


def differentiated(
    measure: Callable[..., SpectralNorm],
    J: LinearOperator,
    fn: Callable[[Tensor], Tensor],
    X: Tensor,
    *,
    norm: str = "frobenius",
    tokens: int | slice | None = None,
    tol: float = 1e-4,
    **options,
) -> SpectralNorm:
    """Return σ with its gradient, and warn where the two largest singular values nearly cross.

    Parameters
    ----------
    measure : callable
        How the norm of an operator is measured: :func:`lipcore.spectral_norm`.
    J : LinearOperator
        The Jacobian of ``fn`` at X.
    fn, X
        As for :func:`with_gradient`.
    norm, tokens
        As for :func:`lipcore.outputs.measured_at`; of the norms, only the first has a gradient.
    tol, **options
        Those of ``measure``, which runs to tol².

    Raises
    ------
    ValueError, TypeError
        If the norm is "token", or there are no such tokens.
    """
    if check_norm(norm) != "frobenius":
        raise ValueError(f"norm: expected 'frobenius' with differentiable=True, got {norm!r}")
    seen = J if tokens is None else SomeOutputs(J, tokens)
    rounding = 16 * torch.finfo(X.dtype).eps
    tol = max(check_number("tol", tol, minimum=0, strict=True) ** 2, rounding)
    found = measure(seen, tol=tol, **options)
    rest = Deflated(seen, found.value, found.left, found.right)
    start = torch.Generator().manual_seed(1)  # another start: the first may be u's own v
    second = measure(rest, tol=1e-2, generator=start).value
    warn_of_crossings(found.value, second)
    value = with_gradient(fn, X, found.left, found.right, batch=found.value.ndim)
    return replace(found, value=value)


def with_gradient(
    fn: Callable[[Tensor], Tensor], X: Tensor, left: Tensor, right: Tensor, *, batch: int = 0
) -> Tensor:
    r"""Return :math:`\langle u, D_Xf[v]\rangle`, differentiable in X and the parameters of ``fn``.

    Where σ is a simple singular value of :math:`D_Xf`, its derivative is that of this number with
    the unit singular vectors u and v held fixed.

    Parameters
    ----------
    fn : callable
        Differentiable twice, from X to a tensor with the same batch in front.
    X : Tensor, shape (…, n, d)
        It may require a gradient.
    left, right : Tensor
        The singular vectors u and v, shaped as outputs and inputs.
    batch : int
        How many of the first dimensions are the batch.

    Returns
    -------
    Tensor
        σ, one entry for each member of the batch.

    Raises
    ------
    RuntimeError
        If an operation can be differentiated once only.

    Examples
    --------
    >>> X = torch.tensor([[2.0]], requires_grad=True)
    >>> sigma = with_gradient(lambda X: X**3, X, torch.ones(1, 1), torch.ones(1, 1))  # 3x²
    >>> sigma.item(), torch.autograd.grad(sigma, X)[0].item()
    (12.0, 12.0)
    """
    with undisturbed(X.device):
        point = X if X.requires_grad else X.detach().clone().requires_grad_()
        output = fn(point.clone())
        pulled = torch.autograd.grad(
            output, point, left.detach(), create_graph=True, materialize_grads=True
        )[0]
        return (pulled * right.detach()).reshape(*X.shape[:batch], -1).sum(-1)


def warn_of_crossings(first: Tensor, second: Tensor) -> None:
    """Warn where the two largest singular values are too close for σ to have a gradient.

    Parameters
    ----------
    first, second : Tensor
        The two largest singular values of each member.

    Examples
    --------
    >>> warn_of_crossings(torch.tensor([2.0]), torch.tensor([1.0]))
    """
    close = (first - second).flatten() <= SMALLEST_GAP * first.flatten()
    if bool((close & (first.flatten() > 0)).any()):
        members = close.nonzero().flatten().tolist()[:5]
        warnings.warn(
            f"differentiable: the two largest singular values of members {members} are within "
            f"{SMALLEST_GAP:g} of each other: there σ has no gradient, or an inaccurate one",
            stacklevel=3,
        )


class Deflated(LinearOperator):
    """The operator J − σ u vᵀ, which is J without its top singular triple.

    Parameters
    ----------
    operator : LinearOperator
    value, left, right : Tensor
        σ, u and v of each member.

    Examples
    --------
    >>> from lipcore.operators import MatrixOperator
    >>> e = torch.tensor([1.0, 0.0])
    >>> J = MatrixOperator(torch.diag(torch.tensor([3.0, 2.0])))
    >>> Deflated(J, torch.tensor(3.0), e, e).dense().tolist()
    [[0.0, 0.0], [0.0, 2.0]]
    """

    def __init__(
        self, operator: LinearOperator, value: Tensor, left: Tensor, right: Tensor
    ) -> None:
        self._describe(operator, operator.batch_shape, operator.input_shape, operator.output_shape)
        self.operator = operator
        self._triple = (value, left, right)

    def matvec(self, H: Tensor) -> Tensor:
        """Return J[H] − σ ⟨v, H⟩ u."""
        value, left, right = self._triple
        return self.operator.matvec(H) - self._along(value, right, H, left)

    def rmatvec(self, G: Tensor) -> Tensor:
        """Return Jᵀ[G] − σ ⟨u, G⟩ v."""
        value, left, right = self._triple
        return self.operator.rmatvec(G) - self._along(value, left, G, right)

    def _along(self, value: Tensor, seen: Tensor, vector: Tensor, given: Tensor) -> Tensor:
        batch = value.ndim
        amount = value * (seen * vector).reshape(*value.shape, -1).sum(-1)
        return amount.reshape(*value.shape, *[1] * (given.ndim - batch)) * given
