"""``python -m lipcore`` is the command ``lipcore``."""

import sys

from lipcore.models.cli import main

if __name__ == "__main__":
    sys.exit(main())
