"""Brackets against sixty digits: differences of attention as it is defined, and their largest singular value."""

import mpmath
import numpy as np
import pytest
import torch

from lipcore import Attention, local_lipschitz
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
