"""Leases of writers in Redis.

A generation's journal stores each record before it is sent, and its heartbeat renews the writer's lease. One generation
at a time claims a session, renews the claim while it runs, then releases it.
"""

import asyncio
import json
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial

from semspec.background import Background
from semspec.errors import Cancelled, Conflict, SemspecError, Unavailable
from semspec.types import Message, calls_json
from semspec_gateway.store.store import FIRST_FENCE, OVERHEAD_BYTES, Store, stored_name

SESSION_LEASE_S = 30.0
"""Seconds that a dead gateway holds its sessions."""
TURN_BYTES = 256
"""Bytes that Redis takes for a turn next to its text."""

_log = logging.getLogger(__name__)


def turn_bytes(turn: Message) -> int:
    """Bytes of a turn's texts."""
    calls = calls_json(turn.tool_calls)
    return len("".join((turn.content, calls, turn.tool_call_id, turn.name)).encode())


@dataclass(frozen=True, slots=True)
class Account:
    """The request whose bytes are counted together."""

    request: str
    owner: str
    num_choices: int

    @property
    def name(self) -> str:
        return f"generation {self.request} {self.num_choices}"


class Journal:
    """Stores a generation as long as its writer has the current fence.

    Without Redis the generation continues as `degraded`; it stops only when it is cancelled. What is missing then is
    stored in its order when a heartbeat, or the end, finds Redis again, so records have no gaps.
    """

    def __init__(
        self,
        leases: "Leases",
        generation: str,
        account: Account,
        cancelled: asyncio.Event,
        fence: int = FIRST_FENCE,
    ) -> None:
        """`cancelled` is set when the generation is cancelled, here or through another gateway."""
        self._leases, self._store = leases, leases.store
        self._generation, self._account = generation, account
        self._fence = fence
        self._num_uncounted_bytes = 0
        self.cancelled = cancelled
        self._heartbeat: asyncio.Task[None] | None = None
        self._is_stored = True
        self._has_ended = False
        self._missing: list[tuple[int, str]] = []
        self._storing = asyncio.Lock()
        self._is_refused = False
        """Whether Redis does not take what is missing, though it answers."""
        self.degraded = False
        """Whether something is missing in Redis."""

    async def begin(self, meta: Mapping[str, str], is_request_kept: bool = True) -> None:
        """Create the generation, unless what it shares with other choices is not stored. Raises: Conflict when its id
        exists."""
        if not is_request_kept:
            self._is_stored, self.degraded = False, True
            return
        try:
            await self._store.begin(self._generation, meta)
        except Unavailable as error:
            self._is_stored = False
            self._degrade(error)

    def beat(self) -> None:
        """Renew the writer's lease from time to time, until `finish` or `leave`."""
        if self._heartbeat is None and self._is_stored:
            interval_s = self._leases.writer_lease_s / 3
            name = f"the heartbeat of generation {self._generation}"
            self._heartbeat = self._leases.background.keep(name, partial(self._renew, interval_s))
            self._leases.num_running[self._account.request] += 1

    async def append(self, index: int, record: str) -> None:
        """Store the record of the next segment, as JSON."""
        self._missing.append((index, record))
        if not self.degraded:
            await self._catch_up()

    async def finish(self, status: str, **outcome: str) -> None:
        """Store the generation's outcome, if its beginning is stored."""
        self._stop()
        self._has_ended = True
        if self._is_stored and await self._catch_up():
            fields = {"status": status, "degraded": json.dumps(self.degraded), **outcome}
            await self._try(self._store.finish(self._generation, self._fence, fields))
            is_last = self._account.request not in self._leases.num_running
            self._leases.background.spawn(
                self._count(0.0 if is_last else self._leases.writer_lease_s)
            )

    def leave(self) -> None:
        """Release the generation; if it has not ended, another writer can resume it."""
        self._stop()
        if not self._has_ended and not self.cancelled.is_set():
            self._leases.background.spawn(self.finish("interrupted"))

    def _stop(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
            self._leases.num_running.subtract([self._account.request])
            if not self._leases.num_running[self._account.request]:
                del self._leases.num_running[self._account.request]

    async def _renew(self, interval_s: float) -> None:
        while not self.cancelled.is_set():
            await asyncio.sleep(interval_s)
            try:
                await self._store.hold(self._generation, self._fence)
                await self._catch_up()
                await self._count(self._leases.writer_lease_s)
            except Cancelled:
                self.cancelled.set()
            except Unavailable:
                pass  # the next record or heartbeat retries
            except SemspecError as error:
                self._is_refused = True
                self._degrade(error)
                return

    async def _catch_up(self) -> bool:
        """Store what is missing; False if Redis does not answer."""
        async with self._storing:
            while self._missing and not self._is_refused:
                if not await self._try(
                    self._store.append(self._generation, self._fence, *self._missing[0])
                ):
                    return self._is_refused or self.cancelled.is_set()
                self._num_uncounted_bytes += len(self._missing[0][1].encode())
                del self._missing[0]
        self.degraded = self._is_refused
        return True

    async def _count(self, use_s: float) -> None:
        """Count what was stored since the last time, and keep the request as long as this choice."""
        num_bytes, account = self._num_uncounted_bytes, self._account
        if await self._try(self._store.account(account.owner, account.name, num_bytes, use_s)):
            self._num_uncounted_bytes -= num_bytes
            await self._try(self._store.touch_request(account.request))

    async def _try(self, work: Awaitable[None]) -> bool:
        try:
            await work
            return True
        except Cancelled:
            self.cancelled.set()
        except SemspecError as error:
            self._is_refused = not isinstance(error, Unavailable)
            self._degrade(error)
        return False

    def _degrade(self, error: SemspecError) -> None:
        if not self.degraded:
            _log.warning("generation %s is not stored in full: %s", self._generation, error)
        self.degraded = True


class SessionLease:
    """One writer's lease on a session, from `claim` to `commit` or `release`."""

    def __init__(self, leases: "Leases", name: str, owner: str, token: str) -> None:
        """`token` is "ID FENCE NONCE": the next writer of the same generation may take the session over."""
        self._leases, self._store = leases, leases.store
        self._name, self._owner = name, owner
        self._session = stored_name(name, owner)
        self._token = token
        self._heartbeat: asyncio.Task[None] | None = None
        self._open = True
        self.is_claimed = False
        self.turns: tuple[Message, ...] = ()
        """The conversation so far."""

    async def claim(self) -> None:
        """Raises: Conflict, Unavailable."""
        try:
            self.turns = await self._store.claim(self._session, self._token, SESSION_LEASE_S)
        except Conflict:
            message = f"session {self._name} is answering another request"
            remedy = "wait for it or use another session"
            raise Conflict(message, "session", remedy=remedy) from None
        self.is_claimed = True
        await self._mark_used()
        name = f"the heartbeat of session {self._session}"
        self._heartbeat = self._leases.background.keep(name, partial(self._renew, SESSION_LEASE_S))

    async def _mark_used(self) -> None:
        """Keep earlier turns from being dropped for what other requests of the owner store meanwhile."""
        if self.turns:
            with suppress(SemspecError):
                await self._store.account(self._owner, f"session {self._name}", 0, SESSION_LEASE_S)

    async def commit(self, turns: Sequence[Message], version: int) -> bool:
        """Append turns after the first `version` ones and release the session; False if they could not be stored."""
        if not await self._end(self._commit(turns, version)):
            return False
        try:
            await self._store.list_session(self._owner, self._name, self._session)
        except SemspecError as error:
            _log.warning("session %s is not in its owner's list: %s", self._session, error)
        return True

    async def _commit(self, turns: Sequence[Message], version: int) -> None:
        """Raises: Conflict, Unavailable."""
        num_bytes = sum(turn_bytes(turn) + TURN_BYTES for turn in turns)
        await self._store.account(self._owner, f"session {self._name}", num_bytes)
        await self._store.commit(self._session, self._token, version, turns)

    async def release(self) -> None:
        """Release the session unchanged, if it was not committed."""
        if self._open:
            await self._end(self._store.release(self._session, self._token))

    async def _end(self, operation: Coroutine[None, None, None]) -> bool:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        try:
            await operation
        except SemspecError as error:
            _log.warning("session %s could not be stored or released: %s", self._session, error)
            return False
        self._open = False
        return True

    async def _renew(self, lease_s: float) -> None:
        while True:
            await asyncio.sleep(lease_s / 3)
            try:
                await self._store.renew(self._session, self._token, lease_s)
                await self._mark_used()
            except Conflict:
                _log.warning("session %s was claimed by another request", self._session)
                return
            except SemspecError as error:
                _log.warning("the lease of session %s was not renewed: %s", self._session, error)


@dataclass(frozen=True, slots=True)
class Leases:
    """What this gateway's generations hold while it writes them: their journals, and the leases of their sessions."""

    store: Store
    background: Background
    writer_lease_s: float
    num_running: Counter[str] = field(default_factory=Counter)
    """Choices that this gateway writes at present, by request."""

    async def keep_request(self, account: Account, fields: Mapping[str, str]) -> bool:
        """Store what all choices of a request share; False, with a line in the log, if that fails."""
        num_bytes = (
            sum(len(value.encode()) for value in fields.values())
            + OVERHEAD_BYTES * account.num_choices
        )
        try:
            await self.store.account(account.owner, account.name, num_bytes, self.writer_lease_s)
            await self.store.keep_request(account.request, fields)
        except SemspecError as error:
            _log.warning("generation %s is not stored in full: %s", account.request, error)
            return False
        return True

    async def session(
        self, session: str | None, owner: str, writer: str, stack: AsyncExitStack
    ) -> SessionLease | None:
        """Claim an owner's session, if there is one, until `stack` is closed; `writer` is a generation's id and fence.

        Raises: Conflict when another generation has the session; Unavailable when Redis does not answer, since an
        answer without the conversation would be wrong.
        """
        if session is None:
            return None
        lease = SessionLease(self, session, owner, f"{writer} {secrets.token_hex(4)}")

        async def release() -> None:
            task = self.background.spawn(lease.release())  # also if `claim` is interrupted
            if lease.is_claimed:  # the next request after an error finds the session free
                await asyncio.shield(task)

        stack.push_async_callback(release)
        await lease.claim()
        return lease
