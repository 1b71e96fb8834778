"""Jacobians in three terms and by autodiff, against its modes, differences, and the formula."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import lipcore.jacobian as module
from lipcore import Attention, AttentionJacobian, AutogradJacobian, local_lipschitz
from seeded import drawn

EXACT = {"rtol": 1e-12, "atol": 1e-12}  # float64, against autodiff


def flat_dense(operator):
    return operator.dense().reshape(-1, *operator.shape)


@pytest.mark.parametrize("autodiff", [torch.func.jacrev, torch.func.jacfwd])
def test_agrees_with_autodiff(every_case, autodiff):
    """Of each member alone."""
    found = flat_dense(every_case.attention.jacobian(every_case.X))
    dense = [autodiff(m.attention)(m.X).reshape(-1, m.X.numel()) for m in every_case.members]
    torch.testing.assert_close(found, torch.stack(dense), **EXACT)


def test_autograd_agrees_with_three_terms(every_case):
    """As operators on the whole batch, and transposed."""
    found = AutogradJacobian(every_case.attention, every_case.X)
    expected = every_case.attention.jacobian(every_case.X)
    assert found.shape == expected.shape and found.batch_shape == expected.batch_shape
    torch.testing.assert_close(found.dense(), expected.dense(), **EXACT)
    torch.testing.assert_close(found.T.dense(), expected.T.dense(), **EXACT)


def test_agrees_with_central_differences(every_case):
    f, X = every_case.attention, every_case.X
    step, H = 1e-5, drawn(*X.shape, seed=1)
    difference = (f(X + step * H) - f(X - step * H)) / (2 * step)
    scale = max(difference.abs().max().item(), 1)
    torch.testing.assert_close(f.jacobian(X).matvec(H), difference, rtol=0, atol=1e-7 * scale)


@pytest.mark.parametrize("causal", [False, True])
def test_three_terms_of_the_theory(randn, causal):
    """The formula of the theorem, written out with loops."""
    A, V, X, H = randn(3, 3), randn(2, 3), randn(5, 3), randn(5, 3)
    attention = Attention.from_matrices(A, V, causal=causal)
    moved, P = attention.jacobian(X).matvec(H), attention.weights(X)[0]
    for i in range(5):
        mean = sum(P[i, j] * X[j] for j in range(5))
        covariance = sum(P[i, j] * torch.outer(X[j] - mean, X[j] - mean) for j in range(5))
        mixing = sum(P[i, j] * H[j] for j in range(5))
        keys = sum(P[i, j] * (X[j] - mean) * ((A @ X[i]) @ H[j]) for j in range(5))
        expected = V @ (mixing + covariance @ A @ H[i] + keys)
        torch.testing.assert_close(moved[i], expected, **EXACT)


def test_adjoint(every_case):
    J = every_case.attention.jacobian(every_case.X)
    H = drawn(*J.batch_shape, *J.input_shape, seed=2)
    G = drawn(*J.batch_shape, *J.output_shape, seed=3)
    forward, backward = (J.matvec(H) * G).sum((-2, -1)), (H * J.rmatvec(G)).sum((-2, -1))
    torch.testing.assert_close(forward, backward, rtol=1e-12, atol=1e-11)
    assert J.shape == (J.T.shape[1], J.T.shape[0])
    assert torch.equal(J.T.matvec(G), J.rmatvec(G)) and torch.equal(J.T.rmatvec(H), J.matvec(H))


# --- tiles and memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("store", [True, False], ids=["P kept", "P worked out anew"])
def test_tiles_change_nothing(case_in_three_terms, monkeypatch, store):
    """Tiles of one head and three rows at a time, the last one shorter, give the same products."""
    f, X = case_in_three_terms.attention, case_in_three_terms.X
    whole = flat_dense(f.jacobian(X))
    monkeypatch.setattr(module, "TILE_BYTES", 1)
    monkeypatch.setattr(module, "TILE_ROWS", 3)
    tiled = AttentionJacobian(f, X, store=store)
    torch.testing.assert_close(flat_dense(tiled), whole, **EXACT)
    torch.testing.assert_close(flat_dense(tiled.T), whole.mT, **EXACT)


def test_long_sequences_are_not_stored(make_case, monkeypatch):
    case = make_case("biases, causal")
    assert case.attention.jacobian(case.X)._P is not None
    monkeypatch.setattr(module, "WEIGHTS_BYTES", 1)
    assert case.attention.jacobian(case.X)._P is None


# --- digits --------------------------------------------------------------------------------------


def test_settled_rows_lose_no_digits():
    """Each token looks at the other, all but 1e-6 of it: what is left is right in float32, too."""
    attention = Attention.from_matrices(-torch.eye(1), torch.eye(1))
    X, H = torch.tensor([[2.625], [-2.625]]), torch.tensor([[1.0], [0.0]])
    single = attention.jacobian(X)
    double = attention.to(torch.float64).jacobian(X.double())
    for name in ("matvec", "rmatvec"):
        found, exact = getattr(single, name)(H)[0].double(), getattr(double, name)(H.double())[0]
        torch.testing.assert_close(found, exact, rtol=1e-5, atol=0)


def test_single_precision(case):
    double = case.attention.jacobian(case.X).dense()
    single = case.attention.to(torch.float32).jacobian(case.X.float()).dense().double()
    scale = double.abs().max().item()
    torch.testing.assert_close(single, double, rtol=1e-4, atol=2e-5 * scale)


@pytest.mark.parametrize("radius", [1e-6, 1e4, 1e6])
def test_extreme_radii(make_case, radius):
    """No NaN; mixing alone is left, but for rounding, which the scores ‖A‖R² amplify."""
    case = make_case("one head")
    J = case.attention.jacobian(radius * case.X).dense()
    mixing = torch.kron(case.attention.weights(radius * case.X)[0], case.attention.value[0])
    torch.testing.assert_close(J, mixing, rtol=0, atol=1e-9)


def test_value_bias_costs_no_digits(randn):
    """It drops out of the Jacobian, however large."""
    weights = {name: randn(1, 2, 3) for name in ("query", "key", "value")}
    X, bias = randn(4, 3), 1e12 * randn(1, 2)
    expected = Attention(**weights).jacobian(X).dense()
    biased = Attention(**weights, value_bias=bias).jacobian(X).dense()
    torch.testing.assert_close(biased, expected, **EXACT)


# --- autodiff ------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [4, 20])  # 20: the layer is compressed first
def test_weights_that_ask_for_gradients(randn, d):
    """The parameters of a model as they are: measured, and left out of any graph."""
    weights = {name: randn(1, 2, d) for name in ("query", "key", "value")}
    weights["output"] = randn(d, 2)
    X = randn(3, d).requires_grad_()
    expected = local_lipschitz(Attention(**weights), X.detach())
    found = local_lipschitz(Attention(**{name: nn.Parameter(w) for name, w in weights.items()}), X)
    assert torch.equal(found.value, expected.value)
    assert not (found.left.requires_grad or found.right.requires_grad or found.upper.requires_grad)


def test_repeated_tokens_in_one_memory(randn):
    X = randn(2, 1, 4).expand(2, 3, 4)
    found = local_lipschitz(torch.sin, X, tol=1e-10).value
    torch.testing.assert_close(found, X.cos().abs().amax((-2, -1)))


def test_threads_do_not_meet(randn):
    """Forward mode and the choice of attention kernels are one for the process."""

    def kernels():
        names = ("flash", "mem_efficient", "math")
        return [getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in names]

    def map_(X):
        return scaled_dot_product_attention(X, X, X.sin())

    X, before = randn(1, 5, 4), kernels()
    expected = local_lipschitz(map_, X).value
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: local_lipschitz(map_, X).value, range(24)))
    assert all(torch.equal(value, expected) for value in found) and kernels() == before


# --- operators, and what they refuse -------------------------------------------------------------


ONES = torch.ones(3, 2)
LAYER = Attention.from_matrices(torch.eye(2), torch.eye(2))
BAD_INPUT = [
    ("X", lambda: LAYER.jacobian(torch.ones(3, 4))),
    ("X", lambda: AutogradJacobian(torch.sin, ONES * math.inf)),
    ("X", lambda: AutogradJacobian(torch.sin, ONES.half())),
    ("H", lambda: LAYER.jacobian(ONES).matvec(ONES[0])),
    ("H", lambda: LAYER.jacobian(ONES).matvec(ONES.double())),
    ("G", lambda: LAYER.jacobian(ONES).rmatvec([1.0])),
    ("H", lambda: AutogradJacobian(torch.sin, ONES).matvec(ONES[0])),
]


@pytest.mark.parametrize(("named", "call"), BAD_INPUT)
def test_bad_input(named, call):
    with pytest.raises((ValueError, TypeError), match=f"^{named}: "):
        call()
