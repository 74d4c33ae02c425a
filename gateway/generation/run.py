"""The choices of one request, side by side: a task each, their events in one queue."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Self

from gateway.background import cancelled
from gateway.generation.choice import Emit
from gateway.generation.output import ChoiceEvent, ChoiceOutput
from gateway.generation.request import Request
from gateway.readiness import Served
from semspec.errors import Cancelled, DeadlineExceeded

Work = Callable[[Emit], Coroutine[None, None, None]]
"""Generates one choice, and emits its events."""


class Run:
    """An async context: inside, the choices are generated; leaving it cancels what the models do for them."""

    def __init__(
        self,
        request: Request,
        served: Served,
        outputs: Sequence[ChoiceOutput],
        works: Sequence[Work],
        was_cancelled: asyncio.Event,
        deadline_s: float,
    ) -> None:
        """`was_cancelled` is set when the request turns out to have been cancelled, here or through another gateway."""
        self.request = request
        self.served = served
        self.outputs = outputs
        self._works = works
        self._was_cancelled = was_cancelled
        self._deadline_s = deadline_s
        self._queue: asyncio.Queue[tuple[int, ChoiceEvent] | Exception | None] = asyncio.Queue()
        self._num_running = len(works)
        self._tasks: list[asyncio.Task[None]] = []

    async def next(self) -> tuple[int, ChoiceEvent] | None:
        """The next event of any choice, with the choice's index; None after the last.

        Raises: the first error of a choice; Cancelled, DeadlineExceeded.
        """
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def __aenter__(self) -> Self:
        message = "the generation took longer than this server allows; ask for fewer tokens"
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._deadline_s, self._queue.put_nowait, DeadlineExceeded(message))
        self._tasks = [asyncio.create_task(self._generate(index, work)) for index, work in enumerate(self._works)]
        self._tasks.append(asyncio.create_task(self._watch()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()
        await cancelled(*self._tasks)

    async def _generate(self, index: int, work: Work) -> None:
        try:
            await work(lambda event: self._queue.put_nowait((index, event)))
        except Exception as error:
            self._queue.put_nowait(error)
            return
        self._num_running -= 1
        if not self._num_running:
            self._queue.put_nowait(None)

    async def _watch(self) -> None:
        await self._was_cancelled.wait()
        self._queue.put_nowait(Cancelled("the generation was cancelled"))
