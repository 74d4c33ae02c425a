"""Background tasks of the process."""

import asyncio
import logging
from collections.abc import Coroutine

_log = logging.getLogger(__name__)


class Background:
    """Keeps tasks from being collected, logs what goes wrong in them, and waits for them at shutdown."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def drain(self, timeout_s: float) -> None:
        """Let the tasks end by themselves for a while, then cancel them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        await cancelled(*self._tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a background task failed", exc_info=error)


async def cancelled(*tasks: "asyncio.Task[None]") -> None:
    """Cancel tasks and wait until each has cleaned up; their errors have been seen elsewhere."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
