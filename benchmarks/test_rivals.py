"""Ten MiniLM sequences a length, layer 3: lipcore against what a user would otherwise write.

Every benchmark checks its own answer against a converged float64 value, and reports its error.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scipy.sparse.linalg import LinearOperator, svds

from benchmarks.cases import LENGTHS, SEQUENCES, converged, minilm, relative_error
from lipcore import AutogradJacobian, local_lipschitz

lengths = pytest.mark.parametrize("n", LENGTHS, ids=lambda n: f"n{n}")


def _report(benchmark, n: int, values: torch.Tensor, allowed: float, **more) -> None:
    """Note size and error; ``values`` may be of the first few sequences only."""
    error = relative_error(values, converged(n)[: len(values)])
    benchmark.extra_info |= {"n": n, "sequences": len(values), "error": error} | more
    assert error <= allowed


@lengths
def test_lipcore(benchmark, n):
    """Lanczos on the Jacobian in three terms."""
    found = benchmark.pedantic(local_lipschitz, minilm(n), rounds=max(5, 640 // n), warmup_rounds=2)
    _report(benchmark, n, found.value, 1e-4, iterations=found.iterations.double().mean().item())


@lengths
def test_lipcore_in_double_precision(benchmark, n):
    """The same in float64, to ten digits."""
    attention, X = minilm(n)
    run = (attention.to(torch.float64), X.double())
    found = benchmark.pedantic(local_lipschitz, run, {"tol": 1e-10}, rounds=2)
    _report(benchmark, n, found.value, 1e-10, iterations=found.iterations.double().mean().item())


@lengths
def test_lanczos_on_autodiff(benchmark, n):
    """The same Lanczos on products by autodiff: what the three terms alone bring."""
    attention, X = minilm(n)
    found = benchmark.pedantic(local_lipschitz, (lambda Y: attention(Y), X), rounds=2)
    _report(benchmark, n, found.value, 1e-4)


@lengths
def test_lipcore_without_certificate(benchmark, n):
    """The same iteration, stopped by its own estimate of the error."""
    attention, X = minilm(n)
    run = benchmark.pedantic
    rounds = max(5, 640 // n)
    found = run(
        local_lipschitz, (attention, X), {"probability": None}, rounds=rounds, warmup_rounds=2
    )
    _report(benchmark, n, found.value, 1e-3, iterations=found.iterations.double().mean().item())


@lengths
def test_power_iteration(benchmark, n):
    """The paper's method with the tangent: at most 100 iterations, threshold 1e-4 on the quotient."""
    attention, X = minilm(n)

    def run() -> torch.Tensor:
        return torch.stack([_power_iteration(attention, x, _stands_still()) for x in X])

    found = benchmark.pedantic(run, rounds=1)
    _report(benchmark, n, found, 0.2)  # the threshold says little about the error


@lengths
def test_power_iteration_with_an_oracle(benchmark, n):
    """The same, told the true constant and stopped at a relative error of 1e-4.

    No rule that does not know the answer can stop earlier with that accuracy.
    """
    attention, X = minilm(n)
    exact = converged(n)

    def run() -> torch.Tensor:
        found = [
            _power_iteration(attention, x, _is_near(sigma), most=100_000)
            for x, sigma in zip(X, exact.tolist(), strict=True)
        ]
        return torch.stack(found)

    _report(benchmark, n, benchmark.pedantic(run, rounds=1), 1.1e-4)


def _stands_still() -> Callable[[float], bool]:
    """Whether the quotient moved by less than 1e-4 since it was last asked about."""
    before = [0.0]

    def stop(quotient: float) -> bool:
        moved = abs(quotient - before[0])
        before[0] = quotient
        return moved < 1e-4

    return stop


def _is_near(sigma: float) -> Callable[[float], bool]:
    return lambda quotient: abs(quotient**0.5 - sigma) <= 1e-4 * sigma


def _power_iteration(
    f, x: torch.Tensor, stop: Callable[[float], bool], most: int = 100
) -> torch.Tensor:
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    for _ in range(most):
        u = u / u.norm()
        push = torch.func.jvp(f, (x,), (u,))[1]
        pull = torch.func.vjp(f, x)[1](push)[0]
        quotient = (u * pull).sum()
        if stop(quotient.item()):
            break
        u = pull
    return quotient.sqrt()


@lengths
def test_svds(benchmark, n):
    """SciPy's svds on products by autodiff; fewer sequences where they are long."""
    attention, X = minilm(n)
    count = min(SEQUENCES, 256 // n)
    found = benchmark.pedantic(
        lambda: torch.tensor([_svds(attention, x) for x in X[:count]]), rounds=1
    )
    _report(benchmark, n, found, 1e-3)


def _svds(f, x: torch.Tensor) -> float:
    J = AutogradJacobian(lambda X: f(X), x)

    def product(apply):
        return lambda v: apply(torch.as_tensor(v, dtype=x.dtype).reshape(x.shape)).flatten().numpy()

    operator = LinearOperator(
        J.shape, matvec=product(J.matvec), rmatvec=product(J.rmatvec), dtype="float32"
    )
    return float(svds(operator, k=1, return_singular_vectors=False, random_state=0)[0])


@pytest.mark.parametrize("n", [8], ids=["n8"])
def test_dense(benchmark, n):
    """The whole Jacobian by reverse mode, then its singular values; one sequence of the ten."""
    attention, X = minilm(n)

    def run() -> torch.Tensor:
        J = torch.func.jacrev(attention)(X[0])
        return torch.linalg.matrix_norm(J.reshape(X[0].numel(), -1), 2)[None]

    _report(benchmark, n, benchmark.pedantic(run, rounds=1), 1e-4)
