"""Begins a request's generations or attaches to existing ones, and runs them concurrently."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Self

from semspec.errors import Cancelled, Conflict, DeadlineExceeded, NotFound
from semspec.gateway.generation.admission import Admission
from semspec.gateway.generation.choice import ChoiceRunner, Emit
from semspec.gateway.generation.output import ChoiceEvent, ChoiceOutput, Ended
from semspec.gateway.generation.preparation import Preparation, check_session_size, deadline_s
from semspec.gateway.generation.request import ChoiceRequest, Request, stored_choice, stored_fields
from semspec.gateway.readiness import Readiness
from semspec.gateway.served import Served
from semspec.gateway.store.leases import Journal, Leases, SessionLease, cancel_tasks
from semspec.gateway.store.replies import reading
from semspec.gateway.store.store import FIRST_FENCE, Store
from semspec.records import SegmentTrace
from semspec.types import FinishReason

POLL_S = 0.25
"""Longest wait for an event of a generation that runs elsewhere."""

Work = Callable[[Emit], Coroutine[None, None, None]]
"""Generates one choice, and emits its events."""


class Run:
    """An async context manager that generates all choices; leaving it cancels their calls to the models."""

    def __init__(
        self,
        request: Request,
        served: Served,
        outputs: Sequence[ChoiceOutput],
        works: Sequence[Work],
        was_cancelled: asyncio.Event,
        deadline_s: float,
    ) -> None:
        """`was_cancelled` is set when the request is cancelled, here or through another gateway."""
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
        self._timer = asyncio.get_running_loop().call_later(self._deadline_s, self._time_out)
        self._tasks = [asyncio.create_task(self._generate(index, work)) for index, work in enumerate(self._works)]
        self._tasks.append(asyncio.create_task(self._watch()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()
        await cancel_tasks(*self._tasks)

    async def _generate(self, index: int, work: Work) -> None:
        try:
            await work(lambda event: self._queue.put_nowait((index, event)))
        except Exception as error:
            self._queue.put_nowait(error)
            return
        self._num_running -= 1
        if not self._num_running:
            self._queue.put_nowait(None)

    def _time_out(self) -> None:
        message = "the generation took longer than this server allows; ask for fewer tokens"
        self._queue.put_nowait(DeadlineExceeded(message))

    async def _watch(self) -> None:
        await self._was_cancelled.wait()
        self._queue.put_nowait(Cancelled("the generation was cancelled"))


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


class Generations:
    """All generations of this gateway."""

    def __init__(
        self,
        runner: ChoiceRunner,
        admission: Admission,
        preparation: Preparation,
        readiness: Readiness,
        leases: Leases,
        store: Store,
    ) -> None:
        self._runner = runner
        self._admission = admission
        self._preparation = preparation
        self._readiness = readiness
        self._leases = leases
        self._store = store

    @asynccontextmanager
    async def begin(self, request: Request, served: Served) -> AsyncIterator[Run]:
        """Acquire the slots and the session of a request, then generate with what is `served`.

        Raises: every error with which a resolved request may be refused.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._admission.admitted(request.owner, request.num_choices))
            lease = None
            if request.session is not None:
                writer = f"{request.id} {FIRST_FENCE}"
                lease = await self._leases.session(request.session, request.owner, writer, stack)
            turns = lease.turns if lease else ()
            check_session_size(request, turns, self._runner.settings.max_session_bytes)
            choices = await self._preparation.choices(request, turns, served)
            was_cancelled, outputs = asyncio.Event(), [choice.output() for choice in choices]
            works = [
                partial(self._begin, choice, output, self._leases.journal(choice.id, was_cancelled), lease)
                for choice, output in zip(choices, outputs, strict=True)
            ]
            limit_s = deadline_s(choices, self._runner.settings)
            async with Run(request, served, outputs, works, was_cancelled, limit_s) as run:
                yield run

    @asynccontextmanager
    async def attach(self, id: str, seen: Sequence[int] = ()) -> AsyncIterator[Run]:
        """Attach to a request's generations, by the id of one of them; `seen` counts the client's segments per choice.

        Raises: NotFound, Conflict, Unavailable, Mismatch.
        """
        served = self._readiness.known()
        first = stored_choice(id, await self._store.generation(id), served)
        choices = [await self._stored_choice(first, index) for index in range(first.request.num_choices)]
        was_cancelled, outputs = asyncio.Event(), [choice.output() for choice in choices]
        async with AsyncExitStack() as stack:
            slots = SharedSlots(self._admission, first.request, stack)
            works = [
                partial(self._follow, choice, output, num_seen, was_cancelled, slots)
                for choice, output, num_seen in zip(choices, outputs, [*seen, *[0] * len(choices)], strict=False)
            ]
            limit_s = deadline_s(choices, self._runner.settings)
            async with Run(first.request, served, outputs, works, was_cancelled, limit_s) as run:
                yield run

    async def _begin(
        self, choice: ChoiceRequest, output: ChoiceOutput, journal: Journal, lease: SessionLease | None, emit: Emit
    ) -> None:
        await journal.begin(stored_fields(choice))
        await self._runner.run(choice, output, journal, lease, emit)

    async def _stored_choice(self, first: ChoiceRequest, index: int) -> ChoiceRequest:
        """One choice of a request; it is begun now if the request's gateway stopped before beginning it."""
        request, id = first.request, first.request.choice_id(index)
        try:
            return stored_choice(id, await self._store.generation(id), first.served)
        except NotFound:
            if index // request.num_choices_per_prompt == first.index // request.num_choices_per_prompt:
                generation = request.generation(index, first.prompts, first.generation.max_tokens)
                choice = ChoiceRequest(index, request, generation, first.served, first.num_turns)
            else:
                choice = (await self._preparation.choices(request, (), first.served))[index]
            await self._leases.journal(choice.id, asyncio.Event()).begin(stored_fields(choice))
            return choice

    async def _follow(
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
            journal = self._leases.journal(choice.id, was_cancelled, fence)
            journal.beat()
            stack.callback(journal.leave)
            await slots.take()
            await self._emit_stored(output, emit, num_seen)
            lease, request = None, choice.request
            if request.session is not None:
                writer = f"{request.id} {fence}"
                lease = await self._leases.session(request.session, request.owner, writer, stack)
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
