"""Functions of matrices that several bounds need."""

import pytest
import torch

from lipcore import bounds
from lipcore.bounds import _matrices
from lipcore.bounds._matrices import memoise_on_values, norms


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (1, 6), (6, 1)])
def test_norms_are_the_largest_singular_values(generator, shape):
    matrices = torch.randn(7, 2, *shape, generator=generator, dtype=torch.float64)
    matrices[0] = 0
    torch.testing.assert_close(
        norms(matrices), torch.linalg.matrix_norm(matrices, 2), rtol=1e-14, atol=0
    )


@pytest.mark.parametrize("size", [1e-200, 1e-300, 1e200, 1e300])
def test_norms_neither_overflow_nor_vanish(size):
    matrix = size * torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    assert norms(matrix).item() == pytest.approx(4 * size, rel=1e-14)


def test_a_memoise_on_values_function_is_called_once_for_equal_matrices():
    asked = []
    found = memoise_on_values(lambda *matrices: asked.append(matrices) or len(asked))
    one, two = torch.eye(2), torch.eye(2)
    assert found(one) == found(two) == 1
    assert found(one.double()) == 2 and found(one.flatten()) == 3 and found(one, two) == 4
    one[0, 0] = 5.0  # other entries, in the same place
    assert found(one) == 5 and found(two) == 1
    found.cache_clear()
    assert found(two) == 6


def test_the_oldest_result_is_forgotten():
    asked = []
    found = memoise_on_values(lambda matrix: asked.append(matrix.item()))
    for number in (*range(_matrices._KEPT + 1), 0):
        found(torch.tensor(float(number)))
    assert len(asked) == _matrices._KEPT + 2


def test_what_is_handed_out_may_be_changed():
    A = torch.tensor([[0.0, -3.0], [1.0, 0.5]], dtype=torch.float64)
    gap, u = bounds.score_gap(A)
    kept = u.clone()
    u.zero_()
    again, v = bounds.score_gap(A)
    assert again == gap and torch.equal(v, kept)
