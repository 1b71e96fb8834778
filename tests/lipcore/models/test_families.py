"""Every family of transformers: σ of each attention module against a dense Jacobian of the model."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

pytest.importorskip("transformers", reason="needs lipcore[models]")

from tiny_models import CONFIGS, EAGER_ONLY, RUNS, inputs_of, tiny_model

from lipcore import measure


def dense(model, name, inputs):
    """Jacobians (members, rows, columns) of a module inside the running model, by reverse mode.

    The tokens that enter the module are made a leaf of the graph while the model runs: nothing is
    taken out of it and called on its own.
    """
    name, _, turn = name.partition("#")
    runs = []

    def enter(module, args, kwargs):
        X = (args[0] if args else kwargs["hidden_states"]).detach().requires_grad_()
        runs.append([X])
        return ((X, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": X})

    def leave(module, args, kwargs, output):
        runs[-1].append(output if isinstance(output, torch.Tensor) else output[0])

    module = model.get_submodule(name)
    hooks = [
        module.register_forward_pre_hook(enter, with_kwargs=True),
        module.register_forward_hook(leave, with_kwargs=True),
    ]
    with sdpa_kernel(SDPBackend.MATH):
        model(**inputs)
        for hook in hooks:
            hook.remove()
        X, Y = runs[int(turn or 0)]
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
        rows = [row for row in table if row["layer"] == name]
        truth = torch.linalg.matrix_norm(dense(model, name, inputs), 2)
        sigma = torch.tensor([row["sigma"] for row in rows], dtype=torch.float64)
        torch.testing.assert_close(sigma, truth, rtol=1e-6, atol=0)
        assert all(row["lower"] <= t * (1 + 1e-6) and t <= row["upper"] * (1 + 1e-6)
                   for row, t in zip(rows, truth.tolist(), strict=True))  # fmt: skip
        assert all(row["converged"] for row in rows)
