"""Derivatives of any code, which runs as it is; what has no derivative is said in one line."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.backends import mha
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipcore._checks import check_tokens

# The choice of kernels, the seed and forward mode belong to the process: one thread at a time.
_ALONE = threading.RLock()
_DTYPES = re.compile(r"dtype|scalar type|Input type|data type")
#: Patterns in what PyTorch says of an operation without a derivative rule, and what to change.
_CURES = (
    (r"reentrant|CheckpointFunction", "pass use_reentrant=False to torch.utils.checkpoint"),
    (r"autograd\.Function", "give the torch.autograd.Function in it a backward of its own"),
    (
        r"attention|flash|sdp",
        "use explicit softmax (for transformers models, attn_implementation='eager')",
    ),
    (r"storage|numpy", "stay with PyTorch's operations: what leaves its tensors has no derivative"),
    (r"[Nn]ested", "pass tensors without nesting"),
)


@contextlib.contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Run foreign code alone, with kernels that have derivatives, and restore the seed afterwards.

    Inference mode and ``torch.no_grad`` outside are lifted, fused attention runs as PyTorch's
    mathematical kernel, and what ``torch.compile`` has wrapped runs uncompiled.

    Parameters
    ----------
    device : torch.device
        Where the code computes; the seeds of the CPU and of this device are restored.

    Examples
    --------
    >>> with torch.no_grad(), undisturbed(torch.device("cpu")):
    ...     torch.is_grad_enabled()
    True
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ALONE)
        stack.enter_context(torch.inference_mode(False))  # this lifts no_grad too
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        devices = [device] if device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices))
        stack.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
        mha.set_fastpath_enabled(False)
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


class Derivative:
    """The value of a map at X and products with its derivative J, all from one evaluation.

    Reverse mode gives Jᵀ[G], and the derivative of that with respect to G gives J[H]: three times
    quicker than forward mode, and right for code that works in place, recurrent layers and
    checkpoints. Forward mode is used where an operation can be differentiated once only.

    Parameters
    ----------
    fn : callable
        A map from a tensor like X to a tensor. It is called at once, so that unknown code should
        be given inside :func:`undisturbed`.
    X : Tensor

    Examples
    --------
    >>> f = Derivative(torch.square, torch.tensor([1.0, 2.0]))
    >>> f.value.tolist(), f.push(torch.ones(2)).tolist(), f.pull(torch.ones(2)).tolist()
    ([1.0, 4.0], [2.0, 4.0], [2.0, 4.0])
    """

    def __init__(self, fn: Callable[[Tensor], Tensor], X: Tensor) -> None:
        self.fn = fn
        self._once = False  # whether some operation can be differentiated once only
        self._transposed = None
        self.X = X.detach().clone(memory_format=torch.contiguous_format)
        self._input = self.X.clone().requires_grad_()
        self._output = self._called(self._input)
        is_tensor = isinstance(self._output, Tensor)
        self.value = self._output.detach() if is_tensor else self._output

    def evaluate(self, X: Tensor) -> Tensor:
        """Return the value of the map at X, without a derivative."""
        with undisturbed(X.device), torch.no_grad(), one_line():
            return self._called(X)

    def pull(self, G: Tensor) -> Tensor:
        """Return Jᵀ[G], by reverse mode."""
        with undisturbed(G.device), _explained():
            G = G.detach().clone()  # it may come from inference mode
            if self._transposed is None and not self._once:
                with contextlib.suppress(RuntimeError):  # reported below, or by push
                    return self._transpose(G.requires_grad_())[1].detach()
            return self._pulled(G.detach())

    def push(self, H: Tensor) -> Tensor:
        """Return J[H], by reverse mode applied twice, or by forward mode where that fails."""
        with undisturbed(H.device), _explained():
            if not self._output.requires_grad:
                return torch.zeros_like(self.value)
            if self._once:
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
        with saved_tensors_hooks(torch.clone, lambda kept: kept):  # nothing saved is overwritten
            self._output = self._called(self._input)
        return torch.autograd.grad(self._output, self._input, G, **options)[0]

    def _called(self, X: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Converting a tensor with requires_grad")
            return self.fn(X.clone())  # a map that works in place must not change X


def arranged(fn: Callable, X: Tensor, layout: str) -> tuple[Tensor, Callable]:
    """Return X and the map with the batch in front, both transposed if it is (n, batch, d)."""
    check_tokens(X)
    if layout == "NLE":
        return X, fn
    if layout != "LNE" or X.ndim != 3:
        expected = "expected 'NLE', or 'LNE' with X of three dimensions"
        raise ValueError(f"layout: {expected}, got {layout!r} with X of {X.ndim}")

    def swapped(X: Tensor) -> Tensor:
        value = fn(X.transpose(0, 1))
        has_batch = isinstance(value, Tensor) and value.ndim > 1
        return value.transpose(0, 1) if has_batch else value

    return X.transpose(0, 1), swapped


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Turn what PyTorch says of a map that fails into an error of one line.

    Raises
    ------
    TypeError, RuntimeError
        TypeError where dtypes do not fit, RuntimeError for any other failure of PyTorch.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:
        reason = _first_line(error)
        if _DTYPES.search(reason):
            cure = "convert the map or X, .double() or .float()"
            raise TypeError(f"fn: expected a map of X's dtype ({reason}): {cure}") from error
        raise RuntimeError(f"fn: expected a map that X fits, but it failed: {reason}") from error


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say in one line what to change where automatic differentiation has no rule."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:
        reason = _first_line(error)
        fitting = (cure for pattern, cure in _CURES if re.search(pattern, reason))
        cure = next(fitting, "write that operation in others that have one")
        what = f"automatic differentiation has no rule for an operation in it ({reason})"
        raise NotImplementedError(f"fn: {what}: {cure}") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200].rstrip(". ")
