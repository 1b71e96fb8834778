"""Brackets against sixty digits, and what has none: σ is that of differences of the definition."""

import math

import mpmath
import numpy as np
import pytest
import torch

from lipcore import Attention, AttentionJacobian, local_lipschitz, spectral_norm
from lipcore.operators import FunctionOperator
from seeded import drawn

DIGITS = 60
N, D, K, P, HEADS = 4, 3, 2, 2, 2
_mp = np.frompyfunc(mpmath.mpf, 1, 1)


def _array(x: torch.Tensor) -> np.ndarray:
    return _mp(x.double().numpy())  # each float as it is


def exact_attention(f: Attention, X: np.ndarray) -> np.ndarray:
    """f(X) by its definition, for arrays of mpmath's numbers."""
    heads = []
    for h in range(f.heads):
        q, k, v = (X @ _array(w[h]).T for w in (f.query, f.key, f.value))
        if f.rotary is not None:
            q, k = (np.stack([_turned(x, i, f.rotary) for i, x in enumerate(y)]) for y in (q, k))
        rows = []
        for i in range(len(X)):
            seen = range(i + 1 if f.causal else len(X))
            masses = [mpmath.exp(mpmath.mpf(f.scale) * (q[i] @ k[j])) for j in seen]
            sink = 0 if f.sinks is None else mpmath.exp(mpmath.mpf(float(f.sinks[h])))
            rows.append(sum(m * v[j] for j, m in zip(seen, masses, strict=True)))
            rows[-1] = rows[-1] / (sum(masses) + sink)
            if f.gate is not None:
                rows[-1] = rows[-1] / (
                    1 + np.frompyfunc(mpmath.exp, 1, 1)(-_array(f.gate[h]) @ X[i])
                )
        heads.append(np.stack(rows))
    joined = np.concatenate(heads, axis=1)
    return joined if f.output is None else joined @ _array(f.output).T


def _turned(x: np.ndarray, position: int, rotary: torch.Tensor) -> np.ndarray:
    angle = position * mpmath.mpf(float(rotary[0]))  # k = 2: one plane
    cos, sin = mpmath.cos(angle), mpmath.sin(angle)
    return np.array([x[0] * cos - x[1] * sin, x[1] * cos + x[0] * sin])


def exact_sigma(f: Attention, X: torch.Tensor) -> mpmath.mpf:
    """The largest singular value of central differences with steps of 10⁻²⁰."""
    with mpmath.workdps(DIGITS):
        X, step = _array(X), mpmath.mpf(10) ** -20
        columns = []
        for place in np.ndindex(*X.shape):
            H = _mp(np.zeros(X.shape))
            H[place] = step
            move = exact_attention(f, X + H) - exact_attention(f, X - H)
            columns.append(move.ravel() / (2 * step))
        J = np.stack(columns)
        gram = J @ J.T
        # squaring a matrix of 60 digits five times separates its largest eigenvalue from the rest
        return mpmath.sqrt(max(mpmath.eigsy(mpmath.matrix(gram.tolist()), eigvals_only=True)))


def draw_layer(seed: int, steep: float = 1.0, d: int = D, **options) -> Attention:
    shapes = {"query": (HEADS, K, d), "key": (HEADS, K, d), "value": (HEADS, P, d)}
    weights = {
        name: drawn(*shape, seed=3 * seed + i) for i, (name, shape) in enumerate(shapes.items())
    }
    weights["query"] = steep * weights["query"]
    return Attention(**weights, output=drawn(d, HEADS * P, seed=seed + 50), **options)


def cancelling(seed: int) -> Attention:
    """Two heads of which the second undoes the first, but for a millionth."""
    f = draw_layer(seed)
    twice = {name: getattr(f, name)[:1].expand(2, -1, -1) for name in ("query", "key", "value")}
    half = f.output[:, :P]
    return Attention(**twice, output=torch.cat([half, -(1 - 1e-6) * half], dim=1))


KINDS = {
    "plain": draw_layer,
    "steep": lambda seed: draw_layer(seed, steep=100.0),
    "shallow": lambda seed: draw_layer(seed, steep=1e-4),
    "cancelling": cancelling,
    "causal, sinks": lambda seed: draw_layer(seed, 0.1, causal=True, sinks=drawn(HEADS, seed=seed)),
    "gate": lambda seed: draw_layer(seed, 0.1, gate=1e-3 * drawn(HEADS, 1, D, seed=seed)),
    "rotary": lambda seed: draw_layer(seed, 1e-3, rotary=drawn(1, seed=seed).abs()),
    "narrow": lambda seed: draw_layer(seed, 1e-3, d=13),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [0.0, 1000.0])
def test_no_bracket_excludes_the_truth(kind, dtype, far):
    """By closed form and by autodiff, at tokens around zero and around 1000; one of a batch, too."""
    for seed in range(2 if kind != "narrow" else 1):
        f = KINDS[kind](seed).to(dtype)
        X = (drawn(N, f.d, seed=seed + 99) + far).to(dtype)
        truth = exact_sigma(f, X)
        double = f.to(torch.float64), X.double()
        for found in (
            local_lipschitz(f, X),
            local_lipschitz(f, torch.stack([X, X + 1]))[0],
            local_lipschitz(lambda Y, f=double[0]: f(Y), double[1]),
        ):
            lower, upper = (mpmath.mpf(float(end)) for end in (found.lower, found.upper))
            assert lower <= truth <= upper, float(max(lower / truth, truth / upper) - 1)
            assert found.value.dtype == torch.float64 and found.probability == 0.999


def test_the_bound_is_one_of_products(case_in_three_terms):
    """What float32 does to J and to its transpose, at tokens where it costs most digits, too."""
    f, X = case_in_three_terms.attention.to(torch.float32), case_in_three_terms.X.float()
    for factor in (1, 100):
        single = AttentionJacobian(f, factor * X)
        double = single.in_float64()
        for one, other in ((single, double), (single.T, double.T)):
            wrong = torch.linalg.matrix_norm(one.dense().double() - other.dense(), 2)
            assert bool((wrong <= single.rounding).all())


def test_brackets_are_hardly_wider(randn):
    """A layer of the size of MiniLM's, with tokens as LayerNorm leaves them."""
    heads, k, d, n = 12, 32, 384, 64
    weights = {name: randn(heads, k, d) / d**0.5 for name in ("query", "key", "value")}
    f, X = Attention(**weights, output=randn(d, d) / d**0.5), randn(n, d)
    found = local_lipschitz(f.to(torch.float32), X.float(), tol=1e-12)
    assert 0 < found.value - found.lower < 1e-7 * found.value
    assert found.upper - found.lower < 1e-5 * found.value


# --- what is not certified, and says so ----------------------------------------------------------


def test_float32_without_a_twin(randn, monkeypatch):
    """Products, functions and long layers that are known in float32 alone have no bracket."""
    M, X = randn(5, 5).float(), randn(4, 3).float()
    f = Attention.from_matrices(randn(3, 3), randn(3, 3)).to(torch.float32)
    monkeypatch.setattr("lipcore.cross.FLOAT64_ENTRIES", 15)
    products = FunctionOperator(lambda H: M @ H, lambda G: M.T @ G, M, (), (5,), (5,))
    for found in (
        spectral_norm(products),
        local_lipschitz(lambda Y: Y @ M[:3], X),  # takes no float64
        local_lipschitz(lambda Y: Y.float().sin(), X),
        local_lipschitz(f, X),
        local_lipschitz(f, X, norm="token"),
    ):
        assert found.remark == "float32, not certified" and found.remark in str(found)
        assert found.probability is None and found.lower == 0 and math.isinf(found.upper)
        assert found.value > 0 and found.value.dtype == torch.float64
    both = local_lipschitz(lambda Y: Y @ M[:3], X, check=False).remark
    assert both == "float32, not certified; of autodiff's Jacobian, unchecked"


def test_float32_with_a_twin(randn):
    """Matrices, modules and functions of tokens alone; the module stays as it is."""
    M, X = randn(5, 5).float(), randn(1, 5).float()
    linear = torch.nn.Linear(5, 5, bias=False).eval()
    truth = float(torch.linalg.matrix_norm(linear.weight.detach().double(), 2))
    for found, sigma in (
        (spectral_norm(M), float(torch.linalg.matrix_norm(M.double(), 2))),
        (local_lipschitz(linear, X), truth),
        (local_lipschitz(linear, X, differentiable=True), truth),
        (local_lipschitz(lambda Y: 2 * Y, X), 2.0),
    ):
        assert found.lower <= sigma * (1 + 1e-14) <= found.upper and found.probability == 0.999
        assert found.remark == "" and found.left.dtype == found.right.dtype == torch.float32
    assert linear.weight.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_outside_changes_nothing(randn, dtype):
    f = Attention.from_matrices(randn(3, 3), randn(3, 3)).to(dtype)
    X, M = randn(4, 3).to(dtype), randn(4, 4).to(dtype)
    mapped = torch.nn.Linear(3, 3).to(dtype).eval()
    calls = (
        lambda: local_lipschitz(f, X),
        lambda: local_lipschitz(mapped, X),
        lambda: spectral_norm(M),
    )
    for call in calls:
        expected = call()
        with torch.autocast("cpu", torch.bfloat16):
            found = call()
        assert torch.equal(found.value, expected.value) and found.remark == expected.remark


def test_unknown_options_are_those_of_the_function_called():
    with pytest.raises(TypeError, match=r"^local_lipschitz: .*tol.*got foo$"):
        local_lipschitz(torch.sin, torch.ones(2, 2), foo=1)
