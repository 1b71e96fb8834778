"""Jacobians in three terms and by autodiff, against both its modes, differences, and the formula."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout, scaled_dot_product_attention

import lipcore.jacobian as module
from lipcore import Attention, AttentionJacobian, AutogradJacobian, local_lipschitz, spectral_norm
from lipcore.operators import MatrixOperator

EXACT = {"rtol": 1e-12, "atol": 1e-12}  # float64, against autodiff


def members(X):
    """The members of a batch, (n, d) each."""
    return X.reshape(-1, *X.shape[-2:])


def matrix(jacobian_of_arrays, X):
    """(n, q, n, d) → (nq, nd)."""
    return jacobian_of_arrays.reshape(-1, X.numel())


def flat_dense(operator):
    return operator.dense().reshape(-1, *operator.shape)


@pytest.mark.parametrize(
    "autodiff", [torch.func.jacrev, torch.func.jacfwd], ids=["reverse", "forward"]
)
def test_agrees_with_autodiff(every_case, autodiff):
    case = every_case
    found = flat_dense(case.attention.jacobian(case.X))
    expected = torch.stack([matrix(autodiff(m.attention)(m.X), m.X) for m in case.members])
    torch.testing.assert_close(found, expected, **EXACT)


def test_agrees_with_central_differences(every_case):
    case = every_case
    step, J = 1e-5, case.attention.jacobian(case.X)
    H = torch.randn(case.X.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    difference = (case.attention(case.X + step * H) - case.attention(case.X - step * H)) / (
        2 * step
    )
    scale = difference.abs().max().item()
    torch.testing.assert_close(J.matvec(H), difference, rtol=0, atol=1e-7 * max(scale, 1))


@pytest.mark.parametrize("causal", [False, True], ids=["unmasked", "masked"])
def test_three_terms_of_the_theory(randn, causal):
    """The formula of the theorem, written out with loops."""
    A, V, X, H = randn(3, 3), randn(2, 3), randn(5, 3), randn(5, 3)
    attention = Attention.from_matrices(A, V, causal=causal)
    P = attention.weights(X)[0]
    for i in range(5):
        mean = sum(P[i, j] * X[j] for j in range(5))
        covariance = sum(P[i, j] * torch.outer(X[j] - mean, X[j] - mean) for j in range(5))
        mixing = sum(P[i, j] * H[j] for j in range(5))
        keys = sum(P[i, j] * (X[j] - mean) * ((A @ X[i]) @ H[j]) for j in range(5))
        torch.testing.assert_close(
            attention.jacobian(X).matvec(H)[i], V @ (mixing + covariance @ A @ H[i] + keys), **EXACT
        )


def test_adjoint(every_case):
    case = every_case
    J, generator = case.attention.jacobian(case.X), torch.Generator().manual_seed(2)
    H = torch.randn(*J.batch_shape, *J.input_shape, generator=generator, dtype=torch.float64)
    G = torch.randn(*J.batch_shape, *J.output_shape, generator=generator, dtype=torch.float64)
    forward, backward = (J.matvec(H) * G).sum((-2, -1)), (H * J.rmatvec(G)).sum((-2, -1))
    torch.testing.assert_close(forward, backward, rtol=1e-12, atol=1e-11)
    assert J.shape == (J.T.shape[1], J.T.shape[0])
    assert torch.equal(J.T.matvec(G), J.rmatvec(G)) and torch.equal(J.T.rmatvec(H), J.matvec(H))


@pytest.mark.parametrize("store", [True, False], ids=["P kept", "P worked out anew"])
@pytest.mark.parametrize("rows", [1, 2, 64])
def test_tiles_change_nothing(case_in_three_terms, monkeypatch, store, rows):
    case = case_in_three_terms
    """Any cut into tiles (one head and a few rows at a time) gives the products of the whole."""
    whole = flat_dense(case.attention.jacobian(case.X))
    monkeypatch.setattr(module, "TILE_BYTES", 1)
    monkeypatch.setattr(module, "TILE_ROWS", rows)
    tiled = AttentionJacobian(case.attention, case.X, store=store)
    torch.testing.assert_close(flat_dense(tiled), whole, **EXACT)
    torch.testing.assert_close(flat_dense(tiled.T), whole.mT, **EXACT)


def test_settled_rows_lose_no_digits():
    """Each token looks at the other, all but 1e-6 of it: what is left of the derivative is right in float32, too."""
    attention = Attention.from_matrices(-torch.eye(1), torch.eye(1))
    X, H = torch.tensor([[2.625], [-2.625]]), torch.tensor([[1.0], [0.0]])
    single = attention.jacobian(X)
    double = attention.to(torch.float64).jacobian(X.double())
    for name in ("matvec", "rmatvec"):
        found, exact = getattr(single, name)(H)[0].double(), getattr(double, name)(H.double())[0]
        torch.testing.assert_close(found, exact, rtol=1e-5, atol=0)


def test_tokens_that_do_not_fit_are_refused():
    attention = Attention.from_matrices(torch.eye(8), torch.eye(8))
    for X, error in ((torch.ones(2, 3), ValueError), (torch.full((1, 8), math.nan), ValueError), ([1.0], TypeError),
                     (torch.ones(8), ValueError), (torch.ones(0, 8), ValueError)):  # fmt: skip
        with pytest.raises(error, match=r"^X: "):
            attention.jacobian(X)


def test_long_sequences_are_not_stored(make_case, monkeypatch):
    case = make_case("biases, causal")
    assert case.attention.jacobian(case.X)._P is not None
    monkeypatch.setattr(module, "WEIGHTS_BYTES", 1)
    assert case.attention.jacobian(case.X)._P is None


def test_memory_is_linear_in_the_length(randn, monkeypatch):
    """No array of the size of P is made: at 1500 tokens it would have 2 million entries."""
    monkeypatch.setattr(module, "TILE_BYTES", 2**19)
    attention, X = Attention.from_matrices(randn(2, 2), randn(2, 2), causal=True), randn(1500, 2)
    J = AttentionJacobian(attention, X, store=False)
    largest = max(P.numel() for *_, P in J._tiles())
    assert largest <= max(module.TILE_BYTES // 8, 64 * 1500) < 1500**2 / 10
    H = randn(1500, 2)
    step = 1e-5
    difference = (attention(X + step * H) - attention(X - step * H)) / (2 * step)
    torch.testing.assert_close(J.matvec(H), difference, rtol=0, atol=1e-6)


def test_batch_members_are_independent(make_case):
    case = make_case("batch")
    J = case.attention.jacobian(case.X)
    assert J.batch_shape == (2, 3)
    alone = torch.stack([case.attention.jacobian(X).dense() for X in members(case.X)])
    torch.testing.assert_close(flat_dense(J), alone, **EXACT)


def test_single_precision(case):
    """float32 agrees with float64 to float32's accuracy."""
    double = case.attention.jacobian(case.X).dense()
    single = case.attention.to(torch.float32).jacobian(case.X.float()).dense()
    torch.testing.assert_close(
        single.double(), double, rtol=1e-4, atol=2e-5 * double.abs().max().item()
    )


@pytest.mark.parametrize("radius", [1e-6, 1e4, 1e6])
def test_extreme_radii(make_case, radius):
    """No NaN; mixing alone is left, but for rounding, which the scores ‖A‖R² amplify."""
    case = make_case("one head")
    J = case.attention.jacobian(radius * case.X).dense()
    mixing = torch.kron(case.attention.weights(radius * case.X)[0], case.attention.value[0])
    torch.testing.assert_close(J, mixing, rtol=0, atol=1e-9)


def test_gradients_of_the_input_are_left_alone(make_case):
    case = make_case("one head")
    X = case.X.clone().requires_grad_()
    assert not case.attention.jacobian(X).matvec(torch.ones_like(X)).requires_grad


def test_wrong_vectors(make_case):
    case = make_case("batch")
    J = case.attention.jacobian(case.X)
    with pytest.raises(ValueError, match=r"^H: "):
        J.matvec(case.X[0, 0])
    with pytest.raises(TypeError, match=r"^H: "):
        J.matvec(case.X.float())
    with pytest.raises(TypeError, match=r"^G: "):
        J.rmatvec([1.0])


# --- autodiff -----------------------------------------------------------------------------------------------


def fused(X):
    """PyTorch's fused attention, with one head."""
    return scaled_dot_product_attention(X, X, X)


def test_autograd_agrees_with_three_terms(every_case):
    case = every_case
    found, expected = AutogradJacobian(case.attention, case.X), case.attention.jacobian(case.X)
    assert found.shape == expected.shape and found.batch_shape == expected.batch_shape
    torch.testing.assert_close(found.dense(), expected.dense(), **EXACT)
    torch.testing.assert_close(found.T.dense(), expected.T.dense(), **EXACT)


def test_returns_tangents_not_values():
    """f(X) = X + 7 has Jacobian I: the first output of jvp would be X + 7."""
    X = torch.zeros(2, 1, dtype=torch.float64)
    assert torch.equal(
        AutogradJacobian(lambda X: X + 7, X).dense(), torch.eye(2, dtype=torch.float64)
    )


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention(randn, causal):
    X = randn(2, 5, 4)
    att = Attention.from_matrices(torch.eye(4).double() / 2, torch.eye(4).double(), causal=causal)
    J = AutogradJacobian(lambda X: scaled_dot_product_attention(X, X, X, is_causal=causal), X)
    torch.testing.assert_close(J.dense(), att.jacobian(X).dense(), **EXACT)
    torch.testing.assert_close(J.T.dense(), att.jacobian(X).T.dense(), **EXACT)


def test_multihead_attention_module(randn):
    """torch.nn.MultiheadAttention and the Attention made of its weights have one Jacobian."""
    torch.manual_seed(0)
    layer = (
        nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
        .eval()
        .requires_grad_(False)
    )
    parts = layer.in_proj_weight.unflatten(0, (3, 2, 4))
    biases = layer.in_proj_bias.unflatten(0, (3, 2, 4))
    attention = Attention(
        *parts, *biases, output=layer.out_proj.weight, output_bias=layer.out_proj.bias
    )
    X = randn(3, 6, 8)
    torch.testing.assert_close(attention(X), layer(X, X, X, need_weights=False)[0])
    value = local_lipschitz(lambda X: layer(X, X, X, need_weights=False)[0], X, tol=1e-12).value
    torch.testing.assert_close(value, local_lipschitz(attention, X, tol=1e-12).value)


def test_maps_with_branches(randn):
    """A map that looks at values cannot be traced, and falls back to one jvp a product."""
    X = randn(3, 2)
    J = AutogradJacobian(lambda X: torch.tanh(X) if float(X.sum()) > -100 else X, X)
    torch.testing.assert_close(J.dense(), torch.diag(1 - torch.tanh(X.flatten()) ** 2))


class _NoRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X):
        return X.clone()


BAD_MAPS = {
    "training": (lambda: nn.Dropout(0.5), ValueError, "^fn: .*evaluation"),
    "method of a training module": (
        lambda: nn.Dropout(0.5).forward,
        ValueError,
        "^fn: .*evaluation",
    ),
    "training inside": (
        lambda: (
            nn.Sequential(nn.Linear(2, 2), nn.Dropout())
            .eval()
            .requires_grad_(False)
            .append(nn.Dropout())
        ),
        ValueError,
        "^fn: .*evaluation",
    ),
    "dropout in a function": (
        lambda: lambda X: dropout(X, 0.5, training=True),
        ValueError,
        "^fn: .*chance",
    ),
    "tuple": (lambda: lambda X: (X, None), TypeError, "^fn: .*wrap it"),
    "not a map": (lambda: 3, TypeError, "^fn: "),
    "batch lost": (lambda: lambda X: X.sum(0), ValueError, "^fn: .*batch"),
    "another dtype": (lambda: lambda X: X.float(), TypeError, r"^fn\(X\)"),
    "not finite": (lambda: lambda X: X / 0, ValueError, r"^fn\(X\): "),
}


@pytest.mark.parametrize("name", BAD_MAPS)
def test_bad_maps(name):
    make, error, message = BAD_MAPS[name]
    with pytest.raises(error, match=message) as caught:
        AutogradJacobian(make(), torch.ones(2, 3, 2, dtype=torch.float64))
    assert "\n" not in str(caught.value)


def test_no_derivative_rule():
    """The error says in one line what to change, and at once."""
    with pytest.raises(NotImplementedError, match="backward") as caught:
        AutogradJacobian(_NoRule.apply, torch.ones(3, 2))
    assert "\n" not in str(caught.value)


def test_bad_tokens():
    with pytest.raises(ValueError, match=r"^X: "):
        AutogradJacobian(torch.sin, torch.tensor([[math.inf]]))
    with pytest.raises(TypeError, match=r"^X: "):
        AutogradJacobian(torch.sin, torch.ones(2, 2, dtype=torch.float16))


def test_matrix_operator(randn):
    M = randn(2, 3, 4)
    operator = MatrixOperator(M)
    assert torch.equal(operator.dense(), M)
    torch.testing.assert_close(operator.T.dense(), M.mT, rtol=1e-15, atol=1e-15)
    torch.testing.assert_close(spectral_norm(operator.T).value, torch.linalg.matrix_norm(M, 2))


@pytest.mark.parametrize("d", [4, 20])  # 20: the layer is compressed first
def test_weights_that_ask_for_gradients(randn, d):
    """The parameters of a model as they are: measured, and left out of any graph."""
    weights = {
        "query": randn(1, 2, d),
        "key": randn(1, 2, d),
        "value": randn(1, 2, d),
        "output": randn(d, 2),
    }
    X = randn(3, d)
    expected = local_lipschitz(Attention(**weights), X)
    found = local_lipschitz(Attention(**{name: nn.Parameter(w) for name, w in weights.items()}), X)
    assert torch.equal(found.value, expected.value)
    assert not (found.left.requires_grad or found.right.requires_grad or found.upper.requires_grad)


def test_value_bias_costs_no_digits(randn):
    """It drops out of the Jacobian, however large."""
    weights, X = (
        {"query": randn(1, 2, 3), "key": randn(1, 2, 3), "value": randn(1, 2, 3)},
        randn(4, 3),
    )
    expected = Attention(**weights).jacobian(X).dense()
    biased = Attention(**weights, value_bias=1e12 * randn(1, 2)).jacobian(X).dense()
    torch.testing.assert_close(biased, expected, **EXACT)


@pytest.mark.parametrize("inside", [True, False], ids=["measured inside", "made inside"])
def test_inference_mode(inside):
    """Derivatives would be zero in it, without a word."""
    with torch.inference_mode():
        X = torch.tensor([[1.0, -2.0], [0.5, 0.0]])
        if inside:
            assert local_lipschitz(lambda X: 3 * X, X).value.item() == pytest.approx(3)
    assert local_lipschitz(lambda X: X**2, X).value.item() == pytest.approx(4)


def test_maps_that_work_in_place(randn):
    X = randn(2, 3, 4)
    before = X.clone()
    found = local_lipschitz(lambda X: X.mul_(X.sum((-2, -1), keepdim=True)), X, tol=1e-10)
    assert torch.equal(X, before)
    expected = local_lipschitz(lambda X: X * X.sum((-2, -1), keepdim=True), X, tol=1e-10)
    torch.testing.assert_close(found.value, expected.value)


def test_repeated_tokens_in_one_memory(randn):
    X = randn(2, 1, 4).expand(2, 3, 4)
    found = local_lipschitz(torch.sin, X, tol=1e-10).value
    torch.testing.assert_close(found, X.cos().abs().amax((-2, -1)))


def test_one_number_from_each_member(randn):
    """The constant is the gradient's norm."""
    X = randn(2, 3, 4)
    found = local_lipschitz(lambda X: X.square().sum((-2, -1)), X, tol=1e-10)
    torch.testing.assert_close(found.value, 2 * X.flatten(1).norm(dim=-1))
    assert found.left.shape == (2,) and found.right.shape == X.shape


def test_threads_do_not_meet(randn):
    """Forward mode and the choice of attention kernels are one for the process."""

    def kernels():
        return [
            getattr(torch.backends.cuda, f"{name}_sdp_enabled")()
            for name in ("flash", "mem_efficient", "math")
        ]

    def map_(X):
        return scaled_dot_product_attention(X, X, X.sin())

    X, before = randn(1, 5, 4), kernels()
    expected = local_lipschitz(map_, X).value
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: local_lipschitz(map_, X).value, range(60)))
    assert all(torch.equal(value, expected) for value in found) and kernels() == before
