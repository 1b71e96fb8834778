"""Many measurements on real models: batched inside a cell, saved cell by cell, resumable, on any executor."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import lipcore
from lipcore._checks import check_count, check_number
from lipcore._progress import bar

if TYPE_CHECKING:
    import pandas as pd

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


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
        As in :func:`lipcore.texts.load_text`.
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
        for name, minimum in (("layer", 0), ("n", 1), ("count", 1), ("start", 0)):
            check_count(name, getattr(self, name), minimum=minimum)
        check_number("tol", self.tol, minimum=0, strict=True, maximum=1)
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype: expected one of {', '.join(_DTYPES)}, got {self.dtype!r}")

    @property
    def key(self) -> str:
        """Name of the cell's file: a hash of what determines its numbers."""
        content = asdict(self) | {"lipcore": lipcore.__version__}
        if Path(self.text).is_file():  # a text file may change between runs
            content["text_sha256"] = hashlib.sha256(Path(self.text).read_bytes()).hexdigest()
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


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
        ``radius_max`` of the tokens; ``local``, the local bound, if asked for.

    Raises
    ------
    ValueError, IndexError, ConnectionError
        If the model, layer, head, length or text cannot be had.
    """
    from lipcore.bounds import local_upper
    from lipcore.spectral import spectral_norm

    with _one_thread(), torch.no_grad():
        attention, X = _inputs(cell)
        operator = attention.jacobian(X)
        found = spectral_norm(operator, tol=cell.tol)
        norms = X.norm(dim=-1)
        columns = {
            "sigma": found.value, "lower": found.lower, "upper": found.upper,
            "iterations": found.iterations, "converged": found.converged,
            "released": operator.rmatvec(attention(X)).flatten(1).norm(dim=-1).sqrt(),
            "radius_rms": norms.square().mean(-1).sqrt(), "radius_max": norms.amax(-1),
        }  # fmt: skip
        if cell.local:
            columns["local"] = local_upper(attention, X)
    values = {name: column.tolist() for name, column in columns.items()}
    return [
        asdict(cell) | {"sequence": i, "probability": found.probability} | {name: v[i] for name, v in values.items()}
        for i in range(cell.count)
    ]


def sweep(
    cells: Iterable[Cell], folder: str | os.PathLike, *, executor: Executor | None = None, progress: bool = True
) -> pd.DataFrame:
    """Measure all cells, each saved as soon as it is finished; a second call takes up where a first was stopped.

    Parameters
    ----------
    cells : iterable of Cell
    folder : path
        Where the cells' tables go (``cells/*.parquet``); made if missing. Cells that it already holds are not repeated.
    executor : concurrent.futures.Executor, optional
        Runs the cells: a process pool, ``dask.distributed.Client().get_executor()``, … In this process if left out. The
        numbers do not depend on it: a cell runs on one thread.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    pandas.DataFrame
        One row a sequence, in the order of the cells; also written to ``folder/table.parquet``.

    Raises
    ------
    RuntimeError
        If cells failed: raised at the end, when all others are saved, naming the cells and their errors.
    """
    cells, store = list(dict.fromkeys(cells)), Path(folder) / "cells"
    if not cells:
        raise ValueError("cells: expected at least one cell, got none")
    store.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells if not _path(store, cell).exists()]
    failures = {}
    with bar(show=progress, total=len(cells), initial=len(cells) - len(missing), unit="cell") as shown:
        for cell, result in _finished(missing, executor):
            if isinstance(result, Exception):
                failures[cell] = result
            else:
                _save(result, _path(store, cell))
            shown.update()
    if failures:
        reasons = "; ".join(f"{cell}: {error}" for cell, error in failures.items())
        raise RuntimeError(f"{len(failures)} of {len(cells)} cells failed, the others are saved: {reasons}")
    return collect(cells, folder)


def collect(cells: Iterable[Cell], folder: str | os.PathLike) -> pd.DataFrame:
    """Gather the saved cells in their order into one table, and write it to ``folder/table.parquet``.

    Raises
    ------
    FileNotFoundError
        If a cell has not been measured.
    """
    import pandas as pd

    paths = {cell: _path(Path(folder) / "cells", cell) for cell in cells}
    if absent := [cell for cell, path in paths.items() if not path.exists()]:
        raise FileNotFoundError(f"folder: expected every cell in {folder}, {len(absent)} are missing: {absent[0]} …")
    table = pd.concat([pd.read_parquet(path) for path in paths.values()], ignore_index=True)
    _save(table, Path(folder) / "table.parquet")
    return table


def _finished(cells: list[Cell], executor: Executor | None) -> Iterator[tuple[Cell, list[dict] | Exception]]:
    """Yield each cell with its rows, or with the error that it met, as they come."""
    if executor is None:
        for cell in cells:
            try:
                yield cell, measure(cell)
            except Exception as error:
                yield cell, error
        return
    futures: dict[Future, Cell] = {executor.submit(measure, cell): cell for cell in cells}
    try:
        for future in as_completed(futures):
            error = future.exception()
            yield futures[future], future.result() if error is None else error
    finally:  # interrupted: what has not begun is not worth waiting for
        for future in futures:
            future.cancel()


def _inputs(cell: Cell):
    """Return the attention and the hidden states (count, n, d) of a cell."""
    from lipcore.texts import sequences

    model = _model(cell.model, cell.decoder, cell.dtype)
    attention = model.attention(cell.layer)
    if cell.head is not None:
        attention = attention.head(cell.head)
    ids = sequences(model, _token_ids(model, cell.text), cell.n, cell.count, start=cell.start)
    return attention, model.hidden_states(cell.layer, ids)


@functools.lru_cache(maxsize=2)  # the cells of a sweep come model by model
def _model(name: str, decoder: bool, dtype: str):
    from lipcore import models

    return models.load(name, decoder=decoder, dtype=_DTYPES[dtype])


@functools.lru_cache(maxsize=4)
def _token_ids(model, text: str):
    from lipcore.texts import load_text

    return model.encode(load_text(text))


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


def _save(rows: list[dict] | pd.DataFrame, path: Path) -> None:
    """Write a table whole or not at all: a killed run leaves no half-written file."""
    import pandas as pd

    table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    table["head"] = table["head"].astype("Int64")  # the whole layer has none
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        table.to_parquet(temporary, index=False)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
