r"""The local Lipschitz constant of a map at X, its gradient, and what it is made of.

The constant is about all output tokens, about some of them, or about the one that moves most, while
all inputs together move by Frobenius norm one. The rows of J that belong to output token i are
:math:`J_i`, and

.. math:: \|J\|_{F\to\text{token}} = \max_{\|H\|_F\le1}\max_i \|(J[H])_i\| = \max_i \|J_i\|_2 .

It is at most :math:`\|J\|_2`, and at least :math:`\|J\|_2/\sqrt n` (:prf:ref:`prop-depth-norms`).
"""

from __future__ import annotations

import functools
import inspect
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lipcore import guard
from lipcore._checks import check_number, require
from lipcore._heads import head_outputs
from lipcore.attention import Attention
from lipcore.autodiff import AutogradJacobian, batch_first
from lipcore.cross import AttentionMap
from lipcore.jacobian import AttentionJacobian
from lipcore.operators import FunctionOperator, LinearOperator
from lipcore.spectral import INTERRUPTED, SpectralNorm, spectral_norm, without_autocast

#: How the move of the outputs is measured.
NORMS = ("frobenius", "token")
#: A warning is given where two singular values are closer than this share of σ, which then has a
#: kink, or nearly so.
SMALLEST_GAP = 1e-3
#: Rows of attention weights that are differentiated at a time, for the shares of heads and terms.
ROWS = 256

#: What :func:`local_lipschitz` passes on.
OPTIONS = list(inspect.signature(spectral_norm).parameters)[1:]
#: What a result says of a map that was not checked.
UNCHECKED = "of autodiff's Jacobian, unchecked"
#: The same of a map of float64 with fewer digits.
FLOAT32_INSIDE = "works in float32 inside"

_OTHER_SEED = 0x6C6970  # hardly anyone's


@dataclass(frozen=True, eq=False, repr=False)
class LocalLipschitz(SpectralNorm):
    """The result of :func:`local_lipschitz`: σ, and how tokens, heads and terms share it.

    Attributes
    ----------
    layer, tokens : Attention or CrossAttention, and Tensor, or None
        The layer and the tokens at which σ was measured, if the map is a layer.
    """

    layer: AttentionMap | None = None
    tokens: Tensor | None = None

    def __getitem__(self, index: int) -> LocalLipschitz:
        one = super().__getitem__(index)
        if self.layer is None:
            return one
        layer = self.layer.select_sequences(tuple(self.value.shape), index)
        return replace(one, layer=layer, tokens=self.tokens[index])

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
        has_tokens = min(self.left.ndim, self.right.ndim) >= batch + 2
        require(has_tokens, "by_token", "tokens in and out", tuple(self.right.shape[batch:]))
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
        """
        return self._shares("by_term").sum(-2)

    def _shares(self, name: str) -> Tensor:
        require(self.layer is not None, name, "the σ of an Attention", "that of another map")
        return head_and_term_shares(self.layer, self.tokens, self.left, self.right)


def local_lipschitz(
    attention_or_callable: Attention | Callable[[Tensor], Tensor],
    X: Tensor,
    *,
    norm: str = "frobenius",
    tokens: int | slice | None = None,
    event_dims: int = 2,
    layout: str = "NLE",
    differentiable: bool = False,
    check: bool = True,
    **options: Any,
) -> LocalLipschitz:
    r"""Return the local Lipschitz constant :math:`\|D_X f\|_2` at X (:prf:ref:`thm-lip-local`).

    Parameters
    ----------
    attention_or_callable : Attention, or any differentiable map of (…, n, d) tensors
        An :class:`~lipcore.attention.Attention`, or a :class:`~lipcore.cross.CrossAttention` made
        of it, uses its Jacobian in three terms, anything else autodiff
        (:class:`~lipcore.autodiff.AutogradJacobian` says what it asks of the map).
    X : Tensor, shape (…, n, d)
        In float32 the map is measured in float64 all the same if it can be: layers of up to
        ``lipcore.cross.FLOAT64_ENTRIES`` attention weights, modules, and functions that take
        float64. Others have no certificate, and the result says so; convert both to float64 for it.
    norm : {"frobenius", "token"}
        The norm of the outputs: of all that are looked at together, or of the one that moves most,
        :math:`\max_i\|(D_Xf)_i\|_2`. For ``"token"`` ``left`` belongs to the token that moves most,
        and ``iterations`` are those of all.
    tokens : int or slice, optional
        Which outputs are looked at, such as ``tokens=-1``; all if left out.
    event_dims, layout
        How a callable takes X, as in :class:`~lipcore.autodiff.AutogradJacobian`: how many of the
        last dimensions are one input, and "LNE" where the batch is the second of three.
    differentiable : bool
        Whether ``value`` carries its gradient with respect to X and the parameters of the map,
        which leads through the top pair of singular vectors. The iteration then runs to tol², since
        the gradient is as accurate as the vectors are, and a warning says where the two largest
        singular values nearly cross, and σ has a kink.
    check : bool
        Whether autodiff's Jacobian is checked at X (:mod:`lipcore.guard`); if not, the result says
        so. The check sees what is hidden from autodiff, or jumps at X, from about a hundred
        thousandth of the answer on, and from about a hundredth where the map works in float32.
    **options
        Those of :func:`~lipcore.spectral.spectral_norm`, such as ``tol``.

    Returns
    -------
    LocalLipschitz
        One entry for each member of the batch, of shape X.shape[:-event_dims].

    Raises
    ------
    ValueError, TypeError
        If an argument does not fit, or the map is refused (:mod:`lipcore.guard` says for what).
    NotImplementedError
        If PyTorch has no derivative of an operation in the map.

    Examples
    --------
    >>> import torch
    >>> from lipcore import Attention
    >>> f = Attention.from_matrices(torch.zeros(2, 2), torch.eye(2))
    >>> round(local_lipschitz(f, torch.randn(5, 2)).value.item(), 4)  # averaging has norm one
    1.0
    """
    f = attention_or_callable
    for name in options:
        require(name in OPTIONS, "local_lipschitz", ", ".join(OPTIONS), name, TypeError)
    # a subclass may do anything
    is_layer = isinstance(f, AttentionMap) and type(f).__module__.startswith("lipcore.")
    given = event_dims, layout
    fits = not is_layer or given == (2, "NLE")
    require(fits, "event_dims, layout", "(2, 'NLE') for attention", given)
    Y, fn = (f.check_input(X), f) if is_layer else batch_first(f, X, layout)
    with without_autocast(X.device):
        if is_layer:
            J, back = _in_own_dimensions(f, X)
        else:
            J = AutogradJacobian(f, X, event_dims=event_dims, layout=layout, check=check)
            J, back = J.in_float64() or J, None
        options["generator"] = _unrelated(options.get("generator"), Y, event_dims)
        found = (_sharp if differentiable else _of_outputs)(J, check_norm(norm), tokens, **options)
        vectors = {name: getattr(found, name) for name in ("left", "right")}
        if back is not None:
            vectors = {name: x @ back[name].mT for name, x in vectors.items()}
        found = replace(found, **{name: x.to(X.dtype) for name, x in vectors.items()})
        if differentiable:
            found = replace(found, value=_with_gradient(fn, Y, found))
    said = [found.remark, "" if getattr(J, "checked", True) else UNCHECKED]
    if J.dtype == torch.float64 and J.noise > torch.finfo(J.dtype).eps:
        said.append(FLOAT32_INSIDE)
    found = replace(found, remark="; ".join(filter(None, said)))
    return LocalLipschitz(**vars(found), **({"layer": f, "tokens": X.detach()} if is_layer else {}))


@torch.no_grad()
def _in_own_dimensions(f: AttentionMap, X: Tensor) -> tuple[LinearOperator, dict | None]:
    """Return the Jacobian of a layer, in float64 unless it is long, and in few dimensions.

    Narrow layers are compressed, and the frames that lead the singular vectors back come, too.
    """
    f, X = f.in_float64(X) or (f, X)
    if not f.is_narrow:
        return f.jacobian(X), None
    small, Z, U = f.compressed()
    frames = {"left": U, "right": Z}
    if f.not_bilinear:
        return small.jacobian(X @ Z), frames
    return AttentionJacobian(small, X @ Z, error=_lost(f, Z, U)), frames


def _lost(f: Attention, Z: Tensor, U: Tensor) -> float:
    """Return how far, relatively, a layer is from what its frames keep of it."""
    names = ("query", "key", "value", *(["gate"] if f.gate is not None else []))
    weights = [(getattr(f, name), Z) for name in names]
    weights += [] if f.output is None else [(f.output.mT[None], U)]
    error = 2 * max(f.d, f.output_dim) * torch.finfo(Z.dtype).eps
    for weight, frame in weights:
        missed = (weight - weight @ frame @ frame.mT).flatten(1).norm(dim=-1)
        whole = weight.flatten(1).norm(dim=-1).clamp(min=torch.finfo(Z.dtype).tiny)
        unit = torch.eye(frame.shape[1], dtype=frame.dtype, device=frame.device)
        error += float((missed / whole).max()) + float((frame.mT @ frame - unit).norm())
    return error


def _unrelated(generator, X: Tensor, event_dims: int):
    """Return the generator, or another where its start would be the tokens that it has drawn."""
    # whoever draws tokens under the seed 0, as many do, would start at X itself, which a normalised
    # map sends to zero; another seed makes the start independent of X again
    if not isinstance(generator, torch.Generator | None):
        return generator  # it is refused later
    source = torch.Generator() if generator is None else torch.Generator(generator.device)
    source = source.manual_seed(0) if generator is None else source.set_state(generator.get_state())
    tokens = X.detach().flatten(-event_dims).double().to(source.device)
    like = {"dtype": tokens.dtype, "device": source.device}
    start = torch.randn(tokens.shape[-1], generator=source, **like)
    moved = torch.stack([tokens, tokens - tokens.mean(-1, keepdim=True)])  # or a multiple, shifted
    cosines = torch.nn.functional.cosine_similarity(moved, start, dim=-1)
    if bool((cosines.abs() > 0.9).any()):
        return torch.Generator().manual_seed(_OTHER_SEED)
    return generator


# --- which outputs ---------------------------------------------------------------------------


def check_norm(norm: str) -> str:
    """Return the norm if it is one of :data:`NORMS`, else raise."""
    require(norm in NORMS, "norm", f"one of {', '.join(NORMS)}", repr(norm))
    return norm


def check_outputs(J: LinearOperator, tokens: int | slice) -> slice:
    """Return the output tokens as a slice, or raise if there are none."""
    require(len(J.output_shape) > 1, "tokens, norm", "outputs (…, n, p)", J.output_shape)
    n = J.output_shape[-2]
    chosen = tokens
    if not isinstance(tokens, slice):
        is_number = hasattr(tokens, "__index__") and not isinstance(tokens, bool)
        require(is_number, "tokens", "a whole number or a slice", repr(tokens), TypeError)
        token = operator.index(tokens)
        chosen = slice(token, token + 1 or None)  # -1 is the last
    require(range(n)[chosen], "tokens", f"some of the {n} outputs", f"none by {tokens}")
    return chosen


def select_outputs(J: LinearOperator, tokens: int | slice | None) -> LinearOperator:
    """Return J with zeros in place of the output tokens that are not looked at."""
    if tokens is None:
        return J
    tokens = check_outputs(J, tokens)

    def selected(G: Tensor) -> Tensor:
        only = torch.zeros_like(G)
        only[..., tokens, :] = G[..., tokens, :]
        return only

    shapes = J.batch_shape, J.output_shape, J.output_shape
    chosen = FunctionOperator(selected, selected, J, *shapes) @ J
    chosen.rounding, chosen.noise = J.rounding, J.noise
    return chosen


def _of_outputs(J, norm, tokens, **options) -> SpectralNorm:
    """Return the largest move of the output tokens that are looked at, in the norm asked for."""
    if norm == "frobenius":
        return spectral_norm(select_outputs(J, tokens), **options)
    looked_at = check_outputs(J, slice(None) if tokens is None else tokens)
    places = range(J.output_shape[-2])[looked_at]
    # the upper end holds if that of the worst token does, which no other can lower: each token is
    # asked for the probability itself
    rows = (_whole(spectral_norm(select_outputs(J, place), **options)) for place in places)
    return functools.reduce(_larger, rows)


def _whole(found: SpectralNorm) -> SpectralNorm:
    """Return a result that others shall be compared with, or go on with Ctrl-C."""
    if INTERRUPTED in found.remark:
        raise KeyboardInterrupt
    return found


def _larger(a: SpectralNorm, b: SpectralNorm) -> SpectralNorm:
    """Return for each member the larger of two, with a bracket of the larger of both truths."""
    wins = b.value > a.value

    def chosen(name: str) -> Tensor:
        one = getattr(a, name)
        shape = (*wins.shape, *[1] * (one.ndim - wins.ndim))
        return torch.where(wins.reshape(shape), getattr(b, name), one)

    return replace(
        a,
        **{name: chosen(name) for name in ("value", "residual", "left", "right")},
        lower=torch.maximum(a.lower, b.lower),
        upper=torch.maximum(a.upper, b.upper),
        iterations=a.iterations + b.iterations,
        converged=a.converged & b.converged,
    )


# --- gradient --------------------------------------------------------------------------------


def _sharp(J, norm, tokens, tol=1e-4, **options) -> SpectralNorm:
    """Return σ with vectors to tol, and warn where the two largest singular values nearly cross."""
    require(norm == "frobenius", "norm", "'frobenius' with differentiable=True", repr(norm))
    J = select_outputs(J, tokens)
    rounding = 16 * torch.finfo(J.dtype).eps
    tol = max(check_number("tol", tol, minimum=0, strict=True) ** 2, rounding)
    top = spectral_norm(J, tol=tol, **options)
    # a double singular value cannot be seen from one start: J is measured without its top pair, and
    # from another start, since the first may be u's own v
    start = torch.Generator().manual_seed(1)
    second = spectral_norm(deflate(J, top), tol=1e-2, generator=start).value.flatten()
    first = top.value.flatten()
    close = (first - second <= SMALLEST_GAP * first) & (first > 0)
    if bool(close.any()):
        members = close.nonzero().flatten().tolist()[:5]
        warnings.warn(
            f"differentiable: the two largest singular values of members {members} are within "
            f"{SMALLEST_GAP:g} of each other: there σ has no gradient, or an inaccurate one",
            stacklevel=3,
        )
    return top


def _with_gradient(fn: Callable, X: Tensor, top: SpectralNorm) -> Tensor:
    """Return σ with its gradient with respect to X and the parameters of the map."""
    # where σ is simple, its derivative is that of ⟨u, D_X f[v]⟩ with u and v held fixed
    with guard.isolated(X.device):
        point = X if X.requires_grad else X.detach().clone().requires_grad_()
        output = fn(point.clone())
        graph = {"create_graph": True, "materialize_grads": True}
        left, right = top.left.detach(), top.right.detach()

        def change(output: Tensor, point: Tensor) -> Tensor:
            pulled = torch.autograd.grad(output, point, left, **graph)[0]
            return (pulled * right).reshape(*top.value.shape, -1).sum(-1).double()

        value = change(output, point)
        _refuse_second(fn, point, value, change)
    return top.value + (value - value.detach())  # the derivative of one, the digits of the other


def _refuse_second(fn: Callable, point: Tensor, value: Tensor, change: Callable) -> None:
    """Refuse a map whose second derivative by autodiff is not a difference of the first."""
    if point.dtype != torch.float64:  # too few digits to see
        return
    H = guard.draw_normal(point.shape, 4).to(point) * point.detach().square().mean().sqrt()
    options = {"retain_graph": True, "materialize_grads": True}
    is_linear = not value.requires_grad
    slope = None if is_linear else torch.autograd.grad(value.sum(), point, **options)[0]
    expected = 0.0 if is_linear else float((slope * H).sum())
    least = 1e-2 * float(value.detach().abs().sum())
    for step in (1e-5, 1e-7, 1e-9):  # the short ones pass by the kinks of a ReLU
        ends = [(point.detach() + h * H).requires_grad_() for h in (step, -step)]
        forth, back = (change(fn(end.clone()), end).detach().sum() for end in ends)
        found = float(forth - back) / (2 * step)
        if abs(found - expected) <= 1e-2 * max(abs(found), abs(expected)) + 1e-2 * least:
            return
    cure = "a custom backward must be differentiable, too"
    require(False, "differentiable", "a map that can be differentiated twice", f"another: {cure}")


def deflate(J: LinearOperator, top: SpectralNorm) -> LinearOperator:
    """Return J − σ u vᵀ, which is J without its top singular triple, as far as that is known."""
    sigma = top.value[..., None].to(J.dtype)

    def rank_one(read: Tensor, vector: Tensor, write: Tensor) -> Tensor:  # σ⟨read, vector⟩ write
        read, vector, flat = (x.reshape(*sigma.shape[:-1], -1) for x in (read, vector, write))
        return (sigma * (read * vector).sum(-1, keepdim=True) * flat).reshape(write.shape)

    products = (
        lambda H: J.matvec(H) - rank_one(top.right, H, top.left),
        lambda G: J.rmatvec(G) - rank_one(top.left, G, top.right),
    )
    return FunctionOperator(*products, J, J.batch_shape, J.input_shape, J.output_shape)


# --- attribution -----------------------------------------------------------------------------


@torch.no_grad()
def head_and_term_shares(layer: AttentionMap, X: Tensor, left: Tensor, right: Tensor) -> Tensor:
    r"""Return what each head and term of the Jacobian adds to :math:`\langle u, D_Xf[v]\rangle`.

    The shape is (…, heads, 3), or 4 with gates; with the top singular pair the numbers sum to σ.
    The terms are the derivatives (:prf:ref:`thm-jacobian`) with respect to the values (mixing), the
    queries (own query), the keys (others' keys), and the gates.
    """
    X, left, right = (x.detach() for x in (X, left, right))
    response = left if layer.output is None else left @ layer.output
    response = response.unflatten(-1, (layer.heads, -1)).transpose(-3, -2)
    gated = layer.gated(response, X)
    projections = _project_and_move(layer, X, right)
    n = response.shape[-2]
    total = 0
    for start in range(0, n, ROWS):
        rows = slice(start, min(start + ROWS, n))
        changes = _changes_by_term(layer, *projections, rows)  # (3, …, heads, rows, p)
        total = total + (changes * gated[..., rows, :]).sum((-2, -1)).movedim(0, -1)
    if layer.gates(X) is None:
        return total
    moved = torch.func.jvp(layer.gates, (X,), (right,))[1] * head_outputs(layer, X)
    return torch.cat([total, (moved * response).sum((-2, -1))[..., None]], dim=-1)


@torch.no_grad()
def moves_by_term(layer: Attention, X: Tensor, H: Tensor) -> Tensor:
    r"""Return the parts of D_X f[H] by the terms of the Jacobian, for a move H of the tokens.

    Parameters
    ----------
    layer : Attention
        A layer without gates.
    X, H : Tensor, shape (…, n, d)

    Returns
    -------
    Tensor, shape (3, …, n, output_dim)
        Mixing, own query (the query term) and others' keys (the key term); their sum is D_X f[H].
    """
    rows = slice(0, X.shape[-2])
    return layer.join_heads(_changes_by_term(layer, *_project_and_move(layer, X, H), rows))


def _project_and_move(layer: AttentionMap, X: Tensor, H: Tensor) -> tuple[tuple, tuple]:
    """Return queries, keys and values at X, and their derivatives in the direction H."""
    with_bias = layer.sinks is not None
    return torch.func.jvp(lambda Y: layer.project(Y, value_bias=with_bias), (X,), (H,))


def _changes_by_term(layer: AttentionMap, projected: tuple, tangents: tuple, rows: slice) -> Tensor:
    """Return how values, queries or keys alone change the heads, (3, …, heads, rows, p)."""
    # by autodiff of the map itself, so that scores of any form are covered

    def change(moved: int) -> Tensor:
        def outputs(part: Tensor) -> Tensor:
            parts = list(projected)
            parts[moved] = part
            queries, keys, values = parts
            if moved != 2 and layer.sinks is None:
                # rows of a change of weights sum to zero: values may be taken from their mean
                values = values - values.mean(-2, keepdim=True)
            return layer.row_weights(queries, keys, rows) @ values

        return torch.func.jvp(outputs, (projected[moved],), (tangents[moved],))[1]

    return torch.stack([change(moved) for moved in (2, 0, 1)])
