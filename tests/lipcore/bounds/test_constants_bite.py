"""Published constants are needed: a tenth less, or one term less, and some input is above the bound."""

import math

import pytest
import torch

from lipcore import Attention, bounds, local_lipschitz
from lipcore.adversarial import ascend
from lipcore.bounds._columns import log_column_sum

F64 = torch.float64
ONE = torch.eye(1, dtype=F64)
EYE = torch.eye(2, dtype=F64)


def climbed(A, X):
    f = Attention.from_matrices(A, torch.eye(len(A), dtype=F64))
    return ascend(f, X, 1.0, steps=100, progress=False).value.item()


def two_diracs(truth, a):
    """The best two Diracs for A = −a on a line, in L²(μ)."""
    odds = torch.linspace(2 * a - 2, 2 * a + 4, 601, dtype=F64)
    light = torch.nn.functional.logsigmoid
    masses = torch.stack([light(-odds), light(odds)], dim=-1)
    X = torch.tensor([[-1.0], [1.0]], dtype=F64).expand(len(odds), 2, 1)
    return truth.of_head(-a * ONE, ONE, X, masses).max().item()


@pytest.fixture(scope="module")
def pair():
    """(a, A, truth) of two tokens that nearly reach the bound through the score gap."""
    start = torch.tensor([[-0.9], [1.0]], dtype=F64)
    return [(a, a * ONE, climbed(a * ONE, start)) for a in (0.05, 0.1, 0.2)]


#: As thm-every writes it, term by term: the row, its 1 and its a², and the own query.
def every(a, log_S, row=1.0, keys=1.0, own=1.0):
    return row * math.sqrt((1 + keys * a * a) * math.exp(log_S)) + own * a


def test_one_bound_for_every_regime(pair, truth):
    broken = {"row": 0, "keys": 0, "own": 0}
    found = [(a, log_column_sum(2, math.log(a), a / 4), value) for a, _, value in pair]
    found += [(a, 2 * a, two_diracs(truth, a)) for a in (3.0, 6.0)]
    found += [(1e-12, 0.0, 1.0)]  # averaging has norm one
    for a, log_S, value in found:
        assert value <= every(a, log_S) * (1 + 1e-9)
        broken["row"] += value > every(a, log_S, row=0.9)
        broken["keys"] += value > every(a, log_S, keys=0.0)
        broken["own"] += value > every(a, log_S, own=0.0)
    assert all(broken.values())
    assert max(value / every(a, log_S) for a, log_S, value in found[:3]) > 0.95


@pytest.mark.parametrize("sign", [-1, 1])
def test_column_sums(sign):
    """Nearly all mass at the maximiser: the exponent is the score gap, a tenth less is false."""
    A = sign * EYE
    for square in (0.5, 4.0, 20.0):
        gap, u = bounds.score_gap(A)
        x = math.sqrt(square) * u
        y = math.sqrt(square) * (A @ u) / (A @ u).norm()
        collected = ((A @ x) @ (y - x)).item()  # log S(y) for the point mass at x
        assert collected == pytest.approx(gap * square, rel=1e-9)
        # one token at y, the others at x: what y collects from them, and its own vote
        n = 2 + int(10 * math.exp(collected))
        p = 1 / (1 + (n - 1) * math.exp(-collected))
        own = 1 / (1 + (n - 1) * math.exp(((A @ y) @ (x - y)).item()))
        limit = math.exp(log_column_sum(n, math.log(square), gap * square))
        assert 0.9 * limit < (n - 1) * p + own <= limit * (1 + 1e-12)
        shorter = math.exp(log_column_sum(n, math.log(square), 0.9 * gap * square))
        assert (n - 1) * p + own > shorter


def test_mean_field_sharp(truth):
    a = 3.0
    size = {"radius": 1.0, "norm_a": a, "norm_v": 1.0}
    reached = two_diracs(truth, a)
    bound = bounds.mean_field_upper_sharp(**size)
    assert 0.9 * bound < bound - a < reached <= bound


def test_torn_bound():
    a, n = 64.0, 10_000
    reached = bounds.torn_lower(n=n, radius=1.0, A=-a * EYE, V=EYE)
    bound = bounds.torn_upper(n=n, radius=1.0, norm_a=a, norm_v=1.0)
    assert 0.9 * bound < reached <= bound


def test_masked_bound():
    """Hardy's 2 at a = 0; without the keys' 4a, or the factor e^a, a leader among opposites is above."""
    assert bounds.causal_average_norm(10**7) > 0.9 * 2
    n, a = 3000, 2.0
    X = torch.ones(n, 1, dtype=F64)
    X[0] = -1
    f = Attention.from_matrices(-a * ONE, ONE, causal=True)
    reached = local_lipschitz(f, X, tol=1e-3).value.item()
    assert reached > 2 * math.exp(a) + a - 0.5 and reached > 2 * (1 + 2 * a) + a
    assert reached <= bounds.masked_upper(n=10**40, radius=1.0, norm_a=a, norm_v=1.0)


def test_half_of_a_root_is_needed():
    """¹⁄₂‖V‖√(n−1): a V that sees neither where the crowd looks nor where it stands."""
    V = torch.diag(torch.tensor([0.0, 1.0], dtype=F64))
    n = 1000
    a = 4 * math.log(n - 1)
    X = torch.tensor([[1.0, 0.0]] + [[0.5, 0.0]] * (n - 1), dtype=F64)
    f = Attention.from_matrices(a * EYE, V)
    reached = local_lipschitz(f, X, tol=1e-6).value.item()
    assert math.sqrt(n - 1) / 2 <= reached < math.sqrt(n - 1) / 2 / 0.9


@pytest.mark.parametrize(("V", "limit"), [("I", 12.4), ("any", 200.0)])
def test_order_of_the_constant(V, limit):
    """Upper over lower bound of measures: below what is proved, and never below one."""
    generator = torch.Generator().manual_seed(0)
    widths = []
    for trial in range(64):
        d = 2 + trial % 3
        M = torch.randn(d, d, generator=generator, dtype=F64)
        A = (M, M + M.mT, M - M.mT, M @ M.mT, -M @ M.mT, torch.outer(M[0], M[1]))[trial % 6]
        A = A / torch.linalg.matrix_norm(A, 2)
        W = torch.randn(1 + trial % 2, d, generator=generator, dtype=F64)
        head = {"A": A, "V": torch.eye(d, dtype=F64) if V == "I" else W, "log": True}
        for a in (0.1, 4.0, 50.0, 1e4):
            size = {"radius": math.sqrt(a)}
            widths.append(bounds.best_upper(**head, **size) - bounds.best_lower(**head, **size))
    assert min(widths) >= -1e-9
    assert math.exp(max(widths)) < (limit if V == "I" else 20.0)


def test_slack_of_the_published_bound():
    """No input is known that reaches nine tenths of it: √3 pays for three equal terms."""
    found = []
    for a, n in ((0.3, 2), (1.0, 4), (3.0, 8)):
        start = torch.randn(6, n, 2, generator=torch.Generator().manual_seed(n), dtype=F64)
        start = start / start.norm(dim=-1, keepdim=True)
        f = Attention.from_matrices(-a * EYE, EYE)
        top = ascend(f, start, 1.0, steps=60, progress=False).value.max().item()
        found.append(top / bounds.general_upper(n=n, radius=1.0, norm_a=a, norm_v=1.0))
    assert 0.2 < max(found) < 0.5
