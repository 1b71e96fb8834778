"""Rounding: the numbers of a format against PyTorch's casts, the bound against its formula and against attacks."""

import itertools
import math

import pytest
import torch

from draws import F64, draw
from lab.precision import measured_inside
from lab.rounding import ROUNDED, largest_error, rounded, rounding_upper
from lipcore import Attention

FORMATS = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
SLACK = 1 + 1e-9


def layer(kind, scale=1.0):
    f = {"query": scale * draw(0, 2, 3, 4), "key": draw(1, 2, 3, 4), "value": draw(2, 2, 3, 4)}
    biases = {"query_bias": draw(3, 2, 3), "value_bias": draw(4, 2, 3)}
    more = {
        "alone": {},
        "projected": {"output": draw(5, 5, 6)},
        "causal, biases": {"causal": True, "output": draw(5, 2, 6), **biases},
        "hidden keys": {"mask": (draw(6, 6, 6) > 0) | torch.eye(6, dtype=torch.bool)},
    }
    return Attention(**f, **more[kind])


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_rounded_is_the_cast_and_largest_errors_are_reached(dtype):
    sizes = torch.logspace(-9, 2, 20000, dtype=F64)
    ties = torch.arange(1, 40, dtype=F64) / 32
    x = torch.cat([sizes, -sizes, ties, torch.zeros(1, dtype=F64)]).float().double()
    assert torch.equal(rounded(x, dtype), x.to(dtype).double())
    share = (rounded(sizes, dtype) - sizes).abs() / largest_error(sizes, dtype)
    assert 0.99 < share.max() <= SLACK


def test_formats_refuse_what_they_cannot_hold():
    for x, dtype in ((449.0, torch.float8_e4m3fn), (math.nan, torch.bfloat16)):
        with pytest.raises(ValueError, match="x"):
            rounded(torch.tensor([x]), dtype)


def moved(f, X, dtype, sources):
    """‖f̂ − f‖ where some of scores, weights and values are rounded."""

    def part(source, x):
        return rounded(x, dtype) if source in sources else x

    q, k, v = f.project(X)
    hidden = f.weights(X) == 0
    masses = 0 if f.log_weights is None else f.log_weights
    scores = part("scores", q @ k.mT) + masses
    P = part("weights", torch.softmax(scores.masked_fill(hidden, -math.inf), -1))
    output = f.join_heads(P @ part("values", v), bias=True)
    return (output - f(X)).norm().item()


@pytest.mark.parametrize("kind", ["alone", "projected", "causal, biases", "hidden keys"])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_rounding_stays_below(kind, dtype):
    for scale, sources in itertools.product((0.1, 1.0, 8.0), [(s,) for s in ROUNDED] + [ROUNDED]):
        f, X = layer(kind, scale), draw(9, 6, 4)
        bound = rounding_upper(f, X, dtype, sources=sources).item()
        found = moved(f, X, dtype, sources)
        assert 0 < found <= bound * SLACK
    assert measured_inside(f, X, dtype).norm().item() == pytest.approx(found, rel=1e-9)


def test_the_formula_by_loops():
    f, X, dtype = layer("causal, biases", 2.0), draw(9, 6, 4), torch.bfloat16
    P, (q, k, v) = f.weights(X), f.project(X)
    u, eta = 2.0**-8, 2.0**-134
    W = f.output.unflatten(1, (2, 3)).movedim(1, 0)

    def row(h, i, M):
        seen = range(i + 1)
        eps = sorted(largest_error((q[h, i] @ k[h, j])[None], dtype).item() for j in seen)[-2:]
        o, values = sum(eps), v[h] @ M.mT
        mean = P[h, i] @ values
        C = sum(P[h, i, j] * torch.outer(values[j] - mean, values[j] - mean) for j in seen)
        omega = max((values[j] - mean).norm().item() for j in seen)
        nu, t = math.sqrt(torch.linalg.matrix_norm(C, 2)), math.tanh(o / 4)
        size = torch.linalg.matrix_norm(M, 2)
        hs = [(size * largest_error(v[h, j], dtype).norm()).item() for j in seen]
        g = [u * values[j].norm().item() + (1 + u) * hs[j] for j in seen]
        spread = min(nu * math.sinh(o / 2), 2 * t * omega, omega)
        lengths = sum(values[j].norm().item() + hs[j] for j in seen)
        return spread + sum(P[h, i, j].item() * g[j] for j in seen) + t * max(g) + eta * lengths

    alone = [math.hypot(*(row(h, i, torch.eye(3, dtype=F64)) for i in range(6))) for h in (0, 1)]
    through = [math.hypot(*(row(h, i, W[h]) for i in range(6))) for h in (0, 1)]
    joined = torch.linalg.matrix_norm(f.output, 2).item() * math.hypot(*alone)
    expected = min(joined, sum(through))
    assert rounding_upper(f, X, dtype).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("score", "gap", "dtype", "share"),
    [
        # just past the middle of two numbers: balanced keys are rounded apart
        (1 + 2.0**-8 * 1.001, 0.0, torch.bfloat16, 0.98),
        # ±24 in an 8-bit format: odds of e turn into 1/e
        (24.99, 0.99, torch.float8_e4m3fn, 0.85),
    ],
)
def test_sharp_for_scores(score, gap, dtype, share):
    """One query, two keys of values ±1 and scores ±score, and weights of log-odds ``gap``."""
    A, V = torch.eye(2, dtype=F64), torch.tensor([[0.0, 1.0]], dtype=F64)
    X = torch.tensor([[score, 1.0], [-score, -1.0]], dtype=F64)
    A[1, 1] = 0
    masses = torch.tensor([gap / 2 - score, score - gap / 2], dtype=F64)
    mask = torch.tensor([[True, True], [False, True]])
    f = Attention.from_matrices(A / score, V, log_weights=masses, mask=mask)
    bound = rounding_upper(f, X, dtype, sources=("scores",)).item()
    assert share < moved(f, X, dtype, ("scores",)) / bound <= SLACK


@pytest.mark.parametrize("source", ["weights", "values"])
def test_sharp_for_weights_and_values(source):
    """Numbers just below the middle of 1 and its neighbour lose nearly the largest share."""
    x = 1 + 2.0**-8 * 0.999
    value = torch.tensor([[x if source == "values" else 1.0]], dtype=F64)
    masses = torch.tensor([math.log(x), math.log(2 - x)], dtype=F64)
    f = Attention.from_matrices(torch.zeros(1, 1, dtype=F64), value, log_weights=masses)
    X = torch.tensor([[1.0], [0.0 if source == "weights" else 1.0]], dtype=F64)
    bound = rounding_upper(f, X, torch.bfloat16, sources=(source,)).item()
    assert 0.98 < moved(f, X, torch.bfloat16, (source,)) / bound <= SLACK


def test_batches_single_precision_and_refusals():
    f, X = layer("projected"), draw(9, 3, 6, 4)
    found = rounding_upper(f, X, torch.bfloat16)
    each = [rounding_upper(f, x, torch.bfloat16).item() for x in X]
    assert found.tolist() == pytest.approx(each, rel=1e-12)
    single = rounding_upper(f.to(torch.float32), X.float(), torch.bfloat16)
    assert single.dtype == torch.float32
    assert single.tolist() == pytest.approx(each, rel=1e-4)
    with pytest.raises(ValueError, match="sources"):
        rounding_upper(f, X, torch.bfloat16, sources=("tokens",))
    sinks = Attention.from_matrices(torch.eye(2), torch.eye(2), sinks=torch.zeros(1))
    with pytest.raises(ValueError, match="attention"):
        rounding_upper(sinks, torch.ones(2, 2), torch.bfloat16)
