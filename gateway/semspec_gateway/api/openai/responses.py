"""OpenAI's Responses API: routes, and a response with reasoning, message and calls as items, whole or as events."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import BaseModel

from semspec.errors import Conflict, InvalidRequest, NotFound
from semspec.types import FinishReason, Message, ToolCall
from semspec_gateway.api.openai import responses_answers as bodies
from semspec_gateway.api.openai.responses_requests import (
    ResponseOptions,
    ResponseRequest,
    response_request,
)
from semspec_gateway.api.shared.bodies import BodyRoute
from semspec_gateway.api.shared.document import STORED, generating
from semspec_gateway.api.shared.formats import Format
from semspec_gateway.api.shared.generations import GenerationId, owned
from semspec_gateway.api.shared.idempotency import Key
from semspec_gateway.api.shared.middleware import OwnerOf, owner_of
from semspec_gateway.api.shared.responder import Responder
from semspec_gateway.generation.choice import Choice, Ended, Kept, Written
from semspec_gateway.generation.parsers import Delta
from semspec_gateway.generation.request import GenerationRequest
from semspec_gateway.generation.stored import stored_choice, stored_trace
from semspec_gateway.generation.usage import usage
from semspec_gateway.readiness import Readiness
from semspec_gateway.store.store import Store, reading

_STATUSES = {
    "running": "in_progress",
    "interrupted": "incomplete",
    "failed": "failed",
    "cancelled": "cancelled",
}


def router(responder: Responder, readiness: Readiness, store: Store) -> APIRouter:
    """`/v1/responses`."""
    routes = APIRouter(prefix="/v1/responses", tags=["completions"], route_class=BodyRoute)

    async def stored(id: str, owner: str) -> tuple[str, Choice]:
        """The status of a response, and what is written of it."""
        fields = await owned(id, owner, store)
        choice = stored_choice(id, {**fields, "status": "finished"}, readiness.known())
        if choice.request.answer.api != "responses":
            raise NotFound(f"response {id} does not exist, or has expired", "id")
        for record in await stored_trace(id, store):
            choice.add(record)
        if fields["status"] == "finished":
            with reading(f"response {id}"):
                choice.finish(FinishReason(fields["finish_reason"]))
        return fields["status"], choice

    async def history(id: str, owner: str) -> tuple[Message, ...]:
        """The turns up to the end of an earlier response. Raises: NotFound, Conflict, Unavailable."""
        try:
            status, choice = await stored(id, owner)
        except NotFound as error:
            raise error.about("previous_response_id") from None
        if status != "finished":
            message, remedy = f"response {id} is {status}", "only a finished one can be followed"
            raise Conflict(message, "previous_response_id", remedy=remedy)
        return (*choice.request.messages, choice.answer)

    @routes.post("", response_model=bodies.ModelResponse, responses=generating(*bodies.EVENTS))
    async def responses(http: HttpRequest, body: ResponseRequest, key: Key = None) -> Response:
        """Answer a text or a conversation."""
        previous = body.previous_response_id
        if previous is not None and body.semspec.session is not None:
            message = "a session has the earlier turns already"
            remedy = "leave out one of session and previous_response_id"
            raise InvalidRequest(message, "semspec.session", remedy=remedy)
        turns = await history(previous, owner_of(http)) if previous is not None else ()
        return await responder.respond(http, body, response_request(body, turns), key)

    @routes.get("/{id}", responses=STORED)
    async def response(id: GenerationId, owner: OwnerOf) -> bodies.ModelResponse:
        """A stored response, as far as it is written."""
        status, choice = await stored(id, owner)
        written = ResponsesFormat(choice.request, "").written(choice)
        if status == "finished":
            return written
        failure = bodies.ResponseFailure(
            code="server_error", message="the generation failed; send the request again"
        )
        changes = {"status": _STATUSES[status], "error": failure if status == "failed" else None}
        return written.model_copy(update={**changes, "incomplete_details": None})

    return routes


Kind = Literal["reasoning", "message"]
_PARTS: dict[Kind, type[bodies.Part]] = {
    "reasoning": bodies.ReasoningPart,
    "message": bodies.OutputText,
}
_TEXTS: dict[Kind, str] = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
}


class ResponsesFormat(Format):
    """`POST /v1/responses`, and its events: the reasoning, if there is any, and the message."""

    options = ResponseOptions

    def __init__(self, request: GenerationRequest, system_fingerprint: str) -> None:
        super().__init__(request, system_fingerprint)
        self._num_events = self._num_items = 0
        self._open: tuple[Kind, str] | None = None
        """Kind and text so far of the last item of the output, if it is a text that goes on."""

    def opening(self, index: int) -> list[BaseModel]:
        response = self._response("in_progress", [])
        return [
            self._event(bodies.ResponseState, f"response.{name}", response=response)
            for name in ("created", "in_progress")
        ]

    def text(self, index: int, event: Written | Kept | Ended) -> list[BaseModel]:
        return list(self._added(event.delta))

    def closing(self, index: int, ended: Ended, choices: Sequence[Choice]) -> list[BaseModel]:
        response = self.response(choices)
        events = [] if self._num_items else list(self._opened("message"))
        events += self._closed(response.output[-1].status)
        return [
            *events,
            self._event(bodies.ResponseState, f"response.{response.status}", response=response),
        ]

    def response(self, choices: Sequence[Choice]) -> bodies.ModelResponse:
        return self.written(choices[0]).model_copy(update=self.statistics(choices))

    def written(self, choice: Choice) -> bodies.ModelResponse:
        """A response without statistics, whose times are not stored."""
        status: bodies.ItemStatus = (
            "incomplete" if choice.finish_reason is FinishReason.LENGTH else "completed"
        )
        calls = [_call_item(call, call.arguments, "completed") for call in choice.seen.calls]
        texts = _split(choice.seen) or ([] if calls else [("message", "")])
        statuses: list[bodies.ItemStatus] = ["completed"] * len(texts)
        if texts:
            statuses[-1] = status
        items = [self._item(*text, status) for text, status in zip(texts, statuses, strict=True)]
        return self._response(status, [*items, *calls], choice)

    def _response(
        self, status: bodies.ItemStatus, items: list[bodies.Item], choice: Choice | None = None
    ) -> bodies.ModelResponse:
        request, options = self._request, self._options
        return bodies.ModelResponse(
            parallel_tool_calls=options.parallel_tool_calls,
            tool_choice=options.tool_choice,
            tools=options.tools,
            id=request.id,
            created_at=request.created,
            status=status,
            error=None,
            incomplete_details=bodies.Incomplete(reason="max_output_tokens")
            if status == "incomplete"
            else None,
            instructions=request.instructions or None,
            max_output_tokens=request.max_tokens,
            model=request.model,
            output=items,
            previous_response_id=options.previous_response_id,
            reasoning=bodies.ReasoningEffort(effort=options.effort) if options.effort else None,
            store=request.is_kept,
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            usage=None if choice is None else _usage(choice),
        )

    def _added(self, delta: Delta) -> Iterator[BaseModel]:
        """The events of the next text; a text of the other kind closes the item before it."""
        for kind, text in _split(delta):
            if self._open is None or self._open[0] != kind:
                yield from self._closed("completed")
                yield from self._opened(kind)
            self._open = (kind, self._open[1] + text if self._open else text)
            yield self._event(
                bodies.ResponseText, f"{_TEXTS[kind]}.delta", delta=text, **self._place(kind)
            )
        for call in delta.calls:
            yield from self._called(call)

    def _called(self, call: ToolCall) -> Iterator[BaseModel]:
        """The events of a call, which closes the text before it."""
        yield from self._closed("completed")
        index, self._num_items = self._num_items, self._num_items + 1
        added = _call_item(call, "", "in_progress")
        done = _call_item(call, call.arguments, "completed")
        yield self._item_event("added", index, added)
        position: dict[str, Any] = {"item_id": added.id, "output_index": index}
        kind = "response.function_call_arguments"
        whole = {"name": call.name, "arguments": call.arguments}
        yield self._event(
            bodies.ResponseArguments, f"{kind}.delta", delta=call.arguments, **position
        )
        yield self._event(bodies.ResponseArguments, f"{kind}.done", **whole, **position)
        yield self._item_event("done", index, done)

    def _item_event(self, name: str, index: int, item: bodies.Item) -> BaseModel:
        return self._event(
            bodies.ResponseItem, f"response.output_item.{name}", output_index=index, item=item
        )

    def _event(self, event: type[BaseModel], type: str, **fields: Any) -> BaseModel:
        self._num_events += 1
        return event(type=type, sequence_number=self._num_events - 1, **fields)

    def _opened(self, kind: Kind) -> Iterator[BaseModel]:
        self._num_items, self._open = self._num_items + 1, (kind, "")
        item, place = self._item(kind, None, "in_progress"), self._place(kind)
        yield self._item_event("added", place["output_index"], item)
        yield self._event(
            bodies.ResponsePart, "response.content_part.added", part=_PARTS[kind](text=""), **place
        )

    def _closed(self, status: bodies.ItemStatus) -> Iterator[BaseModel]:
        """The events that end the open item, if there is one."""
        if self._open is None:
            return
        kind, text = self._open
        self._open, place = None, self._place(kind)
        yield self._event(bodies.ResponseText, f"{_TEXTS[kind]}.done", text=text, **place)
        yield self._event(
            bodies.ResponsePart, "response.content_part.done", part=_PARTS[kind](text=text), **place
        )
        yield self._item_event("done", place["output_index"], self._item(kind, text, status))

    def _place(self, kind: Kind) -> dict[str, Any]:
        """Where the text of the last item is."""
        return {
            "item_id": self._item_id(kind),
            "output_index": self._num_items - 1,
            "content_index": 0,
        }

    def _item_id(self, kind: str) -> str:
        return f"{'rs' if kind == 'reasoning' else 'msg'}-{self._request.id.partition('-')[2]}"

    def _item(self, kind: str, text: str | None, status: bodies.ItemStatus) -> bodies.Item:
        """An item with its one part; without any, if `text` is None."""
        item = bodies.ReasoningItem if kind == "reasoning" else bodies.MessageItem
        return item(
            id=self._item_id(kind), content=[] if text is None else [{"text": text}], status=status
        )


def _call_item(call: ToolCall, arguments: str, status: bodies.ItemStatus) -> bodies.CallItem:
    id = f"fc-{call.id.partition('-')[2]}"
    return bodies.CallItem(
        id=id, call_id=call.id, name=call.name, arguments=arguments, status=status
    )


def _split(text: Delta) -> list[tuple[Kind, str]]:
    """The parts of a text that are not empty, in order."""
    parts: list[tuple[Kind, str]] = [("reasoning", text.reasoning), ("message", text.content)]
    return [part for part in parts if part[1]]


def _usage(choice: Choice) -> bodies.ResponseUsage:
    counts = usage([choice])
    return bodies.ResponseUsage(
        input_tokens=counts["prompt_tokens"],
        input_tokens_details=counts.get("prompt_tokens_details"),
        output_tokens=counts["completion_tokens"],
        output_tokens_details=counts["completion_tokens_details"],
        total_tokens=counts["total_tokens"],
    )
