"""Schemas of OpenAI's Responses API: the request's body, a response, and the events of a stream."""

from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from semspec.gateway.api.openai.formats import MAX_TOOLS, ResponseTool, ResponseToolChoice, TextOptions
from semspec.gateway.api.openai.requests import False_, ObjectText, SemspecOptions, text_or_list
from semspec.gateway.api.shared.answers import AnswerMetrics, CompletionTokens, PromptTokens, Statistics
from semspec.gateway.api.shared.fields import (
    RESPONSES_DEFAULTS,
    CompatibleRequestModel,
    Effort,
    ReasoningOptions,
    RequestModel,
    TemplateVariables,
    Text,
)
from semspec.gateway.options import Temperature, TopP, or_default
from semspec.records import Body, if_any
from semspec.types import Role


class InputPart(CompatibleRequestModel):
    """A text part of an input message; `output_text` in an assistant's earlier turn."""

    noop_fields: ClassVar[dict[str, tuple[object, ...]]] = {"annotations": ([],), "logprobs": ([],)}
    labels = frozenset()

    type: Literal["input_text", "output_text"]
    text: Text


InputContent = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[list[InputPart], Tag("<list>")], Discriminator(text_or_list)
]


def joined(content: str | list[InputPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class InputMessage(CompatibleRequestModel):
    """A message of the input; a message of an earlier response is one too."""

    noop_fields: ClassVar[dict[str, tuple[object, ...]]] = {"phase": ()}
    labels = frozenset({"id", "status"})

    type: Literal["message"] = "message"
    role: Role
    content: InputContent


class InputReasoning(CompatibleRequestModel):
    """The reasoning of an earlier response; it is not sent to the model."""

    noop_fields: ClassVar[dict[str, tuple[object, ...]]] = {}
    labels = frozenset({"id", "status", "summary", "content", "encrypted_content"})

    type: Literal["reasoning"]


class InputCall(CompatibleRequestModel):
    """A tool's call in an earlier response."""

    noop_fields: ClassVar[dict[str, tuple[object, ...]]] = {"async": (), "namespace": (), "caller": ()}
    labels = frozenset({"id", "status"})

    type: Literal["function_call"]
    call_id: Text = Field(min_length=1)
    name: Text = Field(min_length=1)
    arguments: ObjectText


class InputCallOutput(CompatibleRequestModel):
    """What a tool answered."""

    noop_fields: ClassVar[dict[str, tuple[object, ...]]] = {"caller": ()}
    labels = frozenset({"id", "status"})

    type: Literal["function_call_output"]
    call_id: Text = Field(min_length=1)
    output: InputContent


def _kind_of_item(item: object) -> str:
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)  # a model when it is serialized
    return f"<{kind}>" if kind in ("reasoning", "function_call", "function_call_output") else "<message>"


InputItem = Annotated[
    Annotated[InputMessage, Tag("<message>")]
    | Annotated[InputReasoning, Tag("<reasoning>")]
    | Annotated[InputCall, Tag("<function_call>")]
    | Annotated[InputCallOutput, Tag("<function_call_output>")],
    Discriminator(_kind_of_item),
]


class ResponseStreamOptions(RequestModel):
    """OpenAI's `stream_options` of a response."""

    include_obfuscation: False_ | None = None


class ResponseRequest(CompatibleRequestModel):
    """Body of `POST /v1/responses`."""

    noop_fields = RESPONSES_DEFAULTS

    model: str | None = None
    input: Annotated[
        Annotated[Text, Tag("<text>")] | Annotated[list[InputItem], Field(min_length=1), Tag("<list>")],
        Discriminator(text_or_list),
    ]
    instructions: Text | None = None
    """A system message before the input; a response that follows this one does not inherit it."""
    previous_response_id: Annotated[str, Field(pattern="^[A-Za-z0-9-]{1,64}$")] | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, lt=1 << 31)
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: TemplateVariables | None = None
    tools: list[ResponseTool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    semspec: Annotated[SemspecOptions, or_default(SemspecOptions)] = SemspecOptions()


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
    """The text before `</think>`."""

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
    store: Literal[True] = True
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

    type: Literal["response.created", "response.in_progress", "response.completed", "response.incomplete"]
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
