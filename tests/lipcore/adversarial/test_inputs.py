"""Constructed inputs: what they promise, never below the theorems, near the bounds."""

import math
from dataclasses import replace

import pytest
import torch

from draws import EYE, F64, KINDS, ONE, draw, norm
from lipcore import Attention, bounds, local_lipschitz
from lipcore.adversarial import (
    eigenvector_inputs,
    reduced_scores,
    score_gap_inputs,
    shared_key_inputs,
    worst_case_inputs,
)
from lipcore.adversarial.inputs import first_token_norm, two_token_norm

TURN = 3 * torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=F64)


def sigma(A, X, causal=False):
    f = Attention.from_matrices(A, torch.eye(len(A), dtype=A.dtype), causal=causal)
    return torch.linalg.matrix_norm(f.jacobian(X).dense(), 2)


def test_published_inputs_are_eigenvectors_of_the_head():
    signs = set()
    for seed in range(12):
        head = Attention(*draw(seed, 3, 1, 3, 6))
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


@pytest.mark.parametrize("d", [1, 2, 5])
def test_inputs_of_the_score_gap_have_its_lead(d):
    A = draw(d, d, d)
    X = score_gap_inputs(A, 4, 1.5)
    assert X.norm(dim=-1).max() <= 1.5 * (1 + 1e-12) and torch.equal(X[1:], X[1].expand(3, d))
    assert X[0].norm().item() == pytest.approx(1.5)
    gap = (A @ X[1] @ (X[0] - X[1])).item()
    assert gap == pytest.approx(1.5**2 * bounds.score_gap(A)[0], rel=1e-9)
    assert torch.equal(eigenvector_inputs(TURN, 3, 2.0), torch.zeros(3, 2, dtype=F64))
    assert score_gap_inputs(0 * EYE, 3, 2.0).isfinite().all()


def test_reduced_scores_are_those_of_the_head():
    head = Attention(draw(0, 1, 2, 7), draw(1, 1, 2, 7), draw(2, 1, 3, 7), scale=0.3)
    A, basis = reduced_scores(head)
    assert A.shape == (4, 4) and torch.allclose(basis.mT @ basis, torch.eye(4, dtype=F64))
    assert torch.allclose(basis @ A @ basis.mT, head.score_matrices()[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_closed_forms_of_two_distinct_tokens_are_exact(d):
    """Among pairs near and far there are some whose copies part."""
    A = draw(d, d, d)
    first = torch.cat([draw(1, 40, d), 3 * draw(2, 40, d)])
    others = torch.cat([draw(3, 40, d), 0.3 * draw(4, 40, d)])

    def jacobian(copies, n, causal=False):
        counts = torch.tensor([copies, n - copies])
        X = torch.stack([first, others], dim=1).repeat_interleave(counts, dim=1)
        f = Attention.from_matrices(A, torch.eye(d, dtype=F64), causal=causal)
        return f.jacobian(X).dense()

    for n, copies in ((2, 1), (5, 1), (6, 4)):
        found = two_token_norm(A, first, others, torch.tensor([copies]), n)[:, 0]
        expected = torch.linalg.matrix_norm(jacobian(copies, n), 2)
        assert torch.allclose(found, expected, rtol=1e-12)
    columns = jacobian(1, 7, causal=True)[..., :d]  # what the first token does
    expected = torch.linalg.matrix_norm(columns, 2)
    assert torch.allclose(first_token_norm(A, first, others, 7), expected, rtol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [1, 2, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_worst_case_reaches_every_lower_bound(kind, d, causal):
    A = KINDS[kind](3 * draw(3, d, d))
    gamma = bounds.eigen_gamma(A)[0]
    for n, radius in ((1, 1.0), (2, 1.0), (20, 0.6)):
        X = worst_case_inputs(A, n, radius, causal=causal)
        assert X.shape == (n, d) and X.dtype == A.dtype
        assert (X.norm(dim=-1) <= radius * (1 + 1e-12)).all()
        size = {"n": n, "radius": radius}
        if causal:
            floor = bounds.masked_lower(gamma=gamma, norm_v=1.0, **size)
        else:
            eigen = bounds.adversarial_lower(gamma=gamma, norm_v=1.0, **size)
            gap = bounds.score_gap_lower(A=A, V=torch.eye(d, dtype=F64), **size)
            floor = max(eigen, gap)
        assert sigma(A, X, causal).item() >= floor * (1 - 1e-9)


def test_worst_case_uses_copies_once_one_token_is_too_few():
    """For n far above e^{g*} one token in n is seen by no one; a share of e^{−g*} is."""
    A, n = 2 / 3 * TURN, 400
    X = worst_case_inputs(A, n, 1.0)
    assert 1 < (X == X[0]).all(-1).sum().item() < n / 2
    value = local_lipschitz(Attention.from_matrices(A, EYE), X, tol=1e-8).value.item()
    assert value > 2.5 * bounds.score_gap_lower(n=n, radius=1.0, A=A, V=EYE)
    assert value <= bounds.unified_upper_sharp(radius=1.0, norm_a=2.0, norm_v=1.0)
    # and it comes within a small factor of the bound
    upper = bounds.unified_upper_sharp(n=500, radius=1.0, norm_a=3.0, norm_v=1.0)
    f = Attention.from_matrices(-3 * EYE, EYE)
    assert local_lipschitz(f, worst_case_inputs(-3 * EYE, 500, 1.0)).value > 0.7 * upper


@pytest.mark.parametrize("construct", [eigenvector_inputs, score_gap_inputs, worst_case_inputs])
def test_kind_and_errors(construct):
    assert construct(-torch.eye(2), 5, 1.0).dtype == torch.float32
    assert not construct(-torch.eye(2, requires_grad=True), 1, 1.0).requires_grad
    for name, error, arguments in (
        ("A", ValueError, (torch.zeros(2, 3), 2, 1.0)),
        ("n", ValueError, (EYE, 0, 1.0)),
        ("n", TypeError, (EYE, 2.5, 1.0)),
        ("radius", ValueError, (EYE, 2, math.inf)),
        ("radius", ValueError, (EYE, 2, -1.0)),
    ):
        with pytest.raises(error, match=f"^{name}: "):
            construct(*arguments)


def trained_like(seed, **options):
    query, key = draw(seed, 2, 1, 2, 7)
    parts = {"query_bias": draw(seed + 1, 1, 2), "output": draw(seed + 2, 7, 3)} | options
    return Attention(query, key, draw(seed + 3, 1, 3, 7), **parts)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("radius", [0.3, 4.0, 30.0])
@pytest.mark.parametrize("without", [{}, {"query_bias": None}, {"output": None}])
def test_the_bound_holds_and_is_what_the_shared_key_moves(causal, radius, without):
    f = trained_like(0, causal=causal, **without)
    found = shared_key_inputs(f, 6, radius)
    assert found.X.norm(dim=-1).max() <= radius * (1 + 1e-12)
    dense = f.jacobian(found.X).dense().reshape(6, -1, 6, 7)
    assert found.lower == pytest.approx(norm(dense[1:, :, 0].flatten(0, 1)), rel=1e-9)
    scores = f.score_matrices()[0] @ found.X[1] + f.score_offsets()[0]
    assert found.lead == pytest.approx((scores @ (found.X[0] - found.X[1])).item())


ONE_HEAD = trained_like(0)


@pytest.mark.parametrize(
    ("head", "n", "radius", "message"),
    [
        (Attention(*draw(0, 3, 2, 2, 7)), 5, 1.0, "^head: "),
        (replace(ONE_HEAD, mask=torch.ones(5, 5, dtype=torch.bool)), 5, 1.0, "^head: "),
        (replace(ONE_HEAD, log_weights=torch.zeros(5, dtype=F64)), 5, 1.0, "^head: "),
        (Attention.from_matrices(0 * EYE, EYE), 5, 1.0, "depend on the key"),
        (ONE_HEAD, 1, 1.0, "^n: "),
        (Attention.from_matrices(-ONE, ONE), 5, 1e200, "^radius: "),
    ],
)
def test_what_is_no_single_head_or_too_large_is_refused(head, n, radius, message):
    with pytest.raises(ValueError, match=message):
        shared_key_inputs(head, n, radius)
    if head.heads > 1:
        with pytest.raises(ValueError, match=r"^head: "):
            reduced_scores(head)
