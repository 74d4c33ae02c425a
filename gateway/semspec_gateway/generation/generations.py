"""Begins a request's generations or attaches to existing ones, and runs them concurrently."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Self

from semspec.background import cancel_tasks
from semspec.errors import Cancelled, Conflict, DeadlineExceeded, NotFound
from semspec.types import FinishReason
from semspec_gateway.generation.admission import Admission
from semspec_gateway.generation.choice import Choice, ChoiceEvent, Ended, Place
from semspec_gateway.generation.preparation import Preparation, check_session_size, deadline_s
from semspec_gateway.generation.request import GenerationRequest
from semspec_gateway.generation.runner import ChoiceRunner
from semspec_gateway.generation.stored import (
    request_fields,
    stored_choice,
    stored_fields,
    stored_trace,
)
from semspec_gateway.readiness import Readiness
from semspec_gateway.served import Served
from semspec_gateway.store.leases import Account, Journal, Leases
from semspec_gateway.store.store import FIRST_FENCE, reading

POLL_S = 0.25
"""Longest wait for an event of a generation that runs elsewhere."""

Work = Callable[[Choice], Coroutine[None, None, None]]
"""Generates one choice, which emits its events."""


class Run:
    """An async context manager that generates all choices; leaving it cancels their calls to the models."""

    def __init__(
        self, choices: Sequence[Choice], work: Work, was_cancelled: asyncio.Event, deadline_s: float
    ) -> None:
        """`was_cancelled` is set when the request is cancelled, here or through another gateway."""
        self.choices = choices
        self.request, self.served = choices[0].request, choices[0].served
        self._work = work
        self._was_cancelled = was_cancelled
        self._deadline_s = deadline_s
        self._queue: asyncio.Queue[tuple[int, ChoiceEvent] | Exception | None] = asyncio.Queue()
        self._num_running = len(choices)
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
        error = DeadlineExceeded(
            "the generation took longer than this server allows", remedy="ask for fewer tokens"
        )
        self._timer = asyncio.get_running_loop().call_later(
            self._deadline_s, self._queue.put_nowait, error
        )
        self._tasks = [asyncio.create_task(self._generate(choice)) for choice in self.choices]
        self._tasks.append(asyncio.create_task(self._watch()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()
        await cancel_tasks(*self._tasks)

    async def _generate(self, choice: Choice) -> None:
        choice.start(lambda event: self._queue.put_nowait((choice.index, event)))
        try:
            await self._work(choice)
        except Exception as error:
            self._queue.put_nowait(error)
            return
        self._num_running -= 1
        if not self._num_running:
            self._queue.put_nowait(None)

    async def _watch(self) -> None:
        await self._was_cancelled.wait()
        self._queue.put_nowait(Cancelled("the generation was cancelled"))


@dataclass(frozen=True, slots=True)
class Generations:
    """All generations of this gateway."""

    runner: ChoiceRunner
    admission: Admission
    preparation: Preparation
    readiness: Readiness
    leases: Leases

    @asynccontextmanager
    async def begin(
        self, request: GenerationRequest, served: Served, shows_text: bool
    ) -> AsyncIterator[Run]:
        """Acquire the slots and the session of a request, then generate with what is `served`; `shows_text`: a client
        reads the text while it is written.

        Raises: every error with which a resolved request may be refused.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(
                self.admission.admitted(request.owner, request.num_choices)
            )
            lease = await self.leases.session(
                request.session, request.owner, f"{request.id} {FIRST_FENCE}", stack
            )
            turns = lease.turns if lease else ()
            check_session_size(request, turns, self.runner.settings.max_body_bytes)
            choices = await self.preparation.choices(request, turns, served)
            for choice in choices:
                choice.shows_text = shows_text
            was_cancelled, account = asyncio.Event(), _account(request)
            is_kept = await self.leases.keep_request(account, request_fields(choices))

            async def work(choice: Choice) -> None:
                journal = Journal(self.leases, choice.id, account, was_cancelled)
                await journal.begin(stored_fields(choice), is_kept)
                await self.runner.run(choice, journal, lease)

            async with Run(
                choices, work, was_cancelled, deadline_s(choices, self.runner.settings)
            ) as run:
                yield run

    @asynccontextmanager
    async def attach(
        self, id: str, seen: Sequence[Place] = (), shows_text: bool = False
    ) -> AsyncIterator[Run]:
        """Attach to a request's generations, by the id of one of them; `seen` is what the client has of each choice.

        Raises: NotFound, Conflict, Unavailable, Mismatch.
        """
        meta = await self.leases.store.generation(id)
        first = stored_choice(id, meta, self.readiness.known())
        choices = [
            await self._stored_choice(first, index, meta)
            for index in range(first.request.num_choices)
        ]
        for choice, place in zip(choices, seen, strict=False):
            choice.seen_by_client = place
        for choice in choices:
            choice.shows_text = shows_text
        was_cancelled = asyncio.Event()
        lock, have_slots = asyncio.Lock(), False
        async with AsyncExitStack() as stack:

            async def take_slots() -> None:
                """Acquire the slots of all choices at once: taken one by one, two requests could deadlock."""
                nonlocal have_slots
                async with lock:
                    if not have_slots:
                        admitted = self.admission.admitted(
                            first.request.owner, first.request.num_choices
                        )
                        await stack.enter_async_context(admitted)
                        have_slots = True

            async def work(choice: Choice) -> None:
                await self._follow(choice, was_cancelled, take_slots)

            async with Run(
                choices, work, was_cancelled, deadline_s(choices, self.runner.settings)
            ) as run:
                yield run

    async def _stored_choice(self, first: Choice, index: int, meta: Mapping[str, str]) -> Choice:
        """Return one choice of the request of `first`, whose fields are in `meta`.

        A choice that the request's gateway did not begin before it stopped is begun now.
        """
        request, id = first.request, first.request.choice_id(index)
        try:
            return stored_choice(
                id, {**meta, **await self.leases.store.state(id)}, first.served, request
            )
        except NotFound:
            choice = stored_choice(id, {**meta, "index": str(index)}, first.served, request)
            await Journal(self.leases, id, _account(request), asyncio.Event()).begin(
                stored_fields(choice)
            )
            return choice

    async def _follow(
        self,
        choice: Choice,
        was_cancelled: asyncio.Event,
        take_slots: Callable[[], Awaitable[None]],
    ) -> None:
        """Emit all events from the first segment on.

        Raises: Cancelled; Conflict when the stored trace has a gap, the client has more than was stored, or the session
        is in use; Overloaded; Unavailable; what the decoding loop raises.
        """
        event = "0"
        while isinstance(fence := await self._taken(choice), str):
            await self._emit_stored(choice)
            if fence == "ended":
                choice.emit(await self._outcome(choice))
                return
            event = await self.leases.store.next_event(choice.id, event, POLL_S)
        # This gateway is the writer now; if it fails, another may resume.
        async with AsyncExitStack() as stack:
            journal = Journal(
                self.leases, choice.id, _account(choice.request), was_cancelled, fence
            )
            journal.beat()
            stack.callback(journal.leave)
            await take_slots()
            await self._emit_stored(choice, choice.seen_by_client.num_segments)
            request = choice.request
            lease = await self.leases.session(
                request.session, request.owner, f"{request.id} {fence}", stack
            )
            await self.runner.run(choice, journal, lease)

    async def _taken(self, choice: Choice) -> int | str:
        """Return the fence of the generation's new writer, or "held" or "ended".

        Followers share one read of its state, so that only those that may become the writer try to.
        """
        status = (await self.leases.store.state(choice.id))["status"]
        if status == "running":
            return "held"
        return (
            "ended"
            if status in ("finished", "cancelled")
            else await self.leases.store.take(choice.id)
        )

    async def _emit_stored(self, choice: Choice, num_seen: int = 0) -> None:
        """Emit the segments stored since the last call.

        Raises: Conflict when fewer are stored than the client has seen: generating them again may give other segments,
        since some strategies depend on more than the seed.
        """
        records = await stored_trace(choice.id, self.leases.store, len(choice.records))
        num_stored = len(choice.records) + len(records)
        if num_seen > num_stored:
            message = f"only {num_stored} segments were stored, not the {num_seen} you have"
            raise Conflict(message, "last-event-id", remedy="start a new generation")
        for record in records:
            choice.add(record)

    async def _outcome(self, choice: Choice) -> Ended:
        meta = await self.leases.store.state(choice.id)
        if meta["status"] == "cancelled":
            raise Cancelled(f"generation {choice.id} was cancelled")
        with reading(f"generation {choice.id}"):
            is_degraded, reason = json.loads(meta["degraded"]), FinishReason(meta["finish_reason"])
        if is_degraded:
            raise Conflict(
                f"generation {choice.id} was not stored in full", "id", remedy="start a new one"
            )
        return choice.finish(reason)


def _account(request: GenerationRequest) -> Account:
    return Account(request.id, request.owner, request.num_choices)
