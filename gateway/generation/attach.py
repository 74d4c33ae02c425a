"""Attaches to an existing generation: its stored segments, then new ones, by its writer or by this gateway."""

import asyncio
import json
from contextlib import AsyncExitStack

from gateway.background import Background
from gateway.generation.admission import Admission
from gateway.generation.choice import ChoiceRunner, Emit
from gateway.generation.output import ChoiceOutput, Ended
from gateway.generation.request import ChoiceRequest, Request
from gateway.settings import GatewaySettings
from gateway.store.journal import Journal
from gateway.store.session_lease import held_session
from gateway.store.store import Store
from semspec.errors import Cancelled, Conflict
from semspec.records import SegmentTrace
from semspec.types import FinishReason


class SharedSlots:
    """Slots for all choices of a request, acquired at once when the first choice has to be written here. Acquiring them
    one by one could deadlock two requests."""

    def __init__(self, admission: Admission, request: Request, held: AsyncExitStack) -> None:
        """They are given back when `held` is closed."""
        self._waiting = asyncio.Lock()
        self._admission, self._request, self._held = admission, request, held
        self._are_taken = False

    async def take(self) -> None:
        """Raises: Overloaded."""
        async with self._waiting:
            if not self._are_taken:
                admitted = self._admission.admitted(self._request.owner, self._request.num_choices)
                await self._held.enter_async_context(admitted)
                self._are_taken = True


class Attached:
    """One choice of a request that another connection, or another gateway, began."""

    def __init__(
        self,
        choice: ChoiceRequest,
        output: ChoiceOutput,
        was_cancelled: asyncio.Event,
        num_seen: int,
        slots: SharedSlots,
        runner: ChoiceRunner,
        store: Store,
        background: Background,
        settings: GatewaySettings,
    ) -> None:
        """`num_seen` segments are with the client already."""
        self._choice = choice
        self._output = output
        self._was_cancelled = was_cancelled
        self._num_seen = num_seen
        self._slots = slots
        self._runner = runner
        self._store = store
        self._background = background
        self._settings = settings

    async def run(self, emit: Emit) -> None:
        """Emit everything from the first segment on.

        Raises: Cancelled; Conflict when the stored trace has a gap, the client has more than was stored, or the session
        is in use; Overloaded; Unavailable; what the loop raises.
        """
        while isinstance(fence := await self._store.take(self._choice.id), str):
            await self._emit_stored(emit)
            if fence == "ended":
                emit(await self._outcome())
                return
            await asyncio.sleep(self._settings.attach_poll_s)
        await self._go_on(fence, emit)

    async def _emit_stored(self, emit: Emit) -> None:
        """Segments that were not here at the last look."""
        for line in await self._store.trace(self._choice.id, len(self._output.records)):
            emit(self._output.add(SegmentTrace.model_validate_json(line).record()))

    async def _outcome(self) -> Ended:
        meta = await self._store.generation(self._choice.id)
        if meta["status"] == "cancelled":
            raise Cancelled(f"generation {self._choice.id} was cancelled")
        if json.loads(meta["degraded"]):
            raise Conflict(f"generation {self._choice.id} was not stored in full; start a new one", "id")
        return self._output.finish(FinishReason(meta["finish_reason"]))

    async def _go_on(self, fence: int, emit: Emit) -> None:
        """As the generation's writer, whatever becomes of it: what this one does not end, another may go on with."""
        async with AsyncExitStack() as held:
            journal = Journal(self._store, self._choice.id, self._was_cancelled, fence)
            journal.beat(self._settings.writer_lease_s / 3, self._background)
            held.callback(journal.leave, self._background)
            await self._slots.take()
            # Emitted only once the client is known to have no more than was stored.
            lines = await self._store.trace(self._choice.id, len(self._output.records))
            self._check_seen(len(self._output.records) + len(lines))
            for line in lines:
                emit(self._output.add(SegmentTrace.model_validate_json(line).record()))
            request = self._choice.request
            lease = await held_session(
                request.session, request.owner, f"{request.id} {fence}", self._store, self._background,
                self._settings.session_lease_s, held,
            )  # fmt: skip
            await self._runner.run(self._choice, self._output, journal, lease, emit)

    def _check_seen(self, num_stored: int) -> None:
        """What is written anew need not be what the client has: some strategies go by more than the seed."""
        if self._num_seen > num_stored:
            message = (
                f"only {num_stored} segments were stored, not the {self._num_seen} you have; start a new generation"
            )
            raise Conflict(message, "last-event-id")
