"""Attaches to an existing generation: emits its stored segments, then new ones from its writer or from this gateway."""

import asyncio
import json
from contextlib import AsyncExitStack

from semspec.errors import Cancelled, Conflict
from semspec.gateway.generation.admission import Admission
from semspec.gateway.generation.choice import ChoiceRunner, Emit
from semspec.gateway.generation.output import ChoiceOutput, Ended
from semspec.gateway.generation.request import ChoiceRequest, Request
from semspec.gateway.settings import GatewaySettings
from semspec.gateway.store.journal import Background, Journal
from semspec.gateway.store.replies import reading
from semspec.gateway.store.session_lease import Sessions
from semspec.gateway.store.store import Store
from semspec.records import SegmentTrace
from semspec.types import FinishReason

POLL_S = 0.25
"""Longest wait for an event of a generation that runs elsewhere."""


class SharedSlots:
    """Acquires the slots of all choices of a request at once, when this gateway resumes the first of them.

    Acquiring them one by one could deadlock two requests.
    """

    def __init__(self, admission: Admission, request: Request, stack: AsyncExitStack) -> None:
        """The slots are released when `stack` is closed."""
        self._lock = asyncio.Lock()
        self._admission, self._request, self._stack = admission, request, stack
        self._are_taken = False

    async def take(self) -> None:
        """Raises: Overloaded."""
        async with self._lock:
            if not self._are_taken:
                admitted = self._admission.admitted(self._request.owner, self._request.num_choices)
                await self._stack.enter_async_context(admitted)
                self._are_taken = True


class Attacher:
    """Follows or resumes choices that another connection or another gateway began."""

    def __init__(
        self, runner: ChoiceRunner, store: Store, sessions: Sessions, background: Background, settings: GatewaySettings
    ) -> None:
        self._runner = runner
        self._store = store
        self._sessions = sessions
        self._background = background
        self._settings = settings

    async def run(
        self,
        choice: ChoiceRequest,
        output: ChoiceOutput,
        num_seen: int,
        was_cancelled: asyncio.Event,
        slots: SharedSlots,
        emit: Emit,
    ) -> None:
        """Emit all events from the first segment on; the client already has `num_seen` segments.

        Raises: Cancelled; Conflict when the stored trace has a gap, the client has more than was stored, or the session
        is in use; Overloaded; Unavailable; what the decoding loop raises.
        """
        event = "0"
        while isinstance(fence := await self._store.take(choice.id), str):
            await self._emit_stored(output, emit)
            if fence == "ended":
                emit(await self._outcome(output))
                return
            event = await self._store.next_event(choice.id, event, POLL_S)
        async with AsyncExitStack() as stack:  # this gateway is the writer now; if it fails, another may resume
            journal = Journal(self._store, choice.id, was_cancelled, fence)
            journal.beat(self._settings.writer_lease_s / 3, self._background)
            stack.callback(journal.leave, self._background)
            await slots.take()
            await self._emit_stored(output, emit, num_seen)
            lease, request = None, choice.request
            if request.session is not None:
                writer = f"{request.id} {fence}"
                lease = await self._sessions.claimed(request.session, request.owner, writer, stack)
            await self._runner.run(choice, output, journal, lease, emit)

    async def _emit_stored(self, output: ChoiceOutput, emit: Emit, num_seen: int = 0) -> None:
        """Emit the segments stored since the last call.

        Raises: Conflict when fewer are stored than the client has seen: generating them again may give other segments,
        since some strategies depend on more than the seed.
        """
        lines = await self._store.trace(output.id, len(output.records))
        num_stored = len(output.records) + len(lines)
        if num_seen > num_stored:
            message = f"only {num_stored} segments were stored, not the {num_seen} you have; start a new generation"
            raise Conflict(message, "last-event-id")
        with reading(f"generation {output.id}"):
            records = [SegmentTrace.model_validate_json(line).record() for line in lines]
        for record in records:
            emit(output.add(record))

    async def _outcome(self, output: ChoiceOutput) -> Ended:
        meta = await self._store.generation(output.id)
        if meta["status"] == "cancelled":
            raise Cancelled(f"generation {output.id} was cancelled")
        with reading(f"generation {output.id}"):
            is_degraded, reason = json.loads(meta["degraded"]), FinishReason(meta["finish_reason"])
        if is_degraded:
            raise Conflict(f"generation {output.id} was not stored in full; start a new one", "id")
        return output.finish(reason)
