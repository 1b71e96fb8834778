"""Constants of models of images and of speech: ``python -m lab.images_and_speech`` stores them."""

from __future__ import annotations

import argparse
import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from lab import models
from lab._threads import one_thread
from lab.models.loaded import LoadedModel
from lab.models.signals import PATCH, patches, photographs, shortened, spectrogram, speech
from lab.stored import stored_file
from lab.sweep import collect, export, finish
from lab.why_it_grows import SHARES, column_means, term_shares
from lipcore.attention import Attention
from lipcore.bounds import nonnegative_norm_upper
from lipcore.lipschitz import local_lipschitz
from lipcore.models.capture import captured, module_of, record
from lipcore.models.modules import read
from lipcore.models.structure import attention_modules

#: Numbers of patches along a side of the image, and how many photographs are measured there.
SIDES = dict.fromkeys((2, 3, 4, 6, 8, 11, 16, 24), 10)
#: Numbers of frames of 20 ms, and how many pieces of the recording are measured.
FRAMES = {4: 8, 8: 8, 16: 8, 32: 8, 64: 8, 128: 8, 256: 4, 512: 2, 1024: 1, 1500: 1}
#: The same for the controls.
CONTROL_SIDES = dict.fromkeys((2, 4, 8, 11), 4)
CONTROL_FRAMES = {8: 4, 32: 4, 128: 4, 256: 2}
#: The controls that are shown to the models in place of a photograph or of speech.
CONTROLS = {
    "vit": ("shuffled", "spectrum", "uniform", "repeated", "weights"),
    "whisper": ("shuffled", "uniform", "repeated", "silence", "weights"),
}
#: When a prediction of growth exponents counts as confirmed: mean error over layers, and largest.
#: Both were fixed before the measurement, from where the prediction was found (0.04 and 0.14).
MEAN_ERROR = 0.05
LARGEST_ERROR = 0.15
#: The first frame of the recording in which somebody speaks, and the last one.
_SPOKEN = (334, 1500)


@dataclass(frozen=True)
class Cell:
    """One model at one length (patches along a side, or frames), on ``count`` of what is shown."""

    model: str
    shown: str
    length: int
    count: int

    @property
    def key(self) -> str:
        """The name of the cell's file."""
        return "-".join(map(str, asdict(self).values()))


def plan() -> list[Cell]:
    """Return every cell of the stored table."""
    counts = {("vit", "photo"): SIDES, ("whisper", "speech"): FRAMES}
    for model, lengths in (("vit", CONTROL_SIDES), ("whisper", CONTROL_FRAMES)):
        counts |= {(model, shown): lengths for shown in CONTROLS[model]}
    return [Cell(*what, *pair) for what, lengths in counts.items() for pair in lengths.items()]


def shuffled(signal: Tensor, size: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return a signal (bands, …) cut into blocks of a size and put together in a random order."""
    return _rearranged(signal, size, lambda count: torch.randperm(count, generator=generator))


def repeated(signal: Tensor, size: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return a signal in which one of its blocks, drawn at random, replaces all of them."""
    one = functools.partial(torch.randint, size=(1,), generator=generator)
    return _rearranged(signal, size, lambda count: one(count).expand(count))


def _rearranged(signal: Tensor, size: Sequence[int], order: Callable[[int], Tensor]) -> Tensor:
    if signal.ndim == 2:  # a sound is an image of one line
        return _rearranged(signal[:, None], (1, *size), order)[:, 0]
    blocks = nn.functional.unfold(signal, size, stride=size)
    blocks = blocks[:, order(blocks.shape[1])]
    return nn.functional.fold(blocks, signal.shape[1:], size, stride=size)


def uniform(signal: Tensor, generator: torch.Generator) -> Tensor:
    """Return independent values, uniform between the least and the largest of the signal."""
    low, high = signal.aminmax()
    return low + (high - low) * torch.rand(signal.shape, generator=generator).to(signal)


def same_spectrum(image: Tensor, generator: torch.Generator) -> Tensor:
    """Return noise with the image's amplitude at every frequency, in every colour."""
    # the phases of white noise: those of opposite frequencies fit each other
    white = torch.randn(image.shape[-2:], generator=generator, dtype=torch.float64)
    phases = torch.fft.fft2(white)
    phases = phases / phases.abs()
    phases[0, 0] = 1  # the mean keeps its sign
    spectrum = torch.fft.fft2(image.double())
    amplitude = spectrum.abs()
    amplitude[..., 0, 0] = spectrum[..., 0, 0].real
    return torch.fft.ifft2(amplitude * phases).real.to(image)


def with_permuted_weights(model: LoadedModel, generator: torch.Generator) -> LoadedModel:
    """Return the model with the entries of every matrix of its blocks in a random order."""
    mixed = copy.deepcopy(model.model)
    for module in mixed.modules():
        if isinstance(module, nn.Linear):
            entries = module.weight.flatten()
            order = torch.randperm(len(entries), generator=generator)
            module.weight.copy_(entries[order].reshape(module.weight.shape))
    return LoadedModel(mixed, name=model.name, folder=model.folder)


def attentions(model: LoadedModel, **inputs) -> list[Attention]:
    """Return the attention layers of a model, read out and verified on the inputs."""
    names = attention_modules(module_of(model))
    return [read(captured(call)) for call in record(model, names, **inputs)]


def entering(model: LoadedModel, **inputs) -> list[Tensor]:
    """Return what enters each attention layer of a model, tensors (count, n, d)."""
    calls = record(model, attention_modules(module_of(model)), **inputs)
    return [next(iter(call.tensors.values())) for call in calls]


def measure_tokens(layer: Attention, X: Tensor) -> list[dict]:
    """Return σ, where its worst direction is, its three terms and predictors, one row per member.

    ``first`` is the share of the first token in the energy of the worst direction, ``place`` the
    token with the largest share, and ``largest`` that share. ``map`` is the largest norm of a
    head's weights, ``audience`` the largest mean of a column of weights.
    """
    found = local_lipschitz(layer, X, tol=SHARES)
    if not bool(found.converged.all()):
        raise RuntimeError(f"every constant was expected to converge to {SHARES:g}")
    energy = found.right.square().sum(-1)
    shares = energy / energy.sum(-1, keepdim=True)
    largest, place = shares.max(-1)
    terms = term_shares(layer, X, found).unbind(-1)
    columns = {"sigma": found.value, "first": shares[:, 0], "place": place, "largest": largest}
    columns |= dict(zip(("mixing", "own_query", "others_keys"), terms, strict=True))
    P = layer.weights(X)
    norms = nonnegative_norm_upper(P, iterations=12)
    columns["map"] = norms.amax(-1)
    columns["weighted"] = (norms * layer.value_norms()).square().sum(-1).sqrt()
    columns["audience"] = column_means(P)[0].amax(-1)
    return pd.DataFrame({name: x.tolist() for name, x in columns.items()}).to_dict("records")


def measure(cell: Cell, chosen: Sequence[int] | None = None) -> list[dict]:
    """Return one row for each (chosen) layer and each photograph or piece of the recording."""
    with one_thread(), torch.no_grad():
        model, inputs = _shown(cell)
        layers = _layers(model, inputs)
        rows = []
        for number, (layer, X) in enumerate(zip(layers, entering(model, **inputs), strict=True)):
            if chosen is not None and number not in chosen:
                continue
            about = {"layer": number, "n": X.shape[-2]}
            for member, row in enumerate(measure_tokens(layer, X)):
                rows.append(asdict(cell) | about | {"member": member} | row)
    return rows


def _layers(model: LoadedModel, inputs: dict[str, Tensor]) -> list[Attention]:
    """Return the layers, verified on a small input, on which they do not depend."""
    ((name, signal),) = inputs.items()
    if name == "pixel_values":
        return attentions(model, **{name: signal[:1, :, : 2 * PATCH, : 2 * PATCH]})
    return attentions(shortened(model, 4), **{name: signal[:1, :, :8]})


_model = functools.cache(models.load)  # loading takes longer than a small cell


def _shown(cell: Cell) -> tuple[LoadedModel, dict[str, Tensor]]:
    """Return the model, and its inputs."""
    model = _model(cell.model)
    generator = torch.Generator().manual_seed(cell.length)
    if cell.shown == "weights":
        model = with_permuted_weights(model, generator)
    if cell.model == "vit":
        name = "pixel_values"
        size = (PATCH, PATCH)
        signals = [patches(x, cell.length) for x in list(photographs().values())[: cell.count]]
    else:
        name = "input_features"
        size = (2,)
        signals = list(_pieces(cell))
        model = shortened(model, cell.length)
    change = {
        "shuffled": lambda x: shuffled(x, size, generator),
        "repeated": lambda x: repeated(x, size, generator),
        "uniform": lambda x: uniform(x, generator),
        "spectrum": lambda x: same_spectrum(x, generator),
    }.get(cell.shown, lambda x: x)
    return model, {name: torch.stack([change(x) for x in signals])}


def _pieces(cell: Cell) -> Iterator[Tensor]:
    """Yield pieces of the recording, evenly spaced over the part in which people speak."""
    sound = speech()
    heard = spectrogram(0 * sound if cell.shown == "silence" else sound)
    first, last = _SPOKEN
    last -= cell.length
    first = min(first, last)
    for start in torch.linspace(first, last, cell.count).round().int().tolist():
        yield heard[:, 2 * start : 2 * (start + cell.length)]


def stored() -> pd.DataFrame:
    """Return the measurements that are kept with the book, as :func:`measure` returns them."""
    return pd.read_parquet(stored_file("images_and_speech.parquet", "make images"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every cell that the folder does not hold yet, and store the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.images_and_speech")
    parser.add_argument("--folder", type=Path, required=True, help="keeps what is finished")
    parser.add_argument("--export", type=Path, required=True, help="the table (parquet)")
    options = parser.parse_args(arguments)
    finish(plan(), options.folder, measure)
    table = collect(plan(), options.folder).drop(columns="count")
    export(table, options.export, command="make images")


if __name__ == "__main__":
    main()
