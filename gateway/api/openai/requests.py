"""Request schemas of OpenAI's and TGI's APIs. Unsupported fields are rejected by name."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from semspec.gateway.api.openai.formats import MAX_TOOLS, ResponseFormat, Tool, ToolChoice
from semspec.gateway.api.shared.fields import (
    OPENAI_DEFAULTS,
    SUPPORTED_IN_CHATS,
    CompatibleRequestModel,
    Effort,
    Repetition,
    RequestModel,
    TemplateVariables,
    Text,
    encodable,
    parsed_json,
)
from semspec.gateway.options import AcceptanceOptions, StrategyOptions, Temperature, TopP, or_default
from semspec.gateway.settings import (
    MAX_LOGPROBS,
    MAX_STOP_LENGTH,
    MAX_STOPS,
)
from semspec.types import Message, Role

MAX_BIASES = 300
SESSION_NAME = r"^[A-Za-z0-9_.-]{1,128}$"


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH), AfterValidator(encodable)]


class TextPart(RequestModel):
    """A text part of a message's content."""

    type: Literal["text"]
    text: Text


def _strictly_bool(value: object) -> object:
    if value is not False:
        raise ValueError("Input should be false")  # Literal[False] accepts 0
    return value


False_ = Annotated[Literal[False], BeforeValidator(_strictly_bool)]


def text_or_list(value: object) -> str:
    """The tag of a value that is a text or a list."""
    return "<list>" if isinstance(value, list) else "<text>"


Content = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[list[TextPart], Tag("<list>")], Discriminator(text_or_list)
]
"""Discriminator tags are in angle brackets so that error messages can leave them out of a field's path."""

Stops = Annotated[
    Annotated[Stop, Tag("<text>")] | Annotated[list[Stop], Field(max_length=MAX_STOPS), Tag("<list>")],
    Discriminator(text_or_list),
]


def _json_object(text: str) -> str:
    try:
        parsed = parsed_json(text)
    except ValueError as error:
        raise ValueError(f"Input should be the JSON text of an object: {error}") from None
    if not isinstance(parsed, dict):
        raise ValueError("Input should be the JSON text of an object")
    return text


ObjectText = Annotated[Text, AfterValidator(_json_object)]


class FunctionCall(RequestModel):
    """The function that an assistant called."""

    name: Text = Field(min_length=1)
    arguments: ObjectText


class ToolCall(RequestModel):
    """A tool's call in an assistant's earlier turn."""

    id: Text
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(CompatibleRequestModel):
    """One text message of a conversation."""

    role: Role
    content: Content | None = None
    """Only an assistant's turn with tool calls may be without."""
    name: None = None
    tool_calls: list[ToolCall] | None = None
    """Of an assistant's earlier turn."""
    tool_call_id: Text | None = None
    """Of a tool's message: the call that it answers."""
    reasoning: Text | None = None
    reasoning_content: Text | None = None
    """Past reasoning is accepted and dropped from the prompt, as in the chat templates of reasoning models."""

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only an assistant's message has tool_calls")
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError("only a tool's message has a tool_call_id")
        if self.content is None and not self.tool_calls:
            raise ValueError("content is missing; send a text, or a list of text parts")
        return self

    @property
    def message(self) -> Message:
        calls = [call.model_dump() for call in self.tool_calls or ()]
        return Message(self.role, self._text, json.dumps(calls) if calls else "", self.tool_call_id or "")

    @property
    def _text(self) -> str:
        if self.content is None:
            return ""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class SemspecOptions(StrategyOptions):
    """The request's `semspec` object: options beyond OpenAI's API. None selects the gateway's default."""

    strategy: str | None = None
    """One of those that the gateway has."""
    segmentation: Literal["paragraph", "sentence"] | None = None
    strictness: float | None = Field(default=None, ge=0, le=1)
    session: str | None = Field(default=None, pattern=SESSION_NAME)
    trace: bool | None = None

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.strictness is not None and self.acceptance != AcceptanceOptions():
            raise ValueError("strictness chooses the acceptance rule; give one of strictness and acceptance")
        return self


class StreamOptions(RequestModel):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None
    include_obfuscation: False_ | None = None


LogitBias = Annotated[
    dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_BIASES, description="by token id: what is added to its logit"),
]


class GenerationRequest(CompatibleRequestModel):
    """Fields that chat and plain completions share."""

    model: str | None = None
    """Null, `tgi` and `dummy` stand for the pair: some clients send them if they are given no name."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: int | None = Field(default=None, ge=-1, lt=1 << 31)
    """0 and -1 keep every token."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: Repetition | None = None
    logit_bias: LogitBias | None = None
    stop: Stops | None = None
    max_tokens: int | None = Field(default=None, ge=1, lt=1 << 31)
    store: False_ | None = None
    """False: the answer is not listed in the collection. It is stored all the same, to be resumed."""
    semspec: Annotated[SemspecOptions, or_default(SemspecOptions)] = SemspecOptions()


class ChatRequest(GenerationRequest):
    """Body of `POST /v1/chat/completions`."""

    noop_fields: ClassVar[Mapping[str, Sequence[object]]] = {
        name: values for name, values in OPENAI_DEFAULTS.items() if name not in SUPPORTED_IN_CHATS
    }

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=1 << 31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: TemplateVariables | None = None


TokenId = Annotated[int, Field(ge=0, lt=1 << 32)]


def _kind_of_prompt(value: object) -> str:
    """A text, its token ids, or a list of either, by the first element."""
    if not isinstance(value, list):
        return "<text>"
    first = value[0] if value else ""
    return "<ids>" if isinstance(first, int) else "<lists>" if isinstance(first, list) else "<list>"


CompletionPrompt = Annotated[
    Annotated[Text, Tag("<text>")]
    | Annotated[list[TokenId], Tag("<ids>")]
    | Annotated[list[Text], Field(min_length=1), Tag("<list>")]
    | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Tag("<lists>")],
    Discriminator(_kind_of_prompt),
]
"""One text or several, or the target's token ids of one or of several."""


class CompletionRequest(GenerationRequest):
    """Body of `POST /v1/completions`."""

    prompt: CompletionPrompt
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
