"""Ten MiniLM sequences a length, layer 3: lipcore against what a user would otherwise write.

Run with ``make bench``. Every benchmark checks its own answer against a converged float64 value.
"""

from __future__ import annotations

import functools

import pytest
import torch
from scipy.sparse.linalg import LinearOperator, svds

from lipcore import AutogradJacobian, local_lipschitz, models
from lipcore.texts import load_text, sequences

LENGTHS = (8, 32, 64, 128, 256)


@functools.cache
def _case(n: int):
    """Layer 3, what enters it, and the converged constants."""
    model = models.load("minilm")
    attention = model.attention(3)
    X = model.hidden_states(3, sequences(model, load_text("pydoc"), n, 10))
    exact = local_lipschitz(attention.to(torch.float64), X.double(), tol=1e-9).value
    return attention, X, exact


def _check(values: torch.Tensor, exact: torch.Tensor, tolerance: float) -> None:
    assert ((values.double() - exact).abs() <= tolerance * exact).all()


@pytest.mark.parametrize("n", LENGTHS)
def test_lipcore(benchmark, n):
    """Lanczos on the Jacobian in three terms."""
    attention, X, exact = _case(n)
    found = benchmark(local_lipschitz, attention, X)
    _check(found.value, exact, 1e-4)


@pytest.mark.parametrize("n", LENGTHS)
def test_lanczos_on_autodiff(benchmark, n):
    """The same Lanczos on products by autodiff: what the three terms alone bring."""
    attention, X, exact = _case(n)
    found = benchmark.pedantic(local_lipschitz, (lambda Y: attention(Y), X), rounds=1)
    _check(found.value, exact, 1e-4)


@pytest.mark.parametrize("n", LENGTHS)
def test_power_iteration_on_jvp_and_vjp(benchmark, n):
    """The paper's method with the tangent: at most 100 iterations, threshold 1e-4 on the Rayleigh quotient."""
    attention, X, exact = _case(n)

    def run() -> torch.Tensor:
        return torch.stack([_power_iteration(attention, x) for x in X])

    # the threshold says little about the error: only a rough answer is asked of this rival
    _check(benchmark.pedantic(run, rounds=1), exact, 0.2)


def _power_iteration(f, x: torch.Tensor) -> torch.Tensor:
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    before = torch.zeros(())
    for _ in range(100):
        u = u / u.norm()
        push = torch.func.jvp(f, (x,), (u,))[1]
        pull = torch.func.vjp(f, x)[1](push)[0]
        quotient = (u * pull).sum()
        if (quotient - before).abs() < 1e-4:
            break
        before, u = quotient, pull
    return quotient.sqrt()


@pytest.mark.parametrize("n", [8, 32])
def test_svds(benchmark, n):
    """SciPy's svds on products by autodiff."""
    attention, X, exact = _case(n)

    def run() -> torch.Tensor:
        return torch.tensor([_svds(attention, x) for x in X])

    _check(benchmark.pedantic(run, rounds=1), exact, 1e-3)


def _svds(f, x: torch.Tensor) -> float:
    J = AutogradJacobian(lambda X: f(X), x)

    def product(apply):
        return lambda v: apply(torch.as_tensor(v, dtype=x.dtype).reshape(x.shape)).flatten().numpy()

    operator = LinearOperator(J.shape, matvec=product(J.matvec), rmatvec=product(J.rmatvec), dtype="float32")
    return float(svds(operator, k=1, return_singular_vectors=False, random_state=0)[0])


@pytest.mark.parametrize("n", [8])
def test_dense(benchmark, n):
    """The whole Jacobian by reverse mode, then its singular values; one sequence of the ten."""
    attention, X, exact = _case(n)

    def run() -> torch.Tensor:
        J = torch.func.jacrev(attention)(X[0])
        return torch.linalg.matrix_norm(J.reshape(X[0].numel(), -1), 2)[None]

    _check(benchmark.pedantic(run, rounds=1), exact[:1], 1e-4)
