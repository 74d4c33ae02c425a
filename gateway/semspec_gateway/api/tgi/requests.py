"""Request schemas of Text Generation Inference's API, and of vLLM's routes for tokens."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from semspec.grammars.limits import check_pattern
from semspec.types import SamplingParams
from semspec_gateway.api.openai.requests import ChatMessage, SchemaObject, TokenIds
from semspec_gateway.api.shared.requests import (
    TGI_DEFAULTS,
    CompatibleRequestModel,
    False_,
    GenerationBody,
    MaxTokens,
    Repetition,
    Stop,
    Text,
    items,
    parsed_json,
    seed_or_random,
    type_of,
)
from semspec_gateway.generation.grammar import json_grammar, regex_grammar
from semspec_gateway.options import Defaults, RequestModel, Temperature, TopP, or_default
from semspec_gateway.settings import MAX_LOGPROBS, MAX_STOPS


def _parse_schema(schema: object) -> object:
    """Parse a schema that is sent as JSON text. Raises: ValueError."""
    if not isinstance(schema, str):
        return schema
    try:
        return parsed_json(schema)
    except ValueError as error:
        raise ValueError(f"Input should be a JSON schema or its text: {error}") from None


SchemaText = Annotated[
    SchemaObject, BeforeValidator(_parse_schema, json_schema_input_type=SchemaObject | str)
]
"""A JSON schema, or its text."""


class JsonGrammar(RequestModel):
    """JSON by a schema."""

    type: Literal["json"]
    value: SchemaText

    @property
    def grammar(self) -> str:
        return json_grammar(self.value, True, "parameters.grammar.value")


class NamedSchema(RequestModel):
    """A schema with its name."""

    name: Text | None = None
    schema_: SchemaText = Field(alias="schema")


class JsonSchemaGrammar(RequestModel):
    """JSON by a schema that has a name."""

    type: Literal["json_schema"]
    value: NamedSchema

    @property
    def grammar(self) -> str:
        return json_grammar(self.value.schema_, True, "parameters.grammar.value.schema")


def _countable(pattern: str) -> str:
    check_pattern(pattern)
    return pattern


class RegexGrammar(RequestModel):
    """A text that matches a regular expression as a whole."""

    type: Literal["regex"]
    value: Annotated[Text, AfterValidator(_countable)] = Field(min_length=1)

    @property
    def grammar(self) -> str:
        return regex_grammar(self.value, "parameters.grammar.value")


TgiGrammar = Annotated[
    Annotated[JsonGrammar, Tag("<json>")]
    | Annotated[JsonSchemaGrammar, Tag("<json_schema>")]
    | Annotated[RegexGrammar, Tag("<regex>")],
    Discriminator(
        lambda grammar: f"<{type_of(grammar)}>",
        custom_error_type="grammar_type",
        custom_error_message="Input should be an object whose type is 'json', 'json_schema' or 'regex'",
    ),
]


class TgiParameters(CompatibleRequestModel):
    """TGI's `parameters`."""

    noop_fields = TGI_DEFAULTS
    labels = frozenset()

    do_sample: bool | None = None
    max_new_tokens: MaxTokens | None = None
    return_full_text: bool | None = None
    stop: Annotated[list[Stop], items(MAX_STOPS)] | None = None
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    temperature: Annotated[Temperature, Field(gt=0)] | None = None
    top_k: int | None = Field(default=None, ge=1, lt=1 << 31)
    top_p: TopP | None = None
    repetition_penalty: Repetition | None = None
    details: bool | None = None
    top_n_tokens: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    grammar: TgiGrammar | None = None
    """What the whole text follows, or what comes after the reasoning that `inputs` opens."""

    @property
    def is_greedy(self) -> bool:
        """TGI samples if `do_sample` is set or if any sampling parameter is."""
        filters = self.top_k is not None or self.top_p not in (None, 1)
        return not (self.do_sample or filters or self.temperature not in (None, 1))


class TgiRequest(GenerationBody):
    """Body of `POST /`, `/generate` and `/generate_stream`."""

    inputs: Text = Field(min_length=1)
    parameters: Annotated[TgiParameters, or_default(TgiParameters)] = TgiParameters()

    def sampling(self, defaults: Defaults) -> SamplingParams:
        """Return how to draw tokens. Unset fields have TGI's defaults, not the operator's."""
        parameters = self.parameters
        return SamplingParams(
            temperature=0.0 if parameters.is_greedy else parameters.temperature or 1.0,
            top_p=parameters.top_p or 1.0,
            top_k=parameters.top_k or 0,
            seed=seed_or_random(parameters.seed),
        )


class TokenizeInputs(RequestModel):
    """Body of `POST /tokenize` as in TGI."""

    inputs: Text
    add_special_tokens: False_ | None = None


class TokenizePrompt(CompatibleRequestModel):
    """Body of `POST /tokenize` as in vLLM, for a text."""

    model: str | None = None
    prompt: Text
    add_special_tokens: bool | None = None
    """True by default, as in vLLM."""
    return_token_strs: False_ | None = None


class TokenizeMessages(CompatibleRequestModel):
    """Body of `POST /tokenize` as in vLLM, for a conversation."""

    model: str | None = None
    messages: Annotated[list[ChatMessage], items()] = Field(min_length=1)
    add_special_tokens: False_ | None = None
    return_token_strs: False_ | None = None


def _kind_of_text(body: object) -> str:
    # Pydantic passes a body, or a model when it serializes it.
    names = body if isinstance(body, dict) else getattr(body, "model_fields_set", ())
    return "<tgi>" if "inputs" in names else "<chat>" if "messages" in names else "<text>"


TokenizeRequest = Annotated[
    Annotated[TokenizeInputs, Tag("<tgi>")]
    | Annotated[TokenizePrompt, Tag("<text>")]
    | Annotated[TokenizeMessages, Tag("<chat>")],
    Discriminator(_kind_of_text),
]


class DetokenizeRequest(RequestModel):
    """Body of `POST /detokenize`."""

    model: str | None = None
    tokens: TokenIds = Field(min_length=1)
