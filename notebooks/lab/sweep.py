"""Many measurements on real models, each saved when it is finished, resumable, on any executor."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import time
import tomllib
import uuid
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import lipcore
from lab import models
from lab._threads import one_thread
from lab.controls import check_control, control_tokens, permute_scores
from lab.data import stored_file
from lab.measure_layer import BOUNDS, check_bounds, measure_layer
from lab.models.language_model import LanguageModel
from lab.models.texts import load_text, sequences
from lipcore._checks import check_count, check_number
from lipcore.attention import Attention

if TYPE_CHECKING:
    import pandas as pd

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Cell:
    """One measurement of consecutive sequences of a text, at one layer (or head) of a model.

    Attributes
    ----------
    model : str
        A name of :func:`lab.models.available`, or a folder with a checkpoint.
    layer : int
    n : int
        The number of tokens in a sequence.
    head : int, optional
        One head with its part of the output projection; the whole layer if None.
    text : str
        A name that :func:`lab.models.texts.load_text` knows, or a file.
    count, start : int
        Number of sequences, and the token of the text where the first begins.
    decoder : bool
        Whether a BERT model runs as a causal decoder.
    dtype : {"float32", "float64"}
    tol : float
        Relative tolerance of σ.
    bounds : tuple of str
        Upper bounds to compute, among :data:`lab.measure_layer.BOUNDS`.
    control : {"", "shuffled", "uniform", "repeated", "permuted"}
        What is taken from the text or the model (:mod:`lab.controls`): the order of the
        tokens, their frequencies, all tokens but the first of each sequence, which is repeated, or
        what the model has learnt to attend to. Seeds are fixed.
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
    bounds: tuple[str, ...] = ()
    control: str = ""

    def __post_init__(self) -> None:
        kept = {  # as plain numbers, so that equal cells have equal keys
            name: check_count(name, getattr(self, name), minimum=minimum)
            for name, minimum in (("layer", 0), ("n", 1), ("count", 1), ("start", 0))
        }
        kept["head"] = None if self.head is None else check_count("head", self.head, minimum=0)
        kept["tol"] = check_number("tol", self.tol, minimum=0, strict=True, maximum=1)
        kept["bounds"] = check_bounds(self.bounds)
        for name, value in kept.items():
            object.__setattr__(self, name, value)
        for name, kind in (("model", str), ("text", str), ("decoder", bool)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name}: expected a {kind.__name__}, got {getattr(self, name)!r}")
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype: expected one of {', '.join(_DTYPES)}, got {self.dtype!r}")
        check_control(self.control)

    @property
    def key(self) -> str:
        """The name of the cell's file, a hash of what determines its numbers."""
        content = [lipcore.__version__, asdict(self), _state(self.model), _state(self.text)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


def grid(
    *,
    models: Iterable[str],
    lengths: Iterable[int],
    layers: Iterable[int] | str = "all",
    heads: Iterable[int | None] | str = (None,),
    texts: Iterable[str] = ("pydoc",),
    controls: Iterable[str] = ("",),
    **options,
) -> list[Cell]:
    """Return every combination as a :class:`Cell`; ``options`` are its other attributes.

    ``layers`` and ``heads`` may be ``"all"``; without ``heads``, cells are about whole layers.

    Examples
    --------
    >>> len(grid(models=["minilm"], lengths=[8, 16]))
    12
    """
    texts = _listed("texts", texts)
    controls = _listed("controls", controls)
    lengths = _listed("lengths", lengths)
    layers = layers if _is_all(layers) else _listed("layers", layers)
    heads = heads if _is_all(heads) else _listed("heads", heads)
    cells = []
    for model in _listed("models", models):
        own_layers = range(_sizes(model)[0]) if _is_all(layers) else layers
        own_heads = range(_sizes(model)[1]) if _is_all(heads) else heads
        every = itertools.product(controls, texts, own_layers, own_heads, lengths)
        for control, text, layer, head, n in every:
            cells.append(Cell(model, layer, n, head, text, control=control, **options))
    return cells


def _is_all(values: object) -> bool:
    return isinstance(values, str) and values == "all"


def _listed(name: str, values: Iterable) -> list:
    if isinstance(values, str) or not (listed := list(values)):
        raise ValueError(f"{name}: expected a list, got {values!r}")
    return listed


def _sizes(name: str) -> tuple[int, int]:
    """Return the numbers of layers and of heads in each, without loading models of known name."""
    for row in models.available():
        if row["name"] == name:
            return row["layers"], row["heads"]
    model = models.load(name)
    return model.n_layers, model.heads


def read_plan(path: str | os.PathLike) -> list[Cell]:
    """Read the cells of a plan, a TOML file with one ``[[grid]]`` for each call of :func:`grid`.

    Parameters
    ----------
    path : path
        The keys of a grid are the arguments of :func:`grid`. Keys before the first grid hold for
        all of them.

    Returns
    -------
    list of Cell
        All cells, without repetition.

    Raises
    ------
    ValueError
        If the file is not such a plan; the message names the grid.
    """
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
            cells += grid(**plan | entries)
        except (TypeError, ValueError) as error:
            raise ValueError(f"plan: grid {number} of {path}: {error}") from error
    return list(dict.fromkeys(cells))


def measure(cell: Cell) -> list[dict]:
    """Measure one cell, and return one row for each sequence.

    Parameters
    ----------
    cell : Cell

    Returns
    -------
    list of dict
        The cell's attributes, and the columns of :func:`lab.measure_layer.measure_layer`.

    Raises
    ------
    ValueError, IndexError, ConnectionError
        If the model, layer, head, length or text is not available.
    """
    with one_thread(), torch.no_grad():  # one order of sums, the same numbers everywhere
        attention, X = _inputs(cell)
        rows = measure_layer(attention, X, tol=cell.tol, bounds=cell.bounds)
    attributes = asdict(cell)
    del attributes["bounds"]  # their columns say which they are
    return [attributes | row for row in rows]


def sweep(
    cells: Iterable[Cell],
    folder: str | os.PathLike,
    *,
    executor: Executor | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Measure all cells, save each when it is finished, and skip those that are saved already.

    Parameters
    ----------
    cells : iterable of Cell
    folder : path
        Where the rows of the cells are saved (``cells/*.json``); it is made if missing. Cells that
        it already holds are not repeated. Two runs may share a folder.
    executor : concurrent.futures.Executor, optional
        Runs the cells: a process pool, ``dask.distributed.Client().get_executor()``, and so on.
        Cells run in this process if left out. The numbers do not depend on it: a cell runs on one
        thread.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    pandas.DataFrame
        One row for each sequence, in the order of the cells; also in ``folder/table.parquet``.
        ``attrs["seconds"]`` is what the cells took, in seconds of one core.

    Raises
    ------
    RuntimeError
        If cells failed. It is raised at the end, when all others are saved, and names the cells.
    """
    cells = list(dict.fromkeys(cells))
    if not cells:
        raise ValueError("cells: expected at least one cell, got none")
    if wrong := [cell for cell in cells if not isinstance(cell, Cell)]:
        raise TypeError(f"cells: expected Cells, got {wrong[0]!r}")
    if executor is not None and not isinstance(executor, Executor):
        raise TypeError(
            f"executor: expected a concurrent.futures.Executor, got {type(executor).__name__}"
        )
    _path(folder, cells[0]).parent.mkdir(parents=True, exist_ok=True)
    missing = _ordered(cell for cell in cells if _saved(folder, cell) is None)
    failures = {}
    done = len(cells) - len(missing)
    with tqdm(disable=not progress, total=len(cells), initial=done, unit="cell") as bar:
        for cell, result in _finished(missing, executor):
            if isinstance(result, Exception):
                failures[cell] = result
            else:
                with _whole(_path(folder, cell)) as path:
                    path.write_text(json.dumps(result), encoding="utf-8")
            bar.update()
    if failures:
        reasons = [f"{cell}: {error or type(error).__name__}" for cell, error in failures.items()]
        raise RuntimeError(
            f"{len(failures)} of {len(cells)} cells failed, the others are saved: "
            + "; ".join(reasons[:5])
        )
    return _collect(cells, folder)


def _collect(cells: list[Cell], folder: str | os.PathLike) -> pd.DataFrame:
    """Gather the saved cells in their order into one table, and write it."""
    import pandas as pd

    found = [_saved(folder, cell) for cell in cells]
    table = pd.DataFrame([row for part in found for row in part["rows"]])
    table["head"] = table["head"].astype("Int64")  # the whole layer has none
    table.attrs["seconds"] = sum(part["seconds"] for part in found)
    with _whole(Path(folder) / "table.parquet") as path:
        table.to_parquet(path, index=False)
    return table


def export(table: pd.DataFrame, path: str | os.PathLike, *, bits: int = 13, **about) -> None:
    """Write a small copy of a table, which can be kept with a project.

    Measured numbers are stored in float32 with ``bits`` binary digits; 13 digits are a relative
    rounding of 6e-5 at most. Upper bounds are rounded up. Columns without new information are left
    out: ``lower``, which equals ``sigma``; ``residual``; ``converged``, if all are; logarithms of
    bounds; and bounds that no cell asked for. What is in ``about`` (the command that made the
    table, versions, and so on), and the time it took, are in ``pandas.read_parquet(path).attrs``.

    Parameters
    ----------
    table : pandas.DataFrame
        A table of :func:`sweep`.
    path : path
    bits : int
    **about
        Anything that JSON can hold.
    """
    check_count("bits", bits)
    dropped = ["lower", "residual", "log_best", "log_general"]
    dropped += [name for name in BOUNDS if table[name].isna().all()]
    dropped += ["converged"] if table["converged"].all() else []
    small = table.drop(columns=dropped)
    floats = list(small.select_dtypes("float64").columns.difference(["tol", "probability"]))
    for name in floats:
        part, exponent = np.frexp(small[name].to_numpy())
        digits = np.ldexp(part, bits + 1)
        # an upper bound must stay one
        whole = np.ceil(digits) if name in ("upper", *BOUNDS) else np.round(digits)
        small[name] = np.ldexp(whole, exponent - bits - 1).astype("float32")
    small.attrs = {"seconds": round(table.attrs.get("seconds", 0.0), 1)} | about
    options = {
        "compression": "zstd",
        "compression_level": 19,
        "use_byte_stream_split": floats,
        "use_dictionary": [name for name in small if name not in floats],
    }
    with _whole(Path(path)) as temporary:
        small.to_parquet(temporary, index=False, **options)


def stored(name: str = "sweep") -> pd.DataFrame:
    """Return a table behind the chapters on real models, as it is kept with the book.

    Parameters
    ----------
    name : {"sweep", "texts"}
        ``"sweep"``: ten pieces of one or two texts at each length, layers and heads.
        ``"texts"``: more texts, longer ones that are read on, and controls.

    Returns
    -------
    pandas.DataFrame
        The table as :func:`export` wrote it. Its ``attrs`` hold the command that made it, versions,
        hashes of weights and texts, and the seconds of one core that it took. The plan
        ``book/data/NAME.toml`` says what is in it.

    Raises
    ------
    FileNotFoundError
        If neither the repository nor the installed package has it.
    """
    import pandas as pd

    return pd.read_parquet(stored_file(f"{name}.parquet", "make sweep"))


def _ordered(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells in an order in which those that share hidden states follow one another.

    The top layer comes first, so that its run of the model serves the layers below.
    """
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_hidden_states_of(cell), []).append(cell)
    for group in groups.values():
        group.sort(key=lambda cell: -cell.layer)
    return list(itertools.chain.from_iterable(groups.values()))


def _hidden_states_of(cell: Cell) -> Cell:
    """Return the cell without what the hidden states do not depend on, so that cells share them."""
    return replace(cell, layer=0, head=None, tol=1, bounds=())


def _timed(cell: Cell) -> dict:
    """Return the rows of a cell, and the seconds that one core took."""
    begin = time.thread_time()
    rows = measure(cell)
    return {"seconds": time.thread_time() - begin, "rows": rows}


def _finished(
    cells: list[Cell], executor: Executor | None
) -> Iterator[tuple[Cell, dict | Exception]]:
    """Yield each finished cell, with the result of :func:`_timed` or the error that it met."""
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
            except Exception as error:  # as from a broken pool, which finished some cells before
                yield cell, error
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except Exception as error:
                yield futures[future], error
    finally:  # interrupted: what has not begun is not worth waiting for
        for future in futures:
            future.cancel()


# The latest hidden states, of layers from 0 up to one of them; at most one entry.
_latest: dict[tuple, list[Tensor]] = {}


def _inputs(cell: Cell) -> tuple[Attention, Tensor]:
    """Return the attention and the hidden states (count, n, d) of a cell."""
    permuted = cell.control == "permuted"
    model = _model(cell.model, cell.decoder, cell.dtype, permuted, _state(cell.model))
    attention = model.attention(cell.layer, head=cell.head)
    key = (_hidden_states_of(cell), _state(cell.model), _state(cell.text))
    states = _latest.get(key, [])
    if len(states) <= cell.layer:
        states = []
        _latest.clear()  # frees the old ones before there are new ones
        states = model.all_hidden_states(_pieces(model, cell), up_to=cell.layer)
        _latest[key] = states
    return attention, states[cell.layer]


def _pieces(model: LanguageModel, cell: Cell) -> Tensor:
    """Return the token ids (count, n) on which a cell runs."""
    ids = _token_ids(model, cell.text, _state(cell.text))
    # drawn for the text as a whole, and anew for each: what is cut from its beginning is nested
    generator = torch.Generator().manual_seed(zlib.crc32(cell.text.encode()))
    ids = control_tokens(ids, cell.control, vocab_size=model.vocab_size, generator=generator)
    pieces = sequences(model, ids, cell.n, cell.count, start=cell.start)
    return pieces[:, :1].expand_as(pieces) if cell.control == "repeated" else pieces


@functools.lru_cache(maxsize=2)  # the cells of a sweep come model by model
def _model(name: str, decoder: bool, dtype: str, permuted: bool, state: str) -> LanguageModel:
    model = models.load(name, decoder=decoder, dtype=_DTYPES[dtype])
    if permuted:
        permute_scores(model, generator=torch.Generator().manual_seed(0))
    # the same to rounding, in a third of the time at 4,096 tokens
    model.model.set_attn_implementation("sdpa")
    return model


@functools.lru_cache(maxsize=4)
def _token_ids(model: LanguageModel, text: str, state: str) -> Tensor:
    return model.encode(load_text(text))


def _state(name: str) -> str:
    """Return sizes and times of change of a text file or checkpoint; empty for known names."""
    path = Path(name)
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    stats = [(file.name, file.stat()) for file in files]
    return json.dumps([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


def _path(folder: str | os.PathLike, cell: Cell) -> Path:
    return Path(folder) / "cells" / f"{cell.key}.json"


def _saved(folder: str | os.PathLike, cell: Cell) -> dict | None:
    """Return what was saved of a cell, or None for no file or a damaged one."""
    try:
        return json.loads(_path(folder, cell).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Yield a path whose file replaces that of ``path`` in one step, if no error is raised."""
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


if __name__ == "__main__":
    import sys

    from lab.cli import main

    sys.exit(main())
