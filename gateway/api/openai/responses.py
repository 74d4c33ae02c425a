"""OpenAI's Responses API: a text in, reasoning and an answer out, whole or as events; stored as a generation is."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from semspec.errors import Conflict, InvalidRequest, NotFound
from semspec.gateway.api.openai.conversion import EFFORT_PARAMETER, ClientRequest, variables_of
from semspec.gateway.api.openai.formats import (
    NamedFunction,
    NamedResponseTool,
    NamedTool,
    calls_grammar,
    offered,
    tools_json,
)
from semspec.gateway.api.openai.requests import ChatMessage, FunctionCall, GenerationRequest
from semspec.gateway.api.openai.requests import ToolCall as GivenCall
from semspec.gateway.api.openai.responses_format import ResponseOptions, ResponsesFormat
from semspec.gateway.api.openai.responses_models import (
    InputCall,
    InputCallOutput,
    InputItem,
    InputMessage,
    ModelResponse,
    ResponseFailure,
    ResponseRequest,
    joined,
)
from semspec.gateway.api.shared.document import IDEMPOTENT, RESPONSE, STORED
from semspec.gateway.api.shared.middleware import OwnerOf, owner_of
from semspec.gateway.api.shared.resources import GenerationId, owned
from semspec.gateway.api.shared.sse import Responder
from semspec.gateway.generation.output import ChoiceOutput
from semspec.gateway.generation.request import Request, stored_choice, stored_request
from semspec.gateway.readiness import Readiness
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


def router(responder: Responder, readiness: Readiness, store: Store) -> APIRouter:
    """`/v1/responses`."""
    routes = APIRouter(prefix="/v1/responses", tags=["completions"])

    async def output_of(id: str, owner: str) -> tuple[dict[str, str], Request, ChoiceOutput]:
        fields = await owned(id, owner, store)
        request = stored_request(id, fields)
        if json.loads(request.answer)["api"] != "responses":
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
        previous = body.previous_response_id
        if previous is not None and body.semspec.session is not None:
            message = "a session has the earlier turns already; leave out one of session and previous_response_id"
            raise InvalidRequest(message, "semspec.session")
        turns = await history(previous, owner_of(http)) if previous is not None else ()
        return await responder.respond(http, response_request(body, turns), body)

    @routes.get("/{id}", responses=STORED)
    async def response(id: GenerationId, owner: OwnerOf) -> ModelResponse:
        """A stored response, as far as it is written."""
        fields, request, output = await output_of(id, owner)
        stored = ResponsesFormat(request, json.loads(request.answer), "").stored(output)
        if fields["status"] == "finished":
            return stored
        status, failure = _STATUSES[fields["status"]], None
        if status == "failed":
            failure = ResponseFailure(code="server_error", message="the generation failed; send the request again")
        return stored.model_copy(update={"status": status, "error": failure, "incomplete_details": None})

    return routes


def response_request(body: ResponseRequest, turns: tuple[Message, ...]) -> ClientRequest:
    """What a response's body asks for after earlier `turns`. Raises: InvalidRequest."""
    shared = GenerationRequest(
        model=body.model,
        seed=body.seed,
        temperature=body.temperature,
        top_p=body.top_p,
        stream=body.stream,
        semspec=body.semspec,
    )
    choice = _chosen(body.tool_choice)
    tools = offered([one.tool for one in body.tools or ()], choice)
    grammar = body.text.format.grammar if body.text and body.text.format else ""
    if tools and grammar:
        raise InvalidRequest("text.format is only served without tools; leave out one of them", "text.format")
    if tools:
        grammar = calls_grammar(tools, choice, body.parallel_tool_calls is not False)
    effort = body.reasoning.effort if body.reasoning else None
    fields = {"prompt": "input", "grammar": "tools" if tools else "text.format"}
    if effort:
        fields[EFFORT_PARAMETER] = "reasoning.effort"
    messages = messages_of(body.input) or [ChatMessage(role="user", content="")]
    return ClientRequest(
        body=shared,
        prompts=((*turns, *(message.message for message in messages)),),
        max_tokens=body.max_output_tokens,
        num_logprobs=None,
        answer=ResponseOptions.of(
            "responses",
            shared,
            fields,
            previous_response_id=body.previous_response_id,
            effort=effort,
            tools=body.tools or [],
            tool_choice=body.tool_choice or "auto" if body.tools else "auto",
            parallel_tool_calls=bool(body.tools) and body.parallel_tool_calls is not False,
        ),
        grammar=grammar,
        instructions=body.instructions or "",
        tools=tools_json(tools),
        variables=variables_of(body.chat_template_kwargs, effort, "reasoning.effort"),
    )


def messages_of(given: str | Sequence[InputItem]) -> list[ChatMessage]:
    """The turns of an input; calls belong to the assistant's turn before them, reasoning to none."""
    if isinstance(given, str):
        return [ChatMessage(role="user", content=given)]
    messages = list[ChatMessage]()
    for item in given:
        match item:
            case InputMessage():
                messages.append(ChatMessage(role=item.role, content=joined(item.content)))
            case InputCallOutput():
                messages.append(ChatMessage(role="tool", content=joined(item.output), tool_call_id=item.call_id))
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
