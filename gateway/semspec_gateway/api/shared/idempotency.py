"""Idempotency keys: a request repeated under its key is answered by the generation that the first one began."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from functools import partial
from typing import Annotated, TypeVar

from fastapi import Header

from semspec.errors import InvalidRequest, NotFound, Unavailable
from semspec_gateway.store.sharing import Shared
from semspec_gateway.store.store import Store, reading

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

    def __init__(
        self, key: str, owner: str, content: tuple[str, ...], store: Store, calls: Shared
    ) -> None:
        """`content`: texts that identify the request with this key; `calls`: those of all requests of this gateway."""
        self._store, self._calls = store, calls
        self._digest = _digest(owner, key)
        self._content = _digest(*content)
        self._value = ""

    async def recall(self, new_id: str, timeout_s: float) -> tuple[str, bool]:
        """The id stored under the key, `new_id` for a new key, and whether its generation has begun.

        If the first request still waits for slots or for its prompt's encoding, waits up to `timeout_s` for it. If
        that request is refused meanwhile, or its gateway is dead after this time, this one gets the key.
        Raises: InvalidRequest when the key belongs to another request; Unavailable when Redis does not answer.
        """
        self._value = json.dumps({"id": new_id, "request": self._content})
        while True:
            remember = partial(self._store.remember, self._digest, self._value)
            value = await self._calls.result(("value", self._digest), remember)
            if value == self._value:
                return new_id, False
            id, content = _parsed(value)
            if content != self._content:
                raise InvalidRequest(
                    "this key was used for another request",
                    "Idempotency-Key",
                    remedy="use a new one",
                )
            has_begun = await self._calls.result(
                ("begun", self._digest, value),
                partial(self._has_begun, id, value, timeout_s),
                joins_running=True,
            )
            if has_begun:
                return id, True
            if has_begun is None and await self._store.replace(self._digest, value, self._value):
                return new_id, False

    async def _has_begun(self, id: str, value: str, timeout_s: float) -> bool | None:
        """Wait until the generation under the key's `value` has begun.

        Returns: False once the key has another value or none; None after `timeout_s`. Raises: Unavailable.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    with suppress(NotFound):
                        await self._store.state(id)
                        return True
                    await asyncio.sleep(POLL_S)
                    if await self._store.recall(self._digest) != value:
                        return False
        return None

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


def _parsed(value: str) -> tuple[str, str]:
    """Return the id and the content of a key's value. Raises: Unavailable when it cannot be read."""
    with reading("this idempotency key"):
        stored = json.loads(value)
        return str(stored["id"]), str(stored["request"])


def _digest(*parts: str) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
