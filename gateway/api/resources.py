"""What is stored of a generation, and ways back to one that runs."""

import json
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import Response

from gateway.generations import stored
from gateway.generations.run import attached_run
from gateway.http.answer import EventStream
from gateway.http.middleware import OwnerOf
from gateway.http.openapi.responses import EVENTS, GENERATION, TRACE
from gateway.parts import PartsOf
from semspec.errors import NotFound
from semspec.records import Json

router = APIRouter(prefix="/v1/generations", tags=["generations"])

GenerationId = Annotated[str, Path(pattern="^[A-Za-z0-9-]{1,64}$")]
LastEventId = Annotated[str | None, Header(pattern=r"^\d{1,9}(-\d{1,9}){0,7}$")]


@router.get("/{id}", responses=GENERATION)
async def generation(id: GenerationId, owner: OwnerOf, parts: PartsOf) -> Json:
    """Parameters, models, prompt and outcome."""
    return stored.public(id, await stored.owned(id, owner, parts.store))


@router.get("/{id}/trace", responses=TRACE)
async def trace(id: GenerationId, owner: OwnerOf, parts: PartsOf) -> Json:
    """The records of all kept segments so far, in order."""
    meta = await stored.owned(id, owner, parts.store)
    return {
        "id": id,
        "object": "generation.trace",
        "status": meta["status"],
        "degraded": json.loads(meta.get("degraded", "false")),
        "segments": list(await parts.store.trace(id)),
    }


@router.get("/{id}/events", response_model=None, responses=EVENTS)
async def events(
    id: GenerationId,
    owner: OwnerOf,
    parts: PartsOf,
    last_event_id: LastEventId = None,
    trace: Annotated[bool, Query(description="segment records as well")] = False,
) -> Response:
    """A stream of what the client has not seen yet, then of what follows; a generation without a writer is resumed."""
    await stored.owned(id, owner, parts.store)
    seen = [int(count) for count in (last_event_id or "0").split("-")]
    return EventStream(id, attached_run(id, parts, seen, trace), parts, seen)


@router.post("/{id}/cancel", responses=GENERATION)
async def cancel(id: GenerationId, owner: OwnerOf, parts: PartsOf) -> Json:
    """End a generation for good, wherever it runs, with all other choices of its request; one that has ended stays."""
    for choice_id in stored.call(await stored.owned(id, owner, parts.store)).choice_ids:
        with suppress(NotFound):  # not begun yet
            await parts.store.cancel(choice_id)
    return stored.public(id, await parts.store.generation(id))
