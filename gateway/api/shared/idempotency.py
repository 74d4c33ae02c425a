"""Idempotency keys: a request repeated under its key is answered by the generation that the first one began."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from time import monotonic

from pydantic import BaseModel

from semspec.errors import InvalidRequest, NotFound, Unavailable
from semspec.gateway.generation.generations import Run
from semspec.gateway.generation.request import Request
from semspec.gateway.store.replies import reading
from semspec.gateway.store.store import Store

HEADER = "idempotency-key"
MAX_KEY_LENGTH = 255
POLL_S = 0.1


class IdempotencyKey:
    """One client's idempotency key. Keys of different API keys are separate."""

    def __init__(self, key: str, request: Request, body: BaseModel, store: Store) -> None:
        """`request` carries the key, and `body` is its body. Raises: InvalidRequest."""
        if len(key) > MAX_KEY_LENGTH:
            raise InvalidRequest(f"the key is longer than {MAX_KEY_LENGTH} characters", "Idempotency-Key")
        self._request = request
        self._store = store
        self._digest = _digest(request.owner, key)
        self._content = _digest(request.api, body.model_dump_json(exclude_unset=True))

    @property
    def _value(self) -> str:
        return json.dumps({"id": self._request.id, "request": self._content})

    async def recall(self, timeout_s: float) -> tuple[Request, bool]:
        """The request with the id stored under the key, and whether its generation has begun.

        If the first request still waits for slots or for its prompt's encoding, waits up to `timeout_s` for it. If
        that request is refused meanwhile, this one gets the key.
        Raises: InvalidRequest when the key belongs to another request; Unavailable when Redis does not answer.
        """
        until = monotonic() + timeout_s
        while True:
            value = await self._store.remember(self._digest, self._value)
            with reading("this idempotency key"):
                stored = json.loads(value)
                id, content = str(stored["id"]), stored["request"]
            if content != self._content:
                raise InvalidRequest("this key was used for another request; take a new one", "Idempotency-Key")
            if id == self._request.id:
                return self._request, False
            has_begun = await self._has_begun(id)
            if has_begun or monotonic() > until:  # after the timeout, its gateway is presumed dead
                self._request = replace(self._request, id=id)
                return self._request, has_begun
            await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def unless_refused(self, opened: AbstractAsyncContextManager[Run]) -> AsyncIterator[Run]:
        """The run. If it is refused, the key is deleted, since no generation began under it."""
        async with AsyncExitStack() as stack:
            try:
                run = await stack.enter_async_context(opened)
            except BaseException:
                with suppress(Unavailable):
                    await self._store.disown(self._digest, self._value)
                raise
            yield run

    async def _has_begun(self, id: str) -> bool:
        try:
            await self._store.generation(id)
        except NotFound:
            return False
        return True


def _digest(*parts: str) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
