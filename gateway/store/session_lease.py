"""Leases on sessions: one generation at a time claims a session, renews the claim while it runs, then releases it."""

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
    """Creates the leases of this gateway's generations."""

    def __init__(self, store: Store, background: Background, lease_s: float) -> None:
        self._store = store
        self._background = background
        self._lease_s = lease_s

    async def claimed(self, session: str, owner: str, writer: str, stack: AsyncExitStack) -> "SessionLease":
        """Claim an owner's session until `stack` is closed; `writer` is a generation's id and fence.

        Raises: Conflict when another generation has the session; Unavailable when Redis does not answer, since an
        answer without the conversation would be wrong.
        """
        lease = SessionLease(self._store, session, owner, f"{writer} {secrets.token_hex(4)}")
        stack.callback(lambda: self._background.spawn(lease.release()))  # also if `claim` is interrupted
        await lease.claim(self._lease_s, self._background)
        return lease


def stored_name(session: str, owner: str) -> str:
    """The session's name in the store; sessions of different owners are separate, even with the same name."""
    return f"{owner}/{session}" if owner else session


class SessionLease:
    """One writer's lease on a session, from `claim` to `commit` or `release`."""

    def __init__(self, store: Store, name: str, owner: str, token: str) -> None:
        """`token` is "ID FENCE NONCE": the next writer of the same generation may take the session over."""
        self._store = store
        self._name, self._owner = name, owner
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
        """Append turns after the first `version` ones and release the session; False if they could not be stored."""
        if not await self._end(self._store.commit(self._session, self._token, version, turns)):
            return False
        try:
            await self._store.list_session(self._owner, self._name, self._session)
        except SemspecError as error:
            _log.warning("session %s is not in its owner's list: %s", self._session, error.message)
        return True

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
            _log.warning("session %s could not be stored or released: %s", self._session, error.message)
            return False
        self._open = False
        return True

    async def _renew(self, lease_s: float) -> None:
        while True:
            await asyncio.sleep(lease_s / 3)
            try:
                await self._store.renew(self._session, self._token, lease_s)
            except Conflict:
                _log.warning("session %s was claimed by another request", self._session)
                return
            except SemspecError as error:
                _log.warning("the lease of session %s was not renewed: %s", self._session, error.message)
