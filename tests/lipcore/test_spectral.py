"""Spectral norms against NumPy and SciPy, the certificate's coverage, and the degenerate cases."""

import functools
import math

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import svds
from scipy.stats import binom

from lipcore import Attention, AutogradJacobian, local_lipschitz, spectral_norm
from lipcore.bounds import local_upper
from lipcore.bounds.causal import causal_average
from lipcore.operators import FunctionOperator, MatrixOperator
from lipcore.spectral import singular_values

METHODS = ("lanczos", "power")
METHOD = pytest.mark.parametrize("method", METHODS)
DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def orthogonal(generator, *batch, size):
    """Haar-distributed orthogonal matrices, (*batch, size, size)."""
    normal = torch.randn(*batch, size, size, generator=generator, dtype=torch.float64)
    Q, R = torch.linalg.qr(normal)
    return Q * R.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


def with_spectrum(generator, spectrum, *batch, rows=None):
    """Random matrices (*batch, rows, N) with the given N singular values."""
    N = len(spectrum)
    left = orthogonal(generator, *batch, size=rows or N)[..., :N]
    spectrum = torch.as_tensor(spectrum, dtype=torch.float64)
    return left * spectrum @ orthogonal(generator, *batch, size=N)


# --- against dense decompositions ----------------------------------------------------------------


@METHOD
@pytest.mark.parametrize("shape", [(7, 7), (3, 8), (8, 3), (1, 5), (5, 1), (1, 1), (4, 2, 6, 5)])
def test_agrees_with_numpy(randn, method, shape):
    """The norm, a pair of singular vectors, and a bracket around them."""
    M = randn(*shape)
    limit = None if method == "lanczos" else 5000
    found = spectral_norm(M, method=method, tol=1e-13, max_iterations=limit)
    truth = np.linalg.norm(M.numpy(), 2, axis=(-2, -1))
    np.testing.assert_allclose(found.value, truth, rtol=1e-10)
    assert found.value.shape == found.iterations.shape == found.converged.shape == shape[:-2]
    assert bool((found.upper >= torch.as_tensor(truth) * (1 - 1e-12)).all())
    u, v = found.left, found.right
    assert u.shape == (*shape[:-2], shape[-2]) and v.shape == (*shape[:-2], shape[-1])
    torch.testing.assert_close(v.norm(dim=-1), torch.ones_like(found.value))
    sigma = found.value[..., None]
    torch.testing.assert_close((M @ v[..., None])[..., 0], sigma * u, rtol=0, atol=1e-9)
    torch.testing.assert_close((M.mT @ u[..., None])[..., 0], sigma * v, rtol=0, atol=1e-4)


def test_agrees_with_scipy(make_case):
    """Through products alone, on a Jacobian of 240 × 240."""
    case = make_case("biases, causal")
    X = torch.randn(60, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    J = case.attention.jacobian(X)
    expected = svds(J.dense().numpy(), k=1, return_singular_vectors=False, random_state=0)[0]
    assert spectral_norm(J, tol=1e-12).value.item() == pytest.approx(expected, rel=1e-11)


def test_agrees_with_dense_on_every_layer(every_case):
    """A narrow head is measured in its own few dimensions: its vectors are those of the whole."""
    f, X = every_case.attention, every_case.X
    found, J = local_lipschitz(f, X, tol=1e-12), f.jacobian(X)
    expected = torch.linalg.matrix_norm(J.dense(), 2)
    torch.testing.assert_close(found.value, expected, rtol=1e-11, atol=0)
    assert bool((found.upper >= expected).all()) and bool(found.converged.all())
    assert found.left.shape == (*X.shape[:-1], f.output_dim)
    image = found.value[..., None, None] * found.left
    torch.testing.assert_close(J.matvec(found.right), image, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.right.square().sum((-2, -1)), torch.ones_like(found.value))


@METHOD
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_stopped_early(randn, method, steps):
    """The value is below the norm, and within ``residual`` of it lies some singular value."""
    M = randn(100, 12, 12)
    found = spectral_norm(M, method=method, max_iterations=steps, tol=1e-12)
    spectrum = torch.linalg.svdvals(M)
    distance = (spectrum - found.value[:, None]).abs().amin(-1)
    assert bool((distance <= found.residual * (1 + 1e-10)).all())
    assert bool((found.residual > 0).all()) and int(found.iterations.max()) == steps
    assert bool((found.value <= spectrum[:, 0] * (1 + 1e-14)).all())
    torch.testing.assert_close(found.lower, found.value, rtol=1e-12, atol=1e-13)
    assert bool((found.lower < found.value).all()) and not bool(found.converged.any())


# --- the certificate -----------------------------------------------------------------------------

N, TRIALS, SIZE = 20, 3000, 7.0  # norms away from one, where every power of them is the same
CHEBYSHEV = (1 + np.cos(np.pi * (2 * np.arange(1, N) - 1) / (2 * (N - 1)))) / 2  # on [0, 1]
RANDOM = np.random.default_rng(0).uniform(size=N - 1)

#: Spectra that are hard in different ways; the largest value is 1.
SPECTRA = {
    "rank one": [1.0] + [0.0] * (N - 1),
    "hidden by a plateau": [1.0] + [0.99] * (N - 1),
    "hidden by a low plateau": [1.0] + [0.5] * (N - 1),
    "two plateaus": [1.0] + [0.9] * 10 + [0.4] * (N - 11),
    "evenly spaced": np.linspace(1, 0, N),
    "geometric": 0.7 ** np.arange(N),
    "crowded at the top": 1 - np.linspace(0, 1, N) ** 2 / 10,
    "Chebyshev nodes below": [1.0, *np.sqrt(0.9 * CHEBYSHEV)],
    "random": [1.0, *np.sort(RANDOM)[::-1]],
}


@functools.cache
def turned(spectrum, seed):
    """Many random matrices, times SIZE: to turn the matrix is to turn the start."""
    generator = torch.Generator().manual_seed(seed)
    return SIZE * with_spectrum(generator, SPECTRA[spectrum], TRIALS)


def misses(M, *, method, steps, failure):
    """How many of the matrices have their norm above ``upper``."""
    options = {"method": method, "max_iterations": steps, "tol": 1e-15}
    found = spectral_norm(M, probability=1 - failure, **options)
    assert found.probability == 1 - failure
    assert bool((found.lower <= SIZE * (1 + 1e-12)).all())
    return int((found.upper < SIZE * (1 - 1e-13)).sum())


@METHOD
@pytest.mark.parametrize("steps", [1, 2, 6])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_upper_covers_the_truth(method, steps, spectrum):
    """The upper end misses at most as often as it says (one-sided binomial test at 10⁻⁶)."""
    failure = 0.1
    missed = misses(turned(spectrum, 1), method=method, steps=steps, failure=failure)
    assert binom.sf(missed - 1, TRIALS, failure) > 1e-6


@METHOD
@pytest.mark.parametrize("failure", [0.3, 0.05, 0.01])
def test_certificate_is_not_conservative(method, failure):
    """After one step on a matrix of rank one it misses as often as it says (two-sided)."""
    missed = misses(turned("rank one", 5), method=method, steps=1, failure=failure)
    assert 1e-5 < binom.cdf(missed, TRIALS, failure) < 1 - 1e-5


def test_coverage_over_generators():
    """The same with one matrix and many seeds: the start is uniform on the sphere."""
    M, failure = torch.zeros(1, 6, dtype=torch.float64), 0.2
    M[0, 2] = 1.0
    options = {"max_iterations": 1, "probability": 1 - failure}
    starts = (torch.Generator().manual_seed(seed) for seed in range(500))
    uppers = [spectral_norm(M, generator=start, **options).upper.item() for start in starts]
    assert uppers[0] == spectral_norm(M, **options).upper.item() != uppers[1]  # seeded by default
    missed = sum(upper < 1 - 1e-13 for upper in uppers)
    assert 1e-5 < binom.cdf(missed, 500, failure) < 1 - 1e-5


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_bracket_closes(generator, spectrum):
    """To √tol; the value is within tol, or twenty times that where the top is crowded."""
    found = spectral_norm(with_spectrum(generator, SPECTRA[spectrum], 200), tol=1e-4)
    assert bool(found.converged.all())
    assert bool((found.upper / found.lower <= 1.01 + 1e-9).all())
    assert bool((found.lower >= 1 - (2e-3 if spectrum == "crowded at the top" else 1e-4)).all())
    assert bool((found.upper >= 1).all())


@pytest.mark.parametrize("tol", [0.05, 1e-2, 1e-4])
@METHOD
def test_what_has_converged_has_a_narrow_bracket(randn, generator, method, tol):
    """A slow iteration stops on its estimate, and leaves the bracket open: not converged."""
    for M in (randn(20, 15, 15), 3.0 * orthogonal(generator, 20, size=40)):
        found = spectral_norm(M, method=method, tol=tol)
        narrow = found.upper <= (1 + math.sqrt(tol)) * found.lower * (1 + 1e-7)
        assert not bool((found.converged & ~narrow).any())
        assert bool(found.converged.all()) or method == "power"
        assert bool(spectral_norm(M, method=method, tol=tol, probability=None).converged.all())
    assert found.value.tolist() == pytest.approx([3.0] * 20, rel=1e-13)


def test_products_that_do_not_belong_together_are_no_operator(generator):
    """An upper end that the value does not confirm: J has changed between the calls."""

    class Fading(MatrixOperator):
        calls = 0

        def matvec(self, H):
            self.calls += 1
            return super().matvec(H) / (1000.0 if self.calls > 5 else 1)

    with pytest.raises(ValueError, match=r"^operator: "):
        spectral_norm(Fading(with_spectrum(generator, [3.0, 2.0, 1.0, 0.5, 0.2])))


def test_upper_bound_passed_in(case):
    bound = local_upper(case.attention, case.X)
    found = local_lipschitz(case.attention, case.X, upper_bound=bound)
    truth = torch.linalg.matrix_norm(case.attention.jacobian(case.X).dense(), 2)
    assert found.probability == 1.0 and found.upper.shape == found.value.shape
    torch.testing.assert_close(found.upper, torch.maximum(bound, found.value))
    assert bool((found.upper >= truth * (1 - 1e-13)).all())


def test_estimate_of_the_error_is_sharp():
    """With one singular value at angle φ to the start, θ = cos φ, and the estimate is tan²φ/2."""
    start = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = start / start.norm()
    aside = torch.eye(40, dtype=torch.float64)[0] - start[0] * start
    z = math.cos(0.1) * start + math.sin(0.1) * aside / aside.norm()
    error = 1 - math.cos(0.1)
    for tol, converged in ((0.97 * error, False), (1.03 * error, True)):
        options = {"max_iterations": 1, "probability": None, "tol": tol}
        found = spectral_norm(torch.outer(z, z), **options)
        assert found.value.item() > math.cos(0.1) * (1 - 1e-12)
        assert bool(found.converged) == converged


# --- scale and start -----------------------------------------------------------------------------


@METHOD
@pytest.mark.parametrize(
    ("dtype", "factor"),
    [(torch.float32, 1e-8), (torch.float32, 1e8), (torch.float64, 1e-200), (torch.float64, 1e200)],
)
def test_scaling(randn, method, dtype, factor):
    """σ(c·f) = c·σ(f), in as many iterations: tolerances are relative. Squares may overflow."""
    M = randn(3, 9, 7, dtype=dtype)
    one, scaled = spectral_norm(M, method=method), spectral_norm(factor * M, method=method)
    assert torch.equal(one.iterations, scaled.iterations)
    exact = {"rtol": 50 * torch.finfo(dtype).eps, "atol": 0}
    torch.testing.assert_close(scaled.value, factor * one.value, **exact)
    for name in ("upper", "residual"):
        found, expected = getattr(scaled, name), factor * getattr(one, name)
        torch.testing.assert_close(found, expected, rtol=5e-3, atol=factor * 1e-5)


def test_start_may_see_little():
    """‖J v_1‖ is a ten-millionth of σ_max, and t ≈ σ²: without a scale its square would overflow."""
    start = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    eye = torch.eye(50, dtype=torch.float64)
    Q = torch.linalg.qr(torch.stack([start, *eye[:3]], dim=1)).Q[:, 1:]
    M = 1e4 * eye + (Q * torch.tensor([1e11, 5e10, 2e10])) @ Q.T
    assert (M @ start).norm() < 1e-6 * start.norm() * torch.linalg.matrix_norm(M, 2)
    assert spectral_norm(M.float()).value.item() == pytest.approx(1e11, rel=1e-4)


@pytest.mark.parametrize("generator", [None, torch.Generator])
@DTYPE
def test_start_is_not_the_tokens_whatever_drew_them(dtype, generator):
    """A map that is constant along X has X in its kernel: a start at X would see σ = 0."""
    for seed in range(3):
        X = torch.randn(32, 8, dtype=dtype, generator=torch.Generator().manual_seed(seed))
        option = {} if generator is None else {"generator": generator().manual_seed(seed)}
        found = local_lipschitz(lambda x: x / x.square().mean().sqrt(), X, tol=1e-8, **option)
        truth = 1 / X.square().mean().sqrt()  # (I − x xᵀ/|x|²)/rms
        assert found.value.item() == pytest.approx(truth.item(), rel=1e-4)


# --- degenerate spectra --------------------------------------------------------------------------


@METHOD
@DTYPE
def test_zero_alone_and_beside_others(randn, method, dtype):
    """A zero member does not spoil, and is not spoilt by, the rest of its batch."""
    M = randn(3, 6, 5, dtype=dtype)
    M[1] = 0
    found = spectral_norm(M, method=method, tol=1e-6)
    truth = torch.linalg.matrix_norm(M.double(), 2)
    torch.testing.assert_close(found.value, truth, rtol=1e-4, atol=0)
    for zero in (found[1], spectral_norm(torch.zeros(4, 3, dtype=dtype), method=method)):
        assert zero.value == zero.lower == zero.upper == zero.residual == 0
        assert bool(zero.converged) and zero.iterations == 1
        assert bool(torch.isfinite(zero.left).all()) and bool(torch.isfinite(zero.right).all())


@pytest.mark.parametrize("rank", [1, 2, 5, 8])
@pytest.mark.parametrize(("tol", "dtype"), [(1e-4, torch.float32), (1e-12, torch.float64)])
def test_low_rank_is_found_out_at_once(generator, rank, tol, dtype):
    """The Krylov space ends after as many steps as there are values, and nobody waits for more."""
    spectrum = np.r_[np.linspace(1, 1 / rank, rank), np.zeros(500 - rank)]
    found = spectral_norm(with_spectrum(generator, spectrum).to(dtype), tol=tol)
    assert int(found.iterations) <= rank + 2 and bool(found.converged)
    assert found.value.item() == pytest.approx(1, rel=tol)


def test_a_large_kernel_costs_nothing(generator):
    """100 values crowd at the top of 100 × 1000: the vectors u keep rounding out of the kernel."""
    tall = with_spectrum(generator, np.linspace(1, 0.95, 100), rows=1000).to(torch.float32)
    single, double = (spectral_norm(M, tol=1e-4) for M in (tall.T, tall.T.double()))
    assert abs(int(single.iterations) - int(double.iterations)) <= 3


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-9])
def test_clustered_singular_values(generator, gap):
    """A cluster at the top is as good as its largest value, within the tolerance."""
    M = with_spectrum(generator, np.r_[1 - gap * np.arange(5), np.linspace(0.9, 0, 35)])
    found = spectral_norm(M, tol=1e-4)
    assert found.value.item() == pytest.approx(1.0, rel=2e-4) and bool(found.converged)
    for tol in (1e-14, 1e-300):  # below rounding it ends, too
        assert spectral_norm(M, tol=tol).value.item() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("columns", [3000, 2**20 + 3])
def test_long_vectors_keep_their_digits(columns):
    """x ↦ x/10 + w⟨w, x⟩ in float32; one token has most of w, and adding up squares loses 1e-4."""
    w = torch.randn(columns, generator=torch.Generator().manual_seed(0))
    w[:400] *= 4 * (columns / 400) ** 0.5
    w /= torch.linalg.vector_norm(w.double()).float()

    def product(x):
        return x / 10 + w * (w.double() @ x.double()).float()

    found = spectral_norm(FunctionOperator(product, product, w, (), w.shape, w.shape))
    exact = 0.1 + torch.linalg.vector_norm(w.double()) ** 2
    assert abs(found.value.double() / exact - 1) < 2e-6
    assert abs(torch.linalg.vector_norm(found.right.double()) - 1) < 2e-6


# --- batches and products ------------------------------------------------------------------------


@METHOD
def test_members_do_not_see_their_neighbours(make_case, method):
    """A member's result is the same in any company, to rounding."""
    case = make_case("batch")
    X = case.X * torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64)[:, None, None]
    together = local_lipschitz(case.attention, X, method=method)
    for index in np.ndindex(2, 3):
        alone = local_lipschitz(case.attention, X[index], method=method)
        assert alone.iterations == together.iterations[index]
        for name in ("value", "upper"):
            found, expected = getattr(together, name)[index], getattr(alone, name)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        assert bool((alone.right - together.right[index]).norm() < 1e-6)


def test_each_member_stops_for_itself(generator):
    """And Lanczos needs fewer products than power iteration."""
    easy = with_spectrum(generator, [1.0] + [1e-3] * 29)
    hard = with_spectrum(generator, np.linspace(1, 0.5, 30))
    M = torch.stack([easy, hard])
    lanczos, power = (spectral_norm(M, tol=1e-8, method=m).iterations for m in METHODS)
    assert lanczos[0] < lanczos[1] / 2 and power[0] < power[1] / 2 and lanczos[1] < power[1]


def test_iterations_count_products(randn):
    """They are pairs of products, which may take derivatives; the value may take one more."""
    M, calls = randn(20, 10), []

    def forth(H):
        calls.append("J")
        x = torch.ones_like(H, requires_grad=True)
        return M @ torch.autograd.grad((x * H).sum(), x)[0]

    def back(G):
        calls.append("JT")
        return M.mT @ G

    found = spectral_norm(FunctionOperator(forth, back, M, (), (10,), (20,)))
    assert found.value.item() == pytest.approx(torch.linalg.matrix_norm(M, 2).item())
    assert calls.count("JT") == found.iterations
    assert calls.count("J") - found.iterations in (0, 1)


@pytest.mark.parametrize("name", ["heads projected", "narrow head"])
def test_results_are_ordinary_tensors(make_case, name):
    """Though the iteration runs in inference mode."""
    case = make_case(name)
    found = local_lipschitz(case.attention, case.X)
    parts = [part for part in vars(found).values() if isinstance(part, torch.Tensor)]
    assert len(parts) == 9 and not any(part.is_inference() for part in parts)
    H = torch.zeros_like(found.right, requires_grad=True)
    (H * found.right).sum().backward()
    assert torch.equal(H.grad, found.right)


# --- the k largest, SciPy, and Ctrl-C ------------------------------------------------------------


@pytest.mark.parametrize("spectrum", ["evenly spaced", "two plateaus", "rank one", "random"])
@pytest.mark.parametrize("steps", [3, None])
def test_the_k_largest(generator, spectrum, steps):
    """All brackets of 200 matrices hold, narrow or stopped early; vectors are orthonormal pairs."""
    k, M = 3, with_spectrum(generator, SPECTRA[spectrum], 200)
    found = singular_values(M, k, tol=1e-8, max_iterations=steps)
    truth = torch.as_tensor(SPECTRA[spectrum], dtype=torch.float64)[:k]
    assert found.value.shape == (200, k) and found.probability == 0.999
    assert bool((found.lower <= truth + 1e-14).all() & (found.upper >= truth - 1e-14).all())
    for vectors in (found.left, found.right)[spectrum == "rank one" :]:
        torch.testing.assert_close(vectors @ vectors.mT, torch.eye(k).double().expand(200, k, k))
    image = found.right @ M.mT
    torch.testing.assert_close(image, found.value[..., None] * found.left, rtol=0, atol=1e-12)
    if steps is None:
        torch.testing.assert_close(found.value, truth.expand(200, k), rtol=1e-7, atol=1e-12)
        assert bool(found.converged.all()) and found.residual.max() < 1e-3


def test_the_k_largest_share_the_failures(generator):
    """Three upper ends of a plateau hold together as often as they say."""
    failure, trials, M = 0.2, 400, with_spectrum(generator, [1.0] * 3 + [0.2] * 17, 400)
    found = singular_values(M, 3, probability=1 - failure, max_iterations=1)
    missed = int((found.upper < 1 - 1e-12).any(-1).sum())
    assert binom.sf(missed - 1, trials, failure) > 1e-6


def test_the_k_largest_of_a_layer(make_case):
    case = make_case("batch")
    J = case.attention.jacobian(case.X)
    found, truth = singular_values(J, 4, tol=1e-10), torch.linalg.svdvals(J.dense())[..., :4]
    torch.testing.assert_close(found.value, truth)
    assert bool((found.lower <= truth).all() & (truth <= found.upper).all())
    assert found[1, 2].right.shape == (4, *J.input_shape)
    with pytest.raises(ValueError, match=r"^k: .*20"):
        singular_values(J, 21)
    single = singular_values(
        FunctionOperator(torch.sin, torch.cos, torch.eye(2), (), (2,), (2,)), 1
    )
    assert single.remark == "float32, not certified" and single.lower == 0


def test_scipy_takes_an_operator(make_case):
    case = make_case("biases, causal")
    J = case.attention.jacobian(case.X)
    expected = torch.linalg.svdvals(J.dense())[:3].flip(0).numpy()
    np.testing.assert_allclose(svds(J.to_scipy(), k=3, random_state=0)[1], expected, rtol=1e-9)
    with pytest.raises(ValueError, match=r"^to_scipy: "):
        make_case("batch").attention.jacobian(make_case("batch").X).to_scipy()


@pytest.mark.parametrize("calls", [2, 3, 8, 9])
def test_interrupted(generator, calls):
    """Ctrl-C leaves the bracket so far, unless there is none."""

    class Interrupting(MatrixOperator):
        left = calls

        def _check(self, *args):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return super()._check(*args)

    J = Interrupting(with_spectrum(generator, np.linspace(1, 0, 50)))
    if calls == 2:
        with pytest.raises(KeyboardInterrupt):
            spectral_norm(J)
        return
    with pytest.warns(UserWarning, match="^interrupted"):
        found = spectral_norm(J)
    assert found.lower <= 1 <= found.upper and not found.converged
    assert found.remark == "interrupted" and found.iterations == (calls - 1) // 2


# --- refusals ------------------------------------------------------------------------------------

BAD_OPTIONS = [
    {"upper_bound": 0.5}, {"upper_bound": torch.ones(5)}, {"upper_bound": "x"},
    {"upper_bound": math.nan}, {"generator": 3}, {"method": "qr"},
    {"tol": 0}, {"tol": 2.0}, {"tol": math.nan}, {"tol": "1e-4"},
    {"probability": 1.0}, {"probability": 0.0}, {"max_iterations": 0}, {"max_iterations": 2.5},
]  # fmt: skip


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
def test_bad_options(options):
    with pytest.raises((ValueError, TypeError), match=f"^{next(iter(options))}: "):
        spectral_norm(torch.eye(3), **options)


EYE = torch.eye(2)
BAD_OPERATORS = {
    "whole numbers": (lambda: EYE.int(), "matrix"),
    "no entries": (lambda: torch.eye(3, device="meta"), "matrix"),
    "sparse": (lambda: EYE.to_sparse(), "matrix"),
    "a string": (lambda: "a matrix", "operator"),
    "half precision": (lambda: causal_average(4, dtype=torch.float16), "operator"),
    "NaN": (lambda: Attention.from_matrices(EYE, EYE).jacobian(EYE * math.nan), "X"),
    "infinite products": (
        lambda: AutogradJacobian(lambda X: (X - 1).abs().sqrt(), EYE, check=False), "operator"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_OPERATORS)
@METHOD
def test_bad_operators(name, method):
    make, named = BAD_OPERATORS[name]
    with pytest.raises((ValueError, TypeError), match=f"^{named}: "):
        spectral_norm(make(), method=method)
