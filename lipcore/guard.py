r"""Checks that refuse maps whose derivative by automatic differentiation cannot be trusted.

Every map is tested at X in one random direction H, in float64 where it can be had. Its outputs at
X + hH and X − hH must differ from that at X by ±h J[H], for each member b of the batch, and
:math:`\langle G_b, (JH)_b\rangle = \langle (J^\top G)_b, H_b\rangle`, which fails where one member
influences another. The map must repeat its outputs, keep nothing from call to call, and draw
nothing at random.

The Jacobian of :class:`~lipcore.attention.Attention` is written out in closed form, is compared
with dense derivatives in the package's tests, and needs no guard.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from lipcore._state import SOURCES, State

#: Length of the first step, relative to each token, how far J[H] may be from the difference, and
#: how far the two sides from each other: of float32, half the digits are lost, of float64 a third.
FIRST = {torch.float64: (1e-5, 1e-6, 1e-4), torch.float32: (3e-3, 1e-3, 3e-2)}
#: How far J[H] may be from any difference, however little it can be trusted.
LARGEST_ERROR = 0.1
#: Relative rounding above which a map of float64 has fewer digits inside.
ROUNDING = 1e-10
#: Members that are moved at most, one after the other, to see whether others follow.
MEMBERS_MOVED = 16
#: What is said where rounding of the outputs may be as large as their differences.
LOST = "its outputs are so large that changes of them are lost in rounding: leave out what is constant in it"
#: What may hide a part of a map from autodiff, or has no derivative, or one that is made up.
_SUSPECTS = {"detach", "detach_", "data", "no_grad", "numpy", "item", "tolist", "__float__"}
_SUSPECTS |= {"round", "floor", "ceil", "trunc", "sign", "argmax", "argsort", "topk", "bucketize"}
_SEED = 0x5EED
_OWN_SEED = int.from_bytes(b"lipcore")


def draw_normal(shape: tuple[int, ...], stream: int = 0) -> Tensor:
    """Return independent normal numbers, float64, always the same for one stream.

    They are nobody else's: ``torch.randn`` under a small seed is how people draw tokens, and a
    probe that equals the tokens sees nothing of a map that is constant along them.
    """
    source = np.random.default_rng([_OWN_SEED, stream])
    return torch.from_numpy(source.standard_normal(math.prod(shape)).reshape(shape))


# The choice of kernels, the seed and forward mode belong to the process: one thread at a time.
_ALONE = threading.RLock()


@contextlib.contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Run foreign code alone, with kernels that have derivatives, and restore the seed afterwards.

    Inference mode and ``torch.no_grad`` outside are lifted, fused attention runs as PyTorch's
    mathematical kernel, and what ``torch.compile`` has wrapped runs uncompiled.

    >>> with torch.no_grad(), isolated(torch.device("cpu")):
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


def refuse_training(fn: Callable) -> None:
    """Raise ValueError if ``fn`` is a module in training mode, or a method of one."""
    module = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    if not isinstance(module, nn.Module) or "eval" in vars(module):
        return  # what torch.export writes keeps the mode it was written in, and has no .eval()
    if any(part.training for part in module.modules()):
        got = f"{type(module).__name__} in training mode: call .eval() first"
        raise ValueError(f"fn: expected a module in evaluation mode, got {got}")


@contextlib.contextmanager
def unchanged(fn: Callable, device: torch.device) -> Iterator[State]:
    """Yield what a map holds, and put it back afterwards: buffers, attributes, containers, seeds.

    >>> norm, X = nn.BatchNorm1d(2), torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    >>> with unchanged(norm, X.device) as state:
    ...     y = norm(X)
    ...     state.changes()[0][1]
    'num_batches_tracked of _buffers of BatchNorm1d'
    >>> norm.num_batches_tracked
    tensor(0)
    """
    thread = threading.get_ident()

    def enters(module: nn.Module, _) -> None:
        if threading.get_ident() == thread:
            state.add(module, type(module).__name__)

    with isolated(device):
        sources = [torch.default_generator]
        if device.type == "cuda":
            sources.append(torch.cuda.default_generators[device.index or 0])
        for source in sources:
            source.manual_seed(_SEED)  # a map that sets its own is seen then
        state = State(*sources, random._inst, np.random.mtrand._rand, fn)
        handle = nn.modules.module.register_module_forward_pre_hook(enters)
        try:
            yield state
        finally:
            handle.remove()
            state.put_back()


# --- the derivative ----------------------------------------------------------------------------


def check_derivative(J, batch: int, state: State) -> None:
    """Refuse a map whose derivative by autodiff is not the derivative of what it does.

    ``batch`` says how many of the first dimensions of X and of the output are the batch, and
    ``state`` what the map held before it ran. The message names the cause where it is known.

    >>> from lipcore import AutogradJacobian
    >>> AutogradJacobian(lambda X: X - X.mean(0), torch.tensor([[[1.0]], [[2.0]]]))
    Traceback (most recent call last):
    ...
    ValueError: fn: expected members of the batch (2,) that do not influence one another...
    """
    # what a first call adds, such as a mask made once, may stay
    lasting = [x for x in state.changes() if isinstance(x[0], SOURCES) or "training of" in x[1]]
    _refuse_changes(lasting)
    later = state.again()
    same = _repeats(J.value, J.evaluate(J.X))
    _refuse_changes(later.changes())
    H = _direction(J.X, batch)
    near = J.X + FIRST[J.X.dtype][0] * H
    first = J.evaluate(near)
    state.put_back()
    if not (same and _repeats(first, J.evaluate(near))):
        cure = "remove what it draws at random, or keeps from call to call"
        raise ValueError(f"fn: expected the same output at the same X, got two: {cure}")
    if J.seen.half:
        what = f"one that works in {J.seen.half} inside: convert that part"
        raise ValueError(f"fn: expected a map with the digits of X, got {what}")
    J.checked = True
    symptom = _symptom(J, H, first, batch)
    if symptom is not None:
        raise ValueError(_why(J, batch, symptom))


def _refuse_changes(changes: list[tuple[object, str]]) -> None:
    """Refuse a map that has changed what it holds."""
    if any(isinstance(thing, SOURCES) for thing, _ in changes):
        cure = "call .eval(), or draw before the map"
        what = "draws random numbers or sets the seed (dropout, for example)"
        raise ValueError(f"fn: expected a map without chance, got one that {what}: {cure}")
    if changes:
        what = f"one that changes {changes[0][1]}"
        cure = "call .eval(), or measure a map that has no such state"
        raise ValueError(f"fn: expected a map that changes nothing, got {what}: {cure}")


def _repeats(one: Tensor, other: Tensor) -> bool:
    """Return whether two outputs are the same, up to sums in another order."""
    rounding = 64 * torch.finfo(one.dtype).eps * one.abs().amax()
    return torch.equal(one, other) or bool((one - other).abs().amax() <= rounding)


def _symptom(J, H: Tensor, near: Tensor, batch: int) -> str | None:
    """Return what is wrong with J and its transpose at X, or None.

    J[H] is compared with a central difference at a step or two, ``near`` an end of the first, and
    where that does not settle it, at all steps. Long ones see curvature and kinks, short ones are
    lost in rounding: of each member the step counts whose difference changes least to the next
    ones. Where the two sides differ by the same at all steps, X is at a kink.
    """
    eps = max(torch.finfo(J.X.dtype).eps, J.seen.eps)
    is_exact = eps < ROUNDING
    G = draw_normal(J.value.shape, 1).to(J.X)
    JG = J.rmatvec(G)  # first, since it builds the graph that push needs
    JH = J.matvec(H)
    if _is_finite(JG) and not _is_finite(JH):
        JH = J.matvec_forward(H)
    if not (_is_finite(JH) and _is_finite(JG)):
        raise ValueError("fn: expected finite products, got NaN or infinity: no derivative at X")
    apart = _apart(H, G, JH, JG, batch)
    if not apart <= (1e-6 if is_exact else 1e-3) or (
        is_exact and apart > 1e-9 and _mixed_dimension(J.evaluate, J.X, J.value, batch) is not None
    ):
        return "J and its transpose do not belong together"
    size, value = _norms(JH, batch), _norms(J.value, batch)[..., :1]
    length, error, bend = FIRST[J.X.dtype]
    good = torch.zeros_like(size, dtype=torch.bool)
    for h in (length, length / 100)[: 1 + is_exact]:  # the shorter one passes by most kinks
        difference, bent = _difference(J, H, h, batch, near if h == length else None)
        floor = 8 * torch.finfo(J.X.dtype).eps / h * value
        wrong = _norms(difference - JH, batch)
        seen = (floor <= bend * size) & (bent <= bend * size + floor)
        good |= (seen & (wrong <= error * size + floor)) | (size + wrong + bent == 0)
        if bool(good.all()):
            return None
    steps = [10 ** (-k / 2) for k in range(2, 21 if is_exact else 11)]
    differences, bent = zip(*(_difference(J, H, h, batch) for h in steps), strict=True)
    sizes = torch.stack([torch.maximum(size, _norms(x, batch)) for x in differences])
    wrong = torch.stack([_norms(x - JH, batch) for x in differences])
    floor = torch.stack([8 * torch.finfo(J.X.dtype).eps / h * value for h in steps])
    floor = floor.expand_as(sizes)  # of a token, too: all outputs may round inside
    change = torch.stack([_norms(x - y, batch) for x, y in itertools.pairwise(differences)])
    spread = torch.maximum(change[1:], change[:-1]) + floor[1:-1]
    best, first = spread.argmin(0, keepdim=True), wrong[0]
    wrong, beside, spread, lost = (
        x.gather(0, best)[0] for x in (wrong[1:-1], sizes[1:-1], spread, floor[1:-1])
    )
    spread[..., 1:] *= 3  # of many small tokens some change little by luck
    trusted = torch.minimum(3 * spread, LARGEST_ERROR * beside[..., :1]) + error * beside
    trusted = trusted + torch.where(size == 0, error * first, 0)  # zero, and soon not, as x³ at 0
    last = None if is_exact else 1  # other rounding does not spare small tokens
    if not bool((wrong <= torch.maximum(trusted, lost))[..., :last].all()):
        return "a finite difference is not what autodiff gives"
    bent, noise = torch.stack(bent), floor.clone()
    noise[..., 1:] = 3 * spread[..., 1:]
    bend = bend if is_exact else LARGEST_ERROR
    largest = torch.maximum(bend * sizes.amin(0), 1e-4 * bent[0])  # kinks stay in short steps
    if not bool((bent <= largest + noise)[..., :last].any(0).all()):
        return "X is at a kink, from which the map goes on differently to the two sides"
    lost = ((lost > LARGEST_ERROR * beside) & (beside > 0))[..., 0]
    J.checked = not bool(lost.any())  # a derivative that may be zero is measured, and this is said
    is_large = (size > 4 * torch.finfo(J.X.dtype).eps * value)[..., 0]
    return LOST if bool((lost & is_large).any()) else None


def _difference(J, H: Tensor, length: float, batch: int, near: Tensor | None = None):
    """Return the central difference, and the norms of half the distance of the one-sided ones."""
    near = J.evaluate(J.X + length * H) if near is None else near
    ends = near, J.evaluate(J.X - length * H)
    forth, back = ((end - J.value).double() for end in ends)
    return (forth - back) / (2 * length), _norms(forth + back, batch) / (2 * length)


def _is_finite(tensor: Tensor) -> bool:
    return math.isfinite(tensor.sum()) or bool(torch.isfinite(tensor).all())


def _direction(X: Tensor, batch: int) -> Tensor:
    """Return a direction: X as a whole, all tokens together, and each token by itself.

    A part of the derivative that acts in few directions is then seen.
    """
    shared = (*X.shape[:-2], 1, X.shape[-1]) if X.ndim > max(batch, 1) else X.shape
    alone, together = draw_normal(X.shape, 2).to(X), draw_normal(shared, 3).to(X)
    return X + _sizes(X, batch) * (alone + together)


def _sizes(X: Tensor, batch: int) -> Tensor:
    """Return the root mean square of each token; where it is zero, of the whole member, or one."""
    token = X.square().mean(-1, keepdim=True).sqrt()
    member = X.flatten(batch).square().mean(-1).sqrt()
    member = torch.where(member > 0, member, 1).reshape(*member.shape, *[1] * (X.ndim - batch))
    return torch.where(token > 0, token, member)


def _flat(tensor: Tensor, batch: int) -> Tensor:
    """Return one vector in float64 for each member."""
    return tensor.double().reshape(*tensor.shape[:batch], -1)


def _norms(tensor: Tensor, batch: int) -> Tensor:
    """Return the norms in float64 of each member and of each of its tokens, (*batch, 1 + n)."""
    n, p = tensor.shape[-2:] if tensor.ndim > batch + 1 else (1, math.prod(tensor.shape[batch:]))
    parts = tensor.double().reshape(*tensor.shape[:batch], -1, n, p)
    largest = parts.abs().amax((-3, -2, -1)).clamp(min=1e-300)[..., None]  # no square vanishes
    tokens = torch.linalg.vector_norm(parts / largest[..., None, None], dim=(-3, -1))
    whole = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True)
    return largest * torch.cat([whole, tokens], -1)


def _apart(H: Tensor, G: Tensor, JH: Tensor, JG: Tensor, batch: int) -> float:
    """Return how far ⟨G, JH⟩ is from ⟨JᵀG, H⟩, beside their usual size, in the worst member."""
    g, jh, jg, h = (_flat(x, batch) for x in (G, JH, JG, H))
    difference = ((g * jh).sum(-1) - (jg * h).sum(-1)).abs()
    entries = max(JH.numel(), H.numel()) / max(1, difference.numel())
    g, jh, jg, h = (_norms(x, batch)[..., 0] for x in (G, JH, JG, H))
    usual = (g * jh + jg * h) / entries**0.5
    return float((difference / usual.clamp(min=1e-300)).max())


# --- the cause -----------------------------------------------------------------------------------


def _why(J, batch: int, symptom: str) -> str:
    """Return one line that names the cause of ``symptom`` where it is known, or what it may be."""
    if symptom == LOST:
        return f"fn: expected a map that can be checked, but {LOST}, or pass check=False"
    mixed = _mixed_dimension(J.evaluate, J.X, J.value, batch)
    if mixed is not None:
        return _about_the_batch(J, batch, mixed)
    suspects = sorted(J.seen.names & _SUSPECTS) + ["inference_mode"] * J.inference
    if "kink" in symptom and not suspects:
        cause = "move X, or leave out what is zero or equal there"
    else:
        hidden = f"{', '.join(suspects)} may hide a part from it, or " if suspects else ""
        cause = f"{hidden}a custom backward or a kink may be wrong there"
    if J.X.dtype == torch.float32:
        cause += ", or float32 too short: try .double()"
    return f"fn: expected a map with the derivative that autodiff gives, but {symptom}: {cause}"


def _mixed_dimension(evaluate: Callable, X: Tensor, value: Tensor, batch: int) -> int | None:
    """Return the first batch dimension along which moving one member moves others, or None."""
    sizes = _sizes(X, batch)
    members = list(itertools.product(*map(range, X.shape[:batch]))) if batch else []
    for member in members[:: max(1, len(members) // MEMBERS_MOVED)]:
        moved = X.clone()
        moved[member] = 1.1 * X[member] + 0.1 * sizes[member]
        change = (evaluate(moved) - value).reshape(*value.shape[:batch], -1).abs().amax(-1)
        rounding = 64 * torch.finfo(value.dtype).eps * value.abs().amax()
        others = change > 1e-9 * change.max() + rounding
        others[member] = False
        if bool(others.any()):
            places = others.nonzero()
            return int((places != places.new_tensor(member)).any(0).nonzero()[0])
    return None


def _about_the_batch(J, batch: int, mixed: int) -> str:
    shape = tuple(J.X.shape)
    cures = []
    if J.X.ndim == 3 and batch == 1 < shape[1] and J.value.shape[:2] == shape[:2]:

        def swapped(X: Tensor) -> Tensor:
            return J.evaluate(X.transpose(0, 1)).transpose(0, 1)

        X = J.X.transpose(0, 1)
        if _mixed_dimension(swapped, X, J.value.transpose(0, 1), 1) is None:
            cures.append("if the batch is dimension 1, transpose X or pass layout='LNE'")
    last = J.X.ndim - 1
    cures.append(
        f"if dimensions {mixed} to {last} are one input, pass event_dims={1 + last - mixed}"
    )
    return (
        f"fn: expected members of the batch {shape[:batch]} that do not influence one another, "
        f"got some that do along dimension {mixed} of X: {'; '.join(cures)}"
    )


class Seen(TorchFunctionMode):
    """Records the names of the functions of PyTorch that are called, and the digits they have."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.half = set(), ""
        self.eps = 0.0  # the largest of a dtype that the derivative passes through

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name == "__get__":  # of an attribute such as X.data
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        if name == "_set_grad_enabled":
            name = "" if args[0] else "no_grad"
        self.names.add(name)
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.requires_grad and not result.is_complex():
            self.eps = max(self.eps, torch.finfo(result.dtype).eps)
            if result.dtype in (torch.float16, torch.bfloat16):
                self.half = str(result.dtype).removeprefix("torch.")
        return result
