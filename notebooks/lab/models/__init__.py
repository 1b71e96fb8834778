"""From a model to its attention layers, and the tokens that enter it.

>>> from lab.models import load
>>> model = load("minilm")  # doctest: +SKIP
>>> ids = model.encode("The layer is measured on this sentence.")  # doctest: +SKIP
>>> model.attention(3)(model.hidden_states(3, ids)).shape  # doctest: +SKIP
torch.Size([1, 8, 384])
"""

from lab.models.language_model import LanguageModel, load
from lab.models.loaded import LoadedModel
from lab.models.sources import available, cache_dir, fetch, provenance

__all__ = ["LanguageModel", "LoadedModel", "available", "cache_dir", "fetch", "load", "provenance"]
