"""Pretrained and random BERT, GPT-2 and Llama-type models as attention layers, with the tokens that enter them.

>>> from lipcore.models import load
>>> model = load("minilm")  # doctest: +SKIP
>>> ids = model.encode("The attention of this layer is measured on this sentence.")  # doctest: +SKIP
>>> model.attention(3)(model.hidden_states(3, ids)).shape  # doctest: +SKIP
torch.Size([1, 11, 384])
"""

from lipcore.bounds.normalised import Normalisation
from lipcore.models.language_model import LanguageModel, load
from lipcore.models.sources import ModelSource, available, cache_dir, fetch, provenance

__all__ = [
    "LanguageModel",
    "ModelSource",
    "Normalisation",
    "available",
    "cache_dir",
    "fetch",
    "load",
    "provenance",
]
