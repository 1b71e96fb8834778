r"""The largest singular value of a batch of linear operators, with a certificate.

Golub–Kahan–Lanczos bidiagonalisation (:prf:ref:`prop-gkl`) builds orthonormal bases :math:`V_k`,
:math:`U_k` with :math:`J V_k = U_k B_k` from products with J and Jᵀ alone. The largest singular
value :math:`\theta_1` of the small matrix :math:`B_k` is a lower bound of :math:`\sigma_{\max}(J)`,
and the numbers in it bound :math:`\sigma_{\max}` from above. Options out of range, products that
are not finite, and what is no operator raise a ValueError or a TypeError.
"""

from __future__ import annotations

import contextlib
import functools
import html
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy import ndarray
from scipy.special import betaincinv
from torch import Tensor
from tqdm import tqdm

from lipcore._checks import check_count, check_number, require
from lipcore.operators import FunctionOperator, LinearOperator, MatrixOperator

if TYPE_CHECKING:
    import pandas

#: Vectors of the Lanczos basis that are stored together.
BLOCK = 16
#: Members that are printed at most; the rest is counted.
SHOWN = 20

#: What a result says of an operator that is known in float32 alone.
NOT_CERTIFIED = "float32, not certified"
#: What it says after Ctrl-C.
INTERRUPTED = "interrupted"
#: After so many seconds a bar shows on a terminal how many pairs of products are done.
SECONDS = 5

_NUMBERS = ("value", "lower", "upper", "residual", "iterations", "converged")
_TITLES = ("member", "σ", "lower", "upper", "probability", "products", "converged")
_TINY = 1e-150  # to divide by instead of zero
_SMALLEST_LOG = -80.0  # e^-80 vanishes beside 1


@dataclass(frozen=True, eq=False, repr=False)
class SpectralNorm:
    """The result of an iteration for σ_max, with one entry for each member of the batch.

    ``print`` shows one line for each member, and a notebook shows a table. ``r[i]`` and a loop give
    the members along the first dimension of the batch; ``float(r)`` is σ if there is one member.

    Attributes
    ----------
    value : Tensor
        The estimate, ‖Jv‖ for the unit vector ``right``: a lower bound, up to rounding.
    lower, upper : Tensor
        The bracket of σ, widened by what rounding may do (:func:`spectral_norm` says how). Without
        a certificate ``upper`` is infinite; in float32 ``lower`` then is zero.
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
    remark : str
        What is unusual about these numbers, such as ``"float32, not certified"``; mostly empty.

    Numbers are in float64, and vectors in the dtype of the operator.

    Examples
    --------
    >>> import torch
    >>> from lipcore import spectral_norm
    >>> r = spectral_norm(torch.diag_embed(torch.tensor([[2.0, 1.0], [3.0, 1.0]]).double()))
    >>> print(r)
    [0]  σ = 2  in [2, 2] with probability 0.999; 2 products with J and Jᵀ each, converged
    [1]  σ = 3  in [3, 3] with probability 0.999; 2 products with J and Jᵀ each, converged
    >>> len(r), float(r[1]), f"{r[0]:.2f}", r.to_dict()["value"]
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
    remark: str = ""

    def __float__(self) -> float:
        members = self.value.numel()
        require(members == 1, "float", "one input", f"{members}: take r[i]", TypeError)
        return self.value.item()

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def item(self) -> float:
        """Return σ, as ``float`` does."""
        return float(self)

    def __lt__(self, other: Tensor | float) -> Tensor:
        return self.value < other

    def __le__(self, other: Tensor | float) -> Tensor:
        return self.value <= other

    def __gt__(self, other: Tensor | float) -> Tensor:
        return self.value > other

    def __ge__(self, other: Tensor | float) -> Tensor:
        return self.value >= other

    def __len__(self) -> int:
        if self.value.ndim == 0:
            raise TypeError("the result of a single input has no length: float(r) is its σ")
        return len(self.value)

    def __getitem__(self, index: int) -> SpectralNorm:
        if self.value.ndim == 0:
            raise IndexError("the result of a single input has no members: float(r) is its σ")
        names = (*_NUMBERS, "left", "right")
        return replace(self, **{name: getattr(self, name)[index] for name in names})

    def __iter__(self) -> Iterator[SpectralNorm]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return "\n".join([*map(_line, self._shown()), *self._remarks()])

    def _repr_html_(self) -> str:
        """Return a table, for notebooks."""
        rows = [[f"<td>{html.escape(cell)}</td>" for cell in row] for row in self._shown()]
        head = "".join(f"<th>{title}</th>" for title in _TITLES)
        body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
        rest = "".join(f"<p>{line}</p>" for line in self._remarks())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers without the vectors, for JSON: lists over the batch, None for ∞."""
        numbers = {name: _finite(getattr(self, name).tolist()) for name in _NUMBERS}
        return numbers | {"probability": self.probability, "remark": self.remark}

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table of the numbers, with a row for each member and its place as the index."""
        import pandas as pd  # here, since the rest of the package needs no pandas

        places = [place[0] if len(place) == 1 else place for place in np.ndindex(*self.value.shape)]
        columns = {name: getattr(self, name).detach().flatten().tolist() for name in _NUMBERS}
        said = {"probability": self.probability, "remark": self.remark}
        return pd.DataFrame(columns | said, index=places if self.value.ndim else [0])

    def _shown(self) -> list[list[str]]:
        """Return the cells of one line for each member: its place in the batch, and its numbers."""
        columns = [getattr(self, name).reshape(-1)[:SHOWN].tolist() for name in _NUMBERS]
        probability = "–" if self.probability is None else f"{self.probability:g}"
        rows = []
        for place, *numbers in zip(np.ndindex(*self.value.shape), *columns, strict=False):
            *sigma, _, iterations, converged = numbers
            cells = [str([*place]) if place else "", *(f"{x:.6g}" for x in sigma), probability]
            rows.append([*cells, str(iterations), "yes" if converged else "no"])
        return rows

    def _remarks(self) -> list[str]:
        more = self.value.numel() - SHOWN
        return [*([f"… and {more} more"] if more > 0 else []), *filter(None, [self.remark])]


def _line(cells: list[str]) -> str:
    place, value, lower, upper, probability, iterations, converged = cells
    bracket = f"in [{lower}, {upper}] with probability {probability}"
    if probability == "–":
        bracket = f"at least {lower}, without a certificate"
        bracket = "without a certificate" if lower == "0" else bracket
    not_ = "" if converged == "yes" else "not "
    counted = f"{iterations} products with J and Jᵀ each, {not_}converged"
    return f"{place}  σ = {value}  {bracket}; {counted}".strip()


def _finite(numbers):
    """Return nested lists in which None stands for infinity, for which JSON has no word."""
    if isinstance(numbers, list):
        return [_finite(number) for number in numbers]
    return None if numbers == math.inf else numbers


def spectral_norm(
    operator: LinearOperator | Tensor,
    *,
    method: str = "lanczos",
    tol: float = 1e-4,
    max_iterations: int | None = None,
    generator: torch.Generator | None = None,
    probability: float | None = 0.999,
    upper_bound: Tensor | float | None = None,
) -> SpectralNorm:
    r"""Return the largest singular value of every member of a batch of linear operators.

    Parameters
    ----------
    operator : LinearOperator, or Tensor of shape (…, rows, columns)
    method : {"lanczos", "power"}
        Golub–Kahan–Lanczos, or power iteration for comparison.
    tol : float
        Relative error of ``value`` at which a member stops, as Lanczos estimates it from the
        residual (:prf:ref:`thm-residual`). The true error can be larger where many singular values
        crowd at the top, but with confidence ``probability`` it is at most √tol for every spectrum.
        Power iteration stops when its Rayleigh quotient changes by less than tol, which says less;
        it is called converged if the certificate is within √tol too, or if there is none.
    max_iterations : int, optional
        Largest number of pairs of products; 300 for Lanczos (never more than the dimension needs),
        1000 for power iteration.
    generator : torch.Generator, optional
        Source of the random start, which the whole batch shares; a fixed seed if left out. The
        probability is over this start; it means nothing for an operator built with knowledge of it.
    probability : float, optional
        Confidence of ``upper``, in (0, 1). With None the iteration stops on its estimate of the
        error alone, a few products earlier. Only the lower bound is then guaranteed: a larger
        singular value whose vector is nearly orthogonal to the start is overlooked.
    upper_bound : Tensor or float, optional
        A bound on σ_max that is known from elsewhere, for example from
        :func:`lipcore.bounds.local_upper`. It becomes ``upper``, with probability 1.

    Notes
    -----
    With N columns, a start uniform on the sphere has :math:`|\langle v_1, z\rangle| \ge s` for the
    top singular vector z with the stated probability, s a quantile of a Beta law. On that event
    :math:`\sigma_{\max}` satisfies, after every k, both
    :math:`\sigma \le \theta_1 \cosh\big(\mathrm{arcosh}(1/s) / (2k-1)\big)`
    (:prf:ref:`thm-certificate-a`) and
    :math:`\prod_i (\sigma^2 - \theta_i^2) \le \prod_j \alpha_j\beta_j / s`
    (:prf:ref:`thm-certificate-b`); power iteration has :prf:ref:`prop-certificate-power`.

    A run of more than five seconds shows a bar on a terminal. Ctrl-C ends a run of Lanczos with the
    bracket so far: the result says "interrupted", a warning is given, and nothing has converged.

    These statements are about exact products, and float64 stands in for them: a float32 operator is
    measured by its twin in float64 (:meth:`~lipcore.operators.LinearOperator.in_float64`). Where it
    has none the result says "float32, not certified", and has no probability and no bracket. Both
    ends of a bracket are widened. Let r be a bound on what rounding does to a product with a unit
    vector (``operator.rounding``), which is proved to first order in ε for matrices and for
    attention in closed form. Then ``lower`` is proved: it is ‖Jv‖ of one more product, less r and
    the rounding of two norms. For ``upper``, each of the k steps changes the operator by r at most,
    and :math:`(1+\sqrt k)\,r` is added, the Frobenius norm of all these changes; that such changes
    are as independent of the start as J itself is not proved. Of other operators r is unknown, and
    half of the digits, :math:`\sqrt\varepsilon\,\sigma`, are allowed for, or a hundred times what was
    measured where a map works in float32 inside: generous, but not proved.

    Examples
    --------
    >>> import torch
    >>> found = spectral_norm(torch.diag(torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)))
    >>> round(found.value.item(), 6), bool(found.lower <= 3.0 <= found.upper)
    (3.0, True)
    """
    J = MatrixOperator(operator) if isinstance(operator, Tensor) else operator
    expected = "a LinearOperator or a torch.Tensor"
    require(isinstance(J, LinearOperator), "operator", expected, type(J).__name__, TypeError)
    is_real = J.dtype in (torch.float32, torch.float64)
    require(is_real, "operator", "one of float32 or float64", J.dtype, TypeError)
    runs = {"lanczos": (_lanczos, 300), "power": (_power, 1000)}
    require(method in runs, "method", "'lanczos' or 'power'", repr(method))
    run, limit = runs[method]
    tol = check_number("tol", tol, minimum=0, strict=True, maximum=1)
    limit = limit if max_iterations is None else check_count("max_iterations", max_iterations)
    kind = J.dtype
    J = J.in_float64() or J
    remark = "" if J.dtype == torch.float64 else NOT_CERTIFIED
    probability = None if remark else probability
    overlap = None
    if probability is not None:
        limits = {"minimum": 0, "strict": True, "maximum": 1 - 1e-13}
        probability = check_number("probability", probability, **limits)
        # the s with P(|⟨v, z⟩| < s) = 1 − probability, for v uniform on the sphere and z fixed
        columns, failure = J.shape[1], 1 - probability
        square = betaincinv(0.5, (columns - 1) / 2, failure) if columns > 1 else 1.0
        overlap = math.sqrt(square)
    v_1 = _random_start(J, generator)
    with torch.inference_mode(J.allows_inference_mode), without_autocast(J.device):
        parts = run(_FlatOperator(J), v_1, tol, limit, overlap)  # inference mode: calls cost less
    if interrupted := parts.pop("remark", ""):
        warnings.warn("interrupted: the result has the bracket so far", stacklevel=2)
    result = SpectralNorm(probability=probability, **{k: x.clone() for k, x in parts.items()})
    if probability is not None:  # a bracket is then as narrow as convergence promises
        slack = (1 + math.sqrt(tol)) * (1 + math.sqrt(torch.finfo(J.dtype).eps))
        closed = result.upper <= slack * result.value + (0 if J.rounding is None else J.rounding)
        expected = "products with J that repeat, and with Jᵀ that belong to it"
        repeats = method == "power" or not bool((result.converged & ~closed).any())
        require(repeats, "operator", expected, "brackets that they do not close")
        result = replace(result, converged=result.converged & closed)
    numbers = {name: getattr(result, name).double() for name in ("value", "upper", "residual")}
    vectors = {name: getattr(result, name).to(kind) for name in ("left", "right")}
    result = replace(result, **numbers, **vectors, remark=remark)
    result = replace(result, **_widened(J, result))
    result = replace(result, remark="; ".join(filter(None, [remark, interrupted])))
    return result if upper_bound is None else _with_bound(result, upper_bound)


def singular_values(
    operator: LinearOperator | Tensor,
    k: int,
    *,
    probability: float | None = 0.999,
    generator: torch.Generator | None = None,
    **options: Any,
) -> SpectralNorm:
    r"""Return the k largest singular values of every member, with brackets that all hold together.

    Parameters
    ----------
    operator : LinearOperator, or Tensor of shape (…, rows, columns)
    k : int
        It costs as many runs of :func:`spectral_norm`.
    probability : float, optional
        Confidence that all upper ends hold together.
    generator : torch.Generator, optional
        Source of the k random starts.
    **options
        Those of :func:`spectral_norm`, such as ``tol``.

    Returns
    -------
    SpectralNorm
        With one more dimension, of size k, behind the batch.

    Notes
    -----
    Let W be an orthonormal basis of the first i − 1 vectors that were found, for whatever reason.
    Then :math:`\sigma_i(J) \le \|J - JWW^\top\|_2`, as for every approximation of rank i − 1, and a
    run with a start of its own bounds the right side. With a basis of all k vectors
    :math:`\sigma_i(J) \ge \sigma_i(JW)`. Rounding is allowed for as in :func:`spectral_norm`.

    Examples
    --------
    >>> import torch
    >>> r = singular_values(torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)), 2)
    >>> [round(sigma, 6) for sigma in r.value.tolist()]
    [3.0, 2.0]
    """
    J = MatrixOperator(operator) if isinstance(operator, Tensor) else operator
    expected = "a LinearOperator or a torch.Tensor"
    require(isinstance(J, LinearOperator), "operator", expected, type(J).__name__, TypeError)
    k, smaller = check_count("k", k), min(J.shape)
    require(k <= smaller, "k", f"at most the {smaller} singular values", k)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    if probability is not None:
        limits = {"minimum": 0, "strict": True, "maximum": 1 - 1e-12 * k}
        probability = check_number("probability", probability, **limits)
        options["probability"] = 1 - (1 - probability) / k
    else:
        options["probability"] = None
    kind, J = J.dtype, J.in_float64() or J
    flat = (*J.batch_shape, -1)
    rest, found, W = J, [], []
    for _ in range(k):
        found.append(spectral_norm(rest, generator=generator, **options))
        if INTERRUPTED in found[-1].remark:
            raise KeyboardInterrupt
        w = found[-1].right.reshape(flat)
        w = _orthogonalised(_orthogonalised(w, [torch.stack(W)]), [torch.stack(W)]) if W else w
        W.append(_divided(w, _norm(w)))
        slack = found[0].value - found[0].lower
        rest = _without(J, torch.stack(W), (1 + len(W)) * slack)
    shaped = (w.reshape(*J.batch_shape, *J.input_shape) for w in W)
    images = torch.stack([J.matvec(w).reshape(flat) for w in shaped], dim=-1)
    U, value, Vh = torch.linalg.svd(images, full_matrices=False)
    right = Vh @ torch.stack(W, dim=-2)
    left = U.mT.reshape(*J.batch_shape, k, *J.output_shape)
    back = torch.stack([J.rmatvec(u).reshape(flat) for u in left.unbind(len(flat) - 1)], dim=-2)
    first = found[0]
    joined = {
        x: torch.stack([getattr(r, x) for r in found], -1) for x in ("iterations", "converged")
    }
    upper = torch.stack([r.upper for r in found], dim=-1).cummin(-1).values
    lower = (value.double() - (1 + math.sqrt(k)) * slack[..., None]).clamp(min=0)
    return replace(
        first,
        **joined,
        value=value.double(),
        lower=torch.zeros_like(upper) if first.remark else lower,
        upper=upper,
        probability=None if first.probability is None else probability,
        residual=_norm(back - value[..., None] * right)[..., 0].double(),
        left=left.to(kind),
        right=right.reshape(*J.batch_shape, k, *J.input_shape).to(kind),
    )


def _without(J: LinearOperator, W: Tensor, rounding: Tensor) -> LinearOperator:
    """Return J (1 − WWᵀ), for an orthonormal W (k, *batch, N)."""

    def projected(H: Tensor) -> Tensor:
        return _orthogonalised(H.reshape(*J.batch_shape, -1), [W]).reshape(H.shape)

    rest = J @ FunctionOperator(projected, projected, J, J.batch_shape, *[J.input_shape] * 2)
    rest.rounding = rounding
    return rest


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Lift torch.autocast, under which the products of an operator are not what they are."""
    return torch.autocast(device.type, enabled=False)


def _widened(J: LinearOperator, found: SpectralNorm) -> dict[str, Tensor]:
    """Return the ends of the bracket with what rounding may do; see the notes of the function."""
    if found.remark:
        return {"lower": torch.zeros_like(found.value)}
    eps = torch.finfo(torch.float64).eps
    of_norms = (sum(J.shape) + 20) * eps
    share = max(math.sqrt(eps), 100 * J.noise)
    of_products = share * found.value if J.rounding is None else J.rounding
    below = of_products + of_norms * found.value
    above = (1 + found.iterations.sqrt()) * (of_products + of_norms * found.upper)
    return {"lower": (found.value - below).clamp(min=0), "upper": found.upper + above}


def _random_start(J: LinearOperator, generator: torch.Generator | None) -> Tensor:
    """Return one vector, uniform on the sphere, for all members of the batch: (*batch, N)."""
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    is_source = isinstance(generator, torch.Generator)
    require(is_source, "generator", "a torch.Generator", type(generator).__name__, TypeError)
    like = {"dtype": torch.float64, "device": generator.device}
    direction = torch.randn(J.shape[1], generator=generator, **like)
    start = (direction / direction.norm()).to(J.device, J.dtype)
    return start.expand(*J.batch_shape, -1).contiguous()


class _FlatOperator:
    """An operator on flat vectors (*batch, N), in units of ``scale`` (*batch, 1)."""

    def __init__(self, J: LinearOperator) -> None:
        self.operator = J
        self.scale = None
        self.matvec = functools.partial(self._product, J.matvec, J.input_shape)
        self.rmatvec = functools.partial(self._product, J.rmatvec, J.output_shape)

    def _product(self, multiply: Callable, shape: tuple[int, ...], vector: Tensor) -> Tensor:
        batch = self.operator.batch_shape
        product = multiply(vector.reshape((*batch, *shape))).detach().reshape(*batch, -1)
        return product if self.scale is None else product / self.scale

    def first_matvec(self, v: Tensor) -> Tensor:
        """Return J v; an extreme one sets ``scale``, so that no square overflows or vanishes."""
        image = self.matvec(v)
        largest = image.abs().amax(-1, keepdim=True)
        limit = torch.finfo(image.dtype).max ** 0.1
        if bool(((largest < limit) & (largest > 1 / limit)).all()):
            return image
        self.scale = torch.where(largest > 0, largest, 1)
        return image / self.scale


def _orthogonalised(w: Tensor, V: list[Tensor]) -> Tensor:
    """Return w (*batch, N) less its components along the orthonormal V, blocks (k, *batch, N)."""
    for block in V:
        rows = block.movedim(0, -2)
        w_row = w[..., None, :]  # two to three times quicker as a row than as a column
        w = w - (w_row @ rows.mT @ rows)[..., 0, :]
    return w


def _norm(vector: Tensor) -> Tensor:
    """Return norms (*batch, 1), by ``sum``: vector_norm loses half of the digits of float32."""
    return vector.square().sum(-1, keepdim=True).sqrt()


def _divided(part: Tensor, by: Tensor) -> Tensor:
    """Return part/by, or zero where both are zero because the Krylov space is exhausted."""
    return part / by.clamp(min=torch.finfo(by.dtype).tiny)


def _to_host(*numbers: Tensor) -> list[ndarray]:
    """Return tensors (*batch, 1) as float64 arrays (members,), or raise if one is not finite."""
    rows = torch.cat(numbers, dim=-1).reshape(-1, len(numbers)).cpu().numpy().astype(np.float64).T
    require(np.isfinite(rows).all(), "operator", "finite products", "NaN or infinity")
    return list(rows)


def _lanczos(J: _FlatOperator, v_1, tol, max_iterations, overlap) -> dict[str, Tensor]:
    """Run Golub–Kahan–Lanczos, J V_k = U_k B_k, with α on the diagonal of B_k and β above it."""
    # V_k is orthogonalised at every step; U_k then is orthogonal by itself (Simon & Zha 2000)
    rows, columns = J.operator.shape
    # where rows < columns, v_1 has a part in the kernel of J, which adds a dimension to its Krylov space
    steps = min(max_iterations, rows + 1, columns)
    members = math.prod(J.operator.batch_shape)
    d = np.zeros((members, steps))  # the diagonal of T_k = B_kᵀB_k, on the host
    t = np.zeros((members, steps))  # the entries beside the diagonal
    iterations = np.zeros(members, dtype=int)
    running = np.ones(members, dtype=bool)
    blocks = []  # V_k in blocks, so that it grows without being copied
    v_k = v_1
    u_k = J.first_matvec(v_1)
    beta = 0.0
    interrupted = False
    bar = tqdm(range(1, steps + 1), "products", delay=SECONDS, leave=False, disable=None)
    try:
        for k in bar:
            place = (k - 1) % BLOCK
            if place == 0:
                blocks.append(v_1.new_empty(BLOCK, *v_1.shape))
            blocks[-1][place] = v_k
            V = [*blocks[:-1], blocks[-1][: place + 1]]
            alpha_k = _norm(u_k)
            u_k = _divided(u_k, alpha_k)
            w = torch.addcmul(J.rmatvec(u_k), alpha_k, v_k, value=-1)  # Jᵀu_k − α_k v_k
            w = _orthogonalised(w, V)
            beta_k = _norm(w)
            previous_beta = beta
            alpha, beta = _to_host(alpha_k, beta_k)
            d[:, k - 1] = alpha**2 + previous_beta**2
            if (beta**2 < torch.finfo(w.dtype).eps * d[:, :k].max(1))[running].any():
                w = _orthogonalised(
                    w, V
                )  # so little is left that rounding along V counts beside it
                beta_k = _norm(w)
                (beta,) = _to_host(beta_k)
            t[:, k - 1] = alpha * beta  # the last one is outside T_k, and measures the residual
            iterations[running] = k  # a member that has converged keeps its count
            running[running] = ~_has_converged(d[running, :k], t[running, :k], tol, overlap)
            if k == steps or not running.any():
                break
            v_k = _divided(w, beta_k)
            u_k = torch.addcmul(J.matvec(v_k), beta_k, u_k, value=-1)  # J v_{k+1} − β_k u_k
    except KeyboardInterrupt:
        if not iterations.all():  # nothing is known yet
            raise
        interrupted = True
    finally:
        bar.close()
    parts = _summary(J, V, d, t, iterations, ~running, overlap)
    return parts | ({"remark": INTERRUPTED} if interrupted else {})


def _summary(J, V, d, t, iterations, converged, overlap) -> dict[str, Tensor]:
    """Return each member's Ritz vector and certificate, from the steps up to its own stop."""
    y = np.zeros((len(d), sum(map(len, V))))
    residual = np.zeros(len(d))
    upper = np.full(len(d), np.inf)
    for k in np.unique(iterations):
        own = iterations == k
        theta, y[own, :k], residual[own], _ = _ritz(d[own, :k], t[own, :k])
        if overlap is not None:
            upper[own] = theta[:, 0] * _largest_growth(theta, t[own, :k], overlap)
    batch = J.operator.batch_shape
    coefficients = torch.from_numpy(y).to(V[0]).reshape(*batch, 1, -1).split(BLOCK, dim=-1)
    parts = [c @ block.movedim(0, -2) for c, block in zip(coefficients, V, strict=True)]
    v = sum(parts)[..., 0, :]
    numbers = (torch.from_numpy(x).reshape(batch) for x in (upper, residual, iterations, converged))
    return _result(J, _divided(v, _norm(v)), *numbers)


def _power(J: _FlatOperator, v_1, tol, max_iterations, overlap) -> dict[str, Tensor]:
    """Run power iteration on JᵀJ; a member stops when its estimate changes by less than tol."""
    v = v_1
    u = J.first_matvec(v_1)
    value = torch.zeros_like(v[..., :1])
    running = torch.ones_like(value, dtype=torch.bool)
    iterations = torch.zeros_like(value, dtype=torch.long)
    upper = torch.full_like(value, torch.inf, dtype=torch.float64)
    log_norm = torch.zeros_like(upper)  # log ‖J(JᵀJ)^{k−1} v_1‖
    for k in range(1, max_iterations + 1):
        before = value
        value = _norm(u)
        _to_host(value)
        w = J.rmatvec(_divided(u, value))
        w_norm = _norm(w)
        log_norm += value.double().log()
        if overlap is not None:
            bound = ((log_norm - math.log(overlap)) / (2 * k - 1)).exp()
            upper = torch.where(running, bound, upper)
        iterations = torch.where(running, k, iterations)
        running = running & ((value - before).abs() > tol * value)
        if k == max_iterations or not bool(running.any()):
            break
        log_norm += w_norm.double().log()
        v = torch.where(running, _divided(w, w_norm), v)  # a member that has stopped stands still
        u = J.matvec(v)
    numbers = (upper, _norm(w - value * v), iterations, ~running)
    return _result(J, v, *(x[..., 0] for x in numbers))


def _result(J: _FlatOperator, v, upper, residual, iterations, converged) -> dict[str, Tensor]:
    """Return the parts of a SpectralNorm; ``value`` is a norm ‖Jv‖, from one more product."""
    # ‖Jv‖ for a unit v is a lower bound whatever the iteration has done
    batch = J.operator.batch_shape
    image = J.matvec(v)
    norm = _norm(image)
    scale = torch.ones_like(norm[..., 0]) if J.scale is None else J.scale[..., 0]
    value = scale * norm[..., 0]
    return {
        "value": value,
        "lower": value,
        "upper": torch.maximum(value, scale * upper.to(value)),
        "residual": scale * residual.to(value),
        "iterations": iterations.to(value.device),
        "converged": converged.to(value.device),
        "left": _divided(image, norm).reshape((*batch, *J.operator.output_shape)),
        "right": v.reshape(*batch, *J.operator.input_shape),
    }


def _with_bound(result: SpectralNorm, upper_bound: Tensor | float) -> SpectralNorm:
    """Replace the bound that holds with a probability by one that always holds."""
    value = result.value
    try:
        given = torch.as_tensor(upper_bound, device=value.device).detach()
        bound = given.to(value.dtype).expand(value.shape)
    except (TypeError, ValueError, RuntimeError) as error:
        got = getattr(upper_bound, "shape", upper_bound)
        expected = f"a number, or a tensor of shape {tuple(value.shape)}"
        raise ValueError(f"upper_bound: expected {expected}, got {got!r}") from error
    kind = given.dtype if given.is_floating_point() else value.dtype
    is_above = (bound * (1 + 64 * torch.finfo(kind).eps) >= result.lower).all()
    require(is_above, "upper_bound", f"at least σ, {value.max():.6g}", f"{bound.min():.6g}")
    return replace(result, upper=torch.maximum(bound, value), probability=1.0)


def _ritz(d: ndarray, t: ndarray) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    """Return each member's Ritz values θ, decreasing, and vector y, residual and error of θ_1."""
    eigenvalues, eigenvectors = np.linalg.eigh(_tridiagonal(d, t))
    theta = np.sqrt(np.maximum(eigenvalues[:, ::-1], 0))
    y = eigenvectors[:, :, -1]
    theta_1 = np.maximum(theta[:, 0], _TINY)
    residual = t[:, -1] * np.abs(y[:, -1]) / theta_1
    gap = np.maximum(theta_1**2 - (theta[:, 1:2] ** 2).sum(1), _TINY)
    # the relative error to second order, with θ_2 for σ_2 (thm-residual)
    return theta, y, residual, np.minimum(residual / theta_1, residual**2 / (2 * gap))


def _has_converged(d: ndarray, t: ndarray, tol: float, overlap: float | None) -> ndarray:
    """Return which members' θ_1 are within tol by the estimate, and within √tol for certain."""
    converged = np.ones(len(d), dtype=bool)
    if overlap is not None:  # usually the last to hold, and it needs no eigenvectors
        eigenvalues = np.linalg.eigvalsh(_tridiagonal(d, t))
        m = max(math.log(2 * math.sqrt(tol) + tol), _SMALLEST_LOG)  # (1 + √tol)² = 1 + e^m
        x, log_right = _certificate_b(np.sqrt(np.maximum(eigenvalues[:, ::-1], 0)), t, overlap)
        converged = np.log(math.exp(m) + x).sum(1) >= log_right
    if converged.any():
        converged[converged] = _ritz(d[converged], t[converged])[-1] <= tol
    return converged


def _largest_growth(theta: ndarray, t: ndarray, overlap: float) -> ndarray:
    """Return the largest factor σ_max/θ_1 that the better of the two certificates allows."""
    # the second is the root of ∏(σ² − θ_i²) = ∏ t_j/s, by Newton's method on m = log(σ²/θ_1² − 1):
    # the logarithm of the left side increases in m and is convex, so that from the right the
    # iteration comes down to the root and never passes it
    k = theta.shape[1]
    at_worst = math.cosh(math.acosh(1 / overlap) / (2 * k - 1))
    x, log_right = _certificate_b(theta, t, overlap)
    m = log_right / k  # right of the root, since every logarithm is at least m
    for _ in range(60):
        factors = np.exp(m)[:, None] + x
        slope = (np.exp(m)[:, None] / factors).sum(1)
        step = np.maximum(np.log(factors).sum(1) - log_right, 0) / slope
        m = np.maximum(m - step, _SMALLEST_LOG)
        if (step <= 1e-12).all():
            break
    return np.minimum(at_worst, np.sqrt(1 + np.exp(m)))


def _certificate_b(theta: ndarray, t: ndarray, overlap: float) -> tuple[ndarray, ndarray]:
    """Return x = 1 − θ²/θ_1², for Σ log(e^m + x_i) on the left, and the log of the right side."""
    theta_1 = np.maximum(theta[:, :1], _TINY)
    t = np.maximum(t / theta_1**2, _TINY)  # t_j = 0 when the Krylov space is exhausted
    return 1 - (theta / theta_1) ** 2, np.log(t).sum(1) - math.log(overlap)


def _tridiagonal(d: ndarray, t: ndarray) -> ndarray:
    """Return T_k as matrices (members, k, k) of which only the lower triangle is filled."""
    members, k = d.shape
    T = np.zeros((members, k * k))
    T[:, :: k + 1] = d
    T[:, k :: k + 1] = t[:, :-1]
    return T.reshape(members, k, k)
