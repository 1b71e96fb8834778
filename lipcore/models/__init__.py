"""From a BERT, GPT-2 or Llama-type model to its attention layers, and the tokens that enter them.

>>> from lipcore.models import load
>>> model = load("minilm")  # doctest: +SKIP
>>> ids = model.encode("The layer is measured on this sentence.")  # doctest: +SKIP
>>> model.attention(3)(model.hidden_states(3, ids)).shape  # doctest: +SKIP
torch.Size([1, 8, 384])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from lipcore.models.sources import ModelSource, available, cache_dir, fetch, provenance

if TYPE_CHECKING:
    from lipcore.models.language_model import LanguageModel, load

__all__ = [
    "LanguageModel",
    "ModelSource",
    "available",
    "cache_dir",
    "fetch",
    "load",
    "provenance",
]


def __getattr__(name: str):
    """Import what needs PyTorch on first use: the command line's help does without.

    ``Normalisation``, of :mod:`lipcore.bounds`, can be imported from here too.
    """
    if name not in ("LanguageModel", "Normalisation", "load"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("lipcore.models.language_model"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
