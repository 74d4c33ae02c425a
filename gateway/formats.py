"""OpenAI's shapes for answers, of chat and of plain completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from gateway.summary import Summary
from semspec.core import FinishReason
from semspec.trace import Json


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk of a stream, and a whole response, says of itself."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class Format(Protocol):
    """How one API writes what was generated."""

    def opening(self, index: int) -> list[Json]:
        """Chunks that come before a choice's first text."""
        ...

    def delta(self, index: int, text: str) -> Json:
        """The chunk of one segment."""
        ...

    def closing(self, index: int, reason: FinishReason) -> Json:
        """A choice's last chunk."""
        ...

    def usage(self, usage: Json) -> Json:
        """The chunk asked for with `stream_options.include_usage`."""
        ...

    def response(self, summaries: Sequence[Summary], usage: Json) -> Json:
        """The whole answer at once."""
        ...


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """`POST /v1/chat/completions`. The reasoning up to `</think>` is part of the content."""

    envelope: Envelope

    def opening(self, index: int) -> list[Json]:
        return [self.delta(index, "")]

    def delta(self, index: int, text: str) -> Json:
        return self._chunk([self._choice(index, _message(text), None)])

    def closing(self, index: int, reason: FinishReason) -> Json:
        return self._chunk([self._choice(index, {}, reason)])

    def usage(self, usage: Json) -> Json:
        return {**self._chunk([]), "usage": usage}

    def response(self, summaries: Sequence[Summary], usage: Json) -> Json:
        choices: list[JsonValue] = [
            {
                "index": index,
                "message": {**_message(summary.text), "refusal": None},
                "logprobs": None,
                "finish_reason": _reason(summary.finish_reason),
            }
            for index, summary in enumerate(summaries)
        ]
        return {**_head(self.envelope, "chat.completion"), "choices": choices, "usage": usage}

    def _choice(self, index: int, delta: Json, reason: FinishReason | None) -> JsonValue:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": _reason(reason)}

    def _chunk(self, choices: list[JsonValue]) -> Json:
        return {**_head(self.envelope, "chat.completion.chunk"), "choices": choices, "usage": None}


@dataclass(frozen=True, slots=True)
class CompletionFormat:
    """`POST /v1/completions`."""

    envelope: Envelope

    def opening(self, index: int) -> list[Json]:
        return []

    def delta(self, index: int, text: str) -> Json:
        return self._body([self._choice(index, text, None)], None)

    def closing(self, index: int, reason: FinishReason) -> Json:
        return self._body([self._choice(index, "", reason)], None)

    def usage(self, usage: Json) -> Json:
        return self._body([], usage)

    def response(self, summaries: Sequence[Summary], usage: Json) -> Json:
        choices = [self._choice(i, summary.text, summary.finish_reason) for i, summary in enumerate(summaries)]
        return self._body(choices, usage)

    def _choice(self, index: int, text: str, reason: FinishReason | None) -> JsonValue:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": _reason(reason)}

    def _body(self, choices: list[JsonValue], usage: Json | None) -> Json:
        return {**_head(self.envelope, "text_completion"), "choices": choices, "usage": usage}


def _head(envelope: Envelope, kind: str) -> Json:
    return {
        "id": envelope.id,
        "object": kind,
        "created": envelope.created,
        "model": envelope.model,
        "system_fingerprint": envelope.system_fingerprint,
    }


def _message(text: str) -> Json:
    return {"role": "assistant", "content": text, "tool_calls": None}


def _reason(reason: FinishReason | None) -> str | None:
    return None if reason is None else reason.value
