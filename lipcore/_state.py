"""What calls of a map may change of what it holds: noted, compared and put back."""

from __future__ import annotations

import contextlib
import functools
import random
import types

import numpy as np
import torch
from torch import Tensor, nn

SOURCES = (torch.Generator, random.Random, np.random.RandomState, np.random.Generator)
_CLOSED = (Tensor, types.FunctionType, *SOURCES)
_STILL = (nn.Parameter, type, types.ModuleType)
_GLOBALS = (nn.Module, list, dict, *SOURCES)


class State:
    """Buffers, attributes, containers, closures and generators that things hold, as they were."""

    def __init__(self, *roots: object) -> None:
        self._was = {}
        for root in roots:
            self.add(root, type(root).__name__)

    def add(self, root: object, owner: str) -> None:
        """Note a thing, and all that it holds."""
        left = [(root, owner)]
        while left:
            thing, owner = left.pop()
            if isinstance(thing, _STILL):
                continue
            if isinstance(thing, functools.partial):
                left += [(part, owner) for part in (thing.func, thing.args, thing.keywords)]
            if isinstance(thing, types.MethodType):
                left += [(thing.__self__, owner), (thing.__func__, owner)]
            if hasattr(thing, "__dict__") and not isinstance(thing, _CLOSED):
                thing, owner = vars(thing), type(thing).__name__
            if id(thing) not in self._was:
                if (content := _content(thing)) is not None:
                    self._was[id(thing)] = thing, owner, content
                left += _parts(thing, owner)

    def again(self) -> State:
        """Return what the same things hold now."""
        later = State()
        for thing, owner, _ in list(self._was.values()):
            later.add(thing, owner)
        return later

    def changes(self) -> list[tuple[object, str]]:
        """Return the things that have changed, each with a name."""
        found = []
        for thing, owner, was in self._was.values():
            if not _same(was, now := _content(thing)):
                names = [owner]
                if isinstance(thing, dict):
                    names = [k for k in {**was, **now} if not _same(was.get(k), now.get(k))]
                    names = [f"{name} of {owner}" for name in names] or [f"the order of {owner}"]
                found.append((thing, names[0]))
        return found

    def put_back(self, kinds: type | tuple[type, ...] = object) -> None:
        """Let all things of these kinds hold again what they held."""
        for thing, _, was in self._was.values():
            if isinstance(thing, kinds) and not _same(_content(thing), was):
                _put_back(thing, was)


def _parts(thing: object, owner: str) -> list[tuple[object, str]]:
    """Return what a container, a function or one of its variables holds, with a name for each."""
    if isinstance(thing, types.FunctionType):
        used = [(thing.__globals__.get(name), name) for name in thing.__code__.co_names]
        cells = zip(thing.__closure__ or (), thing.__code__.co_freevars, strict=True)
        return [*cells, *((part, name) for part, name in used if isinstance(part, _GLOBALS))]
    if isinstance(thing, dict):
        return [(part, f"{name} of {owner}") for name, part in thing.items()]
    parts = _content(thing) if isinstance(thing, types.CellType) else thing
    return [(part, owner) for part in parts] if isinstance(parts, list | tuple | set) else []


def _content(thing: object):
    """Return a copy of what a thing holds, or None if it holds nothing that can change."""
    if isinstance(thing, Tensor):
        return thing.detach().clone()
    if isinstance(thing, dict | list | set):
        return thing.copy()
    if isinstance(thing, np.random.Generator):
        return thing.bit_generator.state
    with contextlib.suppress(ValueError, NotImplementedError):  # an empty cell, SystemRandom
        if isinstance(thing, types.CellType):
            return [thing.cell_contents]
        if isinstance(thing, SOURCES):
            return (getattr(thing, "get_state", None) or thing.getstate)()
    return None


def _put_back(thing: object, was) -> None:
    if isinstance(thing, Tensor):
        thing.data = was
    elif isinstance(thing, dict | set):
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
        same = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
        return same and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool | int | float | complex | str | bytes | set) and one == other
