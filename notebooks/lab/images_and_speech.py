"""Constants of a model of images and of one of speech, measured once and stored, with controls."""

from __future__ import annotations

import argparse
import copy
import functools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lab import models
from lab._threads import one_thread
from lab.data import stored_file
from lab.models.loaded import LoadedModel
from lab.models.signals import (
    PATCH,
    patches,
    photographs,
    shortened,
    spectrogram,
    speech,
)
from lab.why_it_grows import SHARES, column_means, term_shares
from lipcore.attention import Attention
from lipcore.bounds import nonnegative_norm_upper
from lipcore.lipschitz import local_lipschitz
from lipcore.models.capture import captured, module_of, record
from lipcore.models.measure import versions
from lipcore.models.modules import read
from lipcore.models.structure import attention_modules

if TYPE_CHECKING:
    import pandas as pd

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
#: When a prediction of growth exponents counts as confirmed on a model that had no part in finding
#: it: the mean error over layers, and the largest one. Both were fixed before the measurement, from
#: what the prediction did on the layers where it was found (0.04 and 0.14).
MEAN_ERROR = 0.05
LARGEST_ERROR = 0.15
#: The first frame of the recording in which somebody speaks, and the last one.
_SPOKEN = (334, 1500)


@dataclass(frozen=True)
class Cell:
    """One model at one length, on its own kind of input or on a control.

    Attributes
    ----------
    model : {"vit", "whisper"}
    shown : str
        ``"photo"`` or ``"speech"``, or one of :data:`CONTROLS`.
    length : int
        Patches along a side, or frames.
    count : int
        Photographs, or pieces of the recording.
    """

    model: str
    shown: str
    length: int
    count: int


def plan() -> list[Cell]:
    """Return every cell of the stored table.

    Examples
    --------
    >>> len(plan())
    58
    """
    main = [Cell("vit", "photo", *pair) for pair in SIDES.items()]
    main += [Cell("whisper", "speech", *pair) for pair in FRAMES.items()]
    controls = [
        Cell(model, shown, *pair)
        for model, lengths in (("vit", CONTROL_SIDES), ("whisper", CONTROL_FRAMES))
        for shown in CONTROLS[model]
        for pair in lengths.items()
    ]
    return main + controls


def shuffled(signal: Tensor, size: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return a signal (bands, …) cut into blocks of a size and put together in a random order.

    Examples
    --------
    >>> mixed = shuffled(torch.arange(6.0)[None], (2,), torch.Generator().manual_seed(0))
    >>> sorted(mixed[0].tolist()), (mixed[0, ::2] % 2).tolist()
    ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 0.0, 0.0])
    """
    blocks = _blocks(signal, size)
    order = torch.randperm(len(blocks), generator=generator)
    return _joined(blocks[order], signal, size)


def repeated(signal: Tensor, size: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return a signal in which one of its blocks, drawn at random, replaces all of them."""
    blocks = _blocks(signal, size)
    chosen = torch.randint(len(blocks), (1,), generator=generator)
    return _joined(blocks[chosen].expand_as(blocks), signal, size)


def uniform(signal: Tensor, generator: torch.Generator) -> Tensor:
    """Return independent values, uniform between the least and the largest of the signal."""
    low, high = signal.aminmax()
    return low + (high - low) * torch.rand(signal.shape, generator=generator).to(signal)


def same_spectrum(image: Tensor, generator: torch.Generator) -> Tensor:
    """Return noise with the image's amplitude at every frequency, in every colour.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> image = torch.rand(3, 8, 8, generator=generator, dtype=torch.float64)
    >>> noise = same_spectrum(image, generator)
    >>> torch.allclose(torch.fft.fft2(noise).abs(), torch.fft.fft2(image).abs())
    True
    """
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


def _blocks(signal: Tensor, size: Sequence[int]) -> Tensor:
    """Cut (bands, a, b) into (blocks, bands, …), blocks of the given size."""
    for dim, edge in enumerate(size, 1):
        signal = signal.unfold(dim, edge, edge)
    return signal.flatten(1, len(size)).transpose(0, 1)


def _joined(blocks: Tensor, signal: Tensor, size: Sequence[int]) -> Tensor:
    """Return the signal of which :func:`_blocks` gave the blocks."""
    counts = [whole // edge for whole, edge in zip(signal.shape[1:], size, strict=True)]
    parts = blocks.transpose(0, 1).unflatten(1, counts)
    steps = len(size)
    order = [0] + [place for i in range(steps) for place in (1 + i, 1 + steps + i)]
    return parts.permute(order).reshape(signal.shape)


def attentions(model: LoadedModel, **inputs) -> list[Attention]:
    """Return the attention layers of a model, read out and verified on the inputs."""
    names = attention_modules(module_of(model))
    return [read(captured(call)) for call in record(model, names, **inputs)]


def entering(model: LoadedModel, **inputs) -> list[Tensor]:
    """Return what enters each attention layer of a model, tensors (count, n, d)."""
    calls = record(model, attention_modules(module_of(model)), **inputs)
    return [next(iter(call.tensors.values())) for call in calls]


def predictors(layer: Attention, X: Tensor) -> dict[str, Tensor]:
    r"""Return what the weights predict of each member's σ (:prf:ref:`thm-why-lever`).

    Returns
    -------
    dict
        ``map``: :math:`\max_h\|P_h\|_2`; ``weighted``:
        :math:`(\sum_h\|P_h\|_2^2\|W_hV_h\|_2^2)^{1/2}`; ``audience``: the largest mean of a column
        of weights.
    """
    P = layer.weights(X)
    norms = nonnegative_norm_upper(P, iterations=12)
    weighted = (norms * layer.value_norms()).square().sum(-1).sqrt()
    return {
        "map": norms.amax(-1),
        "weighted": weighted,
        "audience": column_means(P)[0].amax(-1),
    }


def measure_tokens(layer: Attention, X: Tensor) -> list[dict]:
    """Return σ, where its worst direction is, its three terms and predictors, one row per member.

    ``first`` is the share of the first token in the energy of the worst direction, ``place`` the
    token with the largest share, and ``largest`` that share.
    """
    found = local_lipschitz(layer, X, tol=SHARES)
    if not bool(found.converged.all()):
        raise RuntimeError(f"every constant was expected to converge to {SHARES:g}")
    shares = found.right.square().sum(-1)
    shares = shares / shares.sum(-1, keepdim=True)
    largest, place = shares.max(-1)
    terms = term_shares(layer, X, found).unbind(-1)
    columns = {"sigma": found.value, "first": shares[:, 0], "place": place, "largest": largest}
    columns |= dict(zip(("mixing", "own_query", "others_keys"), terms, strict=True))
    columns |= predictors(layer, X)
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def measure(cell: Cell, chosen: Sequence[int] | None = None) -> list[dict]:
    """Return the rows of one cell, one for each layer and photograph or piece of the recording.

    With ``chosen``, the rows are of these layers only.
    """
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


@functools.cache  # loading takes longer than a small cell
def _model(name: str) -> LoadedModel:
    return models.load(name)


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
    """Return the measurements that are kept with the book, as :func:`measure` returns them.

    Raises
    ------
    FileNotFoundError
        If they were not made yet.
    """
    import pandas as pd

    return pd.read_parquet(stored_file("images_and_speech.parquet", "make images"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every cell that the folder does not hold yet, and store the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.images_and_speech")
    parser.add_argument("--folder", type=Path, required=True, help="keeps what is finished")
    parser.add_argument("--export", type=Path, help="the table (parquet)")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    cells = plan()
    for cell in cells:
        path = _path(options.folder, cell)
        if not path.is_file():
            begin = time.process_time()
            content = {"rows": measure(cell), "seconds": time.process_time() - begin}
            path.write_text(json.dumps(content), encoding="utf-8")
            print(f"{path.stem}: {content['seconds']:.0f} s", flush=True)
    if options.export:
        _export([json.loads(_path(options.folder, cell).read_text("utf-8")) for cell in cells],
                options.export)  # fmt: skip


def _path(folder: Path, cell: Cell) -> Path:
    return folder / ("-".join(map(str, asdict(cell).values())) + ".json")


def _export(found: list[dict], path: Path) -> None:
    import pandas as pd

    table = pd.DataFrame([row for part in found for row in part["rows"]]).drop(columns="count")
    floats = table.select_dtypes("float64").columns
    table = table.astype(dict.fromkeys(floats, "float32"))
    hashes = {row["name"]: row["sha256"] for row in models.available()}
    table.attrs = {
        "command": "make images",
        "seconds": round(sum(part["seconds"] for part in found), 1),
        "versions": versions(),
        "weights": {name: hashes[name] for name in table["model"].unique()},
    }
    table.to_parquet(path, index=False, compression="zstd")


if __name__ == "__main__":
    main()
