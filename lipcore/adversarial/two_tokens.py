"""Norms of the Jacobian in closed form for two distinct tokens x_1 and x_2, and V = I."""

from __future__ import annotations

import torch
from torch import Tensor


def two_token_norm(A: Tensor, first: Tensor, others: Tensor, copies: Tensor, n: int) -> Tensor:
    r"""Return ‖D_X f‖₂ if some tokens are x_1 and the rest x_2, without a mask.

    On vectors that are equal for equal tokens, D_X f is a map of two tokens with masses; on the
    rest it is own query, the query term, alone (:prf:ref:`cor-split-sequence`). ``copies``
    (numbers,) of the n tokens are x_1, at least one and less than n; ``first`` and ``others``,
    (pairs, d), are x_1 and x_2. The result has the shape (pairs, numbers).
    """
    z = first - others
    z, image_1, image_2, pulled = _common_coordinates([z, first @ A.mT, others @ A.mT, z @ A])
    counts = torch.stack([copies, n - copies], dim=-1).to(A.dtype)  # (numbers, 2)
    images = torch.stack([image_1, image_2], dim=1)  # A x_i: (pairs, query, r)
    lead = (images * z[:, None]).sum(-1)  # of x_1's score over x_2's, (pairs, query)
    log_odds = (counts[:, 0] / counts[:, 1]).log()
    w = torch.sigmoid(lead[:, None, :] + log_odds[:, None])  # of x_1: (pairs, numbers, query)
    P = torch.stack([w, 1 - w], dim=-1)  # (pairs, numbers, query, key)
    offsets = torch.stack([1 - w, -w], dim=-1)  # x_j − m_i = offset · z
    identity = torch.eye(z.shape[-1], dtype=A.dtype, device=A.device)
    mixing = P[..., None, None] * identity
    keys = torch.einsum("pcij,pr,pis->pcijrs", P * offsets, z, images)
    own = torch.einsum("pci,pr,ps->pcirs", w * (1 - w), z, pulled)
    blocks = mixing + keys
    for i in range(2):
        blocks[:, :, i, i] += own[:, :, i]
    in_mass = (counts[:, :, None] / counts[:, None, :]).sqrt()[..., None, None]
    matrix = (blocks * in_mass).transpose(3, 4).flatten(4).flatten(2, 3)
    apart = torch.linalg.matrix_norm(own, 2) * (counts >= 2)  # copies of one token moved apart
    return torch.maximum(torch.linalg.matrix_norm(matrix, 2), apart.amax(-1))


def first_token_norm(A: Tensor, first: Tensor, others: Tensor, n: int) -> Tensor:
    r"""Return the norm of the causal Jacobian's columns of token 1, for x_1 and n − 1 times x_2.

    Row i is :math:`w_i(I + (1-w_i)\,zy^\top)` with z = x_1 − x_2 and y = Ax_2
    (:prf:ref:`thm-lower-masked`). Outside the span of z and y the sum of squares is a multiple of
    I. ``first`` and ``others``, (pairs, d), are x_1 and x_2; the result is (pairs,).
    """
    z = first - others
    y = others @ A.mT
    zz = z.square().sum(-1)
    yy = y.square().sum(-1)
    zy = (z * y).sum(-1)
    earlier = torch.arange(1, n, dtype=A.dtype, device=A.device)  # tokens x_2 that a query sees
    w = torch.sigmoid(zy[:, None] - earlier.log())  # (pairs, n − 1)
    s0, s1, s2 = ((w.square() * (1 - w) ** power).sum(-1) for power in range(3))
    # eigenvalues of s1 (zyᵀ + yzᵀ) + s2 |z|² yyᵀ on the span: from its trace and its determinant
    trace = 2 * s1 * zy + s2 * zz * yy
    determinant = -(s1**2) * (zz * yy - zy**2)
    root = (trace.square() / 4 - determinant).clamp(min=0).sqrt()
    top = trace if len(A) == 1 else trace / 2 + root
    return (1 + s0 + top).sqrt()  # the 1 is for token 1, which sees only itself


def _common_coordinates(vectors: list[Tensor]) -> list[Tensor]:
    """Return the vectors (pairs, d) in an orthonormal basis of four directions that span them.

    One of the four is orthogonal to A x_1, A x_2 and Aᵀz. There D_X f is mixing alone, as it is on
    everything outside the span.
    """
    stacked = torch.stack(vectors, dim=-1)  # (pairs, d, 4)
    if stacked.shape[1] <= stacked.shape[2]:
        return vectors
    basis, _ = torch.linalg.qr(stacked)
    return list((basis.mT @ stacked).unbind(-1))
