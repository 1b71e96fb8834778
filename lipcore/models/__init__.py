"""From a module of PyTorch or transformers to attention, and to the tokens that enter it."""

from lipcore.models.measure import save

__all__ = ["save"]
