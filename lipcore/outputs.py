r"""Which output tokens a constant is about: all of them, some of them, or the one that moves most.

All inputs move together by Frobenius norm one. The rows of J that belong to output token i are
:math:`J_i`, and

.. math:: \|J\|_{F\to\text{token}} = \max_{\|H\|_F\le1}\max_i \|(J[H])_i\| = \max_i \|J_i\|_2 .

It is at most :math:`\|J\|_2`, and at least :math:`\|J\|_2/\sqrt n` (:prf:ref:`prop-depth-norms`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lipcore._checks import check_number
from lipcore.operators import LinearOperator
from lipcore.results import SpectralNorm

#: How the move of the outputs is measured.
NORMS = ("frobenius", "token")


class SomeOutputs(LinearOperator):
    """The operator J with zeros in place of the output tokens that are not looked at.

    Parameters
    ----------
    J : LinearOperator
        Its outputs are tokens, (…, n, p).
    tokens : int or slice
        Which of the n are looked at; negative numbers count from the last.

    Raises
    ------
    ValueError, TypeError
        If there are no such tokens.

    Examples
    --------
    >>> from lipcore import AutogradJacobian
    >>> J = AutogradJacobian(lambda X: 2 * X, torch.zeros(3, 1))
    >>> SomeOutputs(J, -1).dense().tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 2.0]]
    """

    def __init__(self, J: LinearOperator, tokens: int | slice) -> None:
        self._describe(J, J.batch_shape, J.input_shape, J.output_shape)
        self.tokens = check_outputs(J, tokens)
        self.operator = J

    def matvec(self, H: Tensor) -> Tensor:
        """Return J[H], with zeros at the tokens that are not looked at."""
        return self._kept(self.operator.matvec(H))

    def rmatvec(self, G: Tensor) -> Tensor:
        """Return Jᵀ[G], where G counts only at the tokens that are looked at."""
        return self.operator.rmatvec(self._kept(self._check("G", G, self.output_shape)))

    def _kept(self, G: Tensor) -> Tensor:
        kept = torch.zeros_like(G)
        kept[..., self.tokens, :] = G[..., self.tokens, :]
        return kept


def check_norm(norm: str) -> str:
    """Return the norm if it is one of :data:`NORMS`, else raise ValueError.

    Examples
    --------
    >>> check_norm("token")
    'token'
    """
    if norm not in NORMS:
        raise ValueError(f"norm: expected one of {', '.join(NORMS)}, got {norm!r}")
    return norm


def check_outputs(J: LinearOperator, tokens: int | slice) -> slice:
    """Return the output tokens as a slice, or raise ValueError or TypeError if there are none."""
    if len(J.output_shape) < 2:
        got = f"outputs of shape {J.output_shape}"
        raise ValueError(f"tokens, norm: expected a map that puts out tokens (…, n, p), got {got}")
    n = J.output_shape[-2]
    if isinstance(tokens, slice):
        if not range(n)[tokens]:
            raise ValueError(f"tokens: expected some of the {n} outputs, got none by {tokens}")
        return tokens
    if isinstance(tokens, bool) or not hasattr(tokens, "__index__"):
        raise TypeError(f"tokens: expected a whole number or a slice, got {tokens!r}")
    token = operator.index(tokens)
    if not -n <= token < n:
        raise ValueError(f"tokens: expected {-n} to {n - 1}, got {token}")
    return slice(token % n, token % n + 1)


def measured_at(
    measure: Callable[..., SpectralNorm],
    J: LinearOperator,
    *,
    norm: str = "frobenius",
    tokens: int | slice | None = None,
    probability: float | None = 0.999,
    **options,
) -> SpectralNorm:
    """Return the largest move of the output tokens that are looked at, in the norm asked for.

    Parameters
    ----------
    measure : callable
        How the norm of an operator is measured: :func:`lipcore.spectral_norm`.
    J : LinearOperator
    norm : {"frobenius", "token"}
        The norm of the outputs: of all that are looked at together, or of the one that moves most.
    tokens : int or slice, optional
        Which outputs are looked at; all if left out.
    probability : float, optional
        Probability with which ``upper`` holds. For ``"token"`` each of m brackets is asked to fail
        m times less often, so that all of them hold together with this probability.
    **options
        Options of ``measure``.

    Returns
    -------
    SpectralNorm
        ``left`` has the shape of all outputs, and is zero where they are not looked at. For
        ``"token"`` it belongs to the token that moves most; ``iterations`` are those of all.

    Raises
    ------
    ValueError, TypeError
        If the norm is unknown, or there are no such tokens.

    Examples
    --------
    >>> from lipcore import AutogradJacobian, spectral_norm
    >>> scale = torch.tensor([[3.0], [4.0]])
    >>> J = AutogradJacobian(lambda X: scale * X.sum(-2, keepdim=True), torch.zeros(1, 1))
    >>> [round(float(measured_at(spectral_norm, J, norm=norm)), 3) for norm in NORMS]
    [5.0, 4.0]
    >>> round(float(measured_at(spectral_norm, J, tokens=0)), 3)
    3.0
    """
    if check_norm(norm) == "frobenius":
        seen = J if tokens is None else SomeOutputs(J, tokens)
        return measure(seen, probability=probability, **options)
    looked_at = check_outputs(J, slice(None) if tokens is None else tokens)
    places = range(J.output_shape[-2])[looked_at]
    each = probability
    if probability is not None:
        limits = {"minimum": 0, "strict": True, "maximum": 1 - 1e-12 * len(places)}
        each = 1 - (1 - check_number("probability", probability, **limits)) / len(places)
    found = functools.reduce(
        _larger, (measure(SomeOutputs(J, i), probability=each, **options) for i in places)
    )
    return replace(found, probability=probability) if found.probability == each else found


def _larger(a: SpectralNorm, b: SpectralNorm) -> SpectralNorm:
    """Return for each member the larger of two, with a bracket of the larger of both truths."""
    wins = b.value > a.value

    def chosen(name: str) -> Tensor:
        one = getattr(a, name)
        shape = (*wins.shape, *[1] * (one.ndim - wins.ndim))
        return torch.where(wins.reshape(shape), getattr(b, name), one)

    return replace(
        a,
        **{name: chosen(name) for name in ("value", "lower", "residual", "left", "right")},
        upper=torch.maximum(a.upper, b.upper),
        iterations=a.iterations + b.iterations,
        converged=a.converged & b.converged,
    )
