"""``python -m lipcore`` is the whole command line, of the models and of the book's laboratory."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lipcore.lab.cli import add_sweep
from lipcore.models import cli


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with all its commands, see :func:`lipcore.models.cli.main`."""
    return cli.main(argv, further=[add_sweep])


if __name__ == "__main__":
    sys.exit(main())
