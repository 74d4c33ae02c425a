"""Idempotency keys: a request repeated under its key is answered by the generation that the first one began."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Header

from semspec.errors import InvalidRequest, NotFound, Unavailable
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


@dataclass(slots=True)
class _Waiting:
    """The requests of this gateway that wait under one key: one asks Redis, and all wait for what it finds."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held to ask for the key."""
    num_requests: int = 0
    value: str = ""
    """The key's value that the watch is about."""
    watch: "asyncio.Task[bool] | None" = None
    """Finds out whether the generation under `value` has begun; False once the key has another value or none."""


class IdempotencyKeys:
    """The keys under which requests of this gateway wait."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._waiting: dict[str, _Waiting] = {}

    @contextmanager
    def waiting(self, digest: str) -> Iterator[_Waiting]:
        """Yield the state that the requests under a key share while they wait. The last one to leave ends the watch."""
        waiting = self._waiting.setdefault(digest, _Waiting())
        waiting.num_requests += 1
        try:
            yield waiting
        finally:
            waiting.num_requests -= 1
            if not waiting.num_requests:
                del self._waiting[digest]
                if waiting.watch is not None:
                    waiting.watch.cancel()

    async def watch(self, digest: str, value: str) -> bool:
        """Wait until the generation under a key has begun; False if the key gets another value or none before.

        Raises: Unavailable.
        """
        id, _ = _parsed(value)
        while True:
            with suppress(NotFound):
                await self.store.state(id)
                return True
            await asyncio.sleep(POLL_S)
            if await self.store.recall(digest) != value:
                return False


class IdempotencyKey:
    """One client's idempotency key. Keys of different API keys are separate."""

    def __init__(
        self, key: str, owner: str, content: tuple[str, ...], keys: IdempotencyKeys
    ) -> None:
        """`content`: texts that identify the request with this key."""
        self._keys, self._store = keys, keys.store
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
        with self._keys.waiting(self._digest) as waiting:
            while True:
                async with waiting.turn:
                    if waiting.watch is None or waiting.watch.done():
                        waiting.value = await self._store.remember(self._digest, self._value)
                        if waiting.value == self._value:
                            return new_id, False
                        waiting.watch = asyncio.create_task(
                            self._keys.watch(self._digest, waiting.value)
                        )
                    value, watch = waiting.value, waiting.watch
                id, content = _parsed(value)
                if content != self._content:
                    raise InvalidRequest(
                        "this key was used for another request",
                        "Idempotency-Key",
                        remedy="use a new one",
                    )
                try:
                    async with asyncio.timeout(timeout_s):
                        has_begun = await asyncio.shield(watch)
                except TimeoutError:
                    if await self._store.replace(self._digest, value, self._value):
                        return new_id, False
                else:
                    if has_begun:
                        return id, True

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
