"""The command ``python -m lab.weights``: what the book's models, texts and images need.

``fetch`` downloads weights or data, ``list`` says what there is. Files are kept in the folder named
by LIPCORE_CACHE, else in ~/.cache/lipcore.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import pandas as pd

from lab import models


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.weights", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("list")
    fetch = commands.add_parser("fetch")
    fetch.add_argument("names", nargs="+", help="models of the list, bible, photos or speech")
    arguments = parser.parse_args(argv)
    if arguments.command == "list":
        columns = ["name", "layers", "d", "heads", "cached", "source", "what"]
        table = pd.DataFrame(models.available())[columns]
        print(table.to_string(index=False, justify="left", na_rep="-"))
        return
    try:
        for name in arguments.names:
            print(f"{name}: {models.fetch(name)}")
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
