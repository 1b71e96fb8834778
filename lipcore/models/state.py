"""What a run changes of a model is put back: flags, buffers, attributes, and caches held in them."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType

import numpy as np
import torch
from torch import Tensor, nn

#: What cannot change, changes for others only, or is no state.
_STILL = (int, float, complex, str, bytes, type, ModuleType, FunctionType, MethodType, nn.Parameter)
#: How deep, below a module, lists, dicts and objects are looked into.
_DEPTH = 4


@contextmanager
def restored(model: nn.Module) -> Iterator[set[int]]:
    """Put back what the code inside changes of a model, and the seeds of random numbers.

    The set holds afterwards the ids of what had another value.
    """
    changed: set[int] = set()
    before = _reachable(model)
    devices = {x.device for x in model.parameters() if x.is_cuda}
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what models use
    try:
        with torch.random.fork_rng(devices):
            yield changed
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        for place, (thing, value) in before.items():
            now = _value(thing)
            if not _same(now, value, lambda one, other: one is other):
                if not _same(now, value, _equal):
                    changed.add(place)
                _put_back(thing, value)


def reaches(module: nn.Module, changed: set[int]) -> bool:
    """Return whether something that has changed is part of a module."""
    return bool(changed) and not changed.isdisjoint(_reachable(module))


def copy_of(value, shared: nn.Module | None = None):
    """Return a deep copy, in which tensors that autograd has made are detached.

    The parameters of ``shared`` are not copied.
    """
    memo: dict[int, object] = {}
    if shared is not None:
        memo = {id(parameter): parameter for parameter in shared.parameters()}
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
        else:
            left += _parts(part)
    return copy.deepcopy(value, memo)


def _parts(thing) -> list:
    """Return what is held by a container or an object."""
    if isinstance(thing, dict):
        return [*thing.values()]
    if isinstance(thing, list | tuple | set | deque):
        return [*thing]
    return [*getattr(thing, "__dict__", {}).values()]


def _reachable(module: nn.Module) -> dict[int, tuple]:
    """Return everything of a module that can change, with its value, by id."""
    found: dict[int, tuple] = {}
    left = [(module, 0)]
    while left:
        thing, depth = left.pop()
        if thing is None or isinstance(thing, _STILL) or id(thing) in found or depth > _DEPTH:
            continue
        found[id(thing)] = thing, _value(thing)
        if not isinstance(thing, Tensor):
            of_module = isinstance(thing, nn.Module)
            left += [(part, 1 if of_module else depth + 1) for part in _parts(thing)]
    return found


def _value(thing):
    """Return a copy of what a thing holds, one level deep."""
    if isinstance(thing, Tensor):
        return thing.detach().clone()
    if isinstance(thing, dict | list | set | deque):
        return copy.copy(thing)
    return dict(getattr(thing, "__dict__", {}))


def _same(now, value, same) -> bool:
    if isinstance(value, Tensor):
        return value.is_meta or _equal(now, value)
    if isinstance(value, set):
        return now == value
    if len(now) != len(value):
        return False
    if isinstance(value, dict):
        return all(key in now and same(now[key], x) for key, x in value.items())
    return all(map(same, now, value))


def _equal(one, other) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.is_meta or one.shape != other.shape or one.dtype != other.dtype:
            return one is other
        same = (one == other) | (one != one) & (other != other)
        return torch.equal(one, other) or bool(same.all())
    return one is other or (isinstance(other, _STILL) and one == other)


def _put_back(thing, value) -> None:
    if isinstance(thing, Tensor):
        with torch.no_grad():
            thing.data = value if thing.shape != value.shape else thing.data
            thing.copy_(value)
    elif isinstance(thing, list):
        thing[:] = value
    elif isinstance(thing, dict | set):
        thing.clear()
        thing.update(value)
    elif isinstance(thing, deque):
        thing.clear()
        thing.extend(value)
    else:
        vars(thing).clear()
        vars(thing).update(value)
