"""Writes a generation to Redis in order, beside the loop: Redis may be slow or gone, decoding never waits for it."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from gateway.background import Background
from gateway.store import FIRST_FENCE, Store
from semspec.errors import SemspecError
from semspec.trace import Json

_log = logging.getLogger(__name__)

_MAX_WAITING = 64
"""Records that may wait for a slow Redis before the rest of the trace is given up."""

_Job = Callable[[], Awaitable[None]]


class Journal:
    """One generation's way to Redis. After a failure the trace ends there: a trace with a hole would be a lie."""

    def __init__(self, store: Store, generation: str, meta: Mapping[str, str], background: Background) -> None:
        self._store = store
        self._generation = generation
        self._jobs: asyncio.Queue[_Job | None] = asyncio.Queue()
        self._closed = False
        self.degraded = False
        """Whether something is missing in Redis."""
        self._jobs.put_nowait(partial(store.begin, generation, meta))
        self._task = background.spawn(self._work())

    def append(self, record: Json) -> None:
        """Queue the next record."""
        if self._jobs.qsize() >= _MAX_WAITING:
            self.degraded = True
            return
        version, line = record["index"], json.dumps(record)
        self._jobs.put_nowait(partial(self._append, int(str(version)), line))

    def close(self, status: str, **outcome: str) -> None:
        """Queue the generation's end; all but the first call do nothing."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put_nowait(partial(self._finish, {"status": status, **outcome}))
        self._jobs.put_nowait(None)

    async def flushed(self, timeout_s: float) -> None:
        """Wait until everything queued before `close` is stored, or it is clear that it is not."""
        _, late = await asyncio.wait((self._task,), timeout=timeout_s)
        self.degraded = self.degraded or bool(late)

    async def _work(self) -> None:
        while (job := await self._jobs.get()) is not None:
            try:
                await job()
            except SemspecError as error:
                self.degraded = True
                _log.warning("generation %s is not stored in full: %s", self._generation, error.message)

    async def _append(self, version: int, line: str) -> None:
        if not self.degraded:
            await self._store.append(self._generation, FIRST_FENCE, version, line)

    async def _finish(self, outcome: Mapping[str, str]) -> None:
        degraded = json.dumps(self.degraded)
        await self._store.finish(self._generation, FIRST_FENCE, {**outcome, "degraded": degraded})
