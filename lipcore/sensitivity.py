r"""σ as a function that can be differentiated: its gradient through the top singular pair."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from lipcore.autodiff import undisturbed
from lipcore.operators import LinearOperator

#: Two singular values closer than this share of σ are reported: there σ has a kink, or nearly so.
SMALLEST_GAP = 1e-3


def with_gradient(
    fn: Callable[[Tensor], Tensor], X: Tensor, left: Tensor, right: Tensor, *, batch: int = 0
) -> Tensor:
    r""":math:`\langle u, D_Xf[v]\rangle` in the graph of X and of the parameters of ``fn``.

    Where σ is a simple singular value of :math:`D_Xf`, its derivative is that of this number with
    the unit singular vectors u and v held fixed.

    Parameters
    ----------
    fn : callable
        Differentiable twice, from X to a tensor with the same batch in front.
    X : Tensor, shape (…, n, d)
        It may want a gradient.
    left, right : Tensor
        u and v, shaped as outputs and inputs.
    batch : int
        How many of the first dimensions are the batch.

    Returns
    -------
    Tensor
        σ, one entry a member of the batch.

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
        Of each member.

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
    """J − σ u vᵀ: what is left of J without its top singular triple.

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
        """J[H] − σ ⟨v, H⟩ u."""
        value, left, right = self._triple
        return self.operator.matvec(H) - self._along(value, right, H, left)

    def rmatvec(self, G: Tensor) -> Tensor:
        """Jᵀ[G] − σ ⟨u, G⟩ v."""
        value, left, right = self._triple
        return self.operator.rmatvec(G) - self._along(value, left, G, right)

    def _along(self, value: Tensor, seen: Tensor, vector: Tensor, given: Tensor) -> Tensor:
        batch = value.ndim
        amount = value * (seen * vector).reshape(*value.shape, -1).sum(-1)
        return amount.reshape(*value.shape, *[1] * (given.ndim - batch)) * given
