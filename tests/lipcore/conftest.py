"""Attention layers of every kind, with inputs, for the tests that must hold on all of them."""

from __future__ import annotations

import types

import matplotlib
import pytest
import torch

from lipcore import Attention

matplotlib.use("Agg")


def _weights(generator, *, heads=1, key_heads=None, d=4, k=3, p=3, biases=(), q=None):
    """Random constructor arguments of a layer in float64; ``biases`` among query, key, value, output."""
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

#: name → (arguments of _weights, further arguments of Attention, shape of X up to d)
CASES = {
    "one head": ({}, {}, (6,)),
    "values of another dimension": ({"p": 5, "k": 2}, {}, (6,)),
    "causal": ({}, {"causal": True}, (6,)),
    "mask": ({}, {"mask": _BAND}, (6,)),
    "causal mask": ({}, {"mask": _BAND, "causal": True}, (6,)),
    "log-weights": ({}, {"log_weights": _log_weights(0.1, 0.2, 0.3, 0.05, 0.25, 0.1)}, (6,)),
    "massless token": ({}, {"log_weights": _log_weights(0.5, 0.0, 0.3, 0.2)}, (4,)),
    "causal log-weights": (
        {},
        {"log_weights": _log_weights(0.5, 0.1, 0.3, 0.1), "causal": True},
        (4,),
    ),
    "scale": ({}, {"scale": 0.25}, (5,)),
    "heads concatenated": ({"heads": 3}, {}, (5,)),
    "heads projected": ({"heads": 3, "q": 4}, {}, (5,)),
    "biases": ({"heads": 2, "q": 4, "biases": _ALL_BIASES}, {}, (5,)),
    "biases, causal": ({"heads": 2, "q": 4, "biases": _ALL_BIASES}, {"causal": True}, (5,)),
    "grouped keys": ({"heads": 4, "key_heads": 2, "q": 3}, {"causal": True}, (5,)),
    "grouped keys, biases": ({"heads": 4, "key_heads": 2, "q": 3, "biases": _ALL_BIASES}, {}, (5,)),
    "rotary": ({"heads": 2, "k": 4}, {"rotary": _ROTARY}, (6,)),
    "rotary, everything": (
        {"heads": 4, "key_heads": 2, "k": 4, "q": 3, "biases": _ALL_BIASES},
        {"rotary": _ROTARY, "causal": True, "log_weights": _log_weights(0.5, 0.1, 0.3, 0.1)},
        (4,),
    ),
    "batch": ({"heads": 2, "q": 4, "biases": ("query",)}, {"causal": True}, (2, 3, 5)),
    "one token": ({"heads": 2, "biases": ("query", "key")}, {}, (1,)),
    "narrow head": (
        {"d": 12, "k": 2, "p": 3, "q": 9, "biases": _ALL_BIASES},
        {"causal": True},
        (5,),
    ),
    "narrow heads, rotary": (
        {"d": 20, "heads": 2, "k": 4, "p": 2, "q": 3},
        {"rotary": _ROTARY},
        (2, 5),
    ),
    "dimension one": ({"d": 1, "k": 1, "p": 1}, {}, (7,)),
}


def build_case(name: str, seed: int = 0) -> types.SimpleNamespace:
    """The named layer: ``kwargs`` of the constructor, ``attention``, ``X`` (…, n, d), and ``name``."""
    generator = torch.Generator().manual_seed(seed)
    sizes, options, shape = CASES[name]
    kwargs = _weights(generator, **sizes) | options
    X = torch.randn(*shape, kwargs["query"].shape[-1], generator=generator, dtype=torch.float64)
    return types.SimpleNamespace(name=name, kwargs=kwargs, attention=Attention(**kwargs), X=X)


@pytest.fixture(params=CASES)
def case(request) -> types.SimpleNamespace:
    """Every layer of the table, in turn."""
    return build_case(request.param)


@pytest.fixture(params=[name for name in CASES if "rotary" not in name])
def case_with_one_matrix(request) -> types.SimpleNamespace:
    """The layers whose scores are (A x_i + c)·x_j: with rotary positions A depends on both positions."""
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


@pytest.fixture
def make_layer():
    """A random float64 layer of given sizes, as ``make_layer(heads=2, d=7, k=16, causal=True)``."""

    def build(*, causal: bool = False, **sizes) -> Attention:
        return Attention(**_weights(torch.Generator().manual_seed(7), **sizes), causal=causal)

    return build
