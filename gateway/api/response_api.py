"""OpenAI's Responses API: a text in, reasoning and an answer out, whole or as events; stored as a generation is."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import BaseModel

from semspec.errors import Conflict, InvalidRequest, NotFound, SemspecError
from semspec.gateway.api.bodies import ChatMessage, ChatRequest
from semspec.gateway.api.errors import error_body
from semspec.gateway.api.middleware import OwnerOf, owner_of
from semspec.gateway.api.openai import statistics
from semspec.gateway.api.requests import chat_request, formatted
from semspec.gateway.api.resources import GenerationId, owned
from semspec.gateway.api.response_models import (
    Incomplete,
    InputMessage,
    Item,
    ItemStatus,
    MessageItem,
    ModelResponse,
    OutputText,
    Part,
    ReasoningItem,
    ReasoningPart,
    ResponseDelta,
    ResponseFailure,
    ResponseItem,
    ResponsePart,
    ResponseRequest,
    ResponseState,
    ResponseText,
    ResponseUsage,
)
from semspec.gateway.api.responses import IDEMPOTENT, RESPONSE, STORED_RESPONSE
from semspec.gateway.api.sse import Responder
from semspec.gateway.generation.output import ChoiceOutput, Ended, Kept, usage
from semspec.gateway.generation.parsers import Delta
from semspec.gateway.generation.request import Request, stored_choice, stored_request
from semspec.gateway.readiness import Readiness
from semspec.gateway.settings import GatewaySettings
from semspec.gateway.store.replies import reading
from semspec.gateway.store.store import Store
from semspec.records import SegmentTrace
from semspec.types import Drafted, FinishReason, Message

Kind = Literal["reasoning", "message"]

_STATUSES: dict[str, Literal["in_progress", "incomplete", "failed", "cancelled"]] = {
    "running": "in_progress",
    "interrupted": "incomplete",
    "failed": "failed",
    "cancelled": "cancelled",
}


def router(responder: Responder, readiness: Readiness, store: Store, settings: GatewaySettings) -> APIRouter:
    """`/v1/responses`."""
    routes = APIRouter(prefix="/v1/responses", tags=["completions"])

    async def output_of(id: str, owner: str) -> tuple[dict[str, str], Request, ChoiceOutput]:
        fields = await owned(id, owner, store)
        if (request := stored_request(id, fields)).api != "responses":
            raise NotFound(f"response {id} does not exist, or has expired", "id")
        output = stored_choice(id, {**fields, "status": "finished"}, readiness.known()).output()
        lines = await store.trace(id)
        with reading(f"response {id}"):
            for line in lines:
                output.add(SegmentTrace.model_validate_json(line).record())
            if fields["status"] == "finished":
                output.finish(FinishReason(fields["finish_reason"]))
        return fields, request, output

    async def history(id: str, owner: str) -> tuple[Message, ...]:
        """The turns up to the end of an earlier response. Raises: NotFound, Conflict, Unavailable."""
        try:
            fields, request, output = await output_of(id, owner)
        except NotFound as error:
            raise NotFound(error.message, "previous_response_id") from None
        if fields["status"] != "finished":
            message = f"response {id} is {fields['status']}; only a finished one can be followed"
            raise Conflict(message, "previous_response_id")
        return (*request.messages, Message("assistant", output.seen.content))

    @routes.post("", response_model=None, responses=RESPONSE, openapi_extra=IDEMPOTENT)
    async def responses(http: HttpRequest, body: ResponseRequest) -> Response:
        """Answer a text or a conversation."""
        if body.text is None:
            request = response_request(body, settings)
        else:  # a large schema takes long to check
            request = await asyncio.to_thread(response_request, body, settings)
        if body.previous_response_id is not None and request.session is not None:
            message = "a session has the earlier turns already; leave out one of session and previous_response_id"
            raise InvalidRequest(message, "semspec.session")
        if body.previous_response_id is not None:
            turns = await history(body.previous_response_id, owner_of(http))
            request = replace(request, prompt=(*turns, *request.messages))
        return await responder.respond(http, request, body)

    @routes.get("/{id}", responses=STORED_RESPONSE)
    async def response(id: GenerationId, owner: OwnerOf) -> ModelResponse:
        """A stored response, as far as it is written."""
        fields, request, output = await output_of(id, owner)
        stored = ResponseFormat(request, "").stored(output)
        if fields["status"] == "finished":
            return stored
        status, failure = _STATUSES[fields["status"]], None
        if status == "failed":
            failure = ResponseFailure(code="server_error", message="the generation failed; send the request again")
        return stored.model_copy(update={"status": status, "error": failure, "incomplete_details": None})

    return routes


def response_request(body: ResponseRequest, settings: GatewaySettings) -> Request:
    """The request of a response, which is a chat's. Raises: InvalidRequest, NotFound."""
    if isinstance(body.input, str):
        messages = [ChatMessage(role="user", content=body.input)]
    else:
        given = (item for item in body.input if isinstance(item, InputMessage))
        messages = [ChatMessage(role=item.role, content=item.text) for item in given]
    chat = ChatRequest(
        model=body.model,
        messages=messages or [ChatMessage(role="user", content="")],
        max_completion_tokens=body.max_output_tokens,
        seed=body.seed,
        temperature=body.temperature,
        top_p=body.top_p,
        stream=body.stream,
        semspec=body.semspec,
    )
    request = chat_request(chat, settings, "responses")
    if body.text is not None and body.text.format is not None:
        request = formatted(request, chat, body.text.format.grammar, "text.format")
    return replace(request, instructions=body.instructions or "", previous=body.previous_response_id or "")


class ResponseFormat:
    """`POST /v1/responses`, and its events: the reasoning, if there is any, and the message."""

    last_line: str | None = None

    def __init__(self, request: Request, system_fingerprint: str) -> None:
        self._request = request
        self._num_events = 0
        self._texts: list[tuple[Kind, str]] = []
        """Kind and text so far of each item of the output; the last one is open."""

    def opening(self, index: int) -> list[BaseModel]:
        response = self._response("in_progress", [])
        created = ResponseState(type="response.created", response=response, sequence_number=self._next())
        return [created, ResponseState(type="response.in_progress", response=response, sequence_number=self._next())]

    def drafted(self, event: Drafted) -> list[BaseModel]:
        return []

    def text(self, index: int, event: Kept | Ended) -> list[BaseModel]:
        return list(self._added(event.delta))

    def closing(self, index: int, ended: Ended, outputs: Sequence[ChoiceOutput]) -> list[BaseModel]:
        response = self._whole(outputs[0])
        events = [] if self._texts else list(self._opened("message"))
        events += self._closed(response.output[-1].status)
        kind: Any = f"response.{response.status}"
        return [*events, ResponseState(type=kind, response=response, sequence_number=self._next())]

    def response(self, outputs: Sequence[ChoiceOutput]) -> BaseModel:
        return self._whole(outputs[0])

    def error(self, error: SemspecError) -> BaseModel:
        return error_body(error)

    def stored(self, output: ChoiceOutput) -> ModelResponse:
        """A response without statistics, whose times are not stored."""
        status: ItemStatus = "incomplete" if output.finish_reason is FinishReason.LENGTH else "completed"
        *before, (kind, text) = _split(output.seen) or [("message", "")]
        items = [*(self._item(*item, "completed") for item in before), self._item(kind, text, status)]
        return self._response(status, items, output)

    def _whole(self, output: ChoiceOutput) -> ModelResponse:
        return self.stored(output).model_copy(update=statistics([output], self._request))

    def _response(self, status: ItemStatus, items: list[Item], output: ChoiceOutput | None = None) -> ModelResponse:
        request = self._request
        return ModelResponse(
            id=request.id,
            created_at=request.created,
            status=status,
            error=None,
            incomplete_details=Incomplete(reason="max_output_tokens") if status == "incomplete" else None,
            instructions=request.instructions or None,
            max_output_tokens=request.max_tokens,
            model=request.model,
            output=items,
            previous_response_id=request.previous or None,
            temperature=request.plan.sampling.temperature,
            top_p=request.plan.sampling.top_p,
            usage=None if output is None else _usage(output),
        )

    def _added(self, delta: Delta) -> Iterator[BaseModel]:
        """The events of the next text; a text of the other kind closes the item before it."""
        for kind, text in _split(delta):
            if not self._texts or self._texts[-1][0] != kind:
                yield from self._closed("completed") if self._texts else ()
                yield from self._opened(kind)
            self._texts[-1] = (kind, self._texts[-1][1] + text)
            name: Any = "response.reasoning_text.delta" if kind == "reasoning" else "response.output_text.delta"
            yield ResponseDelta(type=name, delta=text, **self._place(), sequence_number=self._next())

    def _opened(self, kind: Kind) -> Iterator[BaseModel]:
        self._texts.append((kind, ""))
        item, place = self._item(kind, None, "in_progress"), self._place()
        yield ResponseItem(
            type="response.output_item.added",
            output_index=place["output_index"],
            item=item,
            sequence_number=self._next(),
        )
        yield ResponsePart(
            type="response.content_part.added", part=_part(kind, ""), **place, sequence_number=self._next()
        )

    def _closed(self, status: ItemStatus) -> Iterator[BaseModel]:
        """The events that end the last item."""
        (kind, text), place = self._texts[-1], self._place()
        name: Any = "response.reasoning_text.done" if kind == "reasoning" else "response.output_text.done"
        yield ResponseText(type=name, text=text, **place, sequence_number=self._next())
        yield ResponsePart(
            type="response.content_part.done", part=_part(kind, text), **place, sequence_number=self._next()
        )
        yield ResponseItem(
            type="response.output_item.done",
            output_index=place["output_index"],
            item=self._item(kind, text, status),
            sequence_number=self._next(),
        )

    def _place(self) -> dict[str, Any]:
        """Where the open item's text is."""
        index = len(self._texts) - 1
        return {"item_id": self._item_id(self._texts[index][0]), "output_index": index, "content_index": 0}

    def _item_id(self, kind: str) -> str:
        return f"{'rs' if kind == 'reasoning' else 'msg'}-{self._request.id.partition('-')[2]}"

    def _item(self, kind: str, text: str | None, status: ItemStatus) -> Item:
        """An item with its one part; without any, if `text` is None."""
        if kind == "reasoning":
            reasoning = [] if text is None else [ReasoningPart(text=text)]
            return ReasoningItem(id=self._item_id(kind), content=reasoning, status=status)
        content = [] if text is None else [OutputText(text=text)]
        return MessageItem(id=self._item_id(kind), content=content, status=status)

    def _next(self) -> int:
        self._num_events += 1
        return self._num_events - 1


def _split(text: Delta) -> list[tuple[Kind, str]]:
    """The parts of a text that are not empty, in order."""
    parts: list[tuple[Kind, str]] = [("reasoning", text.reasoning), ("message", text.content)]
    return [part for part in parts if part[1]]


def _part(kind: str, text: str) -> Part:
    return ReasoningPart(text=text) if kind == "reasoning" else OutputText(text=text)


def _usage(output: ChoiceOutput) -> ResponseUsage:
    counts = usage([output])
    return ResponseUsage(
        input_tokens=counts["prompt_tokens"],
        output_tokens=counts["completion_tokens"],
        output_tokens_details=counts["completion_tokens_details"],
        total_tokens=counts["total_tokens"],
    )
