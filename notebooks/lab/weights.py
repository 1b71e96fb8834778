"""The command ``python -m lab.weights``: what the book's models, texts and images need.

``fetch`` downloads weights or data, ``list`` says what there is. Files are kept in the folder named
by LIPCORE_CACHE, else in ~/.cache/lipcore.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import pandas as pd

from lab import models

_COLUMNS = ["name", "layers", "d", "heads", "cached", "source", "what"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.weights", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    fetch = commands.add_parser("fetch", help="download weights or data into the cache, verified")
    what = "a model of 'python -m lab.weights list', bible, photos or speech"
    fetch.add_argument("names", nargs="+", metavar="NAME", help=what)
    commands.add_parser("list", help="list the models that can be loaded, from where")
    arguments = parser.parse_args(argv)
    if arguments.command == "list":
        table = pd.DataFrame(models.available())[_COLUMNS]
        print(table.to_string(index=False, justify="left", na_rep="-"))
        return
    try:
        for name in arguments.names:
            print(f"{name}: {models.fetch(name)}")
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
