"""Response schemas of OpenAI's Responses API: a response, and the events of a stream."""

from typing import Literal

from pydantic import Field

from semspec.records import Body, if_any
from semspec_gateway.api.openai.responses_requests import ResponseTool, ResponseToolChoice
from semspec_gateway.api.shared.answers import (
    AnswerMetrics,
    CompletionTokens,
    PromptTokens,
    Statistics,
)
from semspec_gateway.api.shared.requests import Effort

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ReasoningPart(Body):
    """The text of the reasoning."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class OutputText(Body):
    """The text of the answer."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class ReasoningItem(Body):
    """The reasoning, without its marks."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    summary: tuple[()] = ()
    content: list[ReasoningPart]
    status: ItemStatus


class MessageItem(Body):
    """The answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]
    status: ItemStatus


class CallItem(Body):
    """A call of a tool."""

    id: str
    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


Part = ReasoningPart | OutputText
Item = ReasoningItem | MessageItem | CallItem


class ResponseUsage(Body):
    """Token counts."""

    input_tokens: int
    input_tokens_details: PromptTokens | None = if_any()
    """Only where the target reports what it had cached."""
    output_tokens: int
    output_tokens_details: CompletionTokens
    total_tokens: int


class Incomplete(Body):
    """Why an answer is cut."""

    reason: Literal["max_output_tokens"]


class ResponseFailure(Body):
    """Why there is no answer."""

    code: Literal["server_error"]
    message: str


class ReasoningEffort(Body):
    """The effort that was asked for."""

    effort: Effort
    summary: None = None


class ModelResponse(Body):
    """A response."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    """Seconds since 1970."""
    status: Literal["completed", "incomplete", "in_progress", "failed", "cancelled"]
    error: ResponseFailure | None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str] = Field(default_factory=dict)
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ReasoningEffort | None = None
    store: bool
    temperature: float
    tool_choice: ResponseToolChoice
    tools: list[ResponseTool]
    top_p: float
    usage: ResponseUsage | None
    semspec: Statistics | None = if_any()
    """Not of a stored response: its trace has the records."""
    metrics: AnswerMetrics | None = if_any()


class _Event(Body):
    sequence_number: int


class ResponseState(_Event):
    """The response begins or ends."""

    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete"
    ]
    response: ModelResponse


class ResponseItem(_Event):
    """An item of the output begins or ends."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: Item


class ResponsePart(_Event):
    """A part of an item begins or ends."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    item_id: str
    output_index: int
    content_index: int
    part: Part


class ResponseText(_Event):
    """The next text of a part, or all of it."""

    type: Literal[
        "response.reasoning_text.delta",
        "response.output_text.delta",
        "response.reasoning_text.done",
        "response.output_text.done",
    ]
    item_id: str
    output_index: int
    content_index: int
    delta: str | None = if_any()
    text: str | None = if_any()
    logprobs: tuple[()] = ()


class ResponseArguments(_Event):
    """The arguments of a call, which come as a whole."""

    type: Literal["response.function_call_arguments.delta", "response.function_call_arguments.done"]
    item_id: str
    output_index: int
    delta: str | None = if_any()
    name: str | None = if_any()
    arguments: str | None = if_any()


EVENTS = (ResponseState, ResponseItem, ResponsePart, ResponseText, ResponseArguments)
