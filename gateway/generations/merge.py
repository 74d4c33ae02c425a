"""Several streams as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from gateway.background import cancelled
from semspec.errors import Cancelled, DeadlineExceeded

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
