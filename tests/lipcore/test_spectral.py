"""Spectral norms against NumPy and SciPy, the certificate's coverage, and the degenerate cases."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import svds
from scipy.stats import binom

from lipcore import Attention, AutogradJacobian, local_lipschitz, spectral_norm
from lipcore.bounds import local_upper
from lipcore.bounds.causal import causal_average
from lipcore.operators import LinearOperator, MatrixOperator

METHODS = ["lanczos", "power"]


def orthogonal(generator, *batch, size):
    """Haar-distributed orthogonal matrices, (*batch, size, size)."""
    Q, R = torch.linalg.qr(
        torch.randn(*batch, size, size, generator=generator, dtype=torch.float64)
    )
    return Q * R.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


def with_spectrum(generator, spectrum, *batch, rows=None):
    """Random matrices (*batch, rows, N) with the given N singular values."""
    N = len(spectrum)
    rows = N if rows is None else rows
    left = orthogonal(generator, *batch, size=rows)[..., :N]
    return (
        left
        * torch.as_tensor(spectrum, dtype=torch.float64)
        @ orthogonal(generator, *batch, size=N)
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(7, 7), (3, 8), (8, 3), (1, 5), (5, 1), (1, 1), (4, 2, 6, 5)])
def test_agrees_with_numpy(randn, method, shape):
    M = randn(*shape)
    found = spectral_norm(
        M, method=method, tol=1e-13, max_iterations=None if method == "lanczos" else 5000
    )
    np.testing.assert_allclose(found.value, np.linalg.norm(M.numpy(), 2, axis=(-2, -1)), rtol=1e-10)
    assert found.value.shape == found.iterations.shape == found.converged.shape == shape[:-2]


def test_agrees_with_scipy(make_case):
    """Through products alone, on a Jacobian of 240 × 240."""
    case = make_case("biases, causal")
    X = torch.randn(60, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    J = case.attention.jacobian(X)
    expected = svds(J.dense().numpy(), k=1, return_singular_vectors=False, random_state=0)[0]
    assert spectral_norm(J, tol=1e-12).value.item() == pytest.approx(expected, rel=1e-11)


def test_agrees_with_dense_on_every_layer(every_case):
    case = every_case
    found = local_lipschitz(case.attention, case.X, tol=1e-12)
    expected = torch.linalg.matrix_norm(case.attention.jacobian(case.X).dense(), 2)
    torch.testing.assert_close(found.value, expected, rtol=1e-11, atol=0)
    assert bool((found.upper >= expected).all()) and bool(found.converged.all())


def test_singular_vectors_of_every_layer(every_case):
    case = every_case
    """They are those of the whole Jacobian, though a narrow head is measured in its own few dimensions."""
    found, J = local_lipschitz(case.attention, case.X, tol=1e-12), case.attention.jacobian(case.X)
    assert found.right.shape == case.X.shape and found.left.shape == (
        *case.X.shape[:-1],
        case.attention.output_dim,
    )
    torch.testing.assert_close(
        J.matvec(found.right), found.value[..., None, None] * found.left, rtol=0, atol=1e-10
    )
    torch.testing.assert_close(found.right.square().sum((-2, -1)), torch.ones_like(found.value))


@pytest.mark.parametrize("method", METHODS)
def test_singular_vectors(randn, method):
    M = randn(3, 6, 5)
    found = spectral_norm(M, method=method, tol=1e-12)
    u, v = found.left, found.right
    assert u.shape == (3, 6) and v.shape == (3, 5)
    torch.testing.assert_close(v.norm(dim=-1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(
        (M @ v[..., None])[..., 0], found.value[:, None] * u, rtol=0, atol=1e-9
    )
    torch.testing.assert_close(
        (M.mT @ u[..., None])[..., 0], found.value[:, None] * v, rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_residual_finds_a_singular_value(randn, method, steps):
    """Within ``residual`` of ``value`` lies some singular value, converged or not."""
    M = randn(50, 12, 12)
    found = spectral_norm(M, method=method, max_iterations=steps, tol=1e-12)
    distance = (torch.linalg.svdvals(M) - found.value[:, None]).abs().amin(-1)
    assert bool((distance <= found.residual * (1 + 1e-10)).all())
    assert bool((found.residual > 0).all()) and int(found.iterations.max()) == steps


@pytest.mark.parametrize("method", METHODS)
def test_value_is_a_lower_bound(randn, method):
    M = randn(300, 12, 12)
    truth = torch.linalg.matrix_norm(M, 2)
    for steps in (1, 2, 3, 5):
        found = spectral_norm(M, method=method, max_iterations=steps)
        assert bool((found.lower <= truth * (1 + 1e-14)).all()) and torch.equal(
            found.value, found.lower
        )


# --- the certificate ----------------------------------------------------------------------------------------

N, TRIALS, SIZE = 20, 3000, 7.0  # norms away from one, where every power of them is the same
_NODES = (
    1 + np.cos(np.pi * (2 * np.arange(1, N) - 1) / (2 * (N - 1)))
) / 2  # Chebyshev's, on [0, 1]

#: Spectra that are hard in different ways; the largest value is 1.
SPECTRA = {
    "rank one": [1.0] + [0.0] * (N - 1),
    "hidden by a plateau": [1.0] + [0.99] * (N - 1),
    "hidden by a low plateau": [1.0] + [0.5] * (N - 1),
    "two plateaus": [1.0] + [0.9] * 10 + [0.4] * (N - 11),
    "evenly spaced": np.linspace(1, 0, N),
    "geometric": 0.7 ** np.arange(N),
    "crowded at the top": 1 - np.linspace(0, 1, N) ** 2 / 10,
    "Chebyshev nodes below": np.concatenate([[1.0], np.sqrt(0.9 * _NODES)]),
    "random": np.sort(np.random.default_rng(0).uniform(size=N - 1)).tolist()[::-1],
}
SPECTRA["random"] = [1.0, *SPECTRA["random"]]


def misses(spectrum, *, method, steps, probability, seed=0):
    """How many of TRIALS random matrices with this spectrum, times SIZE, have their norm above ``upper``."""
    generator = torch.Generator().manual_seed(seed)
    M = SIZE * with_spectrum(generator, spectrum, TRIALS)  # turning the matrix is turning the start
    options = {"method": method, "max_iterations": steps, "tol": 1e-15, "generator": generator}
    found = spectral_norm(M, probability=probability, **options)
    assert found.probability == probability
    assert bool((found.lower <= SIZE * (1 + 1e-12)).all())
    return int((found.upper < SIZE * (1 - 1e-13)).sum())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [1, 2, 3, 6])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_upper_covers_the_truth(method, steps, spectrum):
    """The upper end misses at most as often as it says (one-sided binomial test at 10⁻⁶)."""
    failure = 0.1
    found = misses(SPECTRA[spectrum], method=method, steps=steps, probability=1 - failure)
    assert binom.sf(found - 1, TRIALS, failure) > 1e-6, (
        f"{found} of {TRIALS} missed, {failure:.0%} allowed"
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("failure", [0.3, 0.05, 0.01])
def test_certificate_is_not_conservative(method, failure):
    """After one step on a matrix of rank one it misses as often as it says (two-sided binomial test)."""
    found = misses(SPECTRA["rank one"], method=method, steps=1, probability=1 - failure, seed=5)
    assert 1e-5 < binom.cdf(found, TRIALS, failure) < 1 - 1e-5, (
        f"{found} of {TRIALS} missed, {failure:.0%} expected"
    )


def test_coverage_over_generators():
    """The same with one matrix and many seeds: the start is uniform on the sphere."""
    M, failure = torch.zeros(1, 6, dtype=torch.float64), 0.2
    M[0, 2] = 1.0
    missed = sum(
        spectral_norm(
            M,
            max_iterations=1,
            probability=1 - failure,
            generator=torch.Generator().manual_seed(seed),
        ).upper.item()
        < 1 - 1e-13
        for seed in range(500)
    )
    assert 1e-5 < binom.cdf(missed, 500, failure) < 1 - 1e-5


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_bracket_closes(generator, spectrum):
    """At the default tolerance and probability the bracket is narrow: √tol at most, as documented.

    The tolerance itself is met where the top of the spectrum is resolved, and to twenty times that where it
    is crowded.
    """
    found = spectral_norm(with_spectrum(generator, SPECTRA[spectrum], 200), tol=1e-4)
    assert bool(found.converged.all())
    assert bool((found.upper / found.lower <= 1.01 + 1e-9).all())
    assert bool((found.lower >= 1 - (2e-3 if spectrum == "crowded at the top" else 1e-4)).all())
    assert bool((found.upper >= 1).all())


def test_stop_is_no_later_than_documented(randn):
    """The certificate is asked for √tol and not for less, and that is enough for the value to be within tol."""
    M = randn(100, 60, 60)
    found = spectral_norm(M, tol=1e-4)
    exact = torch.linalg.matrix_norm(M, 2)
    assert bool(found.converged.all())
    assert 1.007 < (found.upper / found.lower).max() <= 1.01 + 1e-9
    assert bool((found.value >= exact * (1 - 1e-4)).all())


@pytest.mark.parametrize("tol", [0.05, 1e-2, 1e-4])
@pytest.mark.parametrize("method", METHODS)
def test_what_has_converged_has_a_narrow_bracket(randn, generator, method, tol):
    """A slow iteration stops on its estimate, and leaves the bracket open: that is not converged."""
    for M in (randn(20, 15, 15), 3.0 * orthogonal(generator, 20, size=40)):
        found = spectral_norm(M, method=method, tol=tol)
        narrow = found.upper <= (1 + math.sqrt(tol)) * found.lower * (1 + 1e-7)
        assert not bool((found.converged & ~narrow).any())
        assert bool(found.converged.all()) or method == "power"
        assert bool(spectral_norm(M, method=method, tol=tol, probability=None).converged.all())


def test_products_that_do_not_belong_together_are_no_operator(randn):
    """An upper end that the value does not confirm: J has changed between the calls."""

    class Fading(MatrixOperator):
        calls = 0

        def matvec(self, H):
            self.calls += 1
            return super().matvec(H) / (1000.0 if self.calls > 5 else 1)

    with pytest.raises(ValueError, match=r"^operator: "):
        spectral_norm(
            Fading(with_spectrum(torch.Generator().manual_seed(1), [3.0, 2.0, 1.0, 0.5, 0.2]))
        )


def test_more_probable_is_wider(randn):
    M = randn(30, 30)
    uppers = [
        spectral_norm(M, max_iterations=3, probability=p).upper.item()
        for p in (0.5, 0.9, 0.99, 0.999999)
    ]
    assert uppers == sorted(uppers) and len(set(uppers)) == 4


# --- scaling, degenerate spectra, batches -------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("factor", [1e-8, 1e-3, 1e3, 1e8])
def test_scaling(randn, method, dtype, factor):
    """σ(c·f) = c·σ(f), in as many iterations: tolerances are relative."""
    M = randn(3, 9, 7, dtype=dtype)
    one, scaled = spectral_norm(M, method=method), spectral_norm(factor * M, method=method)
    assert torch.equal(one.iterations, scaled.iterations)
    for name in ("value", "upper", "residual"):
        torch.testing.assert_close(
            getattr(scaled, name), factor * getattr(one, name), rtol=5e-3, atol=factor * 1e-5
        )
    torch.testing.assert_close(
        scaled.value, factor * one.value, rtol=50 * torch.finfo(dtype).eps, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("factor", [1e-8, 1e8])
def test_scaling_of_a_layer(make_case, dtype, factor):
    case = make_case("heads projected")
    attention, X = case.attention.to(dtype), case.X.to(dtype)
    scaled = Attention(
        attention.query, attention.key, factor * attention.value, output=attention.output
    )
    one, many = local_lipschitz(attention, X), local_lipschitz(scaled, X)
    torch.testing.assert_close(
        many.value, factor * one.value, rtol=50 * torch.finfo(dtype).eps, atol=0
    )
    assert torch.equal(one.iterations, many.iterations)


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_squares_may_overflow(randn, factor):
    M = randn(6, 5)
    assert spectral_norm(factor * M, tol=1e-10).value.item() == pytest.approx(
        factor * torch.linalg.matrix_norm(M, 2).item(), rel=1e-9
    )


def test_start_may_see_little():
    """‖J v_1‖ is a ten-millionth of σ_max, and t ≈ σ²: the square of t would overflow without a scale."""
    start = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    Q = torch.linalg.qr(torch.stack([start, *torch.eye(50, dtype=torch.float64)[:3]], dim=1)).Q[
        :, 1:
    ]
    M = 1e4 * torch.eye(50, dtype=torch.float64) + (Q * torch.tensor([1e11, 5e10, 2e10])) @ Q.T
    assert (M @ start).norm() < 1e-6 * start.norm() * torch.linalg.matrix_norm(M, 2)
    assert spectral_norm(M.float()).value.item() == pytest.approx(1e11, rel=1e-4)


@pytest.mark.parametrize("generator", [None, torch.Generator])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_start_is_not_the_tokens_whatever_drew_them(dtype, generator):
    """A map that is constant along X has X in its kernel: a start at X would see σ = 0."""
    for seed in range(3):
        source = torch.Generator().manual_seed(seed)
        X = torch.randn(32, 8, dtype=dtype, generator=source)
        option = {} if generator is None else {"generator": generator().manual_seed(seed)}
        found = local_lipschitz(lambda x: x / x.square().mean().sqrt(), X, tol=1e-8, **option)
        truth = 1 / X.square().mean().sqrt()  # (I − x xᵀ/|x|²)/rms
        assert found.value.item() == pytest.approx(truth.item(), rel=1e-4)


def test_estimate_of_the_error_is_sharp():
    """With one singular value at the angle φ to the start, θ = cos φ, and the estimate is tan²φ/2."""
    start = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = start / start.norm()
    aside = torch.eye(40, dtype=torch.float64)[0] - start[0] * start
    z = math.cos(0.1) * start + math.sin(0.1) * aside / aside.norm()
    error = 1 - math.cos(0.1)
    for tol, converged in ((0.97 * error, False), (1.03 * error, True)):
        option = {"max_iterations": 1, "probability": None, "tol": tol}
        found = spectral_norm(torch.outer(z, z), **option)
        assert found.value.item() > math.cos(0.1) * (1 - 1e-12)
        assert bool(found.converged) == converged


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero(method, dtype):
    found = spectral_norm(torch.zeros(2, 4, 3, dtype=dtype), method=method)
    for name in ("value", "lower", "upper", "residual"):
        assert torch.equal(getattr(found, name), torch.zeros(2, dtype=dtype)), name
    assert bool(found.converged.all()) and bool((found.iterations == 1).all())
    assert bool(torch.isfinite(found.left).all()) and bool(torch.isfinite(found.right).all())


@pytest.mark.parametrize("method", METHODS)
def test_zero_beside_others(randn, method):
    """A zero member does not spoil, and is not spoilt by, the rest of its batch."""
    M = randn(3, 6, 5)
    M[1] = 0
    found = spectral_norm(M, method=method, tol=1e-12)
    torch.testing.assert_close(found.value, torch.linalg.matrix_norm(M, 2), rtol=1e-9, atol=0)
    assert found.upper[1] == 0


@pytest.mark.parametrize("method", METHODS)
def test_zero_jacobian_of_a_layer(randn, method):
    attention = Attention.from_matrices(randn(3, 3), torch.zeros(2, 3, dtype=torch.float64))
    found = local_lipschitz(attention, randn(5, 3), method=method)
    assert found.value == found.upper == 0 and bool(found.converged)


@pytest.mark.parametrize("method", METHODS)
def test_one_token(randn, method):
    """With one token f is x ↦ Vx, whatever A."""
    V = randn(3, 4)
    found = local_lipschitz(
        Attention.from_matrices(randn(4, 4), V), randn(1, 4), method=method, tol=1e-12
    )
    assert found.value.item() == pytest.approx(torch.linalg.matrix_norm(V, 2).item(), rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_one_column(randn, method):
    """One input: the start is the singular vector, and the bracket has no width."""
    M = randn(5, 1)
    found = spectral_norm(M, method=method)
    assert found.value.item() == pytest.approx(M.norm().item(), rel=1e-14)
    assert found.upper.item() == pytest.approx(M.norm().item(), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_rank_two_in_five_hundred(randn, method, dtype):
    M = (randn(500, 2) @ randn(2, 500)).to(dtype)
    found = spectral_norm(M, method=method)
    truth = torch.linalg.matrix_norm(M.double(), 2).item()
    assert found.value.item() == pytest.approx(truth, rel=1e-4 if method == "lanczos" else 1e-3)
    assert found.lower.item() <= truth * (1 + 1e-5) and found.upper.item() >= truth * (1 - 1e-5)
    assert method == "power" or (bool(found.converged) and int(found.iterations) <= 4)


@pytest.mark.parametrize("rank", [1, 2, 4, 5, 7, 8, 10])
@pytest.mark.parametrize("tol", [1e-4, 1e-12])
def test_low_rank_is_found_out_at_once(generator, rank, tol):
    """The Krylov space ends after as many steps as there are values, and nobody waits for more."""
    spectrum = np.r_[np.linspace(1, 1 / rank, rank), np.zeros(500 - rank)]
    found = spectral_norm(with_spectrum(generator, spectrum), tol=tol)
    assert int(found.iterations) <= rank + 1
    assert found.value.item() == pytest.approx(1, rel=1e-12 if tol < 1e-4 else 1e-4)


def test_a_large_kernel_costs_nothing(generator):
    """100 values crowd at the top of 100 × 2000: Golub and Kahan's vectors u keep rounding out of the kernel."""
    tall = with_spectrum(generator, np.linspace(1, 0.95, 100), rows=2000).to(torch.float32)
    wide = spectral_norm(tall.T, tol=1e-4)
    in_double = spectral_norm(tall.T.double(), tol=1e-4)
    assert abs(int(wide.iterations) - int(in_double.iterations)) <= 1


@pytest.mark.parametrize("method", METHODS)
def test_equal_singular_values(generator, method):
    """An isometry: every start is a singular vector."""
    M = 3.0 * orthogonal(generator, size=40)
    found = spectral_norm(M, method=method, probability=0.999 if method == "lanczos" else None)
    assert found.value.item() == pytest.approx(3.0, rel=1e-13)
    assert bool(found.converged) and found.upper.item() >= 3.0


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-9])
def test_clustered_singular_values(generator, gap):
    """A cluster at the top is as good as its largest value, within the tolerance."""
    spectrum = np.concatenate([1 - gap * np.arange(5), np.linspace(0.9, 0, 35)])
    found = spectral_norm(with_spectrum(generator, spectrum), tol=1e-4)
    assert found.value.item() == pytest.approx(1.0, rel=2e-4) and bool(found.converged)
    exact = spectral_norm(with_spectrum(generator, spectrum), tol=1e-14)
    assert exact.value.item() == pytest.approx(1.0, rel=1e-12)


def test_hidden_singular_value_is_not_overlooked(generator):
    """A top value 1.3 over a plateau of 1: the plateau looks converged at once, but the stop waits."""
    M = with_spectrum(generator, [1.3] + [1.0] * 999)
    assert spectral_norm(M).value.item() == pytest.approx(1.3, rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_members_do_not_see_their_neighbours(make_case, method):
    """A member's result is the same in any company, to rounding."""
    case = make_case("batch")
    X = case.X * torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64)[:, None, None]
    together = local_lipschitz(case.attention, X, method=method)
    assert together.value.shape == (2, 3) and together.left.shape == (2, 3, 5, 4)
    for index in np.ndindex(2, 3):
        alone = local_lipschitz(case.attention, X[index], method=method)
        assert alone.iterations == together.iterations[index]
        for name in ("value", "upper"):
            torch.testing.assert_close(
                getattr(alone, name), getattr(together, name)[index], rtol=1e-10, atol=1e-12
            )
        assert bool((alone.right - together.right[index]).norm() < 1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_each_member_stops_for_itself(generator, method):
    easy, hard = (
        with_spectrum(generator, [1.0] + [1e-3] * 29),
        with_spectrum(generator, np.linspace(1, 0.5, 30)),
    )
    found = spectral_norm(torch.stack([easy, hard]), method=method, tol=1e-8)
    assert found.iterations[0] < found.iterations[1] / 2


def test_iterations_count_products(randn):
    """``iterations`` are pairs of products; Lanczos takes one product with J more, for the value itself."""
    calls = {"J": 0, "JT": 0}
    operator = AutogradJacobian(torch.sin, randn(20, 2))

    def counted(name, product):
        def call(vector):
            calls[name] += 1
            return product(vector)

        return call

    operator.matvec, operator.rmatvec = (
        counted("J", operator.matvec),
        counted("JT", operator.rmatvec),
    )
    found = spectral_norm(operator)
    assert calls["JT"] == found.iterations and calls["J"] - found.iterations in (0, 1)


def test_max_iterations(randn):
    found = spectral_norm(randn(30, 30), max_iterations=2, tol=1e-9)
    assert found.iterations == 2 and not bool(found.converged)


def test_lanczos_needs_fewer_products_than_power(generator):
    M = with_spectrum(generator, np.linspace(1, 0, 200))
    lanczos, power = spectral_norm(M, tol=1e-6), spectral_norm(M, tol=1e-6, method="power")
    assert lanczos.iterations < power.iterations and 1 - lanczos.value < 1 - power.value


def test_a_module_whose_parameters_want_gradients(randn):
    """As every trained module's do; the result carries none."""
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 3).double().eval()
    found = local_lipschitz(module, randn(2, 4, 3), tol=1e-10)
    expected = torch.linalg.matrix_norm(module.weight, 2).detach()
    torch.testing.assert_close(found.value, expected.expand(2), rtol=1e-9, atol=0)
    assert not any(x.requires_grad for x in (found.value, found.upper, found.left, found.right))


def test_deterministic_and_seeded(randn):
    M = randn(30, 30)
    one, two = spectral_norm(M, max_iterations=3), spectral_norm(M, max_iterations=3)
    assert torch.equal(one.value, two.value)
    other = spectral_norm(M, max_iterations=3, generator=torch.Generator().manual_seed(7))
    assert one.value != other.value


# --- upper bounds from elsewhere, and refusals --------------------------------------------------------------


def test_upper_bound_passed_in(case):
    bound = local_upper(case.attention, case.X)
    found = local_lipschitz(case.attention, case.X, upper_bound=bound)
    assert found.probability == 1.0 and found.upper.shape == found.value.shape
    torch.testing.assert_close(found.upper, torch.maximum(bound, found.value))
    assert bool(
        (
            found.upper
            >= torch.linalg.matrix_norm(case.attention.jacobian(case.X).dense(), 2) * (1 - 1e-13)
        ).all()
    )


BAD_INPUT = {
    "upper_bound below": ({"upper_bound": 0.5}, ValueError, "^upper_bound: "),
    "upper_bound of another shape": ({"upper_bound": torch.ones(5)}, ValueError, "^upper_bound: "),
    "upper_bound a string": ({"upper_bound": "x"}, ValueError, "^upper_bound: "),
    "generator a seed": ({"generator": 3}, TypeError, "^generator: "),
    "upper_bound not a number": ({"upper_bound": math.nan}, ValueError, "upper_bound: "),
    "unknown method": ({"method": "qr"}, ValueError, "^method: "),
    "tol zero": ({"tol": 0}, ValueError, "^tol: "),
    "tol large": ({"tol": 2.0}, ValueError, "^tol: "),
    "tol not a number": ({"tol": math.nan}, ValueError, "^tol: "),
    "tol a string": ({"tol": "1e-4"}, TypeError, "^tol: "),
    "probability one": ({"probability": 1.0}, ValueError, "^probability: "),
    "probability zero": ({"probability": 0.0}, ValueError, "probability: "),
    "max_iterations zero": ({"max_iterations": 0}, ValueError, "^max_iterations: "),
    "max_iterations half": ({"max_iterations": 2.5}, TypeError, "^max_iterations: "),
}


@pytest.mark.parametrize("name", BAD_INPUT)
@pytest.mark.parametrize("method", METHODS)
def test_bad_input(name, method):
    options, error, message = BAD_INPUT[name]
    with pytest.raises(error, match=message):
        spectral_norm(torch.eye(3), **({"method": method} | options))


@pytest.mark.parametrize("method", METHODS)
def test_products_that_are_not_finite(method):
    with pytest.raises(ValueError, match="finite"):
        local_lipschitz(lambda X: (X - 1).abs().sqrt(), torch.ones(2, 2), method=method)


def test_operators_that_are_none():
    with pytest.raises(TypeError, match=r"^matrix: "):
        spectral_norm(torch.eye(3).int())
    with pytest.raises(ValueError, match=r"^X: "):
        local_lipschitz(
            Attention.from_matrices(torch.eye(2), torch.eye(2)), torch.full((2, 2), math.nan)
        )
    with pytest.raises(TypeError, match="operator: "):
        spectral_norm("a matrix")


class OneDirection(LinearOperator):
    """x ↦ x/10 + w⟨w, x⟩, with inner products that lose nothing; its norm is 0.1 + ‖w‖²."""

    def __init__(self, w):
        self.w, self.batch_shape, self.dtype, self.device = w, (), w.dtype, w.device
        self.input_shape = self.output_shape = tuple(w.shape)

    def matvec(self, H):
        return H / 10 + self.w * (self.w.double() @ H.double()).to(self.dtype)

    rmatvec = matvec


@pytest.mark.parametrize("columns", [3000, 2**20 + 3])
def test_long_vectors_keep_their_digits(columns):
    """In float32, where one token has most of w: a norm that adds up square after square is wrong by 1e-4."""
    w = torch.randn(columns, generator=torch.Generator().manual_seed(0))
    w[:400] *= 4 * (columns / 400) ** 0.5
    w /= torch.linalg.vector_norm(w.double()).float()
    found = spectral_norm(OneDirection(w))
    exact = 0.1 + torch.linalg.vector_norm(w.double()) ** 2
    assert abs(found.value.double() / exact - 1) < 2e-6
    assert abs(torch.linalg.vector_norm(found.right.double()) - 1) < 2e-6


@pytest.mark.parametrize(
    ("matrix", "message"),
    [(torch.eye(3, device="meta"), "^matrix: "),
     (torch.eye(3).to_sparse(), "^matrix: ")],
)  # fmt: skip
def test_tensors_without_entries_are_refused(matrix, message):
    with pytest.raises(TypeError, match=message):
        spectral_norm(matrix)


def test_operators_in_half_precision_are_refused():
    with pytest.raises(TypeError, match=r"^operator: "):
        spectral_norm(causal_average(4, dtype=torch.float16))


def test_a_whole_float_is_a_count():
    assert spectral_norm(torch.eye(3), max_iterations=2.0).value.item() == pytest.approx(1)


def test_a_tolerance_below_rounding_ends():
    found = spectral_norm(torch.diag(torch.tensor([3.0, 2.0, 1.0])).double(), tol=1e-300)
    assert found.value.item() == pytest.approx(3, rel=1e-14)


# --- inference mode inside, ordinary tensors outside ----------------------------------------------------------


@pytest.mark.parametrize("name", ["heads projected", "narrow head"])
def test_results_are_ordinary_tensors(make_case, name):
    case = make_case(name)
    found = local_lipschitz(case.attention, case.X)
    parts = [part for part in vars(found).values() if isinstance(part, torch.Tensor)]
    assert len(parts) == 9 and not any(part.is_inference() for part in parts)
    H = torch.zeros_like(found.right, requires_grad=True)
    (H * found.right).sum().backward()
    assert torch.equal(H.grad, found.right)


def test_an_operator_may_use_autodiff(randn):
    """Nothing that is not known to do without runs in inference mode, where nothing can be differentiated."""

    class Diagonal(LinearOperator):
        """The Jacobian of the cosine, entry by entry."""

        batch_shape, input_shape, output_shape = (), (5,), (5,)
        dtype, device, x = torch.float64, torch.device("cpu"), randn(5)

        def matvec(self, H):
            x = self.x.clone().requires_grad_()
            return torch.autograd.grad(x.cos(), x, H)[0]

        rmatvec = matvec

    assert spectral_norm(Diagonal(), tol=1e-12).value.item() == pytest.approx(
        Diagonal.x.sin().abs().max().item()
    )
