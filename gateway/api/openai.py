"""OpenAI's shapes for answers, of chat and of plain completions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate

from pydantic import JsonValue

from gateway.generations.call import Call
from gateway.generations.choice import Ended, Kept
from gateway.generations.output_text import Delta
from gateway.generations.statistics import Summary, statistics, usage
from gateway.http.errors import error_body
from gateway.http.formats.format import Envelope
from semspec.errors import SemspecError
from semspec.records import Json, record_json
from semspec.types import Drafted, FinishReason, TokenLogprob


def chat_logprobs(tokens: Sequence[TokenLogprob] | None) -> JsonValue:
    """`logprobs` of a chat choice."""
    if tokens is None:
        return None
    content: list[JsonValue] = [
        {**_token(token), "top_logprobs": [_token(other) for other in token.alternatives]} for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenLogprob] | None, offset: int) -> JsonValue:
    """`logprobs` of a plain completion; `offset` is where its first token begins in the whole text, in characters."""
    if tokens is None:
        return None
    texts = [_text(token) for token in tokens]
    offsets: list[JsonValue] = [*accumulate(map(len, texts), initial=offset)]
    return {
        "tokens": list[JsonValue](texts),
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{_text(other): other.logprob for other in token.alternatives} for token in tokens],
        "text_offset": offsets[:-1],
    }


def _token(token: TokenLogprob) -> Json:
    return {"token": _text(token), "logprob": token.logprob, "bytes": list(token.data)}


def _text(token: TokenLogprob) -> str:
    return token.data.decode(errors="replace")


class _OpenAIFormat(ABC):
    """What both shapes share. Our own words stand under the additional key `semspec`."""

    last_line: str | None = "[DONE]"
    kind: str
    chunk_kind: str

    def __init__(self, call: Call, envelope: Envelope) -> None:
        self._call = call
        self._envelope = envelope

    def opening(self, index: int) -> list[Json]:
        return []

    def drafted(self, event: Drafted) -> list[Json]:
        return [{**self._chunk([]), "semspec": {"drafted": _drafted(event)}}] if self._call.trace else []

    def text(self, index: int, event: Kept | Ended) -> list[Json]:
        if isinstance(event, Ended):
            return [self._chunk([self._delta(index, event.delta, None)])] if event.delta != Delta() else []
        logprobs = self._logprobs(event.record.logprobs, event.offset)
        chunk = self._chunk([self._delta(index, event.delta, logprobs)])
        if self._call.trace:
            chunk["semspec"] = {"segment": record_json(event.record)}
        return [chunk]

    def closing(self, index: int, ended: Ended, summaries: Sequence[Summary]) -> list[Json]:
        chunks = [self._chunk([self._end(index, ended.reason)])]
        if summaries and self._call.include_usage:
            chunks.append({**self._chunk([]), "usage": usage(summaries)})
        if summaries:
            chunks[-1] |= statistics(summaries, self._call)
        return chunks

    def response(self, summaries: Sequence[Summary]) -> JsonValue:
        choices = [self._choice(index, summary) for index, summary in enumerate(summaries)]
        return {
            **self._head(self.kind),
            "choices": choices,
            "usage": usage(summaries),
            **statistics(summaries, self._call),
        }

    def error(self, error: SemspecError) -> Json:
        return error_body(error)

    def _head(self, kind: str) -> Json:
        envelope = self._envelope
        return {
            "id": envelope.id,
            "object": kind,
            "created": envelope.created,
            "model": envelope.model,
            "system_fingerprint": envelope.system_fingerprint,
        }

    def _chunk(self, choices: list[JsonValue]) -> Json:
        return {**self._head(self.chunk_kind), "choices": choices, "usage": None}

    @abstractmethod
    def _delta(self, index: int, delta: Delta, logprobs: JsonValue) -> JsonValue: ...

    @abstractmethod
    def _end(self, index: int, reason: FinishReason) -> JsonValue: ...

    @abstractmethod
    def _choice(self, index: int, summary: Summary) -> JsonValue: ...

    @abstractmethod
    def _logprobs(self, tokens: Sequence[TokenLogprob] | None, offset: int) -> JsonValue: ...


class ChatFormat(_OpenAIFormat):
    """`POST /v1/chat/completions`. The reasoning up to `</think>` stands apart, under both names in use for it."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def opening(self, index: int) -> list[Json]:
        return [self._chunk([self._delta(index, Delta(), None)])]

    def _delta(self, index: int, delta: Delta, logprobs: JsonValue) -> JsonValue:
        return {"index": index, "delta": _message(delta), "logprobs": logprobs, "finish_reason": None}

    def _end(self, index: int, reason: FinishReason) -> JsonValue:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason.value}

    def _choice(self, index: int, summary: Summary) -> JsonValue:
        return {
            "index": index,
            "message": {**_message(summary.seen), "refusal": None},
            "logprobs": self._logprobs(summary.logprobs, 0),
            "finish_reason": _reason(summary),
        }

    def _logprobs(self, tokens: Sequence[TokenLogprob] | None, offset: int) -> JsonValue:
        return chat_logprobs(tokens)


class CompletionFormat(_OpenAIFormat):
    """`POST /v1/completions`."""

    kind = chunk_kind = "text_completion"

    def _delta(self, index: int, delta: Delta, logprobs: JsonValue) -> JsonValue:
        return {"index": index, "text": delta.content, "logprobs": logprobs, "finish_reason": None}

    def _end(self, index: int, reason: FinishReason) -> JsonValue:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": reason.value}

    def _choice(self, index: int, summary: Summary) -> JsonValue:
        logprobs = self._logprobs(summary.logprobs, 0)
        return {
            "index": index,
            "text": summary.seen.content,
            "logprobs": logprobs,
            "finish_reason": _reason(summary),
        }

    def _logprobs(self, tokens: Sequence[TokenLogprob] | None, offset: int) -> JsonValue:
        return completion_logprobs(tokens, offset)


def _drafted(event: Drafted) -> Json:
    segments: list[JsonValue] = [
        {"text": segment.text, "num_tokens": len(segment.token_ids)} for segment in event.segments
    ]
    return {"index": event.index, "segments": segments}


def _message(text: Delta) -> Json:
    reasoning = text.reasoning or None
    return {
        "role": "assistant",
        "content": None if reasoning and not text.content else text.content,
        "reasoning_content": reasoning,
        "reasoning": reasoning,
        "tool_calls": None,
    }


def _reason(summary: Summary) -> str | None:
    return None if summary.finish_reason is None else summary.finish_reason.value
