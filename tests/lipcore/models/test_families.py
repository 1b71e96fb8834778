"""Every family of transformers: σ of each attention module against the model's dense Jacobian."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

pytest.importorskip("transformers", reason="needs lipcore[models]")

from lipcore import capture, measure
from tiny_models import CONFIGS, EAGER_ONLY, RUNS, inputs_of, tiny_model


def first_tensor(output):
    if isinstance(output, torch.Tensor):
        return output
    return next(iter(output.values())) if isinstance(output, dict) else output[0]


def dense(model, name, inputs, until=None):
    """Jacobians (members, rows, columns) of a module, or up to ``until``, by reverse mode."""
    # the tokens that enter are made a leaf of the graph while the model runs: no module is called
    # on its own
    name, _, turn = name.partition("#")
    entered, left = [], []

    def enter(module, args, kwargs):
        if until is not None and entered:  # a block that runs again
            return args, kwargs
        X = (args[0] if args else kwargs["hidden_states"]).detach().requires_grad_()
        entered.append(X)
        return ((X, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": X})

    module = model.get_submodule(name)
    last = module if until is None else model.get_submodule(until)
    hooks = [
        module.register_forward_pre_hook(enter, with_kwargs=True),
        last.register_forward_hook(lambda module, args, output: left.append(first_tensor(output))),
    ]
    with sdpa_kernel(SDPBackend.MATH):
        model(**inputs)
        for hook in hooks:
            hook.remove()
        X, Y = entered[int(turn or 0)], left[int(turn or 0)]
        basis = torch.eye(Y.numel(), dtype=Y.dtype).reshape(-1, *Y.shape)
        (J,) = torch.autograd.grad(Y, X, basis, is_grads_batched=True)
    J = J.reshape(len(Y), -1, len(X), X[0].numel())
    own = torch.stack([J[i, :, i] for i in range(len(X))])
    torch.testing.assert_close(J.square().sum(), own.square().sum())  # members are independent
    return own


def check(table, model, inputs, **until):
    """Rows of a table against the truth, one for each member."""
    for name, rows in table.groupby("layer", sort=False):
        J = dense(model, until.pop("first", name), inputs, **until)
        truth = torch.linalg.matrix_norm(J, 2).tolist()
        assert rows["sigma"].tolist() == pytest.approx(truth, rel=1e-6)
        assert bool((rows["lower"] <= [x * (1 + 1e-6) for x in truth]).all())
        assert bool((rows["upper"] * (1 + 1e-6) >= truth).all())
        assert bool(rows["converged"].all())


KERNELS = [(family, "eager") for family in CONFIGS]
KERNELS += [(family, "sdpa") for family in CONFIGS if family not in EAGER_ONLY]


@pytest.mark.parametrize(("family", "kernel"), KERNELS)
def test_sigma_of_every_attention_module(family, kernel):
    model, inputs = tiny_model(family, kernel), inputs_of(family)
    table = measure(model, **inputs, tol=1e-10)
    assert table["layer"].nunique() == RUNS[family]
    check(table, model, inputs)


ALBERT = "encoder.albert_layer_groups.0.albert_layers.0"
BLOCKS = {
    "albert": [f"{ALBERT}#0", f"{ALBERT}#1"],
    "deberta-v2": ["encoder.layer.0", "encoder.layer.1"],
    "swin": [f"encoder.layers.{name}" for name in ("0.blocks.0", "0.blocks.1", "1.blocks.0")],
    "t5": ["encoder.block.0", "decoder.block.0"],
    "gpt2": ["h.0", "h.1"],
    "mistral": ["layers.0", "layers.1"],
}


@pytest.mark.parametrize("family", BLOCKS)
def test_sigma_of_blocks(family):
    model, inputs = tiny_model(family), inputs_of(family)
    table = measure(model, **inputs, tol=1e-10, scope="block")
    assert list(dict.fromkeys(table["layer"])) == BLOCKS[family]
    check(table, model, inputs)


FIRST = {"bert": "encoder.layer.0", "albert": ALBERT, "t5": "encoder.block.0", "vit": "layers.0"}


@pytest.mark.parametrize("family", FIRST)
def test_sigma_of_the_whole_model(family):
    model, inputs = tiny_model(family), inputs_of(family)
    table = measure(model, **inputs, tol=1e-10, scope="model")
    assert table["layer"][0] == type(model).__name__
    assert table["varied"][0] == f"what enters {FIRST[family]}"
    check(table, model, inputs, first=FIRST[family], until="")


@pytest.mark.parametrize("kernel", ("eager", "sdpa"))
@pytest.mark.parametrize("family", ("bert", "gpt2", "llama"))
def test_padded_batches_are_measured_as_the_model_runs_them(family, kernel):
    model, inputs = tiny_model(family, kernel), inputs_of(family)
    without = measure(model, **inputs, tol=1e-10)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, 3:] = 0
    table = measure(model, **inputs, tol=1e-10)
    check(table, model, inputs)
    moved = (table["sigma"] - without["sigma"]).abs() / without["sigma"]
    assert moved[table["sequence"] == 0].max() < 1e-6 and moved[table["sequence"] == 1].min() > 1e-3


@pytest.mark.parametrize("family", ("llama", "gpt2", "gemma3", "opt", "bloom"))
def test_left_padding_as_eager_attention_runs_it(family):
    """Rows that see no key give the mean of all values, whatever the scores are."""
    model, inputs = tiny_model(family).float(), inputs_of(family)
    inputs["attention_mask"] = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    table = measure(model, **inputs, layers=0, tol=1e-6)
    fn = capture(model, table["layer"][0], **inputs)[0].double()
    for i, (sigma, note) in enumerate(zip(table["sigma"], table["note"], strict=True)):
        one = fn.of_member(i)
        steps = 1e-3 * torch.eye(one.X.numel(), dtype=one.X.dtype).reshape(-1, *one.X.shape)
        with torch.no_grad():
            J = torch.stack([(one(one.X + H) - one(one.X - H)).flatten() / 2e-3 for H in steps])
        assert sigma == pytest.approx(torch.linalg.matrix_norm(J, 2).item(), rel=1e-3)
        assert "row 0 of sequence 1 sees no key" in note
