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
import functools
import itertools
import math
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

#: Length of the first step, relative to each token, how far J[H] may be from the difference, and
#: how far the two sides from each other: of float32, half the digits are lost, of float64 a third.
FIRST = {torch.float64: (1e-5, 1e-6, 1e-4), torch.float32: (3e-3, 1e-3, 3e-2)}
#: Lengths of the steps if that fails; the shorter ones only where the map works in float64.
STEPS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
SHORT_STEPS = (1e-6, 1e-7, 1e-8, 1e-9, 1e-10)
#: How far J[H] may be from any difference, however little it can be trusted.
LARGEST_ERROR = 0.1
#: Relative rounding above which a map of float64 has fewer digits inside.
ROUNDING = 1e-10
#: Members that are moved at most, one after the other, to see whether others follow.
MEMBERS_MOVED = 16
_HIDING = {"detach", "detach_", "data", "no_grad"}
_LEAVING = {"numpy", "item", "tolist", "__float__"}
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


# --- what a map keeps from call to call ------------------------------------------------------


@contextlib.contextmanager
def unchanged(fn: Callable, device: torch.device) -> Iterator[State]:
    """Yield what a map holds, and put it back afterwards: buffers, attributes, containers, seeds.

    >>> norm, X = nn.BatchNorm1d(2), torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    >>> with unchanged(norm, X.device) as state:
    ...     y = norm(X)
    ...     state.refuse_changes(values=True)
    Traceback (most recent call last):
    ...
    ValueError: fn: expected a map that changes nothing, got one that changes num_batches_tracked...
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
        state = State([*sources, random._inst, np.random.mtrand._rand, fn])
        handle = nn.modules.module.register_module_forward_pre_hook(enters)
        try:
            yield state
        finally:
            handle.remove()
            state.put_back()


class State:
    """All that calls of a map may change: what it holds, directly or through others, as it was."""

    def __init__(self, roots: list) -> None:
        self._was = {}
        for root in roots:
            self.add(root, type(root).__name__)

    def add(self, root: object, owner: str) -> None:
        """Note a thing, and what it holds."""
        left = [(root, owner)]
        while left:
            thing, owner = left.pop()
            if isinstance(thing, nn.Parameter | type | types.ModuleType):
                continue
            if hasattr(thing, "__dict__") and not isinstance(thing, _CLOSED):
                left += [(part, owner) for part in _called_by(thing)]
                thing, owner = vars(thing), type(thing).__name__
            if id(thing) not in self._was:
                content = _content(thing)
                if content is not None:
                    self._was[id(thing)] = thing, owner, content
                left += _named(thing, owner)

    def again(self) -> State:
        """Return what the same things hold now."""
        later = State([])
        for thing, owner, _ in list(self._was.values()):
            later.add(thing, owner)
        return later

    def refuse_changes(self, *, values: bool = False) -> None:
        """Raise ValueError if something has changed; with ``values``, not if only names have.

        What a first call adds, such as a mask made once, may stay.
        """
        changed = [(*entry, _content(entry[0])) for entry in self._was.values()]
        changed = [entry for entry in changed if not _same(entry[2], entry[3])]
        if any(isinstance(thing, _SOURCES) for thing, *_ in changed):
            cure = "call .eval(), or draw before the map"
            what = "draws random numbers or sets the seed (dropout, for example)"
            raise ValueError(f"fn: expected a map without chance, got one that {what}: {cure}")
        for thing, owner, was, now in changed:
            names = [owner]
            if isinstance(thing, dict):
                names = [k for k in {**was, **now} if not _same(was.get(k), now.get(k))]
                names = [f"{name} of {owner}" for name in names if name == "training" or not values]
            elif values and not isinstance(thing, Tensor):
                names = []
            if names:
                what = f"one that changes {names[0]}"
                cure = "call .eval(), or measure a map that has no such state"
                raise ValueError(f"fn: expected a map that changes nothing, got {what}: {cure}")

    def put_back(self) -> None:
        """Let all things hold again what they held."""
        for thing, _, was in self._was.values():
            if not _same(_content(thing), was):
                _put_back(thing, was)


_SOURCES = (torch.Generator, random.Random, np.random.RandomState, np.random.Generator)
_CLOSED = (Tensor, types.FunctionType, *_SOURCES)
_GLOBALS = (nn.Module, list, dict, *_SOURCES)


def _called_by(thing: object) -> list:
    """Return what a bound method or a partial function calls, and what its object holds."""
    if isinstance(thing, functools.partial):
        return [thing.func, thing.args, thing.keywords]
    return [thing.__self__, thing.__func__] if isinstance(thing, types.MethodType) else []


def _named(thing: object, owner: str) -> list[tuple[object, str]]:
    """Return what a container, a function or one of its variables holds, with a name for each."""
    if isinstance(thing, types.FunctionType):
        names = thing.__code__.co_names
        used = [(thing.__globals__.get(name), name) for name in names]
        cells = zip(thing.__closure__ or (), thing.__code__.co_freevars, strict=True)
        return [*cells, *((part, name) for part, name in used if isinstance(part, _GLOBALS))]
    if isinstance(thing, dict):
        return [(part, f"{name} of {owner}") for name, part in thing.items()]
    parts = _content(thing) if isinstance(thing, types.CellType) else thing
    is_container = isinstance(parts, list | tuple | set)
    return [(part, owner) for part in parts] if is_container else []


def _content(thing: object):
    """Return a copy of what a thing holds, or None if it holds nothing that can change."""
    if isinstance(thing, Tensor):
        return thing.detach().clone()
    if isinstance(thing, dict | list):
        return thing.copy()
    if isinstance(thing, np.random.Generator):
        return thing.bit_generator.state
    with contextlib.suppress(ValueError, NotImplementedError):  # an empty cell, SystemRandom
        if isinstance(thing, types.CellType):
            return [thing.cell_contents]
        if isinstance(thing, _SOURCES):
            return (getattr(thing, "get_state", None) or thing.getstate)()
    return None


def _put_back(thing: object, was) -> None:
    if isinstance(thing, Tensor):
        thing.data = was
    elif isinstance(thing, dict):
        thing.clear()
        thing.update(was)
    elif isinstance(thing, list):
        thing[:] = was
    elif isinstance(thing, types.CellType):
        thing.cell_contents = was[0]
    elif isinstance(thing, np.random.Generator):
        thing.bit_generator.state = was
    else:
        (getattr(thing, "set_state", None) or thing.setstate)(was)


def _same(one: object, other: object) -> bool:
    """Return whether two contents are equal, as far as one can tell without running their code."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
            return False
        return torch.equal(one, other) or (
            bool((one.isnan() == other.isnan()).all())
            and bool((one == other).logical_or(one.isnan()).all())
        )
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool | int | float | complex | str | bytes) and one == other


# --- the derivative ----------------------------------------------------------------------------


def check_derivative(J, batch: int, state: State, exact=None) -> float:
    """Refuse a map whose derivative by autodiff is not the derivative of what it does.

    ``batch`` says how many of the first dimensions of X and of the output are the batch, ``exact``
    is J in float64, if it can be had. Returned is the relative rounding of the outputs. The message
    names the cause that is found, among those that are known.

    >>> from lipcore import AutogradJacobian
    >>> AutogradJacobian(lambda X: X - X.mean(0), torch.tensor([[[1.0]], [[2.0]]]))
    Traceback (most recent call last):
    ...
    ValueError: fn: expected members of the batch (2,) that do not influence one another...
    """
    tested = J if exact is None else exact
    H = _direction(J.X, batch).to(tested.X.dtype)
    for one in (J, tested):
        _refuse_two_outputs(one, H.to(one.X.dtype), state)
    seen = J.seen
    if seen.half:
        what = f"one that works in {seen.half} inside: convert that part"
        raise ValueError(f"fn: expected a map with the digits of X, got {what}")
    symptom, rounding = _symptom(tested, H, batch)
    if symptom is None and exact is not None:
        short, long = (_flat(x, batch) for x in (J.matvec(H.to(J.X.dtype)), exact.matvec(H)))
        if bool((_norm(short - long) > LARGEST_ERROR * _norm(long)).any()):
            symptom = "float32 does not give what float64 gives"
    if symptom is not None:
        raise ValueError(_why(tested, batch, H, symptom, seen))
    return rounding


def _refuse_two_outputs(J, H: Tensor, state: State) -> None:
    """Refuse a map whose output at X, or near it, is another when it is asked again."""
    later = state.again()
    near = J.X + FIRST[J.X.dtype][0] * H
    same = _repeats(J.value, J.evaluate(J.X))
    later.refuse_changes()
    first = J.evaluate(near)
    state.put_back()
    if not (same and _repeats(first, J.evaluate(near))):
        cure = "remove what it draws at random, or keeps from call to call"
        raise ValueError(f"fn: expected the same output at the same X, got two: {cure}")


def _repeats(one: Tensor, other: Tensor) -> bool:
    """Return whether two outputs are the same, up to sums in another order."""
    rounding = 64 * torch.finfo(one.dtype).eps * one.abs().amax()
    return torch.equal(one, other) or bool((one - other).abs().amax() <= rounding)


def _symptom(J, H: Tensor, batch: int) -> tuple[str | None, float]:
    """Return what is wrong with J and its transpose at X, or None, and the rounding of outputs."""
    dtype = J.X.dtype
    G = draw_normal(J.value.shape, 1).to(J.X)
    JG = J.rmatvec(G)  # first, since it builds the graph that push needs
    JH = J.matvec(H)
    if _is_finite(JG) and not _is_finite(JH):
        JH = J.matvec_forward(H)
    if not (_is_finite(JH) and _is_finite(JG)):
        raise ValueError("fn: expected finite products, got NaN or infinity: no derivative at X")
    jh, value = _norm(_flat(JH, batch)), _norm(_flat(J.value, batch))
    length, error, bend = FIRST[dtype]
    difference, bent = _difference(J, H, length, batch)
    wrong = _norm(difference - _flat(JH, batch))
    floor = 8 * torch.finfo(dtype).eps / length * value
    good = (wrong <= error * jh + floor) & (bent <= bend * jh + floor) & (floor <= bend * jh)
    rounding = torch.finfo(dtype).eps
    if not bool(good.all()):
        what, rounding = _ladder(J, H, JH, batch)
        if what is not None:
            return what, rounding
    tolerance = 1e-6 if rounding <= ROUNDING else 1e-3
    if not _are_adjoint(H, G, JH, JG, batch, tolerance):
        return "J and its transpose do not belong together", rounding
    return None, rounding


def _difference(J, H: Tensor, length: float, batch: int) -> tuple[Tensor, Tensor]:
    """Return the central difference, and the norm of half the distance of the one-sided ones."""
    forth, back = (_flat(J.evaluate(J.X + step * H) - J.value, batch) for step in (length, -length))
    return (forth - back) / (2 * length), _norm(forth + back) / (2 * length)


def _ladder(J, H: Tensor, JH: Tensor, batch: int) -> tuple[str | None, float]:
    """Compare J[H] with differences of all lengths, and return what is wrong and the rounding.

    Long steps see curvature and kinks; short ones are lost in rounding, which is that of float32
    where a map upcasts its softmax. How much is lost shows in the change to the next steps. Where
    the two sides differ by the same at all lengths, X is at a kink.
    """
    dtype, jh, value = J.X.dtype, _flat(JH, batch), _norm(_flat(J.value, batch))
    lengths, rounding = STEPS, torch.finfo(dtype).eps
    if dtype == torch.float64:
        beside = torch.maximum(value, _norm(jh)).clamp(min=1e-300)
        long, short = (_difference(J, H, h, batch)[1] for h in (1e-5, 1e-7))
        lost = torch.where(short > 3 * long, short, 0) * 2e-7 / beside  # a kink loses no digits
        rounding = max(rounding, float(lost.max()))
        lengths = STEPS + SHORT_STEPS if rounding <= ROUNDING else STEPS
    differences, bent = zip(*(_difference(J, H, h, batch) for h in lengths), strict=True)
    size = torch.stack([torch.maximum(_norm(jh), _norm(x)) for x in differences])
    wrong = torch.stack([_norm(x - jh) for x in differences])
    steps = torch.tensor(lengths, dtype=torch.float64, device=jh.device)
    floor = 8 * torch.finfo(dtype).eps * value / steps.reshape(-1, *[1] * value.ndim)
    change = torch.stack([_norm(x - y) for x, y in itertools.pairwise(differences)])
    spread = torch.maximum(change[1:], change[:-1]) + floor[1:-1]
    inner, spread_at = (wrong[1:-1], size[1:-1]), spread.argmin(0, keepdim=True)
    error, beside, spread, floor_at = (
        x.gather(0, spread_at)[0] for x in (*inner, spread, floor[1:-1])
    )
    trusted = torch.minimum(3 * spread, LARGEST_ERROR * beside) + FIRST[dtype][1] * beside
    if not bool((error <= torch.maximum(trusted, floor_at)).all()):
        return "a finite difference is not what autodiff gives", rounding
    noisy = rounding > ROUNDING or dtype == torch.float32
    largest = (LARGEST_ERROR if noisy else FIRST[dtype][2]) * size.amin(0)
    if not bool((torch.stack(bent) <= largest + floor).any(0).all()):
        return "X is at a kink, from which the map goes on differently to the two sides", rounding
    return None, rounding


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


def _norm(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vectors, dim=-1)


def _are_adjoint(H, G, JH, JG, batch: int, tolerance: float) -> bool:
    """Return whether ⟨G, JH⟩ = ⟨JᵀG, H⟩ for each member, up to a share of its usual size."""
    g, jh, jg, h = (_flat(x, batch) for x in (G, JH, JG, H))
    difference = ((g * jh).sum(-1) - (jg * h).sum(-1)).abs()
    entries = max(JH.numel(), H.numel()) / max(1, difference.numel())
    usual = (_norm(g) * _norm(jh) + _norm(jg) * _norm(h)) / entries**0.5
    return bool((difference <= tolerance * usual).all())


# --- the cause -----------------------------------------------------------------------------------


def _why(J, batch: int, H: Tensor, symptom: str, seen: Seen) -> str:
    """Return one line that names the cause of ``symptom``, among those that are known."""
    mixed = _mixed_dimension(J.evaluate, J.X, J.value, batch)
    if mixed is not None:
        return _about_the_batch(J, batch, mixed)
    hidden = sorted(seen.names & _HIDING) if _matters(J, H) else []
    hidden += ["inference_mode"] if J.inference else []
    if hidden:
        what = f"one that hides a part from it ({', '.join(hidden)})"
        return f"fn: expected a map that autodiff sees whole, got {what}: {symptom}; remove that"
    leaving, stepped = (sorted(seen.names & names) for names in (_LEAVING, _STEPPED))
    expected = "fn: expected a map with the derivative that autodiff gives, but"
    if leaving:
        return (
            f"{expected} {symptom}: it may be hidden by what leaves PyTorch, {', '.join(leaving)}"
        )
    if stepped:
        return f"{expected} {symptom}: {', '.join(stepped)} has none, and may have one made up"
    if "kink" in symptom:
        return f"{expected} {symptom}: move X, or leave out what is zero or equal there"
    cure = "a custom backward or a kink may be wrong there"
    if J.X.dtype == torch.float32:
        cure += ", or float32 too short: try .double()"
    return f"{expected} {symptom}: {cure}"


def _matters(J, H: Tensor) -> bool:
    """Return whether J[H] is another where nothing is hidden from autodiff on purpose."""

    def open_to_all(X: Tensor) -> Tensor:
        with Seen(hiding=False):
            return J.fn(X)

    try:
        whole = type(J)(open_to_all, J.X, event_dims=len(J.input_shape), check=False).matvec(H)
    except Exception:
        return True
    return bool((whole - J.matvec(H)).abs().amax() > 1e-6 * whole.abs().amax())


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


class Seen(TorchFunctionMode):
    """Records the names of the functions of PyTorch that are called, and lets none hide, if asked."""

    def __init__(self, *, hiding: bool = True) -> None:
        super().__init__()
        self.names, self.half, self.hiding = set(), "", hiding
        self.eps = 0.0  # the largest of a dtype that the derivative passes through

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name == "__get__":  # of an attribute such as X.data
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        if name == "_set_grad_enabled":
            name = "" if args[0] else "no_grad"
        self.names.add(name)
        if name in _HIDING and not self.hiding:
            return None if name == "no_grad" else args[0]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.requires_grad and not result.is_complex():
            self.eps = max(self.eps, torch.finfo(result.dtype).eps)
            if result.dtype in (torch.float16, torch.bfloat16):
                self.half = str(result.dtype).removeprefix("torch.")
        return result
