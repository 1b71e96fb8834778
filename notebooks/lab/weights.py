"""The command ``python -m lab.weights``: what the book's models, texts and images need.

``fetch`` downloads weights or data, ``list`` says what there is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from lab import models
from lab.commands import Parser, run

_COLUMNS = ["name", "layers", "d", "heads", "cached", "source", "what"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code.

    Examples
    --------
    >>> main(["fetch", "bert-random"])
    2
    """
    where = "Files are kept in the folder named by LIPCORE_CACHE, else in ~/.cache/lipcore."
    parser = Parser(prog="python -m lab.weights", description=where)
    commands = parser.add_subparsers(required=True, dest="command")
    fetch = commands.add_parser("fetch", help="download weights or data into the cache, verified")
    what = "a model of 'python -m lab.weights list', a text, photos or speech"
    fetch.add_argument("names", nargs="+", metavar="NAME", help=what)
    fetch.set_defaults(run=_fetch)
    listing = commands.add_parser("list", help="list the models that can be loaded, from where")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_list)
    return run(parser, argv)


def _fetch(arguments: argparse.Namespace) -> str:
    return "\n".join(f"{name}: {models.fetch(name)}" for name in dict.fromkeys(arguments.names))


def _list(arguments: argparse.Namespace) -> str:
    rows = models.available()
    if arguments.json:
        return json.dumps(rows, indent=2)
    import pandas as pd

    return pd.DataFrame(rows)[_COLUMNS].to_string(index=False, justify="left", na_rep="-")


if __name__ == "__main__":
    sys.exit(main())
