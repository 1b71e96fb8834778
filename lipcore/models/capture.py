"""Any submodule of a running model, selected by its name, as a map of the tokens that enter it."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.backends import mha

from lipcore._checks import require
from lipcore.guard import draw_normal

_RUNNING = threading.Lock()  # hooks live on the model: two threads must not run it at once
#: How far the replayed output may be from that in the running model, relative to the largest
#: entry: kernels of fused attention differ in rounding, and some models work in float32 inside.
REPLAY_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
#: The same for the output in float64, of which a lower precision may have lost digits.
LARGEST_LOSS = 0.1


def capture(model: nn.Module, name: str, *args, **inputs) -> tuple[Captured, Tensor]:
    r"""Run a model, and return one of its submodules as a map, with the tokens that entered it.

    All other inputs of the submodule (masks, positions, a memory, a residual stream) are held fixed
    at their values in the running model, so that padding and masks are those of the model. Alone,
    the submodule must give the output that it gave in the model; else it is refused.

    Parameters
    ----------
    model : torch.nn.Module, or an object whose ``model`` is one
        In evaluation mode.
    name : str
        The name of the submodule, as ``model.named_modules()`` lists it; ``""`` is the model
        itself. If it runs several times (shared layers), ``"name#0"`` is the first run, and
        ``"name#1"`` the next.
    *args, **inputs
        The inputs of the model, such as ``input_ids`` and ``attention_mask``.

    Returns
    -------
    fn : Captured
        A map from (…, n, d) to (…, m, p) tensors. ``print(fn)`` says what is a function of what,
        and ``fn.at("key_value_states")`` is the same submodule as a map of another of its inputs.
    X : Tensor, shape (…, n, d)
        The submodule's first floating-point tensor. If the same tensor enters as query, key and
        value, all of them vary together. The batch comes first: a layout (n, batch, d) is
        transposed, and if members of a batch influence one another, the batch is one input.

    Raises
    ------
    ValueError
        If the submodule does not run, or runs several times, or does not give again what it gave.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).double().eval()
    >>> fn, X = capture(model, "self_attn", torch.ones(1, 3, 8).double())
    >>> fn
    self_attn (MultiheadAttention): query = key = value ↦ output[0], at X of shape (1, 3, 8)
    """
    name, _, turn = name.partition("#")
    calls = record(model, [name], *args, **inputs)
    runs = len(calls)
    require(runs, "name", "a module that runs on these inputs", f"{name!r}, which does not")
    got = f"{name!r}, which runs {runs} times: say '{name}#0' to '{name}#{runs - 1}'"
    require(turn or runs == 1, "name", "one run", got)
    turn = turn or "0"
    is_run = turn.isdecimal() and int(turn) < runs
    require(is_run, "name", f"a run from 0 to {runs - 1} after '#'", repr(turn))
    fn = captured(calls[int(turn)])
    return fn, fn.X


@dataclass(frozen=True, eq=False)
class Call:
    """One run of a submodule, with what entered it and the first tensor that came out.

    ``forward`` is the submodule itself, or what is called in its place (:func:`whole`).
    """

    name: str
    module: nn.Module
    forward: Callable
    args: tuple
    kwargs: dict
    output: Tensor
    label: str
    remark: str = ""

    @property
    def kind(self) -> str:
        """The class of the submodule."""
        return type(self.module).__name__

    @property
    def inputs(self) -> dict[str, object]:
        """What entered, by the submodule's names of its arguments, in their order."""
        names = _positional(self.forward, len(self.args))
        named = dict(zip(names, self.args, strict=True)) | self.kwargs
        return {n: named[n] for n in (*_parameters(self.forward), *named) if n in named}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The floating-point tensors that entered."""
        tensors = {name: x for name, x in self.inputs.items() if isinstance(x, Tensor)}
        return {name: x for name, x in tensors.items() if x.is_floating_point()}

    def run(self, changed: Mapping[str, Tensor]) -> Tensor:
        """Return the submodule's output with some of its inputs changed."""
        args, kwargs = _copied((self.args, self.kwargs), {})  # a run may change masks and caches
        args, kwargs = _changed(self.forward, args, kwargs, changed)
        return first_tensor(self.forward(*args, **kwargs), self.name)[1]

    def double(self) -> Call:
        """Return the same run of a copy of the module in float64, with what it puts out there."""
        require(self.forward is self.module, "name", "one submodule", "the whole")
        module = _deep_copy(self.module).double()
        args, kwargs = _copied((self.args, self.kwargs), {}, torch.float64)
        call = replace(self, module=module, forward=module, args=args, kwargs=kwargs)
        with torch.no_grad(), slow_path():
            return replace(call, output=call.run({}).detach())


@dataclass(frozen=True, eq=False)
class Captured:
    """A submodule as a map of tokens, with all else held fixed, as :func:`capture` returns it.

    Attributes
    ----------
    name, kind : str
        The name of the submodule, and its class.
    varied, fixed : tuple of str
        The inputs that are X, and the tensors that are held fixed.
    layout : {"batch first", "batch second", "one input"}
        How the submodule takes its tokens; ``X`` and the output have the batch first.
    """

    call: Call
    varied: tuple[str, ...]
    layout: str = "one input"

    @property
    def name(self) -> str:
        """The submodule's name in the model."""
        return self.call.name

    @property
    def kind(self) -> str:
        """The submodule's class."""
        return self.call.kind

    @property
    def fixed(self) -> tuple[str, ...]:
        """The tensors that are held fixed."""
        return tuple(name for name in self.call.tensors if name not in self.varied)

    @functools.cached_property
    def X(self) -> Tensor:
        """The tokens that entered, (…, n, d)."""
        return self._placed(self._raw)

    @property
    def _raw(self) -> Tensor:
        return self.call.tensors[self.varied[0]]

    def __call__(self, X: Tensor) -> Tensor:
        """Return the output (…, m, p) for tokens X of the shape that was captured."""
        shape = tuple(self.X.shape)
        require(X.shape == shape, "X", f"the shape captured, {shape}", tuple(X.shape))
        is_second = self.layout == "batch second"
        raw = X.transpose(0, 1) if is_second else X.reshape(self._raw.shape)
        return self._placed(self.call.run(dict.fromkeys(self.varied, raw)))

    def _placed(self, raw: Tensor) -> Tensor:
        """Return the output with the batch in front, and two dimensions behind it."""
        if self.layout == "batch second":
            return raw.transpose(0, 1)
        if self.layout == "batch first":
            return raw.flatten(1, -2) if raw.ndim > 2 else raw[:, None]
        return raw.flatten(0, -2) if raw.ndim > 1 else raw.reshape(1, -1)

    @property
    def remark(self) -> str:
        """What is unusual about how the tokens come in."""
        if self.layout == "one input" and self._raw.ndim > 2:
            return f"{tuple(self._raw.shape)} is one input: no dimension of it is a batch"
        return ""

    def __repr__(self) -> str:
        what = f"{' = '.join(self.varied)} ↦ {self.call.label}"
        fixed = f", at fixed {', '.join(self.fixed)}" if self.fixed else ""
        remark = "".join(f"; {text}" for text in (self.call.remark, self.remark) if text)
        title = f"{self.name or 'the model'} ({self.kind})"
        return f"{title}: {what}{fixed}, at X of shape {tuple(self.X.shape)}{remark}"

    def at(self, name: str) -> tuple[Captured, Tensor]:
        """Return the same run as a map of another input, such as the memory of a decoder."""
        inputs = self.call.tensors
        require(name in inputs, "name", f"one of the inputs {', '.join(inputs)}", repr(name))
        fn = captured(self.call, name)
        return fn, fn.X

    def double(self) -> Captured | None:
        """Return the same run with a copy of the module in float64, or None where that fails.

        A module that computes in float32 inside, whatever its dtype, still does.
        """
        if all(x.dtype == torch.float64 for x in (*self.call.tensors.values(), self.call.output)):
            return self
        try:  # there may be too little memory, a device without float64, code that needs float32
            fn = replace(self, call=self.call.double())
            truth = self.call.output.to(fn.call.output)
            error = (fn.call.output - truth).abs().amax()
        except Exception:
            return None
        return fn if bool(error <= LARGEST_LOSS * truth.abs().amax()) else None


def captured(call: Call, name: str | None = None) -> Captured:
    """Return a run as a map of its first tensor, or the one named, after comparing its output."""
    tensors = call.tensors
    require(tensors, "name", f"floats that enter {call.name!r}", "none", TypeError)
    raw = tensors[next(iter(tensors)) if name is None else name]
    varied = tuple(other for other, tensor in tensors.items() if tensor is raw)
    fn = Captured(call, varied)
    with torch.no_grad(), slow_path():
        again = call.run(dict.fromkeys(varied, raw.clone()))
        _check_replay(call, again)
        return replace(fn, layout=_layout(fn, raw))


def module_of(model) -> nn.Module:
    """Return the module itself, or the ``model`` of what holds one."""
    module = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    kind = type(model).__name__
    require(isinstance(module, nn.Module), "model", "a torch.nn.Module", kind, TypeError)
    return module


def record(model: nn.Module, names: Iterable[str], *args, **inputs) -> list[Call]:
    """Run the model once, and return every run of the named submodules, in the order of their ends."""
    model = module_of(model)
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            near = difflib.get_close_matches(name, modules, n=1, cutoff=0.3)
            near = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"name: expected a submodule of the model, got {name!r}{near}")
    is_still = not any(module.training for module in modules.values())
    require(is_still, "model", "one in evaluation mode", "one in training: call .eval() first")
    calls: list[Call] = []
    entered: list[tuple] = []
    copies: dict = {}  # of all runs: a mask that enters every layer is copied once

    def enter(module, args, kwargs):
        entered.append(_copied((args, kwargs), copies))

    def leave(name, module, args, kwargs, output):
        label, tensor = first_tensor(output, name)
        calls.append(Call(name, module, module, *entered.pop(), tensor.detach().clone(), label))

    with _RUNNING, torch.inference_mode(False), torch.no_grad(), slow_path(), ExitStack() as stack:
        for name in names:
            module = modules[name]
            leaves = functools.partial(leave, name)
            stack.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
            stack.enter_context(module.register_forward_hook(leaves, with_kwargs=True))
        args, inputs = _copied((args, inputs), {})  # a model adds to a cache that it is given
        model(*args, **_without_cache(model, inputs))
    return calls


def whole(model: nn.Module, blocks: Iterable[str], *args, **inputs) -> Call:
    """Return the whole model as a map of the tokens that enter the first block that runs.

    What reaches the output by another way, such as a decoder's embeddings, stays fixed.
    """
    given = _copied((args, _without_cache(model, inputs)), {})
    calls = record(model, ["", *blocks], *args, **inputs)
    require(len(calls) > 1, "model", "a block that runs on these inputs", "none")
    first, last = calls[0], calls[-1]  # runs are listed as they end: a block first, the model last
    varied = captured(first).varied

    def from_block_on(tokens: Tensor):
        def put_tokens(module, args, kwargs):
            hook.remove()  # a block may run again, on what it gave
            return _changed(module, args, kwargs, dict.fromkeys(varied, tokens))

        hook = first.module.register_forward_pre_hook(put_tokens, with_kwargs=True)
        with hook:
            args, inputs = _copied(given, {})
            return model(*args, **inputs)

    tokens = first.tensors[varied[0]]
    remark = f"{last.label} as a map of what enters {first.name}"
    return Call("", model, from_block_on, (tokens,), {}, last.output, last.label, remark)


def _without_cache(model: nn.Module, inputs: dict) -> dict:
    """Return inputs that ask for no cache, since a cache would change from run to run."""
    return {"use_cache": False} | inputs if "use_cache" in _parameters(model) else inputs


@contextmanager
def slow_path() -> Iterator[None]:
    """Run PyTorch's own layers through their submodules, not in one kernel that skips the hooks."""
    fast = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(fast)


def first_tensor(output, name: str) -> tuple[str, Tensor]:
    """Return the first floating-point tensor of rank 2 or more in an output, and its name."""
    stack = [("output", output)]
    while stack:
        label, value = stack.pop(0)
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1:
            return label, value
        if isinstance(value, Mapping):
            stack[:0] = value.items()
        elif isinstance(value, tuple | list):
            stack[:0] = [(f"{label}[{i}]", part) for i, part in enumerate(value)]
    got = type(output).__name__
    raise TypeError(f"name: expected a floating-point tensor out of {name!r}, got {got}")


def _copied(value, copies: dict, dtype: torch.dtype | None = None):
    """Copy tensors and what holds them, since a run may change them in place; weights are shared.

    With ``dtype``, floating-point tensors are converted to it.
    What has the same memory has the same copy: query, key and value are then still one tensor.
    """
    if value is None or isinstance(value, int | float | str | torch.dtype | nn.Module):
        return value
    if isinstance(value, Tensor):
        version = 0 if value.is_inference() else value._version  # the former cannot change here
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype, version)
        if place not in copies:  # the original is kept alive: no other takes its place
            to = dtype if value.is_floating_point() else None
            copies[place] = (value, value.detach().to(dtype=to, copy=True))
        return copies[place][1]
    if type(value) in (tuple, list):
        return type(value)(_copied(part, copies, dtype) for part in value)
    if type(value) is dict:
        return {key: _copied(part, copies, dtype) for key, part in value.items()}
    return _deep_copy(value)


def _deep_copy(value):
    """Return a deep copy, in which tensors that autograd has made are detached."""
    memo: dict[int, object] = {}
    seen: set[int] = set()
    left = [value]
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Tensor):
            if not part.is_leaf:  # deepcopy refuses it
                memo[id(part)] = part.detach().clone()
        elif isinstance(part, Mapping):
            left += part.values()
        elif isinstance(part, tuple | list | set):
            left += part
        else:
            left += getattr(part, "__dict__", {}).values()
    return copy.deepcopy(value, memo)


def _changed(forward: Callable, args: tuple, kwargs: dict, changed: Mapping) -> tuple[tuple, dict]:
    """Return arguments with some of them changed, by name."""
    names = _positional(forward, len(args))
    args = tuple(changed.get(name, x) for name, x in zip(names, args, strict=True))
    return args, kwargs | {name: x for name, x in changed.items() if name not in names}


def _positional(forward: Callable, count: int) -> list[str]:
    """Return the names of that many positional arguments."""
    names = _parameters(forward)[:count]
    return names + [f"args[{i}]" for i in range(len(names), count)]


def _parameters(forward: Callable) -> list[str]:
    """Return the names of a callable's arguments, those of ``forward`` for a module."""
    forward = forward.forward if isinstance(forward, nn.Module) else forward
    parameters = inspect.signature(forward).parameters.items()
    return [name for name, parameter in parameters if not parameter.kind.name.startswith("VAR_")]


def _check_replay(call: Call, again: Tensor) -> None:
    if not bool(torch.isfinite(call.output).all()):
        raise ValueError(f"name: {call.name!r} puts out NaN or infinity on these inputs")
    tolerance = REPLAY_TOLERANCE.get(call.output.dtype, 1e-2) * call.output.abs().amax()
    has_shape = again.shape == call.output.shape
    if not has_shape or not bool((again - call.output).abs().amax() <= tolerance):
        what = f"{call.name!r} alone does not give back what it gave inside the model"
        raise ValueError(f"name: {what}: it is random, or depends on more than its inputs")


def _layout(fn: Captured, raw: Tensor) -> str:
    """Return where the batch is, by trying first what the submodule itself says."""
    flags = {part.batch_first for part in fn.call.module.modules() if hasattr(part, "batch_first")}
    places = ("batch first", "batch second")
    dims = {0: [], 1: [], 2: [], 3: [0, 1]}.get(raw.ndim, [0])
    for dim in reversed(dims) if flags == {False} else dims:
        if all(_is_independent(fn, raw, dim, parity) for parity in (0, 1)):
            return places[dim]
    return "one input"


def _is_independent(fn: Captured, raw: Tensor, dim: int, parity: int) -> bool:
    """Return whether changing every other member of a batch leaves the rest of the output alone."""
    output = fn.call.output
    size = raw.shape[dim]
    if output.ndim <= dim or output.shape[dim] != size or (dim == 1 and output.ndim != 3):
        return False
    if size == 1:
        return True
    members = torch.arange(size, device=raw.device)
    changed = raw.clone()
    shift = raw.abs().mean().clamp(min=1) * draw_normal(raw.shape, parity).to(raw)
    changed.index_add_(dim, members[parity::2], shift.index_select(dim, members[parity::2]))
    others = members[1 - parity :: 2]
    before, after = (fn.call.run(dict.fromkeys(fn.varied, x)) for x in (raw.clone(), changed))
    rounding = 64 * torch.finfo(raw.dtype).eps * before.abs().amax()
    moves = (after - before).abs()
    own = moves.index_select(dim, members[parity::2]).amax()
    # beside a bias so large that rounding hides even their own moves, nothing can be told
    return bool((moves.index_select(dim, others) <= rounding).all() and rounding <= 1e-2 * own)
