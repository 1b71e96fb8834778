"""Command line: ``python -m lab.attack [--short] [--output table.json]``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from lab.attack import KNOWN_FAILURES, TOLERANCE, attack, replay


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attack; return 1 if a bound fails that should hold, or a known failure has gone."""
    parser = argparse.ArgumentParser(prog="python -m lab.attack", description="Break every bound.")
    parser.add_argument(
        "--problems", type=int, default=1000, help="heads: 1000 make over 800,000 tries"
    )
    parser.add_argument("--short", action="store_const", const=20, dest="problems", help="20 heads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the table here, as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument(
        "--replay", nargs=3, metavar=("SETTING", "SEED", "INDEX"), help="one problem"
    )
    options = parser.parse_args(arguments)
    if options.replay:
        setting, seed, index = options.replay
        found = replay(setting, int(seed), int(index))
    else:
        found = attack(problems=options.problems, seed=options.seed, progress=not options.quiet)
    table = pd.DataFrame([asdict(one) for one in found])
    print(table.to_string(index=False))
    print(f"{table.tries.sum()} comparisons of a bound with the truth")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(table.to_dict("records"), indent=1, ensure_ascii=False)
        options.output.write_text(text + "\n", encoding="utf-8")
    failures = table[(table.ratio > 1 + TOLERANCE) & ~table.bound.isin(list(KNOWN_FAILURES))]
    for row in failures.itertuples():
        again = " ".join(options.replay or [row.replay])
        print(f"FAILS: {row.bound}, {row.ratio:.15g}: python -m lab.attack --replay {again}")
    gone = [name for name, (_, witness) in KNOWN_FAILURES.items() if witness() <= 1 + TOLERANCE]
    for name in gone:
        print(f"FAILS: {name} holds at its witness, so it is no known failure")
    return int(len(failures) > 0 or bool(gone))


if __name__ == "__main__":
    raise SystemExit(main())
