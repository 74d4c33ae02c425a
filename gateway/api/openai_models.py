"""Answers of OpenAI's API, whole and as the events of a stream. Our own fields: `semspec`, and `metrics` as in vLLM."""

from typing import Literal

from semspec.gateway.api.statistics import AnswerMetrics, Statistics, TokenCounts
from semspec.records import Body, SegmentTrace, if_any
from semspec.types import FinishReason


class TokenChance(Body):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class WrittenToken(TokenChance):
    """A token of the answer, and the likeliest in its place."""

    top_logprobs: list[TokenChance]


class ChatLogprobs(Body):
    """Of all tokens written, reasoning and a stop sequence included."""

    content: list[WrittenToken]
    refusal: None


class CompletionLogprobs(Body):
    """The same in the shape of plain completions."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class AssistantMessage(Body):
    """Text up to `</think>` is reasoning, under both names in use for it; the rest is content."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None
    reasoning: str | None
    tool_calls: None


class WholeMessage(AssistantMessage):
    """The message of a whole answer."""

    refusal: None


class NoDelta(Body):
    """A choice's last chunk adds nothing."""


class ChatChoice(Body):
    """One answer to a conversation."""

    index: int
    message: WholeMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class CompletionChoice(Body):
    """One text; in a chunk, a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class ChunkChoice(Body):
    """A piece of one answer to a conversation."""

    index: int
    delta: AssistantMessage | NoDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class DraftedSegment(Body):
    """A segment in flight."""

    text: str
    num_tokens: int


class DraftedSegments(Body):
    """Segments that the draft has written and that are not yet judged."""

    index: int
    """Of the first of them."""
    segments: list[DraftedSegment]


class ChunkDrafted(Body):
    """With `trace`: what is in flight now."""

    drafted: DraftedSegments


class ChunkSegment(Body):
    """With `trace`: the record of the segment that the chunk ends."""

    segment: SegmentTrace


class _Answer(Body):
    id: str
    created: int
    """Seconds since 1970."""
    model: str
    system_fingerprint: str
    """Changes whenever the same seed may give another answer."""


class _WholeAnswer(_Answer):
    usage: TokenCounts
    semspec: Statistics
    metrics: AnswerMetrics


class _Chunk(_Answer):
    usage: TokenCounts | None
    """In the last chunk, if `stream_options.include_usage` asks for it."""


class ChatCompletion(_WholeAnswer):
    """A whole answer to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextCompletion(_WholeAnswer):
    """A whole plain completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ChatCompletionChunk(_Chunk):
    """An event of a chat's stream. The last one has `semspec` and `metrics` of the whole answer."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    semspec: Statistics | ChunkSegment | ChunkDrafted | None = if_any()
    metrics: AnswerMetrics | None = if_any()


class TextCompletionChunk(_Chunk):
    """An event of a plain completion's stream, with the same additions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    semspec: Statistics | ChunkSegment | ChunkDrafted | None = if_any()
    metrics: AnswerMetrics | None = if_any()
