"""Measure one attention layer, with upper bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from lipcore import Attention, local_lipschitz
from lipcore._checks import check_tokens, require
from lipcore.bounds import best_upper, layer_upper, local_upper

#: Columns of upper bounds, from the sharpest to the loosest.
BOUNDS = ("local", "best", "general")

_LARGEST_EXPONENT = math.log(torch.finfo(torch.float64).max)


def measure_layer(
    attention: Attention, X: Tensor, *, tol: float = 1e-4, bounds: Iterable[str] = BOUNDS
) -> list[dict]:
    r"""Return σ of a layer at each sequence of X (count, n, d), with upper bounds.

    The columns are

    * ``sequence``: its number, from 0;
    * ``sigma``, ``lower``, ``upper``, ``probability``, ``residual``, ``iterations``,
      ``converged``: see :class:`~lipcore.spectral.SpectralNorm`;
    * ``released``: :math:`\|D_Xf^\top f(X)\|^{1/2}`, what the paper's released scripts compute;
    * ``radius_rms``, ``radius_max``: root mean square and maximum of the norms of the tokens;
    * ``local``: :func:`~lipcore.bounds.local_upper` at the sequence itself;
    * ``best``, ``general``: :func:`~lipcore.bounds.best_upper` and the published
      :func:`~lipcore.bounds.layer_upper` for n tokens in the ball of radius ``radius_max``;
    * ``log_best``, ``log_general``: their logarithms, since they may be beyond float64's range.

    Bounds that were not asked for are NaN.

    Examples
    --------
    >>> import torch
    >>> layer = Attention.from_matrices(torch.eye(2), torch.eye(2))
    >>> (row,) = measure_layer(layer, torch.ones(1, 3, 2))  # equal tokens are averaged: σ = 1
    >>> round(row["sigma"], 4), row["best"] < row["general"]
    (1.0, True)
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
    rows = []
    for i, values in enumerate(zip(*(c.tolist() for c in columns.values()), strict=True)):
        row = {"sequence": i, "probability": found.probability}
        row |= dict(zip(columns, values, strict=True))
        ball = {"n": X.shape[-2], "radius": row["radius_max"], "log": True}
        logs = {
            "best": best_upper(attention=attention, **ball) if "best" in bounds else math.nan,
            "general": layer_upper(attention, **ball) if "general" in bounds else math.nan,
        }
        for name, value in logs.items():
            row[name] = math.inf if value > _LARGEST_EXPONENT else math.exp(value)
        rows.append(row | {f"log_{name}": value for name, value in logs.items()})
    return rows


def check_bounds(bounds: Iterable[str]) -> tuple[str, ...]:
    """Return the names of bounds as a tuple, or raise ValueError if one is unknown."""
    names = (bounds,) if isinstance(bounds, str) else tuple(bounds)
    require({*names} <= {*BOUNDS}, "bounds", f"some of {', '.join(BOUNDS)}", names)
    return names
