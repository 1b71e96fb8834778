"""Build books, one for each line of input, in copies of a process that has imported extensions."""

import importlib
import json
import os
import sys


def build(folder: str, log: str, environment: dict[str, str]) -> None:
    """Build as `make book` does; what is printed goes into a file."""
    os.environ.update(environment)
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    program = importlib.import_module("jupyter_book.cli.main")
    program.main(["build", "-W", "-n", "--keep-going", folder])


if __name__ == "__main__":  # the processes of kernels read this file too
    for extension in sys.argv[1:]:
        importlib.import_module(extension)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            build(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
