"""From a model to its attention layers, and the tokens that enter them.

>>> from lab.models import load
>>> model = load("minilm")  # doctest: +SKIP
>>> ids = model.encode("The layer is measured on this sentence.")  # doctest: +SKIP
>>> model.attention(3)(model.hidden_states(3, ids)).shape  # doctest: +SKIP
torch.Size([1, 8, 384])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from lab.models.sources import ModelSource, available, cache_dir, fetch, provenance

if TYPE_CHECKING:
    from lab.models.language_model import LanguageModel, load
    from lab.models.loaded import LoadedModel

__all__ = [
    "LanguageModel",
    "LoadedModel",
    "ModelSource",
    "available",
    "cache_dir",
    "fetch",
    "load",
    "provenance",
]

_HOMES = {
    "LanguageModel": "lab.models.language_model",
    "load": "lab.models.language_model",
    "LoadedModel": "lab.models.loaded",
}


def __getattr__(name: str):
    """Import what needs PyTorch on first use, since the command line's help does without it.

    ``Normalisation``, of :mod:`lipcore.bounds`, can be imported from here too.
    """
    if name not in (*_HOMES, "Normalisation"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "lab.models.language_model")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
