"""A script that executes a command with the Linux parent-death signal: the kernel kills it when its parent ends.

`python parent_death.py PARENT_PID COMMAND...`. A `preexec_fn` would be unsafe in a process with threads.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def bound_command(command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` as a child which the kernel kills when this process ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the signal was requested
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
