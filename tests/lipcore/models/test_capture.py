"""A submodule of a running model as a map: what enters it, where its batch is, what is fixed."""

from __future__ import annotations

import collections
import copy
import itertools

import pytest
import torch
from torch import nn

from lipcore import capture, local_lipschitz, measure
from lipcore.models.structure import attention_modules, blocks, remarks
from seeded import drawn
from tiny_models import tiny_model


def double(module):
    return module.double().eval()


def of(function):
    """A module without parameters."""

    class Module(nn.Module):
        def forward(self, x):
            return function(x)

    return Module().eval()


def assert_right(fn, X):
    """σ is the largest singular value of each member's dense Jacobian."""
    J = torch.autograd.functional.jacobian(fn, X)
    own = [J] if X.ndim == 2 else [J[i, :, :, i] for i in range(len(X))]
    dense = torch.stack([part.flatten(2).flatten(0, 1) for part in own])
    truth = torch.linalg.matrix_norm(dense, 2).reshape(X.shape[:-2])
    found = local_lipschitz(fn, X, tol=1e-10)
    torch.testing.assert_close(found.value, truth, rtol=1e-6, atol=1e-12)
    assert bool((found.upper >= truth * (1 - 1e-9)).all())


class Residual(nn.Module):
    """Code as it is written: in place, with a mask that is made while it runs, and a cache."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, hidden, scale=None, cache=None, *, mask=None):
        out = self.mix(hidden)
        if cache is not None:
            cache.append(out)
            out = out + sum(cache)
        if mask is not None:
            mask += 1.0
            out = out * mask
        return {"loss": out.mean(), "out": out if scale is None else scale * out}


class Around(nn.Module):
    """Changes in place what went into its child, and what came out."""

    def __init__(self, child=None):
        super().__init__()
        self.child = Residual() if child is None else child

    def forward(self, x, **options):
        h = x * 1.0
        out = self.child(h, **options)
        out = out["out"] if isinstance(out, dict) else out
        h += 5.0
        out += h
        return out


# --- what is taken -------------------------------------------------------------------------------


def test_inputs_and_output_are_those_of_the_run_and_the_model_is_left_as_it_was():
    model, x = double(Around()), drawn(2, 3, 4)
    before = copy.deepcopy(model.state_dict())
    fn, X = capture(model, "child", x)
    torch.testing.assert_close(X, x)
    torch.testing.assert_close(fn(X), model.child.mix(x))
    assert_right(fn, X)
    assert all(torch.equal(model.state_dict()[name], x) for name, x in before.items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_a_value_that_is_changed_in_place_is_that_before_the_call():
    model, mask = double(Around()), torch.ones(2, 3, 1, dtype=torch.float64)
    fn, X = capture(model, "child", drawn(2, 3, 4), mask=mask)
    assert mask[0, 0, 0] == 1  # the caller's is not touched
    torch.testing.assert_close(fn(X), 2 * model.child.mix(X))


@pytest.mark.parametrize("cache", (list, collections.deque))
def test_a_cache_is_new_at_every_call(cache):
    model = double(Around())
    fn, X = capture(model, "child", drawn(2, 3, 4), cache=cache())
    for _ in range(2):
        torch.testing.assert_close(fn(X), 2 * model.child.mix(X))


@pytest.mark.filterwarnings("ignore:.past_key_values:FutureWarning")
@pytest.mark.parametrize("with_graph", (False, True))
@pytest.mark.parametrize("name", ("past_key_values", "cache"))
def test_the_cache_of_the_caller_is_not_touched(name, with_graph):
    """Nor its length, nor σ of the next call; also one that autograd has made."""
    model = tiny_model("llama")
    with torch.set_grad_enabled(with_graph):
        cache = model(input_ids=torch.arange(5, 11)[None], use_cache=True).past_key_values
    inputs = {"input_ids": torch.tensor([[3, 4]]), name: cache, "use_cache": True}
    first, second = (measure(model, **inputs, layers=0)["sigma"].tolist() for _ in range(2))
    assert first == second and cache.get_seq_length() == 6


def test_the_first_tensor_varies_and_the_others_are_named():
    fn, X = capture(double(Residual()), "", drawn(2, 3, 4), drawn(2, 3, 1, seed=1))
    assert "(Residual): hidden ↦ out, at fixed scale" in repr(fn)
    other, scale = fn.at("scale")
    assert scale.shape == (2, 3, 1)
    assert_right(fn, X)
    assert_right(other, scale)
    with pytest.raises(ValueError, match=r"^name: "):
        fn.at("mask")
    with pytest.raises(ValueError, match=r"^X: "):
        fn(drawn(3, 3, 4))


def test_cross_attention_with_respect_to_queries_and_to_memory():
    layer = double(nn.TransformerDecoderLayer(8, 2, 12, batch_first=True))
    fn, X = capture(layer, "multihead_attn", drawn(2, 3, 8), memory := drawn(2, 5, 8, seed=1))
    assert (fn.varied, fn.fixed) == (("query",), ("key", "value"))
    assert_right(fn, X)
    of_memory, M = fn.at("key")
    assert of_memory.varied == ("key", "value")
    torch.testing.assert_close(M, memory)
    assert_right(of_memory, M)


@pytest.mark.parametrize("inference", (False, True))
def test_the_same_memory_is_the_same_input(inference):
    with torch.inference_mode(inference):
        x = drawn(3, 5, 8)
    module = double(nn.MultiheadAttention(8, 2, batch_first=True))
    fn, X = capture(module, "", x, x.view_as(x), x[:])
    assert fn.varied == ("query", "key", "value")
    assert_right(fn, X)


def test_the_same_run_in_double_precision():
    """Of a copy: the model keeps its precision. Where the copy computes otherwise there is none."""
    layer = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True).eval()
    inputs = drawn(2, 3, 8).float(), drawn(2, 5, 8, seed=1).float()
    fn = capture(layer, "multihead_attn", *inputs)[0].double()
    assert (fn.varied, fn.fixed) == (("query",), ("key", "value"))
    assert_right(fn, fn.X)
    assert layer.linear1.weight.dtype == torch.float32
    assert fn.double() is fn
    fickle = of(lambda x: x if x.dtype == torch.float32 else 2 * x)
    assert capture(fickle, "", inputs[0])[0].double() is None


# --- where the batch is --------------------------------------------------------------------------


def mixing_first(bias):
    return of(lambda x: (x + x.mean(0, keepdim=True)).tanh() + bias)


def onwards(member):
    def forward(x):
        out = x.clone()
        out[member] = out[member] + 0.5 * x[1 - member]
        return out

    return of(forward)


def attend(batch_first=False, hidden=False, **options):
    """A module whose attention is no child: no attribute says where its batch is."""
    module = double(nn.MultiheadAttention(8, 2, batch_first=batch_first, **options))
    return module if not hidden else of(lambda x: module(x, x, x)[0])


LAYOUTS = {
    "attention, batch second": (lambda: attend(), (5, 3, 8), "batch second", (3, 5, 8)),
    "attention, batch first": (lambda: attend(True), (3, 5, 8), "batch first", (3, 5, 8)),
    "nothing tells": (lambda: attend(hidden=True), (5, 3, 8), "batch second", (3, 5, 8)),
    "images": (lambda: double(nn.Conv2d(3, 3, 3)), (2, 3, 4, 5), "batch first", (2, 12, 5)),
    "one sequence": (lambda: attend(), (5, 8), "one input", (5, 8)),
    "all influence all": (
        lambda: of(lambda x: x - x.mean((0, 1), keepdim=True)), (3, 6, 8), "one input", (18, 8)
    ),
    "in one direction": (lambda: onwards(0), (2, 3, 4), "batch second", (3, 2, 4)),
    "in the other": (lambda: onwards(1), (2, 3, 4), "batch second", (3, 2, 4)),
    "mixing first": (lambda: mixing_first(0.0), (5, 3, 8), "batch second", (3, 5, 8)),
    "beside a large bias": (lambda: mixing_first(1e13), (5, 3, 8), "one input", (15, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    make, shape, layout, found = LAYOUTS[name]
    module, x = make(), drawn(*shape)
    tokens = (x, x, x) if isinstance(module, nn.MultiheadAttention) else (x,)
    fn, X = capture(module, "", *tokens)
    assert (fn.layout, tuple(X.shape)) == (layout, found)
    assert ("is one input" in repr(fn)) == (layout == "one input" and len(shape) > 2)
    if "bias" not in name:
        assert_right(fn, X)


@pytest.mark.parametrize("fill", (0.0, 1.0))
def test_equal_tokens_hide_nothing(fill):
    fn, _X = capture(mixing_first(0.0), "", torch.full((5, 3, 8), fill, dtype=torch.float64))
    assert fn.layout == "batch second"


def test_what_a_module_says_of_its_layout_comes_first():
    """Where each token sees itself alone, trying it out would allow either."""
    x = drawn(5, 3, 8)
    _fn, X = capture(attend(), "", x, x, x, attn_mask=~torch.eye(5, dtype=torch.bool))
    assert X.shape == (3, 5, 8)


def test_encoder_layer_with_the_batch_second_and_padding():
    layer = double(nn.TransformerEncoderLayer(8, 2, 12))
    padding = torch.tensor([[False, False, False], [False, False, True]])
    x = drawn(3, 2, 8)
    for name in ("", "self_attn"):
        fn, X = capture(layer, name, x, src_key_padding_mask=padding)
        assert X.shape == (2, 3, 8)
        assert_right(fn, X)
    alone, one = capture(layer, "self_attn", x[:2, 1:])  # without the padded token
    changed = X.clone()
    changed[1, 2] += 1.0  # nobody sees it, but what it is
    torch.testing.assert_close(fn(changed)[1, :2], alone(one)[0])


# --- refusals ------------------------------------------------------------------------------------


def counting():
    calls = itertools.count(1)
    return double(Around(of(lambda x: x * next(calls))))


def twice():
    mix = nn.Linear(4, 4)
    return double(nn.Sequential(mix, nn.Tanh(), mix))


def with_spare():
    model = Around()
    model.spare = nn.Linear(4, 4)
    return double(model)


REFUSED = {
    "training": (lambda: Around().double(), "child", r"\.eval"),
    "unknown": (lambda: double(Around()), "chld", "'child'"),
    "never runs": (with_spare, "spare", "spare"),
    "runs twice": (twice, "0", "0#1"),
    "no such run": (twice, "0#2", "name"),
    "no number": (twice, "0#x", "name"),
    "a negative one": (twice, "0#-1", "name"),
    "depends on more than its inputs": (counting, "child", "child"),
    "whole numbers in": (lambda: of(lambda ids: ids.double()), "", "enter"),
    "no tensor out": (lambda: of(lambda x: "words"), "", "out of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    make, module, named = REFUSED[name]
    x = torch.ones(2, 3).long() if name == "whole numbers in" else drawn(2, 3, 4)
    with pytest.raises((ValueError, TypeError), match=named):
        capture(make(), module, x)


def test_the_second_run_of_a_module():
    model, x = twice(), drawn(2, 3, 4)
    _fn, X = capture(model, "0#1", x)
    torch.testing.assert_close(X, model[0](x).tanh())


# --- structure -----------------------------------------------------------------------------------


def of_kind(kind, **children):
    return type(kind, (nn.ModuleDict,), {})(children)


def fused(kind):
    return of_kind(kind, qkv=nn.Linear(4, 12), proj=nn.Linear(4, 4))


def linears(*names):
    return {name: nn.Linear(4, 4) for name in names}


def test_names():
    wrapped = nn.ModuleDict(linears("to_q", "to_kv"))
    outer = of_kind("OuterAttention", inner=of_kind("MyAttention", **linears("everything")))
    parts = {"wrapped": wrapped, "fused": fused("Fused"), "own": fused("OwnAttention"), "a": outer}
    model = nn.ModuleDict(parts | linears("q", "mlp"))
    assert attention_modules(model) == ["wrapped", "own", "a.inner"]


def test_remarks():
    of_heads = {"q_norm": nn.LayerNorm(2), "k_norm": nn.LayerNorm(2)}
    query = linears("query", "key", "value")
    normed = query | linears("dense") | {"LayerNorm": nn.LayerNorm(4)}
    assert "output" in remarks(nn.ModuleDict(query))
    assert remarks(nn.ModuleDict(query | linears("dense"))) == ""
    assert "LayerNorm" in remarks(nn.ModuleDict(normed))
    assert remarks(nn.ModuleDict(query | of_heads | linears("o"))) == ""


def test_blocks_hold_other_matrices():
    decoder = nn.TransformerDecoderLayer(8, 2, 12)
    lists = {
        "encoder": [fused("Fused"), fused("OwnAttention")],
        "layers": [decoder, nn.Linear(8, 8)],
    }
    model = nn.ModuleDict({name: nn.ModuleList(parts) for name, parts in lists.items()})
    assert blocks(model) == ["layers.0"]
    assert attention_modules(decoder) == ["self_attn", "multihead_attn"]
