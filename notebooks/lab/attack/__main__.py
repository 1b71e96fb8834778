"""Command line: ``python -m lab.attack [--short] [--output table.json]``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lab.attack import KNOWN_FAILURES, TOLERANCE, Outcome, Row, attack, replay


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attack; return 1 if a bound fails that should hold."""
    options = _parser().parse_args(arguments)
    if options.replay:
        setting, seed, index = options.replay
        return _show(replay(setting, int(seed), int(index)))
    problems = options.problems or (20 if options.short else 1000)
    rows = attack(problems=problems, seed=options.seed, progress=not options.quiet)
    print(_table(rows))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False)
        options.output.write_text(text + "\n", encoding="utf-8")
    return _verdict(rows)


def _show(outcomes: list[Outcome]) -> int:
    for outcome in outcomes:
        print(f"{outcome.bound:36s} {outcome.ratio:<22.15g} {outcome.where}")
    should_hold = [outcome for outcome in outcomes if outcome.bound not in KNOWN_FAILURES]
    return int(any(outcome.ratio > 1 + TOLERANCE for outcome in should_hold))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.attack", description="Try to break every bound."
    )
    parser.add_argument(
        "--problems", type=int, help="heads (default 1000: over 800,000 comparisons)"
    )
    parser.add_argument("--short", action="store_true", help="20 heads instead of 1000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the table here, as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument(
        "--replay", nargs=3, metavar=("SETTING", "SEED", "INDEX"), help="run one problem again"
    )
    return parser


def _table(rows: list[Row]) -> str:
    lines = [
        f"{'bound':36s} {'source':10s} {'tries':>8s} {'ratio':>10s} {'a >= 1':>10s}"
        f"  {'status':14s} where [replay]"
    ]
    for row in rows:
        numbers = f"{row.tries:8d} {row.ratio:10.6f} {row.large_a_ratio:10.6f}"
        place = f"{row.where} [{row.replay}]"
        lines.append(f"{row.bound:36s} {row.source:10s} {numbers}  {row.status:14s} {place}")
    lines.append(f"{sum(row.tries for row in rows)} comparisons of a bound with the truth")
    return "\n".join(lines)


def _verdict(rows: list[Row]) -> int:
    """Say what fails and how to run it; return 1 if anything does, or a known failure has gone."""
    failures = [row for row in rows if row.status == "fails"]
    for row in failures:
        again = f"python -m lab.attack --replay {row.replay}"
        print(f"FAILS: {row.bound}, truth/bound {row.ratio:.15g}: {again}", file=sys.stderr)
    gone = [name for name, (_, witness) in KNOWN_FAILURES.items() if witness() <= 1 + TOLERANCE]
    for name in gone:
        print(f"FAILS: {name} holds at its witness, so it is no known failure", file=sys.stderr)
    return int(bool(failures or gone))


if __name__ == "__main__":
    raise SystemExit(main())
