"""Command line: ``python -m lab.attack [--problems 20] [--output table.json]``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lab.attack import KNOWN_FAILURES, TOLERANCE, attack, replay


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attack; return 1 if a bound fails that should hold, or a known failure has gone."""
    parser = argparse.ArgumentParser(prog="python -m lab.attack", description="Break every bound.")
    parser.add_argument("--problems", type=int, default=1000, help="heads, with 800 tries each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the table here, as JSON")
    one = ("SETTING", "SEED", "INDEX")
    parser.add_argument("--replay", nargs=3, metavar=one, help="one problem")
    options = parser.parse_args(arguments)
    if options.replay:
        setting, seed, index = options.replay
        table = pd.DataFrame(replay(setting, int(seed), int(index)))
        table["replay"] = " ".join(options.replay)
    else:
        table = pd.DataFrame(attack(problems=options.problems, seed=options.seed))
    print(table.to_string(index=False))
    print(f"{table.tries.sum()} comparisons of a bound with the truth")
    if options.output:
        table.to_json(options.output, orient="records", indent=1, double_precision=15)
    failures = table[(table.ratio > 1 + TOLERANCE) & ~table.bound.isin(list(KNOWN_FAILURES))]
    for row in failures.itertuples():
        print(f"FAILS: {row.bound}, {row.ratio:.15g}: python -m lab.attack --replay {row.replay}")
    gone = [name for name, (_, witness) in KNOWN_FAILURES.items() if witness() <= 1 + TOLERANCE]
    for name in gone:
        print(f"FAILS: {name} holds at its witness, so it is no known failure")
    return int(len(failures) > 0 or bool(gone))


if __name__ == "__main__":
    raise SystemExit(main())
