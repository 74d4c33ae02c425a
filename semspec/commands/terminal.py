"""Output of lines on stdout and stderr."""

import sys

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


def say(line: str) -> None:
    """Write one line to stdout and flush it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def complain(line: str) -> None:
    """Write one line to stderr and flush it."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
