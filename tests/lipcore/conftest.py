"""Attention layers of every kind, with inputs, for the tests that must hold on all of them."""

from __future__ import annotations

import types

import matplotlib
import pytest
import torch

from lipcore import Attention
from loops import alone

matplotlib.use("Agg")


def _weights(generator, *, heads=1, key_heads=None, d=4, k=3, p=3, biases=(), q=None):
    """Random arguments of a layer in float64; ``biases`` among query, key, value, output."""
    key_heads = heads if key_heads is None else key_heads

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    kwargs = {
        "query": draw(heads, k, d),
        "key": draw(key_heads, k, d),
        "value": draw(key_heads, p, d),
    }
    sizes = {"query": (heads, k), "key": (key_heads, k), "value": (key_heads, p), "output": (q,)}
    if q is not None:
        kwargs["output"] = draw(q, heads * p)
    return kwargs | {f"{name}_bias": draw(*sizes[name]) for name in biases}


def _log_weights(*masses):
    return torch.tensor(masses, dtype=torch.float64).log()


_BAND = (torch.arange(6)[:, None] - torch.arange(6)[None, :]).abs() <= 2
_ALL_BIASES = ("query", "key", "value", "output")
_ROTARY = torch.tensor([1.0, 0.1], dtype=torch.float64)


def _draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def _some(*shape):
    """A mask in which every row sees itself."""
    return (_draw(*shape) > 0) | torch.eye(shape[-1], dtype=torch.bool)


_ALIBI = -(torch.arange(6)[:, None] - torch.arange(6)).abs() * torch.tensor([[[1.0]], [[0.2]]])
_HIDDEN = _draw(3, 1, 5, 5).masked_fill(~_some(3, 1, 5, 5), -torch.inf)
_MASSES = _log_weights(0.5, 0.1, 0.3, 0.1)
_PADDING = torch.tensor([[True] * 5, [True, True, True, False, False]])[:, None, None, None, :]

_EVERYTHING = {"heads": 4, "key_heads": 2, "k": 4, "q": 3, "biases": _ALL_BIASES}

#: name → (arguments of _weights, further arguments of Attention, shape of X up to d)
CASES = {
    "one head": ({}, {}, (6,)),
    "values of another dimension": ({"p": 5, "k": 2}, {}, (6,)),
    "causal": ({}, {"causal": True}, (6,)),
    "mask": ({}, {"mask": _BAND}, (6,)),
    "causal mask": ({}, {"mask": _BAND, "causal": True}, (6,)),
    "window": ({"heads": 2}, {"window": 2}, (6,)),
    "causal window": (
        {"heads": 2, "k": 4, "q": 3, "biases": _ALL_BIASES},
        {"window": 3, "causal": True, "rotary": _ROTARY, "mask": _PADDING}, (2, 3, 5)),
    "log-weights": ({}, {"log_weights": _log_weights(0.1, 0.2, 0.3, 0.05, 0.25, 0.1)}, (6,)),
    "massless token": ({}, {"log_weights": _log_weights(0.5, 0.0, 0.3, 0.2)}, (4,)),
    "causal log-weights": ({}, {"log_weights": _MASSES, "causal": True}, (4,)),
    "scale": ({}, {"scale": 0.25}, (5,)),
    "heads concatenated": ({"heads": 3}, {}, (5,)),
    "heads projected": ({"heads": 3, "q": 4}, {}, (5,)),
    "biases": ({"heads": 2, "q": 4, "biases": _ALL_BIASES}, {}, (5,)),
    "biases, causal": ({"heads": 2, "q": 4, "biases": _ALL_BIASES}, {"causal": True}, (5,)),
    "grouped keys": ({"heads": 4, "key_heads": 2, "q": 3}, {"causal": True}, (5,)),
    "grouped keys, biases": ({"heads": 4, "key_heads": 2, "q": 3, "biases": _ALL_BIASES}, {}, (5,)),
    "rotary": ({"heads": 2, "k": 4}, {"rotary": _ROTARY}, (6,)),
    "rotary, everything": (
        _EVERYTHING, {"rotary": _ROTARY, "causal": True, "log_weights": _MASSES}, (4,)),
    "batch": ({"heads": 2, "q": 4, "biases": ("query",)}, {"causal": True}, (2, 3, 5)),
    "mask per head": ({"heads": 2}, {"mask": _some(2, 6, 6)}, (6,)),
    "bias per head": ({"heads": 2, "q": 4}, {"bias": _ALIBI.double(), "causal": True}, (6,)),
    "padding": ({"heads": 2}, {"mask": _PADDING}, (2, 3, 5)),
    "mask per sequence, bias, everything": (
        _EVERYTHING,
        {"rotary": _ROTARY, "mask": _some(2, 3, 4, 5, 5), "bias": _HIDDEN.nan_to_num(neginf=-2.0)},
        (2, 3, 5)),
    "bias that hides": ({"heads": 2}, {"bias": _HIDDEN}, (2, 3, 5)),
    "one token": ({"heads": 2, "biases": ("query", "key")}, {}, (1,)),
    "narrow head": (
        {"d": 12, "k": 2, "p": 3, "q": 9, "biases": _ALL_BIASES}, {"causal": True}, (5,)),
    "narrow heads, rotary": (
        {"d": 20, "heads": 2, "k": 4, "p": 2, "q": 3}, {"rotary": _ROTARY}, (2, 5)),
    "dimension one": ({"d": 1, "k": 1, "p": 1}, {}, (7,)),
}  # fmt: skip


def _normalised(gain):
    return lambda vectors: gain * vectors / vectors.square().mean(-1, keepdim=True).sqrt()


#: Layers whose scores are not (A x_i + c)·x_j: their Jacobian is by autodiff.
BEYOND = {
    "softcap": ({"heads": 2, "q": 4}, {"softcap": 1.5, "causal": True}, (6,)),
    "normalised queries and keys, everything": (
        _EVERYTHING,
        {"rotary": _ROTARY, "softcap": 3.0, "sinks": _draw(4), "query_norm": _normalised(2.0),
         "key_norm": _normalised(_draw(4)), "mask": _some(3, 1, 5, 5)},
        (2, 3, 5)),
    "narrow heads, softcap": ({"d": 20, "heads": 2, "k": 4, "p": 2}, {"softcap": 0.5}, (2, 5)),
}  # fmt: skip
#: Layers whose heads are multiplied by gates that the token decides, or by fixed ones.
GATED = {
    "gate per head": ({"heads": 2, "q": 4}, {"gate": _draw(2, 1, 4), "causal": True}, (6,)),
    "gate per entry, everything": (
        _EVERYTHING,
        {"rotary": _ROTARY, "sinks": _draw(4), "mask": _some(3, 1, 5, 5),
         "gate": _draw(4, 3, 4), "gate_bias": _draw(4, 3)},
        (2, 3, 5)),
    "gate and softcap": ({"heads": 2}, {"gate": _draw(2, 3, 4), "softcap": 1.5}, (2, 5)),
    "fixed gates": (
        {"heads": 4, "key_heads": 2, "q": 3, "biases": _ALL_BIASES},
        {"gate_bias": _draw(4, 1)}, (5,)),
    "fixed gates per entry": ({"heads": 2}, {"gate_bias": _draw(2, 3)}, (5,)),
    "narrow heads, gates": (
        {"d": 20, "heads": 2, "k": 4, "p": 2}, {"gate": _draw(2, 1, 20)}, (2, 5)),
}  # fmt: skip
#: Layers whose rows of weights do not sum to one.
WITH_SINKS = {
    "sinks": ({"heads": 2, "q": 4}, {"sinks": _draw(2)}, (6,)),
    "sinks, everything": (
        _EVERYTHING,
        {"rotary": _ROTARY, "sinks": 2 * _draw(4), "mask": _some(3, 1, 5, 5), "causal": True},
        (2, 3, 5)),
    "narrow heads, sinks": ({"d": 20, "heads": 2, "k": 4, "p": 2}, {"sinks": _draw(2)}, (2, 5)),
}  # fmt: skip


def build_case(name: str, seed: int = 0) -> types.SimpleNamespace:
    """The named layer: ``kwargs``, ``attention``, ``X`` (…, n, d), ``members``."""
    generator = torch.Generator().manual_seed(seed)
    sizes, options, shape = (CASES | WITH_SINKS | BEYOND | GATED)[name]
    kwargs = _weights(generator, **sizes) | options
    X = torch.randn(*shape, kwargs["query"].shape[-1], generator=generator, dtype=torch.float64)
    case = types.SimpleNamespace(name=name, kwargs=kwargs, attention=Attention(**kwargs), X=X)
    case.members = _members(case)
    return case


def _members(case) -> list[types.SimpleNamespace]:
    """Each sequence alone, with its own mask and bias: ``kwargs``, ``attention``, ``X``."""
    shape = (*case.X.shape[:-2], case.attention.heads, *[case.X.shape[-2]] * 2)
    found = []
    for i, X in enumerate(case.X.reshape(-1, *case.X.shape[-2:])):
        kwargs = alone(case.kwargs, shape, i)
        found.append(types.SimpleNamespace(kwargs=kwargs, attention=Attention(**kwargs), X=X))
    return found


@pytest.fixture(params=CASES)
def case(request) -> types.SimpleNamespace:
    """Every layer of the table, in turn."""
    return build_case(request.param)


@pytest.fixture(params=[*CASES, *WITH_SINKS, *BEYOND, *GATED])
def every_case(request) -> types.SimpleNamespace:
    """The same, and layers with sinks or gates, or whose Jacobian is by autodiff."""
    return build_case(request.param)


@pytest.fixture(params=[*CASES, *WITH_SINKS])
def case_in_three_terms(request) -> types.SimpleNamespace:
    """Every layer whose Jacobian has a closed form."""
    return build_case(request.param)


@pytest.fixture(params=[name for name, (_, options, _) in CASES.items() if "rotary" not in options])
def case_with_one_matrix(request) -> types.SimpleNamespace:
    """The layers whose scores are (A x_i + c)·x_j, with one A for all positions."""
    return build_case(request.param)


@pytest.fixture
def make_case():
    """:func:`build_case`, for tests that want certain layers or several seeds."""
    return build_case


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of chance."""
    return torch.Generator().manual_seed(20240)


@pytest.fixture
def randn(generator):
    """``randn(3, 4)``: a seeded float64 tensor."""
    return lambda *shape, dtype=torch.float64: torch.randn(shape, generator=generator, dtype=dtype)
