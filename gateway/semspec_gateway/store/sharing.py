"""Calls that several tasks wait for together."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Shared:
    """Makes equal calls once for all tasks that wait. A task that is cancelled does not end the call of the others."""

    def __init__(self, *, cancels_abandoned: bool = False) -> None:
        """`cancels_abandoned`: cancel a call that no task waits for any more, instead of letting it finish."""
        self._cancels_abandoned = cancels_abandoned
        self._joinable: dict[Hashable, asyncio.Task[Any]] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._num_waiting: Counter[asyncio.Task[Any]] = Counter()

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
                self._forget(key, task)
            try:
                return await call()
            finally:
                self._forget(key, task)

        joinable = self._joinable.get(key)
        task: asyncio.Task[T] = joinable or asyncio.create_task(run())
        if joinable is None:
            self._joinable[key] = task
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            # All callers may be cancelled.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._num_waiting[task] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._leave(key, task)

    def _leave(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        """Count a caller out, and cancel the call if it was the last one."""
        self._num_waiting[task] -= 1
        if self._num_waiting[task]:
            return
        del self._num_waiting[task]
        if self._cancels_abandoned:
            self._forget(
                key, task
            )  # a call that is cancelled before it begins does not do so itself
            task.cancel()

    def _forget(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        """Let later callers begin a new call."""
        if self._joinable.get(key) is task:
            del self._joinable[key]
