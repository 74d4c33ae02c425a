"""Response schemas of OpenAI's API, whole and streamed. Additional fields: `semspec`, and `metrics` as in vLLM."""

from typing import Literal

from semspec.records import Body, SegmentTrace, if_any
from semspec.types import FinishReason
from semspec_gateway.api.shared.answers import AnswerMetrics, Statistics, TokenCounts


class TopLogprob(Body):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TopLogprob):
    """An output token, with the likeliest tokens at its position."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Body):
    """Log-probabilities of all output tokens, including reasoning and the stop sequence."""

    content: list[ChatTokenLogprob]
    refusal: None


class CompletionLogprobs(Body):
    """The same in the format of plain completions."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CalledFunction(Body):
    """The function that a call is of."""

    name: str
    arguments: str
    """JSON text."""


class AnsweredCall(Body):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class CallDelta(AnsweredCall):
    """A call of a tool in a chunk, which has it as a whole."""

    index: int


class _Message(Body):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None
    reasoning: str | None


class AssistantMessage(_Message):
    """The reasoning is sent under both names in use for it; the rest is content."""

    tool_calls: list[CallDelta] | None


class ChoiceMessage(_Message):
    """The message of a whole response."""

    tool_calls: list[AnsweredCall] | None
    refusal: None


class NoDelta(Body):
    """The empty delta of a choice's last chunk."""


class ChatChoice(Body):
    """One choice of a chat completion."""

    index: int
    message: ChoiceMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | Literal["tool_calls"] | None


class CompletionChoice(Body):
    """One choice of a plain completion; in a chunk, the next part of its text."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class ChunkChoice(Body):
    """The next part of one choice of a chat completion."""

    index: int
    delta: AssistantMessage | NoDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | Literal["tool_calls"] | None


class DraftedSegment(Body):
    """A drafted segment that has not been judged yet."""

    text: str
    num_tokens: int


class DraftedSegments(Body):
    """All drafted segments that have not been judged yet."""

    index: int
    """Index of the first of them."""
    segments: list[DraftedSegment]


class ChunkDrafted(Body):
    """With `trace`: the drafted segments that wait for their verdict."""

    drafted: DraftedSegments


class ChunkSegment(Body):
    """With `trace`: the record of the segment that ends in this chunk."""

    segment: SegmentTrace


class ChunkWriting(Body):
    """With `trace`: the text is the next part of a segment that the target is writing, whose record follows."""

    writing: int
    """Index of the segment."""


class _Answer(Body):
    id: str
    created: int
    """Seconds since 1970."""
    model: str
    system_fingerprint: str
    """Changes whenever the same seed may give another output."""


class _WholeAnswer(_Answer):
    usage: TokenCounts
    semspec: Statistics
    metrics: AnswerMetrics


class _Chunk(_Answer):
    usage: TokenCounts | None
    """In the last chunk, if `stream_options.include_usage` is set."""
    semspec: Statistics | ChunkSegment | ChunkDrafted | ChunkWriting | None = if_any()
    metrics: AnswerMetrics | None = if_any()


class ChatCompletion(_WholeAnswer):
    """A whole chat completion."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class TextCompletion(_WholeAnswer):
    """A whole plain completion."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class ChatCompletionChunk(_Chunk):
    """A streamed chunk of a chat completion. The last one has `semspec` and `metrics` of the whole response."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChunkChoice]


class TextCompletionChunk(_Chunk):
    """A streamed chunk of a plain completion, with the same additional fields."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
