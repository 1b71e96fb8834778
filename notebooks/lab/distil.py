"""What the page "How fast" shows, from pytest-benchmark's record: ``lab.distil RECORD TABLE``.

Times of rivals are for ten sequences, also where fewer were run. Of several rounds the median
counts; for single pairs the least, which owes least to other work.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

import lipcore
from benchmarks.cases import LENGTHS, SEQUENCES, converged, minilm, relative_error
from benchmarks.test_products import BASE
from lab.stored import short

METHODS = {
    "test_lipcore": "lipcore",
    "test_lanczos_on_autodiff": "the same on autodiff",
    "test_lipcore_without_certificate": "lipcore, no certificate",
    "test_power_iteration": "power iteration",
    "test_power_iteration_with_an_oracle": "power iteration, oracle",
    "test_svds": "svds",
    "test_dense": "dense",
}
#: Power iteration's rules: (quotient now, quotient before, true quotient) → whether to stop, and a
#: limit of steps.
POWER: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], int]] = {
    "absolute, as published": (lambda now, before, true: (now - before).abs() < 1e-4, 100),
    "relative, 1e-4": (lambda now, before, true: (now - before).abs() < 1e-4 * now, 10_000),
    "relative, 1e-6": (lambda now, before, true: (now - before).abs() < 1e-6 * now, 10_000),
    "oracle": (lambda now, before, true: (now.sqrt() / true.sqrt() - 1).abs() <= 1e-4, 10_000),
}


def distil(record: dict) -> dict:
    """Return machine and results of a record."""
    runs: dict[str, list[dict]] = defaultdict(list)
    for run in record["benchmarks"]:
        times = {"median": run["stats"]["median"], "least": run["stats"]["min"]}
        runs[run["name"].split("[")[0]].append(run["extra_info"] | times)
    doubles = zip(runs["test_lipcore"], runs["test_lipcore_in_double_precision"], strict=True)
    pairs = zip(runs["test_pair"], runs["test_bare_products"], strict=True)
    growth = [
        {"size": x["size"], "at": x["at"], "seconds": x["least"]}
        | {"multiplications": x["multiplications"]}
        for x in runs["test_growth"]
    ]
    return {
        "made": _made(record),
        "rivals": [
            {
                "method": METHODS[name],
                "n": x["n"],
                "seconds": x["median"] * SEQUENCES / x["sequences"],
                "error": x["error"],
                "measured": x["sequences"],
            }
            for name in METHODS
            for x in runs[name]
        ],
        "precision": [
            {"n": single["n"], "float32": single["error"], "float64": double["error"]}
            | {"iterations32": single["iterations"], "iterations64": double["iterations"]}
            for single, double in doubles
        ],
        "pairs": [
            {"n": pair["n"], "seconds": pair["least"], "bare": bare["least"]}
            | {"ratio": pair["least"] / bare["least"], "multiplications": pair["multiplications"]}
            for pair, bare in pairs
        ],
        "growth": {"base": BASE, "runs": growth},
        "long": [{k: x[k] for k in x.keys() - {"median", "least"}} for x in runs["test_long"]],
    }


def _made(record: dict) -> dict:
    machine = record["machine_info"]
    packages = {x: metadata.version(x).split("+")[0] for x in ("torch", "numpy", "scipy")}
    own = {"lipcore": lipcore.__version__, "Python": machine["python_version"]}
    return {
        "date": record["datetime"][:10],
        "cpu": machine["cpu"].get("brand_raw", platform.machine()),
        "cores": os.cpu_count(),
        "threads": machine["threads"],
        "system": machine["system"],
        "versions": own | packages,
    }


def count(n: int) -> list[dict]:
    """Return one record a rule: mean number of pairs, and largest relative error of σ."""
    attention, X = minilm(n)
    exact = converged(n)
    found = {f"power iteration, {rule}": found for rule, found in _stops(n).items()}
    for rule, options in {"lipcore": {}, "lipcore, no certificate": {"probability": None}}.items():
        certified = lipcore.local_lipschitz(attention, X, **options)
        found[rule] = certified.iterations, certified.value
    return [
        {"rule": rule, "n": n, "pairs": pairs.double().mean().item()}
        | {"error": relative_error(values, exact)}
        for rule, (pairs, values) in found.items()
    ]


def _stops(n: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the number of pairs and σ where each rule stops power iteration, by sequence."""
    attention, X = minilm(n)
    J, true = attention.jacobian(X), converged(n).square()
    u = torch.randn(X.shape[1:], generator=torch.Generator().manual_seed(0)).expand_as(X)
    now = torch.zeros_like(true)
    found = {rule: (torch.zeros_like(true), torch.zeros_like(true)) for rule in POWER}
    step = 0
    while any(bool((pairs == 0).any()) for pairs, _ in found.values()):
        step += 1
        u = u / u.flatten(1).norm(dim=1)[:, None, None]
        push = J.rmatvec(J.matvec(u))
        before, now = now, (u * push).flatten(1).sum(1).double()
        u = push
        for (stop, most), (pairs, values) in zip(POWER.values(), found.values(), strict=True):
            ends = (pairs == 0) & (stop(now, before, true) | (step == most))
            pairs[ends] = step
            values[ends] = now[ends].sqrt()
    return found


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    content = distil(json.loads(source.read_text(encoding="utf8")))
    content["stops"] = [record for n in LENGTHS for record in count(n)]
    text = json.dumps(short(content, 4), ensure_ascii=False)  # more than a clock is good for
    target.write_text(text.replace("}, ", "},\n") + "\n", encoding="utf8")
