"""Stored generations: their routes and response schemas."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import Response

from semspec.decoding import Strategies
from semspec.errors import NotFound
from semspec.records import Body, SegmentTrace, if_any
from semspec.types import FinishReason
from semspec_gateway.api.shared.answers import TokenCounts
from semspec_gateway.api.shared.document import (
    EVENT_ID,
    STORED,
    STREAMED,
    Responses,
    errors,
    stream,
)
from semspec_gateway.api.shared.errors import Error, TgiError
from semspec_gateway.api.shared.middleware import OwnerOf
from semspec_gateway.api.shared.responder import Responder
from semspec_gateway.generation.choice import Place
from semspec_gateway.generation.request import Parameters
from semspec_gateway.generation.stored import (
    stored_prompts,
    stored_request,
    stored_trace,
)
from semspec_gateway.store.store import Store, reading

GenerationId = Annotated[str, Path(pattern="^[A-Za-z0-9-]{1,64}$")]
LastEventId = Annotated[str | None, Header(pattern=EVENT_ID)]
EVENTS: Responses = {
    200: {"content": stream(*STREAMED, Error, TgiError)},
    **errors(400, 404, 409, 429, 503, 504),
}
GenerationStatus = Literal["running", "finished", "failed", "cancelled", "interrupted"]


class GenerationModels(Body):
    """Fingerprints of the models and probes used, and of the calibration of `likelihood`."""

    draft: str
    target: str
    draft_probe: str
    target_probe: str
    likelihood: str | None = if_any()
    release: str | None = if_any()
    """NAME@VERSION."""


class GenerationPrompt(Body):
    """The prompt as a model received it; no ids: the model tokenized the text."""

    text: str
    token_ids: list[int]
    tokenizer: str


class StoredGeneration(Body):
    """One stored choice of a request."""

    id: str
    object: Literal["generation"]
    status: GenerationStatus
    """`interrupted`: the next client that attaches resumes it."""
    created: int
    model: str
    seed: int
    session: str | None
    finish_reason: FinishReason | None
    degraded: bool
    parameters: Parameters
    models: GenerationModels
    prompt: GenerationPrompt
    """As the target received it."""
    draft_prompt: GenerationPrompt | None
    """As the draft received it, in its own chat template; null where it received the target's."""
    usage: TokenCounts | None
    """Null until the generation has finished."""


class GenerationTrace(Body):
    """The records of all kept segments so far, in order."""

    id: str
    object: Literal["generation.trace"]
    status: GenerationStatus
    degraded: bool
    segments: list[SegmentTrace]


def router(responder: Responder, store: Store) -> APIRouter:
    """`/v1/generations`."""
    routes = APIRouter(prefix="/v1/generations", tags=["generations"])
    table = responder.resolver.readiness.table

    @routes.get("/{id}", responses=STORED)
    async def generation(id: GenerationId, owner: OwnerOf) -> StoredGeneration:
        """A generation's parameters, models, prompt and outcome."""
        return _public(id, await owned(id, owner, store), table)

    @routes.get("/{id}/trace", responses=STORED)
    async def trace(id: GenerationId, owner: OwnerOf) -> GenerationTrace:
        """The records of all kept segments so far, in order."""
        stored = _public(id, await owned(id, owner, store), table)
        segments = await stored_trace(id, store)
        state = {"status": stored.status, "degraded": stored.degraded}
        return GenerationTrace(
            id=id, object="generation.trace", segments=list(map(SegmentTrace.of, segments)), **state
        )

    @routes.get("/{id}/events", response_class=Response, responses=EVENTS)
    async def events(
        id: GenerationId,
        owner: OwnerOf,
        last_event_id: LastEventId = None,
        trace: Annotated[bool, Query(description="segment records as well")] = False,
    ) -> Response:
        """Stream the events after `Last-Event-ID`; a generation that no gateway runs is resumed."""
        await owned(id, owner, store)
        return responder.attach(
            id, list(map(Place.of_id, (last_event_id or "0").split("-"))), trace
        )

    @routes.post("/{id}/cancel", responses=STORED)
    async def cancel(id: GenerationId, owner: OwnerOf) -> StoredGeneration:
        """Cancel a generation and the other choices of its request; an ended one is unchanged."""
        request = stored_request(id, await owned(id, owner, store), table)
        for index in range(request.num_choices):
            with suppress(NotFound):  # the choice has not begun
                await store.cancel(request.choice_id(index))
        return _public(id, await store.generation(id), table)

    return routes


async def owned(id: str, owner: str, store: Store) -> dict[str, str]:
    """The stored fields of this owner's generation.

    Raises: NotFound when there is no such generation of this owner, or it has ended and is not kept; Unavailable.
    """
    fields = await store.generation(id)
    has_ended = fields["status"] not in ("running", "interrupted")
    with reading(f"generation {id}"):
        is_visible = fields["owner"] == owner and not (has_ended and fields["is_kept"] != "true")
    if not is_visible:
        raise NotFound(f"generation {id} does not exist, or has expired", "id")
    return fields


def _public(id: str, meta: Mapping[str, str], strategies: Strategies) -> StoredGeneration:
    """The fields of a generation that clients may see. Raises: Unavailable when they cannot be read."""
    request = stored_request(id, meta, strategies)
    with reading(f"generation {id}"):
        index = int(meta["index"])
        prompts, max_tokens = stored_prompts(request, index, meta)
        generation = request.generation(index, prompts, max_tokens)
        fields = {
            "id": id,
            "object": "generation",
            "status": meta["status"],
            "created": request.created,
            "model": request.model,
            "seed": generation.sampling.seed,
            "session": request.session,
            "finish_reason": meta.get("finish_reason"),
            "degraded": json.loads(meta.get("degraded", "false")),
            "parameters": Parameters.of(generation, request.strictness),
            "models": json.loads(meta["models"]),
            "prompt": prompts.target,
            "draft_prompt": prompts.draft,
            "usage": json.loads(meta.get("usage", "null")),
        }
        return StoredGeneration.model_validate(fields, from_attributes=True)
