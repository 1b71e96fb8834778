"""The Jacobian at tX for large t: its limit law, with and without ties."""

import math

import pytest
import torch

from draws import F64, ONE, draw, norm, tensor
from lipcore import Attention
from lipcore.bounds import large_radius, large_radius_error


def problem(seed, *, whole):
    chance = torch.Generator().manual_seed(seed)
    n, d, p = torch.randint(2, 7, (3,), generator=chance).tolist()
    X, A, V = draw(seed, n, d), draw(seed + 100, d, d), draw(seed + 200, p, d)
    return (X.round(), A.round(), V) if whole else (X, A, V)


@pytest.mark.parametrize("whole", [False, True], ids=["generic", "ties"])
@pytest.mark.parametrize("causal", [False, True])
def test_law_holds_within_its_error(whole, causal):
    for seed in range(15):
        X, A, V = problem(seed, whole=whole)
        law = large_radius(X, A, V, causal=causal)
        if math.isinf(law.gap):
            continue
        radius = X.norm(dim=-1).max().item()
        sizes = {"radius": radius, "norm_a": norm(A), "norm_v": norm(V), "ties": bool(law.ties)}
        for u in (0.1, 1.0, 8.0, 40.0):
            t = (u / law.gap.item()) ** 0.5
            J = Attention.from_matrices(A, V, causal=causal).jacobian(t * X).dense()
            bound = large_radius_error(n=len(X), t=t, gap=law.gap.item(), **sizes)
            assert norm(J - law.at(t)) <= bound
        assert torch.allclose(law.at(t), J, atol=1e-9)


def test_limit_is_a_square_root():
    X, A, V = problem(3, whole=False)
    law = large_radius(X, A, V)
    q = law.weights.argmax(-1).bincount().max()
    assert not law.ties and law.most_attended == q
    assert norm(law.mixing) == pytest.approx(q**0.5 * norm(V))
    assert not law.second_order.any()
    three = tensor([-1.0], [0.5], [2.0])  # the second and the third look at the third
    assert large_radius(three, ONE, ONE).most_attended == 2


def test_batch_agrees_with_its_members():
    X, A = draw(0, 3, 5, 2).float(), draw(1, 2, 2).float()
    law = large_radius(X, A, torch.eye(2), causal=True)
    for member in range(3):
        alone = large_radius(X[member], A, torch.eye(2), causal=True)
        assert torch.allclose(law.mixing[member], alone.mixing)
        assert torch.allclose(law.gap[member], alone.gap)


def test_all_scores_equal():
    law = large_radius(draw(0, 4, 2), torch.zeros(2, 2, dtype=F64), torch.eye(2, dtype=F64))
    assert law.ties and law.gap == math.inf
    assert torch.allclose(law.weights, torch.full((4, 4), 0.25, dtype=F64))


SIZE = {"n": 3, "gap": 1.0, "radius": 1.0, "norm_a": 1.0, "norm_v": 1.0}


def test_error_by_hand_and_of_extreme_sizes():
    assert large_radius_error(t=1e200, **SIZE) == 0
    assert large_radius_error(t=0.1, **SIZE | {"radius": 1e200}) == math.inf
    assert large_radius_error(t=1e200, **SIZE | {"norm_v": 0.0, "radius": 1e200}) == 0
    assert large_radius_error(t=1.0, **SIZE | {"n": 1}) == 0
    n, t, gap, a, v = 5, 1.3, 0.9, 0.6, 3.0
    size = {"n": n, "t": t, "gap": gap, "radius": 2.0, "norm_a": a, "norm_v": v}
    for ties, constant in ((False, 4 + 2 * math.sqrt(2 * n)), (True, 5 + 2 * math.sqrt(5 * n))):
        expected = math.sqrt(2 * n) + a * (2 * t) ** 2 * constant
        expected *= v * (n - 1) * math.exp(-t * t * gap)
        assert large_radius_error(ties=ties, **size) == pytest.approx(expected, rel=1e-12)
