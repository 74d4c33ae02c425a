"""Routes of stored generations and sessions, of attaching to and cancelling generations, and of model names."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import Response

from semspec.errors import Conflict, NotFound
from semspec.gateway.api.shared import resource_models as bodies
from semspec.gateway.api.shared.document import STORED, STREAMED, Responses, errors, stream
from semspec.gateway.api.shared.errors import Error, TgiError
from semspec.gateway.api.shared.middleware import OwnerOf
from semspec.gateway.api.shared.requests import SESSION_NAME
from semspec.gateway.api.shared.resolver import model_names
from semspec.gateway.api.shared.sse import Responder
from semspec.gateway.generation.collection import Answer, Collection
from semspec.gateway.generation.request import stored_request
from semspec.gateway.readiness import Readiness
from semspec.gateway.settings import GatewaySettings
from semspec.gateway.store.leases import stored_name
from semspec.gateway.store.replies import reading
from semspec.gateway.store.store import Store
from semspec.records import SegmentText, SegmentTrace
from semspec.types import Message, ModelInfo, Piece

GenerationId = Annotated[str, Path(pattern="^[A-Za-z0-9-]{1,64}$")]
LastEventId = Annotated[str | None, Header(pattern=r"^\d{1,9}(-\d{1,9}){0,7}$")]
EVENTS: Responses = {
    200: {"content": stream(*STREAMED, Error, TgiError)},
    **errors(400, 404, 409, 429, 503, 504),
}
LISTED: Responses = {
    200: {"links": {"model": {"operationId": "model", "parameters": {"name": "$response.body#/data/0/id"}}}}
}
SessionName = Annotated[str, Path(pattern=SESSION_NAME)]


def generations(responder: Responder, store: Store) -> APIRouter:
    """`/v1/generations`."""
    routes = APIRouter(prefix="/v1/generations", tags=["generations"])

    @routes.get("/{id}", responses=STORED)
    async def generation(id: GenerationId, owner: OwnerOf) -> bodies.StoredGeneration:
        """A generation's parameters, models, prompt and outcome."""
        return _public(id, await owned(id, owner, store))

    @routes.get("/{id}/trace", responses=STORED)
    async def trace(id: GenerationId, owner: OwnerOf) -> bodies.GenerationTrace:
        """The records of all kept segments so far, in order."""
        stored, lines = _public(id, await owned(id, owner, store)), await store.trace(id)
        with reading(f"generation {id}"):
            segments = [SegmentTrace.model_validate_json(line) for line in lines]
        return bodies.GenerationTrace(
            id=id,
            object="generation.trace",
            status=stored.status,
            degraded=stored.degraded,
            segments=segments,
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
        return responder.attach(id, [int(count) for count in (last_event_id or "0").split("-")], trace)

    @routes.post("/{id}/cancel", responses=STORED)
    async def cancel(id: GenerationId, owner: OwnerOf) -> bodies.StoredGeneration:
        """Cancel a generation and the other choices of its request; an ended one is unchanged."""
        meta = await owned(id, owner, store)
        for choice_id in stored_request(id, meta).choice_ids:
            with suppress(NotFound):  # the choice has not begun
                await store.cancel(choice_id)
        return _public(id, await store.generation(id))

    return routes


def collection(collection: Collection | None) -> APIRouter:
    """`/v1/collection`: answers for training probes."""
    routes = APIRouter(prefix="/v1/collection", tags=["generations"])

    @routes.get("", responses=STORED)
    async def collected(
        owner: OwnerOf,
        after: Annotated[str, Query(pattern=r"^\d{1,15}(-\d{1,9})?$", description="`next` of the page before")] = "0",
        limit: Annotated[int, Query(ge=1, le=100, description="of answers in the page")] = 20,
    ) -> bodies.CollectionPage:
        """Answers whose owners consent, the oldest first; only for a key with the option `collector`."""
        if collection is None or not collection.may_read(owner):
            raise NotFound(
                "there is no collection for this key: the gateway needs a share in SEMSPEC_GATEWAY_COLLECT, and the "
                "key's entry the option collector"
            )
        page = await collection.read(after, limit)
        return bodies.CollectionPage(
            object="list",
            draft=_collected_model(page.served.draft),
            target=_collected_model(page.served.target),
            segmentation=page.segmentation,
            data=list(map(_collected_answer, page.answers)),
            next=page.next,
        )

    return routes


def sessions(store: Store) -> APIRouter:
    """`/v1/sessions`: stored conversations."""
    routes = APIRouter(prefix="/v1/sessions", tags=["sessions"])

    @routes.get("", responses=errors(503))
    async def sessions(owner: OwnerOf) -> bodies.SessionList:
        """The owner's last conversations."""
        found = await store.listed(owner)
        turns = await asyncio.gather(*(store.turns(stored_name(name, owner)) for name, _ in found))
        kept = [(name, at, own) for (name, at), own in zip(found, turns, strict=True) if own]
        return bodies.SessionList(object="list", data=[_listed(*one) for one in kept])

    @routes.get("/{id}", responses=STORED)
    async def session(id: SessionName, owner: OwnerOf) -> bodies.Session:
        """The turns of a conversation so far, without reasoning."""
        turns = await store.turns(stored_name(id, owner))
        if not turns:
            raise _missing(id)
        shown = [bodies.Turn(role=turn.role, content=turn.content) for turn in turns]
        return bodies.Session(id=id, object="session", turns=shown)

    @routes.delete("/{id}", responses=errors(400, 404, 409, 503))
    async def forget(id: SessionName, owner: OwnerOf) -> bodies.SessionForgotten:
        """Delete a conversation; answers 409 while a request uses it."""
        try:
            await store.forget(stored_name(id, owner))
            await store.unlist(owner, id)
        except NotFound:
            raise _missing(id) from None
        except Conflict:
            message = f"session {id} is answering a request; wait for it, or cancel its generation"
            raise Conflict(message, "id") from None
        return bodies.SessionForgotten(id=id, object="session", deleted=True)

    return routes


def models(readiness: Readiness, settings: GatewaySettings) -> APIRouter:
    """`/v1/models`: the pair, and each strategy as a separate model, so that any client can choose one."""
    routes = APIRouter(prefix="/v1/models", tags=["models"])

    def names() -> dict[str, bodies.ModelName]:
        served, root = model_names(settings, readiness.strategies), settings.model_name
        return {
            name: bodies.ModelName(id=name, object="model", created=0, owned_by="semspec", root=root) for name in served
        }

    @routes.get("", responses=LISTED)
    async def models() -> bodies.ModelNames:
        """All values for a request's `model`, with the strategies that this pair supports."""
        return bodies.ModelNames(object="list", data=list(names().values()))

    @routes.get("/{name:path}", responses=errors(404))
    async def model(name: str) -> bodies.ModelName:
        """One model name."""
        served = names()
        if name not in served:
            raise NotFound(f"the model {name!r} does not exist, or its strategy is unsupported by this pair", "model")
        return served[name]

    return routes


async def owned(id: str, owner: str, store: Store) -> dict[str, str]:
    """The stored fields of this owner's generation.

    Raises: NotFound, also for another owner's generation; Unavailable.
    """
    fields = await store.generation(id)
    if stored_request(id, fields).owner != owner:
        raise NotFound(f"generation {id} does not exist, or has expired", "id")
    return fields


def _public(id: str, meta: Mapping[str, str]) -> bodies.StoredGeneration:
    """The fields of a generation that clients may see. Raises: Unavailable when they cannot be read."""
    with reading(f"generation {id}"):
        fields = {
            "id": id,
            "object": "generation",
            "status": meta["status"],
            "created": int(meta["created"]),
            "model": meta["model"],
            "seed": int(meta["seed"]),
            "session": meta["session"] or None,
            "finish_reason": meta.get("finish_reason"),
            "degraded": json.loads(meta.get("degraded", "false")),
            **{
                name: json.loads(meta.get(name) or "null")
                for name in ("parameters", "models", "prompt", "draft_prompt", "usage")
            },
        }
        return bodies.StoredGeneration.model_validate(fields)


def _collected_model(info: ModelInfo) -> bodies.CollectedModel:
    return bodies.CollectedModel(fingerprint=info.fingerprint, tokenizer=info.tokenizer)


def _collected_answer(answer: Answer) -> bodies.CollectedAnswer:
    prompts = answer.choice.prompts
    return bodies.CollectedAnswer(
        id=answer.choice.id,
        owner=answer.choice.request.owner,
        conversation=answer.conversation,
        question=answer.question,
        prompt=_prompt(prompts.target),
        draft_prompt=_prompt(prompts.draft) if prompts.draft else None,
        segments=[SegmentText.of_segment(segment) for segment in answer.segments],
    )


def _prompt(piece: Piece) -> bodies.GenerationPrompt:
    return bodies.GenerationPrompt(text=piece.text, token_ids=list(piece.token_ids), tokenizer=piece.tokenizer)


def _listed(name: str, updated: float, turns: Sequence[Message]) -> bodies.ListedSession:
    question = next((turn.content for turn in turns if turn.role == "user"), "")[:200]
    return bodies.ListedSession(
        id=name, object="session", updated=int(updated), num_turns=len(turns), question=question
    )


def _missing(id: str) -> NotFound:
    return NotFound(f"session {id} does not exist, or has expired", "id")
