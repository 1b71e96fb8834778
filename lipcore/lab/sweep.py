"""Many measurements on real models: batched inside a cell, saved cell by cell, resumable, on any executor."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tqdm import tqdm

import lipcore
from lipcore._checks import check_count, check_number

if TYPE_CHECKING:
    import pandas as pd

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_STALE_SECONDS = 3600.0  # an unfinished file this old was left by a run that was killed
_PLAN_LISTS = ("models", "texts", "lengths", "layers", "heads")
_MEASURED = ["sequence", "probability", "sigma", "lower", "upper", "iterations", "converged", "released",
             "radius_rms", "radius_max"]  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One measurement: ``count`` consecutive sequences of ``n`` tokens of a text, at one layer (or head) of a model.

    Attributes
    ----------
    model : str
        A name of :func:`lipcore.models.available`, or a folder with a checkpoint.
    layer, n : int
    head : int, optional
        One head with its part of the output projection; the whole layer if None.
    text : str
        As in :func:`lipcore.models.texts.load_text`.
    count, start : int
        Number of sequences, and the token of the text where the first begins.
    decoder : bool
        Whether a BERT model runs as a causal decoder.
    dtype : {"float32", "float64"}
    tol : float
        Relative tolerance of σ.
    local : bool
        Whether to work out the local bound too, which costs about as much as σ.
    """

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
    local: bool = False

    def __post_init__(self) -> None:
        kept = {  # as plain numbers, whatever came: equal cells have equal keys
            name: check_count(name, getattr(self, name), minimum=minimum)
            for name, minimum in (("layer", 0), ("n", 1), ("count", 1), ("start", 0))
        }
        kept["head"] = None if self.head is None else check_count("head", self.head, minimum=0)
        kept["tol"] = check_number("tol", self.tol, minimum=0, strict=True, maximum=1)
        for name, value in kept.items():
            object.__setattr__(self, name, value)
        for name, kind in (("model", str), ("text", str), ("decoder", bool), ("local", bool)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name}: expected a {kind.__name__}, got {getattr(self, name)!r}")
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype: expected one of {', '.join(_DTYPES)}, got {self.dtype!r}")

    @property
    def key(self) -> str:
        """Name of the cell's file: a hash of what determines its numbers."""
        content = asdict(self) | {"lipcore": lipcore.__version__}
        if stamp := _stamp(
            self.text
        ):  # a text file may change between runs, and so may a checkpoint
            content["text_sha256"] = stamp
        if stamp := _stamp(self.model):
            content["model_sha256"] = stamp
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]

    @property
    def _inputs_key(self) -> tuple:
        """What determines the hidden states, up to the layer: cells that agree in it share one run of the model."""
        files = (_stamp(self.model), _stamp(self.text))
        return (
            self.model,
            self.decoder,
            self.dtype,
            self.text,
            self.n,
            self.count,
            self.start,
            *files,
        )


def grid(
    *,
    models: Iterable[str],
    layers: Iterable[int],
    lengths: Iterable[int],
    heads: Iterable[int | None] = (None,),
    texts: Iterable[str] = ("pydoc",),
    **options,
) -> list[Cell]:
    """Every combination as a :class:`Cell`; ``options`` are its other attributes.

    Examples
    --------
    >>> len(grid(models=["minilm"], layers=range(6), lengths=[8, 16]))
    12
    """
    return [
        Cell(model=model, layer=layer, n=n, head=head, text=text, **options)
        for model, text, layer, head, n in itertools.product(models, texts, layers, heads, lengths)
    ]


def read_plan(path: str | os.PathLike) -> list[Cell]:
    """Read the cells that a plan describes: a TOML file with one table ``[[grid]]`` for each call of :func:`grid`.

    Parameters
    ----------
    path : path
        ``models``, ``lengths`` and ``texts`` of a grid are lists; ``layers`` and ``heads`` are lists or ``"all"``.
        ``layers`` left out means all; ``heads`` left out, the whole layer. Further keys are attributes of
        :class:`Cell`. What stands before the first grid holds for all of them.

    Returns
    -------
    list of Cell
        Without repetition.

    Raises
    ------
    ValueError
        If the file is no such plan; the message names the grid.
    """
    import tomllib

    try:
        plan = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"plan: expected a TOML file: {error}") from error
    grids = plan.pop("grid", [])
    if not grids or not isinstance(grids, list):
        raise ValueError(f"plan: expected at least one [[grid]] in {path}")
    cells = []
    for number, entries in enumerate(grids, 1):
        try:
            cells += _cells_of(plan | entries)
        except (TypeError, ValueError) as error:
            raise ValueError(f"plan: grid {number} of {path}: {error}") from error
    return list(dict.fromkeys(cells))


def _cells_of(entries: dict) -> list[Cell]:
    """Make the cells of one grid of a plan."""
    entries = {"texts": ["pydoc"], "layers": "all", "heads": [None]} | entries
    for name in _PLAN_LISTS:
        value = entries.get(name)
        if not (isinstance(value, list) and value) and not (
            value == "all" and name in ("layers", "heads")
        ):
            raise ValueError(f"{name}: expected a list, got {value!r}")
    lists = {name: entries.pop(name) for name in _PLAN_LISTS}
    cells = []
    for model in lists.pop("models"):
        sizes = dict(zip(("layers", "heads"), _sizes(model), strict=True))
        own = {
            name: range(sizes[name]) if value == "all" else value for name, value in lists.items()
        }
        cells += grid(models=[model], **own, **entries)
    return cells


def _sizes(name: str) -> tuple[int, int]:
    """Numbers of layers and of heads in each, without loading a model that is known by name."""
    from lipcore import models

    known = {row["name"]: (row["layers"], row["heads"]) for row in models.available()}
    if name in known:
        return known[name]
    model = models.load(name)
    return model.n_layers, model.heads


def measure(cell: Cell) -> list[dict]:
    r"""Measure one cell: one row a sequence.

    Parameters
    ----------
    cell : Cell

    Returns
    -------
    list of dict
        The cell's attributes and, for each ``sequence``: ``sigma``, ``lower``, ``upper``, ``probability``,
        ``iterations``, ``converged`` (:class:`~lipcore.spectral.SpectralNorm`); ``released``,
        :math:`\|D_Xf^\top f(X)\|^{1/2}`, what the paper's released scripts compute in place of σ; ``radius_rms`` and
        ``radius_max`` of the tokens; ``local``, the local bound, or NaN where it was not asked for.

    Raises
    ------
    ValueError, IndexError, ConnectionError
        If the model, layer, head, length or text cannot be had.
    """
    from lipcore.bounds import local_upper
    from lipcore.spectral import local_lipschitz

    with _one_thread(), torch.no_grad():
        attention, X = _inputs(cell)
        found = local_lipschitz(attention, X, tol=cell.tol)
        norms = X.norm(dim=-1)
        columns = {
            "sigma": found.value, "lower": found.lower, "upper": found.upper,
            "iterations": found.iterations, "converged": found.converged,
            "released": attention.jacobian(X).rmatvec(attention(X)).flatten(1).norm(dim=-1).sqrt(),
            "radius_rms": norms.square().mean(-1).sqrt(), "radius_max": norms.amax(-1),
        }  # fmt: skip
        columns["local"] = (
            local_upper(attention, X) if cell.local else torch.full_like(found.value, math.nan)
        )
    values = {name: column.tolist() for name, column in columns.items()}
    return [
        asdict(cell)
        | {"sequence": i, "probability": found.probability}
        | {name: v[i] for name, v in values.items()}
        for i in range(cell.count)
    ]


def sweep(
    cells: Iterable[Cell],
    folder: str | os.PathLike,
    *,
    executor: Executor | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Measure all cells, each saved as soon as it is finished; a second call takes up where a first was stopped.

    Parameters
    ----------
    cells : iterable of Cell
    folder : path
        Where the cells' tables go (``cells/*.parquet``); made if missing. Cells that it already holds are not repeated,
        unless their files are damaged. Two runs may share a folder.
    executor : concurrent.futures.Executor, optional
        Runs the cells: a process pool, ``dask.distributed.Client().get_executor()``, … In this process if left out. The
        numbers do not depend on it: a cell runs on one thread.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    pandas.DataFrame
        One row a sequence, in the order of the cells, as :func:`collect` returns it; also written to
        ``folder/table.parquet``.

    Raises
    ------
    RuntimeError
        If cells failed: raised at the end, when all others are saved, naming the cells and their errors.
    """
    cells, store = list(dict.fromkeys(cells)), Path(folder) / "cells"
    if not cells:
        raise ValueError("cells: expected at least one cell, got none")
    if wrong := [cell for cell in cells if not isinstance(cell, Cell)]:
        raise TypeError(f"cells: expected Cells, got {wrong[0]!r}")
    if executor is not None and not isinstance(executor, Executor):
        raise TypeError(
            f"executor: expected a concurrent.futures.Executor, got {type(executor).__name__}"
        )
    store.mkdir(parents=True, exist_ok=True)
    _remove_stale(store)
    missing = _ordered(cell for cell in cells if _read(store, cell) is None)
    failures = {}
    with tqdm(
        disable=not progress, total=len(cells), initial=len(cells) - len(missing), unit="cell"
    ) as shown:
        for cell, result in _finished(missing, executor):
            if isinstance(result, Exception):
                failures[cell] = result
            else:
                _save(*result, _path(store, cell))
            shown.update()
    if failures:
        reasons = "; ".join(
            f"{cell}: {error or type(error).__name__}" for cell, error in list(failures.items())[:5]
        )
        more = "" if len(failures) <= 5 else "; …"
        raise RuntimeError(
            f"{len(failures)} of {len(cells)} cells failed, the others are saved: {reasons}{more}"
        )
    return collect(cells, folder)


def collect(cells: Iterable[Cell], folder: str | os.PathLike) -> pd.DataFrame:
    """Gather the saved cells in their order into one table, and write it to ``folder/table.parquet``.

    Returns
    -------
    pandas.DataFrame
        ``attrs["seconds"]`` is what the cells took, in seconds of one core.

    Raises
    ------
    FileNotFoundError
        If a cell has not been measured, or its file is damaged (:func:`sweep` measures it again).
    """
    import pandas as pd

    found = {cell: _read(Path(folder) / "cells", cell) for cell in cells}
    if absent := [cell for cell, part in found.items() if part is None]:
        raise FileNotFoundError(
            f"folder: expected every cell in {folder}, {len(absent)} are missing: {absent[0]} …"
        )
    seconds = sum(part.attrs.get("seconds", 0.0) for part in found.values())
    for part in found.values():
        part.attrs = {}
    table = pd.concat(found.values(), ignore_index=True)
    _save(table, seconds, Path(folder) / "table.parquet")
    return table


def export(table: pd.DataFrame, path: str | os.PathLike, *, bits: int = 13, **about) -> None:
    """Write a table small, to be kept with a project: measured numbers in float32, to ``bits`` binary digits.

    With 13 that is a relative rounding of 6e-5 at most; ``upper`` is rounded up, so that it stays a bound. Columns that
    say nothing new are left out (``lower``, which equals ``sigma``; ``converged``, if all are). What is in ``about``
    (the command that made the table, versions, …), and the time it took, can be read from
    ``pandas.read_parquet(path).attrs``.

    Parameters
    ----------
    table : pandas.DataFrame
        From :func:`sweep`.
    path : path
    bits : int
    **about
        Anything that JSON can hold.
    """
    check_count("bits", bits)
    small = table.drop(columns=["lower"] + (["converged"] if table.converged.all() else []))
    floats = list(small.select_dtypes("float64").columns.difference(["tol", "probability"]))
    for name in floats:
        part, exponent = np.frexp(small[name].to_numpy())
        kept = (np.ceil if name in ("upper", "local") else np.round)(np.ldexp(part, bits + 1))
        small[name] = np.ldexp(kept, exponent - bits - 1).astype("float32")
    small.attrs = {"seconds": round(table.attrs.get("seconds", 0.0), 1)} | about
    _write(small, Path(path), compression="zstd", compression_level=19, use_byte_stream_split=floats,
           use_dictionary=[name for name in small if name not in floats])  # fmt: skip


def stored() -> pd.DataFrame:
    """The table of the sweep behind Part III of the book, as kept with it (``book/data/sweep.parquet``).

    Returns
    -------
    pandas.DataFrame
        As :func:`export` wrote it: ``attrs`` hold the command that made it, versions, hashes of weights and texts, and
        the seconds of one core that it took. ``book/data/sweep.toml`` says which cells are in it.

    Raises
    ------
    FileNotFoundError
        If neither the repository nor the installed package has it.
    """
    import pandas as pd

    places = [
        Path(lipcore.__file__).parents[1] / "book" / "data",
        Path(sys.prefix) / "share" / "lipcore",
    ]
    for place in places:
        if (place / "sweep.parquet").is_file():
            return pd.read_parquet(place / "sweep.parquet")
    raise FileNotFoundError(
        f"the stored sweep is in none of {', '.join(map(str, places))}: 'make sweep' measures it"
    )


def _ordered(cells: Iterable[Cell]) -> list[Cell]:
    """Cells that share their inputs side by side, the top layer first: its run of the model serves the others."""
    groups: dict[tuple, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell._inputs_key, []).append(cell)
    return [
        cell for group in groups.values() for cell in sorted(group, key=lambda cell: -cell.layer)
    ]


def _timed(cell: Cell) -> tuple[list[dict], float]:
    """The rows of a cell, and the seconds that one core took."""
    begin = time.thread_time()
    return measure(cell), time.thread_time() - begin


def _finished(
    cells: list[Cell], executor: Executor | None
) -> Iterator[tuple[Cell, tuple[list[dict], float] | Exception]]:
    """Yield each cell with its rows and seconds, or with the error that it met, as they come."""
    if executor is None:
        for cell in cells:
            try:
                yield cell, _timed(cell)
            except Exception as error:
                yield cell, error
        return
    futures: dict[Future, Cell] = {}
    try:
        for cell in cells:
            try:
                futures[executor.submit(_timed, cell)] = cell
            except (
                Exception
            ) as error:  # say a pool that broke: what it had finished is saved all the same
                yield cell, error
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except Exception as error:
                yield futures[future], error
    finally:  # interrupted: what has not begun is not worth waiting for
        for future in futures:
            future.cancel()


def _inputs(cell: Cell):
    """Return the attention and the hidden states (count, n, d) of a cell."""
    model = _model(cell.model, cell.decoder, cell.dtype, _stamp(cell.model))
    attention = model.attention(cell.layer)
    if cell.head is not None:
        attention = attention.head(cell.head)
    return attention, _hidden_states(model, cell)


_kept: tuple[tuple, list[torch.Tensor]] = (
    (),
    [],
)  # the latest inputs, with what enters each layer so far


def _hidden_states(model, cell: Cell) -> torch.Tensor:
    """What enters the cell's layer; a run of the model up to it is kept for the layers below."""
    from lipcore.models.texts import sequences

    global _kept
    key, states = _kept
    if key != cell._inputs_key or len(states) <= cell.layer:
        _kept = key, states = (), []  # frees the old ones before there are new ones
        text = _token_ids(model, _text(cell.text, _stamp(cell.text)))
        ids = sequences(model, text, cell.n, cell.count, start=cell.start)
        states = model.all_hidden_states(ids, up_to=cell.layer)
        _kept = cell._inputs_key, states
    return states[cell.layer]


@functools.lru_cache(maxsize=2)  # the cells of a sweep come model by model
def _model(name: str, decoder: bool, dtype: str, stamp: str):
    from lipcore import models

    return models.load(name, decoder=decoder, dtype=_DTYPES[dtype])


@functools.lru_cache(maxsize=4)
def _text(name: str, stamp: str) -> str:
    from lipcore.models.texts import load_text

    return load_text(name)


@functools.lru_cache(maxsize=4)
def _token_ids(model, text: str):
    return model.encode(text)


def _stamp(name: str) -> str:
    """SHA-256 of a text file, or of the files of a checkpoint; empty for a name."""
    path = Path(name)
    if path.is_file():
        return _sha256(path, path.stat().st_mtime_ns)
    if path.is_dir():
        hashes = [
            _sha256(file, file.stat().st_mtime_ns)
            for file in sorted(path.iterdir())
            if file.is_file()
        ]
        return hashlib.sha256("".join(hashes).encode()).hexdigest()
    return ""


@functools.lru_cache(maxsize=64)
def _sha256(path: Path, changed: int) -> str:
    """Hash a file; ``changed``, its time of change, makes the cache forget an old version."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Sums in one order: the same numbers in this process, in a pool and on a cluster."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _path(store: Path, cell: Cell) -> Path:
    return store / f"{cell.key}.parquet"


def _read(store: Path, cell: Cell) -> pd.DataFrame | None:
    """The saved table of a cell; None if there is none, or a damaged one."""
    import pandas as pd

    try:
        part = pd.read_parquet(_path(store, cell), page_checksum_verification=True)
        complete = len(part[[*asdict(cell), *_MEASURED]]) == cell.count
    except Exception:  # absent, cut off, no Parquet file at all, or one of something else: readers raise what they like
        return None
    return part if complete else None


def _save(rows: list[dict] | pd.DataFrame, seconds: float, path: Path) -> None:
    import pandas as pd

    table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    table["head"] = table["head"].astype("Int64")  # the whole layer has none
    table.attrs["seconds"] = seconds
    _write(table, path)


def _write(table: pd.DataFrame, path: Path, **options) -> None:
    """Write a table whole or not at all: a killed run leaves no half-written file."""
    temporary = path.with_name(f"{path.stem}-{uuid.uuid4().hex}.part")
    try:
        table.to_parquet(temporary, index=False, write_page_checksum=True, **options)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_stale(store: Path) -> None:
    """Remove what killed runs left half-written; a younger file may belong to one that still runs."""
    for part in store.glob("*.part"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > _STALE_SECONDS:
                part.unlink()
