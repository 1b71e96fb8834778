"""The Jacobian at tX for large t: its limit law, with and without ties."""

import math

import pytest
import torch

from lipcore import Attention
from lipcore.bounds import large_radius, large_radius_error


def problem(seed, *, whole):
    gen = torch.Generator().manual_seed(seed)
    n, d, p = (int(torch.randint(2, 7, (), generator=gen)) for _ in range(3))
    X, A, V = (
        torch.randn(shape, generator=gen, dtype=torch.float64) for shape in ((n, d), (d, d), (p, d))
    )
    return (X.round(), A.round(), V) if whole else (X, A, V)


@pytest.mark.parametrize("whole", [False, True], ids=["generic", "ties"])
@pytest.mark.parametrize("causal", [False, True])
def test_law_holds_within_its_error(whole, causal):
    for seed in range(25):
        X, A, V = problem(seed, whole=whole)
        law = large_radius(X, A, V, causal=causal)
        if math.isinf(law.gap):
            continue
        sizes = {
            "radius": X.norm(dim=-1).max().item(),
            "norm_a": torch.linalg.matrix_norm(A, 2).item(),
            "norm_v": torch.linalg.matrix_norm(V, 2).item(),
        }
        for u in (0.1, 1.0, 8.0):
            t = (u / law.gap.item()) ** 0.5
            J = Attention.from_matrices(A, V, causal=causal).jacobian(t * X).dense()
            bound = large_radius_error(
                n=len(X), t=t, gap=law.gap.item(), ties=bool(law.ties), **sizes
            )
            assert torch.linalg.matrix_norm(J - law.at(t), 2) <= bound


def test_limit_is_a_square_root():
    X, A, V = problem(3, whole=False)
    law = large_radius(X, A, V)
    q = law.weights.argmax(-1).bincount().max()
    assert not law.ties and law.most_attended == q
    assert torch.allclose(
        torch.linalg.matrix_norm(law.mixing, 2), q**0.5 * torch.linalg.matrix_norm(V, 2)
    )
    assert not law.second_order.any()


def test_batch_agrees_with_its_members():
    gen = torch.Generator().manual_seed(0)
    X, A = torch.randn(3, 5, 2, generator=gen), torch.randn(2, 2, generator=gen)
    law = large_radius(X, A, torch.eye(2), causal=True)
    for member in range(3):
        alone = large_radius(X[member], A, torch.eye(2), causal=True)
        assert torch.allclose(law.mixing[member], alone.mixing)
        assert torch.allclose(law.gap[member], alone.gap)


def test_all_scores_equal():
    law = large_radius(torch.randn(4, 2), torch.zeros(2, 2), torch.eye(2))
    assert (
        law.ties and law.gap == math.inf and torch.allclose(law.weights, torch.full((4, 4), 0.25))
    )


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"^gap: "):
        large_radius_error(n=3, t=1.0, gap=0.0, radius=1.0, norm_a=1.0, norm_v=1.0)
    with pytest.raises(ValueError, match=r"^radius: "):
        large_radius_error(n=3, t=1.0, gap=1.0, radius=-1.0, norm_a=1.0, norm_v=1.0)
    with pytest.raises(ValueError, match=r"^V: "):
        large_radius(torch.randn(3, 2), torch.eye(2), torch.eye(3))


def test_error_of_extreme_sizes():
    size = {"n": 3, "gap": 1.0, "radius": 1.0, "norm_a": 1.0, "norm_v": 1.0}
    assert large_radius_error(t=1e200, **size) == 0
    assert large_radius_error(t=0.1, **size | {"radius": 1e200}) == math.inf
    assert large_radius_error(t=1e200, **size | {"norm_v": 0.0, "radius": 1e200}) == 0
    plain = 2 * math.exp(-0.49) * (math.sqrt(6) + 4 * 0.49 * (4 + 2 * math.sqrt(6)))
    assert large_radius_error(t=0.7, **size | {"radius": 2.0}) == pytest.approx(plain, rel=1e-13)
    tied = 2 * math.exp(-0.49) * (math.sqrt(6) + 4 * 0.49 * (5 + 2 * math.sqrt(15)))
    found = large_radius_error(t=0.7, ties=True, **size | {"radius": 2.0})
    assert found == pytest.approx(tied, rel=1e-13)
