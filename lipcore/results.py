"""The result of measuring σ: its numbers and singular vectors, and how they are read and shown."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from lipcore.attribution import head_and_term_shares

#: Members that are printed at most; the rest is counted.
SHOWN = 20
_NUMBERS = ("value", "lower", "upper", "residual", "iterations", "converged")
_VECTORS = ("left", "right")
_TITLES = ("member", "σ", "lower", "upper", "probability", "products", "converged")


@dataclass(frozen=True, eq=False, repr=False)
class SpectralNorm:
    """The result of an iteration for σ_max, with one entry for each member of the batch.

    ``print`` shows one line for each member, and a notebook shows a table. ``r[i]`` and a loop give
    the members along the first dimension of the batch; ``float(r)`` is σ if there is one member.

    Attributes
    ----------
    value : Tensor
        The estimate: a lower bound, up to rounding.
    lower, upper : Tensor
        The bracket of σ. ``lower`` (= ``value``) always holds; without certificate ``upper`` is
        infinite.
    probability : float or None
        Probability, over the random start, with which ``upper`` holds whenever the iteration
        stopped: 1 where a bound was passed in, None without a certificate.
    residual : Tensor
        ``‖Jᵀu − σ v‖``; *some* singular value is at most this far from ``value``.
    iterations : Tensor of int
        Pairs of products (J and Jᵀ) that each member used.
    converged : Tensor of bool
        Whether the estimated relative error of ``value`` is at most ``tol``. With the probability
        asked for, the error is certain to be at most √tol; a bound that was passed in may be wider.
    left, right : Tensor
        Unit singular vectors u, v, shaped as outputs and inputs of the operator. Their error is
        about the square root of the relative error of ``value``: a smaller ``tol`` sharpens them.
    layer, tokens : Attention or CrossAttention, and Tensor, or None
        The layer and tokens of :func:`~lipcore.local_lipschitz`, if σ was measured there.

    Examples
    --------
    >>> import torch
    >>> from lipcore import spectral_norm
    >>> r = spectral_norm(torch.diag_embed(torch.tensor([[2.0, 1.0], [3.0, 1.0]]).double()))
    >>> print(r)
    [0]  σ = 2  in [2, 2] with probability 0.999; 2 products with J and Jᵀ each, converged
    [1]  σ = 3  in [3, 3] with probability 0.999; 2 products with J and Jᵀ each, converged
    >>> len(r), float(r[1]), f"{r[0]:.2f}", r.to_dict()["lower"]
    (2, 3.0, '2.00', [2.0, 3.0])
    """

    value: Tensor
    lower: Tensor
    upper: Tensor
    probability: float | None
    residual: Tensor
    iterations: Tensor
    converged: Tensor
    left: Tensor
    right: Tensor
    layer: object | None = None
    tokens: Tensor | None = None

    def __float__(self) -> float:
        return self._only_member("float").value.item()

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def __len__(self) -> int:
        if self.value.ndim == 0:
            raise TypeError("the result of a single input has no length: float(r) is its σ")
        return len(self.value)

    def __getitem__(self, index) -> SpectralNorm:
        if self.value.ndim == 0:
            raise IndexError("the result of a single input has no members: float(r) is its σ")
        batch = ("tokens",) if self.tokens is not None else ()
        parts = {name: getattr(self, name)[index] for name in (*_NUMBERS, *_VECTORS, *batch)}
        layer = None if self.layer is None else self.layer.members(tuple(self.value.shape), index)
        return SpectralNorm(probability=self.probability, layer=layer, **parts)

    def __iter__(self) -> Iterator[SpectralNorm]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return "\n".join([*map(_line, self._shown()), *self._hidden()])

    def _repr_html_(self) -> str:
        """Return a table, for notebooks."""
        rows = [[f"<td>{html.escape(cell)}</td>" for cell in row] for row in self._shown()]
        head = "".join(f"<th>{title}</th>" for title in _TITLES)
        body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
        rest = "".join(f"<p>{line}</p>" for line in self._hidden())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"

    def to_dict(self) -> dict:
        """Return the numbers without the vectors, for JSON: lists over the batch, None for ∞."""
        numbers = {name: _finite(getattr(self, name).tolist()) for name in _NUMBERS}
        return numbers | {"probability": self.probability}

    def by_token(self) -> tuple[Tensor, Tensor]:
        """Return the norms of u and of v for each token, shape (…, n) each.

        They show which outputs respond to which inputs. The squares sum to one: they are the
        shares of a token in the response, and in the input.

        Examples
        --------
        >>> import torch
        >>> from lipcore import local_lipschitz
        >>> r = local_lipschitz(lambda X: X * torch.tensor([[1.0], [3.0]]), torch.ones(2, 4))
        >>> [part.square().round(decimals=3).tolist() for part in r.by_token()]
        [[0.0, 1.0], [0.0, 1.0]]
        """
        batch = self.value.ndim
        if min(self.left.ndim, self.right.ndim) < batch + 2:
            shape = tuple(self.right.shape[batch:])
            raise ValueError(f"by_token: expected tokens in and out, got inputs of shape {shape}")
        return tuple(x.flatten(batch + 1).norm(dim=-1) for x in (self.left, self.right))

    def by_head(self) -> Tensor:
        r"""Return what each head adds to σ, :math:`\langle u, J_h v\rangle`, shape (…, heads).

        The entries sum to σ. One is negative where a head works against the others.

        Examples
        --------
        >>> import torch
        >>> from lipcore import Attention, local_lipschitz
        >>> V = torch.stack([torch.eye(2), torch.zeros(2, 2)])  # the second head has no values
        >>> f = Attention(torch.zeros_like(V), torch.zeros_like(V), V)
        >>> local_lipschitz(f, torch.eye(2)).by_head().round(decimals=3).tolist()
        [1.0, 0.0]
        """
        return self._shares("by_head").sum(-1)

    def by_term(self) -> Tensor:
        r"""Return what each term of the Jacobian (:prf:ref:`thm-jacobian`) adds to σ, shape (…, 3).

        The terms are mixing, own query (the query term) and others' keys (the key term), and where
        there are gates a fourth, their derivative. The entries sum to σ, and one may be negative.

        Examples
        --------
        >>> import torch
        >>> from lipcore import Attention, local_lipschitz
        >>> f = Attention.from_matrices(torch.zeros(2, 2), torch.eye(2))  # no scores
        >>> local_lipschitz(f, torch.eye(2)).by_term().round(decimals=3).tolist()
        [1.0, 0.0, 0.0]
        """
        return self._shares("by_term").sum(-2)

    def _shares(self, name: str) -> Tensor:
        if self.layer is None:
            expected = "the result of local_lipschitz(attention, X)"
            raise ValueError(f"{name}: expected {expected}, got one whose map has no known heads")
        return head_and_term_shares(self.layer, self.tokens, self.left, self.right)

    def _only_member(self, name: str) -> SpectralNorm:
        if self.value.numel() != 1:
            members = self.value.numel()
            raise TypeError(f"{name}: expected the result of one input, got {members}: take r[i]")
        return self

    def _shown(self) -> list[list[str]]:
        """Return the cells of one line for each member: its place in the batch, and its numbers."""
        columns = [getattr(self, name).reshape(-1)[:SHOWN].tolist() for name in _NUMBERS]
        rows = []
        for place, numbers in enumerate(zip(*columns, strict=True)):
            value, lower, upper, _, iterations, converged = numbers
            probability = "–" if self.probability is None else f"{self.probability:g}"
            cells = [f"{x:.6g}" for x in (value, lower, upper)]
            cells += [probability, str(iterations), "yes" if converged else "no"]
            rows.append([_place(place, tuple(self.value.shape)), *cells])
        return rows

    def _hidden(self) -> list[str]:
        more = self.value.numel() - SHOWN
        return [f"… and {more} more"] if more > 0 else []


def _line(cells: list[str]) -> str:
    place, value, lower, upper, probability, iterations, converged = cells
    bracket = f"in [{lower}, {upper}] with probability {probability}"
    if probability == "–":
        bracket = f"at least {lower}, without a certificate"
    counted = f"{iterations} products with J and Jᵀ each"
    state = "converged" if converged == "yes" else "not converged"
    return f"{place}  σ = {value}  {bracket}; {counted}, {state}".strip()


def _place(flat: int, shape: tuple[int, ...]) -> str:
    """Return the indices of member number ``flat`` in the batch, as ``[1, 0]``; or nothing."""
    indices = []
    for size in reversed(shape):
        indices.insert(0, flat % size)
        flat //= size
    return f"[{', '.join(map(str, indices))}]" if shape else ""


def _finite(numbers):
    """Return nested lists in which None stands for infinity, for which JSON has no word."""
    if isinstance(numbers, list):
        return [_finite(number) for number in numbers]
    return None if isinstance(numbers, float) and math.isinf(numbers) else numbers
