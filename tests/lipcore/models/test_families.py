"""Every family of transformers: σ of each attention module against a dense Jacobian of the model."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

pytest.importorskip("transformers", reason="needs lipcore[models]")

from lipcore import measure
from tiny_models import CONFIGS, EAGER_ONLY, RUNS, inputs_of, tiny_model


def first_tensor(output):
    if isinstance(output, torch.Tensor):
        return output
    return next(iter(output.values())) if isinstance(output, dict) else output[0]


def dense(model, name, inputs, until=None):
    """Jacobians (members, rows, columns) of a module inside the running model, by reverse mode.

    The tokens that enter the module are made a leaf of the graph while the model runs: nothing is
    taken out of it and called on its own. With ``until``, up to what that module puts out.
    """
    name, _, turn = name.partition("#")
    entered = []
    left = []

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
        X = entered[int(turn or 0)]
        Y = left[int(turn or 0)]
        basis = torch.eye(Y.numel(), dtype=Y.dtype).reshape(-1, *Y.shape)
        rows = [torch.autograd.grad(Y, X, e, retain_graph=True)[0] for e in basis]
    J = torch.stack(rows).reshape(len(Y), -1, len(X), X[0].numel())
    own = torch.stack([J[i, :, i] for i in range(len(X))])
    torch.testing.assert_close(J.square().sum(), own.square().sum())  # members are independent
    return own


def kernels():
    for family in CONFIGS:
        yield family, "eager"
        if family not in EAGER_ONLY:
            yield family, "sdpa"


@pytest.mark.parametrize(("family", "kernel"), list(kernels()))
def test_sigma_of_every_attention_module(family, kernel):
    model = tiny_model(family, kernel)
    inputs = inputs_of(family)
    table = measure(model, **inputs, tol=1e-10)
    names = list(dict.fromkeys(table["layer"]))
    assert len(names) == RUNS[family]
    for name in names:
        check(table[table["layer"] == name], dense(model, name, inputs))


def check(rows, jacobians):
    """Rows of a table against the truth, one for each member."""
    truth = torch.linalg.matrix_norm(jacobians, 2)
    columns = {name: torch.tensor(rows[name].tolist(), dtype=truth.dtype)
               for name in ("sigma", "lower", "upper", "converged")}  # fmt: skip
    torch.testing.assert_close(columns["sigma"], truth, rtol=1e-6, atol=0)
    assert bool((columns["lower"] <= truth * (1 + 1e-6)).all())
    assert bool((truth <= columns["upper"] * (1 + 1e-6)).all())
    assert bool(columns["converged"].all())


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
    model = tiny_model(family)
    inputs = inputs_of(family)
    table = measure(model, **inputs, tol=1e-10, scope="block")
    assert list(dict.fromkeys(table["layer"])) == BLOCKS[family]
    for name in dict.fromkeys(table["layer"]):
        check(table[table["layer"] == name], dense(model, name, inputs))


@pytest.mark.parametrize(
    ("family", "first"),
    (
        ("bert", "encoder.layer.0"),
        ("albert", "encoder.albert_layer_groups.0.albert_layers.0"),
        ("t5", "encoder.block.0"),
        ("vit", "layers.0"),
    ),
)
def test_sigma_of_the_whole_model(family, first):
    model = tiny_model(family)
    inputs = inputs_of(family)
    table = measure(model, **inputs, tol=1e-10, scope="model")
    assert table["note"][0] == f"last_hidden_state as a map of what enters {first}"
    check(table, dense(model, first, inputs, until=""))


@pytest.mark.parametrize("kernel", ("eager", "sdpa"))
@pytest.mark.parametrize("family", ("bert", "gpt2", "llama"))
def test_padded_batches_are_measured_as_the_model_runs_them(family, kernel):
    model = tiny_model(family, kernel)
    inputs = inputs_of(family)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, 3:] = 0
    table = measure(model, **inputs, attention_mask=mask, tol=1e-10)
    for name in dict.fromkeys(table["layer"]):
        rows = table[table["layer"] == name]
        check(rows, dense(model, name, inputs | {"attention_mask": mask}))
    without = measure(model, **inputs, tol=1e-10)
    pairs = list(zip(table["sequence"], table["sigma"], without["sigma"], strict=True))
    assert all(a == pytest.approx(b, rel=1e-6) for member, a, b in pairs if member == 0)
    assert all(abs(a - b) > 1e-3 * b for member, a, b in pairs if member == 1)
