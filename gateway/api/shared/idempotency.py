"""Idempotency keys: a request repeated under its key is answered by the generation that the first one began."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from time import monotonic
from typing import Annotated, TypeVar

from fastapi import Header

from semspec.errors import InvalidRequest, NotFound, Unavailable
from semspec.gateway.store.store import Store, reading

POLL_S = 0.1

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        description="a request repeated under its key is answered by the generation that the first one began",
    ),
]

T = TypeVar("T")


class IdempotencyKey:
    """One client's idempotency key. Keys of different API keys are separate."""

    def __init__(self, key: str, owner: str, content: tuple[str, ...], store: Store) -> None:
        """`content`: of the request with this key."""
        self._store = store
        self._digest = _digest(owner, key)
        self._content = _digest(*content)
        self._value = ""

    async def recall(self, new_id: str, timeout_s: float) -> tuple[str, bool]:
        """The id stored under the key, `new_id` for a new key, and whether its generation has begun.

        If the first request still waits for slots or for its prompt's encoding, waits up to `timeout_s` for it. If
        that request is refused meanwhile, this one gets the key.
        Raises: InvalidRequest when the key belongs to another request; Unavailable when Redis does not answer.
        """
        until = monotonic() + timeout_s
        self._value = json.dumps({"id": new_id, "request": self._content})
        while True:
            value = await self._store.remember(self._digest, self._value)
            with reading("this idempotency key"):
                stored = json.loads(value)
                id, content = str(stored["id"]), stored["request"]
            if content != self._content:
                raise InvalidRequest("this key was used for another request; take a new one", "Idempotency-Key")
            if id == new_id:
                return id, False
            try:
                await self._store.generation(id)
                has_begun = True
            except NotFound:
                has_begun = False
            if has_begun or monotonic() > until:  # after the timeout, its gateway is presumed dead
                self._value = value
                return id, has_begun
            await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def unless_refused(self, opened: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
        """The run that is `opened`. If it is refused, the key is deleted, since no generation began under it."""
        async with AsyncExitStack() as stack:
            try:
                run = await stack.enter_async_context(opened)
            except BaseException:
                with suppress(Unavailable):
                    await self._store.disown(self._digest, self._value)
                raise
            yield run


def _digest(*parts: str) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
