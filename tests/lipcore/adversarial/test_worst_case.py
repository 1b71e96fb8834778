"""The chosen construction: never below the theorems, far above chance, near the bounds."""

import pytest
import torch

from lipcore import Attention, bounds, local_lipschitz
from lipcore.adversarial import worst_case_inputs


def _tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def _draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


MATRICES = {
    "negative": _tensor([-3.0, 0], [0, -3]),
    "positive": _tensor([3.0, 0], [0, 3]),
    "rotation": _tensor([0, -3.0], [3, 0]),
    "non-normal": _tensor([1, 5.0], [0, 1]),
    "symmetric": _tensor([4, 1.0], [1, -0.1]),
    "low rank": _tensor([0, 50.0], [0, 0]),
    "zero": _tensor([0.0, 0], [0, 0]),
    "one dimension": _tensor([-2.0]),
    "seven dimensions": _draw(3, 7, 7),
}


def _head(A, causal=False):
    return Attention.from_matrices(A, torch.eye(len(A), dtype=A.dtype), causal=causal)


def _sigma(f, X):
    return torch.linalg.matrix_norm(f.jacobian(X).dense(), 2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MATRICES)
def test_worst_case_reaches_every_lower_bound(name, causal):
    A = MATRICES[name]
    gamma = bounds.eigen_gamma(A)[0]
    V = torch.eye(len(A), dtype=A.dtype)
    for n, radius in ((1, 1.0), (2, 1.0), (3, 0.5), (20, 1.3)):
        X = worst_case_inputs(A, n, radius, causal=causal)
        assert X.shape == (n, len(A)) and X.dtype == A.dtype
        assert (X.norm(dim=-1) <= radius * (1 + 1e-12)).all()
        size = {"n": n, "radius": radius}
        if causal:
            floor = bounds.masked_lower(gamma=gamma, norm_v=1.0, **size)
        else:
            eigen = bounds.adversarial_lower(gamma=gamma, norm_v=1.0, **size)
            floor = max(eigen, bounds.score_gap_lower(A=A, V=V, **size))
        assert _sigma(_head(A, causal), X).item() >= floor * (1 - 1e-9)


def test_worst_case_beats_random_inputs():
    A, n, radius = MATRICES["rotation"], 12, 1.0
    X = _draw(0, 200, n, 2)
    X = radius * X / X.norm(dim=-1, keepdim=True)
    for causal in (False, True):
        f = _head(A, causal)
        assert _sigma(f, worst_case_inputs(A, n, radius, causal=causal)) > 1.2 * _sigma(f, X).max()


def test_worst_case_uses_copies_once_one_token_is_too_few():
    """For n far above e^{g*} one token in n is seen by no one; a share of e^{−g*} is."""
    A, n = 2 / 3 * MATRICES["rotation"], 400
    X = worst_case_inputs(A, n, 1.0)
    copies = (X == X[0]).all(-1).sum().item()
    assert 1 < copies < n / 2
    value = local_lipschitz(_head(A), X, tol=1e-8).value.item()
    assert value > 2.5 * bounds.score_gap_lower(n=n, radius=1.0, A=A, V=torch.eye(2, dtype=A.dtype))
    assert value <= bounds.unified_upper_sharp(radius=1.0, norm_a=2.0, norm_v=1.0)


def test_worst_case_comes_within_a_small_factor_of_the_bound():
    A = MATRICES["negative"]
    upper = bounds.unified_upper_sharp(n=500, radius=1.0, norm_a=3.0, norm_v=1.0)
    assert local_lipschitz(_head(A), worst_case_inputs(A, 500, 1.0)).value > 0.7 * upper


def test_single_precision_in_single_precision_out():
    assert worst_case_inputs(MATRICES["symmetric"].float(), 5, 1.0).dtype == torch.float32


def test_weights_that_ask_for_gradients():
    A = torch.tensor([[-3.0]], requires_grad=True)
    assert worst_case_inputs(A, n=5, radius=1.0).shape == (5, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.zeros(2, 3), 2, 1.0), ValueError, "^A: "),
        ((torch.eye(2), 0, 1.0), ValueError, "^n: "),
        ((torch.eye(2), 2, -1.0), ValueError, "^radius: "),
        ((torch.eye(2), 2, 1e200), ValueError, "^radius: "),
        ((torch.eye(2), 2.5, 1.0), TypeError, "^n: "),
    ],
)
def test_bad_input_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        worst_case_inputs(*arguments)
