"""OpenAI's Responses API: a text in, reasoning and an answer out, whole or as events; stored as a generation is."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from semspec.errors import Conflict, InvalidRequest, NotFound
from semspec.gateway.api.openai.conversion import chat_request, formatted
from semspec.gateway.api.openai.formats import NamedFunction, NamedResponseTool, NamedTool
from semspec.gateway.api.openai.requests import ChatMessage, ChatRequest, FunctionCall
from semspec.gateway.api.openai.requests import ToolCall as GivenCall
from semspec.gateway.api.openai.responses_format import ResponsesApiFormat
from semspec.gateway.api.openai.responses_models import (
    InputCall,
    InputCallOutput,
    InputItem,
    InputMessage,
    ModelResponse,
    ResponseFailure,
    ResponseRequest,
)
from semspec.gateway.api.shared.middleware import OwnerOf, owner_of
from semspec.gateway.api.shared.openapi import IDEMPOTENT, RESPONSE, STORED_RESPONSE
from semspec.gateway.api.shared.resources import GenerationId, owned
from semspec.gateway.api.shared.sse import Responder
from semspec.gateway.generation.output import ChoiceOutput
from semspec.gateway.generation.request import Request, stored_choice, stored_request
from semspec.gateway.readiness import Readiness
from semspec.gateway.settings import GatewaySettings
from semspec.gateway.store.replies import reading
from semspec.gateway.store.store import Store
from semspec.records import SegmentTrace
from semspec.types import FinishReason, Message

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
        return (*request.messages, Message("assistant", output.seen.content, output.seen.calls_json))

    @routes.post("", response_model=None, responses=RESPONSE, openapi_extra=IDEMPOTENT)
    async def responses(http: HttpRequest, body: ResponseRequest) -> Response:
        """Answer a text or a conversation."""
        request = response_request(body, settings)
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
        stored = ResponsesApiFormat(request, "").stored(output)
        if fields["status"] == "finished":
            return stored
        status, failure = _STATUSES[fields["status"]], None
        if status == "failed":
            failure = ResponseFailure(code="server_error", message="the generation failed; send the request again")
        return stored.model_copy(update={"status": status, "error": failure, "incomplete_details": None})

    return routes


def response_request(body: ResponseRequest, settings: GatewaySettings) -> Request:
    """The request of a response, which is a chat's. Raises: InvalidRequest, NotFound."""
    chat = ChatRequest(
        model=body.model,
        messages=messages_of(body.input) or [ChatMessage(role="user", content="")],
        max_completion_tokens=body.max_output_tokens,
        seed=body.seed,
        temperature=body.temperature,
        top_p=body.top_p,
        stream=body.stream,
        tools=[one.tool for one in body.tools or ()] or None,
        tool_choice=_chosen(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        chat_template_kwargs=body.chat_template_kwargs,
        semspec=body.semspec,
    )
    grammar = body.text.format.grammar if body.text and body.text.format else ""
    request = chat_request(chat, settings, "responses")
    if grammar and request.tools:
        raise InvalidRequest("text.format is only served without tools; leave out one of them", "text.format")
    request = formatted(request, chat, grammar, "text.format")
    options = body.model_dump_json(include={"tools", "tool_choice", "parallel_tool_calls"}) if body.tools else ""
    return replace(
        request,
        instructions=body.instructions or "",
        previous=body.previous_response_id or "",
        call_options=options,
    )


def messages_of(given: str | Sequence[InputItem]) -> list[ChatMessage]:
    """The turns of an input; calls belong to the assistant's turn before them, reasoning to none."""
    if isinstance(given, str):
        return [ChatMessage(role="user", content=given)]
    messages = list[ChatMessage]()
    for item in given:
        match item:
            case InputMessage():
                messages.append(ChatMessage(role=item.role, content=item.text))
            case InputCallOutput():
                messages.append(ChatMessage(role="tool", content=item.text, tool_call_id=item.call_id))
            case InputCall():
                function = FunctionCall(name=item.name, arguments=item.arguments)
                call = GivenCall(id=item.call_id, type="function", function=function)
                if messages and messages[-1].role == "assistant":
                    last = messages.pop()
                    messages.append(last.model_copy(update={"tool_calls": [*(last.tool_calls or ()), call]}))
                else:
                    messages.append(ChatMessage(role="assistant", tool_calls=[call]))
    return messages


def _chosen(choice: str | NamedResponseTool | None) -> Any:
    if isinstance(choice, NamedResponseTool):
        return NamedTool(type="function", function=NamedFunction(name=choice.name))
    return choice
