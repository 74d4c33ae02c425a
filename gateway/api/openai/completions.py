"""OpenAI's API: routes, and response formats of chat and plain completions."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import BaseModel

from semspec.errors import InvalidRequest
from semspec.gateway.api.openai import answers
from semspec.gateway.api.openai.conversion import chat_request, completion_request
from semspec.gateway.api.openai.requests import ChatRequest, CompletionRequest
from semspec.gateway.api.shared import document
from semspec.gateway.api.shared.answers import Format, TokenCounts, statistics
from semspec.gateway.api.shared.sse import Responder
from semspec.gateway.generation.output import ChoiceOutput, Ended, Kept, usage
from semspec.gateway.generation.parsers import Delta, ToolCall
from semspec.gateway.generation.request import Request
from semspec.records import SegmentTrace
from semspec.types import Drafted, FinishReason, TokenLogprob


def router(responder: Responder) -> APIRouter:
    """`/v1/chat/completions` and `/v1/completions`."""
    routes = APIRouter(prefix="/v1", tags=["completions"])

    @routes.post("/chat/completions", response_model=None, responses=document.CHAT, openapi_extra=document.IDEMPOTENT)
    async def chat_completions(http: HttpRequest, body: ChatRequest) -> Response:
        """Answer a conversation."""
        return await responder.respond(http, chat_request(body), body)

    @routes.post("/completions", response_model=None, responses=document.COMPLETION, openapi_extra=document.IDEMPOTENT)
    async def completions(http: HttpRequest, body: CompletionRequest) -> Response:
        """Continue a text."""
        return await responder.respond(http, completion_request(body), body)

    @routes.post("/embeddings", include_in_schema=False)
    async def embeddings() -> Response:
        """Refuse by name what clients of this API may expect."""
        raise InvalidRequest("embeddings are not supported: this server's models generate text", "model")

    return routes


class _OpenAIFormat(Format):
    """What both formats share."""

    last_line: str | None = "[DONE]"
    _chunk_body: type[BaseModel]
    _whole_body: type[BaseModel]
    _objects: tuple[str, str]
    """Values of `object` in the two."""

    def __init__(self, request: Request, options: Mapping[str, Any], system_fingerprint: str) -> None:
        super().__init__(request, options, system_fingerprint)
        self._head = {
            "id": request.id,
            "created": request.created,
            "model": request.model,
            "system_fingerprint": system_fingerprint,
        }

    def drafted(self, event: Drafted) -> list[BaseModel]:
        return [self._chunk([], semspec=_drafted(event))] if self._options.trace else []

    def text(self, index: int, event: Kept | Ended) -> list[BaseModel]:
        if isinstance(event, Ended):
            return [self._chunk([self._piece(index, event.delta, None)])] if event.delta != Delta() else []
        choice = self._piece(index, event.delta, self._logprobs(event.record.logprobs, event.offset))
        if self._options.trace:
            return [self._chunk([choice], semspec=answers.ChunkSegment(segment=SegmentTrace.of(event.record)))]
        return [self._chunk([choice])]

    def closing(self, index: int, ended: Ended, outputs: Sequence[ChoiceOutput]) -> list[BaseModel]:
        end = [self._final_piece(index, ended.reason)]
        if not outputs:
            return [self._chunk(end)]
        extra = statistics(outputs, self._request, self._options.trace)
        if not self._options.include_usage:
            return [self._chunk(end, **extra)]
        return [self._chunk(end), self._chunk([], usage=self._usage(outputs), **extra)]

    def response(self, outputs: Sequence[ChoiceOutput]) -> BaseModel:
        return self._whole_body(
            object=self._objects[1],
            choices=[self._choice(index, output) for index, output in enumerate(outputs)],
            usage=self._usage(outputs),
            **self._head,
            **statistics(outputs, self._request, self._options.trace),
        )

    def _usage(self, outputs: Sequence[ChoiceOutput]) -> TokenCounts:
        return TokenCounts(**usage(outputs, len(self._request.prompts)))

    def _chunk(self, choices: Sequence[BaseModel], **fields: Any) -> BaseModel:
        return self._chunk_body(object=self._objects[0], choices=choices, **self._head, **{"usage": None, **fields})

    @abstractmethod
    def _piece(self, index: int, delta: Delta, logprobs: Any) -> BaseModel: ...

    @abstractmethod
    def _final_piece(self, index: int, reason: FinishReason) -> BaseModel: ...

    @abstractmethod
    def _choice(self, index: int, output: ChoiceOutput) -> BaseModel: ...

    @abstractmethod
    def _logprobs(self, tokens: Sequence[TokenLogprob] | None, offset: int) -> BaseModel | None: ...


class ChatFormat(_OpenAIFormat):
    """`POST /v1/chat/completions`. Reasoning up to `</think>` is sent as both `reasoning` and `reasoning_content`."""

    _chunk_body, _whole_body = answers.ChatCompletionChunk, answers.ChatCompletion
    _objects = ("chat.completion.chunk", "chat.completion")

    def __init__(self, request: Request, options: Mapping[str, Any], system_fingerprint: str) -> None:
        super().__init__(request, options, system_fingerprint)
        self._num_calls = [0] * request.num_choices
        """Calls of tools so far in the stream, by choice."""

    def opening(self, index: int) -> list[BaseModel]:
        return [self._chunk([self._piece(index, Delta(), None)])]

    def _piece(self, index: int, delta: Delta, logprobs: answers.ChatLogprobs | None) -> answers.ChunkChoice:
        first = self._num_calls[index]
        self._num_calls[index] += len(delta.calls)
        calls = [answers.CallDelta(index=first + i, **_call(call)) for i, call in enumerate(delta.calls)] or None
        message = answers.AssistantMessage(**_message(delta), tool_calls=calls)
        return answers.ChunkChoice(index=index, delta=message, logprobs=logprobs, finish_reason=None)

    def _final_piece(self, index: int, reason: FinishReason) -> answers.ChunkChoice:
        ending = _ending(reason, self._num_calls[index])
        return answers.ChunkChoice(index=index, delta=answers.NoDelta(), logprobs=None, finish_reason=ending)

    def _choice(self, index: int, output: ChoiceOutput) -> answers.ChatChoice:
        calls = [answers.AnsweredCall(**_call(call)) for call in output.seen.calls]
        return answers.ChatChoice(
            index=index,
            message=answers.ChoiceMessage(**_message(output.seen), tool_calls=calls or None, refusal=None),
            logprobs=self._logprobs(output.logprobs, 0),
            finish_reason=_ending(output.finish_reason, len(calls)),
        )

    def _logprobs(self, tokens: Sequence[TokenLogprob] | None, offset: int) -> answers.ChatLogprobs | None:
        if tokens is None:
            return None
        content = [
            answers.ChatTokenLogprob(
                **_token(token), top_logprobs=[answers.TopLogprob(**_token(other)) for other in token.alternatives]
            )
            for token in tokens
        ]
        return answers.ChatLogprobs(content=content, refusal=None)


class CompletionFormat(_OpenAIFormat):
    """`POST /v1/completions`."""

    _chunk_body, _whole_body = answers.TextCompletionChunk, answers.TextCompletion
    _objects = ("text_completion", "text_completion")

    def _piece(self, index: int, delta: Delta, logprobs: answers.CompletionLogprobs | None) -> answers.CompletionChoice:
        return answers.CompletionChoice(index=index, text=delta.content, logprobs=logprobs, finish_reason=None)

    def _final_piece(self, index: int, reason: FinishReason) -> answers.CompletionChoice:
        return answers.CompletionChoice(index=index, text="", logprobs=None, finish_reason=reason)

    def _choice(self, index: int, output: ChoiceOutput) -> answers.CompletionChoice:
        return answers.CompletionChoice(
            index=index,
            text=output.seen.content,
            logprobs=self._logprobs(output.logprobs, 0),
            finish_reason=output.finish_reason,
        )

    def _logprobs(self, tokens: Sequence[TokenLogprob] | None, offset: int) -> answers.CompletionLogprobs | None:
        """`offset` is the position of the first token in the whole text, in characters."""
        if tokens is None:
            return None
        texts = [_text(token) for token in tokens]
        return answers.CompletionLogprobs(
            tokens=texts,
            token_logprobs=[token.logprob for token in tokens],
            top_logprobs=[{_text(other): other.logprob for other in token.alternatives} for token in tokens],
            text_offset=[*accumulate(map(len, texts), initial=offset)][:-1],
        )


def _message(text: Delta) -> dict[str, Any]:
    reasoning = text.reasoning or None
    return {
        "role": "assistant",
        "content": None if (reasoning or text.calls) and not text.content else text.content,
        "reasoning_content": reasoning,
        "reasoning": reasoning,
    }


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": answers.CalledFunction(name=call.name, arguments=call.arguments),
    }


def _ending(reason: FinishReason | None, num_calls: int) -> FinishReason | Literal["tool_calls"] | None:
    return "tool_calls" if num_calls and reason is FinishReason.STOP else reason


def _drafted(event: Drafted) -> answers.ChunkDrafted:
    segments = [
        answers.DraftedSegment(text=segment.text, num_tokens=len(segment.token_ids)) for segment in event.segments
    ]
    return answers.ChunkDrafted(drafted=answers.DraftedSegments(index=event.index, segments=segments))


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": _text(token), "logprob": token.logprob, "bytes": list(token.data)}


def _text(token: TokenLogprob) -> str:
    return token.data.decode(errors="replace")
