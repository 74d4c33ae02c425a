"""`make test-vllm` beside other tests, at a lower priority."""

import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Lane:
    """Runs from the constructor on, in a process group of its own."""

    def __init__(self) -> None:
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTEST_", "MAKE"))
        }
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by `stop`)
        self._process = subprocess.Popen(
            ["nice", "-n", "10", "make", "test-vllm"],
            cwd=ROOT,
            env=own,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self) -> tuple[int, str]:
        """The exit status and the end of the output, after the last test."""
        status = self._process.wait()
        self._output.seek(0)
        return status, self._output.read()[-8000:]

    def stop(self) -> None:
        """End all its processes; nothing if it is over."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()
