"""A model of any architecture of transformers, and its tokenizer, read from a folder.

>>> from lipcore import measure
>>> from lab.models import load
>>> model = load("my-qwen")  # doctest: +SKIP
>>> measure(model, input_ids=model.encode("The layer is measured.")[None])  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from lab.models.sources import fetch, quiet_import
from lipcore._checks import check_count
from lipcore.models.structure import blocks

_DTYPES = (torch.float32, torch.float64)
_VOCABULARIES = ("vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
# Parts of old checkpoints that are not weights, and weights that feed no attention.
_BUFFERS = re.compile(r"\.(attn|attention)\.(masked_)?bias$|inv_freq$|position_ids$")
_POOLER = re.compile(r"(^|\.)pooler\.")


class LoadedModel:
    """A model in evaluation mode without gradients, and its tokenizer.

    :func:`~lab.models.language_model.load` returns one.

    :func:`~lipcore.models.measure.measure` and :func:`~lipcore.models.capture.capture` take it in
    place of its ``model``.

    Attributes
    ----------
    name, architecture : str
    sha256 : str
        The hash of the weights file; empty for random weights and local folders.
    model : torch.nn.Module
        The library's own model.
    folder : Path or None
        The folder of the weights and the tokenizer; None for random weights.
    max_positions : int or None
        The largest number of tokens that it takes, if its config says so.
    """

    def __init__(
        self, model: nn.Module, *, name: str, folder: Path | None, sha256: str = ""
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.name = name
        self.sha256 = sha256
        self.architecture = type(model).__name__.removesuffix("Model")
        self.folder = folder
        text = model.config.get_text_config()
        self.max_positions = getattr(text, "max_position_embeddings", None)

    def __repr__(self) -> str:
        return f"LoadedModel({self.name!r}: {self.architecture}, {self.dtype})"

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights, and of everything computed from them."""
        return self.model.dtype

    def to(
        self, dtype: torch.dtype | None = None, *, device: torch.device | str | None = None
    ) -> LoadedModel:
        """Convert the model to float32 or float64, or move it, in place, and return it.

        Attention layers that were taken out before keep their own precision.
        """
        self.model.to(dtype=None if dtype is None else check_dtype(dtype), device=device)
        return self

    @functools.cached_property
    def tokenizer(self):
        """The tokenizer (of the ``tokenizers`` library), read on first use."""
        return _read_tokenizer(self.folder, self.name)

    def encode(self, text: str) -> Tensor:
        """Return the token ids of a text, shape (tokens,), without special tokens, at any length.

        Notes
        -----
        Random models have no tokenizer of their own, and use that of MiniLM (WordPiece, the 30,522
        tokens of bert-base-uncased). For ``bert-random`` it is the right one. For ``gpt2-random``,
        whose vocabulary has 50,257 tokens, every numbering is right: its embeddings are independent
        draws, so that the law of the results does not depend on which embedding a token has.
        """
        if not isinstance(text, str):
            raise TypeError(f"text: expected a string, got {type(text).__name__}")
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return torch.tensor(ids, dtype=torch.long)

    def special_tokens(self) -> tuple[list[int], list[int]]:
        """Return the ids that the tokenizer puts around a text: ``([CLS], [SEP])`` for BERT."""
        encoding = self.tokenizer.encode("a", add_special_tokens=True)
        text = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
        return encoding.ids[: text[0]], encoding.ids[text[-1] + 1 :]

    def check_length(self, n: int) -> int:
        """Return n if the model has that many positions, else raise ValueError."""
        if self.max_positions is not None and check_count("n", n) > self.max_positions:
            raise ValueError(
                f"n: expected at most {self.max_positions} tokens, the positions of {self.name}, "
                f"got {n}"
            )
        return int(check_count("n", n))


def check_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype if it is float32 or float64, else raise TypeError."""
    if dtype not in _DTYPES:
        raise TypeError(f"dtype: expected torch.float32 or torch.float64, got {dtype!r}")
    return dtype


def library():
    """Return the package transformers, or raise an ImportError that says how to install it."""
    try:
        with quiet_import():
            import transformers
    except ImportError as error:
        raise ImportError("lab.models needs transformers: pip install 'lipcore[book]'") from error
    return transformers


@contextlib.contextmanager
def quiet(transformers) -> Iterator[None]:
    """Silence progress bars and reports while a checkpoint is read, which is checked here."""
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


def read_weights(model_class, folder: Path, **options) -> nn.Module:
    """Return the model saved in ``folder``, in float32, without asking the network.

    Raises
    ------
    ValueError
        If weights are missing, or the blocks have weights in the file for which the model has no
        place, because the config is that of another architecture.
    """
    transformers = library()
    with quiet(transformers):
        try:
            model, report = model_class.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                local_files_only=True,
                output_loading_info=True,
                **options,
            )
        except (OSError, RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ValueError(f"name: the weights in {folder} cannot be read: {reason}") from error
        with contextlib.suppress(ValueError, AttributeError):  # grouped products know no float64
            model.set_experts_implementation("eager")
    missing = sorted(key for key in report["missing_keys"] if not _POOLER.search(key))
    if missing:
        names = ", ".join(missing[:3])
        raise ValueError(f"name: expected all weights in {folder}, missing {names}")
    parents = {re.escape(name.rsplit(".", 1)[0]) for name in blocks(model)}
    inside = re.compile(rf"(^|\.)({'|'.join(parents)})\.\d+\.")
    unknown = [
        key
        for key in sorted(report["unexpected_keys"])
        if parents and inside.search(key) and not _BUFFERS.search(key)
    ]
    if unknown:
        kind = f"the blocks of a {type(model).__name__}"
        names = ", ".join(unknown[:3])
        raise ValueError(f"name: expected in {folder} no weights but those of {kind}, got {names}")
    return model


def _read_tokenizer(folder: Path | None, name: str):
    """Return the tokenizer in ``folder``, or MiniLM's for the random models, which have none."""
    transformers = library()
    from tokenizers import Tokenizer

    folder = fetch("minilm") if folder is None else folder
    if (folder / "tokenizer.json").is_file():
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    elif any((folder / file).is_file() for file in _VOCABULARIES):
        with quiet(transformers):
            whole = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        tokenizer = whole.backend_tokenizer
    else:  # the library would return an empty one
        raise ValueError(
            f"{name}: expected a tokenizer in {folder} to encode text with, found none: "
            "pass token ids"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
