"""Inputs of a model from files: token ids, a text, or an image."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from torch import Tensor

from lab.models.loaded import LoadedModel, library, quiet

#: The names of a text's token ids among a model's inputs, and of the padding mask beside it.
IDS = "input_ids"
MASK = "attention_mask"


def from_ids(model: LoadedModel, path: str | os.PathLike) -> dict[str, Tensor]:
    """Return inputs from a JSON file: a list of ids, a list of such lists, or an object by name.

    Sequences of unequal lengths are padded, and the padding is masked.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"ids: expected a JSON file, {path} is not: {error}") from error
    if isinstance(content, dict) and content:
        inputs = {name: _tensor(name, value, model.dtype) for name, value in content.items()}
        return with_decoder(model, inputs)
    if isinstance(content, list) and content and not isinstance(content[0], list):
        content = [content]
    rows = content if isinstance(content, list) else []
    if not rows or not all(_are_ids(row) for row in rows):
        expected = "a list of token ids, or of such lists, or an object of inputs by name"
        raise ValueError(f"ids: expected {expected} in {path}")
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    inputs = {IDS: ids}
    if any(len(row) < longest for row in rows):
        inputs[MASK] = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return with_decoder(model, inputs)


def from_image(model: LoadedModel, path: str | os.PathLike) -> dict[str, Tensor]:
    """Return inputs from an image file, made by the processor that was saved beside the model."""
    folder = model.folder
    if folder is None or not (folder / "preprocessor_config.json").is_file():
        raise ValueError(
            f"image: expected a preprocessor_config.json beside the model {model.name}"
        )
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("images need Pillow: pip install pillow") from error
    transformers = library()
    try:
        with Image.open(path) as image, quiet(transformers):
            processor = transformers.AutoImageProcessor.from_pretrained(
                folder, local_files_only=True
            )
            pixels = processor(images=image.convert("RGB"), return_tensors="pt")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"image: {path} cannot be read as one: {reason}") from error
    return {name: x.to(model.dtype) for name, x in pixels.items() if isinstance(x, Tensor)}


def with_decoder(model: LoadedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the same inputs; a decoder for which there is nothing else reads the same tokens."""
    if not model.model.config.is_encoder_decoder or IDS not in inputs:
        return inputs
    return {"decoder_input_ids": inputs[IDS]} | inputs


def _are_ids(row) -> bool:
    return isinstance(row, list) and bool(row) and all(type(token) is int for token in row)


def _tensor(name: str, value, dtype: torch.dtype) -> Tensor:
    try:
        tensor = torch.tensor(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"ids: expected lists of numbers for {name!r}: {error}") from error
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
