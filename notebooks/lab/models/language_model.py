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

    def __init__(
        self, model: nn.Module, *, name: str, folder: Path | None, sha256: str = ""
    ) -> None:
        super().__init__(model, name=name, folder=folder, sha256=sha256)
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
        r"""Return the attention of a layer or head, without residual connection or normalisation.

        It is the map for which ``model.attention(l)(model.hidden_states(l, ids))`` is what that
        layer computes inside the running model. Heads are summed through :math:`W_h`, with the
        output bias unless it is one head alone; without ``output_projection`` they are
        concatenated.
        """
        layer = _check_index("layer", layer, self.n_layers)
        attention = read_attention(self.model, self._modules[layer], layer)
        if head is not None:
            attention = attention.head(_check_index("head", head, self.heads))
        return attention if output_projection else replace(attention, output=None, output_bias=None)

    def norm(self, layer: int) -> Normalisation:
        """Return the normalisation whose output enters the attention of ``layer``.

        For BERT it is the LayerNorm of the embeddings at layer 0, and the one at the end of the
        layer below at other layers. For GPT-2 and Llama it is the one in front of the attention.
        """
        return read_norm(self.model, _check_index("layer", layer, self.n_layers))

    def hidden_states(self, layer: int, token_ids: Tensor) -> Tensor:
        """Return what enters the attention of ``layer`` when the model runs on these token ids.

        The ids are integers of shape (batch, n), or (n,) for a batch of one; the result has shape
        (batch, n, d). For decoders, which normalise first, it is the output of that normalisation.
        """
        return self.all_hidden_states(token_ids, up_to=layer)[layer]

    @torch.no_grad()
    def all_hidden_states(self, token_ids: Tensor, *, up_to: int | None = None) -> list[Tensor]:
        """Return the :meth:`hidden_states` of every layer, tensors (batch, n, d), from one run.

        With ``up_to``, they are those of the layers from 0 to that one, and the run ends there.
        """
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
        is_whole = not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
        require(is_whole, "token_ids", "whole numbers", ids.dtype, TypeError)
        fits = ids.ndim in (1, 2) and ids.numel()
        require(fits, "token_ids", "shape (batch, n) or (n,), not empty", tuple(ids.shape))
        least, most = ids.min(), ids.max()
        is_known = least >= 0 and most < self.vocab_size
        known = f"0 to {self.vocab_size - 1} for {self.name}"
        require(is_known, "token_ids", known, f"{least} to {most}")
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

    Models of BERT, GPT-2 and Llama type are returned as a :class:`LanguageModel`, whose layers are
    read out exactly. Any other architecture of transformers is a :class:`LoadedModel`, whose layers
    are measured as they run. With ``decoder``, BERT becomes a causal decoder, as in the paper's
    masked runs. A Llama-type model computes its softmax and RMSNorm in float32 also in float64, so
    that its hidden states are exact to about 1e-7 only; the layers that are read out of it are
    float64 throughout.
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
