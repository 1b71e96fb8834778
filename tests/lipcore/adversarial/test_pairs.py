"""The two constructions of two distinct tokens, and a head's scores in few dimensions."""

import math

import pytest
import torch

from lipcore import Attention, bounds
from lipcore.adversarial import eigenvector_inputs, reduced_scores, score_gap_inputs

CONSTRUCTIONS = [eigenvector_inputs, score_gap_inputs]


def test_published_inputs_are_eigenvectors_of_the_head(randn):
    signs = set()
    for _ in range(12):
        head = Attention(*randn(3, 1, 3, 6))
        A = head.score_matrices()[0]
        small, basis = reduced_scores(head)
        X = eigenvector_inputs(small, 4, 2.0) @ basis.mT
        gamma = (X[0] @ A @ X[0] / (X[0] @ X[0])).item()
        assert (A @ X[0] - gamma * X[0]).norm() < 1e-9
        assert X[0].norm().item() == pytest.approx(2.0)
        assert torch.allclose(X[1:], (-X[0] if gamma < 0 else X[0] / 2).expand(3, 6), rtol=1e-12)
        real = torch.linalg.eigvals(A)
        real = real.real[real.imag.abs() < 1e-9]
        best = max(-real.min().item(), real.max().item() / 8)
        assert max(-gamma, gamma / 8) == pytest.approx(best)
        signs.add(gamma < 0)
    assert signs == {True, False}


def test_inputs_of_the_score_gap_have_its_lead(randn):
    for d in (1, 2, 5):
        A = randn(d, d)
        X = score_gap_inputs(A, 4, 1.5)
        assert X.norm(dim=-1).max() <= 1.5 * (1 + 1e-12) and torch.equal(X[1:], X[1].expand(3, d))
        assert X[0].norm().item() == pytest.approx(1.5)
        gap = (A @ X[1] @ (X[0] - X[1])).item()
        assert gap == pytest.approx(1.5**2 * bounds.score_gap(A)[0], rel=1e-9)


def test_where_there_is_no_real_eigenvalue_or_no_score():
    quarter_turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    assert torch.equal(eigenvector_inputs(quarter_turn, 3, 2.0), torch.zeros(3, 2))
    assert score_gap_inputs(torch.zeros(2, 2), 3, 2.0).isfinite().all()


def test_reduced_scores_are_those_of_the_head(randn):
    head = Attention(randn(1, 2, 7), randn(1, 2, 7), randn(1, 3, 7), scale=0.3)
    A, basis = reduced_scores(head)
    assert A.shape == (4, 4) and torch.allclose(basis.mT @ basis, torch.eye(4, dtype=A.dtype))
    assert torch.allclose(basis @ A @ basis.mT, head.score_matrices()[0], rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"^head: "):
        reduced_scores(Attention(*randn(3, 2, 2, 7)))


@pytest.mark.parametrize("construct", CONSTRUCTIONS)
def test_kind_and_errors_of_pairs(construct):
    assert construct(-torch.eye(2), 5, 1.0).dtype == torch.float32
    assert not construct(-torch.eye(2, requires_grad=True), 1, 1.0).requires_grad
    with pytest.raises(ValueError, match=r"^A: "):
        construct(torch.zeros(2, 3), 2, 1.0)
    with pytest.raises(ValueError, match=r"^n: "):
        construct(torch.eye(2), 0, 1.0)
    with pytest.raises(ValueError, match=r"^radius: "):
        construct(torch.eye(2), 2, math.inf)
