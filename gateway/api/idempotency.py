"""A request sent again under the same key is the same request: it is answered by the generation it began."""

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
from semspec.gateway.store.store import Store

HEADER = "idempotency-key"
MAX_KEY_LENGTH = 255
POLL_S = 0.1


class IdempotencyKey:
    """What one client's key stands for. Callers with other API keys know nothing of it."""

    def __init__(self, key: str, request: Request, body: BaseModel, store: Store) -> None:
        """`request` is the one that came with the key, and `body` its body. Raises: InvalidRequest."""
        if len(key) > MAX_KEY_LENGTH:
            raise InvalidRequest(f"the key is longer than {MAX_KEY_LENGTH} characters", "Idempotency-Key")
        self._request = request
        self._store = store
        self._digest = _digest(request.owner, key)
        self._content = _digest(request.api, body.model_dump_json(exclude_unset=True))

    @property
    def _value(self) -> str:
        return json.dumps({"id": self._request.id, "request": self._content})

    async def recalled(self, patience_s: float) -> tuple[Request, bool]:
        """The request under the id that the key stands for, and whether it has begun already.

        The first request may still wait for slots, or for its prompt to be read: it is waited for, as long as that can
        take, and should it be refused meanwhile, the key is this one's.
        Raises: InvalidRequest when the key stands for another request; Unavailable when Redis cannot tell.
        """
        until = monotonic() + patience_s
        while True:
            known = json.loads(await self._store.remember(self._digest, self._value))
            if known["request"] != self._content:
                raise InvalidRequest("this key was used for another request; take a new one", "Idempotency-Key")
            if known["id"] == self._request.id:
                return self._request, False
            has_begun = await self._has_begun(known["id"])
            if has_begun or monotonic() > until:  # else its gateway is gone
                self._request = replace(self._request, id=known["id"])
                return self._request, has_begun
            await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def unless_refused(self, opened: AbstractAsyncContextManager[Run]) -> AsyncIterator[Run]:
        """The run. One that is refused gives its key back, since nothing was begun under it."""
        async with AsyncExitStack() as held:
            try:
                run = await held.enter_async_context(opened)
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
