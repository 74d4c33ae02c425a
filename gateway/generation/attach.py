"""Attaches to an existing generation: its stored segments, then new ones, by its writer or by this gateway."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from gateway.generations.call import Call
from gateway.generations.choice import Choice, ChoiceEvent, Ended, Kept, Order, kept
from gateway.generations.sessions import held_session
from gateway.generations.statistics import Summary
from gateway.parts import Parts
from gateway.storage.journal import Journal
from semspec.errors import Cancelled, Conflict
from semspec.records import record_from_json
from semspec.types import FinishReason


class SharedSlots:
    """Slots for all choices of a request, acquired at once when the first choice has to be written here. Acquiring them
    one by one could deadlock two requests."""

    def __init__(self, call: Call, parts: Parts, held: AsyncExitStack) -> None:
        """It is given back when `held` is closed."""
        self._waiting = asyncio.Lock()
        self._call, self._parts, self._held = call, parts, held
        self._is_taken = False

    async def take(self) -> None:
        """Raises: Overloaded."""
        async with self._waiting:
            if not self._is_taken:
                room = self._parts.admission.admitted(self._call.owner, self._call.num_choices)
                await self._held.enter_async_context(room)
                self._is_taken = True


class Attached:
    """One choice of a request that another connection, or another gateway, began."""

    def __init__(
        self,
        order: Order,
        summary: Summary,
        cancelled: asyncio.Event,
        parts: Parts,
        room: SharedSlots,
        num_seen: int = 0,
    ) -> None:
        """`num_seen` segments are with the client already."""
        self._order = order
        self._summary = summary
        self._cancelled = cancelled
        self._parts = parts
        self._room = room
        self._num_seen = num_seen

    async def events(self) -> AsyncGenerator[ChoiceEvent, None]:
        """Everything from the first segment on.

        Raises: Cancelled; Conflict when the stored trace has a gap, the client has more than was stored, or the session
        is in use; Overloaded; Unavailable; what the loop raises.
        """
        while isinstance(fence := await self._parts.store.take(self._order.id), str):
            for known in await self._stored():
                yield known
            if fence == "ended":
                yield await self._outcome()
                return
            await asyncio.sleep(self._parts.settings.attach_poll_s)
        async with aclosing(self._go_on(fence)) as events:
            async for event in events:
                yield event

    async def _stored(self) -> list[Kept]:
        """Segments that were not here at the last look."""
        lines = await self._parts.store.trace(self._order.id, len(self._summary.records))
        return [kept(self._summary, record_from_json(line)) for line in lines]

    async def _outcome(self) -> Ended:
        meta = await self._parts.store.generation(self._order.id)
        if meta["status"] == "cancelled":
            raise Cancelled(f"generation {self._order.id} was cancelled")
        if json.loads(meta["degraded"]):
            raise Conflict(f"generation {self._order.id} was not stored in full; start a new one", "id")
        reason = FinishReason(meta["finish_reason"])
        return Ended(reason, self._summary.finish(reason))

    async def _go_on(self, fence: int) -> AsyncGenerator[ChoiceEvent, None]:
        """As the generation's writer, whatever becomes of it: what this one does not end, another may go on with."""
        async with AsyncExitStack() as held:
            journal = Journal(self._parts.store, self._order.id, self._cancelled, fence)
            journal.beat(self._parts.settings.writer_lease_s / 3, self._parts.background)
            held.callback(journal.leave, self._parts.background)
            await self._room.take()
            stored = await self._stored()
            self._check_seen()
            for known in stored:
                yield known
            lease = await held_session(self._order.call, fence, self._parts, held)
            choice = Choice(self._order, self._summary, journal, self._parts)
            async with aclosing(choice.events(lease)) as events:
                async for event in events:
                    yield event

    def _check_seen(self) -> None:
        """What is written anew need not be what the client has: some strategies go by more than the seed."""
        num_stored = len(self._summary.records)
        if self._num_seen > num_stored:
            message = (
                f"only {num_stored} segments were stored, not the {self._num_seen} you have; start a new generation"
            )
            raise Conflict(message, "last-event-id")
