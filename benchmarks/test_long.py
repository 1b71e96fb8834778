"""Long sequences, each in a process of its own, so that its peak memory is its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CASES = [("head", 4096), ("head", 8192), ("head", 16384), ("minilm", 8192)]


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads Linux's account of memory"
)
@pytest.mark.parametrize(
    ("name", "n"), CASES, ids=lambda value: f"long{value}" if isinstance(value, int) else value
)
def test_long(benchmark, name, n):
    """Within a GiB above the inputs; the value found is what a finite difference shows along the vector found."""
    command = [sys.executable, "-m", "benchmarks.long_run", name, str(n)]
    run = {"capture_output": True, "text": True, "check": True, "cwd": Path(__file__).parents[1]}
    done = benchmark.pedantic(subprocess.run, (command,), run, rounds=1)
    benchmark.extra_info |= json.loads(
        done.stdout.splitlines()[-1]
    )  # its own seconds: without imports and checks
    assert benchmark.extra_info["error"] < 1e-3
    assert benchmark.extra_info["peak_bytes"] < 2**30
