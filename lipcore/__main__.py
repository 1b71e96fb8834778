"""``python -m lipcore``: the command line."""

import sys

from lipcore.cli import main

sys.exit(main())
