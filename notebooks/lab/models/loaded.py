"""A model of any architecture of transformers, and its tokenizer, read from a folder."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor, nn

from lab.models.sources import fetch, quiet_import
from lipcore._checks import check_count, require


class LoadedModel:
    """A model in evaluation mode without gradients, ``model``, and its tokenizer."""

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

    @functools.cached_property
    def tokenizer(self):
        """The tokenizer (of the ``tokenizers`` library); models drawn at random use MiniLM's."""
        from tokenizers import Tokenizer

        file = (self.folder or fetch("minilm")) / "tokenizer.json"
        require(file.is_file(), "name", f"a tokenizer in {file}", "none: pass token ids")
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def encode(self, text: str) -> Tensor:
        """Return the token ids of a text, shape (tokens,), without special tokens, at any length.

        For ``gpt2-random`` any numbering is right, as its embeddings are independent draws.
        """
        require(isinstance(text, str), "text", "a string", type(text).__name__, TypeError)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return torch.tensor(ids, dtype=torch.long)

    def decode(self, token_ids: Tensor) -> str:
        """Return the text of a vector of token ids."""
        return self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=False)

    def special_tokens(self) -> tuple[list[int], list[int]]:
        """Return the ids that the tokenizer puts around a text: ``([CLS], [SEP])`` for BERT."""
        encoding = self.tokenizer.encode("a", add_special_tokens=True)
        text = encoding.special_tokens_mask.index(0)
        return encoding.ids[:text], encoding.ids[text + 1 :]

    def check_length(self, n: int) -> int:
        """Return n if the model has that many positions, else raise ValueError."""
        n = check_count("n", n)
        most = self.max_positions
        fits = most is None or n <= most
        require(fits, "n", f"at most {most} tokens, the positions of {self.name}", n)
        return n


def library():
    """Return transformers, silent: what it reads is checked here."""
    with quiet_import():
        import transformers
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def read_weights(model_class, folder: Path, **options) -> nn.Module:
    """Return the model saved in ``folder``, in float32; refuse it if weights are missing."""
    options |= {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
    try:
        model, report = model_class.from_pretrained(folder, output_loading_info=True, **options)
    except (OSError, RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"name: the weights in {folder} cannot be read: {reason}") from error
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)  # it feeds none
    require(not missing, "name", f"all weights in {folder}", f"none of {', '.join(missing[:3])}")
    return model
