"""OpenAI's API: routes of chat and plain completions, what their bodies ask for, and their response formats."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import BaseModel

from semspec.errors import InvalidRequest
from semspec.records import SegmentTrace
from semspec.types import Drafted, FinishReason, Penalties, TokenIds, TokenLogprob
from semspec_gateway.api.openai import answers
from semspec_gateway.api.openai.requests import (
    ChatRequest,
    CompletionRequest,
    NamedTool,
    answer_grammar,
    format_grammar,
    offered,
    template_tools,
)
from semspec_gateway.api.shared import document
from semspec_gateway.api.shared.bodies import BodyRoute
from semspec_gateway.api.shared.formats import Format
from semspec_gateway.api.shared.idempotency import Key
from semspec_gateway.api.shared.requests import CompletionBody
from semspec_gateway.api.shared.resolver import (
    EFFORT,
    EFFORT_PARAMETER,
    answer_options,
    variables_of,
)
from semspec_gateway.api.shared.responder import Responder
from semspec_gateway.generation.choice import Choice, Ended, Kept, Written
from semspec_gateway.generation.parsers import Delta
from semspec_gateway.generation.request import AnswerOptions, ClientRequest, GenerationRequest
from semspec_gateway.generation.usage import usage

_NEVER = 2**31 - 1


def router(responder: Responder) -> APIRouter:
    """`/v1/chat/completions` and `/v1/completions`."""
    routes = APIRouter(prefix="/v1", tags=["completions"], route_class=BodyRoute)

    @routes.post(
        "/chat/completions",
        response_model=answers.ChatCompletion,
        responses=document.generating(answers.ChatCompletionChunk),
    )
    async def chat_completions(http: HttpRequest, body: ChatRequest, key: Key = None) -> Response:
        """Answer a conversation."""
        return await responder.respond(http, body, chat_request(body), key)

    @routes.post(
        "/completions",
        response_model=answers.TextCompletion,
        responses=document.generating(answers.TextCompletionChunk),
    )
    async def completions(http: HttpRequest, body: CompletionRequest, key: Key = None) -> Response:
        """Continue a text."""
        return await responder.respond(http, body, completion_request(body), key)

    @routes.post("/embeddings", include_in_schema=False)
    async def embeddings() -> Response:
        """Refuse by name what clients of this API may expect."""
        raise InvalidRequest(
            "embeddings are not supported: this server's models generate text", "model"
        )

    return routes


def chat_request(body: ChatRequest) -> ClientRequest:
    """Raises: InvalidRequest."""
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs is only allowed when logprobs is true", "top_logprobs")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidRequest(
            "max_tokens is another name for max_completion_tokens",
            "max_tokens",
            remedy="give one of them",
        )
    choice = (
        body.tool_choice.function if isinstance(body.tool_choice, NamedTool) else body.tool_choice
    )
    tools = offered([tool.function for tool in body.tools or ()], choice)
    format = format_grammar(body.response_format)
    fields = {"prompt": "messages", "grammar": "tools" if tools else "response_format"}
    if body.reasoning_effort is not None:
        fields[EFFORT_PARAMETER] = EFFORT
    return _client_request(
        "chat",
        body,
        fields,
        prompts=(tuple(message.message for message in body.messages),),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        grammar=answer_grammar(tools, choice, body.parallel_tool_calls, format, "response_format"),
        tools=template_tools(tools),
        variables=variables_of(body.chat_template_kwargs, body.reasoning_effort, EFFORT),
        thinking_token_budget=body.thinking_token_budget,
    )


def completion_request(body: CompletionRequest) -> ClientRequest:
    return _client_request(
        "completions",
        body,
        {},
        prompts=_prompts(body),
        max_tokens=body.max_tokens,
        num_logprobs=body.logprobs,
    )


def _client_request(
    api: str, body: CompletionBody, fields: Mapping[str, str], **specific: Any
) -> ClientRequest:
    """Add the fields that chats and plain completions share to those that are `specific` to one of them.

    `fields`: see `naming`.

    Raises: InvalidRequest when the body has options of a stream and asks for none.
    """
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is only allowed when stream is true", "stream_options")
    include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    biases = sorted((int(token), bias) for token, bias in (body.logit_bias or {}).items())
    return ClientRequest(
        answer=answer_options(AnswerOptions, api, body, fields, include_usage=include_usage),
        num_choices_per_prompt=body.n or 1,
        min_tokens=_NEVER if body.ignore_eos else body.min_tokens or 0,
        penalties=Penalties(
            body.presence_penalty or 0.0,
            body.frequency_penalty or 0.0,
            1.0 if body.repetition_penalty is None else body.repetition_penalty,
            tuple(biases),
        ),
        stops=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        has_seed=body.seed is not None,
        **specific,
    )


def _prompts(body: CompletionRequest) -> tuple[str | TokenIds, ...]:
    if isinstance(body.prompt, str):
        return (body.prompt,)
    if ids := tuple(token for token in body.prompt if isinstance(token, int)):
        return (TokenIds(ids),)
    prompts = (prompt for prompt in body.prompt if not isinstance(prompt, int))
    return tuple(
        prompt if isinstance(prompt, str) else TokenIds(tuple(prompt)) for prompt in prompts
    )


class _OpenAIFormat(Format):
    """The parts that the formats of chats and plain completions share."""

    last_line: str | None = "[DONE]"
    _chunk_body: type[BaseModel]
    _whole_body: type[BaseModel]

    def __init__(self, request: GenerationRequest, system_fingerprint: str) -> None:
        super().__init__(request, system_fingerprint)
        self._head = {
            "id": request.id,
            "created": request.created,
            "model": request.model,
            "system_fingerprint": system_fingerprint,
        }

    def drafted(self, event: Drafted) -> list[BaseModel]:
        if not self._options.trace:
            return []
        segments = [
            {"text": segment.text, "num_tokens": len(segment.token_ids)}
            for segment in event.segments
        ]
        drafted = {"index": event.index, "segments": segments}
        return [self._chunk([], semspec=answers.ChunkDrafted(drafted=drafted))]

    def text(self, index: int, event: Written | Kept | Ended) -> list[BaseModel]:
        if isinstance(event, Ended):
            return (
                [self._chunk([self._piece(index, event.delta)])] if event.delta != Delta() else []
            )
        choice = self._piece(index, event.delta, self._logprobs(event.logprobs, event.offset))
        if self._options.trace:
            return [self._chunk([choice], semspec=self._progress(event))]
        if isinstance(event, Kept) and event.was_shown and not event.logprobs:
            return [self._chunk([choice])] if event.delta != Delta() else []
        return [self._chunk([choice])]

    def _progress(self, event: Written | Kept) -> BaseModel:
        if isinstance(event, Written):
            return answers.ChunkWriting(writing=event.place.num_segments)
        return answers.ChunkSegment(segment=SegmentTrace.of(event.record))

    def closing(self, index: int, ended: Ended, choices: Sequence[Choice]) -> list[BaseModel]:
        end = [self._piece(index, Delta(), reason=ended.reason)]
        if not choices:
            return [self._chunk(end)]
        extra = self.statistics(choices)
        if not self._options.include_usage:
            return [self._chunk(end, **extra)]
        return [self._chunk(end), self._chunk([], usage=usage(choices), **extra)]

    def response(self, choices: Sequence[Choice]) -> BaseModel:
        return self._whole_body(
            choices=list(map(self._choice, choices)),
            usage=usage(choices),
            **self._head,
            **self.statistics(choices),
        )

    def _chunk(self, choices: Sequence[BaseModel], **fields: Any) -> BaseModel:
        return self._chunk_body(choices=choices, **self._head, **{"usage": None, **fields})

    @abstractmethod
    def _piece(
        self, index: int, delta: Delta, logprobs: Any = None, reason: FinishReason | None = None
    ) -> BaseModel:
        """The next part of a choice; its last one has the `reason` for its end."""

    @abstractmethod
    def _choice(self, choice: Choice) -> BaseModel: ...

    @abstractmethod
    def _logprobs(
        self, tokens: Sequence[TokenLogprob] | None, offset: int
    ) -> dict[str, Any] | None:
        """`offset` is the position of the first token in the whole text, in characters."""


class ChatFormat(_OpenAIFormat):
    """`POST /v1/chat/completions`. Reasoning is sent as both `reasoning` and `reasoning_content`."""

    _chunk_body, _whole_body = answers.ChatCompletionChunk, answers.ChatCompletion

    def __init__(self, request: GenerationRequest, system_fingerprint: str) -> None:
        super().__init__(request, system_fingerprint)
        self._num_calls = [0] * request.num_choices
        """Calls of tools so far in the stream, by choice."""

    def opening(self, index: int) -> list[BaseModel]:
        return [self._chunk([self._piece(index, Delta())])]

    def _piece(
        self, index: int, delta: Delta, logprobs: Any = None, reason: FinishReason | None = None
    ) -> answers.ChunkChoice:
        if reason is not None:
            ending = _ending(reason, self._num_calls[index])
            return answers.ChunkChoice(
                index=index, delta=answers.NoDelta(), logprobs=None, finish_reason=ending
            )
        first = self._num_calls[index]
        self._num_calls[index] += len(delta.calls)
        calls = [{"index": first + i, **call.openai} for i, call in enumerate(delta.calls)] or None
        message = answers.AssistantMessage(**_message(delta), tool_calls=calls)
        return answers.ChunkChoice(
            index=index, delta=message, logprobs=logprobs, finish_reason=None
        )

    def _choice(self, choice: Choice) -> answers.ChatChoice:
        calls = [call.openai for call in choice.seen.calls]
        return answers.ChatChoice(
            index=choice.index,
            message=answers.ChoiceMessage(
                **_message(choice.seen), tool_calls=calls or None, refusal=None
            ),
            logprobs=self._logprobs(choice.logprobs, 0),
            finish_reason=_ending(choice.finish_reason, len(calls)),
        )

    def _logprobs(
        self, tokens: Sequence[TokenLogprob] | None, offset: int
    ) -> dict[str, Any] | None:
        if tokens is None:
            return None
        content = [
            {**_token(token), "top_logprobs": list(map(_token, token.alternatives))}
            for token in tokens
        ]
        return {"content": content, "refusal": None}


class CompletionFormat(_OpenAIFormat):
    """`POST /v1/completions`."""

    _chunk_body, _whole_body = answers.TextCompletionChunk, answers.TextCompletion

    def _piece(
        self, index: int, delta: Delta, logprobs: Any = None, reason: FinishReason | None = None
    ) -> answers.CompletionChoice:
        return answers.CompletionChoice(
            index=index, text=delta.content, logprobs=logprobs, finish_reason=reason
        )

    def _choice(self, choice: Choice) -> answers.CompletionChoice:
        return self._piece(
            choice.index, choice.seen, self._logprobs(choice.logprobs, 0), choice.finish_reason
        )

    def _logprobs(
        self, tokens: Sequence[TokenLogprob] | None, offset: int
    ) -> dict[str, Any] | None:
        if tokens is None:
            return None
        texts = [_text(token) for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {_text(other): other.logprob for other in token.alternatives} for token in tokens
            ],
            "text_offset": [*accumulate(map(len, texts), initial=offset)][:-1],
        }


def _message(text: Delta) -> dict[str, Any]:
    reasoning = text.reasoning or None
    return {
        "role": "assistant",
        "content": None if (reasoning or text.calls) and not text.content else text.content,
        "reasoning_content": reasoning,
        "reasoning": reasoning,
    }


def _ending(
    reason: FinishReason | None, num_calls: int
) -> FinishReason | Literal["tool_calls"] | None:
    return "tool_calls" if num_calls and reason is FinishReason.STOP else reason


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": _text(token), "logprob": token.logprob, "bytes": list(token.data)}


def _text(token: TokenLogprob) -> str:
    return token.data.decode(errors="replace")
