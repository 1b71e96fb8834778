"""σ as a differentiable function, against differences of its values."""

import pytest
import torch
from torch import nn

from lipcore import Attention, local_lipschitz
from seeded import drawn

STEP = 1e-5


def weighted(make):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return make().double().eval()


def block():
    return weighted(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))


def layer():
    parts = [nn.Parameter(drawn(2, 3, 4, seed=i)) for i in range(3)]
    return Attention(*parts), parts


def sequences_first():
    m = weighted(lambda: nn.MultiheadAttention(4, 2))
    return (lambda X: m(X, X, X, need_weights=False)[0]), [*m.parameters()]


def in_place(X):
    h = X @ drawn(4, 4)
    h += X
    return h.tanh()


CASES = {
    "block": lambda: ((b := block()), list(b.parameters()), {}),
    "attention": lambda: (*layer(), {}),
    "the last output": lambda: (*layer(), {"tokens": -1}),
    "some outputs": lambda: (*layer(), {"tokens": slice(0, 2)}),
    "of the memory": lambda: (layer()[0].cross(queries=drawn(3, 2, 4)), [], {}),
    "batch in the middle": lambda: (*sequences_first(), {"layout": "LNE"}),
    "in place": lambda: (in_place, [], {}),
    "whole batch as one input": lambda: (lambda X: (X * X.mean(0)).sin(), [], {"event_dims": 3}),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_differences(name):
    fn, parameters, options = CASES[name]()
    X = drawn(3, 5, 4, seed=9).requires_grad_()
    tensors = [X, *parameters]
    found = local_lipschitz(fn, X, differentiable=True, tol=1e-6, **options)
    plain = local_lipschitz(fn, X, tol=1e-10, **options)
    torch.testing.assert_close(found.value.detach(), plain.value)
    gradients = torch.autograd.grad(found.value.sum(), tensors, allow_unused=True)
    assert all(parameter.grad is None for parameter in tensors)

    @torch.no_grad()
    def moved(tensor, H):
        tensor += H
        sigma = local_lipschitz(fn, X, tol=1e-13, **options).value.sum().item()
        tensor -= H
        return sigma

    for i, (tensor, gradient) in enumerate(zip(tensors, gradients, strict=True)):
        H = STEP * drawn(*tensor.shape, seed=20 + i)
        difference = (moved(tensor, H) - moved(tensor, -H)) / (2 * STEP)
        slope = 0.0 if gradient is None else (gradient * H).sum().item() / STEP
        assert slope == pytest.approx(difference, rel=1e-4, abs=1e-6), i


def test_members_have_gradients_of_their_own():
    X = drawn(3, 5, 4, seed=2).requires_grad_()
    found = local_lipschitz(block(), X, differentiable=True)
    (gradient,) = torch.autograd.grad(found.value[1], X)
    assert bool(gradient[1].any()) and not bool(gradient[[0, 2]].any())


def test_a_crossing_is_said():
    """x ↦ (2a, 2b): both singular values are 2. Where they are 1 and 2, nothing is said."""
    with pytest.warns(UserWarning, match=r"members \[0\]"):
        local_lipschitz(lambda X: 2 * X, drawn(2, 3), differentiable=True)
    scales = torch.tensor([1.0, 2.0]).double()
    found = local_lipschitz(lambda X: X * scales, drawn(3, 1, 2), differentiable=True)
    assert found.value.tolist() == pytest.approx([2, 2, 2]) and bool(found.converged.all())


def test_attribution_of_a_differentiable_result():
    found = local_lipschitz(layer()[0], drawn(5, 4), differentiable=True)
    torch.testing.assert_close(found.by_term().sum(-1), found.value.detach(), rtol=1e-6, atol=0)


class Cube(torch.autograd.Function):
    """x³ with a right derivative, through which nothing more can be differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.slope = 3 * x**2
        return x**3

    @staticmethod
    def backward(ctx, g):
        return ctx.slope * g


def test_a_derivative_that_has_none_is_refused():
    with pytest.raises(ValueError, match="differentiated twice"):
        local_lipschitz(lambda X: Cube.apply(X) + X.sin(), drawn(2, 2), differentiable=True)


def test_a_function_that_takes_float32_alone():
    linear = nn.Linear(4, 4)
    r = local_lipschitz(lambda X: linear(X).tanh(), drawn(3, 4).float(), differentiable=True)
    assert r.value.requires_grad and r.remark


def test_a_subclass_of_attention_is_what_it_does():
    class Residual(Attention):
        def __call__(self, X):
            return X + super().__call__(X)

    f, X = Residual.from_matrices(drawn(3, 3), drawn(3, 3, seed=1)), drawn(4, 3, seed=2)
    J = torch.autograd.functional.jacobian(f, X).reshape(12, 12)
    r = local_lipschitz(f, X)
    assert r.lower <= torch.linalg.matrix_norm(J, 2) <= r.upper
