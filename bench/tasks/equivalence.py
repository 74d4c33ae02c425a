"""Whether two answers are the same mathematics, decided in a process of its own.

Answers are a model's: one may ask for a number of ten billion digits. math-verify limits its time by a signal, which
works in a main thread only and does not interrupt a long multiplication. A process can be killed from any thread.
"""

import json
import logging
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock
from weakref import finalize

from semspec.errors import InternalError

START_LIMIT_S = 120.0
LIMIT_S = 45.0
"""Above what math-verify allows itself: two parses and four comparisons of 5 s each."""

WORKER = Path(__file__).with_name("equivalence_worker.py")
_log = logging.getLogger(__name__)


class Judge:
    """One worker process, started at the first question, begun anew after one that it does not survive. Thread-safe."""

    def __init__(self, limit_s: float = LIMIT_S, script: Path = WORKER) -> None:
        self._limit_s = limit_s
        self._script = script
        self._lock = Lock()
        self._worker: _Worker | None = None

    def is_equivalent(self, reference: str, text: str) -> bool:
        """Whether the answer that `text` states equals `reference` (LaTeX). False if it states none, or takes too long.

        Raises: InternalError when no worker can be started.
        """
        with self._lock:
            if self._worker is None:
                self._worker = _Worker(self._script)
            answer = self._worker.ask(json.dumps([reference, text]), self._limit_s)
            if answer is None:
                _log.warning("no verdict within %g s, graded as wrong; reference: %s", self._limit_s, reference)
                self._worker.stop()
                self._worker = None
            return answer == "true"


class _Worker:
    """A process that answers lines with lines; it ends with this object, and when its stdin is closed."""

    def __init__(self, script: Path) -> None:
        # -P: the folder of a script stands first on its path, and this one's modules are not for it.
        # A session of its own: Ctrl-C is for the parent.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.stop = finalize(self, _stop, self._process)
        if self._read_line(START_LIMIT_S) != "ready":
            self.stop()
            raise InternalError(f"the grader does not start; try `{sys.executable} -P {script}`")

    def ask(self, line: str, limit_s: float) -> str | None:
        """The answer, or None when there is none in time."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(line.encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return None
        return self._read_line(limit_s)

    def _read_line(self, limit_s: float) -> str | None:
        """A line comes in one piece, being short, and after a question there is only one."""
        stdout = self._process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], limit_s)
        return stdout.readline().decode().strip() or None if readable else None


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(BrokenPipeError), process:  # closes the pipes and waits
        pass
