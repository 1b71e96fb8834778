"""Published bounds, typed again and reached; the attack tries to break them, and knows which fail."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from draws import draw
from lab import rivals
from lipcore import Attention


def norm(M):
    return torch.linalg.matrix_norm(M, 2)


def test_local_formulas_by_hand():
    A, V, X = draw(0, 3, 3), draw(1, 2, 3), draw(2, 4, 3)
    f = Attention.from_matrices(A, V)
    P = torch.softmax((X @ A.mT) @ X.mT, dim=-1)
    top = P.sort(dim=-1, descending=True).values
    g = (top[:, 0] * (1 - top[:, 0] + top[:, 1])).max()
    expected = norm(V) * (norm(P) + 2 * norm(X) ** 2 * norm(A) * g)
    assert rivals.yudin2025_local_upper(f, X).item() == pytest.approx(expected.item(), rel=1e-12)
    reach, diameter = (X @ A.mT).norm(dim=-1).max(), torch.cdist(X, X).max()
    released = norm(V) * (reach**2 * diameter**2 * 5 + 4).sqrt()
    found = rivals.castin2024_released_compute_bound(f, X)
    assert found.item() == pytest.approx(released.item(), rel=1e-12)
    mean = rivals.yudin2025_local_upper(Attention.from_matrices(0 * A, V), X)
    assert mean.item() == pytest.approx(norm(V).item())  # the norm of x ↦ V mean(x)


def test_softmax_norm_upper_holds_and_is_sharp():
    scale = torch.logspace(-2, 2, 400, dtype=torch.float64)[:, None]
    for n in (1, 2, 3, 8):
        p = torch.softmax(scale * draw(n, 400, n), dim=-1)
        exact = torch.linalg.eigvalsh(torch.diag_embed(p) - p[:, :, None] * p[:, None, :])[:, -1]
        bound = rivals.softmax_norm_upper(p)
        assert (exact <= bound + 1e-15).all()
        assert n == 1 or (exact / bound).max() > 0.999
    assert rivals.softmax_norm_upper(torch.tensor([0.5, 0.5])) == 0.5


def test_infinity_to_one_norm():
    signs = 1.0 - 2 * (torch.arange(2**7)[:, None] >> torch.arange(7) & 1).double()
    p = torch.softmax(draw(0, 50, 7) * torch.logspace(-1, 1, 50).double()[:, None], dim=-1)
    M = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    reached = (M @ signs.mT).abs().sum(1).amax(-1)
    assert torch.allclose(rivals.emadi2026_softmax_norm(p), reached, rtol=1e-12)
    many = torch.full((2, 100), 0.001, dtype=torch.float64)
    many[0, 0], many[1, :2] = 0.901, 0.451
    assert rivals.emadi2026_softmax_norm(many).tolist() == pytest.approx([4 * 0.901 * 0.099, 1.0])


def token_norm(J):
    """Norm between largest-token norms, in dimension two: of each output token, over directions g of it."""
    angle = torch.linspace(0, math.pi, 100, dtype=J.dtype)
    blocks = J.unflatten(1, (-1, 2)).unflatten(3, (-1, 2))  # (K, i, p, j, s)
    pulled = torch.einsum("kipjs,pm->kimjs", blocks, torch.stack([angle.cos(), angle.sin()]))
    return pulled.norm(dim=-1).sum(-1).amax()


def test_token_norm_bound_holds_and_is_reached(truth):
    best = 0.0
    for seed, a, causal in itertools.product(range(6), (0.0, 0.5, 3.0, 10.0), (False, True)):
        A, V, X = draw(seed, 2, 2), draw(seed + 1, 2, 2), draw(seed + 2, 20, 4, 2)
        A, X = a * A / norm(A), X / X.norm(dim=-1, keepdim=True)
        f = Attention.from_matrices(A, V, causal=causal)
        theta = rivals.emadi2026_softmax_norm(f.weights(X)).amax().clamp(max=1.0).item()
        norm_v = norm(V).item()
        bound = rivals.emadi2026_token_upper(radius=1.0, norm_a=a, norm_v=norm_v, theta=theta)
        assert bound == pytest.approx(norm_v * (1 + 2 * a * theta))
        best = max(best, token_norm(truth.jacobians(f, X)).item() / bound)
    assert 0.9 < best <= 1 + 1e-9


def test_kim_by_hand():
    size = {"head_dim": 4, "norms_q": [2.0, 1.0], "norms_v": [3.0, 0.5], "norm_o": 1.5}
    for n in (2, 50):
        c = brentq(lambda x: x * math.exp(x + 1) - n + 1, 0, 50, xtol=1e-14)  # noqa: B023
        expected = math.sqrt(n / 4) * (4 * c + 1) * 1.5
        both = (rivals.kim2021_l2_upper, rivals.kim2021_l2_upper_restated)
        found = [upper(n=n, **size) for upper in both]
        heads = np.sqrt([16 * 9 + 0.25, 4 * 9 + 0.25])
        np.testing.assert_allclose(found, expected * heads, rtol=1e-9)
    assert math.isfinite(rivals.kim2021_l2_upper(n=10**12, **size, log=True))


@pytest.mark.parametrize("name", ["rotary", "sinks", "softcap"])
def test_statements_are_not_stretched(make_case, name):
    case = make_case(name)
    for bound in (rivals.yudin2025_local_upper, rivals.castin2024_released_compute_bound):
        with pytest.raises(ValueError, match=name):
            bound(case.attention, case.X)
