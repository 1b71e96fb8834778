"""The scripts that test and publish everything."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="needs GNU's timeout")
def test_a_part_that_takes_too_long_is_stopped_named_and_counted(tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    stands_still = 'case $1 in book) sleep 99 ;; *) echo "= 2 passed in 1.00s =" ;; esac'
    for name, does in (("make", stands_still), ("python3", "exit 1"), ("chromium", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LONGEST_PART": "1s"}
    command = [tmp_path / ".ci" / "run"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30)
    assert "== make book: stopped, it takes longer than 1s" in done.stdout
    assert done.stdout.endswith("\n12 passed, 1 failed\n") and done.returncode == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs bash")
def test_the_branch_holds_the_last_pages_only(tmp_path):
    remote, site = tmp_path / "remote.git", tmp_path / "site"
    subprocess.run(["git", "init", "-q", "--bare", str(remote)], check=True)
    site.mkdir()
    for name in ("one.ipynb", "two.ipynb"):
        (site / name).touch()
        subprocess.run([str(ROOT / ".ci" / "publish"), str(site), str(remote)], check=True)
        (site / name).unlink()

    def git(*command: str) -> list[str]:
        command = ["git", "-C", str(remote), *command]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    assert git("ls-tree", "-r", "--name-only", "gh-pages") == ["two.ipynb"]
    assert len(git("log", "--format=%h", "gh-pages")) == 1
