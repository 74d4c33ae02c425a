"""Writes a generation to Redis: each record is stored before it is sent, and a heartbeat renews the writer's lease."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Coroutine, Mapping

from semspec.errors import Cancelled, SemspecError, Unavailable
from semspec.gateway.store.store import FIRST_FENCE, Store

_log = logging.getLogger(__name__)


class Background:
    """Tasks that outlive the request that started them, such as heartbeats and final writes to the store.

    It references them against garbage collection, logs their errors, and waits for them at shutdown.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
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


async def cancel_tasks(*tasks: "asyncio.Task[None]") -> None:
    """Cancel tasks and wait for their clean-up; their errors are reported elsewhere."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Journal:
    """Stores a generation as long as its writer has the current fence.

    After a failure nothing more is stored, so records have no gaps. Without Redis the generation continues as
    `degraded`; it stops only when it is cancelled.
    """

    def __init__(self, store: Store, generation: str, cancelled: asyncio.Event, fence: int = FIRST_FENCE) -> None:
        """`cancelled` is set when the generation is cancelled, here or through another gateway."""
        self._store = store
        self._generation = generation
        self._fence = fence
        self._cancelled = cancelled
        self._heartbeat: asyncio.Task[None] | None = None
        self._is_stored = True
        self._has_ended = False
        self.degraded = False
        """Whether something is missing in Redis."""

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    async def begin(self, meta: Mapping[str, str]) -> None:
        """Create the generation. Raises: Conflict when its id exists."""
        try:
            await self._store.begin(self._generation, meta)
        except Unavailable as error:
            self._is_stored = False
            self._degrade(error)

    def beat(self, interval_s: float, background: Background) -> None:
        """Renew the writer's lease every `interval_s` seconds, until `finish` or `leave`."""
        if self._heartbeat is None and self._is_stored:
            self._heartbeat = background.spawn(self._renew(interval_s))

    async def append(self, index: int, record: str) -> None:
        """Store the record of the next segment, as JSON."""
        if not self.degraded:
            await self._try(self._store.append(self._generation, self._fence, index, record))

    async def finish(self, status: str, **outcome: str) -> None:
        """Store the generation's outcome, if its beginning is stored."""
        self._stop()
        self._has_ended = True
        if self._is_stored:
            fields = {"status": status, "degraded": json.dumps(self.degraded), **outcome}
            await self._try(self._store.finish(self._generation, self._fence, fields))

    def leave(self, background: Background) -> None:
        """Release the generation; if it has not ended, another writer can resume it."""
        self._stop()
        if not self._has_ended and not self.is_cancelled:
            background.spawn(self.finish("interrupted"))

    def _stop(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()

    async def _renew(self, interval_s: float) -> None:
        while not self._cancelled.is_set():
            await asyncio.sleep(interval_s)
            try:
                await self._store.hold(self._generation, self._fence)
            except Cancelled:
                self._cancelled.set()
            except Unavailable:
                pass  # the next record or heartbeat retries
            except SemspecError as error:
                _log.warning("%s; this gateway no longer stores it", error.message)
                self.degraded = True
                return

    async def _try(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Cancelled:
            self._cancelled.set()
        except SemspecError as error:
            self._degrade(error)

    def _degrade(self, error: SemspecError) -> None:
        self.degraded = True
        _log.warning("generation %s is not stored in full: %s", self._generation, error.message)
