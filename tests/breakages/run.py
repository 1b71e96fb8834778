"""Break the book in many small ways, one at a time, and see which tests or pages notice.

    .venv/bin/python tests/breakages/run.py            # those of list.toml without a result yet
    .venv/bin/python tests/breakages/run.py --again    # all of them
    .venv/bin/python tests/breakages/run.py certificate data   # those whose names have these words
    .venv/bin/python tests/breakages/run.py --check    # only whether every text is found, once

Each breakage of ``list.toml`` is made in a copy of the checkout. It replaces a text, wherever it
stands now, or changes a table of numbers (``data`` and ``code``, where ``t`` is the table). Then its
targets run, with the working tree's own tests: arguments of pytest, "tests/lint.py", or "page
NAME". What turns red is written to ``today.toml`` after each, so that a stopped run goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "today.toml"
#: Seconds after which a target counts as red.
LIMIT = 600
TEXT = (".py", ".md", ".yml", ".toml", ".js", ".html", ".json")


def tracked() -> list[str]:
    """Return all files of the working tree that git does not ignore, but for this folder's."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    here = HERE.relative_to(ROOT).as_posix()
    return [n for n in names.splitlines() if not n.startswith(here) and (ROOT / n).is_file()]


def place(breakage: dict, names: list[str]) -> str:
    """Return the file that a breakage changes, or raise LookupError."""
    if "data" in breakage:
        found = [name for name in names if Path(name).name == breakage["data"]]
    else:
        texts = ((n, (ROOT / n).read_text(errors="ignore")) for n in names if n.endswith(TEXT))
        found = [n for n, text in texts for _ in range(text.count(breakage["old"]))]
        found = [n for n in found if breakage.get("in", "") in n]
    if len(found) != 1:
        raise LookupError(f"found {len(found)} times: {', '.join(found)}")
    return found[0]


def broken(breakage: dict, file: Path) -> None:
    """Make the breakage in a file of the copy."""
    if "data" not in breakage:
        text = file.read_text()
        file.write_text(text.replace(breakage["old"], breakage["new"]))
        return
    if file.suffix == ".json":
        table = json.loads(file.read_text())
        exec(breakage["code"], {"t": table})
        file.write_text(json.dumps(table))
        return
    import pyarrow
    import pyarrow.parquet

    original = pyarrow.parquet.read_table(file)
    table = original.to_pandas()
    exec(breakage["code"], {"t": table})
    changed = pyarrow.Table.from_pandas(table, original.schema, preserve_index=False)
    pyarrow.parquet.write_table(changed, file, compression="zstd", compression_level=19)


def first_red(targets: list[str], copy: Path) -> str:
    """Run targets until one fails, and return what failed; nothing if all pass."""
    environment = os.environ | {
        "PYTHONPATH": f"{copy}:{copy}/notebooks:{copy}/book/_ext",
        "OMP_NUM_THREADS": "1",
    }
    for target in targets:
        kind, _, name = target.partition(" ")
        if kind == "page":
            command = ["-m", "jupytext", "--quiet", "--to", "ipynb", "--execute"]
            command += [f"notebooks/{name}.md", "--output", f"{copy}/page.ipynb"]
        elif target == "tests/lint.py":
            command = [target]
        else:
            command = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *target.split()]
        command = [str(ROOT / ".venv/bin/python"), *command]
        try:
            run = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT
            )
        except subprocess.TimeoutExpired:
            return f"{target}: no end"
        if run.returncode == 5:
            raise SystemExit(f"{target}: no such tests")
        if run.returncode:
            said = [x for x in run.stdout.splitlines() if x.startswith(("FAILED", "ERROR"))]
            return said[0].split(" - ")[0].split(" ", 1)[1] if said else target
    return ""


def main() -> int:
    """Run the breakages that are asked for, and return how many cannot be made."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only those whose names have one of these words")
    parser.add_argument("--again", action="store_true", help="also those that have a result")
    parser.add_argument("--check", action="store_true", help="only whether all can be made")
    options = parser.parse_args()
    names = tracked()
    breakages = tomllib.loads((HERE / "list.toml").read_text())["breakage"]
    results = tomllib.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.words:
        breakages = [b for b in breakages if any(word in b["name"] for word in options.words)]
    lost = 0
    whole = {}  # pages that turned red, and whether they run without a breakage
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "book"
        for name in () if options.check else names:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
        if not options.check:
            subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
            (copy / ".venv").symlink_to(ROOT / ".venv")
        for b in breakages:
            try:
                file = place(b, names)
            except LookupError as error:
                lost += 1
                print(f"lost   {b['name']}: {error}")
                continue
            if options.check or (b["name"] in results and not (options.again or options.words)):
                continue
            started = time.monotonic()
            broken(b, copy / file)
            red = first_red(b["targets"], copy)
            shutil.copy2(ROOT / file, copy / file)
            if red.startswith("page") and red not in whole:
                whole[red] = not first_red([red], copy)
            if not whole.get(red, True):
                red += ", which is red without the breakage too"
            results[b["name"]] = f"red: {red}" if red else "green"
            print(
                f"{results[b['name']]:60}  {b['name']}  {time.monotonic() - started:.0f} s",
                flush=True,
            )
            lines = [
                f"{json.dumps(k, ensure_ascii=False)} = {json.dumps(v)}\n"
                for k, v in results.items()
            ]
            RESULTS.write_text("".join(lines))
    mine = [results[b["name"]] for b in breakages if b["name"] in results]
    reds = sum(result.startswith("red") for result in mine)
    print(f"{reds} red, {len(mine) - reds} green, {lost} lost, of {len(breakages)}")
    return lost


if __name__ == "__main__":
    sys.exit(main())
