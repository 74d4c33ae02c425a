"""Asyncio helpers: background tasks, several streams as one, work that ends with its client's connection."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.types import Receive

from semspec.errors import Cancelled, DeadlineExceeded

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


T = TypeVar("T")


class _End:
    """The last word of a source: its error, if it had one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


async def merged(
    sources: Sequence[AsyncGenerator[T, None]], deadline_s: float, cancelled_event: asyncio.Event
) -> AsyncGenerator[tuple[int, T], None]:
    """Items of all sources, each with its source's index, as they come; the first error ends them all.

    Closing this generator closes every source and waits for it.
    Raises: DeadlineExceeded, Cancelled when the event is set, and what the sources raise.
    """
    queue: asyncio.Queue[tuple[int, T | _End]] = asyncio.Queue(maxsize=len(sources))
    tasks = [asyncio.create_task(_pump(i, source, queue)) for i, source in enumerate(sources)]
    deadline = asyncio.get_running_loop().time() + deadline_s
    running = len(tasks)
    tasks.append(asyncio.create_task(_watch(cancelled_event, queue)))
    try:
        while running:
            index, item = await _next(queue, deadline)
            if not isinstance(item, _End):
                yield index, item
            elif item.error is not None:
                raise item.error
            else:
                running -= 1
    finally:
        await cancelled(*tasks)


async def _next(queue: "asyncio.Queue[tuple[int, T | _End]]", deadline: float) -> tuple[int, T | _End]:
    try:
        async with asyncio.timeout_at(deadline):
            return await queue.get()
    except TimeoutError:
        raise DeadlineExceeded("the generation took longer than this server allows; ask for fewer tokens") from None


async def _watch(cancelled_event: asyncio.Event, queue: "asyncio.Queue[tuple[int, T | _End]]") -> None:
    await cancelled_event.wait()
    await queue.put((0, _End(Cancelled("the generation was cancelled"))))


async def _pump(index: int, source: AsyncGenerator[T, None], queue: "asyncio.Queue[tuple[int, T | _End]]") -> None:
    end = _End()
    try:
        async with aclosing(source):
            async for item in source:
                await queue.put((index, item))
    except Exception as error:
        end = _End(error)
    await queue.put((index, end))


class ClientGone(Exception):
    """The client has closed the connection."""


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`; cancel it, and wait until it has cleaned up, as soon as the client hangs up.

    The request's body must have been read. Raises: ClientGone, and what `work` raises.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
