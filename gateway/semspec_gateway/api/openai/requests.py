"""Request schemas of OpenAI's chats and plain completions, and the grammars that their formats and tools stand for."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from semspec import types
from semspec.errors import InvalidRequest, InvalidValue
from semspec.grammars.limits import check_schema
from semspec.types import JsonObject, Message, Role
from semspec_gateway.api.shared.requests import (
    CACHE_LABELS,
    MESSAGE_DEFAULTS,
    MESSAGE_LABELS,
    NO_DEFAULTS,
    CompatibleRequestModel,
    CompletionBody,
    Effort,
    MaxTokens,
    TemplateVariables,
    Text,
    encodable,
    items,
    parsed_json,
    require_type,
    text_or_list,
    type_of,
)
from semspec_gateway.generation.grammar import ANY_OBJECT, json_grammar, tools_grammar
from semspec_gateway.options import RequestModel
from semspec_gateway.settings import MAX_LOGPROBS

NAME = r"^[A-Za-z0-9_.-]{1,64}$"
MAX_TOOLS = 128
MAX_NAME_LENGTH = 64


class TextPart(CompatibleRequestModel):
    """A text part of a message's content."""

    noop_fields = NO_DEFAULTS
    labels = CACHE_LABELS

    type: Literal["text"]
    text: Text


class RefusalPart(CompatibleRequestModel):
    """A part of an assistant's content in which it refused to answer."""

    noop_fields = NO_DEFAULTS
    labels = CACHE_LABELS

    type: Literal["refusal"]
    refusal: Text

    @property
    def text(self) -> str:
        return self.refusal


def select_part(part: object) -> str:
    """Return the tag of a part's model, in angle brackets, so that errors can leave it out of a field's path."""
    return "<refusal>" if type_of(part) == "refusal" else "<text>"


Part = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[RefusalPart, Tag("<refusal>")],
    Discriminator(select_part),
]
Content = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[list[Part], items(), Tag("<list>")],
    Discriminator(text_or_list),
]


def _write_arguments(arguments: object) -> object:
    """Return the JSON text of arguments: some clients send the object itself, and null or an empty text for none."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return "{}"
    try:
        return json.dumps(arguments) if isinstance(arguments, dict) else arguments
    except RecursionError:
        raise ValueError(
            "Input should be the JSON text of an object: it is nested too deep"
        ) from None


def _check_arguments(text: str) -> str:
    """Raises: ValueError when the text is JSON that chat templates cannot render."""
    try:
        parsed_json(text)
    except json.JSONDecodeError:
        return text  # a model wrote it, and models make mistakes
    except ValueError as error:
        raise ValueError(f"Input should be the JSON text of an object: {error}") from None
    return text


Arguments = Annotated[
    Text,
    BeforeValidator(_write_arguments, json_schema_input_type=str | dict[str, Any] | None),
    AfterValidator(_check_arguments),
]
"""JSON text of a call's arguments."""


FunctionType = Annotated[
    Literal["function"],
    require_type(
        "function", "'function', the only type of tools that is served", "leave out other tools"
    ),
]


class OfFunction(RequestModel):
    """A tool that is a function, the only type of tools that is served."""

    type: FunctionType


class FunctionCall(CompatibleRequestModel):
    """The function that an assistant called."""

    noop_fields = NO_DEFAULTS
    labels = frozenset({"parsed_arguments"})

    name: Text = Field(min_length=1)
    arguments: Arguments


class ToolCall(CompatibleRequestModel):
    """A tool's call in an assistant's earlier turn."""

    noop_fields = NO_DEFAULTS
    labels = frozenset({"index", "provider_specific_fields"})

    id: Text | None = None
    type: FunctionType | None = None
    function: FunctionCall

    @property
    def call(self) -> types.ToolCall:
        """The call as a message has it."""
        return types.ToolCall(self.id or "", self.function.name, self.function.arguments)


class ChatMessage(CompatibleRequestModel):
    """One text message of a conversation."""

    noop_fields = MESSAGE_DEFAULTS
    labels = MESSAGE_LABELS

    role: Literal[Role, "function"]
    """`function` is OpenAI's older name for `tool`."""
    content: Content | None = None
    """Text of the turn; only an assistant's or a function's turn may be without."""
    name: Annotated[Text, Field(max_length=MAX_NAME_LENGTH)] | None = None
    """Name of the participant or tool, which the chat template may show."""
    tool_calls: Annotated[list[ToolCall], items(MAX_TOOLS)] | None = None
    """Calls in an assistant's earlier turn."""
    function_call: FunctionCall | None = None
    """A call in OpenAI's older format."""
    tool_call_id: Text | None = None
    """Id of the call that a tool's message answers."""
    refusal: Text | None = None
    """Text with which an assistant refused to answer, instead of a content."""
    reasoning: Text | None = None
    reasoning_content: Text | None = None
    """Past reasoning is accepted and dropped from the prompt, as in the chat templates of reasoning models."""

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if self.role != "assistant" and (self.tool_calls or self.function_call or self.refusal):
            raise ValueError(
                "only an assistant's message has tool_calls, a function_call or a refusal"
            )
        if self.tool_calls and self.function_call:
            raise InvalidValue(
                "function_call is the older name of tool_calls", remedy="give one of them"
            )
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError("only a tool's message has a tool_call_id")
        if self.role == "function" and not self.name:
            raise ValueError("a function's message needs the function's name")
        if self.content is None and self.role not in ("assistant", "function"):
            raise InvalidValue("content is missing", remedy="send a text, or a list of text parts")
        return self

    @property
    def message(self) -> Message:
        """The message as chat templates know it. A call in the older format gets its function's name as its id."""
        calls, name, call_id = self.tool_calls or [], self.name or "", self.tool_call_id or ""
        if self.function_call:
            calls = [ToolCall(id=self.function_call.name, function=self.function_call)]
        return Message(
            role="tool" if self.role == "function" else self.role,
            content=joined(self.content or self.refusal or ""),
            tool_calls=tuple(call.call for call in calls),
            tool_call_id=name if self.role == "function" else call_id,
            name=name,
        )


def joined(content: str | list[Any]) -> str:
    """A text, or the texts of all parts."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _countable(schema: dict[str, Any]) -> dict[str, Any]:
    check_schema(schema)
    encodable(json.dumps(schema, ensure_ascii=False))
    return schema


SchemaObject = Annotated[
    dict[str, Any], AfterValidator(_countable), Field(description="a JSON schema")
]


class JsonSchema(RequestModel):
    """A schema with its name. `strict`: every keyword is held; else those that cannot be held are ignored."""

    name: str = Field(pattern=NAME)
    description: Text | None = None
    schema_: SchemaObject | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """OpenAI's `response_format`; the schema of a `json_object` as TGI and `huggingface_hub` name it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    value: SchemaObject | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") is not (self.json_schema is not None):
            raise ValueError("json_schema goes with the type 'json_schema', and only with it")
        if self.value is not None and self.type != "json_object":
            raise ValueError("value, a schema, goes with the type 'json_object' only")
        return self


class Function(RequestModel):
    """A function that the model may call; `strict` as for a `JsonSchema`."""

    name: str = Field(pattern=NAME)
    description: Text | None = None
    parameters: SchemaObject | None = None
    strict: bool | None = None


class Tool(CompatibleRequestModel):
    """A tool that the model may call."""

    noop_fields = NO_DEFAULTS
    labels = CACHE_LABELS

    type: FunctionType
    function: Function


class NamedFunction(RequestModel):
    """The function to call."""

    name: str


class NamedTool(OfFunction):
    """A choice of one tool."""

    function: NamedFunction


def word_or_tool(value: object) -> str:
    """The tag of a choice of tools."""
    return "<word>" if isinstance(value, str) else "<tool>"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[NamedTool, Tag("<tool>")],
    Discriminator(word_or_tool),
]


class ChatRequest(CompletionBody):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], items()] = Field(min_length=1)
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], items(MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: int | None = Field(default=None, ge=0, lt=1 << 31)
    chat_template_kwargs: TemplateVariables | None = None


TokenId = Annotated[int, Field(ge=0, lt=1 << 32)]
TokenIds = Annotated[list[TokenId], items(None)]
"""Number of values that a body may hold."""


def _kind_of_prompt(value: object) -> str:
    """A text, its token ids, or a list of either, by the first element."""
    if not isinstance(value, list):
        return "<text>"
    first = value[0] if value else ""
    return "<ids>" if isinstance(first, int) else "<lists>" if isinstance(first, list) else "<list>"


CompletionPrompt = Annotated[
    Annotated[Text, Tag("<text>")]
    | Annotated[TokenIds, Tag("<ids>")]
    | Annotated[list[Text], Field(min_length=1), items(), Tag("<list>")]
    | Annotated[list[Annotated[TokenIds, Field(min_length=1)]], items(), Tag("<lists>")],
    Discriminator(_kind_of_prompt),
]
"""One text or several, or the target's token ids of one or of several."""


class CompletionRequest(CompletionBody):
    """Body of `POST /v1/completions`."""

    prompt: CompletionPrompt
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)


def format_grammar(format: ResponseFormat | None) -> str:
    """The grammar of an answer in this format; empty for a text."""
    if format is None or format.type == "text":
        return ""
    schema, is_strict, field = format.value, False, "response_format.value"
    if format.json_schema is not None:
        schema, is_strict = format.json_schema.schema_, bool(format.json_schema.strict)
        field = "response_format.json_schema.schema"
    return json_grammar(ANY_OBJECT if schema is None else schema, is_strict, field)


def offered(
    functions: Sequence[Function] | None, choice: str | NamedFunction | None
) -> list[Function]:
    """The functions that the model gets to see; none if it may not call any. Raises: InvalidRequest."""
    functions = list(functions or ())
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools: two of them have the same name", "tools")
    if isinstance(choice, NamedFunction) and choice.name not in names:
        raise InvalidRequest(
            f"tool_choice: there is no tool {choice.name!r} in tools", "tool_choice"
        )
    if choice == "required" and not functions:
        raise InvalidRequest(
            "tool_choice: 'required' needs tools",
            "tool_choice",
            remedy="give some, or leave it out",
        )
    return [] if choice == "none" else functions


def answer_grammar(
    functions: Sequence[Function],
    choice: str | NamedFunction | None,
    is_parallel: bool | None,
    format: str,
    field: str,
) -> str:
    """The grammar of an answer that may call `functions` or must; without any, that of its `format`, which `field` has.

    Raises: InvalidRequest.
    """
    if not functions:
        return format
    if format:
        raise InvalidRequest(
            f"{field} is only served without tools", field, remedy="leave out one of them"
        )
    name = choice.name if isinstance(choice, NamedFunction) else None
    numbered = [
        (index, function)
        for index, function in enumerate(functions)
        if name in (None, function.name)
    ]
    fields = [f"tools.{index}.function.parameters" for index, _ in numbered]
    is_required = name is not None or choice == "required"
    is_parallel = is_parallel is not False and name is None
    return tools_grammar(
        [function.model_dump() for _, function in numbered], is_required, is_parallel, fields
    )


def template_tools(functions: Sequence[Function]) -> tuple[JsonObject, ...]:
    """The functions as a chat template takes them."""
    fields = {"name", "description", "parameters"}
    return tuple(
        {"type": "function", "function": function.model_dump(exclude_none=True, include=fields)}
        for function in functions
    )
