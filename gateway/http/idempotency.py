"""A request sent again under the same key is the same request: it is answered by the generation it began."""

import asyncio
import hashlib
import json
from dataclasses import replace

from gateway.generations.call import Call
from gateway.http.schemas import GenerationRequest
from gateway.storage.store import Store
from semspec.errors import InvalidRequest, NotFound

HEADER = "idempotency-key"
MAX_KEY_LENGTH = 255
BEGINNING_POLLS, BEGINNING_POLL_S = 10, 0.1


async def recalled(call: Call, body: GenerationRequest, key: str, store: Store) -> tuple[Call, bool]:
    """The call under the id that the key stands for, and whether it has begun already.

    Callers with other API keys know nothing of it.
    Raises: InvalidRequest when the key stands for another request; Unavailable when Redis cannot tell.
    """
    if len(key) > MAX_KEY_LENGTH:
        raise InvalidRequest(f"the key is longer than {MAX_KEY_LENGTH} characters", "Idempotency-Key")
    mine = {"id": call.id, "request": _digest(call.api, body.model_dump_json(exclude_unset=True))}
    known = json.loads(await store.remember(_digest(call.owner, key), json.dumps(mine)))
    if known["request"] != mine["request"]:
        raise InvalidRequest("this key was used for another request; take a new one", "Idempotency-Key")
    return replace(call, id=known["id"]), known["id"] != call.id and await _begins(known["id"], store)


async def _begins(id: str, store: Store) -> bool:
    """Whether there is such a generation, or will be in a moment: one whose prompt is being read is not stored yet, one
    that was refused after its key was seen will never be."""
    for _ in range(BEGINNING_POLLS):
        try:
            await store.generation(id)
            return True
        except NotFound:
            await asyncio.sleep(BEGINNING_POLL_S)
    return False


def _digest(*parts: str) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
