"""Measure one attention layer at some sequences."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd
import torch
from torch import Tensor

from lipcore import Attention, local_lipschitz
from lipcore._checks import check_tokens, require
from lipcore.bounds import local_upper

#: Columns of upper bounds.
BOUNDS = ("local",)


def measure_layer(
    attention: Attention, X: Tensor, *, tol: float = 1e-4, bounds: Iterable[str] = BOUNDS
) -> list[dict]:
    r"""Return σ of a layer at each sequence of X (count, n, d), in a row with these columns.

    * ``sequence``: its number, from 0;
    * ``sigma``, ``lower``, ``upper``, ``probability``, ``residual``, ``iterations``,
      ``converged``: see :class:`~lipcore.spectral.SpectralNorm`;
    * ``released``: :math:`\|D_Xf^\top f(X)\|^{1/2}`, what the paper's released scripts compute;
    * ``radius_rms``, ``radius_max``: root mean square and maximum of the norms of the tokens;
    * ``local``: :func:`~lipcore.bounds.local_upper` at the sequence, NaN if not among ``bounds``.

    Examples
    --------
    >>> import torch
    >>> layer = Attention.from_matrices(torch.eye(2), torch.eye(2))
    >>> (row,) = measure_layer(layer, torch.ones(1, 3, 2))  # equal tokens are averaged: σ = 1
    >>> round(row["sigma"], 4)
    1.0
    """
    bounds = check_bounds(bounds)
    require(check_tokens(X, attention.d).ndim == 3, "X", "shape (count, n, d)", tuple(X.shape))
    found = local_lipschitz(attention, X, tol=tol)
    norms = X.double().norm(dim=-1)
    nothing = torch.full_like(found.value, math.nan)
    columns = {
        "sigma": found.value,
        "lower": found.lower,
        "upper": found.upper,
        "residual": found.residual,
        "iterations": found.iterations,
        "converged": found.converged,
        "released": attention.jacobian(X).rmatvec(attention(X)).flatten(1).norm(dim=-1).sqrt(),
        "radius_rms": norms.square().mean(-1).sqrt(),
        "radius_max": norms.amax(-1),
        "local": local_upper(attention, X) if "local" in bounds else nothing,
    }
    table = pd.DataFrame({name: column.tolist() for name, column in columns.items()})
    table.insert(0, "probability", found.probability)
    return table.rename_axis("sequence").reset_index().to_dict("records")


def check_bounds(bounds: Iterable[str]) -> tuple[str, ...]:
    """Return the names of bounds as a tuple, or raise ValueError if one is unknown."""
    names = (bounds,) if isinstance(bounds, str) else tuple(bounds)
    require({*names} <= {*BOUNDS}, "bounds", f"some of {', '.join(BOUNDS)}", names)
    return names
