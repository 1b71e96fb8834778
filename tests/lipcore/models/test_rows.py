"""What a row of the table says: what varied, what was held fixed, what came out, and of whom."""

from __future__ import annotations

import copy
import json
import random

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lipcore import capture, measure
from lipcore.models import save
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
    of_memory = measure(layer, X, memory, wrt="key", layers=1, tol=1e-10)
    fn, M = capture(layer, "multihead_attn", X, memory)[0].at("key")
    J = torch.autograd.functional.jacobian(fn, M)
    own = torch.stack([J[i, :, :, i].reshape(-1, 7 * D) for i in range(2)])
    agree(of_memory, torch.linalg.matrix_norm(own, 2).tolist())
    assert set(of_memory["varied"]) == {"key = value"} and set(of_memory["fixed"]) == {"query"}
    with pytest.warns(UserWarning, match="wrt: expected 'query', 'key', 'value', 'all'"):
        measure(layer, X, memory, wrt="keys", layers=1)
    with pytest.raises(ValueError, match=r"^wrt: "):
        measure(layer, X, memory, wrt="key", scope="model")


# --- the whole model -----------------------------------------------------------------------------


def skip(self, h):
    return self.blocks[0](h) + 3 * h


def skip_of_a_copy(self, h):
    other = h.clone()
    return self.blocks[0](h) + 3 * other


def first_tokens_again(self, h):
    x = self.blocks[1](self.blocks[0](h))
    return self.blocks[1](torch.cat([x, h], -1)[..., 4:-4] + x)


def from_numpy(self, h):
    return skip(self, torch.from_numpy(h.detach().numpy().copy()))


def in_place(self, h):
    h += 1.0
    return skip(self, h)


WHOLE = {
    "skip": (skip, True),
    "skip, of an input": (skip, False),
    "skip of a copy": (skip_of_a_copy, True),
    "skip of a copy, of an input": (skip_of_a_copy, False),
    "first tokens again": (first_tokens_again, True),
}


def blocks():
    return nn.ModuleList(nn.TransformerEncoderLayer(D, 2, 12, batch_first=True) for _ in range(2))


@pytest.mark.parametrize("name", WHOLE)
def test_all_that_is_computed_from_the_tokens_varies(name):
    rest, is_embedded = WHOLE[name]
    whole = Module(
        lambda self, x: rest(self, self.emb(x) if is_embedded else x),
        emb=nn.Linear(D, D),
        blocks=blocks(),
    )
    h = whole.emb(X).detach() if is_embedded else X
    table = measure(whole, X, scope="model", tol=1e-10)
    agree(table, truths(lambda x: rest(whole, x), h))
    assert set(table["varied"]) == {"what enters blocks.0"} and set(table["fixed"]) == {""}


@pytest.mark.parametrize("make", (in_place, from_numpy))
def test_tokens_that_are_made_in_other_ways(make):
    whole = Module(lambda self, x: make(self, self.emb(x)), emb=nn.Linear(D, D), blocks=blocks())
    with torch.no_grad():
        h = whole.emb(X) + (make is in_place)
    agree(measure(whole, X, scope="model", tol=1e-10), truths(lambda x: skip(whole, x), h))


def test_what_keeps_the_old_tokens_is_said():
    def forward(self, x):
        h = self.emb(x)
        return self.blocks[0](h.tanh()) + h

    whole = Module(forward, emb=nn.Linear(D, D), blocks=blocks())
    table = measure(whole, X, scope="model", tol=1e-10)
    h = whole.emb(X).detach()
    agree(table, truths(whole.blocks[0], h.tanh()))
    assert set(table["fixed"]) == {"what was computed before them, of their shape"}


# --- outputs -------------------------------------------------------------------------------------


class Own(nn.Module):
    """One head, which keeps its keys in ``kept``, and gives what ``given`` makes of its parts."""

    def __init__(self, keep=None, given=lambda p, y: y):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.given, self.keep = given, keep
        self.register_buffer("cache", None)
        self.list, self.count = [], 0
        for seed, parameter in enumerate(self.parameters()):
            parameter.data = drawn(*parameter.shape, seed=seed) / 2

    def forward(self, x):
        keys = self.k(x)
        if self.keep is not None:
            keys = self.keep(self, keys)
        p = (self.q(x) @ keys.mT).softmax(-1)
        return self.given(p, p[..., -x.shape[-2] :] @ self.v(x))


def in_buffer(self, keys):
    self.cache = keys if self.cache is None else torch.cat([self.cache, keys], 1)
    return self.cache


def in_list(self, keys):
    self.list.append(keys)
    return torch.cat(self.list, 1)


def in_attribute(self, keys):
    self.count += 1
    return keys * self.count


GIVEN = {
    "weights first": (lambda p, y: (p, y), "of output[1]: attention weights are output[0]"),
    "weights first, by name": (lambda p, y: {"p": p, "y": y}, "of y: attention weights are p"),
    "weights behind": (lambda p, y: (y, p), ""),
    "several": (lambda p, y: {"p": p, "y": y, "z": 2 * y}, "of y: attention weights are p"),
    "first of several": (lambda p, y: (y, 2 * y), "of output[0], the first of 2 outputs"),
    "first of several, by name": (
        lambda p, y: {"y": y, "z": 2 * y},
        "of y, the first of 2 outputs",
    ),
}


@pytest.mark.parametrize("name", GIVEN)
def test_attention_weights_are_not_the_output(name):
    given, note = GIVEN[name]
    table = measure(nn.Sequential(Own(given=given)).eval(), X, tol=1e-10)
    agree(table, truths(Own(), X))
    assert all(x == f"without output projection; {note}".rstrip("; ") for x in table["note"])


def test_an_output_of_too_few_dimensions():
    """What the message tells to do is done, and works."""
    given = Module(lambda self, x: self.blocks[0](x).sum(), blocks=blocks())
    with pytest.warns(UserWarning, match=r"return it as y\.reshape\(1, -1\)"):
        measure(given, X, scope="model")
    cured = Module(lambda self, x: self.blocks[0](x).sum().reshape(1, -1), blocks=blocks())
    gradient = torch.autograd.functional.jacobian(cured, X)
    agree(measure(cured, X, scope="model", tol=1e-10), [gradient.norm().item()])


# --- what a module changes -----------------------------------------------------------------------


class InPlace(Own):
    """Attention that changes its input in place before it attends."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return super().forward(self.change(x))


IN_PLACE = {
    "scaled": lambda x: x.mul_(1.7).add_(0.3),
    "ReLU": nn.ReLU(inplace=True),
    "normalised": lambda x: x.copy_(x.softmax(-1)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_tokens_are_those_before_a_change_in_place(name):
    module = nn.Sequential(InPlace(IN_PLACE[name])).eval()
    table = measure(module, X.clone(), tol=1e-10)
    agree(table, truths(lambda x: module(x.clone()), X))


# --- what a run changes --------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ("attention", "block", "model"))
@pytest.mark.parametrize("keep", (in_buffer, in_list, in_attribute))
def test_what_a_model_keeps_is_put_back(keep, scope):
    """The same call gives the same σ, that of the first run, and the model is as it was."""
    block = Module(lambda self, x: self.mlp(self.attn(x)), attn=Own(keep), mlp=nn.Linear(D, D))
    whole = nn.Sequential(block).eval()
    fresh = copy.deepcopy(whole)
    first, second = (measure(whole, X, tol=1e-10, scope=scope) for _ in range(2))
    assert first["sigma"].tolist() == second["sigma"].tolist()
    of_one = fresh if scope != "attention" else fresh[0].attn
    agree(first, truths(lambda x: copy.deepcopy(of_one)(x), X))
    assert torch.equal(whole(X), fresh(X))


def test_random_numbers_of_the_caller_are_not_drawn():
    def forward(self, x):
        noise = torch.rand(1) + random.random() + np.random.rand()  # noqa: NPY002
        return self.attn(x, x, x)[0] + noise * 0

    drawing = model(forward)
    states = [torch.get_rng_state(), random.getstate(), np.random.get_state()]  # noqa: NPY002
    measure(drawing, X)
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert all(map(np.array_equal, np.random.get_state(), states[2]))  # noqa: NPY002


def test_hooks_of_a_module_are_a_part_of_it():
    plain, hooked = (model(lambda self, x: self.attn(x)) for _ in range(2))
    for one in (plain, hooked):
        one.attn = Own()
    hooked.attn.register_forward_pre_hook(lambda module, args: (3 * args[0],))
    hooked.attn.register_forward_hook(lambda module, args, output: 2 * output)
    table = measure(hooked.eval(), X, tol=1e-10)
    agree(table, truths(lambda x: 2 * plain.attn(3 * x), X))


def test_a_model_in_training_is_refused_before_a_weight_changes():
    training = model(shared)
    training.attn = own = Own()
    nn.utils.parametrizations.spectral_norm(own.q)
    before = copy.deepcopy(dict(training.train().named_buffers()))
    with pytest.raises(ValueError, match=r"call \.eval\(\)"):
        measure(training, X)
    after = dict(training.named_buffers())
    assert before and all(torch.equal(before[name], after[name]) for name in before)


# --- refusals ------------------------------------------------------------------------------------


def test_one_bad_sequence_loses_only_its_own_row():
    def forward(self, x):
        return self.attn(x, x, x)[0] + torch.where(x > 100, torch.nan, 0.0)

    class Broken(nn.MultiheadAttention):
        def forward(self, q, k, v, **options):
            out, weights = super().forward(q, k, v, **options)
            return out + torch.where(q > 100, torch.nan, 0.0), weights

    layer = Broken(D, 2, batch_first=True)
    good = Module(lambda self, x: self.attn(x, x, x)[0], attn=layer)
    bad = torch.cat([X, 1000 * X[:1], X[1:]])
    with pytest.warns(UserWarning, match="^1 of 4 rows"):
        table = measure(good, bad, tol=1e-10)
    assert table["sigma"].isna().tolist() == [False, False, True, False]
    agree(table.drop(2), truths(good, bad[[0, 1, 3]]))


def test_autocast_around_a_module():
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.attn(x, x, x)[0]

    single = model(forward).float()
    with pytest.warns(UserWarning, match="take torch.autocast out of the model's code"):
        measure(single, X.float())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="outside"):
        measure(single, X.float())


def test_a_graph_of_torch_export():
    layer = nn.TransformerEncoderLayer(D, 2, 12, batch_first=True).double().eval()
    with pytest.raises(ValueError, match="measure the module that was exported"):
        measure(torch.export.export(layer, (X,)).module(), X)


def test_a_module_without_values_serves_the_attention_it_is_in():
    parts = {"wq": nn.Linear(D, D), "wk": nn.Linear(D, D)}

    class SparseAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.indexer, self.latent = nn.ModuleDict(parts), nn.Linear(D, D)

        def forward(self, x):
            return self.latent(x)

    table = measure(nn.Sequential(SparseAttention()).double().eval(), X)
    assert table["layer"].tolist() == ["0", "0"] and table["sigma"].notna().all()


# --- what people bring ---------------------------------------------------------------------------


def encoder(layers=2):
    layer = nn.TransformerEncoderLayer(D, 2, 12, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).double().eval()
    for seed, parameter in enumerate(model.parameters()):
        parameter.data = drawn(*parameter.shape, seed=seed) / 2
    return model


REAL = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])


def padded():
    return Module(
        lambda self, x, attention_mask: self.encoder(x, src_key_padding_mask=attention_mask == 0),
        encoder=encoder(),
    )


@pytest.mark.parametrize("scope", ("attention", "block", "model"))
def test_padding_that_is_left_out(scope):
    """σ of the sequence alone."""
    model = padded()
    table = measure(model, X, attention_mask=REAL, padding="ignore", scope=scope, tol=1e-10)
    alone = measure(model.encoder, X[1:, 2:], scope=scope, tol=1e-10)
    of_second = table[table["sequence"] == 1]
    assert of_second["sigma"].tolist() == pytest.approx(alone["sigma"].tolist(), rel=1e-6)
    assert set(of_second["shape"]) == {(3, D)}


def test_a_mask_that_is_added_to_scores_names_no_padding():
    added = torch.where(REAL == 0, -1e9, 0.0)
    with pytest.raises(ValueError, match="1 for tokens and 0 for padding"):
        measure(padded(), X, attention_mask=added, padding="ignore")


def test_padding_that_carries_sigma_is_noted():
    steep = torch.where(REAL == 0, 100.0, 1.0)[..., None]
    block = Module(lambda self, x: steep * self.mlp(x), mlp=nn.Linear(D, D))
    layers = nn.ModuleList([block])
    model = Module(lambda self, x, attention_mask=None: self.layers[0](x), layers=layers)
    told = measure(model, X, attention_mask=REAL, scope="model")
    assert "padding" not in told["note"][0] and "padding has 100%" in told["note"][1]
    zeros = measure(model, X * REAL[..., None], scope="model")
    assert "zeros" not in zeros["note"][0] and "tokens of zeros have 100%" in zeros["note"][1]


def test_a_row_for_each_head():
    table = measure(encoder(), X, by="head", tol=1e-10)
    assert len(table) == 8 and table.pivot(
        index="layer", columns=["sequence", "head"], values="sigma"
    ).shape == (2, 4)
    module = encoder().layers[0].self_attn
    for head in range(2):
        one = copy.deepcopy(module)
        one.out_proj.weight.data[:, D // 2 * (1 - head) : D // 2 * (2 - head)] = 0
        rows = table[(table["layer"] == "layers.0.self_attn") & (table["head"] == head)]
        agree(rows, truths(lambda x, one=one: one(x, x, x)[0], X))


def test_a_copy_in_another_precision():
    model = encoder().bfloat16()
    table = measure(model, X.bfloat16(), dtype=torch.float64, tol=1e-10)
    agree(table, measure(encoder().bfloat16().double(), X.bfloat16().double())["sigma"].tolist())
    assert next(model.parameters()).dtype == torch.bfloat16 and table.attrs["dtype"] == "float64"


def test_wrapped_blocks():
    class Bridge(nn.Module):
        def __init__(self, original):
            super().__init__()
            self._original_component = original

        def forward(self, *args, **options):
            return self._original_component(*args, **options)

    bare = encoder()
    wrapped = nn.Sequential(*map(Bridge, bare.layers)).eval()
    for scope in ("block", "model"):
        agree(measure(wrapped, X, scope=scope), measure(bare, X, scope=scope)["sigma"].tolist())


def test_blocks_without_attention():
    parts = [nn.Linear(D, D) for _ in range(3)]
    model = Module(lambda self, x: self.layers(x), layers=nn.Sequential(*parts))
    table = measure(model, X, scope="block")
    assert table["layer"].tolist() == [f"layers.{i}" for i in (0, 0, 1, 1, 2, 2)]


@pytest.mark.parametrize("ending", ("json", "csv"))
def test_a_saved_table_says_what_made_it(ending, tmp_path):
    table = measure(encoder(), X, generator=torch.Generator().manual_seed(7))
    save(table, path := tmp_path / f"table.{ending}")
    if ending == "json":
        made = json.loads(path.read_text())
        read = pd.DataFrame(made.pop("rows"))
    else:
        made = json.loads(path.read_text().splitlines()[0].removeprefix("# "))
        read = pd.read_csv(path, skiprows=1)
    assert made == table.attrs and made["versions"]["torch"] == torch.__version__
    assert (made["dtype"], made["device"], made["seed"]) == ("float64", "cpu", 7)
    assert made["inputs"] == {"args[0]": [2, 5, D]}
    assert read["sigma"].tolist() == pytest.approx(table["sigma"].tolist(), rel=1e-14)
    with pytest.raises(ValueError, match=r"^path: "):
        save(table, "table.xlsx")
