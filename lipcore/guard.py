r"""Checks that refuse maps whose derivative by automatic differentiation cannot be trusted.

Every map is tested at X, in a random direction. That
:math:`\langle G_b, (JH)_b\rangle = \langle (J^\top G)_b, H_b\rangle` for each member b of the batch
shows that J and Jᵀ are transposes, and fails where one member influences another. That J[H] is a
finite difference is tested too; of many members, only for two, if the map moves these two in the
same way without the others. The map may change nothing, and draw no random numbers.

The Jacobian of :class:`~lipcore.attention.Attention` is written out in closed form, is compared
with dense derivatives in the package's tests, and needs no guard.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

#: How far the two sides of the adjoint identity may differ, relative to their usual size: half of
#: float32's digits, since softmax is often worked out in float32 whatever the dtype.
ADJOINT_TOLERANCE = 1e-3
#: How far J[H] may be from a finite difference, relative to it.
DIFFERENCE_TOLERANCE = {torch.float32: 1e-2, torch.float64: 1e-3}
#: The same for any map, however little its finite differences can be trusted.
LARGEST_ERROR = 0.1
#: Length of the first step, relative to each token, and of those that follow if it does not agree.
FIRST_STEP = {torch.float32: 1e-3, torch.float64: 1e-6}
STEPS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 1e-6, 1e-7)
#: With so many members or more, finite differences are those of the first and the last, alone.
MANY = 6
#: Members that are moved at most, one after the other, to see whether others follow.
MEMBERS_MOVED = 16
_HIDING = {"detach", "detach_", "data", "numpy", "item", "tolist", "no_grad", "__float__"}
_STEPPED = {"round", "floor", "ceil", "trunc", "sign", "argmax", "argsort", "topk", "bucketize"}
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
    if isinstance(module, nn.Module) and any(part.training for part in module.modules()):
        got = f"{type(module).__name__} in training mode: call .eval() first"
        raise ValueError(f"fn: expected a module in evaluation mode, got {got}")


@contextlib.contextmanager
def unchanged(device: torch.device) -> Iterator[None]:
    """Refuse code that changes buffers or flags of its modules, draws random numbers, or sets seeds.

    Buffers, training flags and the seed are restored.

    >>> norm = nn.BatchNorm1d(2)
    >>> with unchanged(torch.device("cpu")):
    ...     y = norm(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    Traceback (most recent call last):
    ...
    ValueError: fn: expected a map that changes nothing, got BatchNorm1d in training mode that...
    """
    before = {}
    thread = threading.get_ident()

    def note(module: nn.Module, _) -> None:
        if module not in before and threading.get_ident() == thread:
            buffers = dict(module.named_buffers(recurse=False))
            copies = {name: (buffer, buffer.clone()) for name, buffer in buffers.items()}
            before[module] = (module.training, copies)

    with isolated(device):
        handle = nn.modules.module.register_module_forward_pre_hook(note)
        chance = _set_seed(device, _SEED)
        try:
            yield
        finally:
            handle.remove()
            changed = [what for item in before.items() for what in _put_back(*item)]
        if changed:
            cure = "call .eval(), or measure a map that has no such state"
            raise ValueError(f"fn: expected a map that changes nothing, got {changed[0]}: {cure}")
        if not all(map(torch.equal, chance, _chance(device))):
            dropout = [m for m in before if m.training and "Dropout" in type(m).__name__]
            by = f"{type(dropout[0]).__name__} in training mode" if dropout else "dropout, a seed"
            raise ValueError(
                "fn: expected a map without chance, got one that draws random numbers or sets the "
                f"seed ({by}): call .eval(), or draw before the map"
            )


def check_derivative(J, batch: int) -> None:
    """Refuse a map whose derivative by autodiff is not the derivative of what it does.

    ``batch`` says how many of the first dimensions of X and of the output are the batch. The
    message names the cause that is found, among those that are known.

    >>> from lipcore import AutogradJacobian
    >>> AutogradJacobian(lambda X: X - X.mean(0), torch.tensor([[[1.0]], [[2.0]]]))
    Traceback (most recent call last):
    ...
    ValueError: fn: expected members of the batch (2,) that do not influence one another...
    """
    symptom = _symptom(J, batch)
    if symptom is not None:
        raise ValueError(_why(J, batch, symptom))


def _symptom(J, batch: int) -> str | None:
    """Return what is wrong with J and its transpose at X, or None."""
    generator = torch.Generator().manual_seed(_SEED)
    H = _direction(J.X, batch, generator)
    length = FIRST_STEP[J.X.dtype]
    step = (J.X + length * H) - J.X  # without the rounding of a step that is not representable
    H = step / length
    G = _normal(J.value, generator)
    JG = J.rmatvec(G)  # first, since it builds the graph that push needs
    JH = J.matvec(H)
    if not (_is_finite(JH) and _is_finite(JG)):
        raise ValueError("fn: expected finite products, got NaN or infinity: no derivative at X")
    if not _are_adjoint(H, G, JH, JG, batch):
        return "J and its transpose do not belong together"
    if _few_agree(J, step, JH, batch):
        return None
    short = (J.evaluate(J.X + step) - J.value) / length
    if _agree(J.value, JH, short, batch) or _differences_agree(J, H, JH, batch):
        return None
    return "a finite difference is not what autodiff gives"


def _is_finite(tensor: Tensor) -> bool:
    return math.isfinite(tensor.sum()) or bool(torch.isfinite(tensor).all())


def _few_agree(J, step: Tensor, JH: Tensor, batch: int) -> bool:
    """Return whether two of many members, the first and the last, move alone as J says.

    False proves nothing, since a map may be made for one number of members.
    """
    size, dim = max(((size, dim) for dim, size in enumerate(J.X.shape[:batch])), default=(0, 0))
    if size < MANY:
        return False
    ends = torch.tensor([0, size - 1], device=J.X.device)
    X, step, value, jh = (x.index_select(dim, ends) for x in (J.X, step, J.value, JH))
    try:
        change = J.evaluate(X + step) - value
    except Exception:
        return False
    return change.shape == jh.shape and _agree(value, jh, change / FIRST_STEP[J.X.dtype], batch)


def _agree(value: Tensor, JH: Tensor, difference: Tensor, batch: int) -> bool:
    """Return whether the first difference is JH for each member, and rounding small beside it."""
    wrong, size, rounding = _compared(value, JH, difference, FIRST_STEP[value.dtype], batch)
    tolerance = DIFFERENCE_TOLERANCE[value.dtype]
    agree = (wrong <= tolerance * size + rounding) & (rounding <= LARGEST_ERROR * size)
    return bool(agree.all())


def _direction(X: Tensor, batch: int, generator: torch.Generator) -> Tensor:
    """Return a direction: X as a whole, all tokens together, and each token by itself.

    A part of the derivative that acts in few directions is then seen.
    """
    alone = _normal(X, generator)
    together = _normal(X.narrow(-2, 0, 1) if X.ndim > max(batch, 1) else X, generator)
    return X + _sizes(X, batch) * (alone + together)


def _sizes(X: Tensor, batch: int) -> Tensor:
    """Return the root mean square of each token; where it is zero, of the whole member, or one."""
    token = X.square().mean(-1, keepdim=True).sqrt()
    member = X.flatten(batch).square().mean(-1).sqrt()
    member = torch.where(member > 0, member, 1).reshape(*member.shape, *[1] * (X.ndim - batch))
    return torch.where(token > 0, token, member)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    draw = torch.randn(like.shape, generator=generator, dtype=torch.float32)
    return draw.to(like.device, like.dtype)


def _flat(tensor: Tensor, batch: int) -> Tensor:
    """Return one vector in float64 for each member."""
    return tensor.double().reshape(*tensor.shape[:batch], -1)


def _norm(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vectors, dim=-1)


def _are_adjoint(H: Tensor, G: Tensor, JH: Tensor, JG: Tensor, batch: int) -> bool:
    """Return whether ⟨G, JH⟩ = ⟨JᵀG, H⟩ for each member, up to a share of its usual size."""
    g, jh, jg, h = (_flat(x, batch) for x in (G, JH, JG, H))
    difference = ((g * jh).sum(-1) - (jg * h).sum(-1)).abs()
    entries = max(JH.numel(), H.numel()) / max(1, difference.numel())
    usual = (_norm(g) * _norm(jh) + _norm(jg) * _norm(h)) / entries**0.5
    return bool((difference <= ADJOINT_TOLERANCE * usual).all())


def _compared(value: Tensor, JH: Tensor, difference: Tensor, length: float, batch: int):
    """Return for each member the distance of a difference to JH, the larger norm, and rounding."""
    rounding = 4 * torch.finfo(value.dtype).eps / length
    jh, fd, value = (_flat(x, batch) for x in (JH, difference, value))
    rounding = rounding * _norm(value)
    return _norm(jh - fd), torch.maximum(_norm(jh), _norm(fd)), rounding


def _differences_agree(J, H: Tensor, JH: Tensor, batch: int) -> bool:
    """Return whether the best central difference is JH for each member, as far as one can tell.

    Long steps see curvature and kinks; short ones are lost in rounding, which is that of float32
    where a map upcasts its softmax. How much is lost shows in the change to the next shorter step.
    """
    differences = []
    for length in STEPS:
        forth, back = (J.evaluate(J.X + sign * length * H) for sign in (1, -1))
        differences.append((forth - back) / (2 * length))
    compared = [
        _compared(J.value, JH, fd, step, batch) for fd, step in zip(differences, STEPS, strict=True)
    ]
    wrong, size, rounding = compared[0]
    unseen = torch.maximum(wrong, size) <= rounding  # too little to be seen at any length
    errors = torch.stack([wrong / size.clamp(min=1e-300) for wrong, size, _ in compared[:-1]])
    changes = (_norm(_flat(x - y, batch)) for x, y in itertools.pairwise(differences))
    changes = torch.stack([change / size.clamp(min=1e-300) for change in changes])
    error, best = errors.min(0)
    trusted = 3 * changes.gather(0, best[None])[0]
    trusted = trusted.clamp(DIFFERENCE_TOLERANCE[J.X.dtype], LARGEST_ERROR)
    return bool((unseen | (error <= trusted)).all())


def _why(J, batch: int, symptom: str) -> str:
    """Return one line that names the cause of ``symptom``, among those that are known."""
    for again in (J.evaluate(J.X), J.evaluate(J.X)):
        if not torch.allclose(again, J.value, rtol=1e-4, atol=1e-4 * float(J.value.abs().max())):
            cure = "remove what it draws at random, or keeps from call to call"
            return f"fn: expected the same output at the same X, got two: {cure}"
    mixed = _mixed_dimension(J.evaluate, J.X, again, batch)
    if mixed is not None:
        return _about_the_batch(J, batch, mixed)
    seen = _Seen()
    with isolated(J.X.device), seen:
        value = J.fn(J.X.clone())
    hidden = sorted(seen.names & _HIDING) + (["inference_mode"] if value.is_inference() else [])
    stepped = sorted(seen.names & _STEPPED)
    if hidden:
        what = f"one that hides a part from it ({', '.join(hidden)})"
        return f"fn: expected a map that autodiff sees whole, got {what}: {symptom}; remove that"
    if stepped:
        what = f"{', '.join(stepped)}, whose derivative is zero or made up"
        return f"fn: expected a differentiable map, got one with {what}: {symptom}"
    cure = "a custom backward or a kink may be wrong there"
    if J.X.dtype == torch.float32:
        cure += ", or float32 too short: try .double()"
    return f"fn: expected a map with the derivative that autodiff gives, but {symptom}: {cure}"


def _mixed_dimension(evaluate: Callable, X: Tensor, value: Tensor, batch: int) -> int | None:
    """Return the first batch dimension along which moving one member moves others, or None."""
    sizes = _sizes(X, batch)
    members = list(itertools.product(*map(range, X.shape[:batch]))) if batch else []
    for member in members[:: max(1, len(members) // MEMBERS_MOVED)]:
        moved = X.clone()
        moved[member] = 1.1 * X[member] + 0.1 * sizes[member]
        change = (evaluate(moved) - value).reshape(*value.shape[:batch], -1).abs().amax(-1)
        others = change > 1e-4 * change.max()
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


class _Seen(TorchFunctionMode):
    """Records the names of the functions of PyTorch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name == "__get__":  # of an attribute such as X.data
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        if name == "_set_grad_enabled":
            name = "" if args[0] else "no_grad"
        self.names.add(name)
        return func(*args, **(kwargs or {}))


def _chance(device: torch.device) -> list[Tensor]:
    """Return the states of the generators that code on this device draws from."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_seed(device: torch.device, seed: int) -> list[Tensor]:
    """Seed these generators, and return their states."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    return _chance(device)


def _put_back(module: nn.Module, was: tuple[bool, dict]) -> list[str]:
    """Restore the flag and the buffers of a module, and return what had changed."""
    training, buffers = was
    kind = f"{type(module).__name__} in {'training' if training else 'evaluation'} mode"
    changed = []
    if module.training != training:
        module.training = training
        changed.append(f"{kind} that changes its mode")
    now = dict(module.named_buffers(recurse=False))
    for name, (buffer, copy) in buffers.items():
        if not _equal(now.get(name), copy):
            changed.append(f"{kind} that changes its buffer {name}")
        if now.get(name) is not buffer:
            setattr(module, name, buffer)
        if not _equal(buffer, copy):
            with torch.no_grad():
                buffer.copy_(copy)
    return changed


def _equal(one: Tensor | None, other: Tensor) -> bool:
    if one is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one != one) & (other != other)).all())
