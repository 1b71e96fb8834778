"""What a row of the table says: what varied, what was held fixed, what came out, and of whom."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from lipcore import capture, measure
from seeded import drawn

D = 8
X = drawn(2, 5, D)


def truths(fn, X):
    """σ of each member, by the dense Jacobian of a map of one."""
    dense = [torch.autograd.functional.jacobian(lambda x: fn(x[None])[0], x) for x in X]
    return [torch.linalg.matrix_norm(J.reshape(-1, X[0].numel()), 2).item() for J in dense]


def agree(table, expected):
    assert table["sigma"].tolist() == pytest.approx(expected, rel=1e-6)


class Module(nn.Module):
    """A model with a function of itself and of its tokens for a forward."""

    def __init__(self, forward, **children):
        super().__init__()
        self.run = forward
        for name, child in children.items():
            setattr(self, name, child)
        for seed, parameter in enumerate(self.parameters()):
            parameter.data = drawn(*parameter.shape, seed=seed) / 2
        self.double().eval()

    def forward(self, *args, **options):
        return self.run(self, *args, **options)


# --- inputs --------------------------------------------------------------------------------------


def attend(self, q, k, v):
    return self.attn(q, k, v)[0]


def detr(self, x):
    return attend(self, x + self.pos, x + self.pos if self.apart else x, x)


def shared(self, x):
    q = x + self.pos
    return attend(self, q, q, x)


def clones(self, x):
    return attend(self, x, x.clone(), x.clone())


def pooled(self, x):
    return attend(self, self.pos.repeat(len(x), 1, 1), x, x)


def model(forward):
    attention = nn.MultiheadAttention(D, 2, batch_first=True)
    return Module(forward, attn=attention, pos=nn.Parameter(torch.zeros(1, 5, D)))


INPUTS = {
    "positions": (shared, "query = key", "value of X's shape (wrt='all' pushes them too)"),
    "clones": (clones, "query", "key equal to query, value equal to query (wrt='all'"),
    "learned": (pooled, "query (the parameter pos)", "key of X's shape, value of X's shape"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_what_varied_and_what_was_held(name):
    forward, varied, fixed = INPUTS[name]
    table = measure(model(forward), X)
    assert set(table["varied"]) == {varied} and all(x.startswith(fixed) for x in table["fixed"])


@pytest.mark.parametrize("forward", (shared, clones))
def test_all_inputs_get_the_same_push(forward):
    of_tokens = model(forward)
    table = measure(of_tokens, X, wrt="all", tol=1e-10)
    assert set(table["varied"]) == {"query, key, value (by one push)"}
    agree(table, truths(of_tokens, X))


def test_one_of_the_inputs():
    layer = nn.TransformerDecoderLayer(D, 2, 12, batch_first=True).double().eval()
    memory = drawn(2, 7, D, seed=1)
    with pytest.warns(UserWarning, match="^1 of 3 rows"):
        table = measure(layer, X, memory, wrt="key", layers="multihead_attn", tol=1e-10)
        table = measure(layer, X, memory, wrt="keys", layers=[0, 1], tol=1e-10)
    fn, M = capture(layer, "multihead_attn", X, memory)[0].at("key")
    agree(table, truths(lambda m: fn(m.expand_as(M))[:1], M))
