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

    async def fresh(self, key: Hashable, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call that begins after now. All who ask in the same moment share it."""
        return await self._result(key, call, is_joined_underway=False)

    async def underway(self, key: Hashable, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the call under way if there is one, else of a new call."""
        return await self._result(key, call, is_joined_underway=True)

    async def close(self) -> None:
        """Wait for calls whose callers were cancelled."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _result(
        self, key: Hashable, call: Callable[[], Awaitable[T]], is_joined_underway: bool
    ) -> T:
        async def run() -> T:
            if not is_joined_underway:
                del self._joinable[key]
            try:
                return await call()
            finally:
                if is_joined_underway:
                    del self._joinable[key]

        task = self._joinable.get(key)
        if task is None:
            task = self._joinable[key] = asyncio.create_task(run())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            task.add_done_callback(
                lambda done: done.cancelled() or done.exception()
            )  # all callers may be cancelled
        result: T = await asyncio.shield(task)
        return result
