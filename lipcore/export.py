"""Write one head and its tokens to a file, for the page of the book that measures it in a browser."""

from __future__ import annotations

import json
import math
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from lipcore import bounds
from lipcore._checks import require
from lipcore.attention import Attention
from lipcore.lipschitz import local_lipschitz

#: The options of a layer that the page does not know.
_UNKNOWN = ("rotary", "sinks", "softcap", "query_norm", "key_norm", "gate", "window", "log_weights")


def export_head(
    layer: Attention, X: Tensor, path: str | PathLike, *, words: list[str] | None = None
) -> None:
    r"""Write one head, tokens X, σ there and two bounds to a JSON file (:prf:ref:`thm-lip-local`).

    The file holds matrices as lists of rows, in double precision: ``X``, (n, d); ``W_Q``, ``W_K``
    and ``W_V``, (·, d), with ``scale`` and the bias ``b_Q``; ``causal``; the table ``bias``, (n, n),
    where null hides a key. A bias of the keys or of the values has no effect on σ, and an output
    projection is multiplied into ``W_V``. Tokens and matrices are written in the dimensions that
    the head reads, which changes no number (:prf:ref:`prop-fast-heads`). Under ``lipcore`` stand
    the bracket of :func:`~lipcore.lipschitz.local_lipschitz`,
    :func:`~lipcore.bounds.local_upper`, and :func:`~lipcore.bounds.best_upper` for the ball of
    the longest token.

    Parameters
    ----------
    layer : Attention
        One head, such as ``attention.head(0)``, with at most masks and biases.
    X : Tensor, shape (n, d)
    path : str or path
    words : list of str, optional
        A name for each token.

    Examples
    --------
    >>> import json, tempfile, torch
    >>> f = Attention.from_matrices(torch.zeros(2, 2), torch.eye(2))
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     export_head(f, torch.ones(3, 2), file.name)
    ...     round(json.load(open(file.name))["lipcore"]["local_upper"], 6)
    1.0
    """
    require(isinstance(layer, Attention), "layer", "an Attention", type(layer).__name__, TypeError)
    require(layer.heads == 1, "layer", "one head, such as layer.head(0)", f"{layer.heads} heads")
    others = [name for name in _UNKNOWN if getattr(layer, name) is not None]
    got = f"{', '.join(others)}: measure it with local_lipschitz"
    require(not others, "layer", "a head with at most masks and biases", got)
    X = layer.check_input(X).detach()
    require(X.ndim == 2, "X", "one sequence (n, d)", f"shape {tuple(X.shape)}")
    n = len(X)
    require(words is None or len(words) == n, "words", f"{n} names", words)
    layer, X = layer.to(torch.float64), X.double()
    r = local_lipschitz(layer, X, tol=1e-8)
    known = {"sigma": r.value, "upper": r.upper, "local_upper": bounds.local_upper(layer, X)}
    radius = X.norm(dim=-1).max().item()
    known = {name: number.item() for name, number in known.items()}
    best = bounds.best_upper(attention=layer, n=n, radius=radius)
    known["best_upper"] = best if math.isfinite(best) else None  # JSON has no infinity
    small, Z, _ = layer.compressed()
    value = small.value if small.output is None else small.value_matrices()
    file = {"X": X @ Z, "W_Q": small.query[0], "W_K": small.key[0], "W_V": value[0]}
    if small.query_bias is not None:
        file["b_Q"] = small.query_bias[0]
    file = {name: matrix.tolist() for name, matrix in file.items()}
    file |= {"scale": layer.scale, "causal": layer.causal}
    table = _table(layer, n)
    if table is not None:
        rows = table.tolist()
        file["bias"] = [[None if entry == -math.inf else entry for entry in row] for row in rows]
    file |= ({} if words is None else {"words": words}) | {"lipcore": known}
    Path(path).write_text(json.dumps(file, ensure_ascii=False) + "\n", encoding="utf8")


def _table(layer: Attention, n: int) -> Tensor | None:
    """Return what the mask and the bias add to the scores, (n, n), or None."""
    if layer.mask is None and layer.bias is None:
        return None
    table = layer.query.new_zeros(n, n)
    if layer.bias is not None:
        table = table + layer.bias
    if layer.mask is not None:
        table = torch.where(layer.mask, table, -math.inf)
    return table.reshape(n, n)
