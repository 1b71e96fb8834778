r"""The largest singular value of a batch of linear operators, with a certificate.

Golub–Kahan–Lanczos bidiagonalisation builds orthonormal bases :math:`V_k`, :math:`U_k` with :math:`J V_k = U_k B_k`
from products with J and Jᵀ alone, so that :math:`V_k^\top J^\top J V_k = B_k^\top B_k = T_k`. The largest singular
value θ of the small matrix :math:`B_k` is a lower bound of :math:`\sigma_{\max}(J)`, and the numbers that the
iteration leaves behind bound :math:`\sigma_{\max}` from above.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from lipcore._checks import check_count, check_number
from lipcore._drift import Drift
from lipcore._ritz import has_converged, largest_growth, ritz, steps_to_wait
from lipcore.jacobian import (
    AttentionJacobian,
    AutogradJacobian,
    LinearOperator,
    MatrixOperator,
    ShortAttentionJacobian,
)

_Parts = dict[str, Tensor]  # of a SpectralNorm
_BLOCK = 4096  # numbers in one run of a sum
_FIRST_LOOK = 3  # step of the first certificate; an end of the Krylov space is noticed before


@dataclass(frozen=True, eq=False)
class SpectralNorm:
    """What an iteration found out about σ_max, one entry a member of the batch.

    Attributes
    ----------
    value : Tensor
        The estimate: a lower bound, up to rounding.
    lower, upper : Tensor
        Bracket: ``lower`` (= ``value``) always holds, ``upper`` with probability ``probability`` over the random
        start, at every stopping time, or always where a bound was passed in (then ``probability`` is 1).
    probability : float
        Probability with which ``upper`` holds.
    residual : Tensor
        ``‖Jᵀu − σ v‖``: at most this far from ``value`` lies *some* singular value.
    iterations : Tensor of int
        Pairs of products (J and Jᵀ) that each member used.
    converged : Tensor of bool
        Whether the estimated relative error of ``value`` is at most ``tol``. (Guaranteed, with the probability of
        ``upper``, is √tol: values that crowd at the top may part by less and go unseen.)
    left, right : Tensor
        Unit singular vectors u, v, shaped as outputs and inputs of the operator.
    """

    value: Tensor
    lower: Tensor
    upper: Tensor
    probability: float
    residual: Tensor
    iterations: Tensor
    converged: Tensor
    left: Tensor
    right: Tensor


def spectral_norm(
    operator: LinearOperator | Tensor,
    *,
    method: str = "lanczos",
    tol: float = 1e-4,
    max_iterations: int | None = None,
    generator: torch.Generator | None = None,
    probability: float = 0.999,
    upper_bound: Tensor | float | None = None,
) -> SpectralNorm:
    r"""Largest singular value of every member of a batch of linear operators.

    Parameters
    ----------
    operator : LinearOperator, or Tensor of shape (…, rows, columns)
    method : {"lanczos", "power"}
        Golub–Kahan–Lanczos, its right vectors orthogonalised where they need it, or power iteration for comparison.
    tol : float
        Relative error of ``value`` at which a member stops. Lanczos estimates that error to second order in the
        residual, and goes on until, with confidence ``probability``, the error is at most √tol whatever the spectrum.
        Where many singular values crowd at the top, the estimate can be exceeded, but √tol holds. Power iteration
        stops when its Rayleigh quotient changes by less than tol, which says less.
    max_iterations : int, optional
        Pairs of products at most; 300 for Lanczos (never more than the smaller dimension needs), 1000 for power
        iteration.
    generator : torch.Generator, optional
        Source of the random start; a fixed seed if left out. One start serves the whole batch, so that a member's
        result does not depend on its neighbours. The probability is over this start: it means nothing for an operator
        that was built knowing it.
    probability : float
        Confidence of ``upper``, in (0, 1).
    upper_bound : Tensor or float, optional
        A bound of σ_max known from elsewhere (say :func:`lipcore.bounds.local_upper`): it becomes ``upper``.

    Returns
    -------
    SpectralNorm

    Raises
    ------
    ValueError, TypeError
        For an unknown method, a tolerance or probability out of range, products that are not finite, an
        ``upper_bound`` below the value found, or something that is no operator.

    Notes
    -----
    With N columns, a start uniform on the sphere has :math:`|\langle v_1, z\rangle| \ge s` for the top singular vector
    z with the stated probability, s a quantile of a Beta law. On that event :math:`\sigma_{\max}` satisfies, after
    every k, :math:`\prod_i (\sigma^2 - \theta_i^2) \le \prod_j t_j / s`, with :math:`t_j` beside the diagonal of T
    (van Dorsselaer, Hochstenbach & van der Vorst 2000; Hochstenbach 2013), and
    :math:`\sigma \le \theta_1 \cosh\big(\mathrm{arcosh}(1/s) / (2k-1)\big)`, which does not look at the spectrum
    (compare Kuczyński & Woźniakowski 1992; theory §10).

    Examples
    --------
    >>> import torch
    >>> found = spectral_norm(torch.diag(torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)))
    >>> round(found.value.item(), 6), bool(found.lower <= 3.0 <= found.upper)
    (3.0, True)
    """
    if isinstance(operator, Tensor):
        operator = MatrixOperator(operator)
    if not isinstance(operator, LinearOperator):
        raise TypeError(
            f"operator: expected a LinearOperator or a torch.Tensor, got {type(operator).__name__}"
        )
    if operator.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"operator: expected one of float32 or float64, got {operator.dtype}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator: expected a torch.Generator, got {type(generator).__name__}")
    if method not in ("lanczos", "power"):
        raise ValueError(f"method: expected 'lanczos' or 'power', got {method!r}")
    tol = check_number("tol", tol, minimum=0, strict=True, maximum=1)
    probability = check_number(
        "probability", probability, minimum=0, strict=True, maximum=1 - 1e-12
    )
    if max_iterations is not None:
        max_iterations = check_count("max_iterations", max_iterations)
    start = _random_start(operator, generator)
    overlap = _overlap_quantile(start.shape[-1], 1 - probability)
    run = _lanczos if method == "lanczos" else _power
    with _no_autodiff(operator):
        parts = run(
            operator, start, tol, max_iterations or (300 if method == "lanczos" else 1000), overlap
        )
    found = SpectralNorm(
        **{name: part.clone() for name, part in parts.items()}, probability=probability
    )
    return found if upper_bound is None else _with_bound(found, upper_bound)


def local_lipschitz(
    attention_or_callable, X: Tensor, *, tol: float = 1e-4, **options
) -> SpectralNorm:
    r"""Local Lipschitz constant :math:`\|D_X f\|_2` of a map at X, one for each member of the batch.

    Parameters
    ----------
    attention_or_callable : Attention, or any differentiable map of (…, n, d) tensors
        An :class:`~lipcore.attention.Attention` uses its Jacobian in three terms, anything else autodiff.
    X : Tensor, shape (…, n, d)
    tol : float
        Relative tolerance.
    **options
        As in :func:`spectral_norm`.

    Returns
    -------
    SpectralNorm
        Entries of shape X.shape[:-2].

    Raises
    ------
    TypeError, ValueError
        If X does not fit, is not finite, or the map is a module in training mode.

    Examples
    --------
    >>> import torch
    >>> from lipcore import Attention
    >>> f = Attention.from_matrices(torch.zeros(2, 2), torch.eye(2))
    >>> round(local_lipschitz(f, torch.randn(5, 2)).value.item(), 4)  # averaging has norm one
    1.0
    """
    from lipcore.attention import Attention

    if not isinstance(attention_or_callable, Attention):
        return spectral_norm(AutogradJacobian(attention_or_callable, X), tol=tol, **options)
    if not attention_or_callable.is_narrow:
        with torch.inference_mode():
            J = attention_or_callable.jacobian(X)
        return spectral_norm(J, tol=tol, **options)
    attention_or_callable.check_input(X)
    with torch.no_grad():
        small, inputs, outputs = (
            attention_or_callable.compressed()
        )  # a head alone works in its own few dimensions
        found = spectral_norm(small.jacobian(X @ inputs), tol=tol, **options)
        return replace(found, left=found.left @ outputs.mT, right=found.right @ inputs.mT)


def _random_start(operator: LinearOperator, generator: torch.Generator | None) -> Tensor:
    """One vector uniform on the sphere, shared by the batch: (*batch, N)."""
    columns = operator.shape[1]
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    direction = torch.randn(
        columns, generator=generator, dtype=torch.float64, device=generator.device
    )
    direction = (direction / direction.norm()).to(operator.device, operator.dtype)
    return direction.expand(*operator.batch_shape, columns)


def _overlap_quantile(columns: int, failure: float) -> float:
    """Return s with P(|⟨v, z⟩| < s) = failure for v uniform on the sphere of R^columns, z fixed."""
    if columns == 1:
        return 1.0
    return math.sqrt(betaincinv(0.5, (columns - 1) / 2, failure))


def _no_autodiff(operator: LinearOperator) -> contextlib.AbstractContextManager:
    """Inference mode, in which every call costs less, where the products are known to do without autodiff."""
    ours = type(operator) in (AttentionJacobian, ShortAttentionJacobian, MatrixOperator)
    return torch.inference_mode() if ours else contextlib.nullcontext()


class _Products:
    """The operator on flat vectors (*batch, N), divided by a scale (*batch, 1)."""

    def __init__(self, operator: LinearOperator) -> None:
        self.operator = operator
        self.scale: Tensor | None = None

    def matvec(self, v: Tensor) -> Tensor:
        return self._scaled(self.operator.matvec(_shaped(v, self.operator.input_shape)))

    def rmatvec(self, u: Tensor) -> Tensor:
        return self._scaled(self.operator.rmatvec(_shaped(u, self.operator.output_shape)))

    def _scaled(self, product: Tensor) -> Tensor:
        product = product.detach()  # a module's parameters may ask for gradients
        product = product.reshape(*self.operator.batch_shape, -1)
        return product if self.scale is None else product / self.scale


def _shaped(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(*batch, N) → (*batch, *shape), where shape may be empty: one number."""
    return flat.reshape((*flat.shape[:-1], *shape))


class _Basis:
    """Orthonormal vectors (*batch, N), one after the other in a buffer that grows by doubling."""

    def __init__(self, first: Tensor) -> None:
        self._buffer = first.new_empty(16, *first.shape)
        self._buffer[0] = first
        self.size = 1

    def append(self, vector: Tensor, norm: Tensor) -> Tensor:
        """Append vector/norm and return it."""
        if self.size == len(self._buffer):
            self._buffer = torch.cat([self._buffer, torch.empty_like(self._buffer)])
        self.size += 1
        return _divided(vector, norm, out=self._buffer[self.size - 1])

    @property
    def vectors(self) -> Tensor:
        """Shape (*batch, k, N)."""
        return self._buffer[: self.size].movedim(0, -2)

    def remove_from(self, vector: Tensor) -> Tensor:
        """Subtract the components along the basis."""
        row = vector[..., None, :]  # as a row it is two to three times quicker than as a column
        return vector - (row @ self.vectors.mT @ self.vectors)[..., 0, :]


def _norm(vector: Tensor) -> Tensor:
    """Euclidean norm over the last dimension, shape (*batch, 1).

    Long vectors block by block: PyTorch adds one square after the other, which costs float32 half of its digits.
    """
    whole = vector.shape[-1] // _BLOCK * _BLOCK
    if whole > _BLOCK:
        blocks = torch.linalg.vector_norm(vector[..., :whole].unflatten(-1, (-1, _BLOCK)), dim=-1)
        vector = torch.cat([blocks, vector[..., whole:]], dim=-1)
    return torch.linalg.vector_norm(vector, dim=-1, keepdim=True)


def _safe_norm(vector: Tensor) -> Tensor:
    """Return the same norm, safe from overflow and underflow of the squares."""
    largest = vector.abs().amax(-1, keepdim=True)
    return largest * _norm(vector / torch.where(largest > 0, largest, 1))


def _divided(part: Tensor, by: Tensor, out: Tensor | None = None) -> Tensor:
    """part/by, or zero where both are zero: an exhausted Krylov space adds nothing more."""
    return torch.div(part, by.clamp(min=torch.finfo(by.dtype).tiny), out=out)


def _lanczos(
    operator: LinearOperator, start: Tensor, tol: float, max_iterations: int, overlap: float
) -> _Parts:
    """Golub–Kahan–Lanczos: J V_k = U_k B_k, with B_k upper bidiagonal (diagonal α, superdiagonal β).

    The left vectors stay at their length α, so that JᵀJ V_k = V_k T_k + t_k v_{k+1} e_kᵀ is met without a division:
    T_k = B_kᵀB_k has α_k² + β_{k−1}² on its diagonal and t_k = α_k β_k beside it.
    V alone is kept orthogonal, within the smaller of tol and √ε: this recurrence needs no more, and U follows from its
    own. V stays so by itself until something has converged; only from then on is each new vector orthogonalised against
    all others.
    """
    products, (rows, columns) = _Products(operator), operator.shape
    steps, members = min(max_iterations, rows + 1, columns), math.prod(operator.batch_shape)
    v, u, ratio, eps = start.contiguous(), None, None, torch.finfo(start.dtype).eps
    V, drift, drifted = _Basis(v), Drift(members, steps, eps), False
    diagonal, below, last = (
        np.zeros((members, steps)),
        np.zeros((members, steps)),
        0.0,
    )  # of T_k, on the host
    converged, iterations = np.zeros(members, dtype=bool), np.zeros(members, dtype=int)
    due = np.full(members, _FIRST_LOOK)
    for k in range(1, steps + 1):
        image = products.matvec(v)
        u = image if k == 1 else torch.addcmul(image, ratio, u, value=-1)
        alpha = _norm(u)
        if k == 1 and (scale := _extreme_scale(u, alpha)) is not None:
            products.scale, u = scale, u / scale
            alpha = _norm(u)
        square = alpha * alpha
        w = torch.addcmul(products.rmatvec(u), square, v, value=-1)
        t = whole = _norm(w)
        if drifted:
            w = V.remove_from(w)
            t = _norm(w)
        a, b, lost = _to_host(
            alpha, t, whole
        )  # the one transfer of a step: α, t, and t with what was removed
        diagonal[:, k - 1], below[:, k - 1] = a**2 + last, b
        ahead = ~converged
        iterations[ahead] = k  # a member that has converged keeps what it had
        if drifted:
            again = (b < lost / 2).any()  # little is left, so it is inexact
        else:
            omega = drift.step(diagonal[:, :k], below[:, :k])
            again = drifted = (omega[ahead] >= min(tol, math.sqrt(eps))).any()
        if again:
            w, t, b = _orthogonalised(w, V, b)
            below[:, k - 1] = b
        ended = b <= math.sqrt(eps) * diagonal[:, :k].max(
            1
        )  # of the Krylov space nothing more may come
        look = ahead & ((due <= k) | ended | (k == steps))
        if look.any():
            converged[look], excess = has_converged(
                diagonal[look, :k], below[look, :k], tol, overlap
            )
            due[look] = k + steps_to_wait(excess, k)
        if converged.all() or k == steps:
            break
        v, ratio = V.append(w, t), _divided(t, square)
        last = (b / np.where(a > 0, a, 1)) ** 2
    return _summary(
        products, V.vectors, diagonal[:, :k], below[:, :k], iterations, converged, overlap
    )


def _orthogonalised(w: Tensor, V: _Basis, lost: np.ndarray) -> tuple[Tensor, Tensor, np.ndarray]:
    """Return w less its components along V, and its norm here and on the host; a second time where little was left."""
    for _ in range(2):
        w = V.remove_from(w)
        left = _norm(w)
        (found,) = _to_host(left)
        if (found >= lost / 2).all():
            break
        lost = found
    return w, left, found


def _extreme_scale(image: Tensor, norm: Tensor) -> Tensor | None:
    """Norms of J v_1 where later fourth powers could overflow or vanish, 1 elsewhere; None where no member needs it."""
    limit = (
        torch.finfo(image.dtype).max ** 0.0625
    )  # far from the ends: σ_max may be much larger than ‖J v_1‖
    if bool(((norm < limit) & (norm > 1 / limit)).all()):
        return None
    norm = _safe_norm(image)
    extreme = ((norm > limit) | (norm < 1 / limit)) & (norm > 0) & norm.isfinite()
    return torch.where(extreme, norm, 1) if bool(extreme.any()) else None


def _to_host(*numbers: Tensor) -> np.ndarray:
    """Tensors (*batch, 1) as rows (len(numbers), members) of float64; refuse what is not finite."""
    rows = torch.cat(numbers, dim=-1).reshape(-1, len(numbers)).cpu().numpy().astype(np.float64).T
    if not np.isfinite(rows).all():
        raise ValueError("operator: expected finite products, got NaN or infinity")
    return rows


def _summary(products, V, diagonal, below, iterations, converged, overlap) -> _Parts:
    """Ritz triplet and certificate of each member, from the steps up to its own stop."""
    batch = products.operator.batch_shape
    found = ritz(diagonal, below, iterations)
    growth = largest_growth(found.theta, below, iterations, overlap)
    right = torch.from_numpy(found.right).to(V.device, V.dtype).reshape(*batch, 1, -1)
    v = (right @ V)[..., 0, :]
    v = _divided(v, _norm(v))
    scale, products.scale = products.scale, None
    image = products.matvec(v)  # one product more, and the value is a norm ‖Jv‖ that J does reach
    value = (_norm if scale is None else _safe_norm)(image)
    factor = 1 if scale is None else scale.cpu().double()[..., 0]
    upper, residual = (
        factor * torch.from_numpy(x).reshape(batch)
        for x in (found.theta[:, 0] * growth, found.residual)
    )
    iterations, converged = (torch.from_numpy(x).reshape(batch) for x in (iterations, converged))
    return _result(
        products.operator,
        value[..., 0],
        upper,
        residual,
        iterations,
        converged,
        _divided(image, value),
        v,
    )


def _power(
    operator: LinearOperator, start: Tensor, tol: float, max_iterations: int, overlap: float
) -> _Parts:
    """Power iteration on JᵀJ; a member stops when its Rayleigh quotient changes by less than tol."""
    products, v = _Products(operator), start
    value = start.new_zeros(*operator.batch_shape, 1)
    log_growth = value.double()  # log ‖J(JᵀJ)^{k−1} v_1‖
    iterations = torch.zeros(operator.batch_shape, dtype=torch.long, device=operator.device)
    converged = torch.zeros(operator.batch_shape, dtype=torch.bool, device=operator.device)
    frozen = None
    for k in range(1, max_iterations + 1):
        u = products.matvec(v)
        new_value = _safe_norm(u)
        _to_host(new_value)
        u = _divided(u, new_value)
        w = products.rmatvec(u)
        w_norm = _safe_norm(w)
        log_growth = log_growth + new_value.double().log()
        upper = ((log_growth - math.log(overlap)) / (2 * k - 1)).exp()
        current = (new_value, upper, _safe_norm(w - new_value * v), u, v)
        frozen = (
            current
            if frozen is None
            else tuple(
                torch.where(converged[..., None], old, new)
                for old, new in zip(frozen, current, strict=True)
            )
        )
        iterations = torch.where(converged, iterations, k)
        converged = converged | ((new_value - value).abs() <= tol * new_value)[..., 0]
        if bool(converged.all()):
            break
        log_growth = log_growth + w_norm.double().log()
        value, v = new_value, _divided(w, w_norm)
    value, upper, residual, left, right = frozen
    return _result(
        operator, value[..., 0], upper[..., 0], residual[..., 0], iterations, converged, left, right
    )


def _result(operator, value, upper, residual, iterations, converged, left, right) -> _Parts:
    """Name the parts; ``upper`` gets an allowance for rounding, of a few units in the last place."""
    like = {"dtype": operator.dtype, "device": operator.device}
    value = value.to(**like)
    upper = torch.maximum(value, upper.to(**like)) * (1 + 64 * torch.finfo(operator.dtype).eps)
    return {
        "value": value, "lower": value, "upper": upper, "residual": residual.to(**like),
        "iterations": iterations.to(operator.device), "converged": converged.to(operator.device),
        "left": _shaped(left, operator.output_shape), "right": _shaped(right, operator.input_shape),
    }  # fmt: skip


def _with_bound(found: SpectralNorm, upper_bound: Tensor | float) -> SpectralNorm:
    """Put a bound that always holds in the place of the one that holds with a probability."""
    shape = tuple(found.value.shape)
    try:
        bound = (
            torch.as_tensor(upper_bound, dtype=found.value.dtype, device=found.value.device)
            .detach()
            .expand(shape)
        )
    except (TypeError, ValueError, RuntimeError) as error:
        what = (
            f"shape {tuple(upper_bound.shape)}"
            if isinstance(upper_bound, Tensor)
            else repr(upper_bound)
        )
        raise ValueError(
            f"upper_bound: expected a number, or a tensor of shape {shape}, got {what}"
        ) from error
    rounding = 1 + 64 * torch.finfo(found.value.dtype).eps
    if bool((bound * rounding < found.value).any()) or bool(bound.isnan().any()):
        raise ValueError(
            f"upper_bound: expected at least the value found, {found.value.max().item():.6g}, "
            f"got {bound.min().item():.6g}"
        )
    return replace(found, upper=torch.maximum(bound, found.value), probability=1.0)
