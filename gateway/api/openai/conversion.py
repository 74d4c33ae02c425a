"""Converts the bodies of chats and plain completions to what they ask for."""

from collections.abc import Mapping
from typing import Any

from semspec.errors import InvalidRequest
from semspec.gateway.api.openai.formats import calls_grammar, format_grammar, offered, tools_json
from semspec.gateway.api.openai.requests import ChatRequest, CompletionRequest
from semspec.gateway.api.shared.resolver import EFFORT, EFFORT_PARAMETER, AnswerOptions, ClientRequest
from semspec.types import TokenIds


def chat_request(body: ChatRequest) -> ClientRequest:
    """Raises: InvalidRequest."""
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs is only allowed when logprobs is true", "top_logprobs")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidRequest("max_tokens is another name for max_completion_tokens; give one of them", "max_tokens")
    tools, grammar = offered(body.tools, body.tool_choice), format_grammar(body.response_format)
    if tools and grammar:
        raise InvalidRequest("response_format is only served without tools; leave out one of them", "response_format")
    if tools:
        grammar = calls_grammar(tools, body.tool_choice, body.parallel_tool_calls is not False)
    fields = {"prompt": "messages", "grammar": "tools" if tools else "response_format"}
    if body.reasoning_effort is not None:
        fields[EFFORT_PARAMETER] = EFFORT
    return ClientRequest(
        body=body,
        prompts=(tuple(message.message for message in body.messages),),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        answer=AnswerOptions.of("chat", body, fields),
        grammar=grammar,
        tools=tools_json(tools),
        variables=variables_of(body.chat_template_kwargs, body.reasoning_effort, EFFORT),
    )


def variables_of(given: Mapping[str, Any] | None, effort: str | None, field: str) -> Mapping[str, Any]:
    """The chat template's variables; `field` sets the effort. Raises: InvalidRequest when that is given twice."""
    if effort is None:
        return given or {}
    if given and EFFORT in given:
        raise InvalidRequest(f"{field} sets the variable {EFFORT!r} of chat_template_kwargs; give one of them", field)
    return {**(given or {}), EFFORT: effort}


def completion_request(body: CompletionRequest) -> ClientRequest:
    return ClientRequest(
        body=body,
        prompts=_prompts(body),
        max_tokens=body.max_tokens,
        num_logprobs=body.logprobs,
        answer=AnswerOptions.of("completions", body, {}),
    )


def _prompts(body: CompletionRequest) -> tuple[str | TokenIds, ...]:
    given = body.prompt
    if isinstance(given, str):
        return (given,)
    if ids := tuple(token for token in given if isinstance(token, int)):
        return (TokenIds(ids),)
    several = (prompt for prompt in given if not isinstance(prompt, int))
    return tuple(prompt if isinstance(prompt, str) else TokenIds(tuple(prompt)) for prompt in several)
