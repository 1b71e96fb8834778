"""Constants of some of the outputs, and of the one that moves most, against dense Jacobians."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lipcore import Attention, AutogradJacobian, local_lipschitz, measure, spectral_norm
from lipcore.lipschitz import select_outputs
from seeded import drawn

N, D, P = 5, 4, 3


def made(heads, k, d, p, q, **options) -> Attention:
    parts = (drawn(heads, size, d, seed=i) for i, size in enumerate((k, k, p)))
    return Attention(*parts, output=drawn(q, heads * p, seed=4), **options)


def callable_map(X: torch.Tensor) -> torch.Tensor:
    """Tokens of another width, and one output less than there are inputs."""
    return torch.sin(X[..., 1:, :] * X[..., :1, :]) @ drawn(D, P, seed=6)


CASES = {
    "layer": (made(2, 2, D, 3, P, causal=True), drawn(2, N, D)),
    "narrow head": (made(1, 1, 12, 2, 10), drawn(2, N, 12)),
    "callable": (callable_map, drawn(2, N, D)),
    "one input": (callable_map, drawn(N, D)),
}


def dense_rows(f, x: torch.Tensor, tokens=None) -> torch.Tensor:
    """The Jacobian of one input as matrices, one for each output token: (m, p, n·d)."""
    rows = torch.autograd.functional.jacobian(f, x).flatten(-2)
    return rows if tokens is None else rows[tokens].reshape(-1, *rows.shape[1:])


def members(X: torch.Tensor) -> torch.Tensor:
    return X.reshape(-1, *X.shape[-2:])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [None, 0, -1, 2, slice(1, None, 2), slice(-2, None)])
def test_some_outputs_are_those_rows_of_the_dense_jacobian(name, tokens):
    f, X = CASES[name]
    found = local_lipschitz(f, X, tokens=tokens, tol=1e-8)
    rows = torch.stack([dense_rows(f, x, tokens).flatten(0, 1) for x in members(X)])
    truth = torch.linalg.matrix_norm(rows, 2).reshape(found.value.shape)
    torch.testing.assert_close(found.value, truth, rtol=1e-9, atol=0)
    assert bool((found.upper >= truth * (1 - 1e-12)).all())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [None, -1, slice(1, 3)])
def test_the_output_that_moves_most(name, tokens):
    f, X = CASES[name]
    found = local_lipschitz(f, X, norm="token", tokens=tokens, tol=1e-8)
    for one, x in zip([found] if X.ndim == 2 else found, members(X), strict=True):
        truth = torch.linalg.matrix_norm(dense_rows(f, x, tokens), 2).max().item()
        assert one.value == pytest.approx(truth, rel=1e-9)
        assert one.lower <= truth * (1 + 1e-12) and one.upper >= truth * (1 - 1e-12)
        lengths = one.left.norm(dim=-1)
        assert lengths.sum() == pytest.approx(1, rel=1e-9), "no other token"
        moved = dense_rows(f, x)[lengths.argmax()] @ one.right.flatten()
        assert moved.norm() == pytest.approx(truth, rel=1e-6)
    bounded = local_lipschitz(f, X, norm="token", tokens=tokens, upper_bound=1e3)
    assert bounded.probability == 1.0 and bool((bounded.upper == 1e3).all())


@pytest.mark.parametrize("probability", [0.9, None])
def test_the_bracket_of_the_worst_token_has_the_probability_asked_for(probability, monkeypatch):
    """Others can only raise the upper end, so that no more is asked of each."""
    asked = []

    def noted(J, **options):
        asked.append(options["probability"])
        return spectral_norm(J, **options)

    monkeypatch.setattr("lipcore.lipschitz.spectral_norm", noted)
    f, X = CASES["layer"]
    found = local_lipschitz(f, X, norm="token", probability=probability)
    assert asked == [probability] * N and found.probability == probability


@pytest.mark.parametrize("open_at", [0, 1])
def test_a_bracket_is_that_of_the_worst_of_all_tokens(open_at, monkeypatch):
    """The token with the smaller σ may have the larger upper end, and be the one that goes on."""
    scale = torch.tensor([[1.0], [2.0]] if open_at == 0 else [[2.0], [1.0]])

    def f(X):
        return scale * X.sum(-2, keepdim=True)

    def measured(one, **options):
        found = spectral_norm(one, **options)
        if found.value > 1.5:
            return found
        return replace(found, upper=found.upper + 2, converged=torch.tensor(False))

    monkeypatch.setattr("lipcore.lipschitz.spectral_norm", measured)
    X = torch.zeros(1, 1)
    found = local_lipschitz(f, X, norm="token")
    assert float(found) == pytest.approx(2) and float(found.upper) == pytest.approx(3, rel=1e-2)
    J = AutogradJacobian(f, X)
    alone = [measured(select_outputs(J, i), probability=found.probability) for i in (0, 1)]
    assert not found.converged and found.iterations == sum(r.iterations for r in alone)


def no_tokens(X):
    return X.sum(-2)


BAD = [
    {"norm": "infinity"}, {"norm": None}, {"norm": "token", "differentiable": True},
    {"tokens": N}, {"tokens": -N - 1}, {"tokens": slice(7, 9)}, {"tokens": 1.0}, {"tokens": True},
    {"tokens": 0, "f": no_tokens}, {"probability": 2, "norm": "token"},
]  # fmt: skip


@pytest.mark.parametrize("options", BAD, ids=", ".join)
def test_bad_input(options):
    options = {"f": made(2, 2, D, 3, P)} | options
    with pytest.raises((ValueError, TypeError), match=rf"^{[*options][1]}\b"):
        local_lipschitz(options.pop("f"), drawn(N, D), **options)


def test_measure_passes_them_on():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    X = drawn(1, N, 8)
    norms = torch.linalg.matrix_norm(dense_rows(lambda x: model(x[None])[0], X[0]), 2)
    last = measure(model, X, scope="model", tokens=torch.tensor(-1))["sigma"][0]
    assert last == pytest.approx(norms[-1].item(), rel=1e-4)
    most = measure(model, X, scope="model", norm="token")["sigma"][0]
    assert most == pytest.approx(norms.max().item(), rel=1e-4)
    with pytest.raises(ValueError, match=r"^norm: "):
        measure(model, X, norm="2")
