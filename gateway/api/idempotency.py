"""A request sent again under the same key is the same request: it is answered by the generation it began."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from time import monotonic

from gateway.generations.call import Call
from gateway.generations.run import Run
from gateway.http.schemas import GenerationRequest
from gateway.storage.store import Store
from semspec.errors import InvalidRequest, NotFound, Unavailable

HEADER = "idempotency-key"
MAX_KEY_LENGTH = 255
POLL_S = 0.1


async def recalled(call: Call, body: GenerationRequest, key: str, store: Store, patience_s: float) -> tuple[Call, bool]:
    """The call under the id that the key stands for, and whether it has begun already.

    The first request may still wait for room, or for its prompt to be read: it is waited for, as long as that can take,
    and should it be refused meanwhile, the key is this one's. Callers with other API keys know nothing of it.
    Raises: InvalidRequest when the key stands for another request; Unavailable when Redis cannot tell.
    """
    if len(key) > MAX_KEY_LENGTH:
        raise InvalidRequest(f"the key is longer than {MAX_KEY_LENGTH} characters", "Idempotency-Key")
    until, mine = monotonic() + patience_s, _Claim.of(call, body, key)
    while True:
        known = json.loads(await store.remember(mine.digest, mine.value))
        if known["request"] != mine.request:
            raise InvalidRequest("this key was used for another request; take a new one", "Idempotency-Key")
        if known["id"] == call.id:
            return call, False
        if await _has_begun(known["id"], store):
            return replace(call, id=known["id"]), True
        if monotonic() > until:  # its gateway is gone
            return replace(call, id=known["id"]), False
        await asyncio.sleep(POLL_S)


@asynccontextmanager
async def unless_refused(
    opened: AbstractAsyncContextManager[Run], call: Call, body: GenerationRequest, key: str, store: Store
) -> AsyncIterator[Run]:
    """The run. One that is refused gives its key back, since nothing was begun under it."""
    async with AsyncExitStack() as held:
        try:
            run = await held.enter_async_context(opened)
        except BaseException:
            with suppress(Unavailable):
                mine = _Claim.of(call, body, key)
                await store.disown(mine.digest, mine.value)
            raise
        yield run


async def _has_begun(id: str, store: Store) -> bool:
    try:
        await store.generation(id)
    except NotFound:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Claim:
    """A key, and what it stands for if it is new: this call and its request."""

    digest: str
    """Of the key, and of whose it is."""
    request: str
    value: str

    @classmethod
    def of(cls, call: Call, body: GenerationRequest, key: str) -> "_Claim":
        request = _digest(call.api, body.model_dump_json(exclude_unset=True))
        return cls(_digest(call.owner, key), request, json.dumps({"id": call.id, "request": request}))


def _digest(*parts: str) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
