"""BERT, GPT-2 and Llama as stacks of attention layers that can be read, with what enters them."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from lab.models.layers import ARCHITECTURES, Normalisation
from lab.models.loaded import LoadedModel, check_dtype, library, quiet, read_weights
from lab.models.sources import SOURCES, find_source
from lab.models.unpack import unpacked
from lipcore._checks import check_count
from lipcore.attention import Attention

_RUNNING = threading.Lock()  # hooks live on the model: two threads must not run it at once


class LanguageModel(LoadedModel):
    """A transformer with its attention layers and what enters them, as :func:`load` returns it.

    Attributes
    ----------
    n_layers, d, heads, vocab_size, max_positions : int
    causal : bool
        Whether token i sees only the tokens j ≤ i.
    """

    def __init__(
        self, model: nn.Module, *, name: str, folder: Path | None, sha256: str = ""
    ) -> None:
        super().__init__(model, name=name, folder=folder, sha256=sha256)
        self._layers = ARCHITECTURES[model.config.model_type](model)
        self.architecture = self._layers.title
        self.causal = self._layers.causal
        self.heads = self._layers.heads
        self.n_layers = model.config.num_hidden_layers
        self.d = model.config.hidden_size
        self.vocab_size = model.config.vocab_size

    def __repr__(self) -> str:
        direction = "causal" if self.causal else "bidirectional"
        return (
            f"LanguageModel({self.name!r}: {self.architecture}, {self.n_layers} layers, "
            f"d={self.d}, {self.heads} heads, {direction}, {self.dtype})"
        )

    def attention(
        self,
        layer: int,
        *,
        head: int | None = None,
        output_projection: bool = True,
        attention_mask: Tensor | None = None,
    ) -> Attention:
        r"""Return the attention of one layer, without residual connection or normalisation.

        Parameters
        ----------
        layer : int
            From 0 to ``n_layers - 1``.
        head : int, optional
            The number of one head, from 0 to ``heads - 1``; all of them if left out.
        output_projection : bool
            Whether the heads are summed through :math:`W_h` (with the output bias, unless it is one
            head alone), or are only concatenated.
        attention_mask : Tensor, shape (batch, n), optional
            Zero where a token is padding, which no other token then sees. The layer is then for
            these sequences only.

        Returns
        -------
        Attention
            The map for which ``model.attention(l)(model.hidden_states(l, ids))`` is what that layer
            computes inside the running model.

        Raises
        ------
        IndexError
            If there is no such layer or head.
        """
        attention = self._layers.attention(self._check_layer(layer))
        if head is not None:
            attention = attention.head(_check_index("head", head, self.heads, self.name))
        if attention_mask is not None:
            attention = replace(attention, mask=attention_mask.bool()[:, None, None, :])
        return attention if output_projection else replace(attention, output=None, output_bias=None)

    def norm(self, layer: int) -> Normalisation:
        """Return the normalisation whose output enters the attention of ``layer``.

        For BERT it is the LayerNorm of the embeddings at layer 0, and the one at the end of the
        layer below at other layers. For GPT-2 and Llama it is the one in front of the attention.
        """
        return self._layers.norm(self._check_layer(layer))

    def hidden_states(
        self, layer: int, token_ids: Tensor, *, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return exactly what enters the attention of ``layer`` when the model runs on these ids.

        For decoders, which normalise first, this is the output of that normalisation.

        Parameters
        ----------
        layer : int
        token_ids : Tensor of integers, shape (batch, n) or (n,)
            A vector is a batch of one.
        attention_mask : Tensor, shape (batch, n), optional
            Zero where a token is padding.

        Returns
        -------
        Tensor, shape (batch, n, d)

        Raises
        ------
        IndexError
            If there is no such layer.
        TypeError, ValueError
            If the ids are not whole numbers, not in the vocabulary, empty, or more than the model
            has positions, or the mask has another shape.
        """
        ids = self._check_ids(token_ids)
        return self._run([self._check_layer(layer)], ids, _check_padding(attention_mask, ids))[0]

    def all_hidden_states(self, token_ids: Tensor, *, up_to: int | None = None) -> list[Tensor]:
        """Return the :meth:`hidden_states` of every layer, tensors (batch, n, d), from one run.

        With ``up_to``, they are those of the layers from 0 to that one, and the run ends there.
        """
        last = self.n_layers - 1 if up_to is None else self._check_layer(up_to)
        return self._run(range(last + 1), self._check_ids(token_ids))

    @torch.no_grad()
    def _run(
        self, layers: Sequence[int], token_ids: Tensor, mask: Tensor | None = None
    ) -> list[Tensor]:
        """Run the model up to the last of ``layers``, and return what enters each."""
        kept: list[Tensor] = []

        def keep(module: nn.Module, args: tuple) -> None:
            kept.append(args[0])
            if len(kept) == len(layers):  # nothing above is needed
                raise _Reached

        with _RUNNING, contextlib.ExitStack() as stack:
            for layer in layers:
                stack.callback(self._layers.entry(layer).register_forward_pre_hook(keep).remove)
            with contextlib.suppress(_Reached):
                place = self.model.device
                padding = {} if mask is None else {"attention_mask": mask.to(place)}
                self.model(input_ids=token_ids.to(place), use_cache=False, **padding)
        return kept

    def decode(self, token_ids: Tensor) -> str:
        """Return the text of a vector of token ids."""
        ids = self._check_ids(token_ids, positions=False)
        if ids.shape[0] != 1:
            raise ValueError(
                f"token_ids: expected one sequence, got shape {tuple(token_ids.shape)}"
            )
        return self.tokenizer.decode(ids[0].tolist(), skip_special_tokens=False)

    def _check_layer(self, layer: int) -> int:
        return _check_index("layer", layer, self.n_layers, self.name)

    def _check_ids(self, token_ids: Tensor, *, positions: bool = True) -> Tensor:
        """Return the ids as (batch, n), or raise."""
        if not isinstance(token_ids, Tensor):
            raise TypeError(f"token_ids: expected a torch.Tensor, got {type(token_ids).__name__}")
        if token_ids.is_floating_point() or token_ids.is_complex() or token_ids.dtype == torch.bool:
            raise TypeError(f"token_ids: expected whole numbers, got {token_ids.dtype}")
        if token_ids.ndim not in (1, 2) or token_ids.numel() == 0:
            raise ValueError(
                "token_ids: expected shape (batch, n) or (n,), not empty, "
                f"got {tuple(token_ids.shape)}"
            )
        for extreme in token_ids.aminmax():
            if not 0 <= extreme < self.vocab_size:
                raise ValueError(
                    f"token_ids: expected 0 to {self.vocab_size - 1} for {self.name}, got {extreme}"
                )
        if positions:
            self.check_length(token_ids.shape[-1])
        return token_ids.long().reshape(-1, token_ids.shape[-1])


class _Reached(Exception):
    """Raised inside the running model to leave it once everything asked for is there."""


def _check_index(name: str, index: int, size: int, model: str) -> int:
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise TypeError(f"{name}: expected a whole number, got {index!r}")
    if not 0 <= index < size:
        raise IndexError(f"{name}: expected 0 to {size - 1} for {model}, got {index}")
    return int(index)


def _check_padding(mask: Tensor | None, token_ids: Tensor) -> Tensor | None:
    """Return the mask if it fits the ids (batch, n), or raise."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise TypeError(f"attention_mask: expected a torch.Tensor, got {type(mask).__name__}")
    if mask.shape != token_ids.shape:
        expected = f"shape {tuple(token_ids.shape)} as token_ids has"
        raise ValueError(f"attention_mask: expected {expected}, got {tuple(mask.shape)}")
    return mask.long()


def load(
    name: str | os.PathLike,
    *,
    decoder: bool = False,
    seed: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> LoadedModel:
    """Load a model by name, or from a folder that holds a saved checkpoint.

    A folder is read without a network. Models of BERT, GPT-2 and Llama type are returned as a
    :class:`LanguageModel`, whose layers are read out exactly. Any other architecture of
    transformers is a :class:`LoadedModel`, whose layers :func:`~lipcore.models.measure.measure` and
    :func:`~lipcore.models.capture.capture` take as they run.

    Parameters
    ----------
    name : str or path
        One of the names of :func:`~lab.models.sources.available` (weights are fetched on
        first use, see :func:`~lab.models.sources.fetch`),
        or a folder with a checkpoint of transformers (``config.json`` and weights).
    decoder : bool
        Whether BERT becomes a causal decoder (``is_decoder``), as in the paper's masked runs.
    seed : int, optional
        Which random draw, for the random models only (0 if left out). The global random state does
        not change.
    dtype : torch.dtype
        float32 or float64. A Llama-type model computes its softmax and RMSNorm in float32 in either
        case, so that its hidden states are exact to about 1e-7 only. The :class:`Attention` that is
        read out of it is float64 throughout.

    Returns
    -------
    LanguageModel or LoadedModel

    Raises
    ------
    ValueError
        If the name is unknown, transformers does not know the architecture, an option does not
        apply, weights are missing or of another architecture, or a hash is wrong.
    ConnectionError
        If weights must be fetched and cannot be.
    ImportError
        If the extra ``lipcore[book]`` is not installed.
    """
    check_dtype(dtype)
    source = SOURCES.get(str(name))
    drawn = source is not None and not source.files
    if seed is not None and not drawn:
        raise ValueError(
            f"seed: expected nothing, the weights of {name!s} are not random; got {seed}"
        )
    if drawn:
        folder = None
        model = _draw(source.architecture, decoder=decoder, seed=0 if seed is None else seed)
    else:
        folder = unpacked(source) if source else _checkpoint_folder(name)
        model = _read(folder, decoder=decoder)
    kind = LanguageModel if _is_readable(model.config) else LoadedModel
    return kind(
        model.to(dtype),
        name=source.name if source else folder.name,
        folder=folder,
        sha256=source.sha256 if source else "",
    )


def _checkpoint_folder(name: str | os.PathLike) -> Path:
    folder = Path(name).expanduser()
    if not folder.is_dir():
        find_source(str(name))  # raises, and lists the names
    if not (folder / "config.json").is_file():
        raise ValueError(f"name: expected a folder with a config.json, {folder} has none")
    return folder


def _options(config, *, decoder: bool) -> dict:
    """Set the decoder, and return the other options of the model's constructor."""
    if config.model_type == "bert":
        config.is_decoder = config.is_decoder or decoder
        return {"add_pooling_layer": False}
    if decoder:
        got = f"{config.model_type}, which has its own direction"
        raise ValueError(f"decoder: expected a BERT model, got {got}")
    return {}


def _is_readable(config) -> bool:
    """Return whether the layers can be read without running the model."""
    kind = ARCHITECTURES.get(config.model_type)
    return kind is not None and kind.covers(config)


def _read(folder: Path, *, decoder: bool) -> nn.Module:
    """Return the backbone saved in ``folder``, in float32."""
    file = folder / "config.json"
    try:
        model_type = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"name: expected a JSON object in {file}: {error}") from error
    transformers = library()
    if model_type not in transformers.CONFIG_MAPPING:
        expected = f"a model_type that transformers {transformers.__version__} knows"
        raise ValueError(f"name: expected {expected} in {file}, got {model_type!r}")
    with quiet(transformers):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    model_class = transformers.AutoModel
    if model_type in ARCHITECTURES:
        model_class = _model_class(transformers, model_type)
    elif config.architectures == ["WhisperEncoder"]:  # saved without a decoder
        model_class = transformers.models.whisper.modeling_whisper.WhisperEncoder
    return read_weights(model_class, folder, config=config, **_options(config, decoder=decoder))


def _model_class(transformers, model_type: str):
    return getattr(transformers, ARCHITECTURES[model_type].model_class)


def _draw(model_type: str, *, decoder: bool, seed: int) -> nn.Module:
    """Return random weights at the size of the default config: BERT-base, GPT-2 small."""
    model_class = _model_class(library(), model_type)
    config = model_class.config_class()
    options = _options(config, decoder=decoder)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(check_count("seed", seed, minimum=0))
        model = model_class(config, **options)
    model.set_attn_implementation("eager")
    return model
