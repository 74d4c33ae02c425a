"""Request schemas of an answer's format, as JSON or as calls of tools, and the grammars that they stand for."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from semspec.errors import InvalidRequest
from semspec.gateway.api.shared.fields import CompatibleRequestModel, RequestModel, Text, encodable
from semspec.gateway.generation.grammar import ANY_OBJECT, json_grammar, tools_grammar
from semspec.grammars.limits import check_schema

NAME = r"^[A-Za-z0-9_.-]{1,64}$"
MAX_TOOLS = 128


def _countable(schema: dict[str, Any]) -> dict[str, Any]:
    check_schema(schema)
    encodable(json.dumps(schema, ensure_ascii=False))
    return schema


SchemaObject = Annotated[dict[str, Any], AfterValidator(_countable), Field(description="a JSON schema")]


class JsonSchema(RequestModel):
    """A schema with its name. `strict`: every keyword is held; else those that cannot be held are ignored."""

    name: str = Field(pattern=NAME)
    description: Text | None = None
    schema_: SchemaObject | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") is not (self.json_schema is not None):
            raise ValueError("json_schema goes with the type 'json_schema', and only with it")
        return self


class TextFormat(RequestModel):
    """The format of a response's text; all but its type go with a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(default=None, pattern=NAME)
    description: Text | None = None
    schema_: SchemaObject | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        given = (self.name, self.description, self.schema_, self.strict)
        if self.type != "json_schema" and given != (None, None, None, None):
            raise ValueError("name, description, schema and strict go with the type 'json_schema' only")
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

    noop_fields: ClassVar[dict[str, tuple[object, ...]]] = {"verbosity": ()}
    labels = frozenset()

    format: TextFormat | None = None


class Function(RequestModel):
    """A function that the model may call; `strict` as for a `JsonSchema`."""

    name: str = Field(pattern=NAME)
    description: Text | None = None
    parameters: SchemaObject | None = None
    strict: bool | None = None


class Tool(RequestModel):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class NamedFunction(RequestModel):
    """The function to call."""

    name: str


class NamedTool(RequestModel):
    """A choice of one tool."""

    type: Literal["function"]
    function: NamedFunction


class ResponseTool(RequestModel):
    """A function that a response may call, as the Responses API has it."""

    type: Literal["function"]
    name: str = Field(pattern=NAME)
    description: Text | None = None
    parameters: SchemaObject | None = None
    strict: bool | None = None

    @property
    def tool(self) -> Tool:
        """The same as in a chat."""
        return Tool(type="function", function=Function(**self.model_dump(exclude={"type"})))


class NamedResponseTool(RequestModel):
    """The Responses API's choice of one tool."""

    type: Literal["function"]
    name: str


def _kind_of_choice(value: object) -> str:
    return "<word>" if isinstance(value, str) else "<tool>"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")] | Annotated[NamedTool, Tag("<tool>")],
    Discriminator(_kind_of_choice),
]


ResponseToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")] | Annotated[NamedResponseTool, Tag("<tool>")],
    Discriminator(_kind_of_choice),
]


def format_grammar(format: ResponseFormat | None, field: str = "response_format") -> str:
    """The grammar of an answer in this format; empty for a text."""
    if format is None or format.type == "text":
        return ""
    if format.json_schema is None:
        return json_grammar(ANY_OBJECT, True, field)
    schema, is_strict = format.json_schema.schema_, bool(format.json_schema.strict)
    return json_grammar(ANY_OBJECT if schema is None else schema, is_strict, f"{field}.json_schema.schema")


def offered(tools: Sequence[Tool] | None, choice: str | NamedTool | None) -> list[Tool]:
    """The tools that the model gets to see; none if it may not call any. Raises: InvalidRequest."""
    tools = list(tools or ())
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools: two of them have the same name", "tools")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        message = f"tool_choice.function.name: there is no tool {choice.function.name!r} in tools"
        raise InvalidRequest(message, "tool_choice.function.name")
    if choice == "required" and not tools:
        raise InvalidRequest("tool_choice: 'required' needs tools; give some, or leave it out", "tool_choice")
    return [] if choice == "none" else tools


def calls_grammar(tools: Sequence[Tool], choice: str | NamedTool | None, is_parallel: bool) -> str:
    """The grammar of an answer that may call `tools`, not empty, or must."""
    numbered = [(index, tool.function) for index, tool in enumerate(tools)]
    if isinstance(choice, NamedTool):
        numbered = [(index, function) for index, function in numbered if function.name == choice.function.name]
    fields = [f"tools.{index}.function.parameters" for index, _ in numbered]
    functions = [function.model_dump() for _, function in numbered]
    is_required = isinstance(choice, NamedTool) or choice == "required"
    return tools_grammar(functions, is_required, is_parallel and not isinstance(choice, NamedTool), fields)


def tools_json(tools: Sequence[Tool]) -> str:
    """The tools as a chat template takes them; empty if there are none."""
    given = [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in tools]
    return json.dumps(given) if given else ""
