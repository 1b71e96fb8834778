"""Many measurements on real models, of which ``python -m lab.sweep`` keeps each that is finished."""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import os
import time
import tomllib
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

import lipcore
from lab import models
from lab._threads import one_thread
from lab.controls import CONTROLS, control_tokens, permute_scores
from lab.measure_layer import BOUNDS, check_bounds, measure_layer
from lab.models.language_model import LanguageModel
from lab.models.sources import SOURCES, find_source
from lab.models.texts import load_text, sequences
from lab.stored import kept, stored_file
from lipcore._checks import require
from lipcore.attention import Attention
from lipcore.models.measure import versions


@dataclass(frozen=True)
class Cell:
    """One measurement of ``count`` consecutive sequences of a text, at a layer or head of a model."""

    model: str
    layer: int
    n: int
    head: int | None = None
    text: str = "pydoc"
    count: int = 10
    start: int = 0
    decoder: bool = False
    dtype: str = "float32"
    tol: float = 1e-4
    bounds: tuple[str, ...] = ()
    control: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", check_bounds(self.bounds))  # a tuple, as of JSON
        require(self.control in CONTROLS, "control", f"one of {CONTROLS}", repr(self.control))

    @property
    def key(self) -> str:
        """The name of the cell's file, a hash of what determines its numbers."""
        content = [lipcore.__version__, asdict(self), _state(self.model), _state(self.text)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


def grid(
    *,
    models: Sequence[str],
    lengths: Sequence[int],
    layers: Sequence[int] | None = None,  # all
    heads: Sequence[int | None] | str = (None,),  # "all", or whole layers
    texts: Sequence[str] = ("pydoc",),
    controls: Sequence[str] = ("",),
    **options,
) -> list[Cell]:
    """Return every combination as a :class:`Cell`; ``options`` are its other attributes."""
    cells = []
    for model in models:
        source = find_source(model) if layers is None or heads == "all" else None
        every = itertools.product(
            controls,
            texts,
            range(source.layers) if layers is None else layers,
            range(source.heads) if heads == "all" else heads,
            lengths,
        )
        for control, text, layer, head, n in every:
            cells.append(Cell(model, layer, n, head, text, control=control, **options))
    return cells


def read_plan(path: str | os.PathLike) -> list[Cell]:
    """Read a plan, a TOML file with a ``[[grid]]`` for each call of :func:`grid`; no cell twice."""
    plan = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    grids = plan.pop("grid")
    return list(dict.fromkeys(cell for entries in grids for cell in grid(**plan | entries)))


def measure(cell: Cell) -> list[dict]:
    """Measure one cell, and return one row for each sequence, as ``measure_layer`` does."""
    with one_thread(), torch.no_grad():  # one order of sums, the same numbers everywhere
        attention, X = inputs(cell)
        rows = measure_layer(attention, X, tol=cell.tol, bounds=cell.bounds)
    attributes = asdict(cell)
    del attributes["bounds"]  # their columns say which they are
    return [attributes | row for row in rows]


def sweep(cells: Iterable[Cell], folder: str | os.PathLike) -> pd.DataFrame:
    """Measure all cells that the folder does not hold, and return rows in the order of the cells."""
    cells = list(dict.fromkeys(cells))
    require(cells, "cells", "at least one cell", "none")
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_shared(cell), []).append(cell)
    # the top layer comes first, so that its run of the model serves the layers below
    ordered = [sorted(group, key=lambda cell: -cell.layer) for group in groups.values()]
    finish(itertools.chain(*ordered), folder, measure)
    table = collect(cells, folder)
    table["head"] = table["head"].astype("Int64")  # the whole layer has none
    table.to_parquet(Path(folder) / "table.parquet", index=False)
    return table


def finish(cells: Iterable, folder: str | os.PathLike, measure: Callable[..., list[dict]]) -> None:
    """Measure the cells that the folder does not hold yet; those that fail are named at the end."""
    failures = []
    for cell in tqdm(list(cells), unit="cell"):
        try:
            kept(_path(folder, cell), functools.partial(_timed, measure, cell))
        except Exception as error:
            failures.append(f"{cell}: {error!r}")
    if failures:
        raise RuntimeError(f"{len(failures)} cells failed: {'; '.join(failures[:5])}")


def _timed(measure: Callable[..., list[dict]], cell) -> dict:
    """Measure a cell, and time it on one core."""
    begin = time.thread_time()
    rows = measure(cell)
    return {"seconds": time.thread_time() - begin, "rows": rows}


def _path(folder: str | os.PathLike, cell) -> Path:
    return Path(folder) / "cells" / f"{cell.key}.json"


def collect(cells: Iterable, folder: str | os.PathLike) -> pd.DataFrame:
    """Return the rows of finished cells; ``attrs["seconds"]`` is what they took of one core."""
    found = [json.loads(_path(folder, cell).read_text(encoding="utf8")) for cell in cells]
    table = pd.DataFrame([row for part in found for row in part["rows"]])
    table.attrs["seconds"] = sum(part["seconds"] for part in found)
    return table


def export(table: pd.DataFrame, path: str | os.PathLike, *, command: str) -> None:
    """Write a small copy of a table, in 13 binary digits, and in its ``attrs`` how it was made."""
    dropped = ["lower", "residual"]
    dropped += [name for name in table.select_dtypes("float64") if table[name].isna().all()]
    dropped += ["converged"] if "converged" in table and table["converged"].all() else []
    small = table.drop(columns=dropped, errors="ignore")
    floats = list(small.select_dtypes("float64").columns.difference(["tol", "probability"]))
    for name in floats:
        part, exponent = np.frexp(small[name].to_numpy())
        digits = np.ldexp(part, 14)
        # an upper bound must stay one
        whole = np.ceil(digits) if name in ("upper", *BOUNDS) else np.round(digits)
        small[name] = np.ldexp(whole, exponent - 14).astype("float32")
    used = table["model"].unique()
    small.attrs = {
        "seconds": round(table.attrs["seconds"], 1),
        "command": command,
        "versions": versions(),
        "weights": {name: SOURCES[name].sha256 for name in used if name in SOURCES},
    }
    if "text" in table:
        raw = {name: load_text(name).encode() for name in table["text"].unique()}
        small.attrs["texts"] = {name: hashlib.sha256(x).hexdigest() for name, x in raw.items()}
    options = {"use_byte_stream_split": floats, "compression": "zstd", "compression_level": 19}
    others = [name for name in small if name not in floats]
    small.to_parquet(path, index=False, use_dictionary=others, **options)


def stored(name: str = "sweep") -> pd.DataFrame:
    """Return ``"sweep"`` or ``"texts"``, a table behind the chapters on real models.

    The plan ``book/data/NAME.toml`` says what is in it, and its ``attrs`` how it was made.
    """
    return pd.read_parquet(stored_file(f"{name}.parquet", "make sweep"))


def _shared(cell: Cell) -> Cell:
    """Return the cell without what the hidden states do not depend on, so that cells share them."""
    return replace(cell, layer=0, head=None, tol=1, bounds=())


# The latest hidden states, of layers from 0 up to one of them; at most one entry.
_latest: dict[str, list[Tensor]] = {}


def inputs(cell: Cell) -> tuple[Attention, Tensor]:
    """Return the attention and the hidden states (count, n, d) of a cell."""
    model = _model(cell.model, cell.decoder, cell.dtype, cell.control == "permuted")
    attention = model.attention(cell.layer, head=cell.head)
    key = _shared(cell).key
    if len(_latest.get(key, ())) <= cell.layer:
        _latest.clear()  # frees the old ones before there are new ones
        _latest[key] = model.all_hidden_states(pieces(model, cell), up_to=cell.layer)
    return attention, _latest[key][cell.layer]


def pieces(model: LanguageModel, cell: Cell) -> Tensor:
    """Return the token ids (count, n) on which a cell runs."""
    ids = _token_ids(model, load_text(cell.text))
    # drawn for the text as a whole, and anew for each: what is cut from its beginning is nested
    generator = torch.Generator().manual_seed(zlib.crc32(cell.text.encode()))
    ids = control_tokens(ids, cell.control, vocab_size=model.vocab_size, generator=generator)
    found = sequences(model, ids, cell.n, cell.count, start=cell.start)
    return found[:, :1].expand_as(found) if cell.control == "repeated" else found


@functools.lru_cache(maxsize=2)  # the cells of a sweep come model by model
def _model(name: str, decoder: bool, dtype: str, permuted: bool) -> LanguageModel:
    model = models.load(name, decoder=decoder, dtype=getattr(torch, dtype))
    if permuted:
        permute_scores(model, generator=torch.Generator().manual_seed(0))
    # the same to rounding, in a third of the time at 4,096 tokens
    model.model.set_attn_implementation("sdpa")
    return model


@functools.lru_cache(maxsize=4)
def _token_ids(model: LanguageModel, text: str) -> Tensor:
    return model.encode(text)


def _state(name: str) -> str:
    """Return sizes and times of change of a text file or checkpoint; empty for known names."""
    path = Path(name)
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    stats = [(file.name, file.stat()) for file in files]
    return json.dumps([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.sweep", description=__doc__)
    add = parser.add_argument
    add("--plan", required=True, metavar="FILE", help="a TOML file, as book/data/sweep.toml")
    add("--folder", type=Path, required=True, help="keeps what is finished, and the table")
    add("--export", type=Path, metavar="FILE", help="write a small copy, with how it was made")
    options = parser.parse_args(argv)
    try:
        cells = read_plan(options.plan)
        table = sweep(cells, options.folder)
        if options.export:
            what = f"--plan {options.plan} --folder {options.folder} --export {options.export}"
            export(table, options.export, command=f"python -m lab.sweep {what}")
    except (ValueError, OSError, RuntimeError) as error:
        parser.error(str(error))
    minutes = table.attrs["seconds"] / 60
    print(f"{len(table)} rows from {len(cells)} cells, {minutes:.1f} minutes of one core")


if __name__ == "__main__":
    main()
