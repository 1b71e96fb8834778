"""Measure one attention layer, with upper bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from lipcore import Attention, local_lipschitz
from lipcore._checks import check_tokens
from lipcore.bounds import best_upper, layer_upper, local_upper

#: Columns of upper bounds, from the sharpest to the loosest.
BOUNDS = ("local", "best", "general")
#: How the upper end of the bracket holds, see :func:`measure_layer`.
CERTIFICATES = ("probable", "always")

_LARGEST_EXPONENT = math.log(torch.finfo(torch.float64).max)


def measure_layer(
    attention: Attention,
    X: Tensor,
    *,
    tol: float = 1e-4,
    generator: torch.Generator | None = None,
    bounds: Iterable[str] = BOUNDS,
    certificate: str = "probable",
) -> list[dict]:
    r"""Return σ of a layer at each sequence, with upper bounds.

    The command line prints these rows, and the sweep behind the book stores them.

    Parameters
    ----------
    attention : Attention
        The whole layer, or one head of it.
    X : Tensor, shape (count, n, d)
        The tokens that enter it, for each sequence.
    tol : float
        Relative tolerance of σ.
    generator : torch.Generator, optional
        Source of the random start of Lanczos; a fixed seed if left out.
    bounds : iterable of str
        Which of :data:`BOUNDS` to compute; ``local`` takes longer than σ itself.
    certificate : {"probable", "always"}
        Whether the upper end of the bracket holds with the row's ``probability`` over the random
        start, or always; if always, it is the local bound, which is much further away.

    Returns
    -------
    list of dict
        One row for each sequence, with the columns

        * ``sequence``: its number, from 0;
        * ``sigma``, ``lower``, ``upper``, ``probability``, ``residual``, ``iterations``,
          ``converged``: see :class:`~lipcore.spectral.SpectralNorm`;
        * ``released``: :math:`\|D_Xf^\top f(X)\|^{1/2}`, what the paper's released scripts compute
          in place of σ;
        * ``radius_rms``, ``radius_max``: root mean square and maximum of the norms of the tokens;
        * ``local``: :func:`~lipcore.bounds.local_upper` at the sequence itself;
        * ``best``: :func:`~lipcore.bounds.best_upper`, the least that the book proves for every
          sequence of n tokens in the ball of radius ``radius_max``;
        * ``general``: the bound that Castin, Ablin & Peyré 2024 publish for these sequences
          (:prf:ref:`thm-upper-general`), by :func:`~lipcore.bounds.layer_upper`;
        * ``log_best``, ``log_general``: their logarithms, since they may be beyond float64's range.

        Bounds that were not asked for are NaN.

    Raises
    ------
    ValueError, TypeError
        If X does not fit the layer, or a bound or certificate is unknown.

    Examples
    --------
    >>> import torch
    >>> layer = Attention.from_matrices(torch.eye(2), torch.eye(2))
    >>> (row,) = measure_layer(layer, torch.ones(1, 3, 2))  # equal tokens are averaged: σ = 1
    >>> round(row["sigma"], 4), row["best"] < row["general"]
    (1.0, True)
    """
    bounds = check_bounds(bounds)
    if certificate not in CERTIFICATES:
        raise ValueError(
            f"certificate: expected one of {', '.join(CERTIFICATES)}, got {certificate!r}"
        )
    if check_tokens(X, attention.d).ndim != 3:
        raise ValueError(f"X: expected shape (count, n, d), got {tuple(X.shape)}")
    always = certificate == "always"
    local = local_upper(attention, X) if always or "local" in bounds else None
    found = local_lipschitz(
        attention, X, tol=tol, generator=generator, upper_bound=local if always else None
    )
    norms = X.double().norm(dim=-1)
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
        "local": local if "local" in bounds else torch.full_like(found.value, math.nan),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [
        {"sequence": i, "probability": found.probability}
        | (row := dict(zip(columns, values, strict=True)))
        | _ball_bounds(attention, X.shape[-2], row["radius_max"], bounds)
        for i, values in enumerate(rows)
    ]


def check_bounds(bounds: Iterable[str]) -> tuple[str, ...]:
    """Return the names of bounds as a tuple, or raise ValueError if one is unknown."""
    names = (bounds,) if isinstance(bounds, str) else tuple(bounds)
    for name in names:
        if name not in BOUNDS:
            raise ValueError(f"bounds: expected some of {', '.join(BOUNDS)}, got {name!r}")
    return names


def _ball_bounds(attention: Attention, n: int, radius: float, bounds: tuple[str, ...]) -> dict:
    """Return bounds of the layer for all sequences of n tokens in a ball, and their logarithms."""
    logarithms = {"best": math.nan, "general": math.nan}
    if "best" in bounds:
        logarithms["best"] = best_upper(attention=attention, n=n, radius=radius, log=True)
    if "general" in bounds:
        logarithms["general"] = layer_upper(attention, n=n, radius=radius, log=True)
    values = {name: _exponential(value) for name, value in logarithms.items()}
    return values | {f"log_{name}": value for name, value in logarithms.items()}


def _exponential(value: float) -> float:
    return math.inf if value > _LARGEST_EXPONENT else math.exp(value)
