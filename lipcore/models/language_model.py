"""Language models, seen as a stack of attention layers and the tokens that enter them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from lipcore._checks import check_count
from lipcore.attention import Attention
from lipcore.models.layers import ARCHITECTURES, Normalisation
from lipcore.models.sources import (
    SOURCES,
    ModelSource,
    cache_dir,
    fetch,
    find_source,
    quiet_import,
    sha256_of,
)

_DTYPES = (torch.float32, torch.float64)
_VOCABULARIES = ("vocab.txt", "vocab.json", "tokenizer.model")
_RUNNING = threading.Lock()  # hooks live on the model: two threads must not run it at once


class LanguageModel:
    """A transformer's attention layers, and what enters them. Get one from :func:`load`.

    Attributes
    ----------
    name, architecture : str
    sha256 : str
        Hash of the weights file; empty for random weights and local folders.
    n_layers, d, heads, vocab_size, max_positions : int
    causal : bool
        Whether token i sees only the tokens j ≤ i.
    model : torch.nn.Module
        The library's own model, in evaluation mode, without gradients.
    """

    def __init__(
        self, model: nn.Module, *, name: str, tokenizer_folder: Path | None, sha256: str = ""
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.name = name
        self.sha256 = sha256
        self._tokenizer_folder = tokenizer_folder
        self._layers = ARCHITECTURES[model.config.model_type](model)
        self.architecture = self._layers.title
        self.causal = self._layers.causal
        self.heads = self._layers.heads
        self.n_layers = model.config.num_hidden_layers
        self.d = model.config.hidden_size
        self.vocab_size = model.config.vocab_size
        self.max_positions = model.config.max_position_embeddings

    def __repr__(self) -> str:
        direction = "causal" if self.causal else "bidirectional"
        return (
            f"LanguageModel({self.name!r}: {self.architecture}, {self.n_layers} layers, "
            f"d={self.d}, {self.heads} heads, {direction}, {self.dtype})"
        )

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights, and of everything computed from them."""
        return self.model.dtype

    def to(
        self, dtype: torch.dtype | None = None, *, device: torch.device | str | None = None
    ) -> LanguageModel:
        """Convert the model to float32 or float64, or move it, in place, and return it.

        Attention layers taken out before keep their own precision.
        """
        self.model.to(dtype=None if dtype is None else _check_dtype(dtype), device=device)
        return self

    def attention(
        self, layer: int, *, head: int | None = None, output_projection: bool = True
    ) -> Attention:
        r"""The attention of one layer, without residual connection or normalisation.

        Parameters
        ----------
        layer : int
            From 0 to ``n_layers - 1``.
        head : int, optional
            One head alone, from 0 to ``heads - 1``; all of them if left out.
        output_projection : bool
            Whether the heads are summed through :math:`W_h` (with the output bias, unless it is one
            head alone), or only concatenated.

        Returns
        -------
        Attention
            ``model.attention(l)(model.hidden_states(l, ids))`` is what that layer computes inside
            the running model.

        Raises
        ------
        IndexError
            If there is no such layer or head.
        """
        attention = self._layers.attention(self._check_layer(layer))
        if head is not None:
            attention = attention.head(_check_index("head", head, self.heads, self.name))
        return attention if output_projection else replace(attention, output=None, output_bias=None)

    def norm(self, layer: int) -> Normalisation:
        """Gain and bias of the normalisation whose output enters the attention of ``layer``.

        BERT: the embeddings' LayerNorm at layer 0, else the one that ends the layer below. GPT-2
        and Llama: the one in front.
        """
        return self._layers.norm(self._check_layer(layer))

    def hidden_states(self, layer: int, token_ids: Tensor) -> Tensor:
        """Exactly what enters the attention of ``layer`` when the model runs on ``token_ids``.

        For decoders that normalise first, that is after the normalisation in front of it.

        Parameters
        ----------
        layer : int
        token_ids : Tensor of integers, shape (batch, n) or (n,)
            A vector is a batch of one.

        Returns
        -------
        Tensor, shape (batch, n, d)

        Raises
        ------
        IndexError
            If there is no such layer.
        TypeError, ValueError
            If the ids are not whole numbers, not in the vocabulary, none, or more than the model
            has positions.
        """
        return self._run([self._check_layer(layer)], self._check_ids(token_ids))[0]

    def all_hidden_states(self, token_ids: Tensor, *, up_to: int | None = None) -> list[Tensor]:
        """:meth:`hidden_states` of every layer, from one run: ``n_layers`` tensors (batch, n, d).

        With ``up_to``, of the layers from 0 to that one: the run ends there.
        """
        last = self.n_layers - 1 if up_to is None else self._check_layer(up_to)
        return self._run(range(last + 1), self._check_ids(token_ids))

    @torch.no_grad()
    def _run(self, layers: Sequence[int], token_ids: Tensor) -> list[Tensor]:
        """Run the model up to the last of ``layers``, and keep what enters each."""
        kept: list[Tensor] = []

        def keep(module: nn.Module, args: tuple) -> None:
            kept.append(args[0])
            if len(kept) == len(layers):  # nothing above is needed
                raise _Reached

        with _RUNNING, contextlib.ExitStack() as stack:
            for layer in layers:
                stack.callback(self._layers.entry(layer).register_forward_pre_hook(keep).remove)
            with contextlib.suppress(_Reached):
                self.model(input_ids=token_ids.to(self.model.device), use_cache=False)
        return kept

    @functools.cached_property
    def tokenizer(self):
        """The tokenizer (of the ``tokenizers`` library), read on first use."""
        return _read_tokenizer(self._tokenizer_folder, self.name)

    def encode(self, text: str) -> Tensor:
        """Token ids of a text, shape (tokens,), without special tokens and however long.

        Notes
        -----
        Random models have no tokenizer of their own; they use MiniLM's (WordPiece, the 30,522
        tokens of bert-base-uncased). For ``bert-random`` it is the right one. For ``gpt2-random``,
        whose vocabulary has 50,257 tokens, any numbering does: its embeddings are independent
        draws, so the law of what follows does not depend on which embedding stands for which token.
        """
        if not isinstance(text, str):
            raise TypeError(f"text: expected a string, got {type(text).__name__}")
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return torch.tensor(ids, dtype=torch.long)

    def decode(self, token_ids: Tensor) -> str:
        """The text of a vector of token ids."""
        ids = self._check_ids(token_ids, positions=False)
        if ids.shape[0] != 1:
            raise ValueError(
                f"token_ids: expected one sequence, got shape {tuple(token_ids.shape)}"
            )
        return self.tokenizer.decode(ids[0].tolist(), skip_special_tokens=False)

    def special_tokens(self) -> tuple[list[int], list[int]]:
        """Ids that the tokenizer puts before and after a text: ``([CLS], [SEP])`` for BERT."""
        encoding = self.tokenizer.encode("a", add_special_tokens=True)
        text = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
        return encoding.ids[: text[0]], encoding.ids[text[-1] + 1 :]

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

    def check_length(self, n: int) -> int:
        """Return n if the model has that many positions, else raise ValueError."""
        if check_count("n", n) > self.max_positions:
            raise ValueError(
                f"n: expected at most {self.max_positions} tokens, the positions of {self.name}, "
                f"got {n}"
            )
        return int(n)


class _Reached(Exception):
    """Raised inside the running model to leave it once everything asked for is there."""


def _check_index(name: str, index: int, size: int, model: str) -> int:
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise TypeError(f"{name}: expected a whole number, got {index!r}")
    if not 0 <= index < size:
        raise IndexError(f"{name}: expected 0 to {size - 1} for {model}, got {index}")
    return int(index)


def load(
    name: str | os.PathLike,
    *,
    decoder: bool = False,
    seed: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> LanguageModel:
    """Load a model by name, or from a folder that holds a saved checkpoint.

    Parameters
    ----------
    name : str or path
        One of the names of :func:`available` (weights are fetched on first use, see :func:`fetch`),
        or a folder with a checkpoint of BERT, GPT-2 or Llama type.
    decoder : bool
        Make BERT a causal decoder (``is_decoder``), as in the paper's masked experiments.
    seed : int, optional
        For the random models only: which draw (0 if left out). The global random state is left
        alone.
    dtype : torch.dtype
        float32 or float64. A Llama-type model takes its softmax and RMSNorm in float32 all the
        same, so that its hidden states are exact to about 1e-7 only; the :class:`Attention` read
        out of it is float64 throughout.

    Returns
    -------
    LanguageModel

    Raises
    ------
    ValueError
        For an unknown name, an architecture that is not supported, an option that does not apply,
        or a wrong hash.
    ConnectionError
        If weights are to be fetched and cannot be.
    ImportError
        Without the extra ``lipcore[models]``.
    """
    _check_dtype(dtype)
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
        folder = _dequantised(fetch(source.name), source) if source else _checkpoint_folder(name)
        model = _read(folder, decoder=decoder)
    return LanguageModel(
        model.to(dtype),
        name=source.name if source else folder.name,
        tokenizer_folder=folder,
        sha256=source.sha256 if source else "",
    )


def _check_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype not in _DTYPES:
        raise TypeError(f"dtype: expected torch.float32 or torch.float64, got {dtype!r}")
    return dtype


def _checkpoint_folder(name: str | os.PathLike) -> Path:
    folder = Path(name).expanduser()
    if not folder.is_dir():
        find_source(str(name))  # raises, and lists the names
    if not (folder / "config.json").is_file():
        raise ValueError(f"name: expected a folder with a config.json, {folder} has none")
    return folder


def _transformers():
    try:
        with quiet_import():
            import transformers
    except ImportError as error:
        raise ImportError(
            "lipcore.models needs transformers: pip install 'lipcore[models]'"
        ) from error
    return transformers


@contextlib.contextmanager
def _quiet(transformers) -> Iterator[None]:
    """Reading a checkpoint without progress bars or reports: what must be there is checked here."""
    logging = transformers.utils.logging
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _options(model_type: str, config, *, decoder: bool) -> dict:
    """Check the config, set the decoder, and return what else the model's constructor takes."""
    ARCHITECTURES[model_type].refuse(config)
    if model_type == "bert":
        config.is_decoder = config.is_decoder or decoder
        return {"add_pooling_layer": False}
    if decoder:
        title = ARCHITECTURES[model_type].title
        raise ValueError(f"decoder: expected a BERT model, {title} is a decoder already")
    return {}


def _read(folder: Path, *, decoder: bool) -> nn.Module:
    """The backbone saved in ``folder``, in float32."""
    file = folder / "config.json"
    try:
        model_type = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"name: expected a JSON object in {file}: {error}") from error
    if model_type not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(
            f"name: expected a checkpoint of type {known}, got {model_type!r} in {folder}"
        )
    transformers = _transformers()
    with _quiet(transformers):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        model, report = _model_class(transformers, model_type).from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            attn_implementation="eager",
            local_files_only=True,
            output_loading_info=True,
            **_options(model_type, config, decoder=decoder),
        )
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise ValueError(f"name: expected all weights in {folder}, missing {missing}")
    return model


def _model_class(transformers, model_type: str):
    return getattr(transformers, ARCHITECTURES[model_type].model_class)


def _draw(model_type: str, *, decoder: bool, seed: int) -> nn.Module:
    """Random weights at the size of the default config: BERT-base, GPT-2 small."""
    model_class = _model_class(_transformers(), model_type)
    config = model_class.config_class()
    options = _options(model_type, config, decoder=decoder)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(check_count("seed", seed, minimum=0))
        model = model_class(config, **options)
    model.set_attn_implementation("eager")
    return model


def _dequantised(folder: Path, source: ModelSource) -> Path:
    """The folder itself, or, for 4-bit weights, one beside it with the same weights in float32.

    Reading the 4-bit file takes ten times as long. The copy carries its own SHA-256, and is remade
    if that differs.
    """
    if not source.weights.endswith(".gguf"):
        return folder
    plain = cache_dir() / f"{source.name}-float32"
    if _is_intact(plain):
        return plain
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"{source.name} needs {package}: pip install 'lipcore[models]'")
    transformers = _transformers()
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=cache_dir()) as staging:
        # its progress bar heeds no setting, hence the redirection
        with _quiet(transformers), contextlib.redirect_stderr(io.StringIO()):
            _write_out(transformers, folder, source, Path(staging))
        plain.mkdir(exist_ok=True)
        for file in Path(staging).iterdir():  # whole files, also if two processes do it at once
            os.replace(file, plain / file.name)
    return plain


def _write_out(transformers, folder: Path, source: ModelSource, target: Path) -> None:
    """Read a GGUF file, and save an ordinary checkpoint in float32, with its SHA-256."""
    from safetensors.torch import save_file

    options = {"gguf_file": source.weights, "local_files_only": True}
    model_class = _model_class(transformers, source.architecture)
    model = model_class.from_pretrained(folder, dtype=torch.float32, **options)
    del model.config.quantization_config  # it is plain float32 from here on
    model.config.save_pretrained(target)
    save_file(model.state_dict(), target / "model.safetensors", metadata={"format": "pt"})
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    tokenizer.backend_tokenizer.save(str(target / "tokenizer.json"))
    (target / "model.sha256").write_text(sha256_of(target / "model.safetensors"), encoding="utf-8")


def _is_intact(folder: Path) -> bool:
    files = ("config.json", "tokenizer.json", "model.safetensors", "model.sha256")
    if not all((folder / file).is_file() for file in files):
        return False
    digest = (folder / "model.sha256").read_text(encoding="utf-8")
    return sha256_of(folder / "model.safetensors") == digest


def _read_tokenizer(folder: Path | None, name: str):
    """The tokenizer saved in ``folder``, or MiniLM's for the random models, which have none."""
    transformers = _transformers()
    from tokenizers import Tokenizer

    folder = fetch("minilm") if folder is None else folder
    if (folder / "tokenizer.json").is_file():
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    elif any((folder / file).is_file() for file in _VOCABULARIES):
        with _quiet(transformers):
            whole = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        tokenizer = whole.backend_tokenizer
    else:  # the library would make up an empty one
        raise ValueError(
            f"{name}: expected a tokenizer in {folder} to encode text with, found none: "
            "pass token ids"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
