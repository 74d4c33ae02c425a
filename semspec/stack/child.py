"""One child process, which the kernel kills when this process ends."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from semspec.errors import SemspecError
from semspec.stack.parent_death import bound_command

NUM_TAIL_LINES = 15


class StackError(SemspecError):
    """The stack cannot start or continue. `log_tail` is the end of the failed process's log."""

    def __init__(self, message: str, *, log_tail: str = "", **fields: str) -> None:
        super().__init__(message, **fields)
        self.log_tail = log_tail


@dataclass(frozen=True, slots=True)
class Child:
    """A child process with its output in a log file."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    """Added to this process's environment."""

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> "Child":
        """Start `command` with `environment` added to this process's environment."""
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *bound_command(command),
                env={**os.environ, **environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches only the supervisor, which stops its children in order
            )
        return cls(name, process, log, tuple(command), environment)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    def check_alive(self) -> None:
        """Raises: StackError when the process has ended."""
        if not self.is_alive:
            raise StackError(f"{self.name} ended with {self.status}", log_tail=self.log_tail())

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-NUM_TAIL_LINES:])

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s`."""
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), grace_s)
        except TimeoutError:
            self.kill()
            await self.process.wait()

    def kill(self) -> None:
        """Send SIGKILL unless the process has ended."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    @property
    def status(self) -> str:
        """Return how the process ended: `status 1`, or the signal's name."""
        code = self.process.returncode or 0
        return f"status {code}" if code >= 0 else signal.Signals(-code).name
