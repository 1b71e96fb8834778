"""What the commands of the laboratory have in common: one line for what they cannot do."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

#: Exit codes for input that cannot be used, and after Ctrl-C.
BAD_INPUT = 2
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line, without the usage."""

    def error(self, message: str):
        """Raise ValueError."""
        raise ValueError(message)


def run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Print what ``run`` of the parsed arguments returns; return 0, 2 for bad input, or 130."""
    try:
        arguments = parser.parse_args(argv)
        _print(arguments.run(arguments), sys.stdout)
    except BrokenPipeError:
        # The program that read the output, such as head, has ended. The interpreter flushes the
        # stream once more when it exits, hence the redirection.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, TypeError, IndexError, OSError, ImportError) as error:
        _print(f"lab: error: {' '.join(str(error).split())}", sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        _print("lab: interrupted", sys.stderr)
        return INTERRUPTED
    return 0


def _print(text: str, stream) -> None:
    """Print a text, with question marks for what the terminal's encoding lacks (σ, ₂)."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, errors="replace").decode(encoding), file=stream, flush=True)
