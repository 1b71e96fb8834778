"""A whole model as a map of the tokens that enter its first block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lipcore import guard
from lipcore._checks import require
from lipcore.models.capture import (
    Call,
    arguments,
    captured,
    copied,
    copy_of,
    record,
    tensors_in,
    with_changes,
    without_cache,
)

#: Which step of a run gives a tensor: its function and shape, its turn among those of the same, and
#: its place in what the function returns.
_Step = tuple[str, tuple[int, ...], int, int]


def whole(model: nn.Module, blocks: Iterable[str], *args: object, **inputs: object) -> Call:
    """Return the whole model as a map of the tokens that enter the first block that runs.

    All that the model computes from these tokens varies with them, around the block too. What
    reaches the output by another way, such as a decoder's embeddings, stays fixed.
    """
    given = copied((args, without_cache(model, inputs)))
    calls = record(model, ["", *blocks], *args, **inputs)
    require(len(calls) > 1, "model", "a block that runs on these inputs", "none")
    first, last = calls[0], calls[-1]  # runs are listed as they end: a block first, the model last
    fn = captured(first)
    tokens = first.tensors[fn.varied[0]]
    run = _FromBlock(model, given, first.name, fn.varied)
    steps = _Steps()
    with guard.isolated(tokens.device), torch.no_grad():
        copy_of(run, share=True).run(steps)
    run = replace(run, source=steps.source)
    remark = "" if last.label == "output" else f"of {last.label}"
    given = {"args": (tokens,), "kwargs": {}, "learned": "", "remark": last.remark or remark}
    return replace(last, forward=run, enters=first.name, held=steps.held, **given)


@dataclass(frozen=True)
class _FromBlock:
    """A model in which the tokens that enter a block are others, wherever they are used."""

    model: nn.Module
    given: tuple[tuple, dict]
    block: str
    varied: tuple[str, ...]
    source: _Step | int | None = None

    def __call__(self, tokens: Tensor):
        return self.run(_Put(self.source, tokens))

    def double(self) -> _FromBlock:
        return replace(self, model=self.model.double(), given=copied(self.given, torch.float64))

    def run(self, mode: _Steps | _Put):
        """Run the model under a mode, which is told what enters the block, and may change it."""

        def enter(block, args, kwargs):
            hook.remove()  # a block may run again, on what it gave
            named = arguments(block, args, kwargs)
            tokens = mode.entered(named[self.varied[0]])
            return with_changes(block, args, kwargs, dict.fromkeys(self.varied, tokens))

        args, kwargs = copied(self.given)
        block = self.model.get_submodule(self.block)
        mode.start([*tensors_in((args, kwargs))])
        hook = block.register_forward_pre_hook(enter, with_kwargs=True, prepend=True)
        with hook, mode:
            return self.model(*args, **kwargs)


class _Put(TorchFunctionMode):
    """Uses tokens in place of a tensor, from the step on that gives it."""

    def __init__(self, source: _Step | int | None, tokens: Tensor) -> None:
        super().__init__()
        self.source, self.tokens, self.turns = source, tokens, Counter()
        self.old = None

    def start(self, inputs: list[Tensor]) -> None:
        self.old = inputs[self.source] if isinstance(self.source, int) else None

    def entered(self, tokens: Tensor) -> Tensor:
        self.old = tokens if self.old is None else self.old
        return self.tokens

    def __torch_function__(self, func, types, args=(), kwargs=None):
        args, kwargs = self._put(args), self._put(kwargs or {})
        output = func(*args, **kwargs)
        if self.old is None:
            for step, tensor in _steps(func, output, self.turns):
                self.old = tensor if step == self.source else self.old
        return output

    def _put(self, value):
        """Return a value of nested containers with the tokens in it."""
        if self.old is None or isinstance(value, Tensor):
            return self.tokens if value is self.old is not None else value
        if type(value) in (tuple, list):
            return type(value)(map(self._put, value))
        if type(value) is dict:
            return {key: self._put(part) for key, part in value.items()}
        return value


class _Steps(TorchFunctionMode):
    """Finds the step that gives what enters a block, and whether others are used behind it.

    Others have the shape of the tokens, are there before the block is entered, and are not computed
    from what enters it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.turns, self.made, self.others = Counter(), {}, set()
        self.source, self.tokens, self.held = None, None, ""

    def start(self, inputs: list[Tensor]) -> None:
        for place, tensor in enumerate(inputs):
            self._note(place, tensor, set())

    def _note(self, source, tensor: Tensor, parts: set[int]) -> None:
        """Note a tensor that a step has made, and of which others; all are kept alive."""
        _, _, version, _ = self.made.get(id(tensor), (None,) * 4)
        if version != tensor._version:  # new, or changed in place
            self.made.pop(id(tensor), None)
            self.made[id(tensor)] = source, tensor, tensor._version, parts

    def entered(self, tokens: Tensor) -> Tensor:
        source, *_ = self.made.get(id(tokens), (None,))
        moving = {id(tokens)}
        for key, (_, _, _, parts) in self.made.items():  # in the order of time
            moving |= {key} if parts & moving else set()
        self.others = {
            key
            for key, (_, tensor, *_) in self.made.items()
            if key not in moving and (tensor.shape, tensor.dtype) == (tokens.shape, tokens.dtype)
        }
        self.source, self.tokens = source, tokens
        return tokens

    def __torch_function__(self, func, types, args=(), kwargs=None):
        parts = {id(x) for x in tensors_in((args, kwargs))}
        output = func(*args, **(kwargs or {}))
        if self.tokens is None:
            for step, tensor in _steps(func, output, self.turns):
                self._note(step, tensor, parts - {id(tensor)})
        elif parts & self.others and func.__name__ != "__get__":
            self.held = "what was computed before them, of their shape"
        return output


def _steps(func: Callable, output, turns: Counter) -> Iterator[tuple[_Step, Tensor]]:
    """Yield the tensors that a function returns, each with its step."""
    for place, tensor in enumerate(tensors_in(output)):
        kind = getattr(func, "__name__", ""), tuple(tensor.shape)
        yield (*kind, turns[kind], place), tensor
        turns[kind] += 1
