"""Calls that several tasks wait for together."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Shared:
    """Makes equal calls once for all tasks that wait. A task that is cancelled does not end the call of the others."""

    def __init__(self) -> None:
        self._joinable: dict[Hashable, asyncio.Task[Any]] = {}
        self._running: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Wait for calls whose callers were cancelled."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def result(
        self, key: Hashable, call: Callable[[], Awaitable[T]], *, joins_running: bool = False
    ) -> T:
        """Return the result of a call that begins after now; with `joins_running`, of the running one if there is one.

        Tasks that ask in the same moment share one call.
        """

        async def run() -> T:
            if not joins_running:
                del self._joinable[key]
            try:
                return await call()
            finally:
                if joins_running:
                    del self._joinable[key]

        task = self._joinable.get(key)
        if task is None:
            task = self._joinable[key] = asyncio.create_task(run())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            # All callers may be cancelled.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        result: T = await asyncio.shield(task)
        return result
