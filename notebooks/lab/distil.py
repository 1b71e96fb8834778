"""Keep of pytest-benchmark's record what the book shows: ``python -m lab.distil RECORD TABLE``.

The page "How fast" reads ``book/data/benchmarks.json`` and nothing else, so that ``make bench`` renews it. Times of
rivals are for ten sequences, also where fewer were run. Of several rounds the median counts; for single pairs of
products the least, which owes least to whatever else the machine did.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import defaultdict
from importlib import metadata
from pathlib import Path

import lipcore
from benchmarks.cases import LENGTHS, SEQUENCES
from benchmarks.test_long import CASES
from benchmarks.test_products import BASE, GROWTH

METHODS = {
    "test_lipcore": "lipcore",
    "test_lanczos_on_autodiff": "the same on autodiff",
    "test_lipcore_without_certificate": "lipcore, no certificate",
    "test_power_iteration": "power iteration",
    "test_power_iteration_with_an_oracle": "power iteration, oracle",
    "test_svds": "svds",
    "test_dense": "dense",
}


def distil(record: dict) -> dict:
    """Return machine and results; refuse a record with a benchmark missing or failed."""
    runs: dict[str, list[dict]] = defaultdict(list)
    for run in record["benchmarks"]:
        facts = run["extra_info"] | {"median": run["stats"]["median"], "least": run["stats"]["min"]}
        runs[run["name"].split("[")[0]].append(facts)
    long = [{k: v for k, v in x.items() if k not in ("median", "least")} for x in runs["test_long"]]
    found = {
        "made": _made(record),
        "rivals": [_rival(name, x) for name in METHODS for x in runs[name]],
        "precision": [
            {"n": single["n"], "float32": single["error"], "float64": double["error"],
             "iterations32": single["iterations"], "iterations64": double["iterations"]}
            for single, double in zip(runs["test_lipcore"], runs["test_lipcore_in_double_precision"], strict=True)
        ],
        "pairs": [
            {"n": pair["n"], "seconds": pair["least"], "bare": bare["least"], "ratio": pair["least"] / bare["least"],
             "multiplications": pair["multiplications"]}
            for pair, bare in zip(runs["test_pair"], runs["test_bare_products"], strict=True)
        ],
        "growth": {
            "base": BASE,
            "runs": [{"size": x["size"], "at": x["at"], "seconds": x["least"], "multiplications": x["multiplications"]}
                     for x in runs["test_growth"]],
        },
        "long": long,
    }  # fmt: skip
    _check(found)
    return rounded(found)


def _rival(name: str, x: dict) -> dict:
    scale = SEQUENCES / x["sequences"]
    return {"method": METHODS[name], "n": x["n"], "seconds": x["median"] * scale, "error": x["error"],
            "measured": x["sequences"]}  # fmt: skip


def _made(record: dict) -> dict:
    cpu = record["machine_info"]["cpu"]
    packages = ("torch", "numpy", "scipy")
    return {
        "date": record["datetime"][:10],
        "cpu": cpu.get("brand_raw", platform.machine()),
        "cores": os.cpu_count(),
        "threads": record["machine_info"]["threads"],
        "system": record["machine_info"]["system"],
        "versions": {
            "lipcore": lipcore.__version__,
            "Python": record["machine_info"]["python_version"],
        }
        | {name: metadata.version(name).split("+")[0] for name in packages},
    }


def _check(found: dict) -> None:
    lengths = [x["n"] for x in found["rivals"]]
    missing = [n for n in LENGTHS if lengths.count(n) < len(METHODS) - (n > 8)]
    missing += [case for case in CASES if case not in [(x["layer"], x["n"]) for x in found["long"]]]
    seen = [(x["size"], x["at"]) for x in found["growth"]["runs"]]
    missing += [
        (size, at) for size, values in GROWTH.items() for at in values if (size, at) not in seen
    ]
    if missing:
        raise SystemExit(
            f"record: expected every benchmark, these are missing or failed: {missing}"
        )


def rounded(value):
    """Four digits are more than a clock is good for."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def write(found: dict, path: Path) -> None:
    """One result a line: easy to read, and to compare with an earlier one."""
    text = json.dumps(found, ensure_ascii=False)
    for before, after in (
        ('], "', '],\n"'),
        ('}, "', '},\n"'),
        ("}, {", "},\n  {"),
        ('": [{', '": [\n  {'),
    ):
        text = text.replace(before, after)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf8")


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    write(distil(json.loads(source.read_text(encoding="utf8"))), target)
