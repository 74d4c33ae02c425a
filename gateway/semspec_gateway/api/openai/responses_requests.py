"""Request schemas of OpenAI's Responses API, and their conversion to what they ask for."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from semspec.errors import InvalidValue
from semspec.types import Message, Role
from semspec_gateway.api.openai.requests import (
    MAX_TOOLS,
    NAME,
    Arguments,
    ChatMessage,
    Function,
    FunctionCall,
    NamedFunction,
    OfFunction,
    RefusalPart,
    SchemaObject,
    ToolCall,
    answer_grammar,
    joined,
    offered,
    select_part,
    template_tools,
    word_or_tool,
)
from semspec_gateway.api.shared.requests import (
    CACHE_LABELS,
    NO_DEFAULTS,
    REASONING_DEFAULTS,
    RESPONSES_DEFAULTS,
    RESPONSES_LABELS,
    CompatibleRequestModel,
    Effort,
    False_,
    MaxTokens,
    Neutral,
    TemplateVariables,
    Text,
    TextRequest,
    items,
    require_type,
    text_or_list,
    type_of,
)
from semspec_gateway.api.shared.resolver import (
    EFFORT_PARAMETER,
    answer_options,
    variables_of,
)
from semspec_gateway.generation.grammar import ANY_OBJECT, json_grammar
from semspec_gateway.generation.request import AnswerOptions, ClientRequest
from semspec_gateway.options import RequestModel

ITEMS = ("reasoning", "function_call", "function_call_output")
"""Types of an input's items other than messages."""


class InputText(CompatibleRequestModel):
    """A text part of an input message; `output_text` in an assistant's earlier turn."""

    noop_fields = NO_DEFAULTS
    labels = CACHE_LABELS | {"annotations", "logprobs"}

    type: Literal["input_text", "output_text"]
    text: Text


InputPart = Annotated[
    Annotated[InputText, Tag("<text>")] | Annotated[RefusalPart, Tag("<refusal>")],
    Discriminator(select_part),
]
InputContent = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[list[InputPart], items(), Tag("<list>")],
    Discriminator(text_or_list),
]


class InputMessage(CompatibleRequestModel):
    """A message of the input; a message of an earlier response is one too."""

    noop_fields = NO_DEFAULTS
    labels = frozenset({"id", "phase", "status"})

    type: Annotated[
        Literal["message"],
        require_type("message", ", ".join(map(repr, ("message", *ITEMS))), "leave out other items"),
    ] = "message"
    role: Role
    content: InputContent | None = None
    """Text of the message; only an assistant's may be without."""

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise InvalidValue("content is missing", remedy="send a text, or a list of text parts")
        return self


class InputReasoning(CompatibleRequestModel):
    """The reasoning of an earlier response; it is not sent to the model."""

    noop_fields = NO_DEFAULTS
    labels = frozenset({"id", "status", "summary", "content", "encrypted_content"})

    type: Literal["reasoning"]


class InputCall(CompatibleRequestModel):
    """A tool's call in an earlier response."""

    noop_fields: ClassVar[Neutral] = {"async": (), "namespace": (), "caller": ()}
    labels = frozenset({"id", "parsed_arguments", "status"})

    type: Literal["function_call"]
    call_id: Text = Field(min_length=1)
    name: Text = Field(min_length=1)
    arguments: Arguments


class InputCallOutput(CompatibleRequestModel):
    """What a tool answered."""

    noop_fields: ClassVar[Neutral] = {"caller": ()}
    labels = frozenset({"id", "status"})

    type: Literal["function_call_output"]
    call_id: Text = Field(min_length=1)
    output: InputContent


def _kind_of_item(item: object) -> str:
    kind = type_of(item)
    return f"<{kind}>" if kind in ITEMS else "<message>"


InputItem = Annotated[
    Annotated[InputMessage, Tag("<message>")]
    | Annotated[InputReasoning, Tag("<reasoning>")]
    | Annotated[InputCall, Tag("<function_call>")]
    | Annotated[InputCallOutput, Tag("<function_call_output>")],
    Discriminator(_kind_of_item),
]


class TextFormat(RequestModel):
    """The format of a response's text; all but its type go with a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(default=None, pattern=NAME)
    description: Text | None = None
    schema_: SchemaObject | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        fields = (self.name, self.description, self.schema_, self.strict)
        if self.type != "json_schema" and fields != (None, None, None, None):
            raise ValueError(
                "name, description, schema and strict go with the type 'json_schema' only"
            )
        if self.type == "json_schema" and (self.name is None or self.schema_ is None):
            raise ValueError("the type 'json_schema' needs a name and a schema")
        return self

    @property
    def grammar(self) -> str:
        """The grammar of such a text; empty for any."""
        if self.type == "text":
            return ""
        if self.schema_ is None:
            return json_grammar(ANY_OBJECT, True, "text.format")
        return json_grammar(self.schema_, bool(self.strict), "text.format.schema")


class TextOptions(CompatibleRequestModel):
    """The Responses API's `text`."""

    noop_fields: ClassVar[Neutral] = {"verbosity": ("medium",)}
    labels = frozenset()

    format: TextFormat | None = None


class ReasoningOptions(CompatibleRequestModel):
    """The Responses API's `reasoning`."""

    noop_fields = REASONING_DEFAULTS
    labels = frozenset()

    effort: Effort | None = None


class ResponseTool(Function, OfFunction):
    """A function that a response may call, as the Responses API has it."""


class NamedResponseTool(NamedFunction, OfFunction):
    """The Responses API's choice of one tool."""


ResponseToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[NamedResponseTool, Tag("<tool>")],
    Discriminator(word_or_tool),
]


Included = Literal[
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class ResponseStreamOptions(RequestModel):
    """OpenAI's `stream_options` of a response."""

    include_obfuscation: False_ | None = None


class ResponseRequest(TextRequest):
    """Body of `POST /v1/responses`."""

    noop_fields = RESPONSES_DEFAULTS
    labels = RESPONSES_LABELS

    input: Annotated[
        Annotated[Text, Tag("<text>")]
        | Annotated[list[InputItem], Field(min_length=1), items(), Tag("<list>")],
        Discriminator(text_or_list),
    ]
    instructions: Text | None = None
    """A system message before the input; a response that follows this one does not inherit it."""
    previous_response_id: Annotated[str, Field(pattern="^[A-Za-z0-9-]{1,64}$")] | None = None
    max_output_tokens: MaxTokens | None = None
    stream_options: ResponseStreamOptions | None = None
    include: Annotated[list[Included], items()] | None = None
    """Additions to the output: the reasoning is there anyway, the others belong to tools that are not served."""
    store: bool | None = None
    """False: routes do not give the response by its id once it has ended."""
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: TemplateVariables | None = None
    tools: Annotated[list[ResponseTool], items(MAX_TOOLS)] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None


class ResponseOptions(AnswerOptions):
    """What a response repeats of its request."""

    previous_response_id: str | None
    effort: Effort | None
    tools: list[ResponseTool]
    tool_choice: ResponseToolChoice
    parallel_tool_calls: bool


def response_request(body: ResponseRequest, turns: tuple[Message, ...]) -> ClientRequest:
    """What a response's body asks for after earlier `turns`. Raises: InvalidRequest."""
    tools = offered(body.tools, body.tool_choice)
    format = body.text.format.grammar if body.text and body.text.format else ""
    effort = body.reasoning.effort if body.reasoning else None
    fields = {"prompt": "input", "grammar": "tools" if tools else "text.format"}
    if effort:
        fields[EFFORT_PARAMETER] = "reasoning.effort"
    messages = messages_of(body.input) or [ChatMessage(role="user", content="")]
    return ClientRequest(
        prompts=((*turns, *(message.message for message in messages)),),
        max_tokens=body.max_output_tokens,
        answer=answer_options(
            ResponseOptions,
            "responses",
            body,
            fields,
            previous_response_id=body.previous_response_id,
            effort=effort,
            tools=body.tools or [],
            tool_choice=body.tool_choice or "auto" if body.tools else "auto",
            parallel_tool_calls=bool(body.tools) and body.parallel_tool_calls is not False,
        ),
        has_seed=body.seed is not None,
        is_kept=body.store is not False,
        grammar=answer_grammar(
            tools, body.tool_choice, body.parallel_tool_calls, format, "text.format"
        ),
        instructions=body.instructions or "",
        tools=template_tools(tools),
        variables=variables_of(body.chat_template_kwargs, effort, "reasoning.effort"),
    )


def messages_of(items_or_text: str | Sequence[InputItem]) -> list[ChatMessage]:
    """The turns of an input; calls belong to the assistant's turn before them, reasoning to none."""
    if isinstance(items_or_text, str):
        return [ChatMessage(role="user", content=items_or_text)]
    messages = list[ChatMessage]()
    for item in items_or_text:
        match item:
            case InputMessage():
                messages.append(ChatMessage(role=item.role, content=joined(item.content or "")))
            case InputCallOutput():
                messages.append(
                    ChatMessage(role="tool", content=joined(item.output), tool_call_id=item.call_id)
                )
            case InputCall():
                function = FunctionCall(name=item.name, arguments=item.arguments)
                call = ToolCall(id=item.call_id, function=function)
                if messages and messages[-1].role == "assistant":
                    last = messages.pop()
                    messages.append(
                        last.model_copy(update={"tool_calls": [*(last.tool_calls or ()), call]})
                    )
                else:
                    messages.append(ChatMessage(role="assistant", tool_calls=[call]))
    return messages
