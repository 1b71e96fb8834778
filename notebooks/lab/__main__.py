"""``python -m lab`` fetches weights, measures named models and sweeps them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lab import commands
from lab.cli import add_sweep


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with all its commands, see :func:`lab.commands.main`."""
    return commands.main(argv, further=[add_sweep])


if __name__ == "__main__":
    sys.exit(main())
