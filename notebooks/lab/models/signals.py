"""Photographs and speech, in the form that models of images and of sound take."""

from __future__ import annotations

import copy

import numpy as np
import torch
from scipy.io import wavfile
from torch import Tensor, nn

from lab.models.loaded import LoadedModel, library
from lab.models.sources import DATA, fetch

#: The side of a patch of the vision transformer, in pixels.
PATCH = 14
#: Mean and deviation of red, green and blue over ImageNet: models of images expect them removed.
_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)
_RATE = 16_000  # samples a second of everything that Whisper hears


def photographs() -> dict[str, Tensor]:
    """Return ten photographs by name, each (3, height, width) with values from 0 to 1."""
    from PIL import Image

    folder = fetch("photos")
    found = {}
    for file in DATA["photos"].files:
        with Image.open(folder / file) as image:
            pixels = torch.from_numpy(np.array(image.convert("RGB")))
        found[file.partition(".")[0]] = pixels.permute(2, 0, 1) / 255
    return found


def patches(image: Tensor, side: int) -> Tensor:
    """Return an image's central square of side × side patches, as the vision transformer takes it.

    >>> patches(torch.rand(3, 40, 60), 2).shape
    torch.Size([3, 28, 28])
    """
    pixels = PATCH * side
    _, height, width = image.shape
    edge = min(height, width)
    top = (height - edge) // 2
    left = (width - edge) // 2
    square = image[:, top : top + edge, left : left + edge]
    resized = nn.functional.interpolate(
        square[None], (pixels, pixels), mode="bicubic", antialias=True
    )[0].clamp(0, 1)
    mean, deviation = (image.new_tensor(x)[:, None, None] for x in (_MEAN, _DEVIATION))
    return (resized - mean) / deviation


def speech() -> Tensor:
    """Return thirty seconds of a conversation, 16,000 samples a second, with values from −1 to 1."""
    _, samples = wavfile.read(fetch("speech") / "sample.wav")
    return torch.from_numpy(samples) / 2**15


def spectrogram(sound: Tensor) -> Tensor:
    """Return Whisper's input (80, 3000) for a sound: 80 bands, 100 columns a second."""
    extract = library().WhisperFeatureExtractor()
    found = extract(sound.numpy(), sampling_rate=_RATE, return_tensors="pt")
    return found.input_features[0]


def shortened(model: LoadedModel, n: int) -> LoadedModel:
    """Return Whisper's encoder with its first n positions only: it takes 2 n columns, not 3,000."""
    positions = model.model.embed_positions.weight
    memo = {id(x): x for x in model.model.parameters()}  # the weights are shared, not copied
    encoder = copy.deepcopy(model.model, memo)
    encoder.embed_positions = nn.Embedding.from_pretrained(positions[:n])
    encoder.config.max_source_positions = n
    return LoadedModel(encoder, name=model.name, folder=model.folder, sha256=model.sha256)
