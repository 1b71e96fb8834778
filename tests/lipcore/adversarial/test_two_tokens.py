"""The closed forms of two distinct tokens against dense Jacobians."""

import pytest
import torch

from lipcore import Attention
from lipcore.adversarial.inputs import first_token_norm, two_token_norm


@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_closed_forms_of_two_distinct_tokens_are_exact(d, randn):
    """Among pairs near and far there are some whose copies part."""
    A, V = randn(d, d), torch.eye(d, dtype=torch.float64)
    first = torch.cat([randn(40, d), 3 * randn(40, d)])
    others = torch.cat([randn(40, d), 0.3 * randn(40, d)])

    def jacobian(copies, n, causal=False):
        counts = torch.tensor([copies, n - copies])
        X = torch.stack([first, others], dim=1).repeat_interleave(counts, dim=1)
        return Attention.from_matrices(A, V, causal=causal).jacobian(X).dense()

    for n, copies in ((2, 1), (5, 1), (6, 4)):
        found = two_token_norm(A, first, others, torch.tensor([copies]), n)[:, 0]
        expected = torch.linalg.matrix_norm(jacobian(copies, n), 2)
        assert torch.allclose(found, expected, rtol=1e-12)
    columns = jacobian(1, 7, causal=True)[..., :d]  # what the first token does
    expected = torch.linalg.matrix_norm(columns, 2)
    assert torch.allclose(first_token_norm(A, first, others, 7), expected, rtol=1e-12)
