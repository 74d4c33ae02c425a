"""A generation's hold on a session: one at a time, renewed while it runs, given back when it ends."""

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack

from semspec.errors import Conflict, SemspecError
from semspec.gateway.store.journal import Background
from semspec.gateway.store.store import Store
from semspec.types import Message

_log = logging.getLogger(__name__)


class Sessions:
    """Claims on sessions, by the generations of this gateway."""

    def __init__(self, store: Store, background: Background, lease_s: float) -> None:
        self._store = store
        self._background = background
        self._lease_s = lease_s

    async def claimed(self, session: str, owner: str, writer: str, held: AsyncExitStack) -> "SessionLease":
        """The session an owner names, claimed for as long as `held` is open; `writer` is a generation and its fence.

        Raises: Conflict when another generation holds the session; Unavailable when Redis does not answer, since an
        answer without the conversation would be a wrong one.
        """
        lease = SessionLease(self._store, session, owner, f"{writer} {secrets.token_hex(4)}")
        held.callback(lambda: self._background.spawn(lease.release()))  # also of a claim that is under way
        await lease.claim(self._lease_s, self._background)
        return lease


def stored_name(session: str, owner: str) -> str:
    """What the store calls an owner's session: two owners' sessions are two, even if both call theirs the same."""
    return f"{owner}/{session}" if owner else session


class SessionLease:
    """One writer's claim on a session: begun with `claim`, ended with `commit` or `release`."""

    def __init__(self, store: Store, name: str, owner: str, token: str) -> None:
        """`token` names generation, fence and claim: the next writer of the generation may take the session over."""
        self._store = store
        self._name = name
        self._session = stored_name(name, owner)
        self._token = token
        self._heartbeat: asyncio.Task[None] | None = None
        self._open = True
        self.turns: tuple[Message, ...] = ()
        """The conversation so far."""

    async def claim(self, lease_s: float, background: Background) -> None:
        """Raises: Conflict, Unavailable."""
        try:
            self.turns = await self._store.claim(self._session, self._token, lease_s)
        except Conflict:
            message = f"session {self._name} is answering another request; wait for it or use another session"
            raise Conflict(message, "semspec.session") from None
        self._heartbeat = background.spawn(self._renew(lease_s))

    async def commit(self, turns: Sequence[Message], version: int) -> bool:
        """Append turns after the first `version` ones and give the session back; False if they could not be stored."""
        return await self._end(self._store.commit(self._session, self._token, version, turns))

    async def release(self) -> None:
        """Give the session back unchanged, if it was not committed."""
        if self._open:
            await self._end(self._store.release(self._session, self._token))

    async def _end(self, last_word: Coroutine[None, None, None]) -> bool:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        try:
            await last_word
        except SemspecError as error:
            _log.warning("session %s is not stored or given back: %s", self._session, error.message)
            return False
        self._open = False
        return True

    async def _renew(self, lease_s: float) -> None:
        while True:
            await asyncio.sleep(lease_s / 3)
            try:
                await self._store.renew(self._session, self._token, lease_s)
            except Conflict:
                _log.warning("session %s is held by another request by now", self._session)
                return
            except SemspecError as error:
                _log.warning("session %s is not renewed: %s", self._session, error.message)
