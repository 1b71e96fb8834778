"""Random numbers that are always the same."""

import torch


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Independent normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
