"""Work that goes on next to the requests of a process: an owner logs its failure, or starts it again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from threading import Thread
from time import monotonic, sleep

FIRST_DELAY_S, MAX_DELAY_S = 0.5, 30.0
STEADY_S = 60.0
"""Work that fails after it ran for at least this many seconds starts again after the first delay."""

_log = logging.getLogger(__name__)


class Backoff:
    """Delays before work that has ended starts again: each twice the one before."""

    def __init__(self) -> None:
        self._num_ends = 0

    def delay_s(self, ran_s: float) -> float:
        """Return the delay after work that ran for `ran_s` seconds."""
        self._num_ends = 1 if ran_s >= STEADY_S else self._num_ends + 1
        return min(FIRST_DELAY_S * 2.0 ** min(self._num_ends - 1, 16), MAX_DELAY_S)


async def keep_running(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` until it returns or this is cancelled. When it fails, log that under `name`, and run it again."""
    now, backoff = asyncio.get_running_loop().time, Backoff()
    while True:
        started_at = now()
        try:
            await work()
            return
        except Exception:
            delay_s = backoff.delay_s(now() - started_at)
            _log.exception("%s failed; it starts again in %g s", name, delay_s)
        await asyncio.sleep(delay_s)


def keep_thread_running(name: str, work: Callable[[], None]) -> None:
    """Run blocking `work` in a thread that does not keep the process alive; else as `keep_running`."""

    def run() -> None:
        backoff = Backoff()
        while True:
            started_at = monotonic()
            try:
                work()
                return
            except Exception:
                delay_s = backoff.delay_s(monotonic() - started_at)
                _log.exception("%s failed; it starts again in %g s", name, delay_s)
            sleep(delay_s)

    Thread(target=run, name=name, daemon=True).start()


class Background:
    """Tasks of one owner, such as a gateway. It references them against garbage collection, and ends them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Start work that goes on until it is cancelled, also when it fails; see `keep_running`."""
        return self.spawn(keep_running(name, work))

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start work that ends by itself, such as a final write to the store; its error is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def drain(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds for the tasks to end, then cancel them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        await cancel_tasks(*self._tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a background task failed", exc_info=error)


async def cancel_tasks(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait for their clean-up; their errors are reported elsewhere."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
