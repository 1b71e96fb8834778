"""From a model to its attention layers, and the tokens that enter it."""

from lab.models.language_model import LanguageModel, load
from lab.models.loaded import LoadedModel
from lab.models.sources import available, cache_dir, fetch, provenance

__all__ = ["LanguageModel", "LoadedModel", "available", "cache_dir", "fetch", "load", "provenance"]
