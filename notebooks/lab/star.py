"""Inputs of attention with squared distances (L2 attention) whose matrix P has a large norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def star_inputs(
    q: int,
    *,
    dimension: int | None = None,
    shifted: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Return points around a common centre, for weights :math:`P_{ij}\propto e^{-\|y_i-y_j\|^2}`.

    The first 2q points are at the origin. The others are at the distance :math:`\sqrt{\log q}` from
    it: q² at right angles to each other or, in a given dimension k,
    :math:`\lceil q^2e^{-2\log^2q/k}\rceil` in random directions (:prf:ref:`prop-zoo-star`). The
    shifted star has :math:`\lceil 2eq/5\rceil` points in the centre and :math:`\lceil q^2/5\rceil`
    others, all moved by 1 in a direction of their own (:prf:ref:`prop-zoo-shifted`).

    >>> Y = star_inputs(3)
    >>> P = torch.softmax(-torch.cdist(Y, Y) ** 2, dim=-1)
    >>> Y.shape, torch.linalg.matrix_norm(P, 2) ** 2 >= 3 / 8
    (torch.Size([15, 9]), tensor(True))
    """
    if dimension is None:
        directions = torch.eye(math.ceil(q**2 / 5) if shifted else q**2, dtype=torch.float64)
    else:
        generator = generator or torch.Generator().manual_seed(0)
        count = math.ceil(q**2 * math.exp(-2 * math.log(q) ** 2 / dimension))
        directions = torch.randn(count, dimension, generator=generator, dtype=torch.float64)
        directions /= directions.norm(dim=1, keepdim=True)
    outer = math.sqrt(math.log(q)) * directions
    if shifted:
        outer = torch.nn.functional.pad(outer, (0, 1), value=1.0)
    leaders = math.ceil(2 * math.e * q / 5) if shifted else 2 * q
    centre = outer.new_zeros(leaders, outer.shape[1])
    return torch.cat([centre, outer])
