"""BERT, GPT-2 and Llama as stacks of attention layers that can be read, with what enters them."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from lab.models.layers import TITLES, is_causal, is_readable, read_attention, read_norm
from lab.models.loaded import LoadedModel, library, read_weights
from lab.models.sources import SOURCES, find_source
from lab.models.unpack import unpacked
from lipcore._checks import check_count, require
from lipcore.attention import Attention
from lipcore.bounds.normalised import Normalisation
from lipcore.models.structure import attention_modules


class LanguageModel(LoadedModel):
    """A transformer with its attention layers and what enters them, as :func:`load` returns it."""

    def __init__(self, model: nn.Module, **about) -> None:
        super().__init__(model, **about)
        config = model.config
        self.architecture = TITLES[config.model_type]
        self.causal = is_causal(config)
        self.heads = config.num_attention_heads
        self.n_layers = config.num_hidden_layers
        self.d = config.hidden_size
        self.vocab_size = config.vocab_size
        self._modules = [model.get_submodule(name) for name in attention_modules(model)]

    def attention(
        self, layer: int, *, head: int | None = None, output_projection: bool = True
    ) -> Attention:
        """Return the attention of a layer or head, without residual connection or normalisation.

        ``model.attention(l)(model.hidden_states(l, ids))`` is what the layer computes inside the
        running model. Without ``output_projection`` the heads are concatenated.
        """
        layer = _check_index("layer", layer, self.n_layers)
        attention = read_attention(self.model, self._modules[layer], layer)
        if head is not None:
            attention = attention.head(_check_index("head", head, self.heads))
        return attention if output_projection else replace(attention, output=None, output_bias=None)

    def norm(self, layer: int) -> Normalisation:
        """Return the normalisation whose output enters the attention of ``layer``."""
        return read_norm(self.model, _check_index("layer", layer, self.n_layers))

    def hidden_states(self, layer: int, token_ids: Tensor) -> Tensor:
        """Return what enters the attention of ``layer``, (batch, n, d), for ids (batch, n) or (n,).

        For decoders, which normalise first, it is the output of that normalisation.
        """
        return self.all_hidden_states(token_ids, up_to=layer)[layer]

    @torch.no_grad()
    def all_hidden_states(self, token_ids: Tensor, *, up_to: int | None = None) -> list[Tensor]:
        """Return the :meth:`hidden_states` of the layers up to one or the last, from one run."""
        last = self.n_layers - 1 if up_to is None else up_to
        last = _check_index("layer", last, self.n_layers)
        ids = self._check_ids(token_ids).to(self.model.device)
        kept: list[Tensor] = []

        def keep(module: nn.Module, args: tuple, options: dict) -> None:
            kept.append(args[0] if args else options["hidden_states"])
            if len(kept) > last:  # nothing above is needed
                raise _Reached

        with contextlib.ExitStack() as stack:
            for module in self._modules[: last + 1]:
                handle = module.register_forward_pre_hook(keep, with_kwargs=True)
                stack.callback(handle.remove)
            with contextlib.suppress(_Reached):
                self.model(input_ids=ids, use_cache=False)
        return kept

    def _check_ids(self, ids: Tensor) -> Tensor:
        """Return the ids as (batch, n), or raise."""
        is_tensor = isinstance(ids, Tensor)
        require(is_tensor, "token_ids", "a torch.Tensor", type(ids).__name__, TypeError)
        fits = ids.ndim in (1, 2) and ids.numel() and not ids.is_floating_point()
        known = fits and ids.min() >= 0 and ids.max() < self.vocab_size
        expected = f"whole numbers from 0 to {self.vocab_size - 1}, (batch, n) or (n,)"
        require(known, "token_ids", expected, f"{ids.dtype} of shape {tuple(ids.shape)}")
        self.check_length(ids.shape[-1])
        return ids.long().reshape(-1, ids.shape[-1])


class _Reached(Exception):
    """Raised inside the running model to leave it once everything asked for is there."""


def _check_index(name: str, index: int, size: int) -> int:
    index = check_count(name, index, minimum=0)
    require(index < size, name, f"0 to {size - 1}", index, IndexError)
    return index


def load(
    name: str | os.PathLike, *, decoder: bool = False, dtype: torch.dtype = torch.float32
) -> LoadedModel:
    """Load a model by name (its weights are fetched on first use), or from a checkpoint's folder.

    BERT, GPT-2 and Llama become a :class:`LanguageModel`, whose layers are read out exactly, any
    other architecture a :class:`LoadedModel`. With ``decoder``, BERT is causal, as in the paper's
    masked runs. Llama computes its softmax and RMSNorm in float32 also in float64: its hidden states
    are exact to about 1e-7 only, and the layers that are read out are float64 throughout.
    """
    is_float = dtype in (torch.float32, torch.float64)
    require(is_float, "dtype", "torch.float32 or torch.float64", repr(dtype), TypeError)
    source = SOURCES.get(str(name))
    if source and not source.files:
        folder = None
        model = _draw(source.architecture, decoder)
    else:
        folder = unpacked(source) if source else Path(name).expanduser()
        if not folder.is_dir():
            find_source(str(name))  # raises, and lists the names
        model = _read(folder, decoder)
    kind = LanguageModel if is_readable(model.config) else LoadedModel
    title = source.name if source else folder.name
    sha256 = source.sha256 if source else ""
    return kind(model.to(dtype), name=title, folder=folder, sha256=sha256)


def _options(config, decoder: bool) -> dict:
    """Set the decoder, and return what the model's constructor takes besides."""
    if config.model_type == "bert":
        config.is_decoder = config.is_decoder or decoder
        return {"add_pooling_layer": False}
    got = f"{config.model_type}, which has its own direction"
    require(not decoder, "decoder", "a BERT model", got)
    return {}


def _read(folder: Path, decoder: bool) -> nn.Module:
    """Return the backbone saved in ``folder``, in float32."""
    transformers = library()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"name: the config in {folder} cannot be read: {error}") from error
    model_class = transformers.AutoModel
    if config.architectures == ["WhisperEncoder"]:  # saved without a decoder
        model_class = transformers.models.whisper.modeling_whisper.WhisperEncoder
    return read_weights(model_class, folder, config=config, **_options(config, decoder))


def _draw(model_type: str, decoder: bool) -> nn.Module:
    """Return random weights at the size of the default config: BERT-base, GPT-2 small."""
    transformers = library()
    config = transformers.CONFIG_MAPPING[model_type]()
    options = _options(config, decoder) | {"attn_implementation": "eager"}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return transformers.AutoModel.from_config(config, **options)
