"""Slots for costly work, shared fairly by several owners."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSlots:
    """A semaphore whose owners take turns.

    No owner holds all slots, so that another owner can start at once next to a busy one. State changes contain no
    await, so they are atomic on the event loop.
    """

    def __init__(self, num_slots: int) -> None:
        """`num_slots`: at least 2."""
        self._num_slots, self._max_per_owner = num_slots, num_slots - 1
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Waiters of each owner, in order of arrival; the owner who is next comes first."""

    @asynccontextmanager
    async def hold(self, owner: str) -> AsyncIterator[None]:
        """Hold a slot for `owner` in the block, after waiting for it."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(waiter)
        self._assign()
        try:
            await waiter
            yield
        finally:
            if waiter.done() and not waiter.cancelled():
                self._running[owner] -= 1
            else:
                self._leave(owner, waiter)
            self._assign()

    def _assign(self) -> None:
        """Give free slots to waiters, one owner after another."""
        while self._running.total() < self._num_slots and (owner := self._next_owner()) is not None:
            waiters = self._waiting.pop(owner)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[owner] = waiters
            if not waiter.cancelled():
                self._running[owner] += 1
                waiter.set_result(None)
        self._running += Counter()  # forgets owners without a slot

    def _next_owner(self) -> str | None:
        return next(
            (owner for owner in self._waiting if self._running[owner] < self._max_per_owner), None
        )

    def _leave(self, owner: str, waiter: "asyncio.Future[None]") -> None:
        """Remove a waiter that was cancelled."""
        waiters = self._waiting.get(owner, deque())
        if waiter in waiters:
            waiters.remove(waiter)
        if not waiters:
            self._waiting.pop(owner, None)
