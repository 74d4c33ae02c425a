"""Supervision of vLLM's processes: their output, the reason when they end, and their end with the service."""

import asyncio
import logging
import multiprocessing
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from semspec.errors import Mismatch, SemspecError, Unavailable

NUM_LINES = 400
"""Last lines of vLLM's output that are kept, to find the reason for a failure."""

_ERROR = re.compile(r"(?:^|\s|\])(?P<error>(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt): .+)")
READ_TIMEOUT_S = 2.0
"""Time limit for reading the last lines after the processes have ended."""

REMEDIES = {
    "not initialized from checkpoint": "fetch the checkpoint's files again, or correct its config.json",
    "hidden states": "set the engine to fast or transformers",
    "cache blocks": "set more kv_bytes or gpu_memory_utilization in vllm_options",
    "KV cache": "set more kv_bytes or gpu_memory_utilization in vllm_options, or less max_context_tokens",
    "memory": "set less kv_bytes, or gpu_memory_utilization in vllm_options, or use more GPUs",
    "uantiz": "choose another quantization in vllm_options",
}
"""Remedies, by a part of vLLM's error."""

_GENERAL = (
    "EngineDeadError",
    "Engine core initialization failed",
    "EngineCore",
    "See root cause",
    "cancelled",
)
"""Parts of messages that only state that something failed."""

logger = logging.getLogger(__name__)


class EndsWithParent:
    """A value in the configuration of `multiprocessing` that ends a spawned process when its parent ends.

    Its own child processes inherit it. It works however the parent ends, and from before the process imports its code.
    A parent-death signal would also be sent when only the thread ends that started the process.
    """

    def __reduce__(self) -> tuple[Callable[[int], "EndsWithParent"], tuple[int]]:
        return _end_with, (os.getpid(),)


def _end_with(parent: int) -> EndsWithParent:
    """Watch `parent` in a thread, and end this process after it."""

    def watch() -> None:
        while os.getppid() == parent:  # `multiprocessing` sets its parent process only later
            time.sleep(0.1)
        os._exit(1)

    threading.Thread(target=watch, name="semspec-parent", daemon=True).start()
    return EndsWithParent()


class CapturedOutput:
    """The output of vLLM's processes: logged at debug level, and searched for the reason for a failure."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=NUM_LINES)
        self._reader: threading.Thread | None = None
        self._is_captured = False

    @contextmanager
    def captured(self) -> Iterator[None]:
        """Capture the output of processes started in the block, even after it, and of this process during the block."""
        resource_tracker.ensure_running()  # else it starts in the block and keeps the pipe open
        reading, writing = os.pipe()
        self._reader = threading.Thread(
            target=self._read, args=(reading,), name="vllm-output", daemon=True
        )
        self._reader.start()
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [os.dup(descriptor) for descriptor in (1, 2)]
        for descriptor in (1, 2):
            os.dup2(writing, descriptor)
        os.close(writing)
        self._is_captured = True
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, before in zip((1, 2), kept, strict=True):
                os.dup2(before, descriptor)
                os.close(before)
            self._is_captured = False

    def _read(self, descriptor: int) -> None:
        with open(descriptor, errors="replace") as lines:
            for line in lines:
                self._lines.append(line.rstrip())
                if not self._is_captured:  # else the log may be captured again
                    logger.debug("%s", line.rstrip())

    def reason(self) -> str | None:
        """Return the first error in the last lines, once all processes have ended; None if there is none."""
        if self._reader:
            self._reader.join(READ_TIMEOUT_S)
        return reason_in([*self._lines])


def reason_in(lines: Sequence[str]) -> str | None:
    """Return the first error that states a cause; None if there is none."""
    for line in lines:
        if (found := _ERROR.search(line)) and not any(part in found["error"] for part in _GENERAL):
            return " ".join(found["error"].split())[:300]
    return None


class VllmProcesses:
    """A running vLLM: its client `AsyncLLM` and its processes."""

    def __init__(
        self,
        llm: Any,
        processes: Sequence[BaseProcess],
        output: CapturedOutput,
        ended: Callable[[str], None],
    ) -> None:
        self._llm, self._output, self._ended = llm, output, ended
        self._is_closed = False
        if processes:
            waiting = threading.Thread(
                target=self._wait, args=(processes,), name="vllm-end", daemon=True
            )
            waiting.start()

    @classmethod
    def start(
        cls, model: str, start: Callable[[], Any], ended: Callable[[str], None]
    ) -> "VllmProcesses":
        """Call `start`, which returns an `AsyncLLM`. Raises: Mismatch with vLLM's reason and a remedy."""
        output, before = CapturedOutput(), set(multiprocessing.active_children())
        vars(multiprocessing.current_process())["_config"]["semspec"] = EndsWithParent()
        try:
            with output.captured():
                llm = start()
        except SemspecError:
            raise
        except Exception as error:
            reason = (
                reason_in(str(error).splitlines())
                or output.reason()
                or " ".join(str(error).split())[:300]
            )
            raise Mismatch(
                f"vLLM cannot load {model}: {reason}", remedy=remedy_for(reason)
            ) from error
        processes = [child for child in multiprocessing.active_children() if child not in before]
        return cls(llm, processes, output, ended)

    def _wait(self, processes: Sequence[BaseProcess]) -> None:
        connection.wait([process.sentinel for process in processes])
        if not self._is_closed:
            self._ended(
                f"vLLM ended: {self._output.reason() or 'it was killed'}; restart the service"
            )

    async def outputs(
        self, tokens: list[int], parameters: Any, key: str
    ) -> AsyncGenerator[Any, None]:
        """Yield vLLM's outputs for a request. Raises: Unavailable when vLLM has ended."""
        if self._is_closed:
            raise Unavailable("the engine is shut down", remedy="retry on another replica")
        with _map_errors():
            async with aclosing(
                self._llm.generate({"prompt_token_ids": tokens}, parameters, key)
            ) as outputs:
                async for output in outputs:
                    yield output

    async def ask(self, method: str, *arguments: str | int) -> Any:
        """Call `method` of `SemspecWorker` in the first process, between two steps, and return its result.

        Raises: Unavailable.
        """
        with _map_errors():
            return (await self._llm.collective_rpc(method, args=arguments))[0]

    async def close(self) -> None:
        """End vLLM's processes, and all requests with them."""
        self._is_closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._llm.shutdown)


@contextmanager
def _map_errors() -> Iterator[None]:
    """Raises: Unavailable in place of vLLM's error after its end."""
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        yield
    except EngineDeadError as error:
        raise Unavailable("vLLM has ended", remedy="retry on another replica") from error


def remedy_for(reason: str) -> str:
    """Return a remedy for an error of vLLM."""
    known = (remedy for part, remedy in REMEDIES.items() if part in reason)
    return next(known, "choose another model, or set the engine to fast or transformers")
