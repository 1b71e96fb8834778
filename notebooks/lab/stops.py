"""How many pairs of products each rule for stopping needs, and how right it then is.

``python -m lab.stops TABLE`` counts them for the ten sequences of each length and writes them into the table.
The counts are those of an iteration on exact products and depend on no clock, so they may be made on a busy machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.cases import LENGTHS, converged, minilm, relative_error
from lab.distil import rounded, write
from lipcore import local_lipschitz

#: Power iteration's rules: (quotient now, quotient before, true quotient) → whether to stop, and a limit of steps.
POWER: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], int]] = {
    "absolute, as published": (lambda now, before, true: (now - before).abs() < 1e-4, 100),
    "relative, 1e-4": (lambda now, before, true: (now - before).abs() < 1e-4 * now, 10_000),
    "relative, 1e-6": (lambda now, before, true: (now - before).abs() < 1e-6 * now, 10_000),
    "oracle": (lambda now, before, true: (now.sqrt() / true.sqrt() - 1).abs() <= 1e-4, 10_000),
}


def traces(n: int) -> Tensor:
    """Rayleigh quotients of power iteration, one row a step, until every rule has stopped for every sequence."""
    attention, X = minilm(n)
    J, true = attention.jacobian(X), converged(n).square()
    start = torch.randn(X.shape[1:], generator=torch.Generator().manual_seed(0))
    u = start.expand_as(X)
    found: list[Tensor] = []
    running = torch.ones(len(POWER), len(X), dtype=torch.bool)
    while running.any():
        u = u / u.flatten(1).norm(dim=1)[:, None, None]
        push = J.rmatvec(J.matvec(u))
        now = (u * push).flatten(1).sum(1).double()
        before = found[-1] if found else torch.zeros_like(now)
        found.append(now)
        for row, (stop, most) in zip(running, POWER.values(), strict=True):
            row &= ~stop(now, before, true) & (len(found) < most)
        u = push
    return torch.stack(found)


def count(n: int) -> list[dict]:
    """One record a rule: mean number of pairs, and largest relative error of the constants."""
    quotients, exact = traces(n), converged(n)
    records = []
    for rule, (stop, most) in POWER.items():
        before = torch.cat([torch.zeros_like(quotients[:1]), quotients[:-1]])
        stopped = stop(quotients, before, exact.square())
        stopped[most - 1 :] = True
        steps = stopped.int().argmax(0)  # the first
        values = quotients.gather(0, steps[None])[0].sqrt()
        pairs = (steps + 1).double().mean().item()
        records.append(_record(f"power iteration, {rule}", n, pairs, values, exact))
    attention, X = minilm(n)
    for name, options in {"lipcore": {}, "lipcore, no certificate": {"probability": None}}.items():
        found = local_lipschitz(attention, X, **options)
        pairs = found.iterations.double().mean().item()
        records.append(_record(name, n, pairs, found.value, exact))
    return records


def _record(rule: str, n: int, pairs: float, values: Tensor, exact: Tensor) -> dict:
    return {"rule": rule, "n": n, "pairs": pairs, "error": relative_error(values, exact)}


if __name__ == "__main__":
    table = Path(sys.argv[1])
    content = json.loads(table.read_text(encoding="utf8"))
    content["stops"] = rounded([record for n in LENGTHS for record in count(n)])
    write(content, table)
