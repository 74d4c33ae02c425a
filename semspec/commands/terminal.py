"""Plain lines on stdout and stderr."""

import sys

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def say(line: str) -> None:
    """One line on stdout, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def complain(line: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
