"""Random vectors of the package's own, which are nobody else's, whatever seeds they use.

A start or a probe that equals the tokens at hand sees nothing of a map that is constant along them;
and ``torch.randn`` under a small seed is how people draw tokens.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_SEED = int.from_bytes(b"lipcore")


def draw_normal(shape: tuple[int, ...], generator: torch.Generator | int = 0) -> Tensor:
    """Return independent normal numbers, float64 on the CPU.

    A generator, which moves on, only gives the seed of another law's stream: the numbers are not
    those that ``torch.randn`` draws from it. An int is the number of a stream that is always equal.
    """
    if isinstance(generator, torch.Generator):
        like = {"device": generator.device, "dtype": torch.int64}
        generator = 1 + torch.randint(2**62, (), generator=generator, **like).item()
    stream = np.random.default_rng([_SEED, generator])
    return torch.from_numpy(stream.standard_normal(math.prod(shape)).reshape(shape))
