"""Constants of some of the outputs, and of the one that moves most, against dense Jacobians."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lipcore import Attention, AutogradJacobian, local_lipschitz, measure, spectral_norm
from lipcore.lipschitz import check_outputs, select_outputs

N, D, P = 5, 4, 3


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def whole_layer() -> Attention:
    parts = (drawn(2, 2, D, seed=1), drawn(2, 2, D, seed=2), drawn(2, 3, D, seed=3))
    return Attention(*parts, output=drawn(P, 6, seed=4), causal=True)


def narrow_head() -> Attention:
    parts = (drawn(1, 1, 12, seed=1), drawn(1, 1, 12, seed=2), drawn(1, 2, 12, seed=3))
    head = Attention(*parts, output=drawn(10, 2, seed=4))
    assert head.is_narrow
    return head


def callable_map(X: torch.Tensor) -> torch.Tensor:
    """Tokens of another width, and one output less than there are inputs."""
    return torch.sin(X[..., 1:, :] * X[..., :1, :]) @ drawn(D, P, seed=6)


CASES = {
    "layer": (whole_layer(), drawn(2, N, D)),
    "head": (narrow_head(), drawn(2, N, 12)),
    "callable": (callable_map, drawn(2, N, D)),
    "one input": (callable_map, drawn(N, D)),
}


def dense_rows(f, X: torch.Tensor) -> torch.Tensor:
    """The Jacobian of one input as matrices, one for each output token: (m, p, n·d)."""
    J = torch.autograd.functional.jacobian(f, X)
    return J.flatten(-2)


def members(X: torch.Tensor) -> torch.Tensor:
    return X.reshape(-1, *X.shape[-2:])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [None, 0, -1, 2, slice(1, None, 2), slice(-2, None)])
def test_some_outputs_are_those_rows_of_the_dense_jacobian(name, tokens):
    f, X = CASES[name]
    found = local_lipschitz(f, X, tokens=tokens, tol=1e-8)
    for i, x in enumerate(members(X)):
        rows = dense_rows(f, x)
        kept = rows if tokens is None else rows[tokens].reshape(-1, *rows.shape[1:])
        truth = torch.linalg.matrix_norm(kept.flatten(0, 1), 2)
        assert found.value.reshape(-1)[i] == pytest.approx(truth.item(), rel=1e-9)
        assert found.upper.reshape(-1)[i] >= truth * (1 - 1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [None, -1, slice(1, 3)])
def test_the_output_that_moves_most(name, tokens):
    f, X = CASES[name]
    found = local_lipschitz(f, X, norm="token", tokens=tokens, tol=1e-8)
    for i, x in enumerate(members(X)):
        rows = dense_rows(f, x)
        kept = rows if tokens is None else rows[tokens].reshape(-1, *rows.shape[1:])
        truth = torch.linalg.matrix_norm(kept, 2).max()
        one = found if X.ndim == 2 else found[i]
        assert one.value == pytest.approx(truth.item(), rel=1e-9)
        assert one.lower <= truth * (1 + 1e-12)
        assert one.upper >= truth * (1 - 1e-12)
        most = one.left.norm(dim=-1).argmax()
        moved = rows[most] @ one.right.flatten()
        assert moved.norm() == pytest.approx(truth.item(), rel=1e-6)
        assert one.left.norm(dim=-1).sum() == pytest.approx(1, rel=1e-9), "no other token"


def test_every_output_alone_explains_the_largest():
    f, X = CASES["layer"]
    single = [local_lipschitz(f, X, tokens=i, tol=1e-8) for i in range(N)]
    found = local_lipschitz(f, X, norm="token", tol=1e-8)
    assert torch.allclose(found.value, torch.stack([r.value for r in single]).amax(0), rtol=1e-9)
    whole = local_lipschitz(f, X, tol=1e-8).value
    assert (whole / N**0.5 <= found.value).all() and (found.value <= whole).all()


def test_brackets_hold_together_with_the_probability_asked_for(monkeypatch):
    """Each of m tokens is asked to fail m times less often."""
    asked = []

    def kept(J, **options):
        asked.append(options["probability"])
        return spectral_norm(J, **options)

    monkeypatch.setattr("lipcore.lipschitz.spectral_norm", kept)
    f, X = CASES["layer"]
    found = local_lipschitz(f, X, norm="token", probability=0.9)
    assert asked == pytest.approx([1 - 0.1 / N] * N)
    assert found.probability == 0.9
    asked.clear()
    assert local_lipschitz(f, X, norm="token", probability=None).probability is None
    assert asked == [None] * N


@pytest.mark.parametrize("open_at", [0, 1])
def test_a_bracket_is_that_of_the_worst_of_all_tokens(open_at, monkeypatch):
    """The token with the smaller σ may have the larger upper end, and be the one that goes on."""
    scale = torch.tensor([[1.0], [2.0]] if open_at == 0 else [[2.0], [1.0]])
    J = AutogradJacobian(lambda X: scale * X.sum(-2, keepdim=True), torch.zeros(1, 1))

    def measured(one, **options):
        found = spectral_norm(one, **options)
        if found.value > 1.5:
            return found
        return replace(found, upper=found.upper + 2, converged=torch.tensor(False))

    monkeypatch.setattr("lipcore.lipschitz.spectral_norm", measured)
    found = local_lipschitz(
        lambda X: scale * X.sum(-2, keepdim=True), torch.zeros(1, 1), norm="token"
    )
    assert float(found) == pytest.approx(2) and float(found.upper) == pytest.approx(3, rel=1e-2)
    assert not found.converged
    alone = [measured(select_outputs(J, i), probability=found.probability) for i in (0, 1)]
    assert found.iterations == sum(r.iterations for r in alone)


def test_a_bound_from_elsewhere():
    f, X = CASES["layer"]
    found = local_lipschitz(f, X, norm="token", upper_bound=1e3)
    assert found.probability == 1.0
    assert (found.upper == 1e3).all()


def test_some_outputs_is_an_operator_with_its_transpose():
    f, X = CASES["callable"]
    J = select_outputs(AutogradJacobian(f, X), slice(1, 3))
    H, G = drawn(*X.shape, seed=8), drawn(2, N - 1, P, seed=9)
    before = G.clone()
    forth = (J.matvec(H) * G).sum((-2, -1))
    assert torch.allclose(forth, (J.rmatvec(G) * H).sum((-2, -1)), rtol=1e-12)
    assert torch.equal(G, before)
    assert J.matvec(H)[:, [0, 3]].abs().max() == 0


@pytest.mark.parametrize("tokens", [-1, slice(0, 2)])
def test_gradient_of_some_outputs(tokens):
    f, X = CASES["layer"]
    X = X[0].clone().requires_grad_()
    found = local_lipschitz(f, X, tokens=tokens, differentiable=True, tol=1e-6)
    (gradient,) = torch.autograd.grad(found.value, X)
    H = drawn(N, D, seed=5)
    step = 1e-5
    ends = [local_lipschitz(f, (X + s * step * H).detach(), tokens=tokens, tol=1e-12).value
            for s in (1, -1)]  # fmt: skip
    slope = (ends[0] - ends[1]) / (2 * step)
    assert (gradient * H).sum().item() == pytest.approx(slope.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"norm": "infinity"}, ValueError, "^norm: "),
        ({"norm": None}, ValueError, "^norm: "),
        ({"tokens": N}, ValueError, "^tokens: "),
        ({"tokens": -N - 1}, ValueError, "^tokens: "),
        ({"tokens": slice(7, 9)}, ValueError, "^tokens: "),
        ({"tokens": 1.0}, TypeError, "^tokens: "),
        ({"tokens": True}, TypeError, "^tokens: "),
        ({"norm": "token", "probability": 2}, ValueError, "^probability: "),
        ({"norm": "token", "differentiable": True}, ValueError, "^norm: "),
    ],
)
def test_bad_input(options, error, message):
    with pytest.raises(error, match=message):
        local_lipschitz(whole_layer(), drawn(N, D), **options)


def test_an_output_without_tokens():
    with pytest.raises(ValueError, match="tokens"):
        local_lipschitz(lambda X: X.sum(-2), drawn(N, D), tokens=0)


def test_numbers_that_are_indices():
    J = AutogradJacobian(torch.sin, drawn(N, D))
    assert check_outputs(J, torch.tensor(3)) == slice(3, 4)


def test_measure_passes_them_on():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    X = drawn(1, N, 8)
    rows = dense_rows(lambda x: model(x[None])[0], X[0])
    last = measure(model, X, scope="model", tokens=-1)["sigma"][0]
    assert last == pytest.approx(torch.linalg.matrix_norm(rows[-1], 2).item(), rel=1e-4)
    most = measure(model, X, scope="model", norm="token")["sigma"][0]
    assert most == pytest.approx(torch.linalg.matrix_norm(rows, 2).max().item(), rel=1e-4)
    with pytest.raises(ValueError, match=r"^norm: "):
        measure(model, X, norm="2")
