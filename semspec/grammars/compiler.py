"""Compiles grammars in other processes, which may be killed, to find out whether they compile and what they take."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec.errors import InternalError, Overloaded
from semspec.grammars.fair_slots import FairSlots

NUM_PROCESSES = 2
"""Grammars that compile at once; those of one owner are compiled one after another."""
TIMEOUT_S = 10.0
"""Wall time for one list of grammars; on an idle machine the limit of CPU time ends the process before."""
MAX_KNOWN = 256
"""Maximum number of results in the cache."""

_INHERITED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a grammar is refused."""

    index: int | None
    """Index of the grammar in its list; None: not known."""
    reason: str
    """Reason in one line of at most `worker.MAX_REASON` characters, without the text of the grammar."""
    is_empty: bool = False
    """Whether it is well-formed, but allows no text."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Result of compiling a list of grammars."""

    flaw: Flaw | None
    num_bytes: int
    """Memory that the compiled grammars take together."""


TOO_COSTLY = "it takes too much time or memory to compile; make it smaller"


class Compiler:
    """Compiles grammars for one vocabulary in child processes, which its owners use in turn.

    A process is killed when its caller is cancelled.
    """

    def __init__(self, vocabulary: Any = None) -> None:
        """`vocabulary`: as `worker` reads it; None: single bytes."""
        self._vocabulary = vocabulary
        self._idle: list[_Process] = []
        self._slots = FairSlots(NUM_PROCESSES)
        self._known: OrderedDict[bytes, Compiled] = OrderedDict()
        """Results by the digest of the grammars; the least recently used come first."""

    async def flaw(self, grammars: Sequence[str], owner: str = "") -> Flaw | None:
        """Return the flaw of the first of `grammars` that does not compile; None if all compile. Raises: Overloaded."""
        return (await self.compile(grammars, owner)).flaw

    async def compile(self, grammars: Sequence[str], owner: str = "") -> Compiled:
        """Return whether `grammars` compile, and how much memory they take. Raises: Overloaded."""
        task = json.dumps(list(grammars)).encode()
        digest = hashlib.blake2b(task, digest_size=16).digest()
        if digest not in self._known:
            async with self._slots.hold(owner):
                if digest not in self._known:  # by another caller, meanwhile
                    self._known[digest] = await self._compile(task)
        self._known.move_to_end(digest)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return self._known[digest]

    def close(self) -> None:
        """End the processes."""
        while self._idle:
            self._idle.pop().kill()

    async def _compile(self, task: bytes) -> Compiled:
        process = (
            self._idle.pop() if self._idle else await asyncio.to_thread(_Process, self._vocabulary)
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await asyncio.to_thread(process.ask, task)
        except TimeoutError:
            process.kill()
            raise Overloaded("checking the grammar took too long", remedy="retry later") from None
        except BaseException:
            process.kill()
            raise
        if not answer:
            if process.kill() >= 0:  # its limits did not end it
                raise InternalError("the process that compiles grammars has failed", remedy="retry")
            return Compiled(Flaw(None, TOO_COSTLY), 0)
        self._idle.append(process)
        flaw, num_bytes = json.loads(answer)
        return Compiled(flaw and Flaw(*flaw), num_bytes)


class _Process:
    """A running `worker.py`."""

    def __init__(self, vocabulary: Any) -> None:
        script = Path(__file__).with_name("worker.py")
        # Without secrets that the environment may have.
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self.ask(json.dumps(vocabulary).encode(), is_answered=False)

    def ask(self, task: bytes, is_answered: bool = True) -> bytes:
        """Send a task and return the line that answers it; empty if the process has ended. Blocks."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        with suppress(BrokenPipeError):
            stdin.write(task + b"\n")
            stdin.flush()
        line = stdout.readline() if is_answered else b""
        if is_answered and not line:
            self._process.wait()
        return line

    def kill(self) -> int:
        """Kill the process and return its exit code. A thread that waits for its answer gets an empty one."""
        self._process.kill()
        with suppress(BrokenPipeError), self._process:  # closes the pipes and waits
            pass
        return self._process.returncode
