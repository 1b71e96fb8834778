"""The Jacobian of any code, which runs as it is; what has no derivative is said in one line."""

from __future__ import annotations

import contextlib
import copy
import re
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from lipcore import guard
from lipcore._checks import check_count, check_real_tensor, check_same_kind, check_tokens, require
from lipcore.operators import LinearOperator

_DTYPES = re.compile(r"dtype|scalar type|Input type|data type")
#: Patterns in what PyTorch says of an operation without a derivative rule, and what to change.
_CURES = (
    (r"reentrant|CheckpointFunction", "pass use_reentrant=False to torch.utils.checkpoint"),
    (r"autograd\.Function", "give the torch.autograd.Function in it a backward of its own"),
    (r"attention|flash|sdp", "use explicit softmax (transformers: attn_implementation='eager')"),
    (r"storage|numpy", "stay with PyTorch's operations: what leaves its tensors has no derivative"),
    (r"[Nn]ested", "pass tensors without nesting"),
)


class AutogradJacobian(LinearOperator):
    """The Jacobian of any differentiable map at X, by automatic differentiation.

    The map is checked once (:mod:`lipcore.guard`). If its derivative cannot be trusted, it is
    refused with the cause in one line: members of the batch that influence one another, gradients
    cut inside, random numbers, or modules that change. Fused attention runs as PyTorch's
    mathematical kernel, and code wrapped by ``torch.compile`` runs uncompiled.

    Parameters
    ----------
    fn : callable
        Maps (…, n, d) to (…, …), with the same batch in front. A module must be in evaluation
        mode.
    X : Tensor, shape (…, n, d)
    event_dims : int
        How many of the last dimensions of X are one input; those before are a batch, whose members
        must not influence one another. 3 for images (…, channels, height, width).
    layout : {"NLE", "LNE"}
        With "LNE", the map takes and gives (n, batch, d), as :class:`torch.nn.MultiheadAttention`
        does without ``batch_first``. The Jacobian's batch comes first all the same.
    check : bool
        Without it the map is not checked: what autodiff gives is taken for the derivative.

    Notes
    -----
    All products come from one evaluation. Reverse mode gives Jᵀ[G], and the derivative of that with
    respect to G gives J[H]: three times quicker than forward mode, and right for code that works in
    place, recurrent layers and checkpoints. Forward mode is used where an operation can be
    differentiated once only.

    Examples
    --------
    >>> import torch
    >>> AutogradJacobian(torch.sin, torch.zeros(2, 1)).matvec(torch.ones(2, 1)).flatten()
    tensor([1., 1.])
    """

    def __init__(
        self,
        fn: Callable[..., Tensor],
        X: Tensor,
        *,
        event_dims: int = 2,
        layout: str = "NLE",
        check: bool = True,
    ) -> None:
        require(callable(fn), "fn", "a callable", type(fn).__name__, TypeError)
        if check:
            guard.refuse_training(fn)
        given = fn, X
        self.fn: Callable[..., Tensor]
        X, self.fn = batch_first(fn, X, layout)
        batch = X.ndim - check_count("event_dims", event_dims)
        require(batch >= 0, "event_dims", f"at most the {X.ndim} dimensions of X", event_dims)
        self.checked: bool = check
        self._once = False  # whether some operation can be differentiated once only
        self._transposed = None
        with guard.unchanged(fn, X.device) if check else guard.isolated(X.device) as state:
            self._run(X, batch)
            self.noise: float = self.seen.eps  # rounding of the outputs, as far as it is seen
            self._exact = self._twin(*given, event_dims=event_dims, layout=layout)
            if check:  # a twin has the same code, and shows more
                guard.check_derivative(self._exact or self, batch, state)
                self.checked = (self._exact or self).checked

    def in_float64(self) -> AutogradJacobian | None:
        """Return the Jacobian of the same map in float64, or None where that cannot be had."""
        return self if self.dtype == torch.float64 else self._exact

    def _twin(self, fn: Callable, X: Tensor, **options) -> AutogradJacobian | None:
        """Return the Jacobian in float64, unless float64 tokens do not make it the same map."""
        if X.dtype == torch.float64 or self.seen.half:
            return None
        try:  # it may not be copied, may take no other dtype, or be refused by itself
            if isinstance(fn, nn.Module):
                fn = copy.deepcopy(fn).double()
            elif hasattr(fn, "call"):  # of lipcore.models.capture
                fn = fn.double()
            with guard.unchanged(fn, X.device):
                twin = AutogradJacobian(fn, X.double(), check=False, **options)
        except Exception:
            return None
        if twin.value.shape != self.value.shape:
            return None
        error = (twin.value - self.value).abs().amax()  # half of the digits may be lost
        return twin if bool(error <= 1e-4 * self.value.abs().amax()) else None

    def _run(self, X: Tensor, batch: int) -> None:
        """Evaluate the map at X, with the graph of its derivative."""
        self.X = X.detach().clone(memory_format=torch.contiguous_format)
        self._input = self.X.clone().requires_grad_()
        self.seen: guard.Seen = guard.Seen()
        with _in_one_line(_failure), self.seen:
            value = self._output = self._called(self._input)
        got = f"{type(value).__name__}: wrap it, for example lambda X: module(X)[0]"
        require(isinstance(value, Tensor), "fn", "a map that returns a tensor", got, TypeError)
        check_same_kind("fn(X)", check_real_tensor("fn(X)", value), self.X, "X")
        require(value.numel(), "fn", "a map whose outputs have entries", tuple(value.shape))
        members, cure = tuple(X.shape[:batch]), f"pass event_dims={X.ndim - batch + 1}"
        got = f"shape {tuple(value.shape)}: if that is no batch, {cure}"
        require(value.shape[:batch] == members, "fn", f"outputs with the batch {members}", got)
        self.inference: bool = value.is_inference()
        self.value: Tensor = value.detach()
        self._describe(X, X.shape[:batch], X.shape[batch:], self.value.shape[batch:])

    def evaluate(self, X: Tensor) -> Tensor:
        """Return the value of the map at X, without a derivative."""
        with guard.isolated(X.device), torch.no_grad(), _in_one_line(_failure):
            return self._called(X)

    def matvec(self, H: Tensor) -> Tensor:
        """Return J[H], by reverse mode applied twice, or by forward mode where that fails."""
        self._check("H", H, self.input_shape)
        with guard.isolated(H.device), _in_one_line(_no_rule):
            if not self._output.requires_grad:  # a constant map
                return torch.zeros_like(self.value)
            if self._once:  # reverse mode failed before, as where a kernel has no second derivative
                return self._pushed_forward(H)
            try:
                G, pulled = self._transposed or self._transpose(
                    torch.zeros_like(self._output, requires_grad=True)
                )
                return torch.autograd.grad(pulled, G, H.clone(), retain_graph=True)[0]
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self._once = True
                with contextlib.suppress(RuntimeError):
                    return self._pushed_forward(H)
                raise error

    def rmatvec(self, G: Tensor) -> Tensor:
        """Return Jᵀ[G], by reverse mode."""
        self._check("G", G, self.output_shape)
        with guard.isolated(G.device), _in_one_line(_no_rule):
            G = G.detach().clone()  # it may come from inference mode
            if self._transposed is None and not self._once:
                with contextlib.suppress(RuntimeError):  # reported below, or by matvec
                    return self._transpose(G.requires_grad_())[1].detach()
            return self._pulled(G.detach())

    def matvec_forward(self, H: Tensor) -> Tensor:
        """Return J[H] by forward mode, now and from now on, or NaN where it fails."""
        self._once = True
        try:
            return self.matvec(H)
        except NotImplementedError:
            return torch.full_like(self.value, torch.nan)

    def _pushed_forward(self, H: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.func.jvp(self._called, (self.X,), (H.clone(),))[1]

    def _transpose(self, G: Tensor) -> tuple[Tensor, Tensor]:
        """Return some G, and Jᵀ[G] as a function of it, which is linear: any G will do."""
        self._transposed = G, self._pulled(G, create_graph=True)
        return self._transposed

    def _pulled(self, G: Tensor, *, create_graph: bool = False) -> Tensor:
        if not self._output.requires_grad:  # no dependence on X, or a hidden one
            return torch.zeros_like(self.X)
        options = {"retain_graph": True, "create_graph": create_graph, "materialize_grads": True}
        try:
            return torch.autograd.grad(self._output, self._input, G, **options)[0]
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
        with saved_tensors_hooks(torch.clone, lambda saved: saved):  # nothing saved is overwritten
            self._output = self._called(self._input)
        return torch.autograd.grad(self._output, self._input, G, **options)[0]

    def _called(self, X: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Converting a tensor with requires_grad")
            return self.fn(X.clone())  # a map that works in place must not change X


def batch_first(fn: Callable, X: Tensor, layout: str) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return X and the map with the batch in front, both transposed if it is (n, batch, d)."""
    check_tokens(X)
    if layout == "NLE":
        return X, fn
    is_second = layout == "LNE" and X.ndim == 3
    require(is_second, "layout", "'NLE', or 'LNE' with three dimensions", f"{layout!r} of {X.ndim}")

    def swapped(X: Tensor) -> Tensor:
        value = fn(X.transpose(0, 1))
        has_batch = isinstance(value, Tensor) and value.ndim > 1
        return value.transpose(0, 1) if has_batch else value

    return X.transpose(0, 1), swapped


@contextlib.contextmanager
def _in_one_line(explained: Callable[[str], Exception]) -> Iterator[None]:
    """Turn what PyTorch says of a map, in many lines, into an error of one line."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise explained(lines[0][:200].rstrip(". ")) from error


def _failure(reason: str) -> Exception:
    """Return the error of a map that X does not fit."""
    if _DTYPES.search(reason):
        cure = "convert the map or X, .double() or .float()"
        return TypeError(f"fn: expected a map of X's dtype ({reason}): {cure}")
    return RuntimeError(f"fn: expected a map that X fits, but it failed: {reason}")


def _no_rule(reason: str) -> Exception:
    """Return the error of an operation without a derivative rule, with what to change."""
    fitting = (cure for pattern, cure in _CURES if re.search(pattern, reason))
    cure = next(fitting, "write that operation in others that have one")
    what = f"automatic differentiation has no rule for an operation in it ({reason})"
    return NotImplementedError(f"fn: {what}: {cure}")
