"""Any submodule of a running model, selected by its name, as a map of the tokens that enter it."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.overrides import TorchFunctionMode

from lipcore._checks import require
from lipcore.guard import draw_normal

#: How far the replayed output may be from that in the running model, relative to the largest
#: entry: kernels of fused attention differ in rounding, and some models work in float32 inside.
REPLAY_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
#: The same for the output in float64, of which a lower precision may have lost digits.
LARGEST_LOSS = 0.1
#: Scores below it are hidden: no score counts beside it, in any precision.
_UNSEEN = -1e30


def capture(
    model: nn.Module, name: str, *args: object, **inputs: object
) -> tuple[Captured, Tensor]:
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

    ``forward`` is the submodule itself, or what is called in its place. A parameter of the model
    that entered first is ``learned``. Of a whole model, the first input is what ``enters`` its
    block, and ``held`` says what else is fixed. ``sees_nothing`` is the place of a row of scores
    that sees no key, if there is one (:class:`Unseen`). ``label`` is the place of the output.
    """

    name: str
    module: nn.Module
    forward: Callable
    args: tuple[object, ...]
    kwargs: dict[str, object]
    output: Tensor | None
    label: str
    remark: str = ""
    learned: str = ""
    enters: str = ""
    held: str = ""
    sees_nothing: tuple[int, ...] = ()
    autocast: str = ""

    @property
    def kind(self) -> str:
        """The class of the submodule."""
        return type(self.module).__name__

    @property
    def inputs(self) -> dict[str, object]:
        """What entered, by the submodule's names of its arguments, in their order."""
        return arguments(self.forward, self.args, self.kwargs)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The floating-point tensors that entered."""
        tensors = {name: x for name, x in self.inputs.items() if isinstance(x, Tensor)}
        return {name: x for name, x in tensors.items() if x.is_floating_point()}

    def run(self, changed: Mapping[str, Tensor]) -> Tensor:
        """Return the submodule's output with some of its inputs changed."""
        args, kwargs = copied((self.args, self.kwargs))  # a run may change masks and caches
        args, kwargs = with_changes(self.forward, args, kwargs, changed)
        forward = copy_of(self.forward, share=True)  # what it keeps is as in the model's run
        with Unseen() if self.sees_nothing else nullcontext():
            output = forward(*args, **kwargs)
        return next(x for label, x in tensors_of(output) if label == self.label)

    def double(self) -> Call:
        """Return the same run of a copy of the module in float64, with what it puts out there."""
        forward = copy_of(self.forward).double()
        args, kwargs = copied((self.args, self.kwargs), torch.float64)
        module = forward if isinstance(forward, nn.Module) else forward.model
        call = replace(self, module=module, forward=forward, args=args, kwargs=kwargs)
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
    part : tuple of int and Tensor, or None
        The member of the batch, and its tokens, that are X and the output, if not all are.
    """

    call: Call
    varied: tuple[str, ...]
    layout: str = "one input"
    part: tuple[int, Tensor] | None = None

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
        X = self._placed(self._raw)
        return X if self.part is None else X[self.part[0], self.part[1]][None]

    @property
    def _raw(self) -> Tensor:
        return self.call.tensors[self.varied[0]]

    def __call__(self, X: Tensor) -> Tensor:
        """Return the output (…, m, p) for tokens X of the shape that was captured."""
        shape = tuple(self.X.shape)
        require(X.shape == shape, "X", f"the shape captured, {shape}", tuple(X.shape))
        if self.part is not None:
            member, tokens = self.part
            all_tokens = self._placed(self._raw)
            X = all_tokens.index_put((torch.full_like(tokens, member), tokens), X[0])
        is_second = self.layout == "batch second"
        Y = self._placed(self.run(X.transpose(0, 1) if is_second else X.reshape(self._raw.shape)))
        if self.part is None:
            return Y
        Y = Y[member][None]
        return Y[:, tokens] if Y.shape[1] == all_tokens.shape[1] else Y

    def run(self, raw: Tensor) -> Tensor:
        """Return what the submodule puts out, where X is ``raw``, as it takes it."""
        first, inputs = self._raw, self.call.tensors
        raw = raw.clone()  # a module may change it in place, and the caller still has it
        # inputs that are other tensors get the same push
        return self.call.run(
            {x: raw if inputs[x] is first else inputs[x] + (raw - first) for x in self.varied}
        )

    def of_member(self, member: int, tokens: Tensor | None = None) -> Captured:
        """Return the map of one member of the batch, or some of its tokens; others are fixed."""
        tokens = torch.arange(self.X.shape[1]) if tokens is None else tokens
        return replace(self, part=(member, tokens.to(self._raw.device)))

    def _placed(self, raw: Tensor) -> Tensor:
        """Return the output with the batch in front, and two dimensions behind it."""
        if self.layout == "batch second":
            return raw.transpose(0, 1)
        if self.layout == "batch first":
            return raw.flatten(1, -2) if raw.ndim > 2 else raw[:, None]
        return raw.flatten(0, -2) if raw.ndim > 1 else raw.reshape(1, -1)

    @property
    def remark(self) -> str:
        """What is unusual about how the tokens come in, or what comes out."""
        remarks = [self.call.remark] if self.call.remark else []
        if place := self.call.sees_nothing:
            is_finite = bool(torch.isfinite(self.call.output).all())
            what = "the mean of all values comes out" if is_finite else "NaN may come out"
            remarks += [f"row {place[-1]} of sequence {place[0]} sees no key: there {what}"]
        if self.layout == "one input" and self._raw.ndim > 2:
            remarks += [f"{tuple(self._raw.shape)} is one input: no dimension of it is a batch"]
        return "; ".join(remarks)

    def said(self) -> tuple[str, str]:
        """Return in words what varies, and what is held fixed."""
        inputs, first = self.call.tensors, self._raw
        is_one = all(inputs[name] is first for name in self.varied)
        if self.call.enters:
            return f"what enters {self.call.enters}", self.call.held
        varied = " = ".join(self.varied) if is_one else f"{', '.join(self.varied)} (by one push)"
        if self.call.learned and self._raw is next(iter(inputs.values())):
            varied += f" (the parameter {self.call.learned})"
        fixed = []
        for name in self.fixed:
            is_equal = torch.equal(inputs[name], first)
            is_alike = inputs[name].shape == first.shape
            how = f" equal to {self.varied[0]}" if is_equal else " of X's shape" * is_alike
            fixed += [name + how]
        cure = " (wrt='all' pushes them too)" if " " in "".join(fixed) else ""
        return varied, ", ".join(fixed) + cure

    def __repr__(self) -> str:
        varied, fixed = self.said()
        what = f"{varied} ↦ {self.call.label}" + (f", at fixed {fixed}" if fixed else "")
        remark = f"; {self.remark}" if self.remark else ""
        title = f"{self.name or 'the model'} ({self.kind})"
        return f"{title}: {what}, at X of shape {tuple(self.X.shape)}{remark}"

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


def captured(call: Call, wrt: str | None = None) -> Captured:
    """Return a run as a map of its first tensor, the one named, or all of that shape."""
    tensors = call.tensors
    require(tensors, "name", f"floats that enter {call.name!r}", "none", TypeError)
    what = f"a tensor of floats (…, m, p) out of {call.name or 'the model'}"
    require(call.output is not None, "name", what, call.label, TypeError)
    cure = "take torch.autocast out of the model's code"
    got = f"{call.autocast} around {call.name!r}: {cure}"
    require(not call.autocast, "model", "one precision", got)
    names = ", ".join(map(repr, (*tensors, "all")))
    require(wrt in (None, "all", *tensors), "wrt", f"{names} of {call.name!r}", repr(wrt))
    raw = tensors[next(iter(tensors)) if wrt in (None, "all") else wrt]
    if wrt == "all":
        varied = tuple(name for name, tensor in tensors.items() if tensor.shape == raw.shape)
    else:
        varied = tuple(name for name, tensor in tensors.items() if tensor is raw)
    fn = Captured(call, varied)
    with torch.no_grad(), slow_path():
        with Unseen() as unseen:
            _check_replay(call, fn.run(raw.clone()))
        fn = replace(fn, call=replace(call, sees_nothing=unseen.place))
        return replace(fn, layout=_layout(fn, raw))


class Unseen(TorchFunctionMode):
    """Lets rows of scores that see no key have the derivative of what is done with them.

    Where each key of a row is hidden by the same huge negative number, rounding leaves that number
    alone of all scores: the softmax is uniform and moves with none, which autodiff does not know.
    """

    place: tuple[int, ...] = ()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if getattr(func, "__name__", "") == "softmax" and isinstance(args[0], Tensor):
            scores = args[0]
            most, least = (
                scores.detach().amax(-1, keepdim=True),
                scores.detach().amin(-1, keepdim=True),
            )
            unseen = (most == least) & (most < _UNSEEN)
            if bool(unseen.any()):
                self.place = self.place or tuple(unseen[..., 0].nonzero()[0].tolist())
                args = torch.where(unseen, scores.detach(), scores), *args[1:]
        return func(*args, **(kwargs or {}))


def module_of(model: object) -> nn.Module:
    """Return the module itself, or the ``model`` of what holds one."""
    module = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    kind = type(model).__name__
    require(isinstance(module, nn.Module), "model", "a torch.nn.Module", kind, TypeError)
    is_graph = isinstance(module, torch.fx.GraphModule)  # of torch.export: it has no .eval()
    got = "a graph of torch.export: measure the module that was exported"
    require(not (is_graph and module.training), "model", "modules that run", got)
    # before anything is read: in training, a weight that is computed may change by being read
    is_still = not any(part.training for part in module.modules())
    require(is_still, "model", "one in evaluation mode", "one in training: call .eval() first")
    return module


def record(model: nn.Module, names: Iterable[str], *args: object, **inputs: object) -> list[Call]:
    """Run the model once, and return every run of the named submodules, in the order of their ends."""
    model = module_of(model)
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            near = difflib.get_close_matches(name, modules, n=1, cutoff=0.3)
            near = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"name: expected a submodule of the model, got {name!r}{near}")
    kinds = {"cpu", *(x.device.type for x in model.parameters() if not x.is_meta)}
    is_plain = not any(map(torch.is_autocast_enabled, kinds))
    require(is_plain, "model", "one precision", "torch.autocast around the call: call it outside")
    calls: list[Call] = []
    entered: list[tuple] = []
    copies: dict = {}  # of all runs: a mask that enters every layer is copied once

    def enter(module, args, kwargs):
        entered.append(copied((args, kwargs), copies=copies))

    def leave(name, module, running, args, kwargs, output):
        call = Call(name, module, module, *entered.pop(), *first_tensor(output))
        calls.append(replace(call, autocast=_autocast(call), learned=_learned(model, call)))

    with torch.inference_mode(False), torch.no_grad(), slow_path(), ExitStack() as stack:
        stack.enter_context(_same_seeds(model))
        running = copy_of(model, share=True)  # with its own caches, and the hooks
        for name in names:
            module = running.get_submodule(name)
            leaves = functools.partial(leave, name, modules[name])
            # before the hooks that a module has: they are a part of the map, and run again with it
            enters = module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True)
            stack.enter_context(enters)
            stack.enter_context(module.register_forward_hook(leaves, with_kwargs=True))
        args, inputs = copied((args, inputs))  # a model adds to a cache that it is given
        running(*args, **without_cache(model, inputs))
    return calls


@contextmanager
def _same_seeds(model: nn.Module) -> Iterator[None]:
    """Leave random numbers as if none were drawn inside."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what models use
    with torch.random.fork_rng({x.device for x in model.parameters() if x.is_cuda}):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def _autocast(call: Call) -> str:
    """Return the lower precision of torch.autocast around a run, or nothing."""
    kinds = {x.device.type for x in call.tensors.values()}
    kinds = [kind for kind in kinds if torch.is_autocast_enabled(kind)]
    return ", ".join(str(torch.get_autocast_dtype(kind)) for kind in kinds)


def _learned(model: nn.Module, call: Call) -> str:
    """Return the name of the parameter that entered first, alone or once for each sequence."""
    X = next(iter(call.tensors.values()), None)
    for name, parameter in model.named_parameters():
        is_one = parameter.ndim > 1 and parameter.shape[:-2].numel() == 1 and not parameter.is_meta
        if is_one and X is not None and X.shape[-2:] == parameter.shape[-2:]:
            if bool((X == parameter).all()):
                return name
    return ""


def without_cache(model: nn.Module, inputs: dict[str, object]) -> dict[str, object]:
    """Return inputs that ask for no cache, since a cache would change from run to run."""
    return {"use_cache": False} | inputs if "use_cache" in _parameters(model) else inputs


@contextmanager
def slow_path() -> Iterator[None]:
    """Run PyTorch's own layers through their submodules, not in one kernel that skips the hooks.

    What torch.compile has wrapped runs uncompiled, else each copy would be compiled.
    """
    fast = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        is_loaded = "torch._dynamo" in sys.modules
        with torch.compiler.set_stance("force_eager") if is_loaded else nullcontext():
            yield
    finally:
        mha.set_fastpath_enabled(fast)


def first_tensor(output: object) -> tuple[Tensor | None, str, str]:
    """Return the first tensor of an output that is no attention weights, its place, a remark."""
    tensors = [*tensors_of(output)]
    several = len(tensors) > 1  # weights alone are what the module is for
    outputs = [pair for pair in tensors if not (several and _are_weights(pair[1]))]
    if not outputs:
        is_tensor = isinstance(output, Tensor)
        cure = ": return it as y.reshape(1, -1)" if is_tensor and output.ndim < 2 else ""
        shape = f", {output.dtype} of shape {tuple(output.shape)}" if is_tensor else " of others"
        return None, f"a {type(output).__name__}{shape}{cure}", ""
    label, tensor = outputs[0]
    front = tensors[0][0]
    remark = f"of {label}, the first of {len(outputs)} outputs" if len(outputs) > 1 else ""
    remark = remark if front == label else f"of {label}: attention weights are {front}"
    return tensor.detach().clone(), label, remark


def tensors_of(output: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the floating-point tensors of rank 2 or more in an output, and their places."""
    stack = [("output", output)]
    while stack:
        label, value = stack.pop(0)
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1:
            yield label, value
        elif isinstance(value, Mapping):
            front = "" if label == "output" else f"{label}."
            stack[:0] = [(f"{front}{key}", part) for key, part in value.items()]
        elif isinstance(value, tuple | list):
            stack[:0] = [(f"{label}[{i}]", part) for i, part in enumerate(value)]


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield the tensors in nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(part)


def _are_weights(tensor: Tensor) -> bool:
    """Return whether the rows of a tensor are numbers from 0 to 1 that sum to one, or are zero."""
    sums = tensor.sum(-1)
    is_sum = (sums - 1).abs() < 1e-2
    return bool(((is_sum | (sums == 0)).all() & is_sum.any()) and (tensor >= 0).all())


def copied(
    value: Any, dtype: torch.dtype | None = None, copies: dict[Any, Any] | None = None
) -> Any:
    """Copy tensors and what holds them, since a run may change them in place; weights are shared.

    With ``dtype``, floating-point tensors are converted to it.
    What has the same memory has the same copy: query, key and value are then still one tensor.
    """
    copies = {} if copies is None else copies
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
        return type(value)(copied(part, dtype, copies) for part in value)
    if type(value) is dict:
        return {key: copied(part, dtype, copies) for key, part in value.items()}
    return copy_of(value)


def arguments(
    forward: Callable, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, object]:
    """Return arguments by the names that a callable has for them, in its order."""
    named = dict(zip(_positional(forward, len(args)), args, strict=True)) | kwargs
    return {name: named[name] for name in (*_parameters(forward), *named) if name in named}


def copy_of(value: Any, *, share: bool = False) -> Any:
    """Return a deep copy, in which tensors that autograd has made are detached.

    With ``share``, parameters are not copied. What cannot be copied is returned itself.
    """
    memo: dict[int, object] = {}
    seen: set[int] = set()
    left = [value]
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if share and isinstance(part, nn.Parameter):
            memo[id(part)] = part
        elif isinstance(part, Tensor):
            if not part.is_leaf:  # deepcopy refuses it
                memo[id(part)] = part.detach().clone()
        else:
            left += _parts(part)
    try:
        return copy.deepcopy(value, memo)
    except (TypeError, RuntimeError, NotImplementedError):  # locks, streams and the like
        return value


def _parts(thing) -> list:
    """Return what is held by a container or an object."""
    if isinstance(thing, dict):
        return [*thing.values()]
    if isinstance(thing, list | tuple | set | deque):
        return [*thing]
    return [*getattr(thing, "__dict__", {}).values()]


def with_changes(
    forward: Callable,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    changed: Mapping[str, Tensor],
) -> tuple[tuple[object, ...], dict[str, object]]:
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
    is_finite = torch.isfinite(call.output)  # one sequence may be, and another not
    if not bool(is_finite.any()):
        raise ValueError(f"name: {call.name!r} puts out NaN or infinity on these inputs")
    tolerance = REPLAY_TOLERANCE.get(call.output.dtype, 1e-2)
    tolerance *= call.output.where(is_finite, 0).abs().amax()
    has_shape = again.shape == call.output.shape
    if not has_shape or bool(((again - call.output).abs() > tolerance)[is_finite].any()):
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
    before, after = (fn.run(x) for x in (raw.clone(), changed))
    is_told = torch.isfinite(before).index_select(dim, members[parity::2]).any()
    before, after = before.nan_to_num(), after.nan_to_num()
    rounding = 64 * torch.finfo(raw.dtype).eps * before.abs().amax()
    moves = (after - before).abs()
    own = moves.index_select(dim, members[parity::2]).amax()
    # beside a bias so large that rounding hides even their own moves, nothing can be told
    is_seen = rounding <= 1e-2 * own or not is_told
    return bool((moves.index_select(dim, others) <= rounding).all() and is_seen)
